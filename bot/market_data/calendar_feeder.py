"""The process that asks exchange_calendars: the names of its calendars, or the sessions of some. It imports nothing of
bot.

A separate interpreter may run this file by its path, because exchange_calendars brings pandas. Each answer is a line of
JSON on stdout: {"names": [...]} without arguments, else one line for each NAME of FIRST LAST NAME...: {"name", "zone",
"begins", "first", "last", "spans": [[opens, closes], ...] in minutes of unix time}, or {"name", "error"}.
"""

import json
import sys
import warnings
from typing import Any

NS_PER_MINUTE = 60_000_000_000


def sessions(library: Any, name: str, first: str, last: str) -> dict[str, Any]:
    """The sessions of a calendar between two days, or as far as the library has them."""
    # A short span is made sooner, and has the same bounds.
    year = int(last[:4]) - 2
    short = library.get_calendar(name, start=f"{year}-01-01", end=f"{year}-12-31")
    least, most = short.bound_min(), short.bound_max()
    if least is not None:
        first = max(first, f"{least:%Y-%m-%d}")
    if most is not None:
        last = min(last, f"{most:%Y-%m-%d}")
    exchange = library.get_calendar(name, start=first, end=last)
    # A trading day may begin on the evening before.
    begins = f"{exchange.open_times[-1][1]:%H:%M}" if exchange.open_offset < 0 else "00:00"
    return {
        "name": name,
        "zone": str(exchange.tz),
        "begins": begins,
        "first": first,
        "last": last,
        "spans": spans(exchange),
    }


def spans(exchange: Any) -> list[list[int]]:
    """Opens and closes, with the breaks of a day left out."""
    pairs: list[list[int]] = []
    columns = (exchange.opens, exchange.break_starts, exchange.break_ends, exchange.closes)
    for opening, rests, resumes, closing in zip(*columns, strict=True):
        # NaT, which differs from itself, is no break.
        parts = [(opening, rests), (resumes, closing)] if rests == rests else [(opening, closing)]
        pairs += [[begin.value // NS_PER_MINUTE, end.value // NS_PER_MINUTE] for begin, end in parts]
    return pairs


def write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


def main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    try:
        import exchange_calendars
    except ImportError as error:
        write({"missing": str(error)})
        return
    if not arguments:
        write({"names": sorted(exchange_calendars.get_calendar_names(include_aliases=False))})
        return
    first, last, *names = arguments
    for name in names:
        try:
            line = sessions(exchange_calendars, name, first, last)
        except Exception as error:  # noqa: BLE001  whatever the library raises; the caller says it
            line = {"name": name, "error": f"{type(error).__name__}: {str(error)[:200]}"}
        write(line)


if __name__ == "__main__":
    main(sys.argv[1:])
