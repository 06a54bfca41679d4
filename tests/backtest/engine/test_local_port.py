"""The local port and the client agree: every event, plan and order of a session, and every refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from bot.backtest.engine.local_port import LocalPort, drive
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import series_of, timeline_of
from bot.backtest.results.event_lines import line_of, line_of_body
from bot.errors import ApiError
from bot.model.events import FillEvent, FundingPaid, GuardianMoved, OrderChanged, Triggered
from bot.service.bodies import event_bodies
from bot.wire import BracketRequest, CloseRequest, Event, LegRequest, OrderRequest, PlanResult
from bot.wire.events import model_event
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, placing, ran, settings


@pytest.fixture
def port() -> LocalPort:
    candles = [minutes(30)]
    timeline = timeline_of(candles, series_of(placing()(settings())), SessionOptions())
    exchange = SimulatedExchange(timeline.readers, SessionOptions(), start_ms=START_MS)
    return LocalPort(exchange, timeline.series_readers)


def test_a_line_of_any_event_equals_the_wire_form_as_json():
    """Orders and fills are written as text: here of every shape that their fields allow."""
    chance = Random(3)
    values: dict[str, Callable[[], Any]] = {
        "int": lambda: chance.choice((0, 1, 150_000_000, -150_000_001, chance.randrange(10**22))),
        "str": lambda: chance.choice(("BTC", "event:RATE-CUT", 'a "quoted" \\ one', "\u20ac\n", "")),
        "bool": lambda: chance.random() < 0.5,
        "tuple[str, ...]": lambda: ("trd_1", '"'),
    }
    for kind in (FillEvent, OrderChanged, Triggered, FundingPaid, GuardianMoved):
        for _ in range(200):
            types = {name: of.__forward_arg__ for name, of in kind.__annotations__.items()}
            given = {
                name: None if "None" in type_ and chance.random() < 0.4 else values[type_.removesuffix(" | None")]()
                for name, type_ in types.items()
            } | {"seq": chance.randrange(10**9), "ts": chance.randrange(10**13)}
            event = kind(**given)
            body = event_bodies.event(event)
            body.pop("requestId", None)
            line = line_of(event)
            assert line == json.dumps(body, separators=(",", ":")) + "\n"
            assert line == line_of_body(event_bodies.event(event))


def test_the_daemon_reads_every_event_of_a_busy_backtest_as_the_venue_made_it():
    """The tuple of the venue, and the one that a client makes of the page, give the daemon the same values."""
    drawdown = {"type": "account_drawdown", "max_loss_pct_from_day_start": 1, "action": "flatten"}
    one = ran([minutes(1_500, seed=2)], made=settings(guardians=[drawdown]))
    buffer = one.test.exchange.event_buffer
    before = f"evt_{buffer.first - 1:012d}"
    page = drive(LocalPort(one.test.exchange, ()).events(before, limit=len(buffer.events))).events
    kinds = set()
    for happened, event in zip(buffer.events, page, strict=True):
        assert event == Event.model_validate_json(json.dumps(event_bodies.event(happened)))
        # A client knows neither the account nor the number; the daemon reads no rate.
        unread = {"account": "", "seq": -1} | ({"rate": 0} if isinstance(happened, FundingPaid) else {})
        assert model_event(event) == happened._replace(**unread)
        kinds.add((event.type, event.subtype))
    assert {
        ("fill", "entry"),
        ("fill", "exit"),
        ("order", "armed"),
        ("order", "canceled"),
        ("trigger", "stop_loss"),
        ("funding", "payment"),
    } <= kinds


def order(**more: Any) -> OrderRequest:
    bracket = BracketRequest(stop_loss=LegRequest(pct=Decimal(1)), take_profit=LegRequest(r=Decimal(2)))
    return OrderRequest(
        **({"market": "BTC", "side": "long", "usd_amount": Decimal(100), "bracket": bracket, "source": "agent"} | more)
    )


def test_a_plan_and_its_order_equal_the_answers_of_the_operations(port: LocalPort):
    exchange = port.exchange
    result = drive(port.plan(order(), key="a"))
    plan = exchange.operations.place(exchange.principal, order(dry_run=True), _context("plan"))
    wire = PlanResult.model_validate_json(plan.body)
    assert result.model_copy(update={"confirm_token": wire.confirm_token}) == wire
    placed = drive(port.confirm(result.confirm_token, key="a"))
    assert placed.trade.id == exchange.account.trades[-1].id


@pytest.mark.parametrize("what", ["too large", "no position", "used token", "late", "unknown token"])
def test_a_refusal_is_the_exception_that_a_client_raises(port: LocalPort, what: str):
    """The same refusal in both ways: the operation's error object as the client reads it, and the port's refusal."""
    import httpx

    from bot.client import Client
    from bot.service.host import HostOptions, build

    asks = {
        "too large": lambda at: at.place(order(usd_amount=Decimal(900_000)), key="x"),
        "no position": lambda at: at.close("BTC", CloseRequest(), key="x"),
        "used token": lambda at: _twice(at),
        "late": lambda at: at.place(order(), key="x", expires_at_ms=START_MS - MINUTE_MS),
        "unknown token": lambda at: at.confirm("cft_0000000000000000", key="x"),
    }

    async def remotely() -> ApiError:
        service = build(
            HostOptions(clock="manual", markets=("BTC",), start_ms=START_MS, hold_prices=True, rate_limits=False),
            control_token="bbc_x",
        )
        await service.start()
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            account = (await http.post("/v1/sandbox/accounts", json={"name": "a"})).json()
        async with Client("http://127.0.0.1", account["apiKey"], transport=transport) as client:
            with pytest.raises(ApiError) as raised:
                await asks[what](client)
        await service.stop()
        return raised.value

    theirs = asyncio.run(remotely())
    with pytest.raises(ApiError) as raised:
        drive(asks[what](port))
    mine = raised.value
    assert (type(mine), mine.code, mine.order_submitted, mine.retryable, mine.status) == (
        type(theirs),
        theirs.code,
        theirs.order_submitted,
        theirs.retryable,
        theirs.status,
    )
    assert (mine.details or {}).get("reason") == (theirs.details or {}).get("reason")


async def _twice(at: Any) -> None:
    planned = await at.plan(order(), key="k")
    await at.confirm(planned.confirm_token, key="k")
    await at.confirm(planned.confirm_token, key="other")


def _context(name: str) -> Any:
    from bot.service.operations.executor import Context

    return Context(f"req_{name}")
