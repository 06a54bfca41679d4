"""Speed and memory of the local exchange: requests for each second of its processor time, and a day with a trading bot.

Run: python -m tests.bench.exchange
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from eth_account import Account
from hyperliquid.utils import signing

from bot.clock import HOUR_MS, monotonic_ns
from tests.local_exchange.exchanges import ANN, BTC, Venue, limit

WALLET = Account.from_key("0x" + "01" * 32)
REQUESTS = 4_000
CONNECTIONS = 16
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def signed_orders(first: int) -> list[bytes]:
    """Orders that rest, and their cancels, signed beforehand."""
    bodies = []
    for number in range(REQUESTS):
        px = str(90_000 - number % 500)
        action = {"type": "order", "orders": [limit(BTC, "B", "0.001", px, "Ioc")], "grouping": "na"}
        nonce = first + number
        signature = signing.sign_l1_action(WALLET, action, None, nonce, None, False)
        bodies.append(json.dumps({"action": action, "nonce": nonce, "signature": signature}).encode())
    return bodies


async def post_all(url: str, bodies: list[bytes]) -> list[int]:
    waiting = list(reversed(bodies))
    codes: list[int] = []

    async def work(http: httpx.AsyncClient) -> None:
        while waiting:
            answer = await http.post(url, content=waiting.pop(), headers={"Content-Type": "application/json"})
            codes.append(answer.status_code)

    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        await asyncio.gather(*(work(http) for _ in range(CONNECTIONS)))
    return codes


def speed(name: str, pid: int, url: str, bodies: list[bytes]) -> None:
    before, begun = cpu_seconds(pid), monotonic_ns()
    codes = asyncio.run(post_all(url, bodies))
    spent, real = cpu_seconds(pid) - before, (monotonic_ns() - begun) / 1e9
    assert set(codes) == {200}, set(codes)
    each, beside = len(bodies) / spent, len(bodies) / real
    print(f"{name:30} {each:8,.0f} a second of one core   ({beside:,.0f}/s with this client beside it)")


def serve() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "bot", "exchange", "local", "--port", "0", "--json", "--prices", "held"]
    process = subprocess.Popen(
        [*command, "--switch", "ip_limit=off"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["baseUrl"]


def day() -> None:
    """Twenty-four hours of simulated prices, with an account that trades every minute."""
    venue = Venue(prices="simulated")
    venue.place(ANN, limit(BTC, "B", "0.001", "110000", "Ioc"))
    begun = monotonic_ns()
    for hour in range(24):
        for _ in range(60):
            venue.control("advance", ms=HOUR_MS // 60)
            mark = venue.exchange.coins["BTC"].market.mark // 10**8
            for side, px in (("B", mark + 500), ("A", mark - 500)):
                venue.place(
                    ANN,
                    limit(BTC, side, "0.001", str(px), "Ioc"),
                    limit(BTC, side, "0.001", str(px - 5_000 if side == "B" else px + 5_000)),
                )
            for order in list(venue.exchange.users[ANN].orders.values()):
                venue.cancel(ANN, BTC, order.oid)
        if hour in (0, 5, 11, 17, 23):
            print(f"hour {hour + 1:2}: {memory_mb():6.1f} MB")
    seconds = (monotonic_ns() - begun) / 1e9
    print(f"a day of 9 markets in {seconds:.1f} s: {86_400 / seconds:,.0f} times real time")


def main() -> None:
    print(f"Python {sys.version.split()[0]}")
    process, url = serve()
    try:
        httpx.post(f"{url}/control/deposit", json={"address": WALLET.address, "usd": "1000000"}, trust_env=False)
        httpx.post(f"{url}/control/post_only", json={"ms": 1}, trust_env=False)
        now: int = httpx.post(f"{url}/control/state", json={}, trust_env=False).json()["now"]
        for user in (WALLET.address,):
            query: dict[str, Any] = {"type": "clearinghouseState", "user": user}
            speed("info clearinghouseState", process.pid, f"{url}/info", [json.dumps(query).encode()] * REQUESTS)
            book = json.dumps({"type": "l2Book", "coin": "BTC"}).encode()
            speed("info l2Book", process.pid, f"{url}/info", [book] * REQUESTS)
        speed("order (signed, refused Ioc)", process.pid, f"{url}/exchange", signed_orders(now))
    finally:
        process.kill()
        process.communicate()
    day()


if __name__ == "__main__":
    main()
