"""The registered sources by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from bot.market_data.source import NotOffered, Source, SourceError
from bot.plugins import names_of, offered

GROUP: Final = "bot.market_data"


def open_source(text: str) -> Source:
    """The source that `text` names: `ccxt:binance`, `yfinance`. NotOffered with similar names if there is none."""
    name, _, argument = text.partition(":")
    known = names_of(GROUP)
    offer = offered(GROUP, name)
    if offer is None:
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        hint = (
            f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none; install the package again'}"
        )
        exchange = f" (an exchange is written ccxt:{name})" if "ccxt" in known and not argument else ""
        raise NotOffered(f"source {name!r} is not known; {hint}{exchange}")
    try:
        source: Source = offer.load()(argument)
    except (ImportError, AttributeError) as error:
        raise SourceError(f"source {name!r} of {offer.value} cannot be loaded: {error}") from None
    return source
