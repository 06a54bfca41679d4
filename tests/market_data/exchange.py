"""A local exchange: the REST forms of Binance (USD-M and spot) and of Kraken, with faults to order.

The bodies follow the exchanges' documentation. ccxt reaches it by BOT_MARKETS_URL, which puts the exchange's host into
the path.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import islice
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

STEPS = {"1m": 60_000, "5m": 300_000, "15m": 900_000, "1h": 3_600_000, "4h": 14_400_000, "1d": 86_400_000}
# open time ms; open, high, low, close, volume as the exchange's texts
Candle = tuple[int, str, str, str, str, str]

Fault = Callable[[Request], Response | None]


@dataclass
class Series:
    """The minutes of one market, sorted, and coarser candles made of them."""

    minutes: list[Candle]
    made: dict[str, list[Candle]] = field(default_factory=dict)

    def of(self, interval: str) -> list[Candle]:
        if interval == "1m":
            return self.minutes
        if interval not in self.made:
            step, found = STEPS[interval], {}
            for at, o, h, low, c, v in self.minutes:
                start = at - at % step
                if start not in found:
                    found[start] = [start, o, h, low, c, v]
                else:
                    row = found[start]
                    row[2] = max(row[2], h, key=float)
                    row[3] = min(row[3], low, key=float)
                    row[4] = c
                    row[5] = repr(float(row[5]) + float(v))
            self.made[interval] = [tuple(row) for row in found.values()]
        return self.made[interval]


class Exchange:
    """What the exchange has, how it pages, and its faults.

    `now_ms` is its clock; candles that close later are unfinished.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        # by id: BTCUSDT
        self.futures: dict[str, Series] = {}
        self.spot: dict[str, Series] = {}
        # by id: XXBTZUSD
        self.kraken: dict[str, Series] = {}
        self.funding: dict[str, list[tuple[int, str]]] = {}
        # by id of the perpetual
        self.quotes: dict[str, str] = {}
        # one for each of the next requests of quotes
        self.quote_faults: list[Fault] = []
        # set by each request of quotes
        self.asked_quotes = threading.Event()
        self.limit = 1_500
        # Answer the newest candles of a window larger than the limit.
        self.is_skipping = False
        self.is_shuffled = False
        # candles come twice
        self.is_doubled = False
        # how far its Date header and its closed candles are off
        self.clock_off_ms = 0
        self.tick = "0.10"
        # ids of perpetuals
        self.delisted: set[str] = set()
        # one for each of the next requests of candles
        self.faults: list[Fault] = []
        # before it answers a page of candles
        self.delay_seconds = 0.0
        self.status_of_all: tuple[int, str] | None = None
        self.requests: list[str] = []

    # ── Candles ──

    def window(self, series: Series, interval: str, start_ms: int, limit: int) -> list[Candle]:
        rows, step = series.of(interval), STEPS[interval]
        low = bisect_left(rows, start_ms, key=lambda row: row[0])
        if self.is_skipping and limit > self.limit:
            high = bisect_left(rows, start_ms + limit * step, key=lambda row: row[0])
            found = rows[max(low, high - self.limit) : high]
        else:
            found = rows[low : low + min(limit, self.limit)]
        found = [self.live(row, step) for row in found if row[0] <= self.clock_ms]
        if self.is_doubled:
            found = [*found, *found[-3:]]
        if self.is_shuffled:
            found = found[1::2] + found[::2]
        return found

    def live(self, row: Candle, step: int) -> Candle:
        """An unfinished candle has other values than the closed one will have."""
        at, o, _, _, _, _ = row
        return row if at + step <= self.clock_ms else (at, o, o, o, o, "0.001")

    async def binance_klines(self, request: Request) -> Response:
        self.requests.append(str(request.url.path))
        await asyncio.sleep(self.delay_seconds)
        if (fault := self.fault(request)) is not None:
            return fault
        asked = request.query_params
        if asked["symbol"] in self.delisted:
            return JSONResponse({"code": -1121, "msg": "Invalid symbol."}, 400)
        markets = self.futures if "fapi" in request.url.path else self.spot
        start_ms, interval = int(asked.get("startTime", 0)), asked["interval"]
        step = STEPS[interval]
        # A Date header is not later than what it comes with.
        date = self.date
        rows = self.window(markets[asked["symbol"]], interval, start_ms, int(asked.get("limit", 500)))
        return self.answer([[*row, row[0] + step - 1, "0", 1, "0", "0", "0"] for row in rows], date)

    async def kraken_ohlc(self, request: Request) -> Response:
        self.requests.append(str(request.url.path))
        await asyncio.sleep(self.delay_seconds)
        if (fault := self.fault(request)) is not None:
            return fault
        pair, minutes = request.query_params["pair"], int(request.query_params.get("interval", 1))
        interval = next(name for name, step in STEPS.items() if step == minutes * 60_000)
        series, step = self.kraken[pair], STEPS[interval]
        kept = [row for row in series.of(interval) if row[0] <= self.now_ms][-720:]
        since = int(request.query_params.get("since", 0)) * 1_000
        rows = [self.live(row, step) for row in kept if row[0] > since]
        body = [[at // 1_000, o, h, low, c, c, v, 1] for at, o, h, low, c, v in rows]
        return self.answer({"error": [], "result": {pair: body, "last": body[-1][0] if body else 0}})

    async def funding_rates(self, request: Request) -> Response:
        asked = request.query_params
        rates = [one for one in self.funding.get(asked["symbol"], []) if one[0] >= int(asked.get("startTime", 0))]
        rates = [one for one in rates if one[0] <= self.now_ms][: int(asked.get("limit", 100))]
        body = [
            {"symbol": asked["symbol"], "fundingTime": at, "fundingRate": rate, "markPrice": "1"} for at, rate in rates
        ]
        return self.answer(body)

    # ── Quotes ──

    async def book_tickers(self, request: Request) -> Response:
        """The best bid and ask half a dollar around `quotes`."""
        self.asked_quotes.set()
        if self.quote_faults and (fault := self.quote_faults.pop(0)(request)) is not None:
            return fault
        body = [
            {
                "symbol": name,
                "bidPrice": f"{float(px) - 0.5:.2f}",
                "bidQty": "1",
                "askPrice": f"{float(px) + 0.5:.2f}",
                "askQty": "2",
                "time": self.clock_ms,
            }
            for name, px in self.quotes.items()
            if name not in self.delisted
        ]
        return self.answer(body)

    # ── Markets ──

    async def futures_info(self, request: Request) -> Response:
        return self.answer(
            {
                "symbols": [
                    self._binance(symbol, perpetual=True) for symbol in self.futures if symbol not in self.delisted
                ]
            }
        )

    async def spot_info(self, request: Request) -> Response:
        return self.answer({"symbols": [self._binance(symbol, perpetual=False) for symbol in self.spot]})

    async def coin_info(self, request: Request) -> Response:
        return self.answer({"symbols": []})

    def _binance(self, symbol: str, *, perpetual: bool) -> dict[str, Any]:
        base = symbol.removesuffix("USDT")
        one: dict[str, Any] = {
            "symbol": symbol,
            "status": "TRADING",
            "baseAsset": base,
            "quoteAsset": "USDT",
            "filters": [
                {"filterType": "PRICE_FILTER", "minPrice": "0.10", "maxPrice": "4529764", "tickSize": self.tick},
                {"filterType": "LOT_SIZE", "minQty": "0.001", "maxQty": "1000", "stepSize": "0.001"},
                {"filterType": "MIN_NOTIONAL", "notional": "5"},
            ],
        }
        if perpetual:
            one |= {
                "contractType": "PERPETUAL",
                "pair": symbol,
                "marginAsset": "USDT",
                "onboardDate": self.futures[symbol].minutes[0][0],
                "deliveryDate": 4133404800000,
                "pricePrecision": 2,
                "quantityPrecision": 3,
                "baseAssetPrecision": 8,
                "quotePrecision": 8,
            }
        else:
            one |= {
                "isSpotTradingAllowed": True,
                "permissions": ["SPOT"],
                "permissionSets": [["SPOT"]],
                "baseAssetPrecision": 8,
                "quotePrecision": 8,
            }
        return one

    async def kraken_pairs(self, request: Request) -> Response:
        pairs = {
            name: {
                "altname": "XBTUSD",
                "wsname": "XBT/USD",
                "base": "XXBT",
                "quote": "ZUSD",
                "lot": "unit",
                "pair_decimals": 1,
                "lot_decimals": 8,
                "cost_decimals": 5,
                "lot_multiplier": 1,
                "leverage_buy": [],
                "leverage_sell": [],
                "fees": [[0, 0.4], [10000, 0.35]],
                "fees_maker": [[0, 0.25], [10000, 0.2]],
                "ordermin": "0.00005",
                "costmin": "0.5",
                "tick_size": "0.1",
                "status": "online",
            }
            for name in self.kraken
        }
        return self.answer({"error": [], "result": pairs})

    async def kraken_assets(self, request: Request) -> Response:
        assets = {
            name: {"aclass": "currency", "altname": alt, "decimals": 8, "display_decimals": 4, "status": "enabled"}
            for name, alt in (("XXBT", "XBT"), ("ZUSD", "USD"))
        }
        return self.answer({"error": [], "result": assets})

    # ── Answers ──

    def fault(self, request: Request) -> Response | None:
        return self.faults.pop(0)(request) if self.faults else None

    def answer(self, body: Any, date: str | None = None) -> Response:
        if self.status_of_all is not None:
            status, text = self.status_of_all
            return Response(text, status, {"date": self.date}, media_type="application/json")
        return JSONResponse(body, headers={"date": date or self.date})

    @property
    def date(self) -> str:
        return formatdate(self.clock_ms / 1_000, usegmt=True)

    @property
    def clock_ms(self) -> int:
        """Its own clock, which may be wrong."""
        return self.now_ms + self.clock_off_ms

    def app(self) -> Starlette:
        futures, spot, coin, kraken = (
            "/fapi.binance.com/fapi/v1",
            "/api.binance.com/api/v3",
            "/dapi.binance.com/dapi/v1",
            "/api.kraken.com/0/public",
        )
        return Starlette(
            routes=[
                Route(f"{futures}/exchangeInfo", self.futures_info),
                Route(f"{futures}/klines", self.binance_klines),
                Route(f"{futures}/fundingRate", self.funding_rates),
                Route(f"{futures}/ticker/bookTicker", self.book_tickers),
                Route(f"{spot}/exchangeInfo", self.spot_info),
                Route(f"{spot}/klines", self.binance_klines),
                Route(f"{coin}/exchangeInfo", self.coin_info),
                Route(f"{kraken}/AssetPairs", self.kraken_pairs),
                Route(f"{kraken}/Assets", self.kraken_assets),
                Route(f"{kraken}/OHLC", self.kraken_ohlc),
            ]
        )


# ── Faults ──


def status(code: int, body: str = "{}", **headers: str) -> Fault:
    """An answer with this status; `retry_after="1"` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _request: Response(body, code, named, media_type="application/json")


def half(_request: Request) -> Response:
    """Half of a JSON answer, with a length that fits."""
    return Response('[[1746057600000,"94172.0","942', 200, media_type="application/json")


def fine(_request: Request) -> None:
    """No fault."""


class _Cut(Response):
    """Half an answer, and then the connection ends."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000")]})
        await send({"type": "http.response.body", "body": b'[[1746057600000,"94', "more_body": True})
        raise ConnectionResetError("cut by the test")


