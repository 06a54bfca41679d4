"""Run the screen for one set of params: the trades that the full backtest makes, and the figures of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bot.backtest.results.statistics import FinishedTrade, daily_returns, statistics
from bot.backtest.results.trade_ledger import RoundTrip
from bot.errors import StrategyError
from bot.money import E8
from bot.research.screen.kernel import CLOSE, COLUMNS, DONE, OPEN_END, REASONS, STOP, TARGET, trades_of
from bot.research.screen.markets import ScreenSetup, bars_of, first_bar, orders_of, plain, rules_for
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy.signals import BarArrays, SignalRows

# rows whose signals are compared with those of a window of `lookback` bars
SAMPLES: Final = 60
_OF_INSTANTS: Final = ("entry_row", "exit_row", "exit_step", "exit_kind")
_OF_CURVE: Final = ("side", "size", "entry_row", "exit_row", "exit_kind")
_OF_TRADES: Final = ("size", "entry_notional", "exit_notional", "fees", "funding", "stop_px")
_KINDS: Final = {STOP: "stop_loss", TARGET: "take_profit", CLOSE: "close"}


@dataclass(frozen=True)
class Screened:
    """The trades of a screen: a row for each, in the order of kernel.COLUMNS.

    `why_not`: why the full backtest has to run instead.
    """

    ground: ScreenSetup
    name: str
    rows: Any
    balance: int
    why_not: str | None = None

    def trips(self) -> list[RoundTrip]:
        """The trades as the ledger of a backtest has them, without slippage."""
        rows = zip(self.rows.tolist(), *self.instants(), strict=True)
        return [self._trip(dict(zip(COLUMNS, row, strict=True)), entry_ms, exit_ms) for row, entry_ms, exit_ms in rows]

    def _trip(self, signal: Mapping[str, int], entry_ms: int, exit_ms: int | None) -> RoundTrip:
        side = "long" if signal["side"] > 0 else "short"
        trip = RoundTrip(self.ground.reader.coin, side, self.name, entry_ms, "market")
        trip.size = trip.bought = signal["size"]
        trip.entry_notional, trip.fees, trip.funding = signal["entry_notional"], signal["fees"], signal["funding"]
        trip.fills = 1 + (exit_ms is not None)
        trip.stop_px, trip.target_px = signal["stop_px"] or None, signal["target_px"] or None
        if trip.stop_px is not None:
            trip.staked = signal["side"] * (trip.entry_notional - trip.size * trip.stop_px // E8)
        if exit_ms is not None:
            trip.sold, trip.exit_notional = signal["size"], signal["exit_notional"]
            trip.realized = signal["side"] * (trip.exit_notional - trip.entry_notional)
            trip.exit_ms, trip.exit_kind = exit_ms, _KINDS[signal["exit_kind"]]
        return trip

    def instants(self) -> tuple[list[int], list[int | None]]:
        """The instants of the entries and of the exits, unix ms. None: the trade is open at the end."""
        import numpy as np

        at_ms, step_ms = self.ground.prices.at_ms, self.ground.reader.step_ms
        entry, out, step, kind = (self.rows[:, COLUMNS.index(name)] for name in _OF_INSTANTS)
        is_over = kind != OPEN_END
        exits = at_ms[np.where(is_over, out, entry)] + np.where(step < 3, step * (step_ms // 3), step_ms - 1)
        return at_ms[entry].tolist(), [
            instant if is_known else None for instant, is_known in zip(exits.tolist(), is_over.tolist(), strict=True)
        ]

    def curve(self) -> tuple[list[int], list[float]]:
        """The equity in USD at the closes with the highest and the lowest of each hour, at the end of each UTC day and
        at the end, and the instants.

        Half of a trade's fees falls on its entry and half on its exit. Its funding falls on its bars in equal parts.
        """
        import numpy as np

        ground, rows = self.ground, self.rows
        first, end = ground.reader.first, ground.reader.end
        cash, size, accrued = (np.zeros(end - first + 1) for _ in range(3))
        side, much, entry, out, kind = (rows[:, COLUMNS.index(name)] for name in _OF_CURVE)
        fees, funding, worth, paid = (
            rows[:, COLUMNS.index(name)] / E8 for name in ("fees", "funding", "exit_notional", "entry_notional")
        )
        is_over = kind != OPEN_END
        entry, out = entry - first, np.where(is_over, out, end) - first
        signed = side * (much / E8)
        np.add.at(size, entry, signed)
        np.add.at(size, out, -signed)
        np.add.at(cash, entry, -side * paid - fees / 2)
        np.add.at(cash, out, np.where(is_over, side * worth, 0.0) - fees / 2)
        a_bar = funding / np.maximum(out - entry, 1)
        np.add.at(accrued, entry, a_bar)
        np.add.at(accrued, np.maximum(out, entry + 1), -a_bar)
        # Of a trade that is still open at the end.
        cash[-2] += cash[-1]
        equity = (
            ground.balance / E8
            + np.cumsum(cash[:-1] + np.cumsum(accrued[:-1]))
            + np.cumsum(size[:-1]) * ground.closes_usd
        )
        kept = np.unique(np.concatenate([*_extremes(equity, ground), ground.day_ends]))
        return ground.close_ms[kept].tolist(), equity[kept].tolist()

    def figures(self) -> tuple[dict[str, Any], list[float]]:
        """The figures of a report, and the returns of the UTC days.

        Equity is that of `curve`, so figures of drawdowns and days may differ a little.
        """
        import numpy as np

        ground = self.ground
        at_ms, equity = self.curve()
        start_usd, end_ms = ground.balance / E8, at_ms[-1]
        entries, exits = self.instants()
        side, kind = (self.rows[:, COLUMNS.index(name)] for name in ("side", "exit_kind"))
        size, paid, worth, fees, funding, stop = (self.rows[:, COLUMNS.index(name)] / E8 for name in _OF_TRADES)
        risk = np.where(stop > 0, np.maximum(side * (paid - size * stop), 0.0), 0.0)
        columns = (side * (worth - paid), fees, funding, risk)
        trades = list(map(FinishedTrade, entries, exits, *(column.tolist() for column in columns)))
        # Only the last trade can still be open.
        del trades[int(np.count_nonzero(kind != OPEN_END)) :]
        prices = {
            ground.reader.coin: (
                float(ground.prices.open[ground.reader.first]) / E8,
                float(ground.prices.close[ground.reader.end - 1]) / E8,
            )
        }
        held_ms = sum(end_ms if out is None else out for out in exits) - sum(entries)
        exposed = held_ms / (end_ms - ground.start_ms)
        measured = statistics(
            at_ms, equity, trades, start_ms=ground.start_ms, start_usd=start_usd, prices=prices, exposed=exposed
        )
        return measured, daily_returns(
            at_ms, equity, start_ms=ground.start_ms, start_usd=start_usd, only_with_prices=True
        )


def _extremes(equity: Any, ground: ScreenSetup) -> list[Any]:
    """The rows of the highest and of the lowest equity of each hour, the first of equal ones."""
    import numpy as np

    hours, kept = ground.hours, []
    for highest in (np.maximum, np.minimum):
        rows = np.flatnonzero(equity == highest.reduceat(equity, ground.hour_starts)[hours])
        kept.append(rows[np.diff(hours[rows], prepend=-1) != 0])
    return kept


def screen(ground: ScreenSetup, spec: StrategySpec) -> Screened:
    """The trades of a strategy. StrategyError or ConfigError if its signals cannot be used."""
    import numpy as np

    strategy, rows = spec.strategy, spec.strategy.indicators
    assert isinstance(rows, SignalRows)
    bars = bars_of(ground, spec)
    signals, codes = rows.evaluated_arrays(bars)
    _check_lookback(rows, bars, codes)
    orders = orders_of(ground, spec, signals, codes, first_bar(ground, spec))
    out = np.zeros((int(np.count_nonzero(orders.codes & 3)), len(COLUMNS)), dtype=np.int64)
    rules = plain(rules_for(ground, signals))
    count, reason, row, balance = trades_of(
        ground.walked, plain(orders), rules, ground.first, ground.reader.end, ground.balance, out
    )
    why_not = None if reason == DONE else f"candle {row}: {REASONS[reason]}"
    return Screened(ground, strategy.name, out[:count], balance, why_not)


def _check_lookback(rows: SignalRows, bars: BarArrays, codes: Any) -> None:
    """StrategyError if a row comes out differently when the strategy sees only the last `lookback` bars, as live."""
    import numpy as np

    lookback, count = rows.lookback, len(codes)
    (wanted,) = np.nonzero(codes)
    sampled = {*np.linspace(lookback - 1, count - 1, SAMPLES // 2, dtype=int).tolist()} if count >= lookback else set()
    sampled |= {int(row) for row in wanted[:: max(1, len(wanted) // (SAMPLES // 2))]}
    for row in sorted(sampled):
        window = rows.window(bars, row)
        if window is not None and rows.evaluated_arrays(window)[1][-1] != codes[row]:
            raise StrategyError(
                f"the signals of bar {row} of {bars.market} change if the strategy sees only the last {lookback} bars,"
                " as it does live; set lookback to the number of bars that one row reads"
            )
