"""Writes how an intent ended to the journal, with what belongs to it: late events, the notice for the operator, the
log line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from bot import logs
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.account.account_state import AccountState
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import Intent, State
from bot.runtime.passes.ports import PortClock
from bot.runtime.risk.risk_engine import RiskEngine
from bot.wire import Plan

WAY_OUT: Final = "look at the account, then bot resume"
SMALL_SHARE: Final = (
    "This is all that the strategy has of a shared position, and it is worth too little to be closed by itself. The way"
    " out: an entry that makes it worth the minimum again, then the close; or the others close theirs first. The stop"
    " takes it too, and bot kill --flatten"
)


class OutcomeWriter:
    """Moves an intent to accepted, or to an end.

    Each call has committed when it returns, unless the caller opened a transaction. `attach_events` gives an accepted
    order the stored events that show no key.
    """

    def __init__(
        self,
        journal: Journal,
        account_state: AccountState,
        risk: RiskEngine,
        clock: PortClock,
        attach_events: Callable[[Intent], None],
    ) -> None:
        self._journal = journal
        self._account_state = account_state
        self._risk = risk
        self._now_ms = clock.now_ms
        self._attach_events = attach_events

    def accept(self, intent: Intent, trade_id: str) -> Intent:
        """Write that the intent is an order."""
        if (
            not self._account_state.events_named
            # The service's events show no keys: they may have come before the reply that names the trade.
        ):
            return self.accept_all([(intent, trade_id)])[0]
        return self._journal.intents.accept(intent, trade_id, now_ms=self._now_ms())

    def accept_all(self, replies: Sequence[tuple[Intent, str]]) -> list[Intent]:
        """Write that each intent is an order, with its trade id and its late events, in one transaction."""
        with self._journal.together():
            accepted = self._journal.intents.accept_all(replies, now_ms=self._now_ms())
            for intent in accepted:
                if not self._account_state.events_named:
                    self._attach_events(intent)
        return accepted

    def end(self, intent: Intent, state: State, code: str, message: str) -> Intent:
        """Write that the intent ended without an order, or (quarantined) that a person must look.

        A quarantine notifies the operator.
        """
        assert state in ("rejected", "expired", "void", "quarantined")
        now_ms = self._now_ms()
        if code == "below_min_notional" and self._is_small_share(intent):
            message = f"{message}. {SMALL_SHARE}"
        if state != "quarantined":
            return self._journal.intents.end(intent, state, code, message, now_ms=now_ms)
        alert = notice(
            "intent.quarantined",
            intent.id,
            at_ms=now_ms,
            market=intent.market,
            strategy=intent.strategy,
            code=code,
            message=message,
        )
        with self._journal.together():
            self._journal.notify([alert], now_ms=now_ms)
            return self._journal.intents.end(intent, state, code, message, now_ms=now_ms)

    def _is_small_share(self, intent: Intent) -> bool:
        """True if the intent closes all that its strategy has of a shared position."""
        limits = self._risk.strategy_limits.get(intent.strategy)
        if intent.action != "close" or limits is None or not limits.nets:
            return False
        size, share = intent.close().size, self._risk.attribution.share(intent.market, intent.strategy)
        return size is not None and share is not None and Decimal(size) >= share.size


def log_state(intent: Intent) -> None:
    """Log the new state of an intent. A quarantine is an error, with what the operator can do."""
    is_error = intent.state == "quarantined"
    if not is_error and not logs.is_shown(logs.INFO):
        return
    fields: dict[str, Any] = {"code": intent.code, "message": intent.message} if intent.code else {}
    if is_error:
        fields["way_out"] = WAY_OUT
    (log.error if is_error else log.info)(
        f"intent.{intent.state}",
        intent=intent.id,
        strategy=intent.strategy,
        market=intent.market,
        action=intent.action,
        trade=intent.trade_id,
        **fields,
    )


def log_plan(intent: Intent, plan: Plan) -> None:
    """Log the figures of a plan."""
    if not logs.is_shown(logs.INFO):
        return
    bracket = plan.bracket
    stop = None if bracket is None or bracket.stop_loss is None else bracket.stop_loss.px
    target = None if bracket is None or bracket.take_profit is None else bracket.take_profit.px
    values = {"size": plan.size, "est_px": plan.est_px, "stop_px": stop, "target_px": target, "fee_usd": plan.fee_usd}
    figures = {name: format_decimal(value) for name, value in values.items() if value is not None}
    log.info(
        "intent.planned", intent=intent.id, strategy=intent.strategy, market=intent.market, side=plan.side, **figures
    )
