"""What a service tells of its account at an exchange: the agent and its expiry, clock, budget and actions in doubt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.cli.app import call
from bot.clock import DAY_MS, SystemClock
from bot.testing.hyperliquid import LocalExchange
from bot.wire.exchange_facts import facts
from bot.wire.market import StatusResult
from tests.exchanges.agents import AGENT, approve
from tests.service.exchange_accounts.followers import ADDRESS, FUNDED, options_of, running, until
from tests.service.exchange_accounts.traders import can_send, trading_options
from tests.service.exchange_accounts.virtual_time import in_virtual_time


async def told(service: Any) -> StatusResult:
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return StatusResult.model_validate((await http.get("/v1/system/status")).json())


@FUNDED
async def test_the_expiry_of_the_agent_is_shown_and_warned_before_it_ends(
    hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    until_ms = SystemClock().now_ms() + 10 * DAY_MS
    await asyncio.to_thread(approve, hyperliquid, name=f"bot valid_until {until_ms}")
    async with running(trading_options(hyperliquid, tmp_path)) as service:
        follower = service.follower
        await until(lambda: can_send(service) and bool(follower and follower.health and follower.health.agent))
        answer = await told(service)
        exchange = answer.exchange
        assert exchange is not None
        assert (exchange.agent, exchange.agent_name, exchange.agent_until) == (AGENT, "bot", until_ms)
        assert exchange.actions_left is not None
        assert exchange.actions_undecided == 0
        levels = {fact.name: fact.level for fact in facts(exchange, answer.server_time or 0)}
        well = dict.fromkeys(("link", "clock", "budget", "doubt"), "ok")
        assert levels == well | {"agent": "warn", "audit": "unknown"}
    where = ["exchange", "status", "--url", hyperliquid.base_url, "--address", ADDRESS]
    assert await asyncio.to_thread(call, where) == 0
    out = capsys.readouterr().out
    assert f"warn    agent: 'bot' ({AGENT}) expires on " in out
    assert "ok      clock: " in out
    assert "unknown audit: " in out


@FUNDED
@in_virtual_time
async def test_what_nobody_has_told_yet_is_not_known(hyperliquid: LocalExchange, tmp_path: Path) -> None:
    hyperliquid.close()
    async with running(options_of(hyperliquid, tmp_path / "a.db")) as service:
        await until(lambda: bool(service.follower and service.follower.trouble))
        answer = await told(service)
        assert answer.exchange is not None
        shown = {fact.name: (fact.level, fact.text) for fact in facts(answer.exchange, answer.server_time or 0)}
        assert shown["agent"] == ("ok", "no key: the account is watched only")
        assert shown["link"][0] == "fail"
        assert {shown[name][0] for name in ("clock", "budget", "doubt", "audit")} == {"unknown"}
