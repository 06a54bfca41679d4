"""Which quotes of a source become prices. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Final, NamedTuple

from bot.market_data.source import Quote

# The part of the price that one tick may move. A larger move needs a second quote and a second witness.
JUMP_MAX: Final = 0.05
# largest price in the quote currency; no market is near it
PX_MAX: Final = 10**9
# How long the quotes of a jump that no witness confirms or denies must hold: 5 s for 5 %, 15 min for a tenth.
MS_PER_PCT: Final = 1_000

REASONS: Final = ("no_price", "crossed", "out_of_order", "jump")


# The answer on a price: True confirms it, False denies it, None knows nothing.
Witness = Callable[[int], bool | None]


class Jump(NamedTuple):
    """A move of more than JUMP_MAX between two prices, scaled 1e8."""

    from_px: int
    to_px: int
    at_ms: int


def no_witness(_px: int) -> bool | None:
    return None


class QuoteFilter:
    """The quotes of one market in the order in which they came. `refused` counts the quotes that gave no price, by
    reason.

    Quotes that repeat a jump come from the same place as its first one, so they confirm nothing: a witness of another
    kind must, or the quotes must hold for MS_PER_PCT of each percent. A witness that denies a jump lets that time begin
    again.
    """

    def __init__(self, jump_max: float = JUMP_MAX, last: int | None = None) -> None:
        self.refused: Counter[str] = Counter()
        # the newest one that became a price
        self.jump: Jump | None = None
        self.jumps = 0
        # the newest valid price, also of a quote that is held, and when it came
        self.seen: tuple[int, int] | None = None
        self._jump_max = jump_max
        # the newest price; None: the next one is the first
        self._last = last
        self._last_ms = 0
        self._held: int | None = None
        # the instant of the first quote that jumped and waits for a second one
        self.held_since_ms = 0

    @property
    def held_jump(self) -> tuple[int, int] | None:
        """The last price, and the jump from it that waits for a witness."""
        return None if self._held is None or self._last is None else (self._last, self._held)

    def price(self, quote: Quote, now_ms: int = 0, witness: Witness = no_witness) -> int | None:
        """The price of a quote, scaled 1e8: the mid of bid and ask, else the last trade.

        None for a quote that is refused or held.
        """
        px = _price(quote)
        reason = px if isinstance(px, str) else None
        if reason is None and quote.at_ms is not None and quote.at_ms < self._last_ms:
            reason = "out_of_order"
        if reason is None:
            assert isinstance(px, int)
            self._last_ms = quote.at_ms or self._last_ms
            self.seen = px, now_ms
            if is_near(px, self._last, self._jump_max):
                self._last, self._held = px, None
                return px
            if self._is_confirmed(px, now_ms, witness):
                assert self._last is not None
                self.jump, self.jumps = Jump(self._last, px, now_ms), self.jumps + 1
                self._last, self._held = px, None
                return px
            reason = "jump"
        self.refused[reason] += 1
        return None

    def _is_confirmed(self, px: int, now_ms: int, witness: Witness) -> bool:
        """Whether this jump is a price now. Keeps it for the next quote if it is not."""
        held, self._held = self._held, px
        assert self._last is not None, "the first price is no jump"
        if held is None or not is_near(px, held, self._jump_max):
            self.held_since_ms = now_ms
            return False
        verdict = witness(px)
        if verdict is None:
            pct = abs(px - self._last) / min(px, self._last) * 100
            return now_ms - self.held_since_ms >= pct * MS_PER_PCT
        if not verdict:
            self.held_since_ms = now_ms
        return verdict


def is_near(px: int, other: int | None, jump_max: float = JUMP_MAX) -> bool:
    """True if a move from `other` to this price is no jump."""
    return other is None or abs(px - other) <= jump_max * other


def scaled(value: float) -> int:
    """A price or volume of a source, scaled 1e8.

    The float is read as the shortest decimal that gives it, which is the exchange's own text.
    """
    return int(Decimal(repr(value)).scaleb(8))


def _price(quote: Quote) -> int | str:
    """The price of one quote by itself, or the reason why it has none."""
    bid, ask, last = quote.bid, quote.ask, quote.last
    if bid is None or ask is None:
        return scaled(last) if last is not None and 0 < last < PX_MAX else "no_price"
    if not (0 < bid < PX_MAX and 0 < ask < PX_MAX):
        return "no_price"
    return "crossed" if bid > ask else (scaled(bid) + scaled(ask)) // 2
