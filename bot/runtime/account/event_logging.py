"""Logs service events. A table lists the figures that are logged for each type."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from bot import logs
from bot.logs import log
from bot.money import format_decimal

if TYPE_CHECKING:
    from bot.wire import Event

FIGURES: Final = {
    "fill": ("kind", "side", "size", "px", "fee_usd", "realized_pnl_usd", "position_size", "balance_usd", "trade_id"),
    "order": ("kind", "side", "size", "limit_px", "trigger_px", "reason", "oid"),
    "trigger": ("side", "size", "trigger_px", "mark_px", "trade_id"),
    "guardian": ("guardian_type", "guardian_id", "action", "reason", "next_deadline"),
    "funding": ("side", "size", "rate", "amount_usd"),
    "liquidation": ("side", "size", "px", "realized_pnl_usd", "margin_lost_usd", "absorbed_usd"),
    "settlement": ("side", "size", "outcome_px", "payout_usd", "realized_pnl_usd"),
    "account": ("balance_usd", "epoch", "coin", "old", "new", "key_id"),
}


def log_event(event: Event) -> None:
    """Log one event as `event.<type>` with its subtype. Figures that the event lacks are left out."""
    if not logs.is_shown(logs.INFO):
        return
    figures: dict[str, Any] = {}
    for name in FIGURES.get(event.type, ()):
        value = getattr(event.data, name, None)
        if value is not None:
            figures[name] = format_decimal(value) if isinstance(value, Decimal) else value
    log.info(f"event.{event.type}", what=event.subtype, market=event.coin, event_id=event.id, **figures)
