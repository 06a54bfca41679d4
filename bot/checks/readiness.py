"""The readiness grade of a config: the rule that turns lines of evidence into a grade for real money. Pure.

`RULES` says what each line is worth and what it must reach. `readiness_lines.py` finds the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

State = Literal["known", "old", "not known"]
Grade = Literal["A", "B", "C", "D", "E", "F"]
# The least points of each grade.
GRADES: Final[Mapping[Grade, float]] = {"A": 90, "B": 75, "C": 60, "D": 45, "E": 30, "F": 0}
# `bot run` asks below this grade, and no line that is needed may be missing in it.
ENOUGH: Final = "C"
BELOW_ENOUGH: Final = "D"


class Rule(NamedTuple):
    """A line of the checklist: its points, and what half and all of them need. `is_needed`: for the grade C."""

    name: str
    points: int
    half: str
    whole: str
    is_needed: bool = False


_RULES: Final = (
    Rule("tested period", 8, "90 days", "365 days"),
    Rule("trades", 8, "30 trades", "100 trades"),
    Rule("cost share", 8, "50 % of what the trades earn", "25 % of it"),
    Rule("worst day", 8, "within the daily loss limit", "within 80 % of it"),
    Rule("walk-forward", 10, "probability 0.75", "probability 0.95"),
    Rule("deflated Sharpe", 10, "probability 0.75", "probability 0.95"),
    Rule("drill", 12, "20 worlds, all passed", "100 worlds, all passed", is_needed=True),
    Rule("proved days", 14, "5 days without an unknown cause", "14 days", is_needed=True),
    Rule("dead-man", 6, "1 passed world with lost heartbeats", "5 such worlds", is_needed=True),
    Rule("alerts", 6, "accepted by one address of the config", "accepted by each, in the last 30 days"),
    Rule("backup", 4, "in the last 7 days", "in the last day"),
    Rule("key", 4, "the scopes that it needs", "and at least 14 days until it expires", is_needed=True),
    Rule("clock", 2, "within 30 s of the service's", "within 2 s of it", is_needed=True),
)
RULES: Final = {rule.name: rule for rule in _RULES}


@dataclass(frozen=True, slots=True)
class ReadinessLine:
    """What is known of one line. `share`: 0, 0.5 or 1 of its points. `remedy`: the command that would raise it."""

    name: str
    state: State
    share: float
    evidence: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert self.share in (0, 0.5, 1), f"{self.name} has half of its points, all or none"
        assert self.state == "known" or not self.share, f"{self.name}: what is {self.state} passes nothing"
        assert self.share == 1 or self.remedy, f"{self.name} has no remedy"

    @property
    def points(self) -> float:
        return self.share * RULES[self.name].points


@dataclass(frozen=True, slots=True)
class Readiness:
    """The lines of a config, in the order of RULES."""

    name: str
    lines: Sequence[ReadinessLine]

    @property
    def points(self) -> float:
        return sum(line.points for line in self.lines)

    @property
    def grade(self) -> Grade:
        return grade_of({line.name: line.share for line in self.lines})

    @property
    def is_enough(self) -> bool:
        return self.grade <= ENOUGH

    @property
    def missing(self) -> list[str]:
        """The needed lines without a point."""
        return [line.name for line in self.lines if RULES[line.name].is_needed and not line.share]

    @property
    def next_line(self) -> ReadinessLine | None:
        """The line that would raise the grade most, then the points, if it reached all of its points."""
        shares = {line.name: line.share for line in self.lines}

        def raised(line: ReadinessLine) -> tuple[int, int, float]:
            is_missing = line.name in self.missing
            grade = grade_of({**shares, line.name: 1})
            return -ord(grade), is_missing, RULES[line.name].points - line.points

        open_lines = [line for line in self.lines if line.share < 1]
        # The first of equals, in the order of RULES.
        return max(open_lines, key=raised, default=None)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        best = self.next_line
        return {
            "name": self.name,
            "grade": self.grade,
            "points": self.points,
            "pointsMax": sum(rule.points for rule in _RULES),
            "missing": self.missing,
            "next": None if best is None else best.name,
            "lines": [
                {
                    "name": line.name,
                    "state": line.state,
                    "points": line.points,
                    "pointsMax": RULES[line.name].points,
                    "evidence": line.evidence,
                    "remedy": line.remedy,
                }
                for line in self.lines
            ],
        }


def grade_of(shares: Mapping[str, float]) -> Grade:
    """The grade of these shares by line: by the sum of the points, and at most D if a needed line has none."""
    points = sum(rule.points * shares[rule.name] for rule in _RULES)
    grade = next(grade for grade, least in GRADES.items() if points >= least)
    is_short = any(rule.is_needed and not shares[rule.name] for rule in _RULES)
    return max(grade, BELOW_ENOUGH) if is_short else grade
