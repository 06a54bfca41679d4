"""The random worlds with all that a config can ask for: strategies that share a market, each within narrow means,
guardians of the account, the handling of foreign positions and of everything at a stop; and an operator who gives the
daemon commands meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from bot.config import Settings
from bot.errors import BotError
from bot.money import decimal_of_e16
from bot.runtime import supervisor
from bot.runtime.account import account as daemon_account
from bot.runtime.account import attribution_fold
from bot.runtime.control_plane import commands
from bot.runtime.control_plane.command_routes import CommandRoutes
from bot.runtime.control_plane.server import ControlRequest, RequestProblem
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FIRST_LEG
from bot.runtime.risk.pauses import Pauses
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.strategy_limits import limits_of
from bot.strategy import Bar, Bracket, Cancel, Close, Intent, Open, TrailingStop, View
from tests.integration.builders import MARKETS, MINUTE_MS
from tests.integration.simulated import D_S, Busy, Inline, World, is_caught, lived, template

NAMES: Final = ("one", "two", "three")
# that a person waits for the daemon's answer
ASKED_S: Final = 20.0
ACTS: Final = ("pause", "resume", "resume", "resume", "reconcile", "reload", "reload", "kill", "lift", "lift", "stop")
SCHEDULED: Final = {"market": "BTC", "side": "long", "usdAmount": 15, "bracket": {"stopLoss": {"pct": 1}}}


def sharing(seed: int, name: str) -> Callable[[View, Bar], Iterable[Intent]]:
    """Something on most bars, as a dice says that is thrown for the strategy, the market and the bar: entries of all
    kinds, parts, closes.
    """

    def wants(view: View, bar: Bar) -> Iterable[Intent]:
        dice = random.Random(f"{seed} {name} {bar.market} {bar.at_ms // MINUTE_MS}")
        usd, market = dice.choice([20, 60, 90]), bar.market
        bracket = Bracket(stop_pct=dice.choice([0.4, 1]), target_pct=dice.choice([0.5, 3]))
        match dice.choice(["open", "open", "trail", "limit", "part", "close", "cancel", "turn", "rest"]):
            case "open":
                yield Open(market, "long", usd=usd, bracket=bracket)
            case "trail":
                yield Open(market, "long", usd=usd, guardians=(TrailingStop(trail_pct=1),))
            case "limit":
                yield Open(
                    market,
                    "long",
                    usd=usd,
                    limit_px=round(bar.close * dice.choice([0.998, 0.9995])),
                    bracket=Bracket(stop_pct=1),
                )
            case "part" if view.position(market):
                yield Close(market, fraction=0.5)
            case "close" if view.position(market):
                yield Close(market)
            case "cancel" if view.orders(market):
                yield Cancel(market=market)
            case "turn":
                if view.position(market):
                    yield Close(market)
                yield Open(market, dice.choice(["long", "short"]), usd=usd, bracket=Bracket(stop_pct=0.5))

    return wants


class File(NamedTuple):
    """What the config says, as a person has left it."""

    names: tuple[str, ...]
    # versions of the strategies' code
    versions: tuple[int, ...]
    budget_usd: int
    foreign: str
    on_exit: str
    drawdown: tuple[float, str] | None
    daily_loss: float | None
    # the service itself opens something every other minute
    has_schedule: bool

    @staticmethod
    def of(chance: random.Random) -> File:
        action = chance.choice(["flatten", "block_opens", "cancel_orders"])
        return File(
            names=NAMES[: chance.choice([1, 2, 2, 3])],
            versions=tuple(chance.choice([1, 1, 2]) for _ in NAMES),
            budget_usd=chance.choice([100, 200]),
            foreign=chance.choice(["adopt", "ignore", "flatten"]),
            on_exit=chance.choice(["leave", "leave", "cancel", "flatten"]),
            drawdown=(chance.choice([0.02, 5]), action) if chance.random() < 0.4 else None,
            daily_loss=chance.choice([None, None, 0.4, 1.5]),
            has_schedule=chance.random() < 0.15,
        )


@cache
def settings_of(speed: float, path: str, file: File) -> Settings:
    strategies = [
        {
            "name": name,
            "use": f"tests:Busy{version}",
            "markets": list(MARKETS if name == "one" else MARKETS[:1]),
            "netting": "allow",
        }
        | {"budget_usd": file.budget_usd}
        | ({"daily_loss_usd": file.daily_loss} if file.daily_loss is not None and name != "three" else {})
        for name, version in zip(file.names, file.versions, strict=False)
    ]
    guardians: list[dict[str, Any]] = []
    if file.has_schedule:
        guardians = [{"type": "schedule", "cron": "*/2 * * * *", "order_template": SCHEDULED}]
    if file.drawdown is not None:
        percent, action = file.drawdown
        guardians += [{"type": "account_drawdown", "max_loss_pct_from_day_start": percent, "action": action}]
    return Settings.model_validate(
        {
            "name": "world",
            "account": {"base_url": "embedded"},
            "embedded": {"clock": "real" if speed == 1 else f"{speed:g}x"},
            "dead_man": {"heartbeat_seconds": round(D_S * speed), "on_miss": "flatten"},
            "guardians": guardians,
            "safety": {"foreign_positions": file.foreign, "on_exit": file.on_exit},
            "strategies": strategies,
            "orders": {"path": path},
            "reconcile_seconds": 30,
            "state_dir": "/nonexistent",
        }
    )


class Shared(World):
    """Two or three strategies in one market, and one of them in another too."""

    is_shared = True
    is_attended = True

    def __init__(self, seed: int, *more: Any) -> None:
        super().__init__(seed, *more)
        chance = self.config = random.Random(f"shared {seed}")
        self.bars *= 2
        self.markets = MARKETS
        self.file = File.of(chance)
        self.is_edited = False
        self.has_scheduled = self.file.has_schedule
        self.asks = chance.choice([0.0, 0.3, 0.6])
        # strategy -> which entries there were by then; "" for all of them
        self.paused: dict[str, set[str]] = {}
        self.done: Counter[str] = Counter()

    def _settings(self) -> Settings:
        return settings_of(self.speed, self.orders_path, self.file)

    def _placed(self) -> list[StrategySpec]:
        return self.place(self._settings())

    def place(self, settings: Settings) -> list[StrategySpec]:
        return [
            StrategySpec(
                Busy(sharing(self.seed, one.name), lambda: self.is_calm, name=one.name, markets=one.markets),
                one.interval,
                limits_of(settings, one),
                one.use,
            )
            for one in settings.strategies
        ]

    async def _others(self) -> None:
        asked = asyncio.get_running_loop().create_task(self._person())
        try:
            await super()._others()
            await asked
        finally:
            asked.cancel()

    async def _person(self) -> None:
        for _ in range(2 * self.bars):
            await asyncio.sleep(self.bar_s / 2)
            if self.config.random() < self.asks and self.one is not None and not self.is_service_down:
                await self._ask(self.config.choice(ACTS), self.one)

    async def _ask(self, act: str, one: supervisor.Supervisor) -> None:
        """What `bot pause` and the like ask.

        An answer that does not come, because the daemon is killed, says nothing.
        """
        routes, name = CommandRoutes(one.access), self.config.choice([None, *self.file.names])
        self.note("asked for", act, name)
        try:
            async with asyncio.timeout(ASKED_S):
                match act:
                    case "pause":
                        await routes.pause(ControlRequest({} if name is None else {"strategy": name}))
                        self.paused.setdefault(name or "", _entries(one, name))
                    case "resume":
                        self._judge_pauses(one)
                        for ended in [*self.paused] if name is None else [name]:
                            self.paused.pop(ended, None)
                        await routes.resume(ControlRequest({} if name is None else {"strategy": name}))
                    case "reconcile":
                        await routes.reconcile(ControlRequest({}))
                    case "reload":
                        self.file, self.is_edited = File.of(self.config), True
                        self.has_scheduled = self.has_scheduled or self.file.has_schedule
                        with pytest.MonkeyPatch.context() as patch:
                            patch.setattr(commands, "place_strategies", self.place)
                            patch.setattr(commands, "Worker", Inline)
                            await routes.reload(ControlRequest({}))
                    case "kill":
                        await routes.kill(
                            ControlRequest({"flatten": self.config.random() < 0.5, "key": f"kill-{self.now()}"})
                        )
                    case "lift":
                        await routes.lift(ControlRequest({}))
                    case "stop":
                        self.stop.set()
                        self.asked_to_stop = self.now()
        except (TimeoutError, RequestProblem, BotError) as error:
            self.note("no answer", act, type(error).__name__)
        else:
            self.done[act] += 1

    async def _judge(self, one: supervisor.Supervisor) -> None:
        await super()._judge(one)
        # The service may have traded since.
        told = await self.hand.events()
        cursor = one.kernel.journal.events.cursor
        assert cursor is not None
        self.last_events = [event for event in told if event["id"] <= cursor.last_id]
        for market in MARKETS:
            held = one.kernel.account.account_state.positions.get(market)
            shares = list(one.kernel.account.attribution.shares.get(market, {}).values())
            assert sum(share.size for share in shares) == (0 if held is None else held.size), (market, held, shares)
            assert {share.side for share in shares} <= ({held.side} if held else set()), (market, held, shares)
        if not self.damaged and not self.resets and not self.wire.met["stale"]:
            self._judge_books(one)
            if self.hand_rate == 0 and not self.has_scheduled and not self.buried:
                self._judge_shares(one)
        self._judge_pauses(one)

    def _has_skipped(self) -> bool:
        # A strategy that has left is told no more.
        return self.is_edited or super()._has_skipped()

    def _judge_books(self, one: supervisor.Supervisor) -> None:
        """The sum over everybody is the account's, from the first event that the daemon was told of."""
        (first,) = one.kernel.journal.db.execute("SELECT min(id) FROM events").fetchone()
        told = [event for event in self.last_events if first is not None and event["id"] >= first]
        fills = [event["data"] for event in told if event["type"] == "fill"]
        funded = [event["data"]["amountUsd"] for event in told if event["type"] == "funding"]
        rows = one.kernel.account.attribution.rows.values()
        assert decimal_of_e16(sum(row.fees for row in rows)) == sum(Decimal(fill["feeUsd"]) for fill in fills)
        assert decimal_of_e16(sum(row.realized for row in rows)) == sum(
            Decimal(fill["realizedPnlUsd"] or 0) for fill in fills
        )
        assert decimal_of_e16(sum(row.funding for row in rows)) == sum(map(Decimal, funded))

    def _judge_shares(self, one: supervisor.Supervisor) -> None:
        """Where nobody else trades: an entry is of who sent it, a close takes from who sent it, what the service
        closes takes from all alike.
        """
        owner = {row["id"]: row["strategy"] for row in one.kernel.journal.db["intents"].rows}
        held: dict[str, dict[str, Fraction]] = {market: {} for market in MARKETS}
        for event in self.last_events:
            if event["type"] != "fill":
                continue
            here, data, who = held[event["coin"]], event["data"], owner.get(event.get("idempotencyKey"), "")
            size = Fraction(data["size"])
            if data["intent"] == "open":
                here[who] = here.get(who, Fraction(0)) + size
                continue
            taken = min(size, here.get(who, Fraction(0)))
            whole = sum(here.values()) - taken
            for name in here:
                left = here[name] - (taken if name == who else 0)
                here[name] = left - (left * (size - taken) / whole if whole else 0)
        for market, expected in held.items():
            shares = one.kernel.account.attribution.shares.get(market, {})
            for name in {*expected, *shares}:
                size = Fraction(shares[name].size) if name in shares else Fraction(0)
                assert abs(size - expected.get(name, 0)) < Fraction(1, 10**6), (market, name, expected, shares)

    def _judge_pauses(self, one: supervisor.Supervisor) -> None:
        """Who is paused decides on no entry."""
        for name, before in self.paused.items():
            assert _entries(one, name or None) <= before, f"decided while {name or 'all'} paused"


