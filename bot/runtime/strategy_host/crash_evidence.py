"""Finds which strategies were being called when earlier runs died, so that this start can quarantine them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bot.runtime.journal.journal import Journal
from bot.runtime.risk.pauses import quarantine
from bot.runtime.strategy_host import call_record
from bot.runtime.strategy_host.host import StrategySpec

# note: the strategies that were being called when the last runs ended
ASKED: Final = "asked_at_end"
# crashes in a row during calls of one strategy; fewer may be chance
ENDS_MAX: Final = 3


def quarantine_asked(folder: Path, journal: Journal, specs: Iterable[StrategySpec], *, now_ms: int) -> None:
    """Quarantine a strategy if its call blocked the last run, or if ENDS_MAX runs in a row ended during a call of it.

    A strategy with changed code or params is not quarantined.
    """
    fence, asked = call_record.asked(folder)
    counted, before = _asked_before(journal)
    # There is no call record, or a failed start has already counted that record.
    if fence in (0, counted):
        return
    versions = {spec.strategy.name: spec.version for spec in specs}
    now: dict[str, tuple[str, int]] = {}
    for call in asked:
        if versions.get(call.strategy) != call.version:
            continue
        version, ends = before.get(call.strategy, ("", 0))
        ends = ends + 1 if version == call.version else 1
        if call.blocked_daemon:
            why = f"did not return for {call.seconds:.0f} s, and the daemon was blocked until it was ended"
        elif ends >= ENDS_MAX:
            why = f"{ENDS_MAX} times in a row the daemon's process ended during a call of it"
        else:
            now[call.strategy] = call.version, ends
            continue
        quarantine(journal, call.strategy, call.version, f"{call.strategy}: {why}", at_ms=now_ms)
    journal.state.write_note(ASKED, json.dumps([fence, now]))


def _asked_before(journal: Journal) -> tuple[int, dict[str, tuple[str, int]]]:
    """Last counted run, and consecutive crashes per strategy with its version. A damaged note counts as none."""
    try:
        fence, counts = json.loads(journal.state.note(ASKED) or "[0, {}]")
        return int(fence), {str(name): (str(version), int(ends)) for name, (version, ends) in counts.items()}
    except (ValueError, TypeError, AttributeError):
        return 0, {}
