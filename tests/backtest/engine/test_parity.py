"""Local = ASGI = HTTP: the same backtest on the operations, through the client in process, and over a socket, has
one digest of events.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles, load
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.driver import BacktestSession
from bot.backtest.engine.memory_journal import MemoryJournal
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.timeline import series_of, timeline_of
from bot.backtest.results.trade_ledger import digest_of
from bot.client import Client
from bot.runtime.passes.ports import Calm
from bot.service.host import HostOptions, Service, build
from bot.service.http.server import free_port
from bot.service.operations.executor import Context
from bot.strategy import Bar, Bracket, Intent, Open, View
from bot.venue.model.commands import SetRules
from bot.venue.model.state import Rules
from bot.wire.requests import KillRequest
from tests.backtest.builders import MINUTE_MS, Script, busy, placing, settings

CONTROL = {"Authorization": "Bearer bbc_parity"}
# candles of a recorded file that are past when a sandbox starts
HISTORY = 200
# a quarter of the switch's time
BEAT_MS = 6 * 3_600_000
NEVER = Calm(float("inf"), float("-inf"), 0)
GUARDIANS = [{"type": "account_drawdown", "max_loss_pct_from_day_start": 0.5, "action": "block_opens"}]


class Remote:
    """An exchange behind a wire: a sandbox with a manual clock, moved by its control."""

    def __init__(
        self,
        client: Client,
        control: httpx.AsyncClient,
        wait: Any,
        account: Mapping[str, Any],
        readers: list[CandleReader],
    ) -> None:
        self.client = client
        self.control = control
        self.wait = wait
        self.account = account
        self.readers = readers
        self.count = 0
        self._beaten_ms = 0

    def band(self, coin: str) -> Calm:
        return NEVER

    def bands(self) -> Mapping[str, Calm]:
        return {reader.coin: NEVER for reader in self.readers}

    def skip(self, reader: CandleReader, last: int) -> None:
        self.advance(reader.ts[last] + reader.step_ms - 1)

    def pass_bar(self, reader: CandleReader, row: int) -> None:
        self.advance(reader.ts[row] + reader.step_ms - 1)

    def advance(self, to_ms: int) -> None:
        answer = self.wait(self.control.post("/sandbox/v1/clock/advance", json={"toMs": to_ms}, headers=CONTROL))
        assert answer.status_code == 200, answer.text
        for reader in self.readers:
            while reader.at < reader.end and reader.ts[reader.at] + reader.step_ms - 1 <= to_ms:
                reader.at += 1
        # Unknown before the request.
        self.count += 1
        if to_ms - self._beaten_ms >= BEAT_MS:
            self._beaten_ms = to_ms
            self.wait(self.client.heartbeat())

    def is_calm(self, to_ms: int, bands: Mapping[str, Calm]) -> bool:
        return False

    def skip_to(self, to_ms: int) -> None:
        raise AssertionError("nothing is calm over a wire")

    def beat(self, ahead_ms: int = 0) -> None:
        """Over a wire each heartbeat is sent at its time."""


def minutes_of(shared: Path, count: int) -> Candles:
    (whole,) = load([shared / "data/crypto/binance_BTCUSDT_1m_202505.csv.gz"], market="BTC")
    return whole.pick(range(count + HISTORY))


def quiet_first(view: View, bar: Bar) -> list[Intent]:
    """Like `busy`, without the first hour: a sandbox applies the first open before the first request, a backtest
    does not.
    """
    if view.state.setdefault("first", bar.at_ms) > bar.at_ms - 60 * MINUTE_MS:
        return []
    return list(busy(view, bar)) or (
        [Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=1))]
        if bar.at_ms % (7_200_000) == 0 and not view.position(bar.market)
        else []
    )


def scaled_out(view: View, bar: Bar) -> list[Intent]:
    """After the first hour: an entry with three targets and a stop at the entry, whenever it is flat; the sides take
    turns.
    """
    started_ms = view.state.setdefault("first", bar.at_ms)
    if bar.at_ms <= started_ms + 60 * MINUTE_MS or view.position(bar.market):
        return []
    bracket = Bracket(stop_pct=0.2, targets=[(0.4, "1R"), (0.3, "2R"), (0.3, "3R")], break_even_at="1R")
    return [Open(bar.market, "long" if bar.at_ms // MINUTE_MS % 2 else "short", usd=300, bracket=bracket)]


class Killer:
    """The script, and the kill switch is operated after three quarters of the bars."""

    def __init__(self, candles: Candles, script: Script) -> None:
        self._script = script
        self.at_ms = candles.at_ms[HISTORY + (len(candles) - HISTORY) * 3 // 4]
        self.kill: Callable[[], object] = lambda: None

    def script(self, view: View, bar: Bar) -> list[Intent]:
        if bar.at_ms == self.at_ms:
            self.kill()
        return list(self._script(view, bar))


def service_of(path: Path, port: int) -> Service:
    options = HostOptions(port=port, clock="manual", data=(("BTC", path),), markets=("BTC",), rate_limits=False)
    service = build(options, control_token="bbc_parity")
    service.machine.run(SetRules(Rules(fill_at="next", paths="adaptive")))
    return service


def written(candles: Candles, folder: Path) -> Path:
    path = folder / "BTC_1m.csv"
    rows = zip(candles.at_ms, candles.open, candles.high, candles.low, candles.close, candles.volume, strict=True)
    path.write_text(
        "ts,open,high,low,close,volume\n" + "".join(f"{ts},{o},{h},{low},{c},{v:.8f}\n" for ts, o, h, low, c, v in rows)
    )
    return path


def made(**more: Any) -> Any:
    return settings(dead_man={"heartbeat_seconds": 86_400, "on_miss": "flatten"}, guardians=GUARDIANS, **more)


def over_a_wire(
    candles: Candles,
    *,
    base_url: str,
    transport: Any,
    wait: Any,
    script: Script = quiet_first,
    more: Mapping[str, Any] | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """The session through the client; the events as the wire has them, and the account's address."""
    config = made(**more or {})
    killer = Killer(candles, script)
    place = placing(killer.script, counts=False)
    start_ms = candles.at_ms[HISTORY]
    options = SessionOptions(start_ms=start_ms, path="adaptive")
    control = httpx.AsyncClient(transport=transport, base_url=base_url)

    async def opened() -> dict[str, Any]:
        return (await control.post("/v1/sandbox/accounts", json={"name": "session"})).json()

    account = wait(opened())
    client = Client(base_url, account["apiKey"], transport=transport)
    timeline = timeline_of([candles], series_of(place(config)), options)
    exchange = Remote(client, control, wait, account, timeline.readers)
    wait(client.account())
    session = BacktestSession(
        config,
        timeline,
        options,
        exchange=exchange,
        port=client,
        journal=MemoryJournal(address=account["address"]),
        place=place,
        wait=wait,
    )

    owner = {"Authorization": f"Bearer {account['apiKey']}", "Idempotency-Key": "k"}
    killer.kill = lambda: wait(
        control.post("/v1/account/kill", json={"flatten": True}, headers=owner)
    ).raise_for_status()
    session.run()

    async def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        since = ""
        while page := (
            await control.get(f"/v1/events?limit=200{since}", headers={"Authorization": f"Bearer {account['apiKey']}"})
        ).json()["events"]:
            found += page
            since = f"&since={page[-1]['id']}"
        await client.aclose()
        await control.aclose()
        return found

    return wait(events()), account["address"]


