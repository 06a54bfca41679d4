"""A local exchange without sockets, and short ways to act on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bot.local_exchange.server.service import ExchangeService, ExchangeServiceOptions
from bot.local_exchange.wire.actions import canonical
from bot.local_exchange.wire.requests import Signed

START_MS = 1_767_225_600_000
ANN, BOB, EVE = ("0x" + letter * 40 for letter in "abe")
BTC, ETH, TSLA, GOLD = 0, 1, 110_000, 110_001


def limit(
    asset: int, side: str, sz: str, px: str, tif: str = "Gtc", *, reduce: bool = False, cloid: str | None = None
) -> dict[str, Any]:
    """A limit order as the wire has it."""
    order = {"a": asset, "b": side == "B", "p": px, "s": sz, "r": reduce, "t": {"limit": {"tif": tif}}}
    return order if cloid is None else order | {"c": cloid}


def trigger(
    asset: int,
    side: str,
    sz: str,
    at: str,
    kind: str,
    *,
    px: str | None = None,
    market: bool = True,
    reduce: bool = True,
    cloid: str | None = None,
) -> dict[str, Any]:
    """A stop (`sl`) or target (`tp`). A market trigger without `px` has a bound far away."""
    if px is None:
        px = at if not market else str(int(float(at) * (1.08 if side == "B" else 0.92)))
    order = {
        "a": asset,
        "b": side == "B",
        "p": px,
        "s": sz,
        "r": reduce,
        "t": {"trigger": {"isMarket": market, "triggerPx": at, "tpsl": kind}},
    }
    return order if cloid is None else order | {"c": cloid}


class Venue:
    """One exchange with funded accounts and a manual clock."""

    def __init__(
        self,
        *,
        usd: str = "100000",
        network: str = "testnet",
        seed: int = 1,
        prices: str = "held",
        db: Path | None = None,
        switches: Mapping[str, str] | None = None,
        users: tuple[str, ...] = (ANN, BOB),
    ) -> None:
        options = ExchangeServiceOptions(
            network, 0.0, db, seed, prices, START_MS, {"ip_limit": "off", **(switches or {})}
        )
        self.service = ExchangeService(options)
        self.exchange = self.service.exchange
        self._nonce = 0
        if not self.exchange.raw:
            for user in users:
                self.control("deposit", address=user, usd=usd)

    def nonce(self) -> int:
        self._nonce += 1
        return self.exchange.now_ms + self._nonce

    def act(
        self,
        user: str,
        action: Mapping[str, Any],
        *,
        nonce: int | None = None,
        vault: str | None = None,
        expires: int | None = None,
    ) -> Any:
        """Perform an action as if this address had signed it; returns the answer."""
        signed = Signed(user, canonical(dict(action)), self.nonce() if nonce is None else nonce, vault, expires)
        answer = self.service.perform(signed)
        for name, raw in self.exchange.raw.items():
            raw.check(self.exchange.venue.accounts[name])
        return answer

    def place(self, user: str, *orders: Mapping[str, Any], grouping: Any = "na", **more: Any) -> list[Any]:
        """The statuses of an order action; the text of a refused action."""
        answer = self.act(user, {"type": "order", "orders": list(orders), "grouping": grouping, **more})
        return answer["response"]["data"]["statuses"] if answer["status"] == "ok" else answer["response"]

    def rest(self, user: str, *orders: Mapping[str, Any]) -> list[int]:
        """Place orders that must rest; returns their oids."""
        return [status["resting"]["oid"] for status in self.place(user, *orders)]

    def cancel(self, user: str, asset: int, oid: int) -> Any:
        answer = self.act(user, {"type": "cancel", "cancels": [{"a": asset, "o": oid}]})
        return answer["response"]["data"]["statuses"][0]

    def control(self, command: str, **body: Any) -> Any:
        return self.service.command(command, body)

    def price(self, coin: str, px: str, **more: str) -> None:
        self.control("price", coin=coin, px=px, **more)

    def info(self, kind: str, **query: Any) -> Any:
        return self.service.info({"type": kind, **query})[0]

    def status(self, user: str, oid: int | str) -> str:
        """The status of an order; `unknownOid` if there is none."""
        found = self.info("orderStatus", user=user, oid=oid)
        return found["order"]["status"] if found["status"] == "order" else found["status"]

    def size(self, user: str, coin: str) -> str:
        """The signed size of a position."""
        dex = coin.partition(":")[0] if ":" in coin else ""
        rows = self.info("clearinghouseState", user=user, dex=dex)["assetPositions"]
        return next((row["position"]["szi"] for row in rows if row["position"]["coin"] == coin), "0.0")
