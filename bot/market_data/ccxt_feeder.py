"""The process that runs ccxt: a request per line on stdin, answers as JSON lines on stdout. It imports the standard
library and ccxt, nothing of bot.

A separate interpreter may run this file by its path, because ccxt pins versions that may differ from ours. Requests are
answered as they finish:

    {"id": 1, "op": "instruments", "exchange": "binance"}       -> {"id": 1, "now_ms": ..., "result": [...]}
    {"id": 2, "op": "candles", "exchange": "binance", "symbol": "BTC/USDT:USDT", "interval": "1m", "since_ms": ...,
    "limit": 1000} {"id": 3, "op": "funding", "exchange": "binance", "symbol": "BTC/USDT:USDT", "since_ms": ...,
    "limit": 1000} {"id": 4, "op": "watch", "exchange": "binance", "symbols": ["BTC/USDT:USDT"]}

`watch` is answered by a line for each batch of data, until a failure or the end. A line has some of these fields:

    "quotes": [[symbol, at_ms, bid, ask, last], ...]   null for a value that the exchange does not send
    "marks": [[symbol, at_ms, px], ...]                the exchange's mark prices
    "books": [[symbol, bids, asks], ...]               each side as [[px, size], ...], best first
    "rates": [[symbol, rate, hours, at_ms], ...]       the funding rate, the hours that it is for, and when it is paid
    "transport": "websocket" or "polling"              how the quotes come
    "missing": [what, message]                         "marks", "depth" or "funding" failed; a null message: it is back
    "now_ms"                                           in a line that follows a request

`now_ms` is the exchange's clock by the Date header of its answer, or null. A failure is {"id": 1, "error": {"kind":
..., "message": ..., "after_ms": ...}} with the kinds of `KINDS`. The process ends when stdin closes. With --base-url
(loopback only) every request goes to BASE_URL/HOST/PATH instead of the exchange.
"""

import argparse
import asyncio
import difflib
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any

KINDS = ("unknown_exchange", "unknown_symbol", "unsupported", "country", "key", "busy", "unreachable", "failed")
# The bytes of a request.
LINE_BYTES_MAX = 1 << 20
# The bytes of an exchange's answer: the markets of a large one take about 20 MB
BODY_BYTES_MAX = 1 << 26
TIMEOUT_MS = 20_000
LOOPBACK = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
COUNTRY = re.compile(r"restricted location|from your country|your region|eligib|not available in|geo", re.IGNORECASE)
STATUS = re.compile(r" ([1-5][0-9]{2}) ")
UNTIL = re.compile(r"until ([0-9]{13})")
# The password of an address: //user:password@host.
PASSWORD = re.compile(r"//\S*@")
MESSAGE_CHARS_MAX = 400
# time between two requests of the quotes
POLL_SECONDS = 1.0
# time between two lines of one kind of data from a WebSocket
PACE_SECONDS = 0.25
# the longest wait for a message before the newest data are looked at again
IDLE_SECONDS = 1.0
# time for the first message of a WebSocket; then the quotes are polled
OPEN_SECONDS = 10.0
# The time of polling before the WebSocket is tried again.
RETRY_SECONDS = 600.0
# symbols in one subscription: fewer than the limit of every exchange
GROUP_MAX = 100
# time between two requests of the mark prices
MARK_SECONDS = 5.0
# time between two requests of the funding rates
RATE_SECONDS = 60.0
# time between two requests of one market's book
BOOK_SECONDS = 10.0
# time between the requests of two books
BOOK_GAP_SECONDS = 1.0
BOOK_LEVELS = 100
# The hours of a funding rate, if the exchange says nothing else.
FUNDING_HOURS = 8


