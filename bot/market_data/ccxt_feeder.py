"""The process that runs ccxt: a request per line on stdin, answers as JSON lines on stdout. It imports the standard library and ccxt, nothing of bot.

A separate interpreter may run this file by its path, because ccxt pins versions that may differ from ours. Requests are answered as they finish:

    {"id": 1, "op": "instruments", "exchange": "binance"}       -> {"id": 1, "now_ms": ..., "result": [...]}
    {"id": 2, "op": "candles", "exchange": "binance", "symbol": "BTC/USDT:USDT", "interval": "1m", "since_ms": ..., "limit": 1000}
    {"id": 3, "op": "funding", "exchange": "binance", "symbol": "BTC/USDT:USDT", "since_ms": ..., "limit": 1000}
    {"id": 4, "op": "watch", "exchange": "binance", "symbols": ["BTC/USDT:USDT"]}

`watch` is answered by a line for each batch of quotes, {"id": 4, "quotes": [[symbol, at_ms, bid, ask, last], ...]}, until a failure or the end. A quote
has null for each value that the exchange does not send. `now_ms` is the exchange's clock by the Date header of its answer, or null. A failure is
{"id": 1, "error": {"kind": ..., "message": ..., "after_ms": ...}} with the kinds of `KINDS`. The process ends when stdin closes. With --base-url (loopback only) every request goes to BASE_URL/HOST/PATH instead of the exchange.
"""

import argparse
import asyncio
import difflib
import json
import re
import sys
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

KINDS = ("unknown_exchange", "unknown_symbol", "unsupported", "country", "key", "busy", "unreachable", "failed")
LINE_BYTES_MAX = 1 << 20  # of a request
TIMEOUT_MS = 20_000
LOOPBACK = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
COUNTRY = re.compile(r"restricted location|from your country|your region|eligib|not available in|geo", re.IGNORECASE)
STATUS = re.compile(r" ([1-5][0-9]{2}) ")
UNTIL = re.compile(r"until ([0-9]{13})")
PASSWORD = re.compile(r"//\S*@")  # of an address: //user:password@host
MESSAGE_CHARS_MAX = 400
POLL_SECONDS = 1.0  # between two requests of the quotes


class Refused(Exception):
    """A request that cannot be answered; has the kind and the message of the answer."""

    def __init__(self, kind: str, message: str, after_ms: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.after_ms = after_ms


class Feeder:
    """Exchanges by name, opened when first asked for."""

    def __init__(self, ccxt: Any, base_url: str | None) -> None:
        self.ccxt = ccxt
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
        if isinstance(error, Refused):
            return {"error": {"kind": error.kind, "message": str(error), "after_ms": error.after_ms}}
        return {"error": failure(self.ccxt, self.opened.get(str(request.get("exchange"))), error)}

    async def watch(self, request: dict[str, Any]) -> None:
        """Write the quotes of some markets until one request fails. Then write the failure."""
        try:
            exchange = self.exchange(request["exchange"])
            groups: dict[str, list[str]] = {}
            markets = await self.markets(exchange)
            for symbol in request["symbols"]:
                if symbol not in markets:
                    continue  # It was delisted. The others go on, and its silence tells the caller.
                groups.setdefault(exchange.market(symbol)["type"], []).append(symbol)
            read = exchange.fetch_bids_asks if exchange.has.get("fetchBidsAsks") is True else exchange.fetch_tickers
            while True:
                for symbols in groups.values():
                    quotes = [quote(one) for one in (await read(symbols)).values()]
                    write({"id": request["id"], "quotes": quotes})
                await asyncio.sleep(POLL_SECONDS)
        except Exception as error:  # noqa: BLE001 - as for every request
            write({"id": request["id"], **self.no(request, error)})

    def exchange(self, name: str) -> Any:
        if name in self.opened:
            return self.opened[name]
        if name not in self.ccxt.exchanges:
            near = difflib.get_close_matches(name, self.ccxt.exchanges, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.ccxt.exchanges)}"
            raise Refused("unknown_exchange", f"ccxt {self.ccxt.__version__} knows no exchange {name!r}; {hint}")
        options = {"timeout": TIMEOUT_MS, "aiohttp_trust_env": self.base_url is None}
        made = getattr(self.ccxt, name)({**options, "enableRateLimit": self.base_url is None})
        if self.base_url is not None:
            made.urls["api"] = redirected(made.urls["api"], self.base_url, made)
        self.opened[name] = made
        return made

    async def markets(self, exchange: Any) -> Any:
        return await exchange.load_markets()

    async def instruments(self, exchange: Any, request: dict[str, Any]) -> Any:
        markets = await self.markets(exchange)
        return [instrument(self.ccxt, exchange, one) for one in markets.values() if one["spot"] or one["contract"]]

    async def candles(self, exchange: Any, request: dict[str, Any]) -> Any:
        interval = request["interval"]
        if not exchange.has.get("fetchOHLCV"):
            raise Refused("unsupported", f"{exchange.id} offers no candles")
        if interval not in (exchange.timeframes or {}):
            offered = ", ".join(exchange.timeframes or {})
            raise Refused("unsupported", f"{exchange.id} has no {interval} candles; it has {offered}")
        await self.known(exchange, request["symbol"])
        return await exchange.fetch_ohlcv(request["symbol"], interval, request["since_ms"], request["limit"])

    async def funding(self, exchange: Any, request: dict[str, Any]) -> Any:
        if not exchange.has.get("fetchFundingRateHistory"):
            raise Refused("unsupported", f"{exchange.id} offers no history of funding rates")
        await self.known(exchange, request["symbol"])
        rows = await exchange.fetch_funding_rate_history(request["symbol"], request["since_ms"], request["limit"])
        return [[row["timestamp"], row["fundingRate"]] for row in rows]

    async def known(self, exchange: Any, symbol: str) -> None:
        if symbol in await self.markets(exchange):
            return
        near = difflib.get_close_matches(symbol, exchange.symbols, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(exchange.symbols)} others"
        raise Refused("unknown_symbol", f"{exchange.id} has no market {symbol!r}; {hint}")

    async def close(self) -> None:
        for exchange in self.opened.values():
            await exchange.close()


