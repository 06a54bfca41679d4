"""What each fact of an account at an exchange says: known, in need of a person, or not known."""

from __future__ import annotations

from typing import Any

import pytest

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.wire.exchange_facts import FACTS, FIGURES, facts
from bot.wire.market import ExchangeLinkStatus

NOW_MS = 1_746_057_600_000
AGENT = {"has_agent_key": True, "agent": "0xab", "agent_name": "bot", "agent_read_at": NOW_MS}


def status(**told: Any) -> ExchangeLinkStatus:
    return ExchangeLinkStatus(**{"name": "x", "network": "testnet", "address": "0x1", "link": "in_step"} | told)


def known(name: str, **told: Any) -> tuple[str, str]:
    fact = next(fact for fact in facts(status(**told), NOW_MS) if fact.name == name)
    assert fact.fix is not None or fact.level in ("ok", "unknown"), "what is wrong names what to do"
    return fact.level, fact.line


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("link", {}, "ok", "in step"),
    ("link", {"link": "away", "reason": "no answer", "since": NOW_MS}, "fail", "AWAY since 2025-05-01"),
    ("link", {"link": "behind", "reason": "BTC: a fill is missing"}, "fail", "BEHIND: BTC: a fill is missing"),
    ("link", {"link": "unknown"}, "unknown", "not known"),
    ("link", {"differences": ("cash: 1 here, 2 there",)}, "fail", "the books differ: cash: 1 here, 2 there"),
    ("agent", {}, "ok", "watched only"),
    ("agent", {"has_agent_key": True}, "unknown", "its expiry is not known"),
    ("agent", AGENT | {"agent_until": NOW_MS + 15 * DAY_MS}, "ok", "may act until 2025-05-16"),
    ("agent", AGENT | {"agent_until": NOW_MS + 14 * DAY_MS}, "ok", "may act until"),
    ("agent", AGENT | {"agent_until": NOW_MS + 14 * DAY_MS - 1}, "warn", "expires on 2025-05-14"),
    ("agent", AGENT | {"agent_until": NOW_MS}, "fail", "has expired on 2025-05-01"),
    ("agent", AGENT, "ok", "may act without an end"),
    ("agent", AGENT | {"agent_name": None}, "warn", "has no name"),
    ("agent", AGENT | {"agent_fault": "0xab is no agent"}, "fail", "nothing can be sent: 0xab is no agent"),
    ("clock", {}, "unknown", "not known"),
    ("clock", {"clock_difference_ms": -2_000}, "ok", "at most 2 s"),
    ("clock", {"clock_difference_ms": -2_001}, "warn", "2.0 s behind"),
    ("clock", {"clock_difference_ms": 30_000}, "warn", "30.0 s ahead of"),
    ("clock", {"clock_difference_ms": 30_001}, "fail", "entries are refused"),
    ("budget", {}, "unknown", "not known"),
    ("budget", {"actions_left": 1_000}, "ok", "1,000 actions are left"),
    ("budget", {"actions_left": 999}, "warn", "entries end at 500"),
    ("budget", {"actions_left": 499}, "fail", "entries end at 500"),
    ("doubt", {}, "unknown", "not known"),
    ("doubt", {"actions_undecided": 0}, "ok", "no action is undecided"),
    ("doubt", {"actions_undecided": 2, "oldest_undecided_at": NOW_MS - MINUTE_MS}, "ok", "2 actions undecided"),
    ("doubt", {"actions_undecided": 1, "oldest_undecided_at": NOW_MS - MINUTE_MS - 1}, "warn", "the oldest for 1 min"),
    ("audit", {}, "unknown", "no audit has ended"),
    ("audit", {"audit_trouble": "no answer"}, "unknown", "no audit has ended: no answer"),
    ("audit", {"audit_differences": (), "audited_at": NOW_MS - HOUR_MS}, "ok", "no difference"),
    (
        "audit",
        {"audit_differences": (), "audited_at": NOW_MS - 4 * HOUR_MS, "audit_trouble": "no answer"},
        "warn",
        "no later audit has ended: no answer",
    ),
    (
        "audit",
        {"audit_differences": ("size BTC: here 1; there 2",), "audited_at": NOW_MS, "blocked_markets": ("BTC",)},
        "fail",
        "size BTC: here 1; there 2; entries are refused in BTC",
    ),
]


@pytest.mark.parametrize(("name", "told", "level", "text"), CASES)
def test_each_fact_says_what_is_known(name: str, told: dict[str, Any], level: str, text: str) -> None:
    shown = known(name, **told)
    assert shown[0] == level
    assert text in shown[1]


def test_each_fact_has_a_case_for_each_level_that_it_can_have() -> None:
    levels = {name: {level for case, _, level, _ in CASES if case == name} for name in FACTS}
    assert all({"ok", "unknown"} <= seen for seen in levels.values())
    assert all("fail" in seen or name == "doubt" for name, seen in levels.items())


def test_nothing_that_nobody_has_told_is_well_or_a_figure() -> None:
    silent = status(link="unknown", has_agent_key=True)
    assert {fact.level for fact in facts(silent, NOW_MS)} == {"unknown"}
    assert [name for name, figure in FIGURES.items() if figure.value(silent, NOW_MS) is not None] == []
