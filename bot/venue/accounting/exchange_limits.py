"""What forbids new entries on an account at an exchange, beside the limits of every account."""

from __future__ import annotations

from typing import Final

from bot.errors import Refusal
from bot.venue.model.state import ExchangeAccount, VenueAccount

# An order carries the instant at which it expires, by the exchange's clock.
CLOCK_MAX_MS: Final = 30_000
CLOCK: Final = "clock"
AUDIT: Final = "audit"
# stands for every market
EVERY: Final = ""


def blocked(exchange: ExchangeAccount) -> tuple[str, ...]:
    """The coins whose books differ from the exchange's, in order. EVERY alone: no coin explains the difference."""
    differences = () if exchange.audit is None else exchange.audit.differences
    coins = tuple(sorted({row.coin for row in differences if row.coin != EVERY}))
    return coins or ((EVERY,) if differences else ())


def refuse(account: VenueAccount, coin: str) -> Refusal | None:
    """The first rule that forbids an entry in this market, if any. A sandbox account has no such rule."""
    exchange = account.exchange
    if exchange is None:
        return None
    if abs(exchange.clock_difference_ms) > CLOCK_MAX_MS:
        seconds = exchange.clock_difference_ms / 1000
        text = (
            f"the exchange's clock is {seconds:+,.1f} s from the service's, and entries need at most"
            f" {CLOCK_MAX_MS // 1000} s; nothing was sent, set the service's clock"
        )
        return Refusal("service_unavailable", text, details={"reason": CLOCK})
    for name in blocked(exchange):
        if name in (coin, EVERY):
            assert exchange.audit is not None
            difference = next(row for row in exchange.audit.differences if row.coin == name)
            text = (
                f"the books differ from the exchange's: {difference.text}; run bot audit, and correct the books with"
                " bot exchange check --accept"
            )
            return Refusal("service_unavailable", text, details={"reason": AUDIT})
    return None
