"""A request without a reply delays only its own market, and the state shows it.

A real service runs behind a proxy that swallows orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from pydantic import SecretStr

from bot.config import load
from bot.runtime import daemon, supervisor
from bot.runtime.control_plane.excursion_watch import ExcursionWatch
from bot.runtime.run_request import RunRequest
from bot.runtime.shutdown import DaemonEnd
from tests.runtime.stalling_proxy import Halfway
from tests.service import serving

MARKETS = ("BTC", "ETH", "SOL")
PATIENCE_S = 60.0
STRATEGY = '''\
"""In and out of its market, bar by bar."""

from bot import Bracket, Close, Open, Strategy


class InTurn(Strategy):
    def on_bar(self, view, bar):
        if view.position(bar.market):
            yield Close(bar.market)
        else:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=20))
'''
CONFIG = """\
account: {{base_url: "{base_url}", api_key: "${{env:KEY}}"}}
dead_man: {{heartbeat_seconds: 1200, on_miss: flatten}}
safety: {{on_exit: leave}}
state_dir: {folder}/state
strategies_dir: {folder}/strategies
strategies:
{lines}
orders: {{path: {path}}}
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GRACE_S", "HOOKS_S", "STOP_S"):
        monkeypatch.setattr(supervisor, name, PATIENCE_S)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def fast() -> Iterator[serving.Served]:
    """A service at 60 times real speed."""
    served = serving.start(
        {"BOT_CONTROL_TOKEN": "bbc_test"},
        port=0,
        clock="60x",
        start_ms=1_795_132_800_000,
        markets=MARKETS,
        rate_limits=False,
    )
    yield served
    serving.end(served)


class Trading:
    """A daemon that trades three markets, and the proxy between it and its service."""

    def __init__(self, folder: Path, halfway: Halfway) -> None:
        self.folder = folder
        self.halfway = halfway
        self.stop = asyncio.Event()
        self.task: asyncio.Task[DaemonEnd] | None = None

    def swallow(self, *markets: str) -> None:
        """From now on the proxy keeps every opening order in that market and sends no reply."""
        names = [f'"market":"{market}"'.encode() for market in markets]
        self.halfway.hung.clear()
        self.halfway.swallows = lambda request: (
            request.startswith(b"POST /v1/orders ") and any(name in request.replace(b": ", b":") for name in names)
        )

    def closes(self) -> dict[str, int]:
        """Accepted closes by market."""
        with contextlib.closing(sqlite3.connect(self.folder / "state" / "journal.db")) as db:
            rows = db.execute(
                "SELECT market, count(*) FROM intents WHERE action='close' AND state='accepted' GROUP BY market"
            ).fetchall()
        return dict.fromkeys(MARKETS, 0) | dict(rows)

    async def status(self) -> dict[str, Any]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.folder / "state" / "control.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://daemon", timeout=30) as http:
            told: dict[str, Any] = (await http.get("/status")).json()
        return told


@pytest.fixture
async def trading(tmp_path: Path, fast: serving.Served) -> AsyncIterator[Callable[..., Awaitable[Trading]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def begin(path: str = "plan", *, is_one: bool = False) -> Trading:
            async with httpx.AsyncClient(base_url=fast.base_url, trust_env=False) as http:
                account = (await http.post("/v1/sandbox/accounts", json={"name": "hung"})).json()
            halfway = await stack.enter_async_context(Halfway(fast.port))
            one = Trading(tmp_path, halfway)
            (tmp_path / "strategies").mkdir()
            (tmp_path / "strategies" / "in_turn.py").write_text(STRATEGY)
            of = {"all": ", ".join(MARKETS)} if is_one else {market.lower(): market for market in MARKETS}
            lines = "\n".join(
                f'  - {{name: {name}, use: "in_turn:InTurn", markets: [{markets}], interval: 1m, budget_usd: 1000}}'
                for name, markets in of.items()
            )
            config = tmp_path / "bot.yaml"
            config.write_text(CONFIG.format(base_url=halfway.base_url, folder=tmp_path, lines=lines, path=path))
            ready = asyncio.Event()
            request = RunRequest(
                settings=load(config, {"KEY": account["apiKey"]}),
                base_url=halfway.base_url,
                api_key=SecretStr(account["apiKey"]),
                stop=one.stop,
                on_ready=ready.set,
            )
            one.task = asyncio.create_task(daemon.run(request))
            stack.push_async_callback(ended, one)
            await asyncio.wait_for(ready.wait(), PATIENCE_S)
            return one

        yield begin


async def ended(one: Trading) -> DaemonEnd:
    assert one.task is not None
    one.stop.set()
    return await asyncio.wait_for(asyncio.shield(one.task), PATIENCE_S)


async def until(what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = holds()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


@pytest.mark.parametrize("is_one", [False, True])
async def test_hung_orders_of_one_market_delay_no_other_and_the_state_shows_them(
    trading: Callable[..., Awaitable[Trading]], is_one: bool
) -> None:
    """Three strategies, or one that trades all three markets: the other markets trade while the order hangs, for 15
    s.
    """
    one = await trading("direct", is_one=is_one)
    await until("all of them trade", lambda: all(one.closes().values()))
    assert (await one.status())["state"] == "RUNNING"
    one.swallow("BTC")
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    before = one.closes()

    async def others_trade_on() -> bool:
        now = one.closes()
        return all(now[market] >= before[market] + 2 for market in ("ETH", "SOL"))

    await until("the others trade on", others_trade_on)
    assert one.halfway.swallowed == 1, "the order has been hanging for all that time"

    async def is_told() -> bool:
        told = await one.status()
        return (told["state"], told["is_safe"], list(told["degraded"])) == ("DEGRADED", False, ["orders:BTC"])

    await until("the state says it", is_told)
    one.swallow()
    one.halfway.release()

    async def trades_again() -> bool:
        return (await one.status())["state"] == "RUNNING" and one.closes()["BTC"] > before["BTC"]

    await until("it trades there again", trades_again)


async def test_a_daemon_whose_orders_all_hang_is_degraded_and_not_safe(
    trading: Callable[..., Awaitable[Trading]],
) -> None:
    one = await trading("plan")
    await until("all of them trade", lambda: all(one.closes().values()))
    one.swallow(*MARKETS)

    async def is_told() -> bool:
        told = await one.status()
        return (told["state"], told["is_safe"], len(told["degraded"])) == ("DEGRADED", False, len(MARKETS))

    await until("the state says it", is_told)
    passes = (await one.status())["passes"]

    async def goes_on() -> bool:
        return (await one.status())["passes"] >= passes + 3

    await until("passes go on, and with them beats, exits and stops", goes_on)


async def test_hung_candles_of_one_market_delay_no_other(
    trading: Callable[..., Awaitable[Trading]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(_watch: ExcursionWatch) -> None:
        """It would ask for the same candles, and so hang too."""

    monkeypatch.setattr(ExcursionWatch, "look", look)
    one = await trading("direct")
    await until("all of them trade", lambda: all(one.closes().values()))
    one.halfway.hangs = lambda path: path == "/v1/markets/BTC/candles"
    await asyncio.wait_for(one.halfway.hung.wait(), PATIENCE_S)
    before = one.closes()

    async def others_trade_on() -> bool:
        now = one.closes()
        return all(now[market] >= before[market] + 2 for market in ("ETH", "SOL"))

    await until("the others trade on", others_trade_on)
    assert one.halfway.swallowed == 1, "the question has been hanging for all that time"
