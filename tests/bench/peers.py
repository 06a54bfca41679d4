"""Peers: the cross of tests.bench.session in other programs, as their own documentation writes it. Each is skipped by
name where it is not installed.

`uv sync --group bench` brings them; no test needs them and no pin holds them. Every one gets the same candles, the same
two averages, market orders at the next open, a stop 1 % and a target 2 % off the close, 0.05 % a fill, and is closed on
the opposite cross. What they do besides (their fills inside a bar, their rounding) is their own, so their results are
shown beside the times: near, and not equal.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles

FAST, SLOW = 10, 30
USD, STOP, TARGET, FEE = 1_000, 0.01, 0.02, 0.0005
BALANCE: Final = 1_000_000


# Packages beside a peer whose version moves its time by up to a third.
BELOW: Final = ("pandas", "numpy", "bokeh")


class Ran(NamedTuple):
    """Processor seconds of the run alone, its closed trades, and what it made in USD."""

    seconds: float
    trades: int
    pnl: float


def crosses(candles: Candles) -> Any:
    """+1 where the fast average has just come to stand above the slow one, -1 below, else 0."""
    import numpy as np

    close = np.frombuffer(candles.close)
    sums = np.concatenate(([0.0], np.cumsum(close)))
    fast, slow = (np.full(len(close), np.nan) for _ in range(2))
    for out, n in ((fast, FAST), (slow, SLOW)):
        out[n - 1 :] = (sums[n:] - sums[:-n]) / n
    side = np.sign(fast - slow)
    found = np.zeros(len(close))
    found[SLOW:] = np.where((side[SLOW:] != side[SLOW - 1 : -1]) & (side[SLOW - 1 : -1] != 0), side[SLOW:], 0)
    return found


def frame_of(candles: Candles, names: tuple[str, ...]) -> Any:
    import numpy as np
    import pandas as pd

    columns = (candles.open, candles.high, candles.low, candles.close, candles.volume)
    index = pd.to_datetime(np.frombuffer(candles.at_ms, dtype=np.int64), unit="ms")
    return pd.DataFrame({name: np.frombuffer(one) for name, one in zip(names, columns, strict=True)}, index=index)


def run_backtesting(candles: Candles) -> Ran:
    """It trades whole units: prices are of a millionth of a coin, so that a unit is one."""
    # Its progress bar is no part of what is measured.
    os.environ.setdefault("TQDM_DISABLE", "1")
    from backtesting import Backtest, Strategy

    data = frame_of(candles, ("Open", "High", "Low", "Close", "Volume"))
    data[["Open", "High", "Low", "Close"]] /= 1e6
    signal = crosses(candles)

    class Cross(Strategy):  # type: ignore[misc]
        def init(self) -> None:
            self.cross = self.I(lambda: signal)

        def next(self) -> None:
            cross = self.cross[-1]
            if cross > 0 and not self.position:
                px = self.data.Close[-1]
                self.buy(size=max(1, round(USD / px)), sl=px * (1 - STOP), tp=px * (1 + TARGET))
            elif cross < 0 and self.position:
                self.position.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Backtest(data, Cross, cash=BALANCE, commission=FEE)
        started = time.process_time()
        found = made.run()
        took = time.process_time() - started
    return Ran(took, int(found["# Trades"]), float(found["Equity Final [$]"]) - BALANCE)


def run_backtrader(candles: Candles) -> Ran:
    import backtrader as bt

    class Cross(bt.Strategy):  # type: ignore[misc]
        def __init__(self) -> None:
            self.cross = bt.ind.CrossOver(bt.ind.SMA(period=FAST), bt.ind.SMA(period=SLOW))
            self.legs: list[Any] = []
            self.done = 0

        def next(self) -> None:
            if self.cross[0] > 0 and not self.position:
                px = self.data.close[0]
                self.legs = self.buy_bracket(
                    size=round(USD / px, 6),
                    exectype=bt.Order.Market,
                    stopprice=px * (1 - STOP),
                    limitprice=px * (1 + TARGET),
                )
            elif self.cross[0] < 0 and self.position:
                for leg in self.legs[1:]:
                    self.cancel(leg)
                self.close()

        def notify_trade(self, trade: Any) -> None:
            self.done += trade.isclosed

    cerebro = bt.Cerebro(stdstats=False)
    cerebro.adddata(bt.feeds.PandasData(dataname=frame_of(candles, ("open", "high", "low", "close", "volume"))))
    cerebro.addstrategy(Cross)
    cerebro.broker.setcash(BALANCE)
    cerebro.broker.setcommission(commission=FEE)
    started = time.process_time()
    (ran,) = cerebro.run()
    return Ran(time.process_time() - started, ran.done, cerebro.broker.getvalue() - BALANCE)


def run_nautilus(candles: Candles) -> Ran:
    from decimal import Decimal

    from nautilus_trader.backtest.config import BacktestEngineConfig
    from nautilus_trader.backtest.engine import BacktestEngine
    from nautilus_trader.config import LoggingConfig
    from nautilus_trader.indicators import SimpleMovingAverage
    from nautilus_trader.model.currencies import BTC, USDT
    from nautilus_trader.model.data import Bar, BarType
    from nautilus_trader.model.enums import AccountType, OmsType, OrderSide
    from nautilus_trader.model.identifiers import InstrumentId, Symbol, Venue
    from nautilus_trader.model.instruments import CryptoPerpetual
    from nautilus_trader.model.objects import Money, Price, Quantity
    from nautilus_trader.trading.strategy import Strategy

    venue = Venue("SIM")
    name = InstrumentId(Symbol("BTCUSDT-PERP"), venue)
    fee = Decimal(str(FEE))
    instrument = CryptoPerpetual(
        instrument_id=name,
        raw_symbol=Symbol("BTCUSDT"),
        base_currency=BTC,
        quote_currency=USDT,
        settlement_currency=USDT,
        is_inverse=False,
        price_precision=2,
        size_precision=6,
        price_increment=Price(0.01, 2),
        size_increment=Quantity(0.000001, 6),
        ts_event=0,
        ts_init=0,
        margin_init=Decimal("0.01"),
        margin_maint=Decimal("0.005"),
        maker_fee=fee,
        taker_fee=fee,
    )
    series = BarType.from_str(f"{name}-1-MINUTE-LAST-EXTERNAL")

    class Cross(Strategy):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fast, self.slow = SimpleMovingAverage(FAST), SimpleMovingAverage(SLOW)
            self.before = 0

        def on_start(self) -> None:
            for one in (self.fast, self.slow):
                self.register_indicator_for_bars(series, one)
            self.subscribe_bars(series)

        def on_bar(self, bar: Any) -> None:
            if not self.slow.initialized:
                return
            before, gap = self.before, self.fast.value - self.slow.value
            now = self.before = 1 if gap > 0 else -1 if gap < 0 else before
            if before < 0 < now and self.portfolio.is_flat(name):
                px = float(bar.close)
                self.submit_order_list(
                    self.order_factory.bracket(
                        instrument_id=name,
                        order_side=OrderSide.BUY,
                        quantity=instrument.make_qty(USD / px),
                        sl_trigger_price=instrument.make_price(px * (1 - STOP)),
                        tp_price=instrument.make_price(px * (1 + TARGET)),
                    )
                )
            elif now < 0 < before and not self.portfolio.is_flat(name):
                self.cancel_all_orders(name)
                self.close_all_positions(name)

    engine = BacktestEngine(BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True), run_analysis=False))
    engine.add_venue(
        venue=venue,
        oms_type=OmsType.NETTING,
        account_type=AccountType.MARGIN,
        base_currency=USDT,
        starting_balances=[Money(BALANCE, USDT)],
    )
    engine.add_instrument(instrument)
    engine.add_data(
        [
            Bar(
                series,
                Price(o, 2),
                Price(h, 2),
                Price(low, 2),
                Price(c, 2),
                Quantity(v, 6),
                (at + 60_000) * 1_000_000,
                (at + 60_000) * 1_000_000,
            )
            for at, o, h, low, c, v in zip(*candles.columns, strict=True)
        ]
    )
    engine.add_strategy(Cross())
    started = time.process_time()
    engine.run()
    took = time.process_time() - started
    trades = engine.cache.positions_closed_count()
    trades = max(trades, len(engine.cache.position_snapshots()))
    balance = engine.cache.account_for_venue(venue).balance_total(USDT).as_double()
    engine.dispose()
    return Ran(took, trades, balance - BALANCE)


def idle_backtesting(candles: Candles) -> Ran:
    """A strategy that does nothing."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from backtesting import Backtest, Strategy

    class Idle(Strategy):  # type: ignore[misc]
        def init(self) -> None:
            return None

        def next(self) -> None:
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Backtest(
            frame_of(candles, ("Open", "High", "Low", "Close", "Volume")), Idle, cash=BALANCE, commission=FEE
        )
        started = time.process_time()
        made.run()
        return Ran(time.process_time() - started, 0, 0.0)


