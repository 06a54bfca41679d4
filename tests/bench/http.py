"""HTTP: orders a second and their latency over 1, 16 and 64 connections: durable, in memory, and durable with 10,000
other accounts of five resting triggers each. Beside them, in turns, an echo of the same body, served and driven in the
same way: bare FastAPI where it is installed, or Starlette. And events a second over the cursor.

python -m tests.bench.http [--seconds 3] [--accounts 10000]     rate limits are off; one order is one accepted market
order in its own transaction
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bot.service.host import HostOptions, build, serve
from tests.bench import scale

CONNECTIONS = (1, 16, 64)
ROUNDS = 3


def _echo(port: int) -> None:
    import uvicorn

    uvicorn.run(_echo_app(), host="127.0.0.1", port=port, log_level="error", loop="uvloop", http="httptools")


def _echo_app() -> Any:
    """What answers with the body that it got."""
    try:
        from fastapi import FastAPI
    except ImportError:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def echo(request: Request) -> JSONResponse:
            return JSONResponse(await request.json())

        return Starlette(routes=[Route("/v1/orders", echo, methods=["POST"])])

    app = FastAPI()

    @app.post("/v1/orders")
    async def echo_body(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return app


def _options(db: str, port: int = 0) -> HostOptions:
    return HostOptions(
        port=port, db=db, clock="real", seed=1, markets=("BTC", "ETH", "SOL"), rate_limits=False, hold_prices=True
    )


def _service(port: int, db: str) -> None:
    serve(_options(db, port))


def _filled(db: str, accounts: int) -> None:
    """Leave a file with this many accounts."""

    async def fill_and_stop() -> None:
        service = build(_options(db))
        await service.start()
        await scale.fill(service.machine, accounts)
        await service.stop()

    asyncio.run(fill_and_stop())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _up(client: httpx.AsyncClient, path: str) -> None:
    for _ in range(400):
        try:
            await client.get(path)
        except httpx.TransportError:
            await asyncio.sleep(0.05)
        else:
            return
    raise SystemExit(f"{client.base_url} did not come up")


async def _drive(
    base: str, headers: dict[str, str], bodies: list[bytes], seconds: float, connections: int
) -> tuple[float, list[float]]:
    """(requests a second, latencies in ms)."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    host, port = base.removeprefix("http://").split(":")
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    requests = [
        f"POST /v1/orders HTTP/1.1\r\nHost: {host}:{port}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for body in bodies
    ]

    async def one() -> None:
        """The plainest client there is, so that the figure is the server's."""
        reader, writer = await asyncio.open_connection(host, int(port))
        n = 0
        while time.perf_counter() < end:
            started = time.perf_counter()
            writer.write(requests[n % len(requests)])
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r")[0])
            body = await reader.readexactly(length)
            taken.append((time.perf_counter() - started) * 1000)
            assert answer.startswith(b"HTTP/1.1 200"), body
            n += 1
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return len(taken) / (time.perf_counter() - started), taken


def _cpu_seconds(pid: int) -> float:
    """What a process has used so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _feed(base: str, headers: dict[str, str]) -> tuple[int, float]:
    """(events, seconds) of reading an account's whole feed through the cursor, in pages of 200."""
    async with httpx.AsyncClient(base_url=base, trust_env=False, headers=headers) as client:
        started = time.perf_counter()
        count, since = 0, ""
        while True:
            page = (await client.get("/v1/events", params={"limit": 200, **({"since": since} if since else {})})).json()
            if not page["events"]:
                return count, time.perf_counter() - started
            count += len(page["events"])
            since = page["lastEventId"]


def _say(name: str, connections: int, measured: Measured, floor: float) -> None:
    quantiles = statistics.quantiles(measured.late_ms, n=100)
    rate = statistics.median(measured.rates)
    print(
        f"{name:<22} {connections:3d} {rate:8.0f}/s {rate / floor * 100:6.0f} % {min(measured.cpu_us):7.0f} us"
        f" {quantiles[49]:8.2f} ms {quantiles[98]:8.2f} ms"
    )


@dataclass(slots=True)
class Measured:
    """What the rounds of one server over a number of connections gave."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)


async def main(seconds: float, accounts: int) -> None:
    crowded = f"of {accounts:,} accounts"
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        spawn = multiprocessing.get_context("spawn")
        filling = spawn.Process(target=_filled, args=(f"{folder}/crowded.db", accounts))
        filling.start()
        filling.join()
        files = {"durable": f"{folder}/sandbox.db", "in memory": ":memory:", crowded: f"{folder}/crowded.db"}
        ports = {name: _free_port() for name in ("echo", *files)}
        servers = {"echo": spawn.Process(target=_echo, args=(ports["echo"],), daemon=True)}
        for name, db in files.items():
            servers[name] = spawn.Process(target=_service, args=(ports[name], db), daemon=True)
        for server in servers.values():
            server.start()
        bodies = [json.dumps({"market": "BTC", "side": side, "size": "0.001"}).encode() for side in ("long", "short")]
        measured = {(name, connections): Measured() for connections in CONNECTIONS for name in servers}
        try:
            headers: dict[str, dict[str, str]] = {}
            bases = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            for name, base in bases.items():
                async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
                    await _up(client, "/docs")
                    key = "nobody's"
                    if name != "echo":
                        body = {"startingBalanceUsd": 100000}
                        key = (await client.post("/v1/sandbox/accounts", json=body)).json()["apiKey"]
                headers[name] = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            for _ in range(ROUNDS):
                for (name, connections), one in measured.items():
                    pid = servers[name].pid
                    assert pid is not None
                    before = _cpu_seconds(pid)
                    rate, taken = await _drive(bases[name], headers[name], bodies, seconds, connections)
                    one.rates.append(rate)
                    one.cpu_us.append((_cpu_seconds(pid) - before) / len(taken) * 1e6)
                    one.late_ms.extend(taken)
            feeds = {name: await _feed(bases[name], headers[name]) for name in files}
        finally:
            for server in servers.values():
                server.terminate()
                server.join(5)
    print(f"Market orders, {ROUNDS} rounds in turns. The echo is {type(_echo_app()).__name__}.")
    print(f"{'':<22} connections, a second, of the echo, processor time each, p50, p99")
    for (name, connections), one in measured.items():
        _say(name, connections, one, statistics.median(measured["echo", connections].rates))
    for name, (count, took) in feeds.items():
        print(f"events over the cursor, {name}: {count / took:7.0f}/s of {count:,} in pages of 200")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--accounts", type=int, default=10_000)
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.accounts))
