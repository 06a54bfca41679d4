"""What service and link add to an action at an exchange: cancels by `/v1` beside cancels by the official SDK.

Exchange, service, link and this client are processes of their own. Each cancel by `/v1` is committed before it is sent,
so the figures are of this disk: run it on an idle machine.

    python -m tests.bench.exchange_order [--cancels 100] [--block-ms 0]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import eth_account
import httpx
from hyperliquid.exchange import Exchange
from hyperliquid.utils.signing import sign_agent

from bot.clock import monotonic_ns
from tests.bench.exchange import cpu_seconds
from tests.exchanges.agents import AGENT, KEY, MASTER, key_file

ADDRESS = MASTER.address.lower()
READY_S = 60.0
HALF_PX = 50_000


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, int]]:
    """A command that prints its address as JSON, and its process."""
    command = [sys.executable, "-m", "bot", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["baseUrl"], process.pid
    finally:
        process.terminate()
        process.communicate()


def cpu_with_children(pid: int) -> float:
    """Seconds of processor time of a process and its children, which no other work of the machine changes much."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(cpu_seconds(number) for number in (pid, *map(int, children)))


def approve(url: str) -> None:
    nonce = httpx.post(f"{url}/control/state", json={}, trust_env=False).json()["now"]
    action = {"type": "approveAgent", "agentAddress": AGENT, "agentName": "bot", "nonce": nonce}
    Exchange(MASTER, url)._post_action(action, sign_agent(MASTER, action, False), nonce)


def rest(owner: Exchange, count: int) -> list[int]:
    """Orders far below the price."""
    oids = []
    for number in range(count):
        answer = owner.order("BTC", True, 0.001, HALF_PX + number, {"limit": {"tif": "Gtc"}})
        oids.append(int(answer["response"]["data"]["statuses"][0]["resting"]["oid"]))
    return oids


def orders_of(http: httpx.Client, count: int) -> list[str]:
    """The service's numbers of these orders, when it knows them all."""
    until = time.monotonic() + READY_S
    while len(orders := http.get("/v1/orders").raise_for_status().json()["orders"]) < count:
        assert time.monotonic() < until, "the service does not know the orders"
        time.sleep(0.05)
    return [str(order["oid"]) for order in orders]


def owner_of(url: str, control: str) -> httpx.Client:
    """A client with a key of the followed account."""
    http = httpx.Client(base_url=url, timeout=60, trust_env=False)
    with httpx.Client(base_url=url, transport=httpx.HTTPTransport(uds=control), timeout=60) as minting:
        until = time.monotonic() + READY_S
        while (minted := minting.post("/sandbox/v1/keys", json={})).status_code != 200:
            assert time.monotonic() < until, minted.text
            time.sleep(0.05)
    http.headers["Authorization"] = f"Bearer {minted.json()['apiKey']}"
    return http


def timed(work: Any, items: list[Any]) -> list[float]:
    """Milliseconds of each call."""
    spent = []
    for item in items:
        begun = monotonic_ns()
        work(item)
        spent.append((monotonic_ns() - begun) / 1e6)
    return spent


def show(name: str, spent: list[float]) -> float:
    parts = statistics.quantiles(spent, n=100)
    print(f"{name:32} p50 {parts[49]:6.1f} ms   p95 {parts[94]:6.1f} ms   p99 {parts[98]:6.1f} ms   of {len(spent)}")
    return parts[49]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=100)
    parser.add_argument("--block-ms", type=int, default=0)
    given = parser.parse_args()
    held = ("--prices", "held", "--switch", "ip_limit=off", "--block-ms", str(given.block_ms))
    with tempfile.TemporaryDirectory() as name, serving("exchange", "local", *held) as (url, _):
        httpx.post(f"{url}/control/deposit", json={"address": ADDRESS, "usd": "100000"}, trust_env=False)
        approve(url)
        owner = Exchange(MASTER, url)
        agent = Exchange(eth_account.Account.from_key("0x" + KEY), url, account_address=ADDRESS)
        place = f"hyperliquid:{url.rpartition(':')[2]}"
        account = ("--db", f"{name}/a.db", "--prices", place, "--exchange-account", f"{place}:{ADDRESS}")
        key = (
            "--agent-key-file",
            str(key_file(Path(name))),
            "--no-rate-limits",
            "--markets",
            "BTC",
            "--control-socket",
            f"{name}/c.sock",
        )
        with serving("sandbox", *account, *key) as (service, pid):
            http = owner_of(service, f"{name}/c.sock")
            direct = timed(lambda oid: agent.cancel("BTC", oid), rest(owner, given.cancels))
            rest(owner, given.cancels)
            numbers = orders_of(http, given.cancels)
            before = cpu_with_children(pid)
            through = timed(lambda oid: http.delete(f"/v1/orders/{oid}").raise_for_status(), numbers)
            spent = cpu_with_children(pid) - before
        alone = show("the SDK's own client", direct)
        print(f"{'service and link add':32} p50 {show('through /v1', through) - alone:6.1f} ms")
        print(f"{'processor time of both':32} {spent / given.cancels * 1e3:10.1f} ms a cancel")


if __name__ == "__main__":
    main()
