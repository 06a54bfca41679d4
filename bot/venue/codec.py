"""State and commands as plain JSON values, and back: what a command log and a snapshot hold. Derived fields stay out."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any, Final

from bot.venue import commands, events, state

_TAG: Final = "!"
_DERIVED: Final = {
    "Market": {"falling", "rising", "ticks", "lot", "tiers", "level_sizes"},
    "State": {"deadlines", "fresh", "quoted"},
}


def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (state, commands, events):
        for name, value in vars(module).items():
            if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__:
                found[name] = value
    return found


CLASSES: Final = _classes()
_FIELDS: Final = {
    cls: tuple(f.name for f in fields(cls) if f.init and f.name not in _DERIVED.get(name, ()))
    for name, cls in CLASSES.items()
}


def encode(value: Any) -> Any:
    """A dataclass as {"!": name, ...fields}; a tuple, a deque or a dict as {"!t"|"!q"|"!d": [...]}."""
    if value is None or isinstance(value, (int, str, bool)):
        return value
    kind = type(value)
    if kind in _FIELDS:
        return {_TAG: kind.__name__, **{name: encode(getattr(value, name)) for name in _FIELDS[kind]}}
    if kind is list:
        return [encode(item) for item in value]
    if kind is tuple:
        return {"!t": [encode(item) for item in value]}
    if kind is deque:
        return {"!q": [encode(item) for item in value]}
    if kind is dict:
        return {"!d": [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(f"no plain form for {kind.__name__}")


def decode(plain: Any) -> Any:
    """The value that `encode` was given."""
    if isinstance(plain, list):
        return [decode(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG in plain:
        cls = CLASSES[plain[_TAG]]
        return cls(**{name: decode(item) for name, item in plain.items() if name != _TAG})
    if "!t" in plain:
        return tuple(decode(item) for item in plain["!t"])
    if "!q" in plain:
        return deque(decode(item) for item in plain["!q"])
    return {decode(key): decode(item) for key, item in plain["!d"]}


def dumps(value: Any) -> str:
    """Canonical JSON text: the same value always gives the same bytes."""
    return json.dumps(encode(value), separators=(",", ":"), ensure_ascii=True, sort_keys=True)


def loads(text: str | bytes) -> Any:
    return decode(json.loads(text))


def digest(value: Any) -> str:
    """SHA-256 of the canonical text."""
    return sha256(dumps(value).encode()).hexdigest()
