"""Each alarm has its state, notice, metric, alert rule and panel.

The table of the alarms is walked; each one is set and ended by what sets and ends it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from bot.clock import DAY_MS, SystemClock
from bot.runtime.alerts import messages
from bot.runtime.alerts.alarms import ALARMS, METRIC, PANEL
from bot.runtime.control_plane import metrics
from bot.runtime.control_plane.alarm_watch import (
    BACKUP_AGE_MS_MAX,
    JUMP_SHOWN_MS,
    LAST_BACKUP,
    LOOK_SLOW_MS,
    AlarmWatch,
)
from bot.runtime.journal import proof_files
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.limits import Approval
from bot.strategy import Bracket, Open
from bot.wire.exchange_facts import ExchangeFact
from bot.wire.market import LivePriceStatus
from tests.faulty_port import FaultyPort, refused
from tests.runtime.builders import later, make_kernel, minutes

MONITORING = Path(__file__).resolve().parents[3] / "configs" / "monitoring"


def prices(*, is_open: bool = True, jump_at: int | None = None) -> LivePriceStatus:
    jump = None if jump_at is None else {"fromPx": "100", "toPx": "50", "at": jump_at}
    row = {"coin": "BTC", "symbol": "BTC/USDT", "open": is_open, "reason": None if is_open else "gone", "jump": jump}
    eth = {"coin": "ETH", "symbol": "ETH/USDT", "open": False, "reason": "no strategy trades it"}
    return LivePriceStatus.model_validate({"source": "x", "connected": is_open, "markets": [row, eth]})


class World:
    """A kernel with a watch, whose sources a case changes."""

    def __init__(self, folder: Path, kernel: Kernel, venue: FaultyPort) -> None:
        self.folder, self.kernel, self.venue = folder, kernel, venue
        self.port = 0
        self.prices = SimpleNamespace(newest=None, exchange_facts=tuple)
        settings = lambda: SimpleNamespace(  # noqa: E731
            state_dir=folder, dashboard=SimpleNamespace(port=self.port) if self.port else None
        )
        self.proof_failure: str | None = None
        self.watch = AlarmWatch(kernel, self.prices, settings, lambda: self.proof_failure)

    def look(self, after_ms: int = LOOK_SLOW_MS) -> list[str]:
        later(self.kernel, after_ms)
        self.watch.look()
        return [name for name, _, _ in self.watch.standing()]

    def told(self, kind: str) -> int:
        self.kernel.journal.flush()
        return len(list(self.kernel.journal.db.query("SELECT 1 FROM outbox WHERE kind=?", [kind])))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    venue = FaultyPort()
    venue.minute(BTC="100")
    wanted = [Open("BTC", "long", usd=500, bracket=Bracket(stop_pct=2, targets=[(0.5, "1R"), (0.5, "3R")]))]
    kernel = make_kernel(venue, lambda _view, _bar: [wanted.pop()] if wanted else [])
    await kernel.recover()
    return World(tmp_path, kernel, venue)


# -- one case for each alarm: set it, then end it


async def prices_lost(world: World) -> Any:
    world.prices.newest = prices(is_open=False)
    yield
    assert "prices:BTC" in world.kernel.health.degraded
    assert world.kernel.health.no_entry("BTC") is not None
    assert world.kernel.health.no_entry("ETH") is None
    world.prices.newest = prices()
    yield
    assert world.kernel.health.degraded == {}


async def price_jump(world: World) -> Any:
    world.prices.newest = prices(jump_at=world.kernel.now_ms())
    yield
    world.prices.newest = prices(jump_at=world.kernel.now_ms() - JUMP_SHOWN_MS)
    yield


async def exchange_account(world: World) -> Any:
    facts = [ExchangeFact("link", "ok", "in step"), ExchangeFact("audit", "unknown", "no audit has ended")]
    world.prices.exchange_facts = lambda: facts
    assert world.look() == []
    facts.append(ExchangeFact("agent", "warn", "expires in 13 days", "approve a new one"))
    yield
    assert [row["subject"] for row in world.watch.documents()] == ["agent"]
    facts.pop()
    yield


async def of_agent(world: World, name: str) -> Any:
    strategy: Any = world.kernel.strategy_host.instances[0].strategy
    strategy.alarms = {name: "why"}
    yield
    strategy.alarms = {}
    yield


async def approval_expiring(world: World) -> Any:
    limits = world.kernel.risk.strategy_limits["trend"]
    world.kernel.risk.limit({"trend": replace(limits, approval=Approval())})
    await minutes(world.kernel, world.venue, "100")
    (waiting,) = world.kernel.approvals.waiting()
    assert world.look() == []
    world.venue.clock.set(waiting.intent.not_after_ms - 1_000)
    yield
    world.kernel.approvals.decide(waiting.intent.id, approve=False, decider="me")
    yield


async def target_refused(world: World) -> Any:
    world.venue.refuse = lambda request: refused("invalid_input", "no") if request.type == "limit" else None
    await minutes(world.kernel, world.venue, "100", "100")
    yield
    await minutes(world.kernel, world.venue, "90")
    assert world.venue.positions == {}
    yield


async def backup_old(world: World) -> Any:
    stamp = world.folder / LAST_BACKUP
    for broken in ("", "[]", "{", '{"at_ms": "x"}'):
        stamp.write_text(broken)
        assert world.look() == []
    stamp.write_text(json.dumps({"at_ms": SystemClock().now_ms() - BACKUP_AGE_MS_MAX - DAY_MS}))
    yield
    stamp.write_text(json.dumps({"at_ms": SystemClock().now_ms()}))
    yield


async def dashboard_down(world: World) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        world.port = listener.getsockname()[1]
        assert world.look() == []
    yield
    with socket.create_server(("127.0.0.1", world.port)):
        yield


async def proof_unknown(world: World) -> Any:
    proved = {"format": proof_files.FORMAT, "causes": {"timing": 3}}
    proof_files.write_proof(world.folder, proved | {"day": "2026-01-01"})
    assert world.look() == []
    proof_files.write_proof(world.folder, proved | {"day": "2026-01-02", "causes": {"unknown": 2}})
    yield
    proof_files.write_proof(world.folder, proved | {"day": "2026-01-03"})
    yield


async def proof_failed(world: World) -> Any:
    world.proof_failure = "the proof of 2026-01-01 failed: no candles"
    yield
    world.proof_failure = None
    yield


CASES: dict[str, Callable[[World], Any]] = {
    "prices_lost": prices_lost,
    "price_jump": price_jump,
    "exchange_account": exchange_account,
    "agent_silent": lambda world: of_agent(world, "agent_silent"),
    "agent_spent": lambda world: of_agent(world, "agent_spent"),
    "approval_expiring": approval_expiring,
    "backup_old": backup_old,
    "dashboard_down": dashboard_down,
    "proof_unknown": proof_unknown,
    "proof_failed": proof_failed,
    "target_refused": target_refused,
}


def test_every_alarm_has_a_case() -> None:
    assert set(CASES) == set(ALARMS)


@pytest.mark.parametrize("name", ALARMS)
async def test_an_alarm_is_told_once_and_shown_until_it_ends(name: str, world: World) -> None:
    alarm = ALARMS[name]
    assert world.look() == []
    steps = CASES[name](world)
    await anext(steps)
    if alarm.grace_ms:
        assert world.look() == [], "not before its grace has passed"
    assert world.look(alarm.grace_ms or LOOK_SLOW_MS) == [name]
    assert world.look() == [name]
    assert world.told(alarm.notice) == 1, "told once"
    (document,) = world.watch.documents()
    assert document["alarm"] == name
    assert document["message"]
    sample = {labels[0]: value for labels, value in metrics._alarms(world.watch)}
    assert sample == dict.fromkeys(ALARMS, 0.0) | {name: 1.0}
    await anext(steps)
    assert world.look() == []
    async for _ in steps:
        raise AssertionError
    assert {value for _, value in metrics._alarms(world.watch)} == {0.0}


async def test_a_second_jump_is_told_again(world: World) -> None:
    for n in range(2):
        world.prices.newest = prices(jump_at=world.kernel.now_ms() + n)
        assert world.look() == ["price_jump"]
    assert world.told("alarm.price_jump") == 2


def rules() -> Iterator[dict[str, Any]]:
    (group,) = YAML(typ="safe").load(MONITORING / "alerts.yml")["groups"]
    yield from group["rules"]


@pytest.mark.parametrize("alarm", ALARMS.values(), ids=list(ALARMS))
def test_each_alarm_has_its_notice_rule_metric_and_panel(alarm: Any) -> None:
    template = messages.TEMPLATES[alarm.notice]
    assert (template.level, template.title) == (alarm.level, alarm.title)
    shown = messages.render(alarm.notice, json.dumps({"message": "why", "market": "BTC", "strategy": "a"}), bot="b")
    assert shown.text == "why"
    assert "{" not in shown.title
    assert [one for one in rules() if one["alert"] == alarm.rule["alert"]] == [alarm.rule]
    assert metrics.METRICS[METRIC].labels == ("alarm", "subject")
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    (panel,) = (one for one in panels if one["title"] == PANEL)
    assert panel["targets"][0]["expr"].startswith(f"bracketbot_{METRIC}{{")


def test_the_page_of_the_metrics_lists_each_alarm_with_its_notice() -> None:
    page = (MONITORING.parents[1] / "docs" / "guides" / "metrics.md").read_text()
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]
    listed = [(name.strip("|` "), kind.strip("`")) for name, kind in rows if name.strip("|` ") in ALARMS]
    assert listed == [(alarm.name, alarm.notice) for alarm in ALARMS.values()]


def test_every_rule_of_an_alarm_is_in_the_table() -> None:
    of_alarms = {one["alert"] for one in rules() if f"bracketbot_{METRIC}" in one["expr"]}
    assert of_alarms == {alarm.rule["alert"] for alarm in ALARMS.values()}


def test_a_daemon_that_did_not_start_has_a_notice_and_a_rule_without_an_alarm() -> None:
    """It is dead, so it has no metrics."""
    assert "daemon.failed" in messages.TEMPLATES
    assert [one["expr"] for one in rules() if one["alert"] == "BracketbotDown"] == ['up{job="bracketbot"} == 0']
