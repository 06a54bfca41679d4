"""The frame of every page: the state of the daemon, the kind of money, the dead-man clock, and what is old."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bot.dashboard.values import formatting
from bot.dashboard.values.snapshot import OLD_S, DaemonSnapshot

# the part of the dead-man's time below which its clock warns
SOON: Final = 0.34

PAGES: Final[tuple[tuple[str, str, str], ...]] = (
    ("overview", "Overview", "/"),
    ("market", "Market", "/market"),
    ("trades", "Trades", "/trades"),
    ("strategies", "Strategies", "/strategies"),
    ("events", "Orders and events", "/events"),
    ("guardians", "Guardians", "/guardians"),
    ("approvals", "Approvals", "/approvals"),
    ("runs", "Backtests", "/runs"),
    ("proof", "Proof", "/proof"),
    ("fleet", "Fleet", "/fleet"),
)

# State of the daemon -> how it is shown: good, warn or bad.
TONES: Final = {"RUNNING": "good", "STARTING": "warn", "PAUSED": "warn", "STOPPING": "warn", "DEGRADED": "bad"}


@dataclass(frozen=True, slots=True)
class DeadMan:
    """The dead-man switch. `fires_at_ms` is on the machine's clock, so that a page can count down without asking."""

    text: str
    tone: str
    fires_at_ms: int | None = None
    # the whole time from a heartbeat on
    window: str = ""
    fires_at_service: str = formatting.NONE
    # what is known of the switch if its deadline is not
    note: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    state: str
    tone: str
    why: str
    name: str
    money: str
    is_real_money: bool
    clock: str
    dead_man: DeadMan
    # what is out of date, as a sentence; "" if nothing is
    old: str


def frame(snapshot: DaemonSnapshot, *, now_ms: int) -> Frame:
    status = snapshot.status or {}
    state = (
        status.get("state", "UNKNOWN")
        if not snapshot.trouble
        else "NO ANSWER"
        if snapshot.is_running
        else "NOT RUNNING"
    )
    service = status.get("service") or {}
    environment = service.get("environment")
    money = "" if environment is None else "Play money" if environment == "sandbox" else "Real money"
    speed = service.get("speed", 1)
    return Frame(
        state=state,
        tone=TONES.get(state, "bad"),
        why=snapshot.trouble or status.get("why") or "",
        name=status.get("name", "bot"),
        money=money,
        is_real_money=money == "Real money",
        clock="" if speed == 1 else "clock moved by hand" if not speed else f"clock {speed:g}×",
        dead_man=dead_man(snapshot),
        old=_old(snapshot, status, now_ms),
    )


def dead_man(snapshot: DaemonSnapshot) -> DeadMan:
    """The switch as the daemon last said it. What only the journal says, or nobody, is not known."""
    status = snapshot.status or {}
    if "heartbeat" not in status:
        return _unknown_dead_man(snapshot, status)
    beat = status["heartbeat"]
    if beat is None:
        return DeadMan(
            "off", "warn", note="The config has no dead-man switch, or the service's clock is moved by hand."
        )
    left_s, age_s = beat.get("deadline_s"), beat.get("age_s")
    if left_s is None:
        note = "The service has not armed it yet. The daemon opens nothing until then."
        return DeadMan("not armed", "bad" if status.get("positions") else "warn", note=note)
    window_s = left_s + (age_s or 0.0)
    fires_ms = status["at_ms"] + round(left_s * 1000)
    at_service = formatting.clock(beat.get("next_deadline_ms"))
    if left_s <= 0:
        return DeadMan("may have acted", "bad", fires_ms, formatting.duration(round(window_s)), at_service)
    tone = (
        "bad" if beat.get("lapsed") or not beat.get("alive", True) else "warn" if left_s < SOON * window_s else "good"
    )
    return DeadMan("armed", tone, fires_ms, formatting.duration(round(window_s)), at_service)


def _unknown_dead_man(snapshot: DaemonSnapshot, status: dict[str, Any]) -> DeadMan:
    if not snapshot.is_of_journal:
        return DeadMan(
            "not known", "warn", note="It is not known whether a dead-man switch is armed: the daemon has not said it."
        )
    if status.get("had_dead_man"):
        note = (
            "It was armed when the journal was last written. Without heartbeats it acts when its time is over, and may"
            " have acted."
        )
        return DeadMan("was armed", "bad", note=note)
    return DeadMan(
        "not known", "warn", note="The journal does not say that a dead-man switch was armed; only the service knows."
    )


def _old(snapshot: DaemonSnapshot, status: dict[str, Any], now_ms: int) -> str:
    if snapshot.is_of_journal:
        age = formatting.duration((now_ms - snapshot.at_ms) / 1000)
        return (
            f"The daemon has not answered this dashboard. What it knew is from its journal, last written {age} ago, at"
            f" {formatting.instant(snapshot.at_ms)} UTC. What the service knows is read from it now."
        )
    if snapshot.trouble and snapshot.status is not None:
        return (
            f"The figures are from {formatting.instant(snapshot.at_ms)} UTC,"
            f" {formatting.duration((now_ms - snapshot.at_ms) / 1000)} ago."
        )
    age_s = status.get("old_s") or 0.0
    return f"The daemon read the account {formatting.duration(age_s)} ago." if age_s > OLD_S else ""
