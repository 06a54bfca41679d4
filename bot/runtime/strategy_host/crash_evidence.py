"""Which strategies were being called when earlier runs died, so that the next start can quarantine them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bot.runtime.journal.journal import Journal
from bot.runtime.risk.pauses import quarantine
from bot.runtime.strategy_host import call_record
from bot.runtime.strategy_host.host import StrategySpec

ASKED: Final = "asked_at_end"  # the note of whom the last runs were asking when their processes ended


ENDS_MAX: Final = 3  # in a row, before that is no chance any more


def quarantine_asked(folder: Path, journal: Journal, placed: Iterable[StrategySpec], *, now_ms: int) -> None:
    """What the last run was asking when it stood still is asked nothing more, unless its code or params have changed since. Nor is what ENDS_MAX runs in
    a row were asking when their process ended: a kill that falls into a call once is chance."""
    fence, asked = call_record.asked(folder)
    counted, before = _asked_before(journal)
    if fence in (0, counted):  # Nothing can be told; or a start that came to nothing has counted it.
        return
    versions = {one.strategy.name: one.version for one in placed}
    now: dict[str, tuple[str, int]] = {}
    for one in asked:
        if versions.get(one.strategy) != one.version:
            continue
        version, ends = before.get(one.strategy, ("", 0))
        ends = ends + 1 if version == one.version else 1
        if one.stood_still:
            why = f"did not return for {one.seconds:.0f} s, and the daemon stood still until it was ended"
        elif ends >= ENDS_MAX:
            why = f"{ENDS_MAX} times in a row the daemon's process ended while it was asked"
        else:
            now[one.strategy] = one.version, ends
            continue
        quarantine(journal, one.strategy, one.version, f"{one.strategy}: {why}", at_ms=now_ms)
    journal.write_note(ASKED, json.dumps([fence, now]))


def _asked_before(journal: Journal) -> tuple[int, dict[str, tuple[str, int]]]:
    """Up to which run it was counted whom they were asking when they ended, and how many in a row. A damaged note says nothing."""
    try:
        fence, found = json.loads(journal.note(ASKED) or "[0, {}]")
        return int(fence), {str(name): (str(version), int(ends)) for name, (version, ends) in found.items()}
    except (ValueError, TypeError, AttributeError):
        return 0, {}
