"""Seeded worlds of two hours around the production heartbeat rule:
a daemon (`brain`), its heartbeat process, a lossy network, a service that restarts, a host that is suspended.

I1  no false trigger: the switch fires only after an outage longer than the bound.
I2  a dead daemon is detected: the switch fires within L + P + D of its death, in a crash loop too.
I3  no open on a lapsed lease: once the switch has fired, nothing opens before the daemon has resynced.
Each mutant of the rule must break one of the three in some world, which shows that the worlds detect wrong rules.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat_rule import SECOND, BeatTiming, Heart, HeartbeatAnswer, Verdict
from bot.runtime.liveness.progress_stamp import Stamp

T = 7_200.0
FENCE = 1
D = 60.0
LATENCY_S = (0.02, 0.4)
# A healthy daemon completes a pass at least this often.
CYCLE_S = 1.0
# 41 s at D = 60: what the rule promises to survive.
OUTAGE_MAX_S = D - 1.1 * D / 6 - 8


class Spans:
    """Intervals of faults, merged and sorted, to be looked up by time."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        merged: list[list[float]] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.spans = [(a, b) for a, b in merged]
        self.starts = [a for a, _ in self.spans]

    @staticmethod
    def random(r: random.Random, counts: tuple[int, ...], means: tuple[float, ...]) -> Spans:
        n, mean = r.choice(counts), r.choice(means)
        starts = [r.uniform(60, T - 400) for _ in range(n)]
        return Spans([(a, a + r.expovariate(1 / mean)) for a in starts])

    def at(self, t: float) -> tuple[float, float] | None:
        i = bisect_right(self.starts, t) - 1
        return self.spans[i] if i >= 0 and t < self.spans[i][1] else None

    def total(self, a: float, b: float) -> float:
        return sum(max(0.0, min(b, end) - max(a, start)) for start, end in self.spans)


@dataclass
class Rules:
    """The production functions; a mutant replaces one of them, or one property of the world."""

    lengths: BeatTiming = heartbeat_rule.beat_timing(D)
    judge: Callable[..., Verdict] = heartbeat_rule.judge
    answered: Callable[..., Heart] = heartbeat_rule.answered
    suspended: Callable[..., Heart] = heartbeat_rule.suspended
    may_open: Callable[..., bool] = heartbeat_rule.may_open
    clock: Callable[[World, float], int] = lambda world, t: int((t + 1_000) * SECOND)
    lives_in_the_loop: bool = False
    service_fires_at_start: bool = False


