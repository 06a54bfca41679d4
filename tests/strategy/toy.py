"""A toy account and a toy market for strategies under test: fills at the close, stop and target at their price.

No venue.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from bot.strategy import (
    AskRecord,
    Bar,
    Close,
    Fill,
    History,
    Intent,
    Open,
    OrderView,
    PositionView,
    Question,
    State,
    Strategy,
    View,
)


def walk(
    market: str = "BTC", *, seed: int = 1, bars: int = 600, sigma: float = 0.0007, start: float = 60_000.0
) -> Iterator[Bar]:
    """A random walk in minute bars: sigma 7 bps a minute is about 50 % a year."""
    r = random.Random(seed)
    close = start
    for i in range(bars):
        path = [close]
        for _ in range(8):
            path.append(path[-1] * math.exp(r.gauss(0, sigma / math.sqrt(8))))
        close = path[-1]
        yield Bar(market, 60_000 * (i + 1), path[0], max(path), min(path), close, r.uniform(1, 5))


class ToySource:
    """A ViewSource that holds one picture."""

    def __init__(self, markets: Sequence[str]) -> None:
        self.now_ms = 0
        self.equity_usd = 10_000.0
        self.free_margin_usd = 10_000.0
        self.state: State = {}
        self.positions: dict[str, PositionView] = {}
        self.histories = {market: History(market) for market in markets}
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.questions: list[Question] = []
        self.asks: list[AskRecord] = []

    def all_in_usd(self, market: str, leverage: int) -> float:
        return self.free_margin_usd * leverage

    def position(self, market: str) -> PositionView | None:
        return self.positions.get(market)

    def orders(self, market: str) -> Sequence[OrderView]:
        return ()

    def history(self, market: str, interval: str | None = None) -> History:
        return self.histories[market]

    def log(self, event: str, fields: dict[str, Any]) -> None:
        self.lines.append((event, fields))

    is_warming_up = False

    def ask(self, question: Question) -> str | None:
        self.questions.append(question)
        return None

    def keep_ask(self, record: AskRecord) -> None:
        self.asks.append(record)


class Toy:
    """Runs one strategy over bars; keeps what it wanted and how each position ended."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.source = ToySource(strategy.markets)
        self.view = View(self.source)
        self.intents: list[Intent] = []
        self.exits: list[str] = []
        self.opened_at: list[int] = []

    def run(self, bars: Iterator[Bar]) -> Toy:
        self.strategy.on_start(self.view)
        for bar in bars:
            self.source.now_ms = bar.at_ms
            self.source.histories[bar.market].append(bar)
            self.strategy.indicators.update(bar)
            self.touch(bar)
            for intent in self.strategy.on_bar(self.view, bar) or ():
                self.intents.append(intent)
                self.act(intent, bar)
        self.strategy.on_stop(self.view)
        return self

    def act(self, intent: Intent, bar: Bar) -> None:
        if isinstance(intent, Open):
            assert intent.bracket is not None
            assert intent.usd is not None
            sign = 1 if intent.side == "long" else -1
            stop_pct = float(intent.bracket.stop_pct or 0)
            stop = bar.close * (1 - sign * stop_pct / 100)
            target_r = intent.bracket.target_r
            target = None if target_r is None else bar.close + (bar.close - stop) * float(target_r)
            usd = float(intent.usd)
            self.source.positions[bar.market] = PositionView(
                bar.market,
                intent.side,
                usd / bar.close,
                bar.close,
                bar.close,
                stop,
                target,
                0.0,
                usd,
                1.0,
                None,
                bar.at_ms,
            )
            self.opened_at.append(bar.at_ms)
        elif isinstance(intent, Close):
            self.leave(bar.market, bar.close, "close", bar.at_ms)

    def touch(self, bar: Bar) -> None:
        position = self.source.positions.get(bar.market)
        if position is None:
            return
        long = position.side == "long"
        stop, target = position.stop_px, position.target_px
        if stop is not None and (bar.low <= stop if long else bar.high >= stop):
            self.leave(bar.market, stop, "stop", bar.at_ms)
        elif target is not None and (bar.high >= target if long else bar.low <= target):
            self.leave(bar.market, target, "target", bar.at_ms)
        else:
            moved = (bar.close - position.entry_px) * position.size * (1 if long else -1)
            self.source.positions[bar.market] = position._replace(mark_px=bar.close, unrealized_usd=moved)

    def leave(self, market: str, px: float, why: str, at_ms: int) -> None:
        p = self.source.positions.pop(market)
        self.exits.append(why)
        realized = (px - p.entry_px) * p.size * (1 if p.side == "long" else -1)
        list(
            self.strategy.on_fill(
                self.view, Fill(market, at_ms, p.side, "close", "market", p.size, px, 0.0, realized, 0.0, "1")
            )
        )
