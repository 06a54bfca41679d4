"""Converts state and commands to plain JSON values and back, for command log and snapshots. Derived fields are not
stored.

Every array begins with its kind: a class of the venue or an event followed by its fields in order, or "!l" a list, "!t"
a tuple, "!q" a deque, "!d" a dict (key, value, key, value ...), "!b" bytes. The order of fields is the format: a
snapshot of other classes cannot be read.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final

from bot.model import events
from bot.venue.model import commands, state

# Renamed classes keep the name that records written earlier have.
_STORED_NAMES: Final = {
    "FillEvent": "Fill",
    "RecordPage": "Page",
    "VenueAccount": "Account",
    "VenueAction": "Action",
    "VenueBracket": "Bracket",
    "VenueGuardian": "Guardian",
    "VenueKey": "Key",
    "VenueMarket": "Market",
    "VenueOrder": "Order",
    "VenuePlan": "Plan",
    "VenuePosition": "Position",
    "VenueTrade": "Trade",
    "VenueWebhook": "Webhook",
}
_DERIVED: Final = {
    "Market": {"falling", "rising", "ticks", "lot", "tiers", "level_sizes", "watches"},
    "State": {"deadlines", "fresh", "changed_actions", "preview"},
}
# types that JSON has too
_PLAIN: Final = frozenset({"int", "str", "bool", "None"})
# zlib's fastest level, because callers wait while a page is written
PACKING: Final = 1


def stored_name(cls: type) -> str:
    """The kind under which values of this class are written."""
    return _STORED_NAMES.get(cls.__name__, cls.__name__)


def _classes() -> dict[str, type]:
    classes: dict[str, type] = {stored_name(cls): cls for cls in events.CLASSES}
    for module in (state, commands):
        for value in vars(module).values():
            is_record = isinstance(value, type) and (is_dataclass(value) or issubclass(value, tuple))
            if is_record and value.__module__ == module.__name__:
                classes[stored_name(value)] = value
    return classes


CLASSES: Final = _classes()


def _fields(name: str, cls: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The stored fields of a class in order, and the positions (after the class name) of those that are not plain
    values.
    """
    if issubclass(cls, tuple):
        types = {field: of.__forward_arg__ for field, of in cls.__annotations__.items()}
        return tuple(types), tuple(at for at, field in enumerate(types, 1) if not _is_plain(types[field]))
    derived = _DERIVED.get(name, set())
    stored = tuple(f for f in fields(cls) if f.init and f.name not in derived)
    assert all(f.name in derived or not f.init for f in fields(cls)[len(stored) :]), name
    deep = (at for at, f in enumerate(stored, 1) if not _is_plain(str(f.type)))
    return tuple(f.name for f in stored), tuple(deep)


def _is_plain(annotation: str) -> bool:
    return set(annotation.split(" | ")) <= _PLAIN


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    getter: Any = attrgetter(*names) if names else lambda _: ()
    return getter if len(names) != 1 else lambda value: (getter(value),)


_SHAPES: Final = {cls: _fields(name, cls) for name, cls in CLASSES.items()}
# class -> (its name, a getter of all fields, the positions of fields that are not plain values)
_ROWS: Final = {cls: (stored_name(cls), _getter(names), deep) for cls, (names, deep) in _SHAPES.items()}
_SIMPLE: Final = frozenset({type(None), int, str, bool})


