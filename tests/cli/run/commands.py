"""Commands as processes of their own, a strategy for them, and what an exchange has of their account."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bot.testing.hyperliquid import LocalExchange
from tests.service.exchange_accounts.followers import ADDRESS

WAIT_S = 120
STRATEGY = """\
from bot.strategy import Bracket, Open, Strategy


class Once(Strategy):
    def on_bar(self, view, bar):
        if view.position(bar.market) is None and not view.state.get("done"):
            view.state["done"] = True
            yield Open(bar.market, "long", usd=500, bracket=Bracket(stop_pct=2, target_pct=4))
"""


def bot(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bot", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(*arguments: str) -> tuple[int, Any]:
    process = bot(*arguments, "--json")
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, (json.loads(out) if out.startswith("{") else out + err)


def size_at(exchange: LocalExchange) -> float:
    rows = exchange.info("clearinghouseState", user=ADDRESS)["assetPositions"]
    return float(rows[0]["position"]["szi"]) if rows else 0.0


def rows(exchange: LocalExchange) -> list[str]:
    return sorted(row["orderType"] for row in exchange.info("frontendOpenOrders", user=ADDRESS))


@contextmanager
def moving(exchange: LocalExchange) -> Iterator[None]:
    """Prices that change each second, because a market without new prices closes."""
    is_over = threading.Event()

    def move() -> None:
        for px in itertools.cycle((100_000, 100_010)):
            exchange.price("BTC", str(px))
            if is_over.wait(1):
                return

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