def _entries(one: supervisor.Supervisor, strategy: str | None) -> set[str]:
    """Decisions to open; one whose plan has gone stale has more than one leg."""
    rows = one.kernel.journal.db["intents"].rows
    return {row["id"] for row in rows if row["leg"] == FIRST_LEG["open"] and strategy in (None, row["strategy"])}


@pytest.mark.soak(worlds=25, full=5_000)
def test_strategies_that_share_a_market_and_a_person_who_meddles_break_nothing(
    folder: Path, worlds: int, base_seed: int
) -> None:
    template(folder)
    done: Counter[str] = Counter()
    for world in lived(range(base_seed, base_seed + worlds), folder, Shared):
        assert isinstance(world, Shared)
        done.update(world.done)
    if worlds >= 25:
        assert set(done) == set(ACTS), done


# ── Tests of the test ───────────────────────────────────────────────────────────────────────────────────────────────


def a_pause_refuses_nothing(to: pytest.MonkeyPatch) -> None:
    to.setattr(Pauses, "refusal", lambda _self, _strategy: None)


def a_start_forgets_the_pauses(to: pytest.MonkeyPatch) -> None:
    begin = Pauses.__init__

    def forgetful(self: Pauses, journal: Journal) -> None:
        begin(self, journal)
        self.names = frozenset()

    to.setattr(Pauses, "__init__", forgetful)


def a_close_takes_from_all_alike(to: pytest.MonkeyPatch) -> None:
    closed = attribution_fold._closed
    to.setattr(attribution_fold, "_closed", lambda of, market, _taker, **more: closed(of, market, None, **more))


def every_entry_is_of_one(to: pytest.MonkeyPatch) -> None:
    filled = attribution_fold.attribute_fill
    to.setattr(
        daemon_account,
        "attribute_fill",
        lambda of, event, owner: filled(of, event, "one" if event.intent == "open" else owner),
    )


def each_is_charged_the_whole_fee(to: pytest.MonkeyPatch) -> None:
    to.setattr(attribution_fold, "split", lambda amount, takes: {name: amount for name, _ in takes})


@pytest.mark.parametrize(
    ("seed", "bug"),
    [
        (4, a_pause_refuses_nothing),
        (4, a_start_forgets_the_pauses),
        (51, a_close_takes_from_all_alike),
        (51, every_entry_is_of_one),
        (38, each_is_charged_the_whole_fee),
    ],
)
def test_a_seeded_bug_is_caught_at_its_seed(seed: int, bug: Callable[[pytest.MonkeyPatch], None], folder: Path) -> None:
    is_caught(bug, seed, folder, Shared)
