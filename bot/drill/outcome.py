"""The outcome of a world as values: findings, counts, losses, and what guardians saved. It has a JSON form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bot.backtest.data.candles import Candles
from bot.drill.faults import DrillFault
from bot.drill.judgment import Failure, Finding
from bot.model.events import Event, FillEvent, GuardianMoved
from bot.venue.model.numbers import E8


class Fire(NamedTuple):
    """A guardian that fired and closed positions. `closed_usd` is what these closes realized, `held_usd` what the
    positions would have made if they had been held to the end of the shock, or of the world if there was none.
    """

    at_ms: int
    guardian: str
    closed_usd: float
    held_usd: float

    @property
    def saved_usd(self) -> float:
        """Negative if holding on would have been better."""
        return self.closed_usd - self.held_usd


@dataclass(frozen=True, slots=True)
class WorldOutcome:
    """The end of one world. `bare_ms`: simulated time in which positions had no stop, in all and at a stretch."""

    seed: int
    start_ms: int
    end_ms: int
    faults: tuple[DrillFault, ...]
    findings: tuple[Finding, ...] = ()
    orders: int = 0
    fills: int = 0
    deaths: int = 0
    # requests, by what became of them
    spoiled: Mapping[str, int] = field(default_factory=dict)
    bare_ms: int = 0
    longest_bare_ms: int = 0
    # the lowest account value below the beginning's
    worst_usd: float = 0.0
    # the account value at the end, less the beginning's
    end_usd: float = 0.0
    fires: tuple[Fire, ...] = ()
    took_s: float = field(default=0.0, compare=False)
    steps: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def has_passed(self) -> bool:
        return not self.findings

    @property
    def saved_usd(self) -> float:
        return sum(fire.saved_usd for fire in self.fires)

    def count(self, kind: Failure) -> int:
        return sum(finding.kind == kind for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seed": self.seed,
            "fromMs": self.start_ms,
            "toMs": self.end_ms,
            "passed": self.has_passed,
            "faults": [
                {"kind": fault.kind, "atMs": fault.at_ms, "forMs": fault.for_ms, "text": str(fault)}
                for fault in self.faults
            ],
            "findings": [finding._asdict() for finding in self.findings],
            "orders": self.orders,
            "fills": self.fills,
            "lost": self.count("lost"),
            "doubled": self.count("doubled"),
            "deaths": self.deaths,
            "spoiledRequests": dict(sorted(self.spoiled.items())),
            "secondsWithoutStop": self.bare_ms / 1000,
            "longestWithoutStop": self.longest_bare_ms / 1000,
            "worstUsd": round(self.worst_usd, 2),
            "endUsd": round(self.end_usd, 2),
            "guardianFires": [
                {
                    "atMs": fire.at_ms,
                    "guardian": fire.guardian,
                    "closedUsd": round(fire.closed_usd, 2),
                    "heldUsd": round(fire.held_usd, 2),
                    "savedUsd": round(fire.saved_usd, 2),
                }
                for fire in self.fires
            ],
        }


def fires_of(
    events: Iterable[Event], candles: Sequence[Candles], faults: Iterable[DrillFault], *, end_ms: int
) -> tuple[Fire, ...]:
    """The guardians that closed positions, and what they saved. `candles` are those of the world, with its shocks."""
    by_market = {series.market: series for series in candles}
    shocks = [fault for fault in faults if fault.kind == "shock"]
    fired: dict[str, GuardianMoved] = {}
    sums: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, GuardianMoved) and event.subtype == "fired":
            fired.update(dict.fromkeys(event.trades, event))
        elif isinstance(event, FillEvent) and event.subtype == "exit" and (by := fired.get(event.trade)) is not None:
            until_ms = next((shock.end_ms for shock in shocks if shock.at_ms <= event.ts < shock.end_ms), end_ms)
            here, then = event.px / E8, _px_at(by_market[event.coin], until_ms)
            more = (then - here) * (event.size / E8) * (1 if event.side == "long" else -1)
            closed = ((event.realized or 0) - event.fee) / E8
            total = sums.setdefault(by.guardian, [0.0, 0.0])
            total[0] += closed
            total[1] += closed + more
    by_guardian = {event.guardian: event for event in fired.values()}
    return tuple(Fire(by_guardian[name].ts, by_guardian[name].guardian_type, *total) for name, total in sums.items())


def _px_at(candles: Candles, at_ms: int) -> float:
    """The last close at or before the instant."""
    row = bisect_left(candles.at_ms, at_ms - candles.step_ms + 1) - 1
    return candles.close[max(0, row)]
