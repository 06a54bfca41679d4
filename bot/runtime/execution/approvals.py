"""Agreement to entries: a planned entry is held until a person or a policy has agreed. Exits and protection never wait.

The plan is the proposal: it has a single-use token, it expires, and an expired plan is made anew while the decision is
fresh. An answer is in the journal before the token is used. Where nobody has answered, nothing is sent.

Two answers never open twice. An entry that waits ends in the transaction that writes what ends it: a newer entry of its
strategy in its market (`write_decision`), or an event that changes the position or the entries that it was decided on
(`end_outdated`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from bot.clock import iso
from bot.errors import BotError, StrategyError
from bot.logs import log
from bot.money import format_decimal
from bot.plain_text import one_line
from bot.runtime.alerts.messages import notice
from bot.runtime.execution.send_state import Ending
from bot.runtime.journal.approval_log import ApprovalRow, ApprovalState
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import Intent
from bot.runtime.model.limits import Approval, StrategyLimits
from bot.strategy import Proposal
from bot.strategy.hook_answers import refuse_unread
from bot.wire import Event, Plan

# A part of the price that was shown. Beyond it a person is asked again.
PRICE_MOVE_MAX: Final = Decimal("0.005")
ID_LETTERS_MIN: Final = 6
SHOWN_LETTERS: Final = 12
# characters of a reason
TEXT_MAX: Final = 200
# An assistant's proposal waits for a person, also where the config lets the strategy enter without one.
A_PERSON: Final = Approval()

REPLACED: Final = "a newer decision of the strategy in this market replaced it"
OUTDATED: Final = "the position or the orders in {market} have changed since the strategy decided it"
UNSEEN: Final = "the service no longer has the events since the strategy decided it"
# states of an entry of which no order can exist
UNSENT: Final = frozenset({"opened", "planned"})
# types of events
CHANGES_POSITION: Final = frozenset({"fill", "liquidation", "settlement"})

# the new intents
Write = Callable[..., list[Intent]]
# strategy and call -> the policy's answer
RunPolicy = Callable[[str, Callable[[], object]], Awaitable[object]]


async def run_policy_inline(_strategy: str, call: Callable[[], object]) -> object:
    return call()


class Waiting(NamedTuple):
    """An entry that waits for a person, and what is known of it."""

    intent: Intent
    row: ApprovalRow


class Approvals:
    """Which entries need an agreement, and who gave it.

    `unattended` is the answer of a backtest, where nobody can be asked (`leave_to`).
    """

    def __init__(
        self,
        journal: Journal,
        limits: Mapping[str, StrategyLimits],
        live: Mapping[str, Intent],
        marks: Mapping[str, float],
        now_ms: Callable[[], int],
        run_policy: RunPolicy = run_policy_inline,
    ) -> None:
        # asked, approved, refused, policy_failed, ...
        self.counts: Counter[str] = Counter()
        self.unattended: Literal["all", "none"] | None = None
        self._journal = journal
        self._limits = limits
        self._live = live
        self._marks = marks
        self._now_ms = now_ms
        self._run_policy = run_policy
        # strategy and trigger -> orders that this decision cancels
        self._canceled: dict[tuple[str, str], set[str]] = {}
        # Writes a decision as `Journal.decided` does. Once entries may wait, it also ends those that the decision
        # replaces.
        self.write_decision: Write = journal.decided
        # writes a page of events, and ends the entries that it changes
        self.take: Write = journal.take
        # True once entries may wait; until then a run pays nothing for them
        self.is_used = False
        if any(limit.approval is not None for limit in limits.values()) or journal.approvals.is_any_pending():
            self._use()

    # -- what the order sender asks

    def of(self, intent: Intent) -> Approval | None:
        """The rule that this entry falls under; None if nobody needs to agree."""
        if intent.is_proposed:
            self._use()
            return A_PERSON
        limits = self._limits.get(intent.strategy)
        approval = None if limits is None or intent.action != "open" else limits.approval
        if approval is None or intent.notional_usd <= approval.above_usd:
            return None
        self._use()
        return approval

    def leave_to(self, answer: Literal["all", "none"] | None) -> None:
        """Nobody can be asked: every entry that needs an answer gets this one. None: a person or a policy answers."""
        self.unattended = answer
        if answer is not None:
            self.is_used, self.write_decision, self.take = False, self._journal.decided, self._journal.take

    def _use(self) -> None:
        if not self.is_used and self.unattended is None:
            self.is_used, self.write_decision, self.take = True, self._write_decision, self._take

    def is_pending(self, intent: Intent) -> bool:
        """True if a planned entry must wait for an answer."""
        if intent.action != "open" or self.unattended is not None:
            return False
        row = self._journal.approvals.of(intent.id)
        return self.of(intent) is not None if row is None else row.state != "approved"

    def ending(self, intent: Intent) -> Ending | None:
        """Why an unsent entry ends: refused, superseded, or the price has left what was shown.

        The last one is planned again.
        """
        row = None if self.unattended is not None else self._journal.approvals.of(intent.id)
        if row is None or (intent.state == "opened" and row.state != "superseded"):
            return None
        if row.state == "refused":
            return Ending(
                "rejected", "not_approved", f"refused by {row.decider}{f': {row.reason}' if row.reason else ''}"
            )
        if row.state == "superseded":
            return Ending("expired", "superseded", row.reason or REPLACED)
        px = self._price(intent.market)
        if px is None or not _has_drifted(row.px, px):
            return None
        shown, now = format_decimal(row.px), format_decimal(px)
        return Ending("expired", "plan_stale", f"the price has drifted from {shown} to {now} while it waited")

    async def ask_policy(self, intent: Intent, plan: Plan) -> Ending | None:
        """Ask the strategy's policy, or the rule of a backtest.

        None: it agrees, or a person must be asked. Whatever fails is a refusal.
        """
        approval = self.of(intent)
        if approval is None:
            return None
        if approval.policy is None:
            no = self.unattended == "none"
            return (
                Ending("rejected", "not_approved", "--approve none: nobody approves in this backtest") if no else None
            )
        policy, proposal = approval.policy, _proposal(intent, plan, self._now_ms())
        try:
            answer = await self._run_policy(intent.strategy, lambda: policy(proposal))
            refuse_unread(answer, approval.policy_name)
        except Exception as error:  # noqa: BLE001 - a policy may raise anything, and every error refuses
            self.counts["policy_failed"] += 1
            why = str(error) if isinstance(error, StrategyError) else f"{type(error).__name__}: {error}"
            log.error(
                "approval.policy_failed",
                intent=intent.id,
                strategy=intent.strategy,
                policy=approval.policy_name,
                message=why,
            )
            return Ending("rejected", "policy_failed", f"the policy {approval.policy_name} failed: {plain_text(why)}")
        if answer is True:
            return None
        self.counts["refused"] += 1
        why = f": {plain_text(answer)}" if isinstance(answer, str) and answer else ""
        return Ending("rejected", "not_approved", f"refused by the policy {approval.policy_name}{why}")

    def propose(self, intent: Intent, plan: Plan) -> None:
        """Write that this plan waits for a person, or that the policy has agreed, in the transaction that writes the
        plan.

        A plan of the same decision at about the same price is the same question, so it causes no second notice.
        """
        approval = self.of(intent)
        if approval is None or self.unattended is not None or self._journal.approvals.of(intent.id) is not None:
            # The row of a new plan says that it was superseded while the service made it.
            return
        now_ms, px = self._now_ms(), self._price(intent.market) or plan.est_px or Decimal(0)
        figures = _figures(plan, intent) | self._origin(intent)
        if approval.policy is not None:
            self._write(
                ApprovalRow(intent.id, "approved", px, figures, now_ms, now_ms, f"the policy {approval.policy_name}")
            )
            return
        before = self._journal.approvals.newest_of(intent)
        is_known = before is not None and not _has_drifted(before.px, px)
        self._write(ApprovalRow(intent.id, "pending", before.px if before and is_known else px, figures, now_ms))
        if not is_known:
            text = {
                name: figures.get(name) for name in ("side", "size", "est_px", "notional_usd", "proposed_by", "why")
            }
            question = notice(
                "order.proposal" if intent.is_proposed else "order.approval",
                intent.id,
                at_ms=now_ms,
                market=intent.market,
                strategy=intent.strategy,
                id=intent.id[:SHOWN_LETTERS],
                until=iso(intent.not_after_ms),
                **text,
            )
            self._journal.notify([question], now_ms=now_ms)

    # -- what ends an entry that waits

    def _write_decision(
        self,
        intents: Sequence[Intent],
        *,
        states: Mapping[str, str] | None = None,
        bars: Sequence[tuple[str, str, int]] = (),
    ) -> list[Intent]:
        """`Journal.decided`, and in the same transaction the end of the waiting entries that these replace."""
        with self._journal.together():
            new = self._journal.decided(intents, states=states, bars=bars)
            self.end_replaced(new)
        return new

    def _take(self, events: Sequence[Event], last_id: str, **changes: Any) -> list[Intent]:
        """`Journal.take`, and in the same transaction the end of the waiting entries that the events or new entries
        end.
        """
        with self._journal.together():
            new = self._journal.take(events, last_id, **changes)
            self.end_outdated(events)
            self.end_replaced(new)
        return new

    def end_replaced(self, new: Sequence[Intent]) -> None:
        """End the waiting entries that these new entries replace.

        Call it in the transaction that writes the new ones.
        """
        places = {_place(intent): intent for intent in new if intent.action == "open"}
        for old in self._unsent() if places else ():
            newer = places.get(_place(old))
            if newer is not None and newer.trigger != old.trigger and newer.opened_ms >= old.opened_ms:
                self._supersede(old, REPLACED)
        for intent in new:
            if intent.action == "cancel":
                self._canceled.setdefault((intent.strategy, intent.trigger), set()).update(intent.cancel().oids)

    def end_outdated(self, events: Sequence[Event]) -> None:
        """End the waiting entries that were decided before these events changed their position or their orders.

        Call it in the transaction that writes the events. What the entry's own decision does, such as the close of a
        reversal, is no change.
        """
        changes = [(n, event) for n, event in enumerate(events) if _changes_account(event)]
        # what a hook has seen that decided on one of them
        seen = {self._journal.events.trigger_of(event.id, event.ts): n for n, event in enumerate(events)}
        for intent in self._unsent() if changes else ():
            first = seen.get(intent.trigger, -1) + 1
            if any(n >= first and self._is_outdated_by(event, intent) for n, event in changes):
                self._supersede(intent, OUTDATED.format(market=intent.market))

    def end_all(self) -> None:
        """End every waiting entry, because events since its decision are lost."""
        for intent in self._unsent() if self.is_used else ():
            self._supersede(intent, UNSEEN)

    def _unsent(self) -> list[Intent]:
        """The entries that need an answer and of which no order can exist: planned or not, asked or not, also
        approved ones that are held.
        """
        unsent = [intent for intent in self._live.values() if intent.action == "open" and intent.state in UNSENT]
        undecided = []
        for intent in unsent:
            row = self._journal.approvals.of(intent.id)
            if self.of(intent) is not None if row is None else row.state in ("pending", "approved"):
                undecided.append(intent)
        if not undecided:
            self._canceled.clear()
        return undecided

    def _on_its_way(self, intent: Intent) -> Intent | None:
        """An approved entry of another decision of this strategy in this market whose fill or order the events have
        not shown.
        """
        for rival in self._live.values():
            is_rival = (rival.strategy, rival.market, rival.action) == (intent.strategy, intent.market, "open")
            if is_rival and rival.trigger != intent.trigger and rival.state not in ("rejected", "expired", "void"):
                row = self._journal.approvals.of(rival.id)
                if row is not None and row.state == "approved":
                    return rival
        return None

    def _is_outdated_by(self, event: Event, intent: Intent) -> bool:
        if event.coin != intent.market:
            return False
        cause = None if event.idempotency_key is None else self._journal.intents.find(event.idempotency_key)
        if event.type == "order" and event.data.oid in self._canceled.get((intent.strategy, intent.trigger), ()):
            return False
        if cause is None:
            return True
        return cause.strategy == intent.strategy and cause.trigger != intent.trigger

    def _supersede(self, intent: Intent, reason: str) -> None:
        now_ms = self._now_ms()
        row = self._journal.approvals.of(intent.id) or ApprovalRow(intent.id, "pending", Decimal(0), {}, now_ms)
        self._write(row._replace(state="superseded", decided_ms=now_ms, reason=reason))
        log.info("approval.superseded", intent=intent.id, strategy=intent.strategy, market=intent.market, why=reason)

    # -- what a person asks

    def waiting(self) -> list[Waiting]:
        """The entries that wait for a person, oldest first."""
        pairs = [
            (intent, self._journal.approvals.of(intent.id))
            for intent in self._live.values()
            if intent.state == "planned"
        ]
        return [Waiting(intent, row) for intent, row in pairs if row is not None and row.state == "pending"]

    def decide(self, name: str, *, approve: bool, decider: str, reason: str | None = None) -> Intent:
        """Write the answer to the proposal with this id (or its first letters).

        BotError says why there is nothing to answer.
        """
        intent, row = self._waiting_intent(name)
        if approve and self._now_ms() >= intent.fence_ms:
            raise BotError(
                f"the plan of {name} has just expired; the daemon plans the entry again while it is fresh: bot"
                " approvals"
            )
        if approve and _has_drifted(row.px, self._price(intent.market) or row.px):
            raise BotError(
                f"the price of {intent.market} has drifted more than {PRICE_MOVE_MAX:.1%} from the"
                f" {format_decimal(row.px)} that was shown; the daemon plans the entry again and asks again: bot"
                " approvals"
            )
        if approve and (other := self._on_its_way(intent)) is not None:
            raise BotError(
                f"{other.id[:SHOWN_LETTERS]} of the same strategy and market is approved and not settled yet; what it"
                " opens may end this one: bot approvals shows what still waits then"
            )
        answer: ApprovalState = "approved" if approve else "refused"
        reason = plain_text(reason) if reason else None
        self._write(row._replace(state=answer, decided_ms=self._now_ms(), decider=plain_text(decider), reason=reason))
        log.warning(
            f"approval.{answer}", intent=intent.id, strategy=intent.strategy, market=intent.market, decider=decider
        )
        return intent

    def _waiting_intent(self, name: str) -> tuple[Intent, ApprovalRow]:
        if len(name) < ID_LETTERS_MIN or not name.isalnum():
            raise BotError(
                f"{name!r} is no id of a proposal: give at least {ID_LETTERS_MIN} letters of an id of bot approvals"
            )
        rows = self._journal.approvals.named(name.upper())
        if len(rows) != 1:
            problem = "more than one proposal begins with" if rows else "there is no proposal"
            raise BotError(f"{problem} {name}: bot approvals lists those that wait")
        (row,) = rows
        if row.state in ("approved", "refused") and row.decider is not None:
            raise BotError(f"{name} was {row.state} by {row.decider} at {iso(row.decided_ms or 0)} already")
        if row.state == "superseded":
            raise BotError(f"{name} does not wait any more: {row.reason or REPLACED}")
        asked = self._journal.intents.find(row.intent_id)
        for proposal in self.waiting():
            if proposal.intent.id == row.intent_id:
                return proposal
            if asked is not None and _decision(proposal.intent) == _decision(asked):
                # A newer plan at the price that the person saw.
                if proposal.row.px == row.px:
                    return proposal
                raise BotError(
                    f"{name} was replaced by {proposal.intent.id[:SHOWN_LETTERS]}, at another price: bot"
                    " approvals shows it"
                )
        code = "expired" if asked is None or asked.code is None else asked.code
        raise BotError(f"{name} does not wait any more ({code}); the strategy decides anew on its next bar")

    # -- parts

    def _origin(self, intent: Intent) -> dict[str, str]:
        """Who proposed the entry and why, as the proposer said it; nothing for a strategy's own entry."""
        if not intent.is_proposed:
            return {}
        origin = self._journal.approvals.origin_of(intent)
        return {"proposed_by": str(origin.get("by", "")), "why": str(origin.get("why", ""))}

    def _write(self, row: ApprovalRow) -> None:
        self.counts["asked" if row.state == "pending" else row.state] += 1
        self._journal.approvals.write(row)

    def _price(self, market: str) -> Decimal | None:
        mark = self._marks.get(market)
        return None if mark is None else Decimal(repr(mark))


