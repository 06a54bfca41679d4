"""All views of an account at an exchange say the same: one answer of the service, and what each view makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bot.cli.operate.status import OLD_FACTS_MS, _exchange_lines
from bot.cli.start.doctor_checks.service_checks import _exchange
from bot.clock import DAY_MS
from bot.dashboard.pages.overview import health
from bot.dashboard.sources import DaemonSnapshot
from bot.runtime.control_plane.alarm_watch import AlarmWatch
from bot.runtime.control_plane.metrics import Figures
from bot.runtime.control_plane.price_watch import PriceWatch
from bot.wire.exchange_facts import FACTS, FIGURES, facts
from bot.wire.market import StatusResult

NOW_MS = 1_746_057_600_000
EXCHANGE = {
    "name": "hyperliquid",
    "network": "testnet",
    "address": "0x1",
    "link": "in_step",
    "hasAgentKey": True,
    "agent": "0xab",
    "agentName": "bot",
    "agentUntil": NOW_MS + 3 * DAY_MS,
    "agentReadAt": NOW_MS,
    "clockDifferenceMs": 31_000,
    "actionsUndecided": 1,
    "oldestUndecidedAt": NOW_MS - 90_000,
    "auditDifferences": ["size BTC: here 1; there 2"],
    "auditedAt": NOW_MS - 1_000,
}
SILENT = {"name": "hyperliquid", "network": "testnet", "address": "0x1", "link": "away", "hasAgentKey": True}


async def watched(exchange: dict[str, Any] | None) -> tuple[PriceWatch, StatusResult]:
    answer = StatusResult.model_validate({"status": "ok", "serverTime": NOW_MS, "exchange": exchange})

    async def status() -> StatusResult:
        return answer

    service: Any = SimpleNamespace(status=status, clock=SimpleNamespace(now_ms=lambda: NOW_MS))
    watch = PriceWatch(service)
    assert await watch._ask() is (exchange is not None), "a service without prices is asked on for its account"
    return watch, answer


@pytest.mark.parametrize("exchange", [EXCHANGE, SILENT])
async def test_each_view_shows_each_fact_with_the_same_level_and_words(exchange: dict[str, Any]) -> None:
    watch, answer = await watched(exchange)
    assert answer.exchange is not None
    table = {fact.name: fact for fact in facts(answer.exchange, NOW_MS)}
    assert list(table) == list(FACTS)

    document = {"exchange": watch.exchange_document(), "service_ms": NOW_MS}
    marks = {"ok": "", "unknown": "", "warn": "WARN ", "fail": "FAIL "}
    assert list(_exchange_lines(document)) == [
        f"  exchange    {marks[fact.level]}{fact.name}: {fact.line}" for fact in table.values()
    ]

    levels = {"ok": "ok", "unknown": "skip", "warn": "warn", "fail": "fail"}
    assert [(finding.level, finding.message, finding.fix) for finding in _exchange(answer)] == [
        (levels[fact.level], f"{fact.name}: {fact.text}", fact.fix) for fact in table.values()
    ]

    snapshot: Any = DaemonSnapshot(NOW_MS, status=document)
    tones = {"ok": "good", "unknown": "idle", "warn": "warn", "fail": "bad"}
    panels = [panel for panel in health(snapshot, None) if panel.label.startswith("Exchange: ")]
    assert [(panel.label, panel.tone, panel.note) for panel in panels] == [
        (f"Exchange: {fact.name}", tones[fact.level], fact.line) for fact in table.values()
    ]
    assert {panel.value for panel in panels if panel.tone == "idle"} <= {"not known"}

    alarms = AlarmWatch(SimpleNamespace(), watch, SimpleNamespace)._exchange()
    assert alarms == {fact.name: fact.line for fact in table.values() if fact.level in ("warn", "fail")}

    pytest.importorskip("prometheus_client")
    sources: Any = SimpleNamespace(prices=watch)
    samples = {sample.name for family in Figures(sources)._exchange() for sample in family.samples}
    known = {
        f"bracketbot_{name}" for name, figure in FIGURES.items() if figure.value(answer.exchange, NOW_MS) is not None
    }
    assert samples == known


async def test_an_old_answer_is_marked_and_no_account_shows_nothing() -> None:
    watch, _ = await watched(EXCHANGE)
    late = {"exchange": watch.exchange_document(), "service_ms": NOW_MS + OLD_FACTS_MS + 1}
    assert next(iter(_exchange_lines(late))).endswith(": the service has not answered since")
    watch, answer = await watched(None)
    assert (watch.exchange_document(), watch.exchange_facts(), list(_exchange(answer))) == (None, (), [])
