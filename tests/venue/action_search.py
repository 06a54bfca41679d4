"""Every order of events in the life of one action, driven through the real state machine.

The network loses, delays and repeats copies of the action and of its void; answers are lost; the service restarts at
any moment; what was performed is seen 1.2 s later at the latest. Time goes through the instants of a grid.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bot.venue.exchange import action_lifecycle as life
from bot.venue.exchange.action_lifecycle import Seen, TrackedAction

LAG_MS = 1_200
# The instants at which the machine does something else than before, and some between them.
GRID_MS = (0, 300, 1_500, 3_000, 6_000, 6_500, 7_400, 8_100, 14_900, 15_001, 16_300, 17_001, 17_400, 19_000)
SHORT_GRID_MS = (0, 1_500, 6_000, 8_100, 15_001, 17_001)


@dataclass(frozen=True, slots=True)
class Life:
    """One state: what the service knows, and what the network and the exchange have.

    `orders` and `voids`: copies on the way. `replies`: on their way back. `performed_ms`: when it was last performed.
    `told`: what the client was told; `is_asked_anew`: another action for the same wish exists.
    """

    action: TrackedAction
    at: int = 0
    orders: int = 0
    voids: int = 0
    is_used: bool = False
    is_refused: bool = False
    performed: int = 0
    performed_ms: int = 0
    is_visible: bool = False
    replies: frozenset[Seen] = frozenset()
    told: str | None = None
    is_asked_anew: bool = False
    has_forgotten: bool = False


class Search:
    """`copies`: at most so many on the way. `forgets`: the exchange may lose the nonces of the agent, once."""

    def __init__(self, *, grid_ms: tuple[int, ...] = GRID_MS, copies: int = 2, forgets: bool = False) -> None:
        self.grid_ms, self.copies, self.forgets = grid_ms, copies, forgets
        self.faults: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.states = 0

    def run(self, *, ends_at_a_fault: bool = False) -> Search:
        start = Life(TrackedAction(nonce=1, is_entry=True, made_ms=0, expires_ms=life.EXPIRY_MS))
        known, waiting = {start}, deque([start])
        while waiting:
            state = waiting.popleft()
            self.states += 1
            self._check(state)
            if ends_at_a_fault and self.faults:
                return self
            for following in map(self._canonical, self._following(state)):
                if following not in known:
                    known.add(following)
                    waiting.append(following)
        return self

    def _check(self, state: Life) -> None:
        action, performed = state.action, state.performed
        if performed > 1 and not state.has_forgotten:
            self.faults["performed twice"] += 1
        if state.told == "no order" and performed:
            self.faults["told that there is no order, and there is one"] += 1
        if state.told == "placed" and not performed:
            self.faults["told an order that does not exist"] += 1
        if state.is_asked_anew and performed:
            self.faults["two actions for one wish can both act"] += 1
        if action.status in life.NO_ORDER and performed and not state.has_forgotten:
            self.faults["ended without an order, and there is one"] += 1
        # Every step that can be waited for is due a moment later.
        later_ms = self.grid_ms[-1] + life.LOOK_EVERY_MS
        is_last = state.at == len(self.grid_ms) - 1 and state.told is None
        if is_last and life.step(action, later_ms, later_ms) is None:
            self.ends[action.status] += 1
            if not life.may_be_told(action):
                self.faults["nothing to do, and no end that may be told"] += 1

    def _now(self, state: Life) -> int:
        return self.grid_ms[state.at]

    def _canonical(self, state: Life) -> Life:
        """One of all states that differ only in what nothing depends on any more."""
        if state.told is not None:
            ended = TrackedAction(nonce=1, is_entry=True, made_ms=0, expires_ms=life.EXPIRY_MS, status="placed")
            return replace(
                state, action=ended, performed_ms=0, replies=frozenset(), at=self._at(state), is_visible=True
            )
        now_ms, action = self._now(state), state.action
        pause_ms = life.VOID_PAUSES_MS[min(action.voids, len(life.VOID_PAUSES_MS)) - 1]
        used_ms = action.used_ms
        if used_ms is not None:
            used_ms = max(used_ms, now_ms - life.PATIENCE_MS)
        action = replace(
            action,
            used_ms=used_ms,
            sent_ms=_recent(action.sent_ms, life.RESEND_MS, now_ms),
            looked_ms=_recent(action.looked_ms, life.LOOK_EVERY_MS, now_ms),
            voided_ms=_recent(action.voided_ms, pause_ms, now_ms),
        )
        return replace(state, action=action, performed_ms=0 if state.is_visible else state.performed_ms)

    def _at(self, state: Life) -> int:
        """Of all instants, only whether the action has expired matters to copies on the way."""
        is_expired = self._now(state) > state.action.expires_ms
        return len(self.grid_ms) - 1 if is_expired else 0

    def _following(self, state: Life) -> Iterator[Life]:
        yield from self._network(state)
        yield from self._exchange(state)
        if state.told is None:
            yield from self._service(state)
        if state.at + 1 < len(self.grid_ms):
            is_seen_by_then = state.performed > 0 and self.grid_ms[state.at + 1] - state.performed_ms >= LAG_MS
            yield replace(state, at=state.at + 1, is_visible=state.is_visible or is_seen_by_then)

    def _network(self, state: Life) -> Iterator[Life]:
        """A copy is lost or arrives; its answer is lost or is on its way back."""
        if state.orders:
            left = replace(state, orders=state.orders - 1)
            yield left
            for after, reply in self._arrived(left):
                yield after
                yield replace(after, replies=after.replies | {reply})
        if state.voids:
            left = replace(state, voids=state.voids - 1)
            yield left
            reply = "nonce_used" if state.is_used else "void_done"
            after = replace(left, is_used=True)
            yield after
            yield replace(after, replies=after.replies | {reply})

    def _arrived(self, state: Life) -> Iterator[tuple[Life, Seen]]:
        if state.is_used:
            yield state, "nonce_used"
            return
        used = replace(state, is_used=True)
        yield replace(used, is_refused=True), "refused"
        if self._now(state) <= state.action.expires_ms:
            yield replace(used, performed=state.performed + 1, performed_ms=self._now(state)), "placed"

    def _exchange(self, state: Life) -> Iterator[Life]:
        if state.performed and not state.is_visible:
            yield replace(state, is_visible=True)
        if self.forgets and state.is_used and not state.has_forgotten:
            yield replace(state, is_used=False, has_forgotten=True)

    def _service(self, state: Life) -> Iterator[Life]:
        action, now_ms = state.action, self._now(state)
        for reply in state.replies:
            yield replace(state, action=life.seen(action, reply, now_ms, now_ms), replies=state.replies - {reply})
        if state.is_visible:
            yield replace(state, action=life.seen(action, "placed", now_ms, now_ms))
        # The service ends and starts again: answers that are on their way are lost.
        yield replace(state, action=life.after_restart(action), replies=frozenset())
        if action.status == "open":
            # The client's own deadline, or a kill.
            yield replace(state, action=life.given_up(action))
        yield from self._done(state, now_ms)
        if life.may_be_told(action):
            yield replace(state, told="placed" if action.status == "placed" else "no order")
        if life.may_ask_anew(action):
            yield replace(state, is_asked_anew=True, told="no order")

    def _done(self, state: Life, now_ms: int) -> Iterator[Life]:
        action = state.action
        step = life.step(action, now_ms, now_ms)
        if step == "send" and state.orders < self.copies:
            yield replace(state, action=life.sent(action, now_ms), orders=state.orders + 1)
        elif step == "void" and state.voids < self.copies:
            yield replace(state, action=life.voided(action, now_ms), voids=state.voids + 1)
        elif step == "give_up":
            yield replace(state, action=life.given_up(action))
        elif step == "look":
            asked = replace(state, action=life.looked(action, now_ms))
            if state.is_visible:
                answers: tuple[Seen, ...] = ("placed",)
            else:
                answers = ("unknown", "known_refused") if state.is_refused and not state.performed else ("unknown",)
            for answer in answers:
                yield replace(asked, action=life.seen(asked.action, answer, now_ms, now_ms))


def _recent(last_ms: int | None, pause_ms: int, now_ms: int) -> int | None:
    """An instant that the next step still waits for; None if it waits no more."""
    return last_ms if last_ms is not None and now_ms - last_ms < pause_ms else None
