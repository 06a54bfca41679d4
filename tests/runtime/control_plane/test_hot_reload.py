"""Reload, pause, resume: how a changed config changes a running kernel, and that a refused one changes nothing."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.config import Settings, load
from bot.errors import ApiError, BotError, ConfigError, Exit, OutcomeUnknown, StrategyError
from bot.runtime.control_plane import commands, status_documents
from bot.runtime.control_plane.commands import Commands
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.assembly import place_strategies, wanted_guardians
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import DEAD_MAN
from bot.runtime.strategy_host import fingerprints, worker
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.wire import CloseRequest, Guardian, OrderRequest
from tests.fakes import FakePacer
from tests.faulty_port import ADDRESS, Fault, FaultyPort, refused, unknown
from tests.runtime.builders import kill, make_kernel, share_of

PATIENCE_S = 60.0
HOLDS = '''\
from bot import Bracket, Open, Params, Strategy


class Holds(Strategy):
    """Goes long with a stop, once; counts its bars."""

    class Params(Params):
        usd: float = 200

    seen = 0

    def on_start(self, view):
        view.state["starts"] = view.state.get("starts", 0) + 1

    def on_bar(self, view, bar):
        self.seen += 1
        if not view.position(bar.market):
            yield Open(bar.market, "long", usd=self.params.usd, bracket=Bracket(stop_pct=20))

    def on_stop(self, view):
        view.state["stops"] = view.state.get("stops", 0) + 1
'''

IDLE = """\
from bot import Strategy


class Idle(Strategy):
    def on_bar(self, view, bar):
        return ()
"""

CONFIG = """\
account: {base_url: "https://example.com", api_key: "${env:KEY}"}
dead_man: {heartbeat_seconds: 300, on_miss: flatten}
guardians: [{type: account_drawdown, max_loss_pct_from_day_start: 5, action: flatten}]
state_dir: state
strategies:
  - {name: one, use: "holds:Holds", markets: [BTC], budget_usd: 500}
