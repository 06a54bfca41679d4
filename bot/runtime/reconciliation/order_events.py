"""Events that came before the reply to their order, on a service whose events show no keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bot.runtime.account.account import DaemonAccount
from bot.runtime.account.attribution_fold import name_foreign_entries
from bot.runtime.model.intents import Intent
from bot.runtime.reconciliation.schedule import ComparisonSchedule
from bot.wire import Event
from bot.wire.events import model_event

if TYPE_CHECKING:
    from bot.model.events import Event as ModelEvent


def attach_events(account: DaemonAccount, comparison: ComparisonSchedule, accepted: Intent) -> None:
    """Give the stored events of an order to its strategy. Runs in the transaction that accepts the intent."""
    events = account.journal.events.attach_key(accepted)
    attached = [_model_event_of_row(event) for event in events]
    log = account.position_owners.trade_log
    before = None if log is None else log.mark(accepted.market)
    name_foreign_entries(account.attribution, attached, accepted.strategy)
    if log is not None and before is not None:
        log.attached(attached, accepted, before)
    account.position_owners.write_attribution()
    if events:
        account.foreign_activity.known_markets.discard(accepted.market)
        # The comparison finds the owner of the position and of its orders.
        comparison.in_next_pass()


def _model_event_of_row(row: Mapping[str, Any]) -> ModelEvent:
    """A fill or an order that the journal has kept as it came."""
    event = model_event(Event.model_validate(row))
    assert event is not None
    return event