def encode(value: Any) -> Any:
    """The value as JSON values; see the module docstring."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    row = _ROWS.get(kind)
    if row is not None:
        name, get, deep = row
        if not deep:
            return (name, *get(value))
        encoded = [name, *get(value)]
        for at in deep:
            item = encoded[at]
            if type(item) not in _SIMPLE:
                encoded[at] = encode(item)
        return encoded
    if kind is tuple:
        return ["!t", *[item if type(item) in _SIMPLE else encode(item) for item in value]]
    if kind is list:
        return ["!l", *[item if type(item) in _SIMPLE else encode(item) for item in value]]
    if kind is deque:
        return ["!q", *[item if type(item) in _SIMPLE else encode(item) for item in value]]
    if kind is bytes:
        return ("!b", b64encode(value).decode())
    if isinstance(value, dict):
        plain: list[Any] = ["!d"]
        # dict.items, because a subclass may count its own reads.
        for key, item in dict.items(value):
            plain.append(key if type(key) in _SIMPLE else encode(key))
            plain.append(item if type(item) in _SIMPLE else encode(item))
        return plain
    raise TypeError(f"no plain form for {kind.__name__}")


def decode(plain: Any) -> Any:
    """The value that `encode` was given."""
    if type(plain) is not list:
        return plain
    name = plain[0]
    cls = CLASSES.get(name)
    if cls is not None:
        for at in _SHAPES[cls][1]:
            if at >= len(plain):
                # An older version wrote it, before the last fields were appended.
                break
            item = plain[at]
            if type(item) is list:
                plain[at] = decode(item)
        return cls(*plain[1:])
    return _PLURAL[name](plain)


_PLURAL: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "!t": lambda plain: tuple([decode(item) for item in plain[1:]]),
    "!l": lambda plain: [decode(item) for item in plain[1:]],
    "!q": lambda plain: deque([decode(item) for item in plain[1:]]),
    "!b": lambda plain: b64decode(plain[1]),
    "!d": lambda plain: {decode(plain[at]): decode(plain[at + 1]) for at in range(1, len(plain), 2)},
}

_to_json: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
).encode


def dumps(value: Any) -> str:
    """Canonical JSON text: the same value always gives the same bytes."""
    return _to_json(encode(value))


def loads(text: str | bytes) -> Any:
    return decode(json.loads(text))


def digest(value: Any) -> str:
    """SHA-256 of the canonical text. The digest of a state does not depend on which events are packed into pages."""
    if isinstance(value, state.State):
        value = replace(value, accounts={name: opened(account) for name, account in dict.items(value.accounts)})
    return sha256(dumps(value).encode()).hexdigest()


# ── Events ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# The numbers of fields of the events of earlier versions, newest version first, where fields were appended since.
# Hashes in their logs cover only those.
_FIELDS_BEFORE: Final[tuple[dict[str, int], ...]] = (
    {"Fill": 23, "FundingPaid": 10, "AccountChanged": 13},
    {"Fill": 22, "FundingPaid": 10, "AccountChanged": 13, "Liquidated": 14, "Settled": 13},
)


def _encode_as_before(counts: dict[str, int], event: events.Event) -> Any:
    """An event as an older version, without the newer fields, wrote it."""
    plain = encode(event)
    return plain[: 1 + counts.get(plain[0], len(plain))]


ENCODERS_BEFORE: Final = tuple(partial(_encode_as_before, counts) for counts in _FIELDS_BEFORE)


def pack(records: Iterable[events.Event | state.VenueTrade]) -> bytes:
    """Pack a page of events or trades."""
    return zlib.compress(_to_json([encode(record) for record in records]).encode(), PACKING)


def unpack(packed: bytes) -> list[Any]:
    """The records of a page."""
    return [decode(plain) for plain in json.loads(zlib.decompress(packed))]


def opened(account: state.VenueAccount) -> state.VenueAccount:
    """The same account with all events and trades unpacked."""
    if not account.pages and not account.trade_pages:
        return account
    happened = [event for page in account.pages for event in unpack(page.packed)]
    happened += account.events
    trades = [trade for page in account.trade_pages for trade in unpack(page.packed)]
    stored = deque(happened[len(happened) - account.events_kept() :])
    trades += account.trades
    keys = {trade.idempotency_key: trade.id for trade in trades if trade.idempotency_key is not None}
    return replace(account, events=stored, trades=trades, pages=[], trade_pages=[], trade_by_key=keys, old_keys=[])