"""
TWO = '  - {name: two, use: "idle:Idle", markets: [ETH], budget_usd: 500}\n'


async def _nothing() -> None:
    pass


@dataclass
class FakeDaemon:
    """A daemon as Commands see it: a kernel on a FaultyPort, and a config in a folder."""

    folder: Path
    venue: FaultyPort = field(default_factory=FaultyPort)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    # strategies that got a new worker thread
    renewed: list[str] = field(default_factory=list)
    # the dead-man section at each change of the heartbeat
    timed_by: list[Any] = field(default_factory=list)
    # the armed guardians at each change of the heartbeat
    guarded: list[Any] = field(default_factory=list)
    # runs each time that a reload yields to a pass
    meanwhile: Callable[[], Awaitable[None]] = _nothing
    away: str = ""
    is_recovered: bool = True

    def __post_init__(self) -> None:
        self.client = self.venue
        self.workers = SimpleNamespace(renew=self.renewed.append, keep_only=lambda _names: None)
        self.heartbeats = SimpleNamespace(replace=self._replace_heartbeat)
        (self.folder / "strategies").mkdir()
        self.code("holds", HOLDS)
        self.code("idle", IDLE)
        self.write(CONFIG)
        self.settings = self.reread()
        self.commands = Commands(self, self.reread)

    def take_settings(self, settings: Settings) -> None:
        self.settings = settings

    def code(self, name: str, text: str) -> None:
        (self.folder / "strategies" / f"{name}.py").write_text(text)

    def write(self, text: str) -> None:
        (self.folder / "bot.yaml").write_text(text)

    def reread(self) -> Settings:
        return load(self.folder / "bot.yaml", {"KEY": "bbk_test_x"})

    async def yield_to_pass(self) -> None:
        await self.meanwhile()

    def _replace_heartbeat(self) -> None:
        self.timed_by.append(self.settings.dead_man)
        self.guarded.append(self.guards())

    async def begin(self) -> None:
        self.kernel = Kernel(
            port=self.venue,
            journal=open_journal(self.folder / "j.db", address=ADDRESS),
            specs=place_strategies(self.settings),
            pacer=FakePacer(),
            settings=KernelSettings(guardians=wanted_guardians(self.settings)),
            hooks=Hooks(run=self._call),
        )
        for px in ("99", "100"):
            self.venue.minute(BTC=px)
        await self.kernel.recover()
        await self.kernel.cycle()

    async def _call(self, instance: StrategyInstance, call: Callable[[], Any]) -> Any:
        return call()

    async def minute(self, **closes: str) -> None:
        self.venue.minute(**closes)
        await self.kernel.cycle()

    def state(self, name: str) -> dict[str, Any]:
        return self.kernel.journal.state.of_strategy(name)

    def guards(self) -> list[tuple[str, Any]]:
        return sorted(
            (g.type, g.heartbeat_seconds or g.max_loss_pct_from_day_start) for g in self.venue.guards.values()
        )


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload must not fail because this machine is busy. A test of its limits sets its own."""
    monkeypatch.setattr(worker, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(commands, "WARM_S", PATIENCE_S)


@pytest.fixture
async def daemon(tmp_path: Path) -> FakeDaemon:
    made = FakeDaemon(tmp_path)
    await made.begin()
    return made


RESTS = """\
from bot import Bracket, Open, Strategy


class Rests(Strategy):
    def on_bar(self, view, bar):
        if not view.orders(bar.market):
            yield Open(bar.market, "long", usd=100, limit_px=90, bracket=Bracket(stop_pct=2))
"""


async def test_removing_a_strategy_names_its_resting_entries(daemon: FakeDaemon) -> None:
    daemon.code("rests", RESTS)
    daemon.write(CONFIG + TWO.replace("idle:Idle", "rests:Rests"))
    await daemon.commands.reload()
    await daemon.minute()
    await daemon.kernel.cycle()
    (oid,) = daemon.kernel.account.account_state.resting_of("two")
    daemon.write(CONFIG)
    result = await daemon.commands.reload()
    assert result.applied == (f"two: stopped; entries that rest may still fill: {oid} (bot orders)",)


async def test_a_new_strategy_starts_warmed_up_and_a_removed_ones_position_keeps_its_stop(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG + TWO)
    result = await daemon.commands.reload()
    assert (result.refused, result.applied) == ((), ("two: started",))
    instance = daemon.kernel.strategy_host.instances[1]
    assert len(instance.view.closes("ETH", 5)) == 1, "the newest bar is still to be decided"
    await daemon.minute()
    await daemon.kernel.cycle()
    assert daemon.kernel.bars.feed.histories[instance.series[0]].last_at_ms == daemon.venue.clock.now_ms()
    daemon.write(CONFIG.replace("name: one", "name: two").replace("holds:Holds", "idle:Idle").replace("[BTC]", "[ETH]"))
    result = await daemon.commands.reload()
    assert "one: stopped; its BTC stays with its stop" in result.applied
    assert daemon.state("one")["stops"] == 1
    await daemon.minute(BTC="101")
    assert daemon.kernel.account.account_state.positions["BTC"].owner == "one"
    assert daemon.kernel.account.account_state.is_protected("BTC")
    assert [instance.name for instance in daemon.kernel.strategy_host.instances] == ["two"]
    await daemon.kernel.reconciliation.reconcile()
    assert daemon.kernel.account.attribution.of("one").unrealized_usd == 2, "the account still says what it is worth"


async def test_a_strategy_that_leaves_a_market_names_its_position_and_entries_there(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG.replace("[BTC]", "[BTC, ETH]"))
    await daemon.commands.reload()
    await daemon.minute()
    assert {p.owner for p in daemon.kernel.account.account_state.positions.values()} == {"one"}
    daemon.write(CONFIG)
    assert (await daemon.commands.reload()).applied == (
        "one: built again",
        "one: asked about fewer markets; its ETH stays with its stop",
    )


async def test_a_strategy_that_cannot_be_built_is_refused_and_ends_no_run(daemon: FakeDaemon) -> None:
    daemon.code("holds", HOLDS.replace("    seen = 0\n", "    def __init__(self, **given):\n        {}['lookback']\n"))
    with pytest.raises(StrategyError, match="raises KeyError while it is built: 'lookback'"):
        await daemon.commands.diff()
    result = await daemon.commands.reload()
    assert result.code is Exit.CONFIG
    assert "raises KeyError while it is built: 'lookback'" in result.refused[0]
    await daemon.minute(BTC="101")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError(13, "Permission denied", "/closed/btc.csv"), "Permission denied: '/closed/btc.csv'"),
        (UnicodeDecodeError("utf-8", b"hunter2", 0, 1, "of a plug-in's own file"), "UnicodeDecodeError"),
    ],
)
async def test_whatever_a_file_raises_while_it_is_read_is_refused_and_ends_no_run(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, fault: Exception, said: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(daemon.commands, "_reread", fails)
        with pytest.raises(ConfigError, match="cannot be read"):
            await daemon.commands.diff()
        result = await daemon.commands.reload()
    assert (result.code, result.applied) == (Exit.CONFIG, ())
    assert said in result.refused[0]
    assert "hunter2" not in result.refused[0]
    daemon.code("holds", HOLDS.replace("seen += 1", "seen += 1 / 0"))
    await daemon.commands.reload()
    await daemon.minute(BTC="101")
    assert daemon.kernel.strategy_host.instances[0].quarantined is not None
    monkeypatch.setattr(commands, "place", fails)
    with pytest.raises(ConfigError, match="one stays in quarantine") as caught:
        await daemon.commands.resume("one")
    assert said in str(caught.value)
    await daemon.minute(BTC="101")


SHADOWS = """\
from bot import Strategy


class Shadows(Strategy):
    def on_start(self, view):
        self.indicators, self.timers = {"rsi": 0}, ["BTC"]

    def on_bar(self, view, bar):
        view.state["bars"] = view.state.get("bars", 0) + 1
        return ()
"""


async def test_a_strategy_that_shadows_a_name_of_its_base_class_ends_no_run(daemon: FakeDaemon) -> None:
    daemon.code("idle", SHADOWS.replace("Shadows", "Idle"))
    daemon.write(CONFIG + TWO)
    assert (await daemon.commands.reload()).applied == ("two: started",)
    await daemon.minute(BTC="100", ETH="100")
    await daemon.kernel.recover()
    await daemon.minute(BTC="100", ETH="100")
    assert daemon.state("two")["bars"] >= 2


BARE = """\
from bot import Open, Strategy


class Bare(Strategy):
    def on_bar(self, view, bar):
        if not view.position(bar.market):
            yield Open(bar.market, "long", usd=100)
"""


async def test_a_position_that_needs_no_stop_stays_when_its_strategy_is_removed(daemon: FakeDaemon) -> None:
    waived = CONFIG + "safety: {require_protection: false}\n"
    daemon.code("bare", BARE)
    daemon.write(waived.replace("strategies:\n", "strategies:\n" + TWO.replace("idle:Idle", "bare:Bare")))
    await daemon.commands.reload()
    await daemon.minute()
    assert daemon.kernel.account.account_state.positions["ETH"].owner == "two"
    daemon.write(waived)
    result = await daemon.commands.reload()
    assert result.applied == ("two: stopped; its ETH stays WITHOUT A STOP: ETH",)
    await daemon.minute()
    assert "ETH" in daemon.venue.positions


async def test_other_params_build_a_strategy_again_with_its_durable_state(daemon: FakeDaemon) -> None:
    before = daemon.kernel.strategy_host.instances[0]
    daemon.write(CONFIG.replace("budget_usd: 500", "budget_usd: 600, params: {usd: 300}"))
    changes = [str(change) for change in await daemon.commands.diff()]
    assert changes == ["~ strategies.one.budget_usd: 500 -> 600", "+ strategies.one.params.usd: 300"]
    assert daemon.kernel.strategy_host.instances[0] is before, "a look changes nothing"
    result = await daemon.commands.reload()
    assert [str(change) for change in result.diff] == changes
    instance = daemon.kernel.strategy_host.instances[0]
    assert (instance.strategy.params.usd, instance.strategy.seen) == (300, 2)
    assert (daemon.state("one")["starts"], daemon.state("one")["stops"]) == (2, 1)
    assert daemon.kernel.risk.strategy_limits["one"].budget_usd == 600
    assert len(daemon.venue.fills) == 1, "what it wanted on the bars of the past is not wanted again"
    assert (await daemon.commands.reload()).diff == ()


TELLS = """\
from bot import Bracket, Close, Open, Strategy


class Tells(Strategy):
    \"""Long with a stop, closed at 103; writes down what it hears, and the bars that it is not only rehearsing.\"""

    def on_bar(self, view, bar):
        view.state["bars"] = [*view.state.get("bars", ()), bar.close]
        position = view.position(bar.market)
        if position is not None and bar.close >= 103:
            yield Close(bar.market)
        elif position is None and bar.close < 101:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=10))

    def on_fill(self, view, fill):
        view.state["fills"] = [*view.state.get("fills", ()), f"{fill.action} {fill.kind}"]
        if fill.kind == "stop_loss":
            yield Open(fill.market, "short", usd=50, bracket=Bracket(stop_pct=20))
"""
SHARED = CONFIG.replace("holds:Holds", "tells:Tells").replace("budget_usd: 500", "budget_usd: 500, netting: allow")


async def _tells(daemon: FakeDaemon) -> None:
    """A daemon with one strategy that records its events, a position, and some bars."""
    daemon.code("tells", TELLS)
    daemon.write(SHARED)
    await daemon.commands.reload()
    for _ in range(3):
        await daemon.minute(BTC="100")


def _in_between(daemon: FakeDaemon, *moments: Callable[[], Awaitable[None]]) -> list[int]:
    """Run these one after another when a reload yields to a pass, once its bars are there.

    Returns a count of the yields.
    """
    left, yields = list(moments), [0]

    async def meanwhile() -> None:
        yields[0] += 1
        if yields[0] > 1 and left:
            await left.pop(0)()

    daemon.meanwhile = meanwhile
    return yields


async def test_while_a_new_strategy_warms_up_the_others_trade_and_it_decides_the_newest_bar(daemon: FakeDaemon) -> None:
    """It has many warm-up bars of a series that another strategy uses, and passes go on between them."""
    await _tells(daemon)
    assert "BTC" in daemon.kernel.account.account_state.positions
    daemon.code("holds", HOLDS.replace("self.seen += 1", "self.seen += 1; view.state['at'] = bar.close"))
    daemon.write(
        SHARED + TWO.replace("idle:Idle", "holds:Holds").replace("ETH", "BTC").replace("500}", "500, netting: allow}")
    )
    shown: list[str] = []

    async def seen_by_status() -> None:
        run: Any = daemon
        shown[:] = [one["state"] for one in status_documents.strategies(run, daemon.settings)]
        await daemon.minute(BTC="102")

    yields = _in_between(daemon, seen_by_status, lambda: daemon.minute(BTC="103"))
    assert (await daemon.commands.reload()).applied == ("two: started",)
    assert shown == ["RUNNING", "STARTING"]
    assert yields[0] >= 5
    assert daemon.state("one")["bars"][-2:] == [102, 103], "bars were decided meanwhile"
    assert [fill[3] for fill in daemon.venue.fills[-2:]] == ["close", "open"], "the exit went, then the new one's entry"
    two = daemon.kernel.strategy_host.instances[1]
    assert (two.strategy.seen, daemon.state("two")["at"]) == (7, 103), "each bar once, and only the newest was decided"
    assert daemon.kernel.account.attribution.of("two").fills == 1
    await daemon.minute(BTC="104")
    assert two.strategy.seen == 8


async def test_events_of_a_strategy_that_is_being_built_again_are_delivered_afterwards(daemon: FakeDaemon) -> None:
    """Its stop fills, and a bar of its market closes: neither is lost, and the bar is decided once."""
    await _tells(daemon)
    daemon.code("tells", TELLS + "# mended\n")

    async def stopped_out() -> None:
        assert daemon.kernel.strategy_host.instances == []
        daemon.venue.minute(BTC="79")
        await daemon.kernel.cycle()

    _in_between(daemon, stopped_out)
    bars = len(daemon.state("one")["bars"])
    assert (await daemon.commands.reload()).applied == ("one: built again",)
    daemon.meanwhile = _nothing
    assert daemon.state("one")["fills"].count("close stop_loss") == 1
    assert [fill[2:4] for fill in daemon.venue.fills[-1:]] == [("short", "open")], "and it answered it"
    await daemon.kernel.cycle()
    assert daemon.state("one")["bars"][bars:] == [79], "the bar waited for it"
    await daemon.minute(BTC="90")
    assert daemon.state("one")["bars"][bars:] == [79, 90]


async def test_a_strategy_that_is_added_again_gets_the_events_of_its_position_from_its_warm_up(
    daemon: FakeDaemon,
) -> None:
    """From its on_start on, in which it has seen the position."""
    await _tells(daemon)
    daemon.write(SHARED.replace("  - {name: one", TWO + "  - {name: one"))
    await daemon.commands.reload()
    daemon.write(CONFIG.partition("  - {")[0] + TWO)
    await daemon.commands.reload()
    assert daemon.kernel.account.account_state.positions["BTC"].owner == "one"
    daemon.write(SHARED.replace("  - {name: one", TWO + "  - {name: one"))
    _in_between(daemon, lambda: daemon.minute(BTC="79"))
    assert (await daemon.commands.reload()).applied == ("one: started",)
    assert daemon.state("one")["fills"].count("close stop_loss") == 1
    assert (daemon.kernel.strategy_host.backlogs, daemon.kernel.strategy_host.late) == ({}, None)


class Killed(BaseException):
    pass


async def test_events_for_a_strategy_survive_a_kill_while_it_is_being_built(daemon: FakeDaemon) -> None:
    await _tells(daemon)
    daemon.code("tells", TELLS + "# mended\n")

    async def killed() -> None:
        raise Killed

    _in_between(daemon, lambda: daemon.minute(BTC="79"), killed)
    with pytest.raises(Killed):
        await daemon.commands.reload()
    assert "fills" not in daemon.state("one")
    kill(daemon.kernel)
    daemon.meanwhile = _nothing
    for _ in range(2):
        await daemon.begin()
        assert daemon.state("one")["fills"].count("close stop_loss") == 1, "once, also by the run after that"
        kill(daemon.kernel)


async def test_events_from_before_a_reset_are_not_delivered_after_it(daemon: FakeDaemon) -> None:
    """Its answer would be an order because of the account's state before the reset."""
    await _tells(daemon)
    daemon.code("tells", TELLS + "# mended\n")

    async def reset() -> None:
        daemon.venue.reset()
        await daemon.kernel.cycle()

    _in_between(daemon, lambda: daemon.minute(BTC="79"), reset)
    assert (await daemon.commands.reload()).applied == ("one: built again",)
    assert ("fills" in daemon.state("one"), daemon.venue.positions) == (False, {})


async def test_a_foreign_position_opened_while_its_strategy_is_being_built_is_adopted_afterwards(
    daemon: FakeDaemon,
) -> None:
    daemon.code("tells", TELLS.replace("elif position is None and", "elif False and"))
    daemon.write(SHARED + "safety: {foreign_positions: adopt, adopted_stop_pct: 5}\n")
    await daemon.commands.reload()
    await daemon.venue.close("BTC", CloseRequest(), key="by hand")
    await daemon.minute(BTC="100")
    daemon.code("tells", TELLS)

    async def by_hand() -> None:
        await daemon.venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(100)), key="by hand too")
        await daemon.kernel.cycle()

    _in_between(daemon, by_hand)
    assert (await daemon.commands.reload()).applied == ("one: built again",)
    daemon.meanwhile = _nothing
    assert not daemon.kernel.account.account_state.is_protected("BTC")
    await daemon.kernel.cycle()
    assert daemon.kernel.account.account_state.is_protected("BTC")
    assert daemon.kernel.account.account_state.positions["BTC"].owner == "one"


