"""The local exchange in this process as a source of info requests, without sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bot.exchanges.hyperliquid.account import HyperliquidAccount
from tests.local_exchange.exchanges import ANN, Venue

AGENT = "0x" + "c1" * 20


class InProcess:
    """Answers of a local exchange; `changes` replaces the answers of some requests."""

    def __init__(self, venue: Venue) -> None:
        self.venue = venue
        self.changes: dict[str, Any] = {}
        self.asked: list[str] = []

    async def info(self, query: Mapping[str, Any]) -> Any:
        self.asked.append(query["type"])
        if query["type"] in self.changes:
            return self.changes[query["type"]]
        return self.venue.service.info(dict(query))[0]


def account_of(venue: Venue, address: str = ANN) -> tuple[InProcess, HyperliquidAccount]:
    source = InProcess(venue)
    return source, HyperliquidAccount(source, address)


def approve(venue: Venue, user: str, agent: str, name: str = "bot") -> None:
    """Let a key act for a user, as the exchange's page does."""
    nonce = venue.nonce()
    action = {
        "type": "approveAgent",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "agentAddress": agent,
        "agentName": name,
        "nonce": nonce,
    }
    assert venue.act(user, action, nonce=nonce)["status"] == "ok"
