"""An agent that may act for a funded account of a local exchange, and the entries that it places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eth_account
import pytest
from hyperliquid.exchange import Exchange
from hyperliquid.utils.signing import sign_agent

from bot.exchanges.actions import ExchangeAction, OrderPlacement, Rank
from bot.money import parse_e8
from bot.testing.hyperliquid import LocalExchange

MASTER = eth_account.Account.from_key("0x" + "01" * 32)
KEY = "02" * 32
AGENT = eth_account.Account.from_key("0x" + KEY).address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={MASTER.address.lower(): "100000"}, clock="real")


def key_file(folder: Path, key: str = KEY) -> Path:
    path = folder / "agent"
    path.write_text(key)
    path.chmod(0o600)
    return path


def approve(hyperliquid: LocalExchange, master: Any = MASTER, name: str = "bot") -> None:
    """Let the agent act for the funded account."""
    exchange = Exchange(master, hyperliquid.base_url)
    action = {"type": "approveAgent", "agentAddress": AGENT, "agentName": name, "nonce": hyperliquid.state()["now"]}
    answer = exchange._post_action(action, sign_agent(master, action, False), action["nonce"])
    assert answer["status"] == "ok"


def client_order_id(number: int) -> str:
    return f"0x{number:032x}"


def entry(nonce: int, px: str = "90000", expires_ms: int | None = None, agent: str = AGENT) -> ExchangeAction:
    order = OrderPlacement(
        client_order_id(nonce), "BTC", True, parse_e8("0.01"), parse_e8(px), None, "entry", "rest", False
    )
    return ExchangeAction(nonce, "place", agent, Rank.ENTRY, expires_ms, (order,))