@dataclass
class World:
    seed: int
    rules: Rules
    heart: Heart = Heart()
    deadline: float | None = None
    fired: float | None = None
    beats: int = 0
    bad: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        r = self.r = random.Random(self.seed)
        self.partitions = Spans.random(r, (0, 1, 2, 3), (3, 10, 25, 60))
        # Durations just under the bound find most mistakes.
        if r.random() < 0.5:
            start = r.uniform(60, T - 400)
            self.partitions = Spans(
                [*self.partitions.spans, (start, start + r.uniform(OUTAGE_MAX_S - 6, OUTAGE_MAX_S + 2))]
            )
        self.downs = Spans.random(r, (0, 0, 1, 2), (2, 10, 40))
        self.suspends = Spans.random(r, (0, 0, 1, 2), (5, 30, 600))
        # Probability that the host is suspended while a heartbeat is in flight.
        self.sleepy = 0.003 if r.random() < 0.3 else 0.0
        self.stalls = Spans.random(r, (0, 1, 3), (1, 5, 15, 40))
        self.loss = r.choice((0, 0, 0.02, 0.1, 0.3))
        self.death = r.uniform(1_000, 6_000) if r.random() < 0.3 else None
        self.crash_loop = self.death is not None and r.random() < 0.5
        self.down_queue = list(self.downs.spans)
        self.acknowledged = 0
        self.resync_at: float | None = None
        self.known_fired = False
        self.looked = 0.0

    # The service: downtime does not count as silence; the remaining time is kept.
    def serve(self, now: float) -> None:
        while self.deadline is not None and self.fired is None:
            down = self.down_queue[0] if self.down_queue else None
            if down is None or down[0] > now:
                if self.deadline <= now:
                    self.fired = self.deadline
                return
            if self.deadline <= down[0]:
                self.fired = self.deadline
                return
            if now < down[1]:
                return
            self.down_queue.pop(0)
            if self.rules.service_fires_at_start:
                self.fired = down[1] if self.deadline < down[1] else None
            else:
                self.deadline = down[1] + max(self.deadline - down[0], min(D, 30.0))

    def progress(self, t: float) -> float:
        """The end of the daemon's last complete pass at t."""
        if self.death is not None:
            t = min(t, self.death)
        for _ in range(4):
            span = self.stalls.at(t) or self.suspends.at(t)
            if span is None:
                break
            t = span[0]
        return max(0.0, t - t % CYCLE_S)

    def stamp(self, t: float) -> Stamp:
        if self.crash_loop and self.death is not None and t > self.death:
            # A new run every few seconds, none with a complete pass.
            return Stamp(FENCE + 1, 0, 0, -1)
        return Stamp(FENCE, 1, self.rules.clock(self, self.progress(t)), -1)

    def attempt(self, t: float) -> tuple[float, HeartbeatAnswer]:
        """The time and the content of the attempt's answer. The second connection gives a second chance to arrive."""
        for start in (t, t + heartbeat_rule.HEDGE_NS / SECOND):
            latency = self.r.uniform(*LATENCY_S) if self.r.random() < 0.8 else self.r.uniform(0.4, 0.9)
            arrives = start + latency / 2
            if (
                self.partitions.at(start)
                or self.suspends.at(start)
                or self.downs.at(arrives)
                or self.r.random() < self.loss
            ):
                continue
            self.serve(arrives)
            armed = self.fired is None
            if armed:
                self.deadline = arrives + D
            if self.r.random() < self.loss or self.partitions.at(start + latency):
                continue
            back = start + latency
            if self.r.random() < self.sleepy:
                self.suspends = Spans([*self.suspends.spans, (arrives + latency / 4, back + self.r.uniform(5, 200))])
            asleep = self.suspends.at(back)
            if asleep:
                # The answer waits in the socket until the host wakes.
                back = asleep[1]
            if not armed:
                return back, HeartbeatAnswer("ok", server_ms=int(arrives * 1000))
            assert self.deadline is not None
            return back, HeartbeatAnswer("ok", "", 1, int(self.deadline * 1000), int(arrives * 1000))
        return t + heartbeat_rule.ATTEMPT_NS / SECOND, HeartbeatAnswer("retry", "timeout")

    def look(self, t: float) -> None:
        """Between heartbeats: the clocks, and the daemon's check of its lease."""
        if self.suspends.spans:
            slept = self.suspends.total(self.looked, t)
            self.heart = self.rules.suspended(
                self.heart,
                boot_ns=int((t - self.looked) * SECOND),
                monotonic_ns=int((t - self.looked - slept) * SECOND),
            )
        self.looked = t
        if self.resync_at is not None and t >= self.resync_at:
            self.resync_at = None
            self.serve(t)
            self.known_fired = self.fired is not None
            self.acknowledged = self.resyncing
        elif (
            self.resync_at is None
            and self.heart.lapses > self.acknowledged
            and not (self.stalls.at(t) or self.partitions.at(t) or self.downs.at(t))
        ):
            self.resync_at, self.resyncing = t + 0.5, self.heart.lapses

    def open(self, t: float) -> None:
        if self.suspends.at(t) or self.stalls.at(t) or (self.death is not None and t > self.death):
            return
        self.serve(t)
        allowed = self.rules.may_open(
            self.rules.lengths, self.heart, now_ns=self.rules.clock(self, t), acknowledged=self.acknowledged
        )
        if allowed and self.fired is not None and not self.known_fired:
            self.bad.append(f"I3 opened at {t:.0f} although the switch fired at {self.fired:.0f}")

    def run(self) -> World:
        rules, lengths = self.rules, self.rules.lengths
        opens = sorted(self.r.uniform(100, T - 10) for _ in range(60))
        # The moments just after a suspend matter most.
        opens += [min(T - 1, end + self.r.uniform(0, 2)) for _, end in self.suspends.spans + self.partitions.spans]
        opens = sorted(opens, reverse=True)
        t = 0.0
        while t < T:
            while opens and opens[-1] <= t:
                self.open(opens.pop())
            self.serve(t)
            asleep = self.suspends.at(t)
            if asleep:
                while opens and opens[-1] < asleep[1]:
                    opens.pop()
                # The daemon may resume a moment before its heartbeat process.
                while opens and opens[-1] < asleep[1] + 0.2:
                    self.open(opens.pop())
                t = asleep[1] + 0.2
                continue
            self.look(t)
            if rules.lives_in_the_loop and (stall := self.stalls.at(t)):
                t = stall[1]
                continue
            now, stamp = rules.clock(self, t), self.stamp(t)
            verdict = rules.judge(lengths, self.heart, now_ns=now, stamp=stamp, fence=FENCE)
            if verdict == "beat":
                self.heart = heartbeat_rule.sending(self.heart, stamp=stamp, fence=FENCE)
                self.beats += 1
                back, answer = self.attempt(t)
                while opens and opens[-1] < back:
                    self.open(opens.pop())
                self.heart = rules.answered(
                    lengths, self.heart, answer, sent_ns=now, now_ns=rules.clock(self, back), chance=self.r.random()
                )
                if self.fired is not None and not self.heart.guardians:
                    # The daemon is informed; its next step is not part of this test.
                    break
                if self.suspends.at(back - 0.001):
                    # The daemon may act before the heartbeat process reads the clocks.
                    self.open(back + 0.01)
                t = max(back, t + 0.05)
                continue
            nxt = t + 0.25 if verdict != "wait" else max(t + 0.01, (self.heart.next_ns - now) / SECOND + t)
            if verdict == "stale":
                nxt = t + 1
            if opens and t < opens[-1] < nxt:
                nxt = opens[-1]
            # A deadline that the daemon waits for is checked too.
            t = min(nxt, self.resync_at) if self.resync_at is not None and self.resync_at > t else nxt
        self.serve(min(t, T))
        self.serve(T) if self.fired is None else None
        self.check()
        return self

    def check(self) -> None:
        lengths = heartbeat_rule.beat_timing(D)
        if self.fired is not None and self.loss < 0.1 and not self.excused(self.fired):
            self.bad.append(f"I1 fired at {self.fired:.0f} without an outage of {OUTAGE_MAX_S:.0f} s")
        if self.death is not None and not any(one.startswith("I1") for one in self.bad):
            late = sum(b - a + 40 for a, b in self.downs.spans if b > self.death - D)
            late += sum(b - a for a, b in self.suspends.spans if b > self.death)
            limit = self.death + lengths.stale_ns / SECOND + D / 6 * 1.1 + D + 5 + late
            if self.crash_loop:
                limit += heartbeat_rule.BOOT_BEATS_MAX * D / 6 * 1.1
            if limit < T and (self.fired is None or self.fired > limit):
                self.bad.append(f"I2 brain dead at {self.death:.0f}, fired at {self.fired}, limit {limit:.0f}")

    def excused(self, fired: float) -> bool:
        """Whether an unavoidable silence as long as the bound came before it.

        Silences with less than a retry cycle between them count as one. The service's downtime joins them but adds no
        time, because the remaining time of the deadline is kept over it.
        """
        silences = [
            *self.partitions.spans,
            *self.suspends.spans,
            *((a + 18, b) for a, b in self.stalls.spans if b - a > 18),
        ]
        if self.death is not None:
            silences.append((self.death, T))
        alone = Spans(silences)
        joined = Spans([(a, b + 6) for a, b in [*silences, *self.downs.spans]])
        return any(
            a < fired and b > fired - D - 60 and alone.total(a, min(b, fired)) >= OUTAGE_MAX_S for a, b in joined.spans
        )


