"""Refusals that several commands share."""

from __future__ import annotations

from collections.abc import Collection

from bot.errors import Refusal
from bot.words import meant_market


def no_market(name: str, listed: Collection[str], *, field: str | None = None) -> Refusal:
    """No listed market has this name. `field`: the path of the name in the body, if the name alone is not clear."""
    near = meant_market(name, listed)
    text = f"no market {name if name.isprintable() else ascii(name)}"
    text = text if field is None else f"{field}: {text}"
    text = text if near is None else f"{text}; did you mean {near}?"
    return Refusal("not_found", text, fix={"action": "search_markets", "path": "/v1/markets"})
