"""Many days' proofs as a trend: a row for each day, and slippage and fees against the test by market and by hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from bot.runtime.journal import proof_files

DAYS: Final = 90


class DayRow(NamedTuple):
    """One day. `outage_usd` is what the outages of the day brought: negative if they cost."""

    day: str
    decisions: int
    # None: nothing was decided
    equal_share: float | None
    differences: int
    unknown: int
    slippage_usd: Decimal
    fee_usd: Decimal
    outage_usd: Decimal
    causes: Mapping[str, int]


class GroupRow(NamedTuple):
    """The fills of a market, or of an hour of the day: slippage and fees against the test."""

    name: str
    fills: int
    notional_usd: Decimal
    slippage_usd: Decimal
    # a part of the notional
    slippage_bps: float
    fee_usd: Decimal
    tested_fee_usd: Decimal


@dataclass(frozen=True, slots=True)
class ProofTrend:
    """The newest days, oldest first."""

    days: tuple[DayRow, ...]
    markets: tuple[GroupRow, ...]
    hours: tuple[GroupRow, ...]

    @property
    def equal_share(self) -> float | None:
        """The share of all decisions that were equal."""
        known = [row for row in self.days if row.equal_share is not None]
        decisions = sum(row.decisions for row in known)
        return sum((row.equal_share or 0.0) * row.decisions for row in known) / decisions if decisions else None

    @property
    def outage_usd(self) -> Decimal:
        return sum((row.outage_usd for row in self.days), Decimal(0))

    @property
    def unknown(self) -> int:
        return sum(row.unknown for row in self.days)

    def plain(self) -> dict[str, Any]:
        rows = {
            name: [
                {key: str(value) if isinstance(value, Decimal) else value for key, value in row.items()} for row in of
            ]
            for name, of in (
                ("days", [row._asdict() for row in self.days]),
                ("markets", [row._asdict() for row in self.markets]),
                ("hours", [row._asdict() for row in self.hours]),
            )
        }
        return {**rows, "equal_share": self.equal_share, "unknown": self.unknown, "outage_usd": str(self.outage_usd)}


def read_trend(state_dir: Path, days: int = DAYS) -> ProofTrend:
    """The trend of the newest days that have a proof."""
    documents = [proof_files.read_proof(state_dir, day) for day in proof_files.days(state_dir)[-days:]]
    return trend_of([document for document in documents if document is not None])


def trend_of(documents: Sequence[Mapping[str, Any]]) -> ProofTrend:
    by_market: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    by_hour: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for document in documents:
        for measure in document["measures"]:
            by_market[measure["market"]].append(measure)
            by_hour[f"{measure['hour']:02d}:00"].append(measure)
    return ProofTrend(
        tuple(map(_day, documents)),
        tuple(_group(name, measures) for name, measures in sorted(by_market.items())),
        tuple(_group(name, measures) for name, measures in sorted(by_hour.items())),
    )


def _day(document: Mapping[str, Any]) -> DayRow:
    measures, causes = document["measures"], document["causes"]
    return DayRow(
        document["day"],
        document["counts"].get("decisions", 0),
        document["equalShare"],
        sum(causes.values()),
        causes.get("unknown", 0),
        _sum(measures, "slippageUsd"),
        _sum(measures, "feeUsd"),
        Decimal(document["resultUsd"].get("outage", "0")),
        causes,
    )


def _group(name: str, measures: Sequence[Mapping[str, Any]]) -> GroupRow:
    notional, slippage = _sum(measures, "notionalUsd"), _sum(measures, "slippageUsd")
    return GroupRow(
        name,
        sum(measure["fills"] for measure in measures),
        notional,
        slippage,
        float(slippage / notional * 10_000) if notional else 0.0,
        _sum(measures, "feeUsd"),
        _sum(measures, "testedFeeUsd"),
    )


def _sum(measures: Sequence[Mapping[str, Any]], name: str) -> Decimal:
    return sum((Decimal(measure[name]) for measure in measures), Decimal(0))
