"""Random worlds for the venue:

`write(seed)` makes a log, `check(log)` plays it under the invariants and again in other ways, `shrink(log)` cuts it
down.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, NamedTuple

from bot.errors import Refusal
from bot.model.events import Event
from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.model.numbers import E8
from bot.venue.prices import index
from bot.venue.prices.quiet_band import band_of
from bot.venue.storage import codec
from tests.venue.author import Log, write
from tests.venue.books import Broken, demand
from tests.venue.invariants import Watch

__all__ = ["Log", "check", "pulsed", "replay", "replay_skipping_calm", "shrink", "symptom", "told", "write"]


# A refusal of these changes the state: the plan is used up, the code has one try less.
COSTLY = (c.ConfirmPlan, c.SignIn)


class Played(NamedTuple):
    """The result of a log: the final state, all events in order, and the refused commands."""

    state: s.State
    events: list[Event]
    refused: set[int]


def is_calm(state: s.State, command: c.Command) -> bool:
    """Does `band_of` promise that this bar does nothing?"""
    if type(command) is not c.PassBar:
        return False
    band = band_of(state, command.coin)
    return (
        band.lo < command.low / E8
        and command.high / E8 < band.hi
        and command.at_ms + command.interval_ms <= band.until_ms
    )


def play(log: Log) -> Played:
    """Apply a log and check the state after every command."""
    state = s.State()
    watch = Watch(state)
    events: list[Event] = []
    refused = set()
    for at, (now_ms, command) in enumerate(log):
        was_calm = is_calm(state, command)
        answer, fresh = apply(state, command, now_ms)
        watch.judge(command, answer, fresh, was_calm=was_calm)
        events += fresh
        if isinstance(answer, Refusal):
            refused.add(at)
    watch.end()
    return Played(state, events, refused)


def replay(
    log: Log, *, restore_at: int | None = None, without: frozenset[int] | set[int] = frozenset()
) -> tuple[s.State, list[Event]]:
    """Apply a log without checks; at `restore_at` the state is encoded and decoded again."""
    state = s.State()
    events: list[Event] = []
    for at, (now_ms, command) in enumerate(log):
        if at == restore_at:
            state = restored(state)
        if at not in without:
            events += apply(state, command, now_ms).events
    return state, events


def replay_skipping_calm(log: Log) -> tuple[list[Event], int]:
    """Apply a log as a backtest does: for a quiet bar only the close is sent.

    Returns the events and the number of skipped bars.
    """
    state = s.State()
    events: list[Event] = []
    skipped = 0
    for now_ms, command in log:
        if is_calm(state, command):
            assert type(command) is c.PassBar
            command = c.SetMarks(((command.coin, command.close),))
            skipped += 1
        events += apply(state, command, now_ms).events
    return events, skipped


def pulsed(log: Log) -> Log:
    """The same log with an additional time step halfway before every time step."""
    more: Log = []
    for now_ms, command in log:
        if type(command) is c.Pulse:
            more.append(((more[-1][0] + now_ms) // 2, c.Pulse()))
        more.append((now_ms, command))
    return more


def restored(state: s.State) -> s.State:
    """Through the codec and back, with the indexes made again."""
    fresh: s.State = codec.loads(codec.dumps(state))
    index.rebuild(fresh)
    return fresh


def check(log: Log, *, whole: bool = False) -> None:
    """Play a log with its invariants, then again without the refused commands and through a restore: the same state
    and events.
    """
    played = play(log)
    without = {at for at in played.refused if type(log[at][1]) not in COSTLY}
    state, events = replay(log, restore_at=len(log) * 2 // 3, without=without)
    demand(events == played.events, "events without what was refused and through a restore")
    state.commands, state.now_ms = played.state.commands, played.state.now_ms
    # Finding the difference takes as long as everything else.
    if state != played.state:
        demand(False, "state without what was refused and through a restore", difference(state, played.state))
    if whole:
        text = codec.dumps([(now_ms, command) for now_ms, command in log])
        state, events = replay(codec.loads(text))
        demand(codec.dumps(events) == codec.dumps(played.events), "event bytes of a replay")
        demand(codec.digest(state) == codec.digest(played.state), "state digest of a replay")
        demand(codec.digest(restored(state)) == codec.digest(state), "state digest through the codec")
        refuse_nothing(log)


def refuse_nothing(log: Log) -> None:
    """A refused command changes nothing: the digest before is the digest after."""
    state = s.State()
    for now_ms, command in log:
        before = codec.dumps(state)
        answer, _ = apply(state, command, now_ms)
        if isinstance(answer, Refusal) and type(command) not in COSTLY:
            then: s.State = codec.loads(before)
            then.now_ms, then.commands = state.now_ms, state.commands
            if codec.dumps(then) != codec.dumps(state):
                demand(False, "refused, yet changed", command, difference(then, state))


def difference(a: Any, b: Any, path: str = "state") -> str:
    """The first place where two values differ."""
    if type(a) is not type(b):
        return f"{path}: {a!r} != {b!r}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} != {list(b)}"
        return next((d for k in a if (d := difference(a[k], b[k], f"{path}[{k!r}]"))), "")
    if hasattr(a, "__dataclass_fields__"):
        names = [name for name, f in a.__dataclass_fields__.items() if f.compare]
        return next((d for n in names if (d := difference(getattr(a, n), getattr(b, n), f"{path}.{n}"))), "")
    if isinstance(a, (list, tuple)) and len(a) == len(b):
        return next(
            (d for i, (x, y) in enumerate(zip(a, b, strict=True)) if (d := difference(x, y, f"{path}[{i}]"))), ""
        )
    return "" if a == b else f"{path}: {a!r} != {b!r}"


# ── Shrinking ───────────────────────────────────────────────────────────────────────────────────────────────────────


def symptom(log: Log, *, whole: bool = False) -> str | None:
    """The fault of a log, in words that stay the same while it shrinks; None if there is no fault."""
    try:
        check(log, whole=whole)
    except Broken as error:
        return str(error).split(":", 1)[0]
    except Exception as error:  # noqa: BLE001 - whatever the venue dies of is a finding.
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {last.name}"
    return None


def shrink(log: Log, *, whole: bool = False, tries: int = 400) -> tuple[Log, str]:
    """The same symptom from fewer commands: the shortest prefix, then without every command that is not needed."""
    wanted = symptom(log, whole=whole)
    assert wanted is not None, "the log is sound"
    low, high = 0, len(log)
    while low + 1 < high:
        middle = (low + high) // 2
        if symptom(log[:middle], whole=whole) == wanted:
            high = middle
        else:
            low = middle
    log = log[:high]
    size = max(1, len(log) // 4)
    while size:
        at = len(log) - size
        while at >= 0 and tries:
            tries -= 1
            shorter = log[:at] + log[at + size :]
            if symptom(shorter, whole=whole) == wanted:
                log = shorter
            at -= size
        size //= 2
    return log, wanted


def told(log: Log) -> str:
    """A log as text that a person reads and Python evaluates, without what is default."""
    return "\n".join(f"  {now_ms}  {brief(command)}" for now_ms, command in log)


def brief(value: Any) -> str:
    return re.sub(r", \w+=(None|\(\)|False)(?=[,)])", "", repr(value))