def cut(_request: Request) -> Response:
    return _Cut()


class _Silent(Response):
    """No answer until the caller gives up."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


def silent(_request: Request) -> Response:
    return _Silent()


# ── Serving ──


@contextlib.contextmanager
def served(exchange: Exchange) -> Iterator[str]:
    """The address of the exchange, which runs in a thread until the end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(exchange.app(), log_level="critical", date_header=False, lifespan="off", ws="wsproto")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def minutes(count: int, start_ms: int, *, seed: int = 1) -> list[Candle]:
    """Candles of a random walk, with prices on a tick of 0.1 and volumes on 0.001 as an exchange writes them."""
    state, px = seed, 1_000_000
    found: list[Candle] = []
    for n in range(count):
        state = (state * 1_103_515_245 + 12_345) % 2**31
        close = px + state % 401 - 200
        high, low = max(px, close) + state % 53, min(px, close) - state % 47
        texts = (f"{one / 10:.1f}" for one in (px, high, low, close))
        o, h, lo, c = texts
        found.append((start_ms + n * 60_000, o, h, lo, c, f"{1 + state % 100_000 / 1_000:.3f}"))
        px = close
    return found


def recorded(path: Any, count: int | None = None) -> list[Candle]:
    """The candles of a recorded file, with its own texts."""
    import csv
    import gzip

    with gzip.open(path, "rt") as file:
        rows = csv.DictReader(file)
        return [
            (int(row["ts"]), row["open"], row["high"], row["low"], row["close"], row["volume"])
            for row in islice(rows, count)
        ]
