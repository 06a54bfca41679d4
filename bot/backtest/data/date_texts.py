"""The forms in which files of other programs write times, for the sentences that refuse them: which options of
`bot data import` read a text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

# Excel's days from 1899-12-30: the years 1954 to 2118
SERIAL_DAYS: Final = range(20_000, 80_000)
_NAME: Final = r"[A-Za-z]{1,9}"
# The forms of a date by its shape. Of one shape several may be read; those that do not fit a text are left out.
_DATES: Final = (
    (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}", ("%Y-%m-%d",)),
    (r"[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}", ("%Y/%m/%d",)),
    (r"[0-9]{4}\.[0-9]{1,2}\.[0-9]{1,2}", ("%Y.%m.%d",)),
    (r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{4}", ("%d/%m/%Y", "%m/%d/%Y")),
    (r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{4}", ("%d.%m.%Y", "%m.%d.%Y")),
    (r"[0-9]{1,2}-[0-9]{1,2}-[0-9]{4}", ("%d-%m-%Y", "%m-%d-%Y")),
    (r"[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}", ("%d/%m/%y", "%m/%d/%y", "%y/%m/%d")),
    (r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{2}", ("%d.%m.%y", "%m.%d.%y", "%y.%m.%d")),
    (r"[0-9]{1,2}-[0-9]{1,2}-[0-9]{2}", ("%d-%m-%y", "%m-%d-%y", "%y-%m-%d")),
    (rf"[0-9]{{1,2}} {_NAME} [0-9]{{4}}", ("%d %b %Y", "%d %B %Y")),
    (rf"[0-9]{{1,2}}-{_NAME}-[0-9]{{4}}", ("%d-%b-%Y", "%d-%B-%Y")),
    (rf"[0-9]{{1,2}}-{_NAME}-[0-9]{{2}}", ("%d-%b-%y", "%d-%B-%y")),
    (rf"{_NAME} [0-9]{{1,2}}, [0-9]{{4}}", ("%b %d, %Y", "%B %d, %Y")),
    (rf"{_NAME} [0-9]{{1,2}} [0-9]{{4}}", ("%b %d %Y", "%B %d %Y")),
    (r"[0-9]{8}", ("%Y%m%d", "%d%m%Y")),
)
_CLOCKS: Final = (
    (r"", ""),
    (r"[0-9]{1,2}:[0-9]{2}", "%H:%M"),
    (r"[0-9]{1,2}:[0-9]{2}:[0-9]{2}", "%H:%M:%S"),
    (r"[0-9]{1,2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,6}", "%H:%M:%S.%f"),
    (r"[0-9]{1,2}:[0-9]{2} [AaPp][Mm]", "%I:%M %p"),
    (r"[0-9]{1,2}:[0-9]{2}:[0-9]{2} [AaPp][Mm]", "%I:%M:%S %p"),
    (r"[0-9]{1,2}:[0-9]{2}[AaPp][Mm]", "%I:%M%p"),
    (r"[0-9]{6}", "%H%M%S"),
    (r"[0-9]{4}", "%H%M"),
)
_TOGETHER: Final = {10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S", 17: "%Y%m%d%H%M%S%f"}
_ZONE: Final = re.compile(r"(.*?(?:[0-9]|[AaPp][Mm])) ?([A-Za-z]+(?:/[A-Za-z_+\-0-9]+)+|[A-Z]{2,5})", re.ASCII)
_HALVES: Final = ("AM", "PM")
# What short names of zones may mean: a place whose clock changes, and the fixed offset.
_SHORT: Final = {
    **dict.fromkeys(("EST", "ET"), ("America/New_York", "Etc/GMT+5")),
    "EDT": ("America/New_York", "Etc/GMT+4"),
    "CST": ("America/Chicago", "Asia/Shanghai"),
    "CDT": ("America/Chicago", "Etc/GMT+5"),
    "MST": ("America/Denver", "Etc/GMT+7"),
    "MDT": ("America/Denver", "Etc/GMT+6"),
    "PST": ("America/Los_Angeles", "Etc/GMT+8"),
    "PDT": ("America/Los_Angeles", "Etc/GMT+7"),
    "CET": ("Europe/Berlin", "Etc/GMT-1"),
    "CEST": ("Europe/Berlin", "Etc/GMT-2"),
    "BST": ("Europe/London", "Etc/GMT-1"),
    "IST": ("Asia/Kolkata", "Europe/Dublin"),
    "JST": ("Asia/Tokyo", "Etc/GMT-9"),
}


def way_of(text: str) -> str:
    """Which options read a time that is not in ISO form."""
    zone = _ZONE.fullmatch(text)
    if zone is not None and zone[2].upper() not in _HALVES:
        literal = text[len(zone[1]) :]
        forms = [f"{form}{literal}" for form in forms_of(zone[1])]
        if forms:
            return f"it ends with the name of a zone: say {_options(forms)} and {_zones(zone[2])}"
    forms = forms_of(text)
    if not forms:
        return "say its form with --unit, like --unit '%d/%m/%Y %H:%M'"
    return f"say its form with {_options(forms)}"


def way_of_mixed_zones(unit: str, text: str, path: Path) -> str:
    """What to do when rows end with different names of a zone, like EST in winter and EDT in summer."""
    mine, theirs = _ZONE.fullmatch(text), re.search(r" ?([A-Z]{2,5})$", unit)
    if mine is None or theirs is None or mine[2] == theirs[1] or mine[2] in _HALVES:
        return ""
    names = f"{theirs[1]}|{mine[2]}"
    cut = f"sed -E 's/ ?({names})//' {quote(str(path))} > NEW.csv"
    return f"; names of zones differ: cut them out ({cut}), and say {_zones(theirs[1])}"


def written_together(text: str) -> str | None:
    """The form of a date and an hour without signs, like 20250303093000; None if the digits are none."""
    form = _TOGETHER.get(len(text))
    if form is not None and re.match(r"(19|20)[0-9]{2}", text) and text.isdigit() and _fits(text, form):
        return form
    return None


def forms_of(text: str) -> list[str]:
    """Every form of strptime that reads a text, of those that are in use."""
    complete = []
    for date, forms in _DATES:
        for clock, its_form in _CLOCKS:
            parts = re.fullmatch(rf"{date}([T ,\-]*){clock}", text)
            if parts is not None and bool(parts[1]) == bool(its_form):
                complete += [whole for form in forms if _fits(text, whole := f"{form}{parts[1]}{its_form}")]
    return complete


def _fits(text: str, form: str) -> bool:
    with suppress(ValueError):
        datetime.strptime(text, form)  # noqa: DTZ007 - only whether it fits
        return True
    return False


def _options(forms: list[str]) -> str:
    return " or ".join(f"--unit '{form}'" for form in forms)


def _zones(name: str) -> str:
    if name in _SHORT:
        place, fixed = _SHORT[name]
        return f"--tz {place} or --tz {fixed}, whichever {name} means there"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return "its zone with --tz, like --tz Europe/Berlin"
    return f"--tz {name}"


def is_serial(text: str) -> bool:
    """True for a day of a spreadsheet: 45719.5 is noon of 3 March 2025."""
    number = re.fullmatch(r"([0-9]{5})(?:[.,][0-9]+)?", text, re.ASCII)
    return number is not None and int(number[1]) in SERIAL_DAYS


def parted_zone(text: str) -> tuple[str, str, str | None]:
    """A time without the name of its zone, the text of that name, and the zone: `... US/Eastern`. None without one,
    and for letters like EST, which may mean several.
    """
    parts = _ZONE.fullmatch(text)
    if parts is None or "/" not in parts[2]:
        return text, "", None
    with suppress(ZoneInfoNotFoundError, ValueError):
        return parts[1], text[len(parts[1]) :], ZoneInfo(parts[2]).key
    return text, "", None
