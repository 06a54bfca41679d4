"""The local exchange with WebSockets: the forms of Binance's USD-M futures and Kraken's version 2, and the REST
requests of books, marks and funding.

The bodies follow the exchanges' documentation. A test changes `tops`, `marks`, `books` and `rates`, and calls `tell` to
send what changed.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.market_data.exchange import Exchange

WAIT_SECONDS = 60.0
# price and size
Level = tuple[str, str]


class WebSocketExchange(Exchange):
    """All data are by the exchange's id of the market:

    BTCUSDT, or at Kraken XXBTZUSD. Its clock is the machine's, plus `clock_ahead_ms`.
    """

    def __init__(self, *, clock_ahead_ms: int = 0) -> None:
        self.clock_ahead_ms = clock_ahead_ms
        super().__init__(0)
        # best bid and ask
        self.tops: dict[str, tuple[str, str]] = {}
        self.marks: dict[str, str] = {}
        self.rates: dict[str, str] = {}
        # the hours of a funding rate, where they are not 8
        self.hours: dict[str, int] = {}
        self.books: dict[str, tuple[list[Level], list[Level]]] = {}
        # the upgrade to a WebSocket
        self.is_refusing = False
        # WebSockets so far
        self.opened = 0
        self.subscribed: list[str] = []
        self._sockets: dict[WebSocket, set[str]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()

    @property
    # the clock of this exchange runs
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.clock_ahead_ms

    @now_ms.setter
    def now_ms(self, value: int) -> None: ...

    # ── From the test's thread ──

    def tell(self) -> None:
        """Send the present tops and marks to everyone who subscribed to them."""
        self._run(self._tell_all())

    def close_sockets(self) -> None:
        """Close every WebSocket, as a server that restarts does."""
        self._run(self._close_all())

    def wait_for_subscription(self, stream: str) -> None:
        """Wait until a client has subscribed to this stream, for example btcusdt@bookTicker."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(stream in held for held in self._sockets.values()), WAIT_SECONDS)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None, "no client has opened a WebSocket"
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _tell_all(self) -> None:
        for socket, streams in list(self._sockets.items()):
            for stream in list(streams):
                await self._tell(socket, stream)

    async def _close_all(self) -> None:
        for socket in list(self._sockets):
            await socket.close(1012)

    # ── WebSockets ──

    async def _serve(self, socket: WebSocket, greeting: dict[str, Any] | None = None) -> None:
        """Answer the requests of one client until it or a test closes the socket."""
        if self.is_refusing:
            # before the upgrade: answered with status 403
            await socket.close()
            return
        await socket.accept()
        self._loop = asyncio.get_running_loop()
        self.opened += 1
        self._sockets[socket] = set()
        try:
            if greeting is not None:
                await socket.send_json(greeting)
            while True:
                await self._answer(socket, json.loads(await socket.receive_text()))
        except WebSocketDisconnect:
            return
        finally:
            del self._sockets[socket]

    async def _answer(self, socket: WebSocket, request: dict[str, Any]) -> None:
        streams = []
        if request["method"] == "SUBSCRIBE":
            streams = request["params"]
            await socket.send_json({"result": None, "id": request["id"]})
        elif request["method"] == "subscribe":
            streams = [f"{request['params']['channel']}:{symbol}" for symbol in request["params"]["symbol"]]
            for symbol in request["params"]["symbol"]:
                result = {"channel": request["params"]["channel"], "snapshot": True, "symbol": symbol}
                await socket.send_json(
                    {"method": "subscribe", "result": result, "success": True, "req_id": request["req_id"]}
                )
        elif request["method"] == "ping":
            await socket.send_json({"method": "pong", "req_id": request.get("req_id")})
        self.subscribed += streams
        self._sockets[socket].update(streams)
        for stream in streams:
            await self._tell(socket, stream)
        with self._changed:
            self._changed.notify_all()

    async def _tell(self, socket: WebSocket, stream: str) -> None:
        if stream.startswith("ticker:"):
            bid, ask = (float(px) for px in self.tops["XXBTZUSD"])
            row = {
                "symbol": stream.partition(":")[2],
                "bid": bid,
                "bid_qty": 1.5,
                "ask": ask,
                "ask_qty": 2.5,
                "last": bid,
                "volume": 2158.3,
                "vwap": bid,
                "low": bid,
                "high": ask,
                "change": 0.0,
                "change_pct": 0.0,
            }
            await socket.send_json({"channel": "ticker", "type": "snapshot", "data": [row]})
            return
        name, channel = stream.upper().split("@", 1)
        at = {"E": self.now_ms, "T": self.now_ms}
        if channel == "BOOKTICKER" and name in self.tops:
            bid, ask = self.tops[name]
            await socket.send_json(
                {"e": "bookTicker", "u": self.now_ms, "s": name, "b": bid, "B": "31.21", "a": ask, "A": "40.66", **at}
            )
        elif channel == "MARKPRICE@1S" and name in self.marks:
            body = {
                "e": "markPriceUpdate",
                "s": name,
                "p": self.marks[name],
                "ap": self.marks[name],
                "i": self.marks[name],
                "P": self.marks[name],
            }
            await socket.send_json({**body, **at, "r": self.rates.get(name, "0.0001"), "T": self.next_funding_ms})

    async def binance(self, socket: WebSocket) -> None:
        await self._serve(socket)

    async def kraken_v2(self, socket: WebSocket) -> None:
        status = {"system": "online", "api_version": "v2", "connection_id": 1, "version": "2.0.10"}
        await self._serve(socket, {"channel": "status", "type": "update", "data": [status]})

    # ── REST ──

    @property
    def next_funding_ms(self) -> int:
        return self.now_ms // 28_800_000 * 28_800_000 + 28_800_000

    async def book_tickers(self, request: Request) -> Response:
        self.asked_quotes.set()
        body = [
            {"symbol": name, "bidPrice": bid, "bidQty": "1", "askPrice": ask, "askQty": "2", "time": self.now_ms}
            for name, (bid, ask) in self.tops.items()
        ]
        return self.answer(body)

    async def premium_index(self, request: Request) -> Response:
        body = [
            {
                "symbol": name,
                "markPrice": px,
                "indexPrice": px,
                "estimatedSettlePrice": px,
                "lastFundingRate": self.rates.get(name, "0.0001"),
                "interestRate": "0.0001",
                "nextFundingTime": self.next_funding_ms,
                "time": self.now_ms,
            }
            for name, px in self.marks.items()
        ]
        return self.answer(body)

    async def funding_info(self, request: Request) -> Response:
        caps = {"adjustedFundingRateCap": "0.02", "adjustedFundingRateFloor": "-0.02", "disclaimer": False}
        return self.answer(
            [{"symbol": name, **caps, "fundingIntervalHours": hours} for name, hours in self.hours.items()]
        )

    async def binance_book(self, request: Request) -> Response:
        bids, asks = self.books[request.query_params["symbol"]]
        return self.answer(
            {"lastUpdateId": self.now_ms, "E": self.now_ms, "T": self.now_ms, "bids": bids, "asks": asks}
        )

    async def kraken_book(self, request: Request) -> Response:
        pair = request.query_params["pair"]
        sides = ([[px, size, self.now_ms // 1_000] for px, size in side] for side in self.books[pair])
        return self.answer({"error": [], "result": {pair: dict(zip(("bids", "asks"), sides, strict=True))}})

    async def kraken_ticker(self, request: Request) -> Response:
        rows = {}
        for pair, (bid, ask) in self.tops.items():
            two = [bid, bid]
            rows[pair] = {
                "a": [ask, "1", "1.000"],
                "b": [bid, "1", "1.000"],
                "c": [bid, "0.01"],
                "v": ["1", "2"],
                "p": two,
                "t": [1, 2],
                "l": two,
                "h": [ask, ask],
                "o": bid,
            }
        return self.answer({"error": [], "result": rows})

    def app(self) -> Starlette:
        futures, kraken = "/fapi.binance.com/fapi/v1", "/api.kraken.com/0/public"
        return Starlette(
            routes=[
                Route(f"{futures}/premiumIndex", self.premium_index),
                Route(f"{futures}/fundingInfo", self.funding_info),
                Route(f"{futures}/depth", self.binance_book),
                Route(f"{kraken}/Depth", self.kraken_book),
                Route(f"{kraken}/Ticker", self.kraken_ticker),
                WebSocketRoute("/fstream.binance.com/{category}/ws/{stream}", self.binance),
                WebSocketRoute("/ws.kraken.com/v2", self.kraken_v2),
                *super().app().routes,
            ]
        )


def ladder(best: float, buy: int, sizes: list[float], step: float = 0.1) -> list[Level]:
    """One side of a book: a level at `best`, and the others `step` apart. `buy`: 1 for asks, -1 for bids."""
    return [(f"{best + buy * n * step:.1f}", f"{size:.3f}") for n, size in enumerate(sizes)]
