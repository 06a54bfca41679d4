"""The account as a dead daemon's journal has it: its events folded once more, in the form of the daemon's own answers.

It is old: stops may have fired since. What the journal does not have, such as marks and the dead-man switch's clock, is
left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.money import format_decimal
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.fold import fold_wire_event
from bot.runtime.journal import queries
from bot.runtime.model.positions import AccountOrder, AccountPosition
from bot.wire import Event

Data = dict[str, Any]

# newest, that are folded; about 0.5 s
EVENTS_MAX: Final = 20_000


def last_snapshot(folder: Path, trouble: str) -> DaemonSnapshot:
    """What the journal of a state directory says. NotFound, Closed or JournalError if it cannot be read."""
    last = queries.last_state(folder)
    with queries.opened(folder) as db:
        owners = {row["id"]: row["strategy"] for row in queries.rows(db, "SELECT id, strategy FROM intents")}
        state = AccountState(owner_of=owners.get)
        for event in queries.newest_events(db, epoch=last.epoch, limit=EVENTS_MAX):
            fold_wire_event(state, Event.model_validate(event))
        run = queries.run_note(db)
        strategies = _strategies(db, run)
    positions = tuple(_position(position, state) for position in state.positions.values())
    status = {
        "state": "NOT RUNNING",
        "why": None,
        "name": run.get("name") or "bot",
        "address": last.address,
        "epoch": last.epoch,
        "base_url": run.get("base_url") or _embedded(folder),
        "config": run.get("config"),
        "strategies": strategies,
        "intents": {"waiting": [intent for intent in last.open_intents if intent["state"] == "quarantined"]},
        "had_dead_man": any(guardian.type == "dead_man_switch" for guardian in state.guardians.values()),
    }
    guardians = [
        {
            "id": guardian.id,
            "type": guardian.type,
            "market": guardian.market,
            "latched": guardian.latched,
            "blocks_opens": guardian.blocks_opens,
            "active": guardian.active,
        }
        for guardian in state.guardians.values()
    ]
    return DaemonSnapshot(
        last.written_ms,
        trouble,
        is_running=False,
        status=status,
        positions=positions,
        orders=tuple(_order(order, state) for order in state.orders.values()),
        guardians={"config": [], "guardians": guardians},
        is_of_journal=True,
    )


def _position(position: AccountPosition, state: AccountState) -> Data:
    stop, target = state.stop_of(position.market), state.target_of(position.market)
    return {
        "market": position.market,
        "side": position.side,
        "size": format_decimal(position.size),
        "entry_px": _amount(position.entry_px),
        "mark_px": None,
        "unrealized_usd": None,
        "notional_usd": format_decimal(position.notional_usd),
        "leverage": position.leverage,
        "strategy": position.owner,
        "shares": {},
        "stop_px": None if stop is None else _amount(stop.trigger_px),
        "target_px": None if target is None else _amount(target.trigger_px),
        "first_stop_px": _amount(position.first_stop_px),
        "trailing_stops": [
            {"id": g.id, "active": g.active}
            for g in state.guardians.values()
            if (g.type, g.market) == ("trailing_stop", position.market)
        ],
        "protected": state.is_protected(position.market),
        "needs_stop": True,
        "opened_ms": position.opened_ms,
    }


def _order(order: AccountOrder, state: AccountState) -> Data:
    holder = state.positions.get(order.market)
    owner = state.owner_of(order.key) if order.key is not None else None if holder is None else holder.owner
    return {
        "oid": order.oid,
        "market": order.market,
        "kind": order.kind,
        "side": order.side,
        "action": order.action,
        "size": format_decimal(order.size),
        "filled": format_decimal(order.filled),
        "limit_px": _amount(order.limit_px),
        "trigger_px": _amount(order.trigger_px),
        "trade_id": order.trade_id,
        "intent": order.key,
        "created_ms": order.created_ms,
        "strategy": owner,
    }


def _strategies(db: sqlite3.Connection, run: Mapping[str, Any]) -> list[Data]:
    """The strategies of the last run, each with the totals of its book.

    Profit of open positions is not in the journal.
    """
    books = {row["strategy"]: row for row in queries.books(db)}
    rows = []
    for strategy in run.get("strategies") or [{"name": name} for name in books if not name.startswith("@")]:
        row = books.get(strategy["name"])
        book = None
        if row is not None:
            fees, funding = Decimal(row["fees_usd"]), Decimal(row["funding_usd"])
            book = {"fills": row["fills"], "fees_usd": row["fees_usd"], "funding_usd": row["funding_usd"]}
            realized = Decimal(row["realized_usd"]) - Decimal(row["margin_lost_usd"])
            book["closed_usd"] = format_decimal(realized - fees + funding)
        rows.append(
            {
                "name": strategy["name"],
                "state": "NOT RUNNING",
                "why": None,
                "markets": strategy.get("markets", ()),
                "interval": strategy.get("interval", ""),
                "budget_usd": strategy.get("budget_usd"),
                "book": book,
                "resting": [],
            }
        )
    return rows


def _embedded(folder: Path) -> str:
    """The address of the embedded service that was started last in this folder; "" if none was."""
    try:
        return str(json.loads((folder / "sandbox.ready").read_text())["baseUrl"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _amount(value: Decimal | None) -> str | None:
    return None if value is None else format_decimal(value)