async def test_a_bar_that_the_replaced_instance_has_decided_is_not_decided_again(daemon: FakeDaemon) -> None:
    """The bar closed after its warm-up bars were fetched, while another strategy was being stopped."""
    await _tells(daemon)
    daemon.write(SHARED + TWO.replace("idle:Idle", "tells:Tells").replace("usd: 500}", "usd: 900}"))
    await daemon.commands.reload()
    await daemon.minute()
    await daemon.kernel.cycle()
    daemon.code("tells", TELLS + "# mended\n")
    _in_between(daemon, lambda: daemon.minute(ETH="102"))
    before = daemon.state("two")["bars"]
    assert (await daemon.commands.reload()).applied == ("one: built again", "two: built again")
    assert daemon.state("two")["bars"] == [*before, 102], "by the old one, which stood then"
    await daemon.kernel.cycle()
    assert daemon.state("one")["bars"][-2:] == [100, 100], "its own bar waited for it"
    await daemon.minute(ETH="102.5")
    assert daemon.state("two")["bars"] == [*before, 102, 102.5]


NOTES = """\
from bot import Strategy


class Notes(Strategy):
    def on_start(self, view):
        self.lived = []

    def on_bar(self, view, bar):
        self.lived.append((bar.market, bar.at_ms))
        view.state[bar.market] = [*view.state.get(bar.market, ()), bar.at_ms]
        return ()
"""


