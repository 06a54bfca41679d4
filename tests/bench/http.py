"""HTTP: order latency and orders a second with 16 connections, beside a bare FastAPI echo served and driven in the same way, in turns.

python -m tests.bench.http [--seconds 4]     rate limits are off; one order is one accepted market order in its own transaction
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
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
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/v1/orders")
    async def echo(body: dict[str, str]) -> dict[str, str]:
        return body

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", loop="uvloop", http="httptools")


def _service(port: int, folder: str) -> None:
    from bot.service.host import HostOptions, serve

    serve(
        HostOptions(
            port=port, db=Path(folder) / "sandbox.db", clock="real", seed=1, markets=("BTC",), rate_limits=False
        )
    )


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


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        ports = _free_port(), _free_port()
        servers = [
            spawn.Process(target=_service, args=(ports[0], folder), daemon=True),
            spawn.Process(target=_echo, args=(ports[1],), daemon=True),
        ]
        for server in servers:
            server.start()
        service, echo = (f"http://127.0.0.1:{port}" for port in ports)
        try:
            async with httpx.AsyncClient(base_url=service, trust_env=False) as client:
                await _up(client, "/v1/system/status")
                account = (await client.post("/v1/sandbox/accounts", json={"startingBalanceUsd": 100000})).json()
            async with httpx.AsyncClient(base_url=echo, trust_env=False) as client:
                await _up(client, "/docs")
            headers = {"Authorization": f"Bearer {account['apiKey']}", "Content-Type": "application/json"}
            bodies = [
                json.dumps({"market": "BTC", "side": side, "size": "0.001"}).encode() for side in ("long", "short")
            ]
            rates: dict[str, list[float]] = {"service": [], "echo": []}
            for _ in range(ROUNDS):
                for name, base in (("service", service), ("echo", echo)):
                    rate, _taken = await _drive(base, headers, bodies, seconds, CONNECTIONS)
                    rates[name].append(rate)
            _, single = await _drive(service, headers, bodies, seconds, 1)
            _, bare = await _drive(echo, headers, bodies, seconds, 1)
        finally:
            for server in servers:
                server.terminate()
                server.join(5)
    ours, floor = statistics.median(rates["service"]), statistics.median(rates["echo"])
    print(
        f"orders, {CONNECTIONS} connections: {ours:7.0f}/s     bare FastAPI echo: {floor:7.0f}/s     ratio {floor / ours:.2f}"
    )
    for name, taken in (("order, one connection", single), ("echo,  one connection", bare)):
        quantiles = statistics.quantiles(taken, n=100)
        print(f"{name}: p50 {quantiles[49]:6.2f} ms   p99 {quantiles[98]:6.2f} ms   ({len(taken)} requests)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    asyncio.run(main(parser.parse_args().seconds))
