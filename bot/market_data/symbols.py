"""The symbol of a source for a coin: a perpetual in dollars, else spot; `COIN=SYMBOL` names another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bot.market_data.source import Instrument, NotOffered
from bot.words import meant_markets

# best first
DOLLARS: Final = ("USDT", "USDC", "USD")
# KPEPE: a thousand PEPE, which exchanges list as 1000PEPE or kPEPE
THOUSANDS: Final = "K"


class MappedCoin(NamedTuple):
    """A coin of ours and its symbol at the source. `instrument` is None at a source without a list."""

    coin: str
    symbol: str
    instrument: Instrument | None


def mapped(text: str, instruments: Sequence[Instrument], source: str) -> MappedCoin:
    """The symbol for COIN or COIN=SYMBOL. NotOffered with similar names if the source has none."""
    coin, given, symbol = text.partition("=")
    if given:
        listed = next((instrument for instrument in instruments if instrument.symbol == symbol), None)
        if listed is None and instruments:
            raise NotOffered(
                f"{source} has no market {symbol!r}; {_near(symbol, [instrument.symbol for instrument in instruments])}"
            )
        return MappedCoin(coin, symbol, listed)
    if not instruments:
        return MappedCoin(coin, coin, None)
    bases = [coin, f"1000{coin[1:]}", f"k{coin[1:]}"] if coin.startswith(THOUSANDS) else [coin]
    ranked = sorted(
        (
            instrument
            for instrument in instruments
            if instrument.base in bases and instrument.quote in DOLLARS and _is_usable(instrument)
        ),
        key=_rank,
    )
    if not ranked:
        known = sorted({instrument.base for instrument in instruments if instrument.quote in DOLLARS})
        raise NotOffered(
            f"{source} has no perpetual and no spot market of {coin} in {', '.join(DOLLARS)}; {_near(coin, known)}"
            " COIN=SYMBOL names another market"
        )
    return MappedCoin(coin, ranked[0].symbol, ranked[0])


def _is_usable(instrument: Instrument) -> bool:
    return instrument.kind == "spot" or (instrument.kind == "swap" and instrument.linear)


def _rank(instrument: Instrument) -> tuple[bool, bool, int, str]:
    return not instrument.active, instrument.kind != "swap", DOLLARS.index(instrument.quote), instrument.symbol


def _near(name: str, known: Sequence[str]) -> str:
    near = meant_markets(name, known, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known[:12])} and others."
