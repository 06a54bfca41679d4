"""Calls a strategy on generated bars, without a service, to find the errors that a daemon would meet at its first bars.

It sends and stores nothing. After each Open the strategy sees a position, after a Close none.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from bot.clock import monotonic_ns
from bot.config import Settings
from bot.errors import StrategyError
from bot.runtime.strategy_host import loader
from bot.runtime.strategy_host.strategy_errors import own_lines, whole_traceback
from bot.service.market_data.instruments import CATALOGUE
from bot.strategy import (
    AskRecord,
    Bar,
    Cancel,
    Close,
    History,
    Open,
    OrderView,
    PositionView,
    Question,
    Strategy,
    View,
)
from bot.strategy.hook_answers import INTENTS, intents_of
from bot.venue.numbers import E8
from bot.wire import INTERVAL_MS

BARS: Final = 200  # of each market, after the warm-up
BARS_MAX: Final = 2_000  # with a long warm-up
CALLS_S: Final = 3.0  # for all bars of one strategy; later bars are not checked
HANGS_S: Final = 10.0  # a strategy that takes longer hangs; the daemon gives one call 5 s
START_MS: Final = 1_760_000_000_000
EQUITY_USD: Final = 10_000.0
OTHER_PX: Final = 100.0  # of a market that the embedded service does not have


class FakeAccount:
    """The account that the View shows: no orders, one position after an Open, and the bars so far."""

    def __init__(self, strategy: Strategy) -> None:
        self.now_ms = START_MS
        self.equity_usd = self.free_margin_usd = EQUITY_USD
        self.state: dict[str, Any] = {}
        self.positions: dict[str, PositionView] = {}
        self.histories = {market: History(market) for market in strategy.markets}

    def all_in_usd(self, market: str, leverage: int) -> float:
        return EQUITY_USD * leverage

    def position(self, market: str) -> PositionView | None:
        return self.positions.get(market)

    def orders(self, market: str) -> Sequence[OrderView]:
        return ()

    def history(self, market: str) -> History:
        if market not in self.histories:
            raise StrategyError(f"{market} is not one of this strategy's markets ({', '.join(sorted(self.histories))})")
        return self.histories[market]

    def log(self, event: str, fields: Mapping[str, Any]) -> None:
        pass

    is_warming_up = False

    def ask(self, question: Question) -> str | None:
        return "a check asks nobody"

    def keep_ask(self, record: AskRecord) -> None:
        pass

    def take(self, intent: Open | Close | Cancel, bar: Bar) -> None:
        if isinstance(intent, Close):
            self.positions.pop(intent.market, None)
        elif isinstance(intent, Open) and intent.market == bar.market:
            px = bar.close
            size = float(intent.size) if intent.size is not None else float(intent.usd or 0) / px
            side = 1 if intent.side == "long" else -1
            self.positions[bar.market] = PositionView(
                market=bar.market, side=intent.side, size=size, entry_px=px, mark_px=px, stop_px=px * (1 - side * 0.1), target_px=None,
                unrealized_usd=0.0, notional_usd=size * px, leverage=float(intent.leverage or 1), risk_usd=size * px * 0.1, opened_at_ms=bar.at_ms,
            )  # fmt: skip


class StrategyCheck:
    """Runs `on_start` and `on_bar` of one strategy in a thread, so that a strategy that hangs does not hang the command."""

    def __init__(self, strategy: Strategy, interval: str) -> None:
        self.strategy = strategy
        self.file = getattr(sys.modules.get(type(strategy).__module__), "__file__", None)
        self.account = FakeAccount(strategy)
        self.interval_ms = INTERVAL_MS[interval]
        self.at = "on_start"
        self.problem: str | None = None

    def run(self) -> str | None:
        """Call the strategy. Returns the problem, with lines of the strategy's file, or None."""
        thread = threading.Thread(target=self._guarded, name=f"strategy-check-{self.strategy.name}", daemon=True)
        with contextlib.redirect_stdout(sys.stderr):
            thread.start()
            thread.join(HANGS_S)
        if not thread.is_alive():
            return self.problem
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - a documented function, in spite of its name
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        place = "" if frame is None else f" ({Path(str(self.file)).name}:{frame.f_lineno})"
        return f"{self.at} does not return within {HANGS_S:g} s on generated bars{place}"

    def _guarded(self) -> None:
        try:
            self._calls()
        except BaseException as error:  # noqa: BLE001 - a strategy may raise anything; it becomes the result
            own = own_lines(error, self.file)
            text = traceback.TracebackException.from_exception(error)  # It works even if str(error) raises.
            if (full_traceback := whole_traceback(error)) is not None:
                sys.stderr.write(f"{full_traceback}\n")
            place = f" ({own})" if own else ""
            self.problem = f"{self.at} fails on generated bars: {type(error).__name__}: {text}{place}"

    def _calls(self) -> None:
        strategy, account = self.strategy, self.account
        view = View(account)
        strategy.on_start(view)
        end_ns = monotonic_ns() + int(CALLS_S * 1e9)
        for number, bar in enumerate(islice(self._bars(), self._bars_in_all()), 1):
            self.at = f"on_bar at bar {number}"
            account.now_ms = bar.at_ms
            account.histories[bar.market].append(bar)
            strategy.indicators.update(bar)
            for intent in intents_of(strategy.on_bar(view, bar), "on_bar"):
                if type(intent) not in INTENTS:
                    raise StrategyError(f"returned {intent!r:.200}; a hook must return Open, Close or Cancel")
                account.take(intent, bar)
            if monotonic_ns() > end_ns:
                break
        self.at = "view.state after on_bar"
        json.dumps(account.state, allow_nan=False)

    def _bars_in_all(self) -> int:
        return min(self.strategy.warmup_bars + BARS, BARS_MAX) * len(self.strategy.markets)

    def _bars(self) -> Iterator[Bar]:
        """Bars whose prices swing by some percent, slowly and quickly, so that averages cross and ranges break."""
        for n in count():
            at_ms = (START_MS // self.interval_ms + n) * self.interval_ms
            for index, market in enumerate(self.strategy.markets):
                open_, close = (_start_px(market) * _course(i, index) for i in (n - 1, n))
                yield Bar(
                    market, at_ms, open_, max(open_, close) * 1.002, min(open_, close) * 0.998, close, 10.0 + n % 7
                )


def _start_px(market: str) -> float:
    """A realistic price of the market, so that a distance in USD makes sense."""
    return CATALOGUE[market].px / E8 if market in CATALOGUE else OTHER_PX


def _course(n: int, index: int) -> float:
    return 1 + 0.08 * math.sin(n / 17 + index) + 0.02 * math.sin(n / 3) + 0.005 * math.sin(n * n)


def failures(settings: Settings) -> list[tuple[int, str]]:
    """Index and problem of each strategy of the config that fails."""
    found = []
    for index, one in enumerate(settings.strategies):
        loaded = loader.load(one.use, settings.strategies_dir)
        strategy = loader.build(loaded, name=one.name, markets=one.markets, params=one.params)
        if (problem := StrategyCheck(strategy, one.interval).run()) is not None:
            found.append((index, problem))
    return found
