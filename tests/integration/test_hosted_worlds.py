"""The random worlds as a hosted service has them: in real time, which its Date tells and no header of a sandbox, a
little ahead of this machine's or behind; with entries whose trailing stop sleeps at first and whose time is bounded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bot.runtime.account.account_state import AccountState
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, MaxHold, Open, TrailingStop, View
from tests.integration.builders import MINUTE_MS, START_MS
from tests.integration.simulated import Wire, World, is_caught, lived, service, template
from tests.integration.virtual import Answer

BARS: Final = 5
PASS_S: Final = 5.0
SKEW_MS: Final = 1_500
# the first world in which only a sleeping stop is left, and nothing else fails
ASLEEP_AT: Final = 368
ASLEEP: Final = TrailingStop(trail_r=0.5, activate_at_r=0.3)


def patient(first: int, view: View, bar: Bar) -> Iterable[Intent]:
    """An entry on most bars, of which each kind has guardians of its own.

    A function of the bar and of which kind is first.
    """
    n, market = first + bar.at_ms // MINUTE_MS, bar.market
    side = "long" if n % 2 else "short"
    if view.position(market):
        if n % 4 == 0:
            yield Close(market, fraction=0.5)
    elif view.orders(market):
        yield Cancel(market=market)
    elif n % 3 == 0:
        yield Open(market, side, usd=200, bracket=Bracket(stop_pct=0.6), guardians=(ASLEEP,))
    elif n % 3 == 1:
        yield Open(market, side, usd=200, bracket=Bracket(stop_pct=0.4, target_r=2), guardians=(MaxHold(60), ASLEEP))
    else:
        px = round(bar.close * (0.9995 if side == "long" else 1.0005), 1)
        yield Open(market, side, usd=200, limit_px=px, bracket=Bracket(stop_pct=0.5), guardians=(ASLEEP, MaxHold(90)))


class HostedWire(Wire):
    async def deliver(self, *request: Any) -> Answer:
        answer = await super().deliver(*request)
        headers = {name: value for name, value in answer.headers.items() if name != "x-sandbox-clock"}
        headers["date"] = formatdate(service().machine.clock.now_ms() // 1000, usegmt=True)
        return Answer(answer.status_code, headers, answer.content)


class Hosted(World):
    is_hosted = True
    is_attended = True

    def __init__(self, seed: int, *more: Any) -> None:
        super().__init__(seed, *more)
        self.speed, self.bars, self.bar_s, self.pass_s = 1.0, BARS, 60.0, PASS_S
        self.start_ms = START_MS + random.Random(f"hosted {seed}").randint(-SKEW_MS, SKEW_MS)
        self.service_began = (0.0, self.start_ms)
        self.script = partial(patient, seed)
        self.wire = HostedWire(self)
        self.moved: Counter[str] = Counter()

    async def _bare(self) -> None:
        """Every stop is cancelled by hand; a trailing stop that sleeps goes on sleeping."""
        now_ms = service().machine.clock.now_ms()
        for coin in self.markets:
            await self.hand.cancel_stops(coin)
            self._excuse(coin, now_ms)

    async def _judge_epoch(self) -> None:
        await super()._judge_epoch()
        for event in self.last_events:
            if event["type"] == "guardian":
                self.moved[f"{event['data']['guardianType']} {event['subtype']}"] += 1


@pytest.mark.soak(worlds=25, full=5_000)
def test_real_time_and_guardians_that_wait_break_nothing(folder: Path, worlds: int, base_seed: int) -> None:
    template(folder)
    moved: Counter[str] = Counter()
    for world in lived(range(base_seed, base_seed + worlds), folder, Hosted):
        assert isinstance(world, Hosted)
        moved.update(world.moved)
    if worlds >= 25:
        for what in ("trailing_stop activated", "trailing_stop fired", "max_hold fired", "dead_man_switch fired"):
            assert moved[what], moved


# ── A test of the test ──────────────────────────────────────────────────────────────────────────────────────────────


def a_stop_that_sleeps_is_one(to: pytest.MonkeyPatch) -> None:
    def has_trail(state: AccountState, market: str) -> bool:
        return any(one.type == "trailing_stop" and one.market == market for one in state.guardians.values())

    to.setattr(AccountState, "_is_trailed", has_trail)
    to.setattr(AccountState, "is_unsure_of", lambda _self, _market: False)


def test_a_stop_that_sleeps_and_is_taken_for_one_is_caught(folder: Path) -> None:
    is_caught(a_stop_that_sleeps_is_one, ASLEEP_AT, folder, Hosted, match="has no stop")