@pytest.mark.parametrize("seed", range(4))
async def test_no_order_of_bars_and_reloads_decides_a_bar_twice_or_loses_one(daemon: FakeDaemon, seed: int) -> None:
    """Strategies are added, removed and changed, some on one market, and bars close while they warm up."""
    chance = random.Random(seed)
    for version in range(4):
        daemon.code(f"notes{version}", NOTES)
    pool = {"one": "[BTC]", "two": "[ETH]", "three": "[BTC, ETH]", "four": "[ETH]"}
    head = CONFIG.partition("  - {")[0]
    running: dict[str, int] = {}

    async def meanwhile() -> None:
        if chance.random() < 0.2:
            await daemon.minute()

    daemon.meanwhile = meanwhile
    for _ in range(6):
        for _ in range(chance.randrange(3)):
            await daemon.minute()
        for name in chance.sample(sorted(pool), 2):
            if running.pop(name, None) is None or not running or chance.random() < 0.7:
                running[name] = chance.randrange(4)
        lines = [
            f'  - {{name: {name}, use: "notes{version}:Notes", markets: {pool[name]}, budget_usd: 500, netting:'
            " allow}\n"
            for name, version in running.items()
        ]
        daemon.write(head + "".join(lines))
        assert (await daemon.commands.reload()).refused == ()
        assert {instance.name for instance in daemon.kernel.strategy_host.instances} == running.keys()
        assert (daemon.kernel.strategy_host.backlogs, daemon.kernel.strategy_host.late) == ({}, None)
    for _ in range(2):
        await daemon.kernel.cycle()
    for instance in daemon.kernel.strategy_host.instances:
        for market in instance.markets:
            decided = daemon.state(instance.name)[market]
            assert decided == sorted(set(decided))
            assert decided[-1] == daemon.venue.clock.now_ms()
            lived = [at_ms for where, at_ms in instance.strategy.lived if where == market]
            assert {later - at_ms for at_ms, later in pairwise(lived)} <= {60_000}


