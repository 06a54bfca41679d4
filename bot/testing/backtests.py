"""A backtest in one call, for tests of strategies: the daemon's kernel on the service's venue, over the bars that a
test gives.

`bot backtest` runs the same code. Nothing is written to disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import SessionOptions
from bot.backtest.results.run_writer import Result
from bot.backtest.results.trade_ledger import RoundTrip
from bot.config import Settings
from bot.logs import quiet_log
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.loader import Loaded, build
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Strategy
from bot.testing.settings import checked_settings, strategy_entry
from bot.venue.model.numbers import E8
from bot.wire import Event

# the `use` of a strategy that is given as a class
IN_PLACE: Final = "given-by-the-test"

Place = Callable[[Settings], list[StrategySpec]]


@dataclass(frozen=True, slots=True)
class Trade:
    """A round trip, from no position to no position. The exit's fields are None while the position is open. `pnl_usd`
    is after fees and funding; `r` is that in multiples of what the first stop risked.
    """

    market: str
    side: str
    size: float
    entry_ms: int
    entry_px: float
    exit_ms: int | None
    exit_px: float | None
    # close, stop_loss, take_profit, guardian, liquidation ...
    exit_kind: str | None
    pnl_usd: float
    fees_usd: float
    stop_px: float | None
    target_px: float | None
    r: float | None

    @property
    def is_open(self) -> bool:
        return self.exit_ms is None


@dataclass(frozen=True, slots=True)
class Run:
    """A finished backtest: its trades, every event of the account, and what the strategy logged.

    `result` has the figures and the costs.
    """

    trades: tuple[Trade, ...]
    events: tuple[Event, ...]
    log: tuple[Mapping[str, Any], ...]
    result: Result
    candles: tuple[Candles, ...]
    # The events, as text.
    lines: tuple[str, ...] = field(repr=False)
    options: SessionOptions = field(repr=False)
    settings: Settings = field(repr=False)
    place: Place = field(repr=False)

    def again(self, candles: Sequence[Candles], options: SessionOptions, *, is_cut: bool = False) -> Backtest:
        """The same backtest with other candles. `is_cut`: they are the beginning of these."""
        return Backtest(self.settings, candles, options, place=self.place, is_cut=is_cut)

    def open_trades(self, market: str | None = None) -> list[Trade]:
        """The positions that are open at the end."""
        return [trade for trade in self.trades if trade.is_open and market in (None, trade.market)]


def backtest(
    strategy: type[Strategy] | str,
    candles: Candles | Sequence[Candles],
    *,
    params: Mapping[str, Any] | None = None,
    interval: str | None = None,
    budget_usd: float = 1_000,
    max_leverage: int = 1,
    strategies_dir: str | Path = "strategies",
    config: Mapping[str, Any] | None = None,
    options: SessionOptions | None = None,
    informative: Sequence[str] = (),
) -> Run:
    """Run a strategy over candles. It is a class, or "file:Class" as in a config; it trades every market of the
    candles, except those that are `informative`: these it reads.

    `interval` is that of its bars; without it, the interval of the candles. `config` has other tables of a config, like
    {"safety": {"require_protection": False}}. `options` sets balance, fees, latency and more. AssertionError if the
    strategy is quarantined.
    """
    given = (candles,) if isinstance(candles, Candles) else tuple(candles)
    if not given:
        raise ValueError("backtest: candles is empty; make some with bars")
    chosen = options or SessionOptions()
    markets = sorted({series.market for series in given} - set(informative))
    use, place = (strategy, place_strategies) if isinstance(strategy, str) else (IN_PLACE, partial(_placed, strategy))
    entry = strategy_entry(
        use,
        markets=markets,
        interval=interval or given[0].interval,
        params=params or {},
        budget_usd=budget_usd,
        max_leverage=max_leverage,
        informative=informative,
    )
    data = {**(config or {}), "account": {"base_url": "embedded"}, "strategies": [entry]}
    settings = checked_settings(data, strategies_dir=strategies_dir, caller="backtest")
    events, log = StringIO(newline=""), StringIO(newline="")
    with quiet_log():
        result = Backtest(settings, given, chosen, place=place).run(events=events, log_lines=log)
    if result.stats.quarantined:
        raise AssertionError(f"the strategy was quarantined: {'; '.join(result.stats.quarantined.values())}")
    lines = tuple(events.getvalue().splitlines(keepends=True))
    return Run(
        tuple(map(_trade_of, result.trade_ledger.trips)),
        tuple(Event.model_validate_json(line) for line in lines),
        tuple(json.loads(line) for line in log.getvalue().splitlines()),
        result,
        given,
        lines,
        chosen,
        settings,
        place,
    )


def _placed(strategy: type[Strategy], settings: Settings) -> list[StrategySpec]:
    """Build the strategy as the daemon builds one from a file."""
    (placed,) = settings.strategies
    loaded = Loaded(strategy.__name__, strategy, "file", None, None)
    built = build(
        loaded,
        name=placed.name,
        markets=placed.markets,
        params=placed.params,
        interval=placed.interval,
        informative=placed.informative,
    )
    return [StrategySpec(built, placed.interval, limits_of(settings, placed))]


def _trade_of(trip: RoundTrip) -> Trade:
    is_over = trip.exit_ms > 0
    return Trade(
        market=trip.coin,
        side=trip.side,
        size=trip.size / E8,
        entry_ms=trip.entry_ms,
        entry_px=trip.entry_notional / trip.bought,
        exit_ms=trip.exit_ms if is_over else None,
        exit_px=trip.exit_notional / trip.sold if is_over and trip.sold else None,
        exit_kind=trip.exit_kind if is_over else None,
        pnl_usd=trip.pnl / E8,
        fees_usd=trip.fees / E8,
        stop_px=None if trip.stop_px is None else trip.stop_px / E8,
        target_px=None if trip.target_px is None else trip.target_px / E8,
        r=trip.r_multiple,
    )
