"""HTTP: orders a second and their latency, durable and in memory, with 1 and 16 connections, beside a bare Starlette echo of the same body that is
served and driven in the same way, in turns; and events a second over the cursor.

python -m tests.bench.http [--seconds 3]     rate limits are off; one order is one accepted market order in its own transaction
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
from pathlib import Path

import httpx

CONNECTIONS = 16
ROUNDS = 3


def _echo(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse(await request.json())

    app = Starlette(routes=[Route("/v1/orders", echo, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop="uvloop", http="httptools")


def _service(port: int, db: str) -> None:
    from bot.service.host import HostOptions, serve

    serve(HostOptions(port=port, db=db, clock="real", seed=1, markets=("BTC",), rate_limits=False))


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


def _say(name: str, rates: list[float], cpu_us: list[float], floor: float) -> None:
    rate = statistics.median(rates)
    print(f"{name:<26} {rate:7.0f}/s   {rate / floor * 100:4.0f} % of the echo   {min(cpu_us):5.0f} us of CPU each")


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        spawn = multiprocessing.get_context("spawn")
        names = "echo", "durable", "in memory"
        ports = [_free_port() for _ in names]
        servers = [
            spawn.Process(target=_echo, args=(ports[0],), daemon=True),
            spawn.Process(target=_service, args=(ports[1], f"{folder}/sandbox.db"), daemon=True),
            spawn.Process(target=_service, args=(ports[2], ":memory:"), daemon=True),
        ]
        for server in servers:
            server.start()
        bases = [f"http://127.0.0.1:{port}" for port in ports]
        bodies = [json.dumps({"market": "BTC", "side": side, "size": "0.001"}).encode() for side in ("long", "short")]
        rates: dict[str, list[float]] = {name: [] for name in names}
        cpu: dict[str, list[float]] = {name: [] for name in names}
        late: dict[tuple[str, int], list[float]] = {}
        try:
            headers = []
            for name, base in zip(names, bases, strict=True):
                async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
                    await _up(client, "/docs")
                    key = "nobody's"
                    if name != "echo":
                        body = {"startingBalanceUsd": 100000}
                        key = (await client.post("/v1/sandbox/accounts", json=body)).json()["apiKey"]
                headers.append({"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            for _ in range(ROUNDS):
                for name, base, head, server in zip(names, bases, headers, servers, strict=True):
                    assert server.pid is not None
                    before = _cpu_seconds(server.pid)
                    rate, taken = await _drive(base, head, bodies, seconds, CONNECTIONS)
                    rates[name].append(rate)
                    cpu[name].append((_cpu_seconds(server.pid) - before) / len(taken) * 1e6)
                    late.setdefault((name, CONNECTIONS), []).extend(taken)
            for name, base, head in zip(names, bases, headers, strict=True):
                _, late[name, 1] = await _drive(base, head, bodies, seconds, 1)
            feeds = [await _feed(base, head) for base, head in zip(bases[1:], headers[1:], strict=True)]
        finally:
            for server in servers:
                server.terminate()
                server.join(5)
    print(f"Orders over {CONNECTIONS} connections, the echo of the same body beside them, {ROUNDS} rounds in turns")
    for name in names:
        _say(name, rates[name], cpu[name], statistics.median(rates["echo"]))
    for (name, connections), taken in sorted(late.items(), key=lambda one: one[0][1]):
        quantiles = statistics.quantiles(taken, n=100)
        print(f"{name:<10} {connections:2d} connections: p50 {quantiles[49]:6.2f} ms   p99 {quantiles[98]:6.2f} ms")
    for name, (count, took) in zip(names[1:], feeds, strict=True):
        print(f"events over the cursor, {name}: {count / took:7.0f}/s of {count:,} in pages of 200")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    asyncio.run(main(parser.parse_args().seconds))
