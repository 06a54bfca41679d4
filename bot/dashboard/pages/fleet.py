"""The daemons of this machine: state, account value, profit today, dead-man switch, alerts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from bot.dashboard.pages import frame, overview
from bot.dashboard.pages.frame import DeadMan
from bot.dashboard.values import formatting
from bot.dashboard.values.daemon_control import FleetMember
from bot.dashboard.values.formatting import number
from bot.dashboard.values.identity import account_of, account_stamp, resume_stamp
from bot.dashboard.values.snapshot import OLD_S, DaemonSnapshot
from bot.figures import Column, Figure
from bot.number_text import ago

DAEMONS: Final = (
    Column("Daemon", "words"),
    Column("State"),
    Column("Value", "usd", unit="USD"),
    Column("Today", "gain", "higher", "USD"),
    Column("Positions", "count", folds=True),
    Column("Dead-man"),
    Column("Alerts", "words"),
)


class FleetRow(NamedTuple):
    """A daemon. `value`, `today` and `positions` are not known without its answer."""

    name: str
    folder: str
    state: str
    tone: str
    # why it does not answer, or why its state is not good
    why: str
    value: Figure
    # how old the value is; "" if it is known now
    age: str
    today: Figure
    positions: str
    # markets of positions without a stop
    bare: str
    dead_man: DeadMan
    alerts: str
    # True: it answers, so that it can be told something
    answers: bool
    # what a control must name, so that it acts on what the page showed
    stamp: str = ""
    resume: str = ""


def rows(members: Sequence[FleetMember], at_ms: int) -> list[FleetRow]:
    return [_row(member, at_ms) for member in members]


def _row(member: FleetMember, at_ms: int) -> FleetRow:
    status: dict[str, Any] = dict(member.status or {})
    snapshot = DaemonSnapshot(at_ms, member.problem, member.is_running, status or None)
    shown = frame.frame(snapshot, now_ms=at_ms)
    account, old_s = status.get("account"), status.get("old_s") or 0.0
    is_known, is_old = account is not None, old_s > OLD_S
    state: Any = "unknown" if not is_known else "old" if is_old else "known"
    value = None if account is None else number(account["value_usd"])
    today = overview.profit(status)[0] if is_known else None
    address = account_of(snapshot)
    waiting = (status.get("intents") or {}).get("waiting") or ()
    return FleetRow(
        member.name,
        str(member.place.folder),
        shown.state,
        shown.tone,
        shown.why,
        Figure("Value", value, "usd", unit="USD", state=state),
        ago(round(old_s * 1000)) if is_known and is_old else "",
        Figure("Today", today, "gain", "higher", "USD", state=state),
        f"{status.get('positions', 0):,}" if is_known else formatting.NOT_KNOWN,
        ", ".join(status.get("unprotected") or ()),
        shown.dead_man,
        member.alerts if status else formatting.NOT_KNOWN,
        bool(status),
        account_stamp(address),
        resume_stamp(address, status.get("strategies") or (), waiting),
    )


def sums(shown: Sequence[FleetRow]) -> list[Figure]:
    """The lead figure and two others, of the accounts that are known."""
    known = [row for row in shown if row.value.state != "unknown"]
    missing = len(shown) - len(known)
    note = f"of {len(known):,} of {len(shown):,} daemons" if missing else f"of all {len(shown):,} daemons"
    state: Any = "unknown" if not known else "old" if any(row.value.state == "old" for row in known) else "known"
    value, today = (sum((figure.value or Decimal(0) for figure in part), Decimal(0)) for part in _columns(known))
    running = sum(row.answers for row in shown)
    return [
        Figure("Value", value, "usd", unit="USD", note=note, state=state),
        Figure("Today", today, "gain", "higher", "USD", note, state),
        Figure("Daemons that answer", running, "count", note=f"of {len(shown):,} on this machine"),
    ]


def _columns(known: Sequence[FleetRow]) -> tuple[list[Figure], list[Figure]]:
    return [row.value for row in known], [row.today for row in known]