PEERS: Final[dict[str, tuple[str, Callable[[Candles], Ran]]]] = {
    "backtesting.py": ("backtesting", run_backtesting),
    "backtrader": ("backtrader", run_backtrader),
    "nautilus_trader": ("nautilus_trader", run_nautilus),
}


def versions() -> str:
    """The installed versions of the peers and of what they stand on."""
    found = []
    for package in (*(package for package, _ in PEERS.values()), *BELOW):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return ", ".join(found)


def installed() -> tuple[dict[str, Callable[[Candles], Ran]], list[str]]:
    """Those that can run here, by name and version; and the names of those that are not installed."""
    there: dict[str, Callable[[Candles], Ran]] = {}
    absent = []
    for name, (package, run) in PEERS.items():
        try:
            there[f"{name} {version(package)}"] = run
        except PackageNotFoundError:
            absent.append(name)
    return there, absent


def main() -> None:
    import argparse

    from tests.bench.session import year

    parser = argparse.ArgumentParser()
    parser.add_argument("--bars", type=int, default=100_000)
    candles = year(parser.parse_args().bars)
    there, absent = installed()
    for name, run in there.items():
        ran = run(candles)
        print(
            f"{name:<28} {ran.seconds:8.2f} s {len(candles) / ran.seconds:12,.0f} bars/s {ran.trades:8,} trades"
            f" {ran.pnl:+14,.2f} USD"
        )
    for name in absent:
        print(f"{name:<28} is not installed (uv sync --group bench)")


if __name__ == "__main__":
    main()