async def test_a_budget_alone_changes_without_touching_the_strategy(daemon: FakeDaemon) -> None:
    before = daemon.kernel.strategy_host.instances[0]
    daemon.kernel.account.attribution.shares["BTC"] = {"one": share_of("BTC", "one", size="1", cost_usd="100")}
    assert not daemon.kernel.conditions.losses.has_limits("BTC")
    daemon.write(CONFIG.replace("budget_usd: 500", "budget_usd: 50, daily_loss_usd: 5"))
    assert (await daemon.commands.reload()).applied == ("settings: in force",)
    assert daemon.kernel.conditions.losses.has_limits("BTC")
    assert daemon.kernel.strategy_host.instances == [before]
    assert daemon.kernel.risk.strategy_limits["one"].daily_loss_usd == 5


async def test_protections_change_without_touching_the_strategy(daemon: FakeDaemon) -> None:
    before = daemon.kernel.strategy_host.instances[0]
    own = CONFIG.replace("budget_usd: 500", "budget_usd: 500, protections: {cooldown: 4 bars}")
    daemon.write(own + "protections: {max_open_positions: 1}\n")
    result = await daemon.commands.reload()
    assert (result.refused, result.applied) == ((), ("settings: in force",))
    assert [change.path for change in result.diff] == [
        "protections.max_open_positions",
        "strategies.one.protections.cooldown",
    ]
    assert daemon.kernel.strategy_host.instances == [before]
    assert [(rule.name, rule.strategy) for rule in daemon.kernel.protections.rules] == [
        ("max_open_positions", None),
        ("cooldown", "one"),
    ]
    daemon.write(CONFIG)
    assert (await daemon.commands.reload()).refused == ()
    assert daemon.kernel.protections.rules == ()


async def test_changed_code_is_seen_though_the_config_is_the_same(daemon: FakeDaemon) -> None:
    daemon.code("holds", HOLDS.replace("seen = 0", "seen = 100"))
    result = await daemon.commands.reload()
    assert [str(change) for change in result.diff] == [
        "~ strategies.one.use: holds:Holds (as it was) -> holds:Holds (changed code)"
    ]
    assert daemon.kernel.strategy_host.instances[0].strategy.seen == 102
    assert daemon.renewed == ["one"]


REFUSED = [
    ("a broken file", lambda h: h.write("strategies: ["), "not YAML"),
    (
        "a bad param",
        lambda h: h.write(CONFIG.replace("budget_usd: 500", "budget_usd: 500, params: {usd: x}")),
        "params.usd",
    ),
    ("broken code", lambda h: h.code("holds", "def ("), "invalid syntax"),
    (
        "another state directory",
        lambda h: h.write(CONFIG.replace("state_dir: state", "state_dir: other")),
        "state_dir cannot change",
    ),
    (
        "another account",
        lambda h: h.write(CONFIG.replace("example.com", "example.org")),
        "account.base_url cannot change",
    ),
    ("a market twice", lambda h: h.write(CONFIG + TWO.replace("ETH", "BTC")), "netting: allow"),
]


