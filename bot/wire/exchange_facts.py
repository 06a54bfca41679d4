"""What is known of an account at an exchange, as every view shows it. Pure.

`bot status`, `bot doctor`, `bot exchange status`, the dashboard, the alarms and the metrics read this table, so they
cannot differ. What nobody has told yet has the level `unknown`, never `ok`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bot.clock import DAY_MS, SECOND_MS, iso
from bot.number_text import ago, duration_ms
from bot.wire.market import ExchangeLinkStatus
from bot.words import many

Level = Literal["ok", "warn", "fail", "unknown"]

EXPIRY_WARN_MS: Final = 14 * DAY_MS
CLOCK_SHOWN_MS: Final = 2 * SECOND_MS
# An order carries the instant at which it expires, so with a clock that is further off no entry is sent.
CLOCK_MAX_MS: Final = 30 * SECOND_MS
# Actions that are kept for stops and exits.
ACTIONS_KEPT: Final = 500
# An action expires after 15 s, and an exit is asked for anew after 32 s at the latest.
DOUBT_WARN_MS: Final = 60 * SECOND_MS
# The audit runs every hour.
AUDIT_OLD_MS: Final = 3 * 3_600 * SECOND_MS


@dataclass(frozen=True, slots=True)
class ExchangeFact:
    """One fact in one sentence. `level` unknown: nobody has told it. `fix`: what to do about a warning or a failure."""

    name: str
    level: Level
    text: str
    fix: str | None = None

    @property
    def line(self) -> str:
        """The fact and what to do, for a list of facts."""
        return self.text if self.fix is None else f"{self.text}; {self.fix}"


Judged = tuple[Level, str] | tuple[Level, str, str]

NTP: Final = "set this machine's clock by NTP"
RENEW: Final = "approve a new agent with a name at the exchange, then run bot exchange connect"


def _link(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    if status.link == "in_step" and status.differences:
        return "fail", f"in step, but the books differ: {'; '.join(status.differences)}", "run bot audit"
    if status.link == "in_step":
        return "ok", "in step: everything until now is known"
    if status.link == "unknown":
        return "unknown", "not known here; the service that follows the account knows it"
    since = "" if status.since is None else f" since {iso(status.since)}"
    text = f"{status.link.upper()}{since}: {status.reason or 'no reason was told'}"
    return "fail", text, "the service tries again by itself; stops at the exchange stand meanwhile"


def _agent(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    if not status.has_agent_key:
        return "ok", "no key: the account is watched only"
    name = f"{status.agent_name!r} ({status.agent})" if status.agent_name else status.agent or "the agent"
    if status.agent_fault is not None:
        return "fail", f"nothing can be sent: {status.agent_fault}", RENEW
    if status.agent_read_at is None:
        return "unknown", f"{name}: its expiry is not known"
    if status.agent_name is None:
        return "warn", f"{name} has no name, so the exchange lists no expiry of it", RENEW
    if status.agent_until is None:
        return "ok", f"{name} may act without an end"
    left_ms = status.agent_until - now_ms
    if left_ms <= 0:
        return "fail", f"{name} has expired on {iso(status.agent_until)}, {ago(-left_ms)}", RENEW
    if left_ms < EXPIRY_WARN_MS:
        return "warn", f"{name} expires on {iso(status.agent_until)}, {duration_ms(left_ms)} from now", RENEW
    return "ok", f"{name} may act until {iso(status.agent_until)}"


def _clock(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    difference_ms = status.clock_difference_ms
    if difference_ms is None:
        return "unknown", "the difference to the exchange's clock is not known"
    side = "ahead of" if difference_ms > 0 else "behind"
    text = f"the exchange's clock is {abs(difference_ms) / 1000:,.1f} s {side} this machine's"
    if abs(difference_ms) > CLOCK_MAX_MS:
        return "fail", f"{text}, and entries are refused beyond {CLOCK_MAX_MS // SECOND_MS} s", NTP
    if abs(difference_ms) > CLOCK_SHOWN_MS:
        return "warn", text, NTP
    return "ok", f"the clocks differ by at most {CLOCK_SHOWN_MS // SECOND_MS} s"


def _budget(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    left = status.actions_left
    if left is None:
        return "unknown", "how many actions the exchange still allows is not known"
    if left < 2 * ACTIONS_KEPT:
        text = f"{left:,} actions are left, and entries end at {ACTIONS_KEPT}"
        return ("fail" if left < ACTIONS_KEPT else "warn"), text, "each USD that the account trades adds one"
    return "ok", f"{left:,} actions are left"


def _doubt(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    count, since_ms = status.actions_undecided, status.oldest_undecided_at
    if count is None:
        return "unknown", "how many actions are undecided is not known"
    if not count or since_ms is None:
        return "ok", "no action is undecided"
    age_ms = max(0, now_ms - since_ms)
    text = f"{many(count, 'action')} undecided, the oldest for {duration_ms(age_ms)}"
    if age_ms <= DOUBT_WARN_MS:
        return "ok", text
    return "warn", text, "the service asks on; look at the exchange's page if that is urgent"


def _audit(status: ExchangeLinkStatus, now_ms: int) -> Judged:
    if status.audit_differences is None or status.audited_at is None:
        return "unknown", f"no audit has ended{'' if status.audit_trouble is None else ': ' + status.audit_trouble}"
    age_ms = max(0, now_ms - status.audited_at)
    if status.audit_differences:
        text = f"{many(len(status.audit_differences), 'difference')} {ago(age_ms)}; {status.audit_differences[0]}"
        if status.blocked_markets:
            text += f"; entries are refused in {', '.join(status.blocked_markets)}"
        return "fail", text, "run bot audit, then bot exchange check --accept corrects the books"
    if age_ms > AUDIT_OLD_MS:
        why = status.audit_trouble or "no reason was told"
        return "warn", f"no difference {ago(age_ms)}, and no later audit has ended: {why}", "run bot audit"
    return "ok", f"no difference {ago(age_ms)}"


# In the order in which they are shown.
FACTS: Final[Mapping[str, Callable[[ExchangeLinkStatus, int], Judged]]] = {
    "link": _link,
    "agent": _agent,
    "clock": _clock,
    "budget": _budget,
    "doubt": _doubt,
    "audit": _audit,
}


def facts(status: ExchangeLinkStatus, now_ms: int) -> tuple[ExchangeFact, ...]:
    """All facts. `now_ms`: of the service's clock."""
    return tuple(ExchangeFact(name, *judge(status, now_ms)) for name, judge in FACTS.items())


