"""The life of one action at an exchange, from its commit to an end that may be told. Pure: instants are arguments.

The exchange performs an action at most once under its nonce, and not after its expiry. Doubt about an action ends by an
answer, a report, a void with its nonce or its expiry, and never by age. `TRANSITIONS` says what each thing that is seen
means, `step` what is to be done next.

Instants in `_ms` are of this machine's clock, those in `exchange_ms` and `expires_ms` of the exchange's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from bot.venue.orders import exchange_actions

# open: it may have been sent. voiding: it is not wanted any more, and whether it was performed must be known.
# placed: it was performed. refused: nothing came of it. void: it was not performed and cannot be any more.
ActionStatus = Literal["open", "voiding", "placed", "refused", "void"]
NO_ORDER: Final[frozenset[ActionStatus]] = frozenset(("refused", "void"))
ENDED: Final = NO_ORDER | {"placed"}
# placed: an answer, a report or a lookup shows its order. refused: an answer says that nothing came of it.
# nonce_used: duplicate, or too low. malformed: the exchange could not read this copy. not_sent: the link kept it back.
# wrong_signer: the exchange takes the signature for another's. void_done: the void with its nonce was performed.
# unknown, known_refused: a lookup that was asked at the given instants does not know the order, or shows it as refused.
Seen = Literal[
    "placed", "refused", "nonce_used", "malformed", "not_sent", "wrong_signer", "void_done", "unknown", "known_refused"
]
Step = Literal["send", "give_up", "void", "look"]

EXPIRY_MS: Final = exchange_actions.EXPIRY_MS
RESEND_MS: Final = 1_500
# An entry that is in doubt for so long is not wanted any more. Everything else is wanted until it expires.
GIVE_UP_MS: Final = 6_000
VOID_PAUSES_MS: Final = (500, 1_000, 2_000, 4_000, 5_000)
LOOK_EVERY_MS: Final = 300
# What the exchange has performed is seen by lookups after 1.2 s at the latest.
PATIENCE_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class TrackedAction:
    """`copies`: sent so often; 2 means twice or more often. `used_ms`: since when its nonce is known to be used.

    `is_final`: an end without an order that may be told, because no copy can act and no order was hidden.
    """

    nonce: int
    is_entry: bool
    made_ms: int
    expires_ms: int
    status: ActionStatus = "open"
    is_final: bool = False
    is_frozen: bool = False
    copies: int = 0
    voids: int = 0
    used_ms: int | None = None
    sent_ms: int | None = None
    voided_ms: int | None = None
    looked_ms: int | None = None


# ── What is seen ────────────────────────────────────────────────────────────────────────────────────────────────────


def _place(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    return replace(action, status="placed", is_final=False)


def _refuse(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    """The refusal of the only copy is final; another copy could act if the exchange forgot the nonces of the agent."""
    return replace(action, status="refused", is_final=action.copies <= 1)


def _show_refused(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    """A lookup shows the newest order under our id. An answer that has come late says nothing about a later copy."""
    return replace(action, status="refused", is_final=_is_over(action, exchange_ms))


def _note_used(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    return action if action.used_ms is not None else replace(action, used_ms=now_ms)


def _drop_copy(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    """This copy has not left the link. If it was the only one, nothing can come of the action."""
    if action.copies > 1:
        return action
    return replace(action, status="refused", is_final=True, copies=0)


def _disregard(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    """The exchange has not read this copy. Another one may be on its way."""
    return _refuse(action, now_ms, exchange_ms) if action.copies <= 1 else action


def _freeze(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    return replace(action, is_frozen=True)


def _void(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    return replace(action, status="void")


def _miss(action: TrackedAction, now_ms: int, exchange_ms: int) -> TrackedAction:
    """A lookup does not know the order: a proof after the expiry, and if the nonce was used long enough before."""
    if _is_over(action, exchange_ms):
        return replace(action, status=action.status if action.status in NO_ORDER else "void", is_final=True)
    is_proof = action.used_ms is not None and now_ms - action.used_ms >= PATIENCE_MS
    return replace(action, status="refused") if is_proof and action.status not in NO_ORDER else action


def _is_over(action: TrackedAction, exchange_ms: int) -> bool:
    """True if no copy can act any more, and whatever was performed is seen."""
    return exchange_ms > action.expires_ms + PATIENCE_MS


Transition = Callable[[TrackedAction, int, int], TrackedAction]
# What is not here changes nothing. An order that is seen after an end without one is believed.
TRANSITIONS: Final[Mapping[tuple[ActionStatus, Seen], Transition]] = {
    ("open", "placed"): _place,
    ("open", "refused"): _refuse,
    ("open", "nonce_used"): _note_used,
    ("open", "malformed"): _disregard,
    ("open", "not_sent"): _drop_copy,
    ("open", "wrong_signer"): _freeze,
    ("open", "unknown"): _miss,
    ("open", "known_refused"): _show_refused,
    ("voiding", "placed"): _place,
    ("voiding", "refused"): _refuse,
    ("voiding", "nonce_used"): _note_used,
    ("voiding", "wrong_signer"): _freeze,
    ("voiding", "void_done"): _void,
    ("voiding", "unknown"): _miss,
    ("voiding", "known_refused"): _show_refused,
    ("refused", "placed"): _place,
    ("refused", "known_refused"): _show_refused,
    ("refused", "unknown"): _miss,
    ("void", "placed"): _place,
    ("void", "known_refused"): _show_refused,
    ("void", "unknown"): _miss,
}


def seen(action: TrackedAction, what: Seen, now_ms: int, exchange_ms: int) -> TrackedAction:
    """The action after something was seen of it. The instants of a lookup are those at which it was asked."""
    transition = TRANSITIONS.get((action.status, what))
    return action if transition is None else transition(action, now_ms, exchange_ms)


# ── What is to be done ──────────────────────────────────────────────────────────────────────────────────────────────


def step(action: TrackedAction, now_ms: int, exchange_ms: int) -> Step | None:
    """What is to be done now; None: nothing yet, or nothing any more."""
    if action.status == "placed" or action.is_final:
        return None
    if _is_over(action, exchange_ms) or (action.used_ms is not None and action.status not in NO_ORDER):
        return "look" if _is_due(action.looked_ms, LOOK_EVERY_MS, now_ms) else None
    if action.status == "open" and action.is_entry and now_ms - action.made_ms >= GIVE_UP_MS:
        return "give_up"
    if action.is_frozen or action.status in NO_ORDER or exchange_ms > action.expires_ms:
        return None
    if action.status == "open":
        return "send" if _is_due(action.sent_ms, RESEND_MS, now_ms) else None
    pause_ms = VOID_PAUSES_MS[min(action.voids, len(VOID_PAUSES_MS)) - 1]
    return "void" if _is_due(action.voided_ms, pause_ms, now_ms) else None


def _is_due(last_ms: int | None, pause_ms: int, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms >= pause_ms


def sent(action: TrackedAction, now_ms: int) -> TrackedAction:
    """The action is handed to the link now, so a copy of it may act from now on."""
    return replace(action, copies=min(action.copies + 1, 2), sent_ms=now_ms)


def voided(action: TrackedAction, now_ms: int) -> TrackedAction:
    return replace(action, voids=min(action.voids + 1, len(VOID_PAUSES_MS)), voided_ms=now_ms)


def looked(action: TrackedAction, now_ms: int) -> TrackedAction:
    return replace(action, looked_ms=now_ms)


def given_up(action: TrackedAction) -> TrackedAction:
    """Give up an open action: it was in doubt for a while, its client's deadline has passed, or a kill came."""
    return replace(action, status="voiding") if action.status == "open" else action


