"""The differences between two configs: path, before, after. Defaults are filled in on both sides.

Secrets are compared but never shown: both sides read as hidden. Pure; loads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, SecretStr

from bot.config.references import Referred
from bot.config.settings import Settings
from bot.logs import HIDDEN, is_secret_name, redact_text
from bot.money import format_decimal

ABSENT: Final = None


class Change(NamedTuple):
    """One difference. `old` None: the key is new; `new` None: the key was removed. Both are text to show."""

    path: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"+ {self.path}: {self.new}"
        if self.new is None:
            return f"- {self.path}: {self.old}"
        return f"~ {self.path}: {self.old} -> {self.new}"


def diff(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Every difference, in the order of the schema. Strategies are matched by name."""
    return tuple(_walk("", "", old, new))


def _walk(path: str, key: str, old: Any, new: Any) -> Iterator[Change]:
    before, after = _keyed(old), _keyed(new)
    if before is None or after is None:
        if not _same(old, new):
            yield Change(path, _shown(key, old), _shown(key, new))
        return
    for name in dict.fromkeys([*before, *after]):
        there = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}" if path else str(name)
        # Every value below a secret's name is a secret.
        inner = key if is_secret_name(key) or isinstance(name, int) else str(name)
        if name not in before:
            yield Change(there, ABSENT, _shown(inner, after[name]) or "null")
        elif name not in after:
            yield Change(there, _shown(inner, before[name]) or "null", ABSENT)
        else:
            yield from _walk(there, inner, before[name], after[name])


def _keyed(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a value by name; None for a value that is compared whole."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple | list) and value and all(isinstance(item, BaseModel) for item in value):
        names = [getattr(item, "name", None) for item in value]
        if all(names):
            return dict(zip(names, value, strict=True))
        return dict(enumerate(value))
    return None


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, SecretStr) and isinstance(new, SecretStr):
        return old.get_secret_value() == new.get_secret_value()
    if isinstance(old, bool) or isinstance(new, bool):
        return type(old) is type(new) and old == new
    return bool(old == new)


def _shown(key: str, value: Any) -> str:
    plain = _plain(key, value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(key: str, value: Any) -> Any:
    """The value as text or JSON. It hides secrets, found by type, by origin, by name and by form."""
    if isinstance(value, SecretStr | Referred) or (value is not None and is_secret_name(key)):
        return HIDDEN
    if isinstance(value, BaseModel):
        return {name: _plain(name, getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(name): _plain(str(name), inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(key, inner) for inner in value]
    if isinstance(value, Decimal):
        return format_decimal(value)
    if isinstance(value, str):
        return redact_text(value)
    return str(value) if isinstance(value, Path | bytes) else value
