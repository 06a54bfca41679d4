"""Legs: when a decision may ask for another plan. One pure function; the key of each leg is its own, so no two can be one order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bot.runtime.model.intents import Intent, intent_key

PLANS_MAX: Final = 3  # of one entry; a market that outruns three plans is left to the next bar
LEGS: Final = tuple("order" if n == 1 else f"order-{n}" for n in range(1, PLANS_MAX + 1))


def next_leg(intent: Intent, *, address: str, now_ms: int) -> Intent | None:
    """The same entry under a new plan, when the old one has gone stale and its token is proven unused.

    The proof is the final state: outcome.py ends an intent with plan_stale only when no copy of its confirm can have been, or
    can yet be, executed. Exits have no plan; and nothing is asked for past the instant at which the entry itself is too old.
    """
    if intent.action != "open" or intent.code != "plan_stale" or intent.state not in ("rejected", "expired"):
        return None
    if intent.leg not in LEGS[:-1] or now_ms >= intent.not_after_ms:
        return None
    leg = LEGS[LEGS.index(intent.leg) + 1]
    key = intent_key(
        address=address, epoch=intent.epoch, strategy=intent.strategy, market=intent.market, trigger=intent.trigger,
        ordinal=intent.ordinal, leg=leg,
    )  # fmt: skip
    return replace(
        intent, id=key, leg=leg, state="opened", attempts=0, confirm_token=None, token_expires_ms=None, trade_id=None,
        code=None, message=None, opened_ms=now_ms,
    )  # fmt: skip
