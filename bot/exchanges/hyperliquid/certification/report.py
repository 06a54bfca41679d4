"""The report of a certification: what was seen of each assumption, for others to read. Pure.

It holds no key, no signature, no address and no transaction hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from bot.exchanges.hyperliquid.certification.assumptions import BY_NAME, NOT_SHOWN
from bot.exchanges.hyperliquid.certification.run import AssumptionResult, CertificationRun
from bot.money import format_e8

FORMAT: Final = 1
ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}(?![0-9a-fA-F])", re.ASCII)
HASH: Final = re.compile(r"0x[0-9a-fA-F]{41,}", re.ASCII)


def redacted(report: dict[str, Any]) -> dict[str, Any]:
    """The same report with numbered names for addresses, and without hashes and signatures."""
    numbers: dict[str, int] = {}

    def name(match: re.Match[str]) -> str:
        return f"address {numbers.setdefault(match[0].lower(), len(numbers) + 1)}"

    shown: dict[str, Any] = json.loads(ADDRESS.sub(name, HASH.sub("hash", json.dumps(report))))
    return shown


def certification_report(run: CertificationRun, about: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON. `about`: versions, network, market and instants."""
    rows = [_row(known) for result in run.results for known in result.assumptions]
    rows += [{"assumption": name, "value": None, "reason": reason} for name, reason in NOT_SHOWN.items()]
    scenarios = [
        {
            "scenario": result.scenario.name,
            "sends": result.scenario.sends,
            "left": result.left,
            "record": [{"atMs": entry.at_ms, "sent": entry.sent, "answer": entry.answer} for entry in result.record],
        }
        for result in run.results
    ]
    outcome = {"stopped": run.stopped, "costUsd": format_e8(run.cost)}
    report: dict[str, Any] = {"format": FORMAT, **about, **outcome, "assumptions": rows, "scenarios": scenarios}
    return redacted(report)


def _row(known: AssumptionResult) -> dict[str, Any]:
    assumption = BY_NAME[known.assumption]
    assumed = next(iter(assumption.values))
    return {
        "assumption": known.assumption,
        "question": assumption.question,
        "step": assumption.step,
        "isSwitch": assumption.is_switch,
        "assumed": assumed,
        "value": known.value,
        "meaning": None if known.value is None else assumption.values[known.value],
        "isAsAssumed": None if known.value is None else known.value == assumed,
        "reason": known.reason,
        "scenario": known.scenario,
    }


def result_line(known: AssumptionResult) -> str:
    """One assumption as a line for people."""
    if known.value is None:
        return f"not known  {known.assumption}: {known.reason}"
    assumption = BY_NAME[known.assumption]
    mark = "as assumed" if known.value == next(iter(assumption.values)) else "OTHERWISE "
    value = f" = {known.value}" if assumption.is_switch else ""
    return f"{mark} {known.assumption}{value}: {assumption.values[known.value]}"


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    yield f"Certification of {report['exchange']}, {report['network']}, {report['market']}"
    yield f"from {report['begunAt']} to {report['endedAt']} with bracketbot {report['version']}"
    yield f"cost {report['costUsd']} USD; " + (
        f"stopped: {report['stopped']}" if report["stopped"] else "all scenarios ran"
    )
    for row in report["assumptions"]:
        known = AssumptionResult(row["assumption"], row.get("scenario", ""), row["value"], row["reason"])
        yield result_line(known)
    values = [
        f"--switch {row['assumption']}={row['value']}"
        for row in report["assumptions"]
        if row.get("isSwitch") and row["value"]
    ]
    yield "A local exchange with what was seen: bot exchange local " + " ".join(values)