def document(proposal: Waiting, now_ms: int) -> dict[str, Any]:
    """A waiting proposal for people and programs, without its token."""
    intent = proposal.intent
    return {
        "id": intent.id,
        "strategy": intent.strategy,
        "market": intent.market,
        **proposal.row.figures,
        "shown_px": format_decimal(proposal.row.px),
        "asked_ms": proposal.row.asked_ms,
        "plan_expires_ms": intent.token_expires_ms,
        "not_after_ms": intent.not_after_ms,
        "left_s": max(0, intent.not_after_ms - now_ms) // 1000,
    }


def _changes_account(event: Event) -> bool:
    """True for an event that changes a position or the resting entries.

    Stops and targets that are armed change neither.
    """
    return event.type in CHANGES_POSITION or (event.type == "order" and event.data.intent == "open")


def _place(intent: Intent) -> tuple[str, str, bool]:
    """A newer entry replaces one that waits at the same place.

    A strategy and an assistant do not replace each other's entries.
    """
    return intent.strategy, intent.market, intent.is_proposed


def _decision(intent: Intent) -> tuple[str, str, str, int]:
    return intent.strategy, intent.market, intent.trigger, intent.ordinal


def _has_drifted(shown: Decimal, px: Decimal) -> bool:
    return abs(px - shown) > PRICE_MOVE_MAX * abs(shown)


def plain_text(text: str) -> str:
    """Text of somebody else as one line that is safe to show, of TEXT_MAX characters at most."""
    return one_line(text, TEXT_MAX)


def _levels(plan: Plan) -> tuple[Decimal | None, Decimal | None]:
    bracket = plan.bracket
    stop = None if bracket is None or bracket.stop_loss is None else bracket.stop_loss.px
    return stop, None if bracket is None or bracket.take_profit is None else bracket.take_profit.px


def _figures(plan: Plan, intent: Intent) -> dict[str, Any]:
    stop, target = _levels(plan)
    values = {
        "size": plan.size,
        "est_px": plan.est_px,
        "notional_usd": plan.notional_usd,
        "stop_px": stop,
        "target_px": target,
    }
    return {"side": plan.side, "leverage": intent.order().leverage} | {
        name: None if value is None else format_decimal(value) for name, value in values.items()
    }


def _proposal(intent: Intent, plan: Plan, now_ms: int) -> Proposal:
    stop, target = _levels(plan)
    return Proposal(
        intent.strategy,
        intent.market,
        plan.side,
        plan.size,
        plan.est_px,
        plan.notional_usd,
        intent.order().leverage,
        stop,
        target,
        now_ms,
    )
