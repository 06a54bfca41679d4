"""Agreement to entries: a planned entry is held until a person or a policy has agreed. Exits and protection never wait.

The plan is the proposal: it has a single-use token, it expires, and an expired plan is made anew while the decision is fresh. An answer is
in the journal before the token is used. Where nobody has answered, nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from bot import logs
from bot.clock import iso
from bot.errors import BotError, StrategyError
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
from bot.wire import Plan

log = logs.FastLogger()

DRIFT: Final = Decimal("0.005")  # of the price that was shown; beyond it a person is asked again
ID_LETTERS_MIN: Final = 6
SHOWN_LETTERS: Final = 12
TEXT_MAX: Final = 200  # characters of a reason
A_PERSON: Final = Approval()  # the rule for what an assistant proposes, whatever the config says

RunPolicy = Callable[[str, Callable[[], object]], Awaitable[object]]  # strategy and call -> the policy's answer


async def run_policy_inline(_strategy: str, call: Callable[[], object]) -> object:
    return call()


class Waiting(NamedTuple):
    """An entry that waits for a person, and what is known of it."""

    intent: Intent
    row: ApprovalRow


class Approvals:
    """Which entries need an agreement, and who gave it. `unattended` is the answer of a backtest, where nobody can be asked."""

    def __init__(
        self, journal: Journal, limits: Mapping[str, StrategyLimits], live: Mapping[str, Intent], marks: Mapping[str, float],
        now_ms: Callable[[], int], run_policy: RunPolicy = run_policy_inline,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()  # asked, approved, refused, policy_failed, ...
        self.unattended: Literal["all", "none"] | None = None
        self._journal = journal
        self._limits = limits
        self._live = live
        self._marks = marks
        self._now_ms = now_ms
        self._run_policy = run_policy

    # -- what the order sender asks

    def of(self, intent: Intent) -> Approval | None:
        """The rule that this entry falls under; None if nobody needs to agree."""
        if intent.is_proposed:
            return A_PERSON
        limits = self._limits.get(intent.strategy)
        approval = None if limits is None or intent.action != "open" else limits.approval
        return None if approval is None or intent.notional_usd <= approval.above_usd else approval

    def is_pending(self, intent: Intent) -> bool:
        """True if a planned entry must wait for an answer."""
        if intent.action != "open" or self.unattended is not None:
            return False
        row = self._journal.approvals.of(intent.id)
        return self.of(intent) is not None if row is None else row.state != "approved"

    def ending(self, intent: Intent) -> Ending | None:
        """Why a planned entry ends: refused, superseded, or the price has left what was shown. The last one is planned again."""
        row = None if self.unattended is not None else self._journal.approvals.of(intent.id)
        if row is None:
            return None
        if row.state == "refused":
            return Ending(
                "rejected", "not_approved", f"refused by {row.decider}{f': {row.reason}' if row.reason else ''}"
            )
        if row.state == "superseded":
            return Ending("expired", "superseded", "a newer decision of the strategy in this market replaced it")
        px = self._price(intent.market)
        if px is None or not _has_drifted(row.px, px):
            return None
        shown, now = format_decimal(row.px), format_decimal(px)
        return Ending("expired", "plan_stale", f"the price has drifted from {shown} to {now} while it waited")

    async def ask_policy(self, intent: Intent, plan: Plan) -> Ending | None:
        """Ask the strategy's policy, or the rule of a backtest. None: it agrees, or a person must be asked. Whatever fails is a refusal."""
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
        """Write that this plan waits for a person, or that the policy has agreed, in the transaction that writes the plan.

        A plan of the same decision at about the same price is the same question, so it causes no second notice.
        """
        approval = self.of(intent)
        if approval is None or self.unattended is not None:
            return
        now_ms, px = self._now_ms(), self._price(intent.market) or plan.est_px or Decimal(0)
        figures = _figures(plan, intent) | self._origin(intent)
        if approval.policy is not None:
            self._write(
                ApprovalRow(intent.id, "approved", px, figures, now_ms, now_ms, f"the policy {approval.policy_name}")
            )
            return
        self._supersede(intent)
        before = self._journal.approvals.newest_of(intent)
        is_known = before is not None and not _has_drifted(before.px, px)
        self._write(ApprovalRow(intent.id, "pending", before.px if before and is_known else px, figures, now_ms))
        if not is_known:
            text = {
                name: figures.get(name) for name in ("side", "size", "est_px", "notional_usd", "proposed_by", "why")
            }
            made = notice(
                "order.proposal" if intent.is_proposed else "order.approval", intent.id, at_ms=now_ms, market=intent.market, strategy=intent.strategy, id=intent.id[:SHOWN_LETTERS],
                until=iso(intent.not_after_ms), **text,
            )  # fmt: skip
            self._journal.notify([made], now_ms=now_ms)

    # -- what a person asks

    def waiting(self) -> list[Waiting]:
        """The entries that wait for a person, oldest first."""
        found = [(one, self._journal.approvals.of(one.id)) for one in self._live.values() if one.state == "planned"]
        return [Waiting(intent, row) for intent, row in found if row is not None and row.state == "pending"]

    def decide(self, name: str, *, approve: bool, decider: str, reason: str | None = None) -> Intent:
        """Write the answer to the proposal with this id (or its first letters). BotError says why there is nothing to answer."""
        intent, row = self._found(name)
        if approve and self._now_ms() >= intent.fence_ms:
            raise BotError(
                f"the plan of {name} has just expired; the daemon plans the entry again while it is fresh: bot approvals"
            )
        if approve and _has_drifted(row.px, self._price(intent.market) or row.px):
            raise BotError(
                f"the price of {intent.market} has drifted more than {DRIFT:.1%} from the {format_decimal(row.px)} that was shown;"
                " the daemon plans the entry again and asks again: bot approvals"
            )
        answer: ApprovalState = "approved" if approve else "refused"
        reason = plain_text(reason) if reason else None
        self._write(row._replace(state=answer, decided_ms=self._now_ms(), decider=plain_text(decider), reason=reason))
        log.warning(
            f"approval.{answer}", intent=intent.id, strategy=intent.strategy, market=intent.market, decider=decider
        )
        return intent

    def _found(self, name: str) -> tuple[Intent, ApprovalRow]:
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
        asked = self._journal.intents.find(row.intent_id)
        for one in self.waiting():
            if one.intent.id == row.intent_id:
                return one
            if asked is not None and _decision(one.intent) == _decision(asked):
                if one.row.px == row.px:  # A newer plan at the price that the person saw.
                    return one
                raise BotError(
                    f"{name} was replaced by {one.intent.id[:SHOWN_LETTERS]}, at another price: bot approvals shows it"
                )
        code = "expired" if asked is None or asked.code is None else asked.code
        raise BotError(f"{name} does not wait any more ({code}); the strategy decides anew on its next bar")

    # -- parts

    def _supersede(self, intent: Intent) -> None:
        """End what the strategy wanted in this market before, so that two answers never open twice of it."""
        for one in self.waiting():
            same_place = _place(one.intent) == _place(intent)
            if same_place and one.intent.trigger != intent.trigger and one.intent.opened_ms <= intent.opened_ms:
                self._write(one.row._replace(state="superseded", decided_ms=self._now_ms()))

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


def document(one: Waiting, now_ms: int) -> dict[str, Any]:
    """A waiting proposal for people and programs, without its token."""
    intent = one.intent
    return {
        "id": intent.id, "strategy": intent.strategy, "market": intent.market, **one.row.figures, "shown_px": format_decimal(one.row.px),
        "asked_ms": one.row.asked_ms, "plan_expires_ms": intent.token_expires_ms, "not_after_ms": intent.not_after_ms,
        "left_s": max(0, intent.not_after_ms - now_ms) // 1000,
    }  # fmt: skip


def _place(intent: Intent) -> tuple[str, str, bool]:
    """A newer entry replaces one that waits at the same place. A strategy and an assistant do not replace each other's entries."""
    return intent.strategy, intent.market, intent.is_proposed


def _decision(intent: Intent) -> tuple[str, str, str, int]:
    return intent.strategy, intent.market, intent.trigger, intent.ordinal


def _has_drifted(shown: Decimal, px: Decimal) -> bool:
    return abs(px - shown) > DRIFT * abs(shown)


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
