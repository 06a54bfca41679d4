"""The fields of an info request: user, dex, coin, range of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.local_exchange.engine.state import Dex, Exchange, User
from bot.local_exchange.wire.actions import Malformed, number
from bot.local_exchange.wire.signatures import ADDRESS

Json = dict[str, Any]
Query = Mapping[str, Any]

# The rows of an answer over a range of time.
RANGE_ROWS: Final = 500
FILL_ROWS: Final = 2_000
NO_USER: Final = "0x" + "0" * 40
# an address that the exchange does not know: every list is empty
ANYONE: Final = User(NO_USER)

INTERVALS: Final = {
    **{f"{n}m": n * MINUTE_MS for n in (1, 3, 5, 15, 30)},
    **{f"{n}h": n * HOUR_MS for n in (1, 2, 4, 8, 12)},
    "1d": DAY_MS,
    "3d": 3 * DAY_MS,
    "1w": 7 * DAY_MS,
    "1M": 0,
}


class ServerFault(Exception):
    """The exchange answers this request with HTTP 500 and the body `null`."""


def text_in(query: Query, name: str, default: str | None = None) -> str:
    value = query.get(name, default)
    if value is None and default is not None:
        value = default
    if not isinstance(value, str):
        raise Malformed(f"{name}: expected text, found {value!r}")
    return value


def user_in(exchange: Exchange, query: Query) -> User:
    """The user of a query. An agent or an unknown address has empty lists."""
    address = text_in(query, "user").lower()
    if not ADDRESS.fullmatch(address):
        raise Malformed(f"user: expected an address of 40 hexadecimal digits, found {address[:60]!r}")
    return exchange.users.get(address) or ANYONE


def dex_in(exchange: Exchange, query: Query) -> Dex:
    name = text_in(query, "dex", "")
    for dex in exchange.dexes:
        if dex.name == name:
            return dex
    raise ServerFault(name)


def range_in(exchange: Exchange, query: Query) -> tuple[int, int]:
    """Start and end in milliseconds, both inclusive."""
    start = number(query.get("startTime"), "startTime")
    end = query.get("endTime")
    return start, exchange.now_ms if end is None else number(end, "endTime")