@dataclass(frozen=True, slots=True)
class ExchangeFigure:
    """A figure for /metrics. `value` None: not known, so there is no sample."""

    help: str
    value: Callable[[ExchangeLinkStatus, int], float | None]


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / SECOND_MS


def _oldest_seconds(status: ExchangeLinkStatus, now_ms: int) -> float | None:
    if status.oldest_undecided_at is not None:
        return max(0, now_ms - status.oldest_undecided_at) / SECOND_MS
    return None if status.actions_undecided is None else 0.0


FIGURES: Final[Mapping[str, ExchangeFigure]] = {
    "exchange_agent_expires_seconds": ExchangeFigure(
        "When the agent of the exchange account expires, in Unix seconds.", lambda told, _: _seconds(told.agent_until)
    ),
    "exchange_clock_difference_seconds": ExchangeFigure(
        "The exchange's clock less the service's.", lambda told, _: _seconds(told.clock_difference_ms)
    ),
    "exchange_actions_left": ExchangeFigure(
        "Actions that the exchange still allows the account.", lambda told, _: told.actions_left
    ),
    "exchange_actions_undecided": ExchangeFigure(
        "Actions sent to the exchange that are not decided.", lambda told, _: told.actions_undecided
    ),
    "exchange_actions_oldest_seconds": ExchangeFigure("Age of the oldest of them.", _oldest_seconds),
    "exchange_audited_seconds": ExchangeFigure(
        "When the books were last compared with the exchange's, in Unix seconds.",
        lambda told, _: _seconds(told.audited_at),
    ),
    "exchange_audit_differences": ExchangeFigure(
        "Differences that this comparison has named.",
        lambda told, _: None if told.audit_differences is None else len(told.audit_differences),
    ),
}