@contextmanager
def served(service: Service, listening: socket.socket) -> Iterator[None]:
    """The service on a real socket, in a thread of its own."""
    server = uvicorn.Server(uvicorn.Config(service.app, log_level="error", lifespan="off", access_log=False))
    started = threading.Event()

    async def main() -> None:
        await service.start()
        started.set()
        await server.serve(sockets=[listening])
        await service.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait()
    while not server.started:
        pass
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def locally(
    candles: Candles,
    address: str,
    *,
    script: Script = quiet_first,
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[str, int, list[dict[str, Any]]]:
    """Digest, fills and events of the session in this process."""
    asked = SessionOptions(start_ms=candles.at_ms[HISTORY], path="adaptive", **options)
    killer = Killer(candles, script)
    test = Backtest(made(**more or {}), [candles], asked, place=placing(killer.script, counts=False), address=address)
    killer.kill = lambda: test.exchange.operations.kill(
        test.exchange.principal, KillRequest(flatten=True), Context("req_000000000000", idempotency_key="k")
    )
    lines = io.StringIO(newline="")
    result = test.run(events=lines)
    return result.digest, result.trade_ledger.fills, [json.loads(line) for line in lines.getvalue().splitlines()]


def shown(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "requestId"}


@pytest.mark.soak(worlds=1, full=29)
def test_a_backtest_on_the_operations_and_one_through_the_client_have_equal_digests(
    shared: Path, tmp_path: Path, worlds: int
):
    days = min(worlds, 29)
    candles = minutes_of(shared, days * 1_440)
    service = service_of(written(candles, tmp_path), 0)
    with asyncio.Runner() as runner:
        runner.run(service.start())
        transport = httpx.ASGITransport(service.app)
        events, address = over_a_wire(candles, base_url="http://127.0.0.1", transport=transport, wait=runner.run)
        runner.run(service.stop())
    digest, fills, mine = locally(candles, address, skip=False)
    assert [shown(event) for event in events] == mine
    assert digest_of(events) == digest
    assert fills > 50
    happened = {(event["type"], event["data"].get("guardianType")) for event in events}
    assert {("funding", None), ("trigger", None), ("guardian", "kill_switch")} <= happened


def test_a_backtest_with_targets_has_one_digest_in_process_and_through_the_client(shared: Path, tmp_path: Path):
    candles = minutes_of(shared, 1_440)
    service = service_of(written(candles, tmp_path), 0)
    with asyncio.Runner() as runner:
        runner.run(service.start())
        events, address = over_a_wire(
            candles,
            base_url="http://127.0.0.1",
            transport=httpx.ASGITransport(service.app),
            wait=runner.run,
            script=scaled_out,
        )
        runner.run(service.stop())
    digest, _, mine = locally(candles, address, skip=False, script=scaled_out)
    assert [shown(event) for event in events] == mine
    assert digest_of(events) == digest
    exits = {event["data"]["kind"] for event in mine if event["subtype"] == "exit"}
    assert {"limit", "stop_loss", "guardian"} <= exits


def test_protections_refuse_the_same_entries_over_a_socket_and_in_process(shared: Path, tmp_path: Path):
    candles = minutes_of(shared, 360)
    guard = {"stops": 2, "within": "2h", "rest": "30m"}
    fall = {"usd": 0.5, "within": "3h", "rest": "20m"}
    more = {"protections": {"cooldown": "5m", "stop_guard": guard, "max_entries": 12, "max_drawdown": fall}}
    listening = free_port()
    port = listening.getsockname()[1]
    with listening, served(service_of(written(candles, tmp_path), port), listening), asyncio.Runner() as runner:
        transport, url = httpx.AsyncHTTPTransport(), f"http://127.0.0.1:{port}"
        events, address = over_a_wire(candles, base_url=url, transport=transport, wait=runner.run, more=more)
    digest, fills, mine = locally(candles, address, skip=False, more=more)
    assert [shown(event) for event in events] == mine
    assert digest_of(events) == digest
    assert 0 < fills < locally(candles, address, skip=False)[1], "the protections have refused entries"


def test_the_same_backtest_over_a_socket_has_the_same_digest(shared: Path, tmp_path: Path):
    candles = minutes_of(shared, 240)
    # The port is held from here on, because a free port that is only looked up may be taken meanwhile.
    listening = free_port()
    port = listening.getsockname()[1]
    service = service_of(written(candles, tmp_path), port)
    with listening, served(service, listening), asyncio.Runner() as runner:
        transport = httpx.AsyncHTTPTransport()
        events, address = over_a_wire(
            candles, base_url=f"http://127.0.0.1:{port}", transport=transport, wait=runner.run
        )
    digest, fills, mine = locally(candles, address, skip=False)
    assert [shown(event) for event in events] == mine
    assert digest_of(events) == digest
    assert fills
