"""Ask exchange_calendars for the sessions of exchanges. Only a command that lists markets does: every other process
reads the sessions from the listing file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

from bot.clock import MINUTE_MS
from bot.errors import BotError, ConfigError
from bot.extras import install, own_environment
from bot.market_data import calendar_feeder
from bot.market_data.feeder_client import PYTHON
from bot.service.market_data.session_calendars import packed
from bot.words import did_you_mean

# sessions are stored from this day on, as far as the library has them
FIRST_DAY: Final = date(2000, 1, 1)
# a calendar takes a second or two
ANSWER_S: Final = 300.0


class ExchangeSessions(NamedTuple):
    """The sessions of an exchange as a listing file holds them."""

    zone: str
    begins: str
    first: date
    last: date
    sessions: str


def names() -> list[str] | None:
    """Every calendar of the library by its own name; None if it is not installed."""
    (answer,) = _asked([])
    return answer.get("names")


def ask_sessions(wanted: Sequence[str], now_ms: int) -> dict[str, ExchangeSessions]:
    """The sessions of exchanges from 2000 to the end of next year, or as far as the library has them.

    ConfigError if the library is not there or does not know one of them.
    """
    known = names()
    if known is None:
        raise ConfigError(
            f"sessions of exchanges need the package exchange_calendars: {install('calendars')}. Or give it an"
            f" environment of its own: {own_environment('markets', 'calendars')}, and set {PYTHON}=markets/bin/python"
        )
    for name in wanted:
        if name not in known:
            raise ConfigError(f"no calendar {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    last_day = date(datetime.fromtimestamp(now_ms / 1000, UTC).year + 1, 12, 31)
    answers = _asked([FIRST_DAY.isoformat(), last_day.isoformat(), *wanted])
    if failed := next((answer for answer in answers if "error" in answer), None):
        raise BotError(
            f"exchange_calendars cannot make {failed['name']}: {failed['error']}; with 'pandas<3' it makes all of its"
            " calendars"
        )
    return {answer["name"]: _of_answer(answer) for answer in answers}


def _of_answer(answer: dict[str, Any]) -> ExchangeSessions:
    opens, closes = ([minute * MINUTE_MS for minute in column] for column in zip(*answer["spans"], strict=True))
    first, last = (date.fromisoformat(answer[name]) for name in ("first", "last"))
    return ExchangeSessions(answer["zone"], answer["begins"], first, last, packed(opens, closes))


def _asked(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The answers of the process that has the library."""
    python = os.environ.get(PYTHON) or sys.executable
    try:
        done = subprocess.run(
            [python, calendar_feeder.__file__, *arguments], capture_output=True, timeout=ANSWER_S, check=False
        )
    except OSError as error:
        raise ConfigError(f"{PYTHON}={python}: cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BotError(f"exchange_calendars ({python}) did not answer in {ANSWER_S:g} s; try again") from None
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError:
        raise BotError(f"exchange_calendars ({python}) wrote no JSON: {done.stdout[:200]!r}") from None
