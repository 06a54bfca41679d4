"""Seeded sessions with the digests of all that they leave: events, intents, totals of the strategies, files of the run.

A change of the engine that must change no result is checked against `session_digests.txt`. When a rule of the venue or
the daemon changes results on purpose, write the file anew and say why in the commit: `python -m
tests.backtest.engine.session_corpus [count]`. `python -m tests.backtest.engine.session_corpus 10000 FILE` writes the
digests of many more to another file, to compare two states of the repository by `diff`.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from functools import partial
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from bot import logs
from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import PATHS, Outage, SessionOptions
from bot.backtest.results.run_writer import write
from bot.clock import HOUR_MS
from bot.config import Settings
from bot.money import format_decimal
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, View, sma
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, Scripted, busy, minutes

DIGESTS = Path(__file__).with_name("session_digests.txt")
COUNT = 150
BARS = 900
PRICES = {"BTC": 100_000.0, "ETH": 2_500.0, "SOL": 150.0, "XRP": 2.0}
# What a new key of the summary leaves as it was.
FILES = ("trades.csv", "equity.npy", "chart.json")
FIGURES = (
    "figures",
    "costs",
    "exits",
    "strategies",
    "booked",
    "guardians",
    "outages",
    "refusals",
    "rejections",
    "unfilled",
    "left",
)
DRAWDOWN = {"type": "account_drawdown", "max_loss_pct_from_day_start": 2, "action": "flatten"}


class Cross(Strategy):
    """Trades the cross of two averages with a narrow bracket. It has no hooks and no state."""

    fast = sma(3)
    slow = sma(7)
    usd, stop_pct, target_pct = 1_000.0, 0.1, 0.2
    before = 0

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        fast, slow = self.fast[bar.market], self.slow[bar.market]
        if slow is None or fast is None:
            return ()
        before, self.before = self.before, 1 if fast > slow else -1
        held = view.position(bar.market)
        if before < 0 < self.before and held is None:
            return (
                Open(
                    bar.market,
                    "long",
                    usd=self.usd,
                    bracket=Bracket(stop_pct=self.stop_pct, target_pct=self.target_pct),
                ),
            )
        return (Close(bar.market),) if self.before < 0 < before and held is not None else ()


class Busy(Scripted):
    """`busy` from another bar on, so that strategies that share a market differ."""

    def __init__(self, name: str, market: str, shift: int, *, counts: bool) -> None:
        super().__init__(self.shifted, name=name, markets=(market,), counts=counts)
        self.shift = shift

    def shifted(self, view: View, bar: Bar) -> Iterable[Intent]:
        return busy(view, bar._replace(at_ms=bar.at_ms + self.shift * MINUTE_MS))


def session_of(seed: int) -> Backtest:
    """The session of a seed: one to four markets with one to three strategies each, and rarely latency, an outage,
    guardians or every bar shown.
    """
    chance = Random(f"session {seed}")
    markets = chance.sample(sorted(PRICES), chance.choice([1, 1, 1, 2, 3, 4]))
    shares = chance.random() < 0.5
    names = [
        (f"{market.lower()}-{n}", market) for market in markets for n in range(chance.randint(1, 3) if shares else 1)
    ]
    drawn = chance.random()
    body: dict[str, Any] = {
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        "strategies": [_configured(chance, *one, shares=shares) for one in names],
    }
    if chance.random() < 0.2:
        body |= {"dead_man": {"heartbeat_seconds": 300, "on_miss": "flatten"}, "guardians": [DRAWDOWN]}
    rates = [(START_MS + n * HOUR_MS, chance.randint(-20_000_000, 20_000_000)) for n in range(BARS // 60)]

    def place(made: Settings) -> list[StrategySpec]:
        return [
            StrategySpec(
                _strategy(Random(f"{drawn} {one.name}"), one.name, one.markets[0]), one.interval, limits_of(made, one)
            )
            for one in made.strategies
        ]

    options = SessionOptions(**_options(chance))
    candles = [_candles(chance, market) for market in markets]
    return Backtest(Settings.model_validate(body), candles, options, rates={markets[0]: rates}, place=place)


def _candles(chance: Random, market: str) -> Candles:
    hole = chance.choice([0.0, 0.0, 0.01])
    return minutes(BARS, seed=chance.randrange(1_000), market=market, px=PRICES[market], hole=hole, decimals=4)


def _strategy(chance: Random, name: str, market: str) -> Strategy:
    if chance.random() < 0.5:
        return Busy(name, market, chance.randrange(97), counts=chance.random() < 0.5)
    strategy = Cross(name=name, markets=(market,))
    strategy.usd = chance.choice([50.0, 1_000.0, 4_000.0])
    strategy.stop_pct, strategy.target_pct = chance.choice([0.05, 0.1, 0.3]), chance.choice([0.05, 0.1, 0.3])
    return strategy


def _configured(chance: Random, name: str, market: str, *, shares: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"daily_loss_usd": chance.choice([5, 20, 100])} if chance.random() < 0.2 else {}
    return {
        "name": name,
        "use": "scripted",
        "markets": [market],
        "interval": "1m",
        "budget_usd": 20_000,
        "max_leverage": 5,
        "netting": "allow" if shares else "refuse",
        **more,
    }


def _options(chance: Random) -> dict[str, Any]:
    given: dict[str, Any] = {
        "balance_usd": Decimal(chance.choice([2_000, 20_000, 1_000_000])),
        "rules": FREE if chance.random() < 0.4 else {},
        "path": chance.choice(sorted(PATHS)),
    }
    if chance.random() < 0.2:
        given["latency_ms"] = chance.choice([500, 20_000])
    if chance.random() < 0.2:
        given["outages"] = (Outage(START_MS + 200 * MINUTE_MS, HOUR_MS),)
    if chance.random() < 0.1:
        given["skip"] = False
    return given


def digests_of(seed: int) -> str:
    """One line: the seed, the number of events, and the digests of the events, of the account as the daemon books
    it, and of the run's files.
    """
    test, lines = session_of(seed), StringIO(newline="")
    result = test.run(events=lines)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), result, {})
        files = [(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir()) if path.name in FILES]
    events, summary = lines.getvalue(), result.summary()
    figures = [(name, summary[name]) for name in FIGURES]
    return (
        f"{seed} {events.count(chr(10))} {_digest(events)} {_digest(repr([*_booked(test)]))}"
        f" {_digest(repr([*files, figures]))}"
    )


def _booked(test: Backtest) -> Iterable[object]:
    kernel, journal = test.session.kernel, test.journal
    assert kernel is not None
    for intent in journal.intents.by_id.values():  # type: ignore[attr-defined]
        yield intent.id, intent.state, intent.trade_id, intent.code, intent.message, intent.attempts, intent.trigger
        yield format_decimal(intent.notional_usd)
    attribution = kernel.account.attribution
    for name in attribution.names():
        totals = attribution.of(name)
        yield name, totals.fills, totals.is_halted
        amounts = (
            totals.fees_usd,
            totals.funding_usd,
            totals.realized_usd,
            totals.margin_lost_usd,
            totals.unrealized_usd,
            totals.day_usd,
            totals.notional_usd,
        )
        yield [format_decimal(amount) for amount in amounts]
        for share in totals.shares:
            yield share.market, share.side, format_decimal(share.size), format_decimal(share.cost_usd)
    for position in kernel.account.account_state.positions.values():
        yield position.market, position.side, format_decimal(position.size), position.leverage, position.owner
    yield kernel.account.account_state.equity_usd


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def kept() -> Mapping[int, str]:
    """The lines of the file by seed."""
    lines = DIGESTS.read_text().splitlines()
    return {int(line.split()[0]): line for line in lines}


def main() -> None:
    logs.configure(level="critical")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else DIGESTS
    with ProcessPoolExecutor(initializer=partial(logs.configure, level="critical")) as workers:
        out.write_text("".join(f"{line}\n" for line in workers.map(digests_of, range(count), chunksize=10)))


if __name__ == "__main__":
    main()
