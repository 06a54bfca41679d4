"""When an entry may ask for another plan.

Each plan is a leg of the decision with its own key, so two legs are never one order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bot.runtime.model.intents import Intent, intent_key

# plans of one entry; if the market outruns all of them, the next bar decides anew
PLANS_MAX: Final = 3
# The plans of an entry that somebody must approve: with plans of 60 s it waits for 30 minutes.
APPROVAL_PLANS_MAX: Final = 30


def legs(plans_max: int) -> tuple[str, ...]:
    return tuple("order" if n == 1 else f"order-{n}" for n in range(1, plans_max + 1))


LEGS: Final = legs(PLANS_MAX)
APPROVAL_LEGS: Final = legs(APPROVAL_PLANS_MAX)


def next_leg(intent: Intent, *, address: str, now_ms: int, needs_approval: bool = False) -> Intent | None:
    """The same entry under a new plan, if the old plan is stale and its token is proven unused. None if there is
    nothing to plan again.

    The proof is the final state: outcome.py ends an intent with plan_stale only if no copy of its confirm was executed
    or can be. Exits have no plan, and an entry is not planned again after its `not_after_ms`.
    """
    if intent.action != "open" or intent.code != "plan_stale" or intent.state not in ("rejected", "expired"):
        return None
    names = APPROVAL_LEGS if needs_approval else LEGS
    if intent.leg not in names[:-1] or now_ms >= intent.not_after_ms:
        return None
    leg = names[names.index(intent.leg) + 1]
    key = intent_key(
        address=address,
        epoch=intent.epoch,
        strategy=intent.strategy,
        market=intent.market,
        trigger=intent.trigger,
        ordinal=intent.ordinal,
        leg=leg,
    )
    return replace(
        intent,
        id=key,
        leg=leg,
        state="opened",
        attempts=0,
        confirm_token=None,
        token_expires_ms=None,
        trade_id=None,
        code=None,
        message=None,
        opened_ms=now_ms,
    )
