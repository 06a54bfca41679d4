"""The beat rule, pure: when to beat, when to be silent, and what may be believed of the dead-man's deadline.

The heartbeat process, the simulated worlds of the tests and sessions in virtual time all run these functions. Instants
are CLOCK_BOOTTIME nanoseconds, which go on through suspend; no wall clock stands in any deadline. Durations are real
seconds: the caller has divided heartbeat_seconds by the service clock's speed. Standard library only.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from bot.runtime.liveness.progress_stamp import Stamp

SECOND: Final = 1_000_000_000

D_SECONDS_MIN: Final = 20.0  # Below it a period, one lost attempt and the margin leave no room.
ATTEMPT_NS: Final = 2 * SECOND  # An attempt in all, both connections.
HEDGE_NS: Final = 1 * SECOND  # A second connection starts then: to beat twice does no harm.
MARGIN_NS: Final = 5 * SECOND  # Longer than an attempt: what is on its way at the deadline counts as late.
RETRY_NS: Final = (SECOND // 4, SECOND // 2, SECOND, SECOND)  # After 1, 2, 3, ... failures in a row; then the last.
UNARMED_NS: Final = (
    2 * SECOND
)  # Between beats that were answered "nothing armed": the brain is arming, or must be told.
BOOT_BEATS_MAX: Final = 3  # Without a completed cycle, across restarts, each good for D; or a crash loop would hold the switch open for ever.
STUCK_NS: Final = (
    5 * SECOND
)  # A process that works notes the time four times a second, and within two during an attempt.
SUSPEND_NS: Final = 1 * SECOND  # Boot time that ran ahead of monotonic time by more: the host was suspended.
JITTER: Final = 0.1  # A period is stretched or shortened by up to this part of it.

Verdict: TypeAlias = Literal["beat", "wait", "stale", "boot_spent", "stopped"]


class Rhythm(NamedTuple):
    """The lengths that follow from D, in nanoseconds."""

    deadline_ns: int  # D: from sending to the switch
    period_ns: int  # P = clamp(D/6, 5 s, 60 s)
    stale_ns: int  # L = min(D/3, 20 s): a brain without progress for this long is taken for dead


class Heart(NamedTuple):
    """What the beating side knows. Replaced, never changed."""

    next_ns: int = 0  # no attempt before
    sent_ns: int = 0  # when the newest beat that counted was SENT; 0: none has
    guardians: int = 0  # armed dead-man switches in the newest answer
    deadline_ms: int = 0  # the earliest nextDeadline of it, on the service's clock
    server_ms: int = 0  # serverTime of it
    failures: int = 0  # in a row
    boot_beats: int = 0  # spent on starts that are not over, across restarts; a long one that makes cycles counts once for all of them
    lapses: int = 0  # times the switch may have fired unseen; each asks the brain for a resync
    beats: int = 0  # attempts
    error: str = ""  # of the newest attempt; "" after a good one
    stopped: bool = False  # for good: the credential is no longer valid


class Answer(NamedTuple):
    """What came back of one attempt. `kind` is the next move; `deadline_ms` the earliest nextDeadline."""

    kind: Literal["ok", "retry", "refused", "lost"]
    error: str = ""
    guardians: int = 0
    deadline_ms: int = 0
    server_ms: int = 0
    after_ns: int = 0  # Retry-After


def rhythm(d_seconds: float) -> Rhythm:
    """`d_seconds` is heartbeat_seconds / speed. ValueError under 20 s: nobody could keep such a switch from firing."""
    if not d_seconds >= D_SECONDS_MIN:
        raise ValueError(
            f"the dead-man has {d_seconds:g} s of real time and needs {D_SECONDS_MIN:g}: raise heartbeat_seconds or slow the clock"
        )
    deadline = int(d_seconds * SECOND)
    return Rhythm(deadline, min(max(deadline // 6, 5 * SECOND), 60 * SECOND), min(deadline // 3, 20 * SECOND))


def judge(lengths: Rhythm, heart: Heart, *, now_ns: int, stamp: Stamp | None, fence: int) -> Verdict:
    """May a beat leave now? Only on proof of life: a stamp of this very brain, younger than L."""
    if heart.stopped:
        return "stopped"
    if stamp is not None and stamp.fence == fence and stamp.cycles > 0:
        if now_ns - stamp.boot_ns >= lengths.stale_ns:
            return "stale"
        if stamp.is_of_start and heart.boot_beats >= BOOT_BEATS_MAX and not heart.beats:
            return "boot_spent"  # By the starts before this one.
    elif heart.boot_beats >= BOOT_BEATS_MAX:
        return "boot_spent"
    return "beat" if now_ns >= heart.next_ns else "wait"


def sending(heart: Heart, *, stamp: Stamp | None, fence: int) -> Heart:
    """A beat leaves now. Counted before it is sent, so that a crash in between is counted too."""
    boot_beats = heart.boot_beats + 1
    if stamp is not None and stamp.fence == fence and stamp.cycles > 0:
        boot_beats = 0
        if stamp.is_of_start:  # A long one beats on, and counts once.
            boot_beats = heart.boot_beats + (heart.beats == 0)
    return heart._replace(beats=heart.beats + 1, boot_beats=boot_beats)


def answered(lengths: Rhythm, heart: Heart, answer: Answer, *, sent_ns: int, now_ns: int, chance: float) -> Heart:
    """The heart after one attempt. `chance` is uniform in [0, 1) and makes the jitter."""
    period = int(lengths.period_ns * (1 - JITTER + 2 * JITTER * chance))
    if answer.kind == "lost":
        return heart._replace(failures=heart.failures + 1, error=answer.error, stopped=True)
    if answer.kind == "refused":
        return heart._replace(failures=heart.failures + 1, error=answer.error, next_ns=now_ns + period)
    if answer.kind == "retry":
        return _failed(lengths, heart, answer, now_ns=now_ns)
    if answer.guardians == 0:
        # Answered, and nothing is armed. Where there was a switch it has fired or was taken away: the brain must look.
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
        # The service says yes but its deadline stands still: such a beat may not be believed.
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
    """`boot_ns`, `monotonic_ns`: how far each clock went since the last look. A jump is a suspend: what was believed may be past."""
    return heart._replace(lapses=heart.lapses + 1) if boot_ns - monotonic_ns > SUSPEND_NS else heart


def believed_deadline_ns(lengths: Rhythm, heart: Heart) -> int | None:
    """Until when the switch certainly holds still: D after the SENDING of the newest beat that counted. None: not armed."""
    return heart.sent_ns + lengths.deadline_ns if heart.sent_ns and heart.guardians else None


def is_past(lengths: Rhythm, heart: Heart, *, now_ns: int) -> bool:
    """The belief has run out: the switch may have fired, or may while a request is on its way."""
    deadline_ns = believed_deadline_ns(lengths, heart)
    return deadline_ns is not None and now_ns >= deadline_ns - MARGIN_NS


def is_overdue(lengths: Rhythm, heart: Heart, *, now_ns: int) -> bool:
    """Whether two periods and an attempt have passed since the newest beat that counted: this is before the margin of every rhythm."""
    return bool(heart.sent_ns) and now_ns - heart.sent_ns >= 2 * lengths.period_ns + ATTEMPT_NS


def does_not_try(lengths: Rhythm, heart: Heart, *, now_ns: int) -> bool:
    """Whether a beat is overdue and the process has begun no attempt for STUCK_NS, though one was due."""
    return is_overdue(lengths, heart, now_ns=now_ns) and now_ns - heart.next_ns >= STUCK_NS


def may_open(lengths: Rhythm, heart: Heart, *, now_ns: int, acknowledged: int) -> bool:
    """May an order that opens leave now? `acknowledged`: lapses after which the brain has read account, guardians and events again."""
    return (
        bool(heart.sent_ns and heart.guardians)
        and heart.lapses <= acknowledged
        and not is_overdue(lengths, heart, now_ns=now_ns)
        and not is_past(lengths, heart, now_ns=now_ns)
    )


def _failed(lengths: Rhythm, heart: Heart, answer: Answer, *, now_ns: int) -> Heart:
    failures = heart.failures + 1
    wait_ns = RETRY_NS[min(failures, len(RETRY_NS)) - 1]
    if answer.after_ns > wait_ns:
        # Patience that was asked for is kept, unless the switch would fire meanwhile.
        # Where no deadline is known, one may be near: then as long as between two beats.
        deadline_ns = believed_deadline_ns(lengths, heart)
        latest_ns = lengths.period_ns if deadline_ns is None else deadline_ns - MARGIN_NS - ATTEMPT_NS - now_ns
        wait_ns = max(wait_ns, min(answer.after_ns, latest_ns))
    return heart._replace(failures=failures, error=answer.error, next_ns=now_ns + wait_ns)
