"""Processor time of the dashboard while many people have its market page open.

python -m tests.bench.dashboard_clients [CLIENTS] [SECONDS]

A daemon with 20 markets runs; CLIENTS streams of the page of BTC are open. To compare with another state of the
repository set PYTHONPATH to its folder: the daemon and the dashboard are those of that state.
"""

from __future__ import annotations

import asyncio
import html
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.bench.dashboard import CONFIG, MARKETS, SPEED, STRATEGY, processor_s, requests, running

CLIENTS = 50
SECONDS = 20.0


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    with tempfile.TemporaryDirectory(prefix="bot-") as place:
        folder = Path(place)
        (folder / "strategies").mkdir()
        (folder / "strategies" / "mine.py").write_text(STRATEGY)
        coins = ", ".join(MARKETS)
        (folder / "mine.yaml").write_text(CONFIG % (SPEED, coins, coins))
        command = [sys.executable, "-m", "bot"]
        with (
            (folder / "err").open("wb") as err,
            running([*command, "run", str(folder / "mine.yaml")], stdout=err, stderr=err),
        ):
            while requests(folder) < len(MARKETS):
                time.sleep(0.1)
            dashboard = [*command, "dashboard", str(folder / "mine.yaml"), "--port", "0", "--json"]
            with running(dashboard, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                link = json.loads(process.stdout.readline())["link"]
                share, updates, size = asyncio.run(watched(link, process.pid, clients, seconds))
    print(
        f"{clients} open pages of one market: {share * 100:.1f} % of a core, {updates} updates, {size / 2**20:.1f} MB"
    )


async def watched(link: str, pid: int, clients: int, seconds: float) -> tuple[float, int, int]:
    """The dashboard's share of a core, and the updates that all pages got, with their bytes."""
    base = "{0.scheme}://{0.netloc}".format(urlsplit(link))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base, limits=limits, timeout=30, follow_redirects=True) as client:
        code = urlsplit(link).fragment.rpartition("=")[2] or urlsplit(link).query.rpartition("=")[2]
        (await client.post("/sign-in", data={"code": code}, headers={"Origin": base})).raise_for_status()
        page = (await client.get("/market/BTC", headers={"Accept": "text/html"})).text
        stream = html.unescape(page.partition('data-stream="')[2].partition('"')[0])
        assert stream.startswith("/stream/market"), page[:300]
        lines: list[str] = []

        async def watch() -> None:
            async with client.stream("GET", stream) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        lines.append(line)

        watchers = [asyncio.create_task(watch()) for _ in range(clients)]
        await asyncio.sleep(2)
        assert not any(one.done() for one in watchers), next(one.exception() for one in watchers if one.done())
        before_s, began, first = processor_s(pid), time.monotonic(), len(lines)
        await asyncio.sleep(seconds)
        share = (processor_s(pid) - before_s) / (time.monotonic() - began)
        updates = lines[first:]
        for one in watchers:
            one.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return share, len(updates), sum(map(len, updates))


if __name__ == "__main__":
    main()
