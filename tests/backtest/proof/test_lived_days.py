"""Days on which something really happened: the daemon's own code wrote their journals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.runtime.kernel.kernel import Kernel
from bot.service.host import Service
from tests.backtest.builders import minutes, write
from tests.backtest.lived_day import BARS, HISTORY, config, lived
from tests.backtest.proof.altered import proved


def nothing(_number: int, _kernel: Kernel) -> None:
    return None


def paused(number: int, kernel: Kernel) -> None:
    """`bot pause` for a third of the day."""
    if number == BARS // 3:
        kernel.conditions.pauses.pause("one")
    if number == 2 * BARS // 3:
        kernel.conditions.pauses.resume("one")


def behind(number: int, kernel: Kernel) -> None:
    """The account's events cannot be read for a while."""
    kernel.health.degrade("service", "it does not answer") if number == BARS // 4 else None
    if number == BARS // 2:
        kernel.health.restore("service")


def wide(service: Service) -> None:
    market = service.machine.state.markets["BTC"]
    market.spec = replace(market.spec, half_spread=50_000)


def dear(service: Service) -> None:
    market = service.machine.state.markets["BTC"]
    market.spec = replace(market.spec, taker_rate=2 * market.spec.taker_rate)


@dataclass(frozen=True)
class LivedDay:
    """What happened, and the cause that the proof must find; it may find consequences of the same kind only."""

    name: str
    cause: str
    between: Callable[[int, Kernel], None] = nothing
    prepare: Callable[[Service], None] | None = None
    late_ms: int = 0


DAYS = (
    LivedDay("bot pause", "operator", paused),
    LivedDay("a service that did not answer", "outage", behind),
    LivedDay("a wide spread", "slippage", prepare=wide),
    LivedDay("twice the fee", "fee", prepare=dear),
    LivedDay("a daemon that came 25 s after each close", "timing", late_ms=25_000),
)


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_the_first_cause_of_a_lived_day_is_what_happened(
    day: LivedDay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(minutes(HISTORY + BARS + 30, vol=0.001), tmp_path / "BTC_1m.csv")
    late = lambda _number: day.late_ms  # noqa: E731
    asyncio.run(lived(config(tmp_path), data, between=day.between, prepare=day.prepare, late_ms=late))
    code, answer = proved(tmp_path, data, capsys)
    told = [(row["cause"], row["what"], row["why"]) for row in answer["differences"]]
    assert told[0][0] == day.cause, told[:4]
    assert code == 0, [row for row in told if row[0] == "unknown"]
    assert next(iter(answer["causes"])) == day.cause, answer["causes"]


BUSY = """
from bot import Bracket, Close, Open, Strategy


class Busy(Strategy):
    def on_bar(self, view, bar):
        minute, held = bar.at_ms // 60_000 % 4, view.position(bar.market)
        if minute == 1 and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=0.4, target_pct=0.6))
        elif minute == 3 and held:
            yield Close(bar.market)
"""


def test_a_day_of_five_hundred_decisions_takes_less_than_a_minute_of_one_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"account: {{base_url: embedded}}\nname: mine\ndead_man: off\nstrategies_dir: {tmp_path}\n"
        f"state_dir: {tmp_path / 'state'}\nstrategies:\n"
        "  - {name: one, use: busy, markets: [BTC], budget_usd: 1000}\n"
    )
    data = str(write(minutes(200 + 1_440, vol=0.001), tmp_path / "BTC_1m.csv"))
    words = ["--data", data, "--from", "2025-06-01T03:20", "--path", "adaptive", "--journal"]
    assert call(["backtest", str(path), *words, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    (tmp_path / "state").mkdir(exist_ok=True)
    (run / "journal.db").rename(tmp_path / "state" / "journal.db")
    capsys.readouterr()
    began = time.process_time()
    code = call(["proof", "--config", str(path), "--since", "2025-06-01T03:20", "--data", data, "--json"])
    took_s = time.process_time() - began
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, answer["causes"]) == (0, {})
    assert answer["counts"]["decisions"] >= 500
    assert took_s < 60
    print(f"{answer['counts']['decisions']} decisions: {took_s:.1f} s of one core")