def after_restart(action: TrackedAction) -> TrackedAction:
    """What the log knows of an action. How often it was sent is not known, so it counts as sent more than once."""
    return replace(
        action, copies=2, voids=0, used_ms=None, sent_ms=None, voided_ms=None, looked_ms=None, is_frozen=False
    )


def next_step_ms(action: TrackedAction, now_ms: int, exchange_ms: int) -> int | None:
    """The earliest instant of this machine's clock at which there may be something to do; None: never by time alone."""
    if action.status == "placed" or action.is_final:
        return None
    if step(action, now_ms, exchange_ms) is not None:
        return now_ms
    ahead_ms = exchange_ms - now_ms
    pause_ms = VOID_PAUSES_MS[min(action.voids, len(VOID_PAUSES_MS)) - 1]
    instants = [
        None if action.looked_ms is None else action.looked_ms + LOOK_EVERY_MS,
        None if action.sent_ms is None else action.sent_ms + RESEND_MS,
        None if action.voided_ms is None else action.voided_ms + pause_ms,
        action.made_ms + GIVE_UP_MS if action.is_entry else None,
        action.expires_ms + PATIENCE_MS + 1 - ahead_ms,
    ]
    return min(at_ms for at_ms in instants if at_ms is not None and at_ms > now_ms)


# ── What may be told ────────────────────────────────────────────────────────────────────────────────────────────────


def may_be_told(action: TrackedAction) -> bool:
    """True if the client may learn the end. Until then its key answers that the request is in flight.

    The exchange may forget the nonces of an agent that is replaced, and then even a void action could act until its
    expiry. So an end without an order is told when a lookup after the expiry has not found one; at once only if the
    exchange has refused the only copy.
    """
    return action.status == "placed" or action.is_final


def may_ask_anew(action: TrackedAction) -> bool:
    """True if the same wish may be asked again under a new nonce. Then two nonces cannot both act."""
    return action.status in NO_ORDER and may_be_told(action)