class RefusedRequest(Exception):
    """A request that cannot be answered; has the kind and the message of the answer."""

    def __init__(self, kind: str, message: str, after_ms: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.after_ms = after_ms


class Feeder:
    """Exchanges by name, opened when first asked for."""

    def __init__(self, ccxt: Any, pro: Any, base_url: str | None) -> None:
        self.ccxt = ccxt
        # exchanges of ccxt.pro, with WebSockets; not all exchanges have them
        self.pro = pro
        self.base_url = base_url
        self.opened: dict[str, Any] = {}

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of the answer to one request."""
        try:
            exchange = self.exchange(request["exchange"])
            result = await OPERATIONS[request["op"]](self, exchange, request)
            return {"now_ms": now_of(exchange), "result": result}
        except Exception as error:  # noqa: BLE001 - every failure is an answer, and the other requests go on
            return self.no(request, error)

    def no(self, request: dict[str, Any], error: Exception) -> dict[str, Any]:
        """The body of the answer to a request that failed."""
        if isinstance(error, RefusedRequest):
            return {"error": {"kind": error.kind, "message": str(error), "after_ms": error.after_ms}}
        return {"error": failure(self.ccxt, self.opened.get(str(request.get("exchange"))), error)}

    async def watch(self, request: dict[str, Any]) -> None:
        """Write the data of some markets until the quotes fail. Then write the failure."""
        try:
            exchange = self.exchange(request["exchange"])
            groups: dict[str, list[str]] = {}
            markets = await self.markets(exchange)
            for symbol in request["symbols"]:
                if symbol not in markets:
                    # The market was delisted. The others go on, and its silence tells the caller.
                    continue
                groups.setdefault(exchange.market(symbol)["type"], []).append(symbol)
            await Watch(self.ccxt, exchange, list(groups.values()), partial(answered, request["id"])).run()
        except Exception as error:  # noqa: BLE001 - as for every request
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            write({"id": request["id"], **self.no(request, error)})

    def exchange(self, name: str) -> Any:
        if name in self.opened:
            return self.opened[name]
        if name not in self.ccxt.exchanges:
            near = difflib.get_close_matches(name, self.ccxt.exchanges, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.ccxt.exchanges)}"
            raise RefusedRequest("unknown_exchange", f"ccxt {self.ccxt.__version__} knows no exchange {name!r}; {hint}")
        # timeout_on_exit: exchanges are closed when the process ends, and it need not wait for its sockets.
        options = {"timeout": TIMEOUT_MS, "aiohttp_trust_env": self.base_url is None, "timeout_on_exit": 0}
        client = getattr(self.pro, name, getattr(self.ccxt, name))(
            {**options, "enableRateLimit": self.base_url is None}
        )
        if self.base_url is not None:
            client.urls["api"] = redirected(client.urls["api"], self.base_url, client)
        self.opened[name] = client
        return client

    async def markets(self, exchange: Any) -> Any:
        return await exchange.load_markets()

    async def instruments(self, exchange: Any, request: dict[str, Any]) -> Any:
        markets = await self.markets(exchange)
        return [
            instrument(self.ccxt, exchange, market)
            for market in markets.values()
            if market["spot"] or market["contract"]
        ]

    async def candles(self, exchange: Any, request: dict[str, Any]) -> Any:
        interval = request["interval"]
        if not exchange.has.get("fetchOHLCV"):
            raise RefusedRequest("unsupported", f"{exchange.id} offers no candles")
        if interval not in (exchange.timeframes or {}):
            offered = ", ".join(exchange.timeframes or {})
            raise RefusedRequest("unsupported", f"{exchange.id} has no {interval} candles; it has {offered}")
        await self.known(exchange, request["symbol"])
        return await exchange.fetch_ohlcv(request["symbol"], interval, request["since_ms"], request["limit"])

    async def funding(self, exchange: Any, request: dict[str, Any]) -> Any:
        if not exchange.has.get("fetchFundingRateHistory"):
            raise RefusedRequest("unsupported", f"{exchange.id} offers no history of funding rates")
        await self.known(exchange, request["symbol"])
        rows = await exchange.fetch_funding_rate_history(request["symbol"], request["since_ms"], request["limit"])
        return [[row["timestamp"], row["fundingRate"]] for row in rows]

    async def known(self, exchange: Any, symbol: str) -> None:
        if symbol in await self.markets(exchange):
            return
        near = difflib.get_close_matches(symbol, exchange.symbols, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(exchange.symbols)} others"
        raise RefusedRequest("unknown_symbol", f"{exchange.id} has no market {symbol!r}; {hint}")

    async def close(self) -> None:
        for exchange in self.opened.values():
            await exchange.close()


OPERATIONS = {"instruments": Feeder.instruments, "candles": Feeder.candles, "funding": Feeder.funding}


class Watch:
    """The data of one `watch` request. Quotes must come; without marks, depth or funding the others go on."""

    def __init__(self, ccxt: Any, exchange: Any, groups: list[list[str]], answer: Callable[..., None]) -> None:
        self.ccxt = ccxt
        self.exchange = exchange
        self.groups = [group[at : at + GROUP_MAX] for group in groups for at in range(0, len(group), GROUP_MAX)]
        self.contracts = [group for group in self.groups if exchange.market(group[0])["contract"]]
        self.answer = answer
        # Otherwise tickers or funding rates have the mark prices.
        self.has_marks = self.has("watchMarkPrices") or self.has("fetchMarkPrices")
        self.transport: str | None = None
        # the newest row of each kind and symbol
        self.written: dict[tuple[str, str], list[Any]] = {}
        self.missing: set[str] = set()

    async def run(self) -> None:
        # A WebSocket sends the price of a quiet market only when it changes.
        await self.poll_quotes()
        async with asyncio.TaskGroup() as tasks:
            for kind in (self.quotes, self.marks, self.depth, self.funding):
                tasks.create_task(kind())

    def has(self, name: str) -> bool:
        """Whether the exchange itself offers this method of ccxt."""
        return self.exchange.has.get(name) is True

    # ── Quotes ──

    async def quotes(self) -> None:
        name = next((name for name in ("watchBidsAsks", "watchTickers") if self.has(name)), None)
        watch = {"watchBidsAsks": "watch_bids_asks", "watchTickers": "watch_tickers", None: None}[name]
        while True:
            if watch is not None and self.groups:
                await self.follow(getattr(self.exchange, watch), self.groups, self.write_quotes)
            self.transport = "polling"
            end = time.monotonic() + RETRY_SECONDS
            while time.monotonic() < end:
                await self.poll_quotes()
                await asyncio.sleep(POLL_SECONDS)

    async def poll_quotes(self) -> None:
        read = self.exchange.fetch_bids_asks if self.has("fetchBidsAsks") else self.exchange.fetch_tickers
        for group in self.groups:
            tickers = list((await read(group)).values())
            self.answer(
                quotes=[quote(ticker) for ticker in tickers],
                marks=self.beside(tickers),
                transport=self.transport,
                now_ms=now_of(self.exchange),
            )

    def write_quotes(self) -> bool:
        """Write the quotes that are new in ccxt's caches. True if there are any."""
        tickers = [self.cached(symbol) for symbol in chain(*self.groups)]
        rows = self.fresh("quotes", [quote(ticker) for ticker in tickers if ticker.get("bid") and ticker.get("ask")])
        if rows:
            self.transport = "websocket"
            self.answer(quotes=rows, transport=self.transport)
        return bool(rows)

    def cached(self, symbol: str) -> dict[str, Any]:
        """The newest ticker of a symbol that a WebSocket sent."""
        ticker: dict[str, Any] = (self.exchange.bidsasks or {}).get(symbol) or (self.exchange.tickers or {}).get(
            symbol, {}
        )
        return ticker

    def fresh(self, kind: str, rows: list[list[Any]]) -> list[list[Any]]:
        """The rows that differ from those written before."""
        new = [row for row in rows if self.written.get((kind, row[0])) != row]
        self.written.update({(kind, row[0]): row for row in new})
        return new

    async def follow(
        self, watch: Callable[[list[str]], Any], groups: list[list[str]], emit: Callable[[], bool]
    ) -> None:
        """Write what a WebSocket sends, until it fails.

        Returns if it cannot be opened or does not send what is needed.
        """
        pending = {asyncio.ensure_future(watch(group)): group for group in groups}
        try:
            done, _ = await asyncio.wait(pending, timeout=OPEN_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            if not done or any(task.exception() for task in done) or not emit():
                return
            while True:
                for task in [task for task in pending if task.done()]:
                    group = pending.pop(task)
                    await task
                    # One always waits, so that it hears the end.
                    pending[asyncio.ensure_future(watch(group))] = group
                emit()
                await asyncio.sleep(PACE_SECONDS)
                await asyncio.wait(pending, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    # ── Marks, depth, funding ──

    async def marks(self) -> None:
        """The exchange's marks. Where it has no request for them, they come beside its tickers or its funding rates."""
        while self.contracts and self.has_marks:
            if self.has("watchMarkPrices"):
                await self.follow(self.exchange.watch_mark_prices, self.contracts, self.write_marks)
            end = time.monotonic() + RETRY_SECONDS
            while time.monotonic() < end:
                if self.has("fetchMarkPrices"):
                    await self.tried("marks", self.poll_marks())
                await asyncio.sleep(MARK_SECONDS)

    async def poll_marks(self) -> None:
        for group in self.contracts:
            self.answer(marks=[mark(row) for row in (await self.exchange.fetch_mark_prices(group)).values()])

    def beside(self, rows: list[dict[str, Any]]) -> list[list[Any]]:
        """The marks in tickers or funding rates, if there is no request for marks."""
        return [] if self.has_marks else [mark(row) for row in rows if row.get("markPrice")]

    def write_marks(self) -> bool:
        tickers = [(self.exchange.tickers or {}).get(symbol, {}) for symbol in chain(*self.contracts)]
        rows = self.fresh("marks", [mark(ticker) for ticker in tickers if ticker.get("markPrice")])
        if rows:
            self.answer(marks=rows)
        return bool(rows)

    async def depth(self) -> None:
        symbols = list(chain(*self.groups))
        while symbols and self.has("fetchOrderBook"):
            for symbol in symbols:
                await self.tried("depth", self.book(symbol))
                await asyncio.sleep(max(BOOK_GAP_SECONDS, BOOK_SECONDS / len(symbols)))

    async def book(self, symbol: str) -> None:
        order_book = await self.exchange.fetch_order_book(symbol, BOOK_LEVELS)
        # sizes are counted in contracts
        contract = float(self.exchange.market(symbol).get("contractSize") or 1)
        sides = [
            [[px, size * contract] for px, size, *_ in order_book[side][:BOOK_LEVELS]] for side in ("bids", "asks")
        ]
        self.answer(books=[[symbol, *sides]], now_ms=now_of(self.exchange))

    async def funding(self) -> None:
        while self.contracts and (self.has("fetchFundingRates") or self.has("fetchFundingRate")):
            await self.tried("funding", self.rates())
            await asyncio.sleep(RATE_SECONDS if self.has_marks else MARK_SECONDS)

    async def rates(self) -> None:
        hours: dict[str, Any] = {}
        for group in self.contracts:
            if self.has("fetchFundingIntervals"):
                hours = await self.exchange.fetch_funding_intervals(group)
            if self.has("fetchFundingRates"):
                funding_rates = list((await self.exchange.fetch_funding_rates(group)).values())
            else:
                funding_rates = [await self.exchange.fetch_funding_rate(symbol) for symbol in group]
            rows = [
                [rate["symbol"], rate["fundingRate"], hours_of(hours.get(rate["symbol"]), rate), paid_at(rate)]
                for rate in funding_rates
            ]
            self.answer(rates=[row for row in rows if row[1] is not None], marks=self.beside(funding_rates))

    async def tried(self, what: str, asked: Awaitable[None]) -> None:
        """Wait for a request that may fail. The caller hears of its failure, and of its return."""
        try:
            await asked
        except Exception as error:  # noqa: BLE001 - the quotes go on without it
            self.missing.add(what)
            self.answer(missing=[what, failure(self.ccxt, self.exchange, error)["message"]])
        else:
            if what in self.missing:
                self.missing.remove(what)
                self.answer(missing=[what, None])


def redirected(urls: Any, base_url: str, exchange: Any) -> Any:
    """The addresses of an exchange with BASE_URL/HOST in place of scheme and host."""
    if isinstance(urls, dict):
        return {name: redirected(url, base_url, exchange) for name, url in urls.items()}
    if isinstance(urls, str):
        return re.sub(r"^[a-z]+://", base_url + "/", exchange.implode_hostname(urls))
    return urls


def instrument(ccxt: Any, exchange: Any, market: dict[str, Any]) -> dict[str, Any]:
    """A market in the fields of bot.market_data.source.Instrument. Numbers are texts or null."""
    steps = {name: market["precision"].get(name) for name in ("price", "amount")}
    if exchange.precisionMode == ccxt.DECIMAL_PLACES:
        steps = {name: None if places is None else f"1e-{int(places)}" for name, places in steps.items()}
    elif exchange.precisionMode == ccxt.SIGNIFICANT_DIGITS:
        steps["price"] = None
    contract = Decimal(str(market.get("contractSize") or 1))
    # sizes are counted in contracts
    step = None if steps["amount"] is None else Decimal(str(steps["amount"])) * contract
    limits = market["limits"]
    return {
        "symbol": market["symbol"],
        "base": market["base"],
        "quote": market["quote"],
        "kind": "spot" if market["spot"] else market["type"],
        "linear": bool(market.get("linear")),
        "active": market.get("active") is not False,
        "listed_ms": market.get("created"),
        "taker": text(market.get("taker")),
        "maker": text(market.get("maker")),
        "tick": text(steps["price"]),
        "size_step": None if step is None else f"{step:f}",
        "min_notional": text((limits.get("cost") or {}).get("min")),
        "max_leverage": text((limits.get("leverage") or {}).get("max")),
    }


def quote(ticker: dict[str, Any]) -> list[Any]:
    """A ticker of ccxt as a quote of `watch`."""
    return [ticker[name] for name in ("symbol", "timestamp", "bid", "ask", "last")]


def mark(ticker: dict[str, Any]) -> list[Any]:
    """A ticker or a funding rate of ccxt as a mark of `watch`."""
    return [ticker["symbol"], ticker.get("timestamp"), ticker["markPrice"]]


def hours_of(*rates: dict[str, Any] | None) -> int:
    """The hours that a funding rate is for, by the first of these that tells them."""
    told = (str(rate.get("interval") or "") for rate in rates if rate is not None)
    return next((int(text[:-1]) for text in told if re.fullmatch(r"[1-9][0-9]?h", text)), FUNDING_HOURS)


def paid_at(rate: dict[str, Any]) -> int | None:
    """An instant at which this funding is paid; None if the exchange tells none."""
    timestamp = rate.get("fundingTimestamp") or rate.get("nextFundingTimestamp")
    return None if timestamp is None else int(timestamp)


def text(value: Any) -> str | None:
    return None if value is None else str(value)


def now_of(exchange: Any) -> int | None:
    """The exchange's clock by the Date header of its last answer; None if there is none."""
    headers = {name.lower(): value for name, value in (exchange.last_response_headers or {}).items()}
    try:
        return int(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
    except (KeyError, TypeError, ValueError):
        return None


def failure(ccxt: Any, exchange: Any, error: Exception) -> dict[str, Any]:
    """An exception of ccxt as the error of an answer."""
    message = plain(error) or type(error).__name__
    status = STATUS.search(message)
    code = int(status[1]) if status else 0
    kind = "failed"
    if isinstance(error, ccxt.RestrictedLocation) or code == 451 or (code == 403 and COUNTRY.search(message)):
        kind = "country"
    elif isinstance(error, ccxt.AuthenticationError) or ("requires" in message and "credential" in message):
        kind = "key"
    elif isinstance(error, ccxt.BadSymbol):
        kind = "unknown_symbol"
    elif isinstance(error, ccxt.NotSupported):
        kind = "unsupported"
    elif isinstance(error, (ccxt.RateLimitExceeded, ccxt.DDoSProtection)):
        return {"kind": "busy", "message": message, "after_ms": wait_of(exchange, message)}
    elif isinstance(error, (ccxt.NetworkError, ccxt.BadResponse)) or is_cut(error.__cause__):
        kind = "unreachable"
        if error.__cause__ is not None:
            message = f"{message}: {plain(error.__cause__)}"
    return {"kind": kind, "message": message, "after_ms": None}


def plain(error: BaseException) -> str:
    """The text of an error in one line, without the control characters that an exchange may have sent and without
    the password of a proxy.
    """
    text = PASSWORD.sub("//***@", "".join(c if c.isprintable() else " " for c in str(error)))
    return " ".join(text.split())[:MESSAGE_CHARS_MAX]


def is_cut(cause: BaseException | None) -> bool:
    """Whether the connection failed. ccxt raises a plain ExchangeError then."""
    return isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] == "aiohttp"


def wait_of(exchange: Any, message: str) -> int | None:
    """The milliseconds that an exchange tells to wait, by the Retry-After header or the end of a ban;

    None if it tells none.
    """
    headers = (
        {name.lower(): value for name, value in (exchange.last_response_headers or {}).items()} if exchange else {}
    )
    if re.fullmatch(r"[0-9]{1,6}", headers.get("retry-after", "")):
        return int(headers["retry-after"]) * 1000
    until = UNTIL.search(message)
    return max(0, int(until[1]) - exchange.milliseconds()) if until and exchange else None


def answered(number: int, **body: Any) -> None:
    """Write one line of data."""
    write({"id": number, **body})


def write(body: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def bound_answers() -> None:
    """Read at most BODY_BYTES_MAX of an answer, counted as it is after decompression. ccxt has no such limit."""
    import aiohttp

    read_all = aiohttp.ClientResponse.read

    async def read(answer: Any) -> bytes:
        if answer._body is None:  # noqa: SLF001 - where the library keeps the body that it has read
            body = bytearray()
            async for part in answer.content.iter_any():
                if len(body) + len(part) > BODY_BYTES_MAX:
                    answer.close()
                    raise aiohttp.ClientPayloadError(f"the answer is larger than {BODY_BYTES_MAX:,} bytes")
                body += part
            answer._body = bytes(body)  # noqa: SLF001
        whole: bytes = await read_all(answer)
        return whole

    aiohttp.ClientResponse.read = read


async def serve(feeder: Feeder) -> None:
    """Answer the requests of stdin until it closes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(request: dict[str, Any]) -> None:
        if request["op"] == "watch":
            await feeder.watch(request)
        else:
            write({"id": request["id"], **await feeder.answer(request)})

    try:
        while line := await reader.readline():
            task = asyncio.create_task(handle(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await feeder.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="ccxt for Bracketbot: JSON lines on stdin and stdout.")
    parser.add_argument("--base-url", help="A server on this machine to ask in place of the exchanges (tests).")
    base_url = parser.parse_args().base_url
    if base_url is not None and not LOOPBACK.fullmatch(base_url):
        parser.error("--base-url must be http://127.0.0.1:PORT")
    try:
        import ccxt.async_support as ccxt
        from ccxt import pro
    except ImportError as error:
        write({"id": 0, "error": {"kind": "no_ccxt", "message": str(error)}})
        sys.exit(3)
    bound_answers()
    write({"id": 0, "result": ccxt.__version__})
    try:
        asyncio.run(serve(Feeder(ccxt, pro, base_url)))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


if __name__ == "__main__":
    main()
