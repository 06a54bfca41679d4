"""The heartbeat rule, pure: when to send a heartbeat, when to send none, and how far to trust the dead-man deadline.

The heartbeat process, the simulated worlds of the tests and sessions in virtual time all run these functions. Instants
are CLOCK_BOOTTIME nanoseconds, which count through a suspend; no deadline uses a wall clock. Durations are real
seconds: the caller has divided heartbeat_seconds by the service clock's speed. Standard library only.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from bot.runtime.liveness.progress_stamp import Stamp

SECOND: Final = 1_000_000_000

# A shorter D has no room for a period, one lost attempt and the margin.
D_SECONDS_MIN: Final = 20.0
# One attempt, both connections included.
ATTEMPT_NS: Final = 2 * SECOND
# A second connection starts then; two heartbeats do no harm.
HEDGE_NS: Final = 1 * SECOND
# Longer than an attempt, so that a heartbeat in flight at the deadline counts as late.
MARGIN_NS: Final = 5 * SECOND
# Waits after 1, 2, 3, ... failures in a row; later the last value.
RETRY_NS: Final = (SECOND // 4, SECOND // 2, SECOND, SECOND)
# Between heartbeats that the service answered with "nothing armed": the daemon arms the switch meanwhile.
UNARMED_NS: Final = 2 * SECOND
# Heartbeats without a completed pass, across restarts. Without this limit, a crash loop would keep the switch from
# firing for ever.
BOOT_BEATS_MAX: Final = 3
# A working process notes the time four times a second, and at least every two seconds during an attempt.
STUCK_NS: Final = 5 * SECOND
# If boot time advances more than this beyond monotonic time, the host was suspended.
SUSPEND_NS: Final = 1 * SECOND
# A period is longer or shorter by up to this part of it.
JITTER: Final = 0.1

Verdict: TypeAlias = Literal["beat", "wait", "stale", "boot_spent", "stopped"]


class BeatTiming(NamedTuple):
    """The lengths that follow from D, in nanoseconds."""

    # D: from sending to the switch
    deadline_ns: int
    # P = clamp(D/6, 5 s, 60 s)
    period_ns: int
    # L = min(D/3, 20 s): a daemon without progress for this long counts as dead
    stale_ns: int


class Heart(NamedTuple):
    """State of the sending side. Replaced, never changed."""

    # no attempt before
    next_ns: int = 0
    # when the newest good heartbeat was SENT; 0: none
    sent_ns: int = 0
    # armed dead-man switches in the newest answer
    guardians: int = 0
    # the earliest nextDeadline of it, on the service's clock
    deadline_ms: int = 0
    # serverTime of it
    server_ms: int = 0
    # in a row
    failures: int = 0
    # heartbeats of starts that are not complete, across restarts; a long start with passes counts once
    boot_beats: int = 0
    # times the switch may have fired unnoticed; each asks the daemon for a resync
    lapses: int = 0
    # attempts
    beats: int = 0
    # The error of the newest attempt; "" after a good one.
    error: str = ""
    # True: stopped for good, because the credential is no longer valid
    stopped: bool = False


class HeartbeatAnswer(NamedTuple):
    """The result of one attempt. `kind` is the next step; `deadline_ms` the earliest nextDeadline."""

    kind: Literal["ok", "retry", "refused", "lost"]
    error: str = ""
    guardians: int = 0
    deadline_ms: int = 0
    server_ms: int = 0
    # Retry-After
    after_ns: int = 0


def beat_timing(d_seconds: float) -> BeatTiming:
    """`d_seconds` is heartbeat_seconds / speed.

    ValueError under 20 s, because heartbeats cannot keep such a switch from firing.
    """
    if not d_seconds >= D_SECONDS_MIN:
        raise ValueError(
            f"the dead-man switch has {d_seconds:g} s of real time and needs {D_SECONDS_MIN:g}: raise heartbeat_seconds"
            " or slow the clock"
        )
    deadline = int(d_seconds * SECOND)
    return BeatTiming(deadline, min(max(deadline // 6, 5 * SECOND), 60 * SECOND), min(deadline // 3, 20 * SECOND))


def judge(lengths: BeatTiming, heart: Heart, *, now_ns: int, stamp: Stamp | None, fence: int) -> Verdict:
    """May a heartbeat be sent now? Only with a progress stamp of this run that is younger than L."""
    if heart.stopped:
        return "stopped"
    if stamp is not None and stamp.fence == fence and stamp.cycles > 0:
        if now_ns - stamp.boot_ns >= lengths.stale_ns:
            return "stale"
        if stamp.is_of_start and heart.boot_beats >= BOOT_BEATS_MAX and not heart.beats:
            # Starts before this one have spent the heartbeats.
            return "boot_spent"
    elif heart.boot_beats >= BOOT_BEATS_MAX:
        return "boot_spent"
    return "beat" if now_ns >= heart.next_ns else "wait"


def sending(heart: Heart, *, stamp: Stamp | None, fence: int) -> Heart:
    """The state when a heartbeat is sent. It is counted before it is sent, so that a crash in between counts too."""
    boot_beats = heart.boot_beats + 1
    if stamp is not None and stamp.fence == fence and stamp.cycles > 0:
        boot_beats = 0
        # A long start keeps sending and counts once.
        if stamp.is_of_start:
            boot_beats = heart.boot_beats + (heart.beats == 0)
    return heart._replace(beats=heart.beats + 1, boot_beats=boot_beats)


def answered(
    lengths: BeatTiming, heart: Heart, answer: HeartbeatAnswer, *, sent_ns: int, now_ns: int, chance: float
) -> Heart:
    """The state after one attempt. `chance` is uniform in [0, 1) and makes the jitter."""
    period = int(lengths.period_ns * (1 - JITTER + 2 * JITTER * chance))
    if answer.kind == "lost":
        return heart._replace(failures=heart.failures + 1, error=answer.error, stopped=True)
    if answer.kind == "refused":
        return heart._replace(failures=heart.failures + 1, error=answer.error, next_ns=now_ns + period)
    if answer.kind == "retry":
        return _failed(lengths, heart, answer, now_ns=now_ns)
    if answer.guardians == 0:
        # Nothing is armed. If there was a switch, it fired or was removed, and the daemon must read the account.
        gone = 1 if heart.guardians else 0
        return heart._replace(
            guardians=0,
            sent_ns=0,
            deadline_ms=0,
            server_ms=answer.server_ms,
            failures=0,
            lapses=heart.lapses + gone,
            error="nothing_armed",
            next_ns=now_ns + UNARMED_NS,
        )
    if heart.guardians and answer.deadline_ms <= heart.deadline_ms and answer.server_ms > heart.server_ms:
        # The service accepts, but its deadline does not move, so this heartbeat must not count.
        return _failed(lengths, heart, answer._replace(error="deadline_stands_still"), now_ns=now_ns)
    late = 1 if is_past(lengths, heart, now_ns=sent_ns) else 0
    return heart._replace(
        sent_ns=sent_ns,
        guardians=answer.guardians,
        deadline_ms=answer.deadline_ms,
        server_ms=answer.server_ms,
        failures=0,
        lapses=heart.lapses + late,
        error="",
        next_ns=sent_ns + period,
    )


def suspended(heart: Heart, *, boot_ns: int, monotonic_ns: int) -> Heart:
    """`boot_ns`, `monotonic_ns`: progress of each clock since the last check.

    A difference is a suspend, so the deadline may have passed.
    """
    return heart._replace(lapses=heart.lapses + 1) if boot_ns - monotonic_ns > SUSPEND_NS else heart


def believed_deadline_ns(lengths: BeatTiming, heart: Heart) -> int | None:
    """Until when the switch certainly does not fire: D after the newest good heartbeat was SENT. None: not armed."""
    return heart.sent_ns + lengths.deadline_ns if heart.sent_ns and heart.guardians else None


def is_past(lengths: BeatTiming, heart: Heart, *, now_ns: int) -> bool:
    """True if the switch may have fired, or may fire while a request is in flight."""
    deadline_ns = believed_deadline_ns(lengths, heart)
    return deadline_ns is not None and now_ns >= deadline_ns - MARGIN_NS


def is_overdue(lengths: BeatTiming, heart: Heart, *, now_ns: int) -> bool:
    """True if two periods and an attempt have passed since the newest good heartbeat.

    This is before the margin for every D.
    """
    return bool(heart.sent_ns) and now_ns - heart.sent_ns >= 2 * lengths.period_ns + ATTEMPT_NS


def does_not_try(lengths: BeatTiming, heart: Heart, *, now_ns: int) -> bool:
    """True if a heartbeat is overdue and the process has started no attempt for STUCK_NS, though one was due."""
    return is_overdue(lengths, heart, now_ns=now_ns) and now_ns - heart.next_ns >= STUCK_NS


def may_open(lengths: BeatTiming, heart: Heart, *, now_ns: int, acknowledged: int) -> bool:
    """May an entry be sent now?

    `acknowledged`: lapses after which the daemon has read account, guardians and events again.
    """
    return (
        bool(heart.sent_ns and heart.guardians)
        and heart.lapses <= acknowledged
        and not is_overdue(lengths, heart, now_ns=now_ns)
        and not is_past(lengths, heart, now_ns=now_ns)
    )


def _failed(lengths: BeatTiming, heart: Heart, answer: HeartbeatAnswer, *, now_ns: int) -> Heart:
    failures = heart.failures + 1
    wait_ns = RETRY_NS[min(failures, len(RETRY_NS)) - 1]
    if answer.after_ns > wait_ns:
        # Respect Retry-After, unless the switch would fire meanwhile.
        # An unknown deadline may be near, so wait one period at most.
        deadline_ns = believed_deadline_ns(lengths, heart)
        latest_ns = lengths.period_ns if deadline_ns is None else deadline_ns - MARGIN_NS - ATTEMPT_NS - now_ns
        wait_ns = max(wait_ns, min(answer.after_ns, latest_ns))
    return heart._replace(failures=failures, error=answer.error, next_ns=now_ns + wait_ns)
