"""The facts of an account as `bot exchange status` shows them: without the service that follows it."""

from __future__ import annotations

from typing import Any

from bot.cli.exchange.link_health import LinkReading
from bot.cli.exchange.status_view import ExchangeReading
from bot.wire.exchange_facts import ExchangeFact, facts
from bot.wire.market import ExchangeLinkStatus


def reading_facts(reading: ExchangeReading, link: LinkReading | None, now_ms: int) -> list[ExchangeFact]:
    """What is known of the account, with one row for each agent that the exchange lists."""
    state = None if link is None else link.state
    told = None if link is None else link.health.clock_difference_ms
    known: dict[str, Any] = {
        "name": "",
        "network": "",
        "address": "",
        "link": "unknown" if state is None else state.phase,
        "reason": None if state is None else state.reason,
        "clock_difference_ms": reading.clock_difference_ms if told is None else told,
        "actions_left": reading.budget.most - reading.budget.used,
    }
    rows = [fact for fact in facts(ExchangeLinkStatus(**known), now_ms) if fact.name != "agent"]
    for agent in reading.agents:
        status = ExchangeLinkStatus(
            **known,
            has_agent_key=True,
            agent=agent.address,
            agent_name=agent.name,
            agent_until=agent.valid_until_ms,
            agent_read_at=now_ms,
        )
        rows += [fact for fact in facts(status, now_ms) if fact.name == "agent"]
    if not reading.agents:
        rows.append(ExchangeFact("agent", "unknown", "the exchange lists no agent with a name; one without may exist"))
    return rows