@pytest.mark.soak(worlds=200, full=100_000)
def test_no_world_breaks_the_three_promises(worlds: int, base_seed: int) -> None:
    triggers = beats = 0
    for seed in range(base_seed, base_seed + worlds):
        world = World(seed, Rules()).run()
        assert not world.bad, f"seed {seed}: {world.bad[0]}"
        triggers += world.fired is not None
        beats += world.beats
    # The daemon works in most worlds ...
    assert beats > 100 * worlds
    # ... and the switch fires in some.
    assert triggers > worlds // 10


def monotonic(world: World, t: float) -> int:
    return int((t + 1_000 - world.suspends.total(0, t)) * SECOND)


def from_receipt(
    lengths: BeatTiming, heart: Heart, answer: HeartbeatAnswer, *, sent_ns: int, now_ns: int, chance: float
) -> Heart:
    return heartbeat_rule.answered(lengths, heart, answer, sent_ns=now_ns, now_ns=now_ns, chance=chance)


def ungated(lengths: BeatTiming, heart: Heart, *, now_ns: int, stamp: Stamp, fence: int) -> Verdict:
    return "beat" if now_ns >= heart.next_ns else "wait"


def no_fast_retry(
    lengths: BeatTiming, heart: Heart, answer: HeartbeatAnswer, *, sent_ns: int, now_ns: int, chance: float
) -> Heart:
    heart = heartbeat_rule.answered(lengths, heart, answer, sent_ns=sent_ns, now_ns=now_ns, chance=chance)
    return heart._replace(next_ns=now_ns + int(lengths.period_ns * (0.9 + 0.2 * chance)))


