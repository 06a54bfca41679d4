"""The audit of a service: a difference is named, told, and blocks entries of its market until a person corrects it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bot.errors import Exit
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import ReportedExecution
from bot.venue.storage import pages
from bot.wire.exchange_facts import facts
from bot.wire.market import StatusResult
from tests.service.exchange_accounts.followers import (
    FUNDED,
    Hand,
    account_of,
    cash_of,
    is_in_step,
    options_of,
    running,
    size_of,
    until,
)
from tests.service.exchange_accounts.traders import Trader, owner


def corrected(db: Path, answer: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    command = [sys.executable, "-m", "bot", "exchange", "check", "--db", str(db), "--accept"]
    done = subprocess.run(command, input=answer, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@asynccontextmanager
async def following(exchange: LocalExchange, db: Path, hand: Hand) -> AsyncIterator[Trader]:
    async with running(options_of(exchange, db)) as service:
        await until(lambda: is_in_step(service))
        async with owner(service) as http:
            yield Trader(service, http, hand)


async def dry_run(trader: Trader, coin: str) -> tuple[int, dict[str, str]]:
    body = {"market": coin, "type": "market", "side": "long", "usdAmount": 50, "dryRun": True}
    answer = await trader.http.post("/v1/orders", json=body, headers={"Idempotency-Key": f"dry-{coin}"})
    return answer.status_code, answer.json().get("error", {}).get("details", {})


async def audit_fact(trader: Trader) -> tuple[str, str]:
    answer = StatusResult.model_validate((await trader.http.get("/v1/system/status")).json())
    assert answer.exchange is not None
    fact = next(fact for fact in facts(answer.exchange, answer.server_time or 0) if fact.name == "audit")
    return fact.level, fact.line


@FUNDED
async def test_a_difference_blocks_its_market_until_the_books_are_corrected(
    hyperliquid: LocalExchange, tmp_path: Path
) -> None:
    hand, db = await asyncio.to_thread(Hand, hyperliquid), tmp_path / "a.db"
    async with following(hyperliquid, db, hand) as trader:
        service = trader.service
        assert service.auditor is not None
        assert await service.auditor.audit()
        assert (await audit_fact(trader))[0] == "ok"
        await asyncio.to_thread(hand.trade, 0.02)
        await until(lambda: size_of(service) == 2 * E8 // 100)
        assert await dry_run(trader, "BTC") == (200, {})

        # A fill that the exchange does not know.
        account = account_of(service)
        assert account.exchange is not None
        at_ms = max(account.exchange.newest.values()) + 1
        before = size_of(service)
        wrong = ReportedExecution("BTC", at_ms, 1, "1", None, 1, E8 // 1000, 100_000 * E8, 0, before, False)
        service.machine.run(c.BookExecution(account.id, wrong))
        assert await service.auditor.audit()
        level, line = await audit_fact(trader)
        assert level == "fail"
        assert "entries are refused in BTC" in line
        assert await dry_run(trader, "BTC") == (503, {"reason": "audit"})
        assert (await dry_run(trader, "ETH"))[0] == 200
        told = [event for event in pages.after(account, 0) if getattr(event, "subtype", "") == "audit"]
        assert [getattr(event, "state", "") for event in told] == ["differs"]
        assert "BTC" in (getattr(told[0], "reason", "") or "")
        code, text = await asyncio.to_thread(corrected, db, "y\n")
        assert (code, "stop that service" in text) == (Exit.ERROR, True), text

    code, text = await asyncio.to_thread(corrected, db, "n\n")
    assert (code, "nothing was changed" in text) == (Exit.ERROR, True), text
    code, text = await asyncio.to_thread(corrected, db, "y\n")
    assert (code, "corrected: start the service" in text) == (Exit.DONE, True), text
    code, text = await asyncio.to_thread(corrected, db, "")
    assert (code, "there is nothing to correct" in text) == (Exit.DONE, True), text

    async with following(hyperliquid, db, hand) as trader:
        service = trader.service
        assert service.auditor is not None
        assert await service.auditor.audit()
        assert (await audit_fact(trader))[0] == "ok"
        assert (await dry_run(trader, "BTC"))[0] == 200
        assert cash_of(service) == await asyncio.to_thread(hand.raw)
        await asyncio.to_thread(hand.trade, -0.02)
        await until(lambda: size_of(service) == 0)
