"""exchange_calendars in the environment that `make test` makes for it: its own tables of sessions, for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from bot.market_data import calendar_feeder

# Every kind of day stands in each span of some years: half days, changes of the clock, days that only a lunar calendar
# knows. The whole span, as `bot markets sessions` stores it, takes a second of processor time a calendar.
RECENT: Final = "2023-01-01"
WHOLE: Final = "2000-01-01"
LAST: Final = "2027-12-31"
# Of each kind of calendar one: without an end, of the evening before, with a break, of Sundays, with changed hours.
ALWAYS_WHOLE: Final = ("24/7", "CMES", "XHKG", "XTAE", "XTKS")
# For each calendar: what the feeder answers, and what the library itself says of every session and of chosen minutes.
_SCRIPT = """
import json, random, runpy, sys, warnings
warnings.simplefilter("ignore")
import exchange_calendars
feeder = runpy.run_path(sys.argv[1])
first, last, share, shares, earliest, *whole = sys.argv[2:]
for name in sorted(exchange_calendars.get_calendar_names(include_aliases=False))[int(share) :: int(shares)]:
    answer = feeder["sessions"](exchange_calendars, name, earliest if name in whole else first, last)
    library = exchange_calendars.get_calendar(name, start=answer["first"], end=answer["last"])
    rows = [
        [None if stamp != stamp else stamp.value // 1_000_000 for stamp in row]
        for row in library.schedule.itertuples(index=False, name=None)
    ]
    chance = random.Random(name)
    lowest, highest = rows[0][0] // 60_000, rows[-1][3] // 60_000
    stamps = [exchange_calendars.exchange_calendar.pd.Timestamp(chance.randrange(lowest, highest) * 60, unit="s")
              for _ in range(100)]
    minutes = [[stamp.value // 1_000_000, bool(library.is_open_at_time(stamp.tz_localize("UTC"), side="left"))]
               for stamp in stamps]
    early = [f"{day:%Y-%m-%d}" for day in library.early_closes]
    days = [f"{day:%Y-%m-%d}" for day in library.sessions]
    print(json.dumps({"answer": answer, "rows": rows, "minutes": minutes, "early": early, "days": days}))
"""


def python_with_calendars() -> str:
    """The interpreter of that environment. Skips the test where `make test` has not made it."""
    python = markets_python()
    if python is None:
        pytest.skip("there is no environment with exchange_calendars: run `make test`")
    return python


def markets_python() -> str | None:
    """The interpreter of that environment, or BOT_MARKETS_PYTHON; None if there is none."""
    given = os.environ.get("BOT_MARKETS_PYTHON")
    python = Path(given) if given else Path(sys.prefix) / "markets" / "bin" / "python"
    return str(python) if python.exists() else None


def calendars_of(python: str, share: int, shares: int, first: str) -> dict[str, dict[str, Any]]:
    """What feeder and library say of a share of the calendars of the library, by their names."""
    done = subprocess.run(
        [python, "-c", _SCRIPT, calendar_feeder.__file__, first, LAST, str(share), str(shares), WHOLE, *ALWAYS_WHOLE],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["answer"]["name"]: line for line in lines}
