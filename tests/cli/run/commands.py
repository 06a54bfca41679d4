"""Commands as processes of their own, and what an exchange has of their account."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bot.testing.hyperliquid import LocalExchange
from tests.service.exchange_accounts.followers import ADDRESS

WAIT_S = 120


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