@pytest.mark.parametrize(("change", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_refused_config_changes_nothing(
    daemon: FakeDaemon, change: Callable[[FakeDaemon], None], says: str
) -> None:
    instances, settings = list(daemon.kernel.strategy_host.instances), daemon.settings
    change(daemon)
    result = await daemon.commands.reload()
    assert result.applied == ()
    assert says in result.refused[0]
    assert result.refused[0].endswith("Nothing was changed.")
    assert result.code is Exit.CONFIG
    assert (daemon.kernel.strategy_host.instances, daemon.settings, daemon.renewed) == (instances, settings, [])
    await daemon.minute()
    assert daemon.kernel.strategy_host.instances[0].quarantined is None


async def test_a_service_that_is_away_or_refuses_a_guardian_leaves_everything_as_it_was(daemon: FakeDaemon) -> None:
    daemon.write((CONFIG + TWO).replace("start: 5", "start: 7"))
    guards = daemon.guards()
    for fault, code in (
        (Fault("candles", unknown()), Exit.TIMEOUT),
        (Fault("arm", refused("limit_exceeded")), Exit.REFUSED),
    ):
        daemon.venue.faults = [fault]
        result = await daemon.commands.reload()
        assert result.refused, fault
        assert result.code is code
        assert (daemon.guards(), [instance.name for instance in daemon.kernel.strategy_host.instances]) == (
            guards,
            ["one"],
        )
        assert daemon.kernel.guardians.fallen() == []
    await daemon.minute()
    assert daemon.kernel.guardians.fallen() == []
    assert (await daemon.commands.reload()).refused == ()


async def test_new_guardians_are_armed_before_the_old_ones_are_disarmed(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG.replace("start: 5", "start: 7").replace("heartbeat_seconds: 300", "heartbeat_seconds: 600"))
    seen: list[list[tuple[str, Any]]] = []
    disarm = daemon.venue.disarm

    async def watched(guardian_id: str) -> None:
        seen.append(daemon.guards())
        await disarm(guardian_id)

    daemon.venue.disarm = watched
    result = await daemon.commands.reload()
    assert result.applied[0] == "guardians: dead_man, config-0-account_drawdown"
    assert daemon.guards() == [("account_drawdown", 7), ("dead_man_switch", 600)]
    assert {("account_drawdown", 7), ("dead_man_switch", 600)} <= set(seen[0])
    assert [one.heartbeat_seconds for one in daemon.timed_by] == [600]
    assert daemon.kernel.guardians.fallen() == []
    await daemon.minute()
    await daemon.kernel.reconciliation.reconcile()
    assert daemon.guards() == [("account_drawdown", 7), ("dead_man_switch", 600)]


@pytest.mark.parametrize("mended", [CONFIG.replace("start: 5", "start: 7"), re.sub("guardians: .*\n", "", CONFIG)])
async def test_a_refused_guardian_blocks_no_entry_after_it_is_corrected_or_removed(
    daemon: FakeDaemon, mended: str
) -> None:
    (drawdown,) = (one.id for one in daemon.venue.guards.values() if one.type == "account_drawdown")
    await daemon.venue.disarm(drawdown)
    daemon.venue.faults = [Fault("arm", refused("invalid_input", "no such action"))]
    await daemon.minute()
    assert list(daemon.kernel.health.degraded) == ["guardian:config-0-account_drawdown"]
    daemon.write(mended)
    assert (await daemon.commands.reload()).refused == ()
    await daemon.minute()
    assert (daemon.kernel.health.degraded, daemon.commands.state.word) == ({}, "RUNNING")


async def test_guardians_in_another_order_are_neither_disarmed_nor_armed_twice(daemon: FakeDaemon) -> None:
    two = CONFIG.replace("guardians: [", "guardians: [{type: schedule, cron: '0 0 * * *', action: flatten}, ")
    before = {g.id for g in daemon.venue.guards.values()}
    daemon.write(two)
    await daemon.commands.reload()
    after = {g.id for g in daemon.venue.guards.values()}
    assert before < after
    assert len(after) == 3


async def test_a_guardian_that_could_not_be_disarmed_is_disarmed_by_the_next_pass(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG.replace("start: 5", "start: 7"))
    daemon.venue.faults = [
        Fault("disarm", ApiError.of("service_unavailable", "later", order_submitted=False, retryable=True))
    ]
    result = await daemon.commands.reload()
    assert any("are still armed" in line for line in result.applied)
    assert len(daemon.venue.guards) == 3
    await daemon.kernel.cycle()
    assert daemon.guards() == [("account_drawdown", 7), ("dead_man_switch", 300)]


UNDONE = {
    "the answer to arming is lost": [Fault("arm", "lose_reply")],
    "the answer is lost twice": [Fault("arm", "lose_reply", count=2)],
    "the request comes late": [Fault("arm", "late", count=2)],
    "the second is refused, and the first cannot be disarmed": [Fault("disarm", unknown())],
}


def armed(daemon: FakeDaemon) -> dict[str, Guardian]:
    """The guardians at the venue, without what each heartbeat moves."""
    still = {"next_deadline": None, "last_heartbeat_at": None}
    return {name: guardian.model_copy(update=still) for name, guardian in daemon.venue.guards.items()}


@pytest.mark.parametrize("faults", UNDONE.values(), ids=UNDONE)
async def test_a_refused_reload_leaves_no_unknown_guardian_armed(daemon: FakeDaemon, faults: list[Fault]) -> None:
    before = armed(daemon)
    other = CONFIG.replace("start: 5", "start: 7").replace("heartbeat_seconds: 300", "heartbeat_seconds: 60")
    daemon.write(other)
    daemon.venue.faults = [replace(fault) for fault in faults]
    if faults[0].op == "disarm":
        arm = daemon.venue.arm

        async def first_only(request: Any, *, key: str) -> Any:
            if request.type == "account_drawdown":
                raise refused("limit_exceeded")
            return await arm(request, key=key)

        # the one that is taken off again below
        daemon.venue.arm = first_only
    assert "the service" in (await daemon.commands.reload()).refused[0]
    # What is owed is owed after a new start too.
    daemon.kernel.journal.close()
    daemon.write(CONFIG)
    daemon.settings = daemon.reread()
    await daemon.begin()
    for _ in range(2):
        await daemon.minute()
    assert (armed(daemon), daemon.kernel.guardians.owes, daemon.kernel.guardians.fallen()) == (before, False, [])
    daemon.write(other)
    daemon.venue.__dict__.pop("arm", None)
    assert (await daemon.commands.reload()).refused == ()
    await daemon.minute()
    assert daemon.guards() == [("account_drawdown", 7), ("dead_man_switch", 60)]


async def test_a_guardian_armed_by_a_request_with_a_lost_answer_is_disarmed_by_the_next_pass(
    daemon: FakeDaemon,
) -> None:
    daemon.write(CONFIG.replace("heartbeat_seconds: 300", "heartbeat_seconds: 60"))
    daemon.venue.faults = [Fault("arm", "lose_reply", count=2)]
    assert (await daemon.commands.reload()).refused
    assert (len(daemon.venue.guards), daemon.kernel.guardians.owes) == (3, True)
    await daemon.kernel.cycle()
    assert (daemon.guards(), daemon.kernel.guardians.owes) == (
        [("account_drawdown", 5), ("dead_man_switch", 300)],
        False,
    )


async def test_a_guardian_that_the_key_may_not_disarm_now_is_not_forgotten(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG.replace("heartbeat_seconds: 300", "heartbeat_seconds: 60"))
    daemon.venue.faults = [Fault("arm", "lose_reply", count=2)]
    assert (await daemon.commands.reload()).refused
    daemon.venue.faults = [Fault("arm", refused("forbidden"))]
    await daemon.kernel.cycle()
    await daemon.kernel.reconciliation.reconcile()
    assert (daemon.guards(), daemon.venue.faults[0].count) == ([("account_drawdown", 5), ("dead_man_switch", 300)], 0)


async def test_a_removed_dead_man_switch_is_disarmed_before_its_heartbeats_stop(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG.replace("dead_man: {heartbeat_seconds: 300, on_miss: flatten}", "dead_man: off"))
    assert (await daemon.commands.reload()).refused == ()
    assert (daemon.timed_by, daemon.guarded) == ([None], [[("account_drawdown", 5)]])


async def test_missing_bars_refuse_a_reload_in_time_for_the_next_heartbeat(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "WARM_S", 0.01)

    async def never(*_given: Any) -> None:
        await asyncio.Event().wait()

    daemon.venue.candles = never
    daemon.write(CONFIG + TWO)
    result = await daemon.commands.reload()
    assert ("did not return the bars of" in result.refused[0], result.code) == (True, Exit.TIMEOUT)
    assert [instance.name for instance in daemon.kernel.strategy_host.instances] == ["one"]


async def test_a_reload_runs_a_strategys_code_once_in_another_thread_and_notes_its_digest(daemon: FakeDaemon) -> None:
    off = "\nimport threading\nassert threading.current_thread() is not threading.main_thread()\n"
    code = HOLDS + off + "with open(__file__ + '.ran', 'a') as file:\n    file.write('x')\n"
    daemon.code("holds", code)
    assert (await daemon.commands.reload()).applied == ("one: built again",)
    assert (daemon.folder / "strategies" / "holds.py.ran").read_text() == "x"
    mark = fingerprints.marks_in(daemon.kernel.journal.state.note(fingerprints.NOTE))[-1]
    assert mark["strategies"]["one"]["source"] == sha256(code.encode()).hexdigest()[:16]


async def test_a_dead_man_switch_of_an_older_config_is_disarmed_at_the_next_start(daemon: FakeDaemon) -> None:
    daemon.kernel.journal.close()
    daemon.write(
        CONFIG.replace("heartbeat_seconds: 300", "heartbeat_seconds: 600").replace("guardians:", "guardians: []\n#")
    )
    daemon.settings = daemon.reread()
    await daemon.begin()
    assert daemon.guards() == [("dead_man_switch", 600)]
    assert daemon.kernel.guardians.ids.keys() == {DEAD_MAN}


async def test_a_switch_armed_by_a_start_with_a_lost_answer_is_disarmed_once_the_config_drops_it(
    tmp_path: Path,
) -> None:
    """Nobody would send heartbeats for it."""
    venue = FaultyPort()
    venue.faults = [Fault("arm", "lose_reply")]
    kernel = make_kernel(venue, path=tmp_path / "journal.db")
    with pytest.raises(OutcomeUnknown):
        await kernel.recover()
    kill(kernel)
    assert venue.guards
    kernel = make_kernel(venue, path=tmp_path / "journal.db", settings=KernelSettings())
    await kernel.recover()
    assert venue.guards == {}


async def test_resume_builds_a_quarantined_strategy_again_from_corrected_code(daemon: FakeDaemon) -> None:
    daemon.code("holds", HOLDS.replace("self.seen += 1", "1 / 0"))
    result = await daemon.commands.reload()
    assert result.applied == ("one: in quarantine, one: ZeroDivisionError: division by zero (holds.py:16)",)
    assert (result.code, result.refused) == (Exit.CONFIG, ()), "it was taken over, and is not well"
    assert daemon.commands.state.word == "DEGRADED"
    assert daemon.kernel.account.account_state.is_protected("BTC")
    with pytest.raises(ConfigError, match="failed again"):
        await daemon.commands.resume("one")
    daemon.code("holds", "def broken(:\n")
    with pytest.raises(ConfigError, match="one stays in quarantine: .*holds.py"):
        await daemon.commands.resume("one")
    daemon.code("holds", HOLDS)
    daemon.venue.faults = [Fault("candles", unknown())]
    with pytest.raises(commands.CommandTimeout, match="one stays in quarantine: the service could not be asked"):
        await daemon.commands.resume("one")
    await daemon.commands.resume("one")
    assert (daemon.commands.state.word, daemon.kernel.strategy_host.instances[0].strategy.seen) == ("RUNNING", 2)
    newest = fingerprints.marks_in(daemon.kernel.journal.state.note(fingerprints.NOTE))[-1]
    assert newest["strategies"]["one"]["source"] == sha256(HOLDS.encode()).hexdigest()[:16]
    await daemon.minute()
    assert daemon.kernel.strategy_host.instances[0].strategy.seen == 3


async def test_code_that_only_a_restart_can_load_is_refused(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports an installed package once per process."""
    package = daemon.folder / "site" / "acme_fund"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = package / "good.py"
    code.write_text(HOLDS.replace("self.seen += 1", "1 / 0"))
    monkeypatch.syspath_prepend(str(daemon.folder / "site"))
    daemon.write(CONFIG.replace("holds:Holds", "acme_fund.good:Holds"))
    assert (await daemon.commands.reload()).applied[0].startswith("one: in quarantine")
    ran = fingerprints.marks_in(daemon.kernel.journal.state.note(fingerprints.NOTE))[-1]
    code.write_text(HOLDS)
    for is_gone in (False, True):
        if is_gone:
            code.unlink()
        result = await daemon.commands.reload()
        assert (result.code, result.applied) == (Exit.CONFIG, ())
        assert f"the code of strategy one ({code}) has changed" in result.refused[0]
        assert "stop the daemon and start it again" in result.refused[0]
        with pytest.raises(ConfigError, match=r"one stays in quarantine: the code of strategy one .* has changed"):
            await daemon.commands.resume("one")
    assert fingerprints.marks_in(daemon.kernel.journal.state.note(fingerprints.NOTE))[-1] == ran
    daemon.write(CONFIG)
    assert (await daemon.commands.reload()).applied == ("one: built again",)


async def test_resume_reads_the_file_of_the_strategy_that_it_names_and_of_no_other(daemon: FakeDaemon) -> None:
    daemon.write(CONFIG + TWO)
    daemon.code("holds", HOLDS.replace("self.seen += 1", "1 / 0"))
    await daemon.commands.reload()
    daemon.code("holds", HOLDS)
    daemon.code("idle", "def broken(:\n")
    await daemon.commands.resume("one")
    assert [instance.quarantined for instance in daemon.kernel.strategy_host.instances] == [None, None]


async def test_a_quarantined_strategy_stays_in_quarantine_through_a_reload_of_another(daemon: FakeDaemon) -> None:
    daemon.code("holds", HOLDS.replace("self.seen += 1", "1 / 0"))
    await daemon.commands.reload()
    daemon.write(CONFIG + TWO)
    result = await daemon.commands.reload()
    assert (result.applied, result.code) == (("two: started",), Exit.DONE), "what failed before is not this one's"
    assert daemon.kernel.strategy_host.instances[0].quarantined is not None
    daemon.code("holds", HOLDS)
    assert (await daemon.commands.reload()).applied == ("one: built again",)
    assert daemon.kernel.strategy_host.instances[0].quarantined is None


async def test_resume_without_a_name_ends_foreign_activity_and_no_other_degraded_state(daemon: FakeDaemon) -> None:
    daemon.kernel.health.degrade("market:ETH", "gone")
    daemon.kernel.health.degrade("foreign_writer", "somebody")
    assert daemon.commands.state.word == "DEGRADED"
    assert await daemon.commands.resume("one") == ()
    assert set(daemon.kernel.health.degraded) == {"market:ETH", "foreign_writer"}
    assert await daemon.commands.resume() == ("somebody",)
    assert set(daemon.kernel.health.degraded) == {"market:ETH"}
    assert daemon.commands.state.word == "DEGRADED"


async def test_pause_and_resume_refuse_what_they_cannot_do(daemon: FakeDaemon) -> None:
    assert daemon.commands.pause("one") == ()
    assert daemon.commands.paused == {"one": "one is paused; bot resume one lets it go on"}
    assert daemon.commands.state.word == "RUNNING", "only one of them is paused"
    daemon.commands.pause()
    assert daemon.commands.state.word == "PAUSED"
    with pytest.raises(BotError, match="every strategy is paused"):
        await daemon.commands.resume("one")
    await daemon.commands.resume()
    assert (daemon.commands.state.word, daemon.commands.paused) == ("RUNNING", {})
    with pytest.raises(BotError, match="no strategy nobody; there are one"):
        daemon.commands.pause("nobody")
    daemon.stop.set()
    assert daemon.commands.state.word == "STOPPING"


LONGER = """\
from bot import Strategy, sma


class Longer(Strategy):
    slow = sma(3, interval="15m")
    intervals = {"5m": 4}
    read = ()

    def on_bar(self, view, bar):
        market = "ETH"
        self.read = (
            bar.market,
            bar.at_ms,
            view.bars(market, 1)[-1].at_ms,
            self.slow[market],
            view.closes(market, 4, interval="5m"),
        )
        return ()
"""


@pytest.mark.parametrize("is_running", [True, False], ids=["beside a running series", "alone"])
async def test_a_reload_brings_longer_bars_and_informative_markets(tmp_path: Path, is_running: bool) -> None:
    daemon = FakeDaemon(tmp_path, venue=FaultyPort(("BTC", "ETH", "SOL")))
    await daemon.begin()
    daemon.code("longer", LONGER)
    for n in range(90):
        await daemon.minute(BTC="100", ETH=str(100 + n % 13))
    extra = TWO if is_running else ""
    daemon.write(CONFIG + extra)
    await daemon.commands.reload()
    await daemon.minute(ETH="105")
    row = '  - {name: three, use: "longer:Longer", markets: [SOL], informative: [ETH], budget_usd: 500}\n'
    daemon.write(CONFIG + extra + row)
    result = await daemon.commands.reload()
    assert (result.refused, result.applied) == ((), ("three: started",))
    for n in range(40):
        await daemon.minute(BTC="100", ETH=str(100 + n % 7))
        await daemon.kernel.cycle()
        rows = daemon.venue.candle_rows["ETH"]
        closes = {row.ts + 60_000: float(row.close) for row in rows}
        five = [close for at_ms, close in closes.items() if at_ms % 300_000 == 0][-4:]
        fifteen = [close for at_ms, close in closes.items() if at_ms % 900_000 == 0][-3:]
        (strategy,) = [one.strategy for one in daemon.kernel.strategy_host.instances if one.name == "three"]
        market, at_ms, newest_ms, slow, read = vars(strategy)["read"]
        assert market == "SOL"
        assert at_ms == newest_ms == daemon.venue.clock.now_ms()
        assert read == five
        assert slow == pytest.approx(sum(fifteen) / 3)