def boot_beats_without_end(lengths: BeatTiming, heart: Heart, *, now_ns: int, stamp: Stamp, fence: int) -> Verdict:
    return heartbeat_rule.judge(lengths, heart._replace(boot_beats=0), now_ns=now_ns, stamp=stamp, fence=fence)


def accepts_any_success(
    lengths: BeatTiming, heart: Heart, answer: HeartbeatAnswer, *, sent_ns: int, now_ns: int, chance: float
) -> Heart:
    if answer.kind == "ok" and not answer.guardians:
        answer = answer._replace(guardians=1, deadline_ms=answer.server_ms + 60_000)
    return heartbeat_rule.answered(lengths, heart, answer, sent_ns=sent_ns, now_ns=now_ns, chance=chance)._replace(
        lapses=0
    )


def opens_until_told(lengths: BeatTiming, heart: Heart, *, now_ns: int, acknowledged: int) -> bool:
    return heart.guardians > 0 and heart.lapses <= acknowledged


# The seed at which the search for a detecting world begins: the first one at the last search, or 0 if it is near.
FIRST = {
    "the lease counts from receipt": 721,
    "a failed beat waits for the next period": 204,
    "the service fires at its start what fell due while it was down": 84,
}

MUTANTS: dict[str, tuple[Rules, str]] = {
    "the lease is kept on a clock that stops in suspend": (
        Rules(clock=monotonic, suspended=lambda heart, **_: heart),
        "I3",
    ),
    "the lease counts from receipt": (Rules(answered=from_receipt, suspended=lambda heart, **_: heart), "I3"),
    "beats are not gated by progress": (Rules(judge=ungated), "I2"),
    "the heartbeat lives in the brain's loop": (Rules(lives_in_the_loop=True), "I1"),
    "the period is half of D": (
        Rules(lengths=heartbeat_rule.beat_timing(D)._replace(period_ns=30 * SECOND), answered=no_fast_retry),
        "I1",
    ),
    "a failed beat waits for the next period": (Rules(answered=no_fast_retry), "I1"),
    "boot beats have no end": (Rules(judge=boot_beats_without_end), "I2"),
    "the service fires at its start what fell due while it was down": (Rules(service_fires_at_start=True), "I1"),
    "any 200 makes the lease good again": (
        Rules(answered=accepts_any_success, suspended=lambda heart, **_: heart),
        "I3",
    ),
    "an old lease is good until the service denies it": (Rules(may_open=opens_until_told), "I3"),
    "a stall may last as long as D before beats stop": (
        Rules(lengths=heartbeat_rule.beat_timing(D)._replace(stale_ns=60 * SECOND)),
        "I2",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_worlds_detect_a_wrong_rule(name: str) -> None:
    rules, promise = MUTANTS[name]
    first = FIRST.get(name, 0)
    for seed in range(first, first + 1_000):
        bad = World(seed, rules).run().bad
        if any(one.startswith(promise) for one in bad):
            return
    pytest.fail(f"1,000 worlds did not notice that {name}")


def test_a_world_is_a_function_of_its_seed() -> None:
    first, second = World(11, Rules()).run(), World(11, Rules()).run()
    assert (first.fired, first.beats, first.heart) == (second.fired, second.beats, second.heart)
