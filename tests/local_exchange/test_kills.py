"""Kills of the exchange under load: what it has acknowledged exists once, and the same bytes make no second order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import eth_account
import httpx
import pytest
from hyperliquid.utils import signing

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
OPTIONS = ("--port", "0", "--clock", "manual", "--prices", "held", "--json", "--switch", "ip_limit=off")
ORDERS = 60


def start(db: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "bot", "exchange", "local", *OPTIONS, "--db", str(db)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.wait()
    return process, json.loads(line)["baseUrl"]


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def bodies(now: int) -> list[dict[str, Any]]:
    found = []
    for number in range(ORDERS):
        order = {"a": 0, "b": True, "p": "99000", "s": "0.001", "r": False, "t": {"limit": {"tif": "Gtc"}}}
        action = {"type": "order", "orders": [order | {"c": f"0x{number:032x}"}], "grouping": "na"}
        signature = signing.sign_l1_action(WALLET, action, None, now + number, None, False)
        found.append({"action": action, "nonce": now + number, "signature": signature, "vaultAddress": None})
    return found


def send(
    part: list[dict[str, Any]], process: subprocess.Popen[str], url: str, acknowledged: set[int], dies_after: int
) -> None:
    """Send requests until the process is dead; kill it after so many answers."""
    with httpx.Client(trust_env=False) as http:
        for body in part:
            try:
                http.post(f"{url}/exchange", json=body)
            except httpx.TransportError:
                return
            acknowledged.add(body["nonce"])
            if len(acknowledged) > dies_after:
                os.kill(process.pid, signal.SIGKILL)


@pytest.mark.soak(kills=2, full=40)
def test_after_kill_9_under_load_each_acknowledged_order_exists_once(
    kills: int, base_seed: int, tmp_path: Path
) -> None:
    chance = random.Random(base_seed)
    for kill in range(kills):
        db = tmp_path / f"{kill}.db"
        process, url = start(db)
        try:
            with httpx.Client(trust_env=False) as http:
                http.post(f"{url}/control/deposit", json={"address": ADDRESS, "usd": "100000"})
                now = http.post(f"{url}/control/state", json={}).json()["now"]
            requests, acknowledged = bodies(now), set[int]()
            dies_after = chance.randrange(ORDERS)

            shared = (process, url, acknowledged, dies_after)
            threads = [threading.Thread(target=send, args=(requests[part::3], *shared)) for part in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            end(process)
            process, url = start(db)
            with httpx.Client(trust_env=False) as http:
                query = {"type": "openOrders", "user": ADDRESS}
                kept = {int(row["cloid"], 16) + now for row in http.post(f"{url}/info", json=query).json()}
                assert acknowledged <= kept
                for body in requests:
                    answer = http.post(f"{url}/exchange", json=body).json()
                    assert (answer["status"] == "err") is (body["nonce"] in kept), answer
                cloids = [row["cloid"] for row in http.post(f"{url}/info", json=query).json()]
                assert len(cloids) == len(set(cloids)) == ORDERS
        finally:
            end(process)
