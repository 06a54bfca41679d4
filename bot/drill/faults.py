"""The faults of a world, drawn from its seed. Values only: other modules apply them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, get_args

from bot.clock import MINUTE_MS, iso
from bot.number_text import duration_ms

Kind = Literal["outage", "lossy", "death", "gap", "shock", "silence", "no_stop"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
WORDS: Final[dict[Kind, str]] = {
    "outage": "API outage",
    "lossy": "lost replies",
    "death": "death of the daemon",
    "gap": "gap in the data",
    "shock": "price shock",
    "silence": "lost heartbeats",
    "no_stop": "canceled stops",
}
# The faults of one world.
FAULTS_MAX: Final = 5

# Where the daemon dies: between two passes, or in the middle of its work.
Point = Literal["idle", "before_request", "after_request", "before_commit", "after_commit"]
POINTS: Final[tuple[Point, ...]] = get_args(Point)

# What a lossy network does with one request: it never arrives; its reply is lost; it arrives later, when nobody waits
# for it; it arrives twice; the service refuses it for now, by 429 or 503; a gateway refuses an order by 403, which the
# service never sees; its reply is slow; the reply to a question for events is an old page.
Fate = Literal["unsent", "lost", "late", "double", "busy", "down", "denied", "slow", "stale"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)


@dataclass(frozen=True, slots=True)
class DrillFault:
    """One fault. `share` is the part of the requests that a lossy network spoils, or the relative move of a shock."""

    kind: Kind
    at_ms: int
    for_ms: int = 0
    share: float = 0.0
    # The point of a pass at which the daemon dies.
    point: Point = "idle"
    # The part of a shock's move that the price takes back at its end.
    back: float = 0.0

    @property
    def end_ms(self) -> int:
        return self.at_ms + self.for_ms

    def __str__(self) -> str:
        words = f"{iso(self.at_ms)[:19]} {WORDS[self.kind]}"
        if self.for_ms:
            words += f" for {duration_ms(self.for_ms)}"
        match self.kind:
            case "lossy":
                words += f", {self.share:.0%} of the requests"
            case "shock":
                words += f", {self.share:+.1%}, then {self.back:.0%} of it back"
            case "death":
                words += f", {self.point.replace('_', ' ')}"
        return words


@dataclass(frozen=True, slots=True)
class Span:
    """When the faults of a world may begin and when all of them have ended.

    `bar_ms`: the length of a candle; `switch_ms`: of the dead-man switch.
    """

    start_ms: int
    end_ms: int
    bar_ms: int
    switch_ms: int | None = None


def faults_of(chance: Random, span: Span) -> tuple[DrillFault, ...]:
    """One to FAULTS_MAX faults in the order of time. A world has at most one fault of a kind, except deaths."""
    kinds = [kind for kind in KINDS if kind != "silence" or span.switch_ms is not None]
    drawn = chance.sample(kinds, chance.randint(1, min(FAULTS_MAX, len(kinds))))
    drawn += ["death"] * (chance.random() < 0.3)
    drawn_faults = (_fault(kind, chance, span) for kind in drawn)
    return tuple(
        sorted((fault for fault in drawn_faults if fault is not None), key=lambda fault: (fault.at_ms, fault.kind))
    )


def _fault(kind: Kind, chance: Random, span: Span) -> DrillFault | None:
    """A fault that begins and ends within the span. None if the span is too short for it."""
    for_ms, share, back = 0, 0.0, 0.0
    point: Point = "idle"
    match kind:
        case "outage" | "death":
            for_ms = _away_ms(chance, span)
            if kind == "death":
                point = chance.choice(POINTS)
        case "lossy":
            for_ms, share = int(chance.uniform(1, 45) * MINUTE_MS), chance.choice((0.05, 0.2, 0.5))
        case "gap":
            for_ms = chance.randint(1, 30) * span.bar_ms
        case "shock":
            for_ms = chance.randint(5, 60) * span.bar_ms
            share, back = chance.choice((-1, 1)) * chance.uniform(0.02, 0.3), chance.choice((0.0, 0.5, 1.0))
        case "silence":
            for_ms = int((span.switch_ms or 0) * chance.uniform(1.05, 1.3))
        case "no_stop":
            pass
    if for_ms >= span.end_ms - span.start_ms:
        # A shorter silence is no fault, because the dead-man switch does not fire.
        if kind == "silence":
            return None
        for_ms = (span.end_ms - span.start_ms) // 2
    return DrillFault(kind, chance.randrange(span.start_ms, span.end_ms - for_ms), for_ms, share, point, back)


def _away_ms(chance: Random, span: Span) -> int:
    """How long the service or the daemon is away: seconds, minutes, or longer than the dead-man switch waits."""
    kinds: Sequence[tuple[float, float]] = [(1_000, 20_000), (20_000, 90_000), (2 * MINUTE_MS, 15 * MINUTE_MS)]
    if span.switch_ms is not None:
        kinds = [*kinds, (span.switch_ms * 1.1, span.switch_ms * 1.5)]
    return int(chance.uniform(*chance.choice(kinds)))