OPERATIONS = {"instruments": Feeder.instruments, "candles": Feeder.candles, "funding": Feeder.funding}


def redirected(urls: Any, base_url: str, exchange: Any) -> Any:
    """The addresses of an exchange with BASE_URL/HOST in place of scheme and host."""
    if isinstance(urls, dict):
        return {name: redirected(one, base_url, exchange) for name, one in urls.items()}
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
    step = (
        None if steps["amount"] is None else Decimal(str(steps["amount"])) * contract
    )  # sizes are counted in contracts
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
    """The text of an error in one line, without the control characters that an exchange may have sent and without the password of a proxy."""
    text = PASSWORD.sub("//***@", "".join(c if c.isprintable() else " " for c in str(error)))
    return " ".join(text.split())[:MESSAGE_CHARS_MAX]


def is_cut(cause: BaseException | None) -> bool:
    """Whether the connection failed. ccxt raises a plain ExchangeError then."""
    return isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] == "aiohttp"


def wait_of(exchange: Any, message: str) -> int | None:
    """The milliseconds that an exchange tells to wait, by the Retry-After header or the end of a ban; None if it tells none."""
    headers = (
        {name.lower(): value for name, value in (exchange.last_response_headers or {}).items()} if exchange else {}
    )
    if re.fullmatch(r"[0-9]{1,6}", headers.get("retry-after", "")):
        return int(headers["retry-after"]) * 1000
    until = UNTIL.search(message)
    return max(0, int(until[1]) - exchange.milliseconds()) if until and exchange else None


def write(body: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


async def serve(feeder: Feeder) -> None:
    """Answer the requests of stdin until it closes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()

    async def one(request: dict[str, Any]) -> None:
        if request["op"] == "watch":
            await feeder.watch(request)
        else:
            write({"id": request["id"], **await feeder.answer(request)})

    try:
        while line := await reader.readline():
            task = asyncio.create_task(one(json.loads(line)))
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
    except ImportError as error:
        write({"id": 0, "error": {"kind": "no_ccxt", "message": str(error)}})
        sys.exit(3)
    write({"id": 0, "result": ccxt.__version__})
    try:
        asyncio.run(serve(Feeder(ccxt, base_url)))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


if __name__ == "__main__":
    main()
