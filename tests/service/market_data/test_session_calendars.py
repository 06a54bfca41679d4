"""Sessions of listed markets: every calendar of exchange_calendars, stored as text, is open and closed when the library
says so; a week that repeats follows its zone; what is not stored is not known.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest

from bot.checks import exchange_sessions
from bot.checks.exchange_sessions import ask_sessions
from bot.errors import ConfigError
from bot.service.market_data.session_calendars import StoredCalendar, WeeklyCalendar, packed, stored_hours, unpacked
from bot.service.market_data.trading_hours import calendar, daily_start, resting_hours, session_at
from tests.calendars import RECENT, WHOLE, calendars_of, python_with_calendars
from tests.conftest import is_soaked

# The library has some seventy calendars, and makes each in a third of a second.
SHARES = 4
# 2026-11-28
NOW_MS = 1_795_862_400_000


@pytest.fixture(scope="module")
def python() -> str:
    return python_with_calendars()


@pytest.fixture(scope="module")
def xetra(python: str) -> str:
    """The hours of Frankfurt as a listing file has them, asked as `bot markets sessions` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOT_MARKETS_PYTHON", python)
        return stored_hours("XETR", *ask_sessions(["XETR"], NOW_MS)["XETR"])


def stored(name: str, answer: exchange_sessions.ExchangeSessions) -> StoredCalendar:
    made = calendar(stored_hours(name, *answer))
    assert isinstance(made, StoredCalendar)
    return made


def spans_of(rows: list[list[int | None]]) -> list[tuple[int, int]]:
    """The library's own table of sessions as spans: breaks taken out, adjacent ones joined."""
    spans: list[tuple[int, int]] = []
    for row in rows:
        turns = [turn for turn in row if turn is not None]
        for begin, end in zip(turns[::2], turns[1::2], strict=True):
            if spans and spans[-1][1] == begin:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((begin, end))
    return spans


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize("share", range(SHARES))
def test_every_calendar_of_the_library_is_open_when_the_library_says_so(
    share: int, python: str, pytestconfig: pytest.Config
) -> None:
    """In its last years; since 2000 for each kind of calendar, and for all of them in `make soak`."""
    calendars = calendars_of(python, share, SHARES, WHOLE if is_soaked(pytestconfig) else RECENT)
    assert len(calendars) > 60 // SHARES
    for name, told in calendars.items():
        mine = stored(name, exchange_sessions._of_answer(told["answer"]))
        spans = spans_of(told["rows"])
        for (opens, closes), following in pairwise([*spans, None]):
            assert mine.at(opens) == (True, closes), name
            assert mine.at(closes - 1) == (True, closes), name
            assert mine.at(closes) == (False, None if following is None else following[0]), name
        assert mine.at(spans[0][0] - 1) == (False, spans[0][0]), name
        # What the library answers to a question about one minute.
        assert [mine.at(at_ms).is_open for at_ms, _ in told["minutes"]] == [is_open for _, is_open in told["minutes"]]
        days = set(told["days"])
        assert set(told["early"]) <= days
        for text in told["early"][-30:]:
            assert mine.is_trading_day(date.fromisoformat(text)), (name, text)
        first = date(2024, 1, 1)
        year = [first + timedelta(days=n) for n in range(366)]
        if told["answer"]["last"] >= "2024-12-31":
            traded = [day.isoformat() for day in year if mine.is_trading_day(day)]
            assert traded == [day.isoformat() for day in year if day.isoformat() in days], name


def test_sessions_that_are_not_stored_are_not_known(xetra: str) -> None:
    mine = calendar(xetra)
    assert isinstance(mine, StoredCalendar)
    assert mine.at(mine.end_ms + 1) == (False, None)
    assert mine.beyond(mine.end_ms - 1, mine.end_ms) is None
    said = mine.beyond(at("1999-12-01"), at("1999-12-31"))
    assert said is not None and "stored from 2000-01-01 to 2027-12-31" in said and "1999-12-01" in said


def test_an_unknown_calendar_is_named_with_a_near_one(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOT_MARKETS_PYTHON", python)
    with pytest.raises(ConfigError, match="no calendar 'XETRA'; did you mean XETR?"):
        ask_sessions(["XETRA"], NOW_MS)


def test_without_the_library_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOT_MARKETS_PYTHON", raising=False)
    assert exchange_sessions.names() is None
    with pytest.raises(ConfigError, match="need the package exchange_calendars: .*markets/bin/pip install"):
        ask_sessions(["XETR"], NOW_MS)
    monkeypatch.setenv("BOT_MARKETS_PYTHON", "/nowhere/python")
    with pytest.raises(ConfigError, match="BOT_MARKETS_PYTHON=/nowhere/python: cannot be started"):
        ask_sessions(["XETR"], NOW_MS)


@pytest.mark.parametrize(
    ("text", "opens", "closes"),
    [
        # Eastern time is four hours behind UTC in summer and five in winter.
        ("weekly Sun 17:00-Fri 17:00 America/New_York", "2026-07-05T21:00", "2026-07-10T21:00"),
        ("weekly Sun 17:00-Fri 17:00 America/New_York", "2026-12-27T22:00", "2027-01-01T22:00"),
        ("weekly Sun 18:00-Fri 17:00 America/New_York break 17:00-18:00", "2026-07-06T22:00", "2026-07-07T21:00"),
        ("weekly Mon-Fri 09:00-17:30 Europe/Berlin", "2026-03-30T07:00", "2026-03-30T15:30"),
        ("weekly Mon-Fri 09:00-17:30 Europe/Berlin", "2026-03-27T08:00", "2026-03-27T16:30"),
        ("weekly Sat-Sun 00:00-24:00 UTC", "2026-11-28T00:00", "2026-11-30T00:00"),
        ("weekly Mon-Thu 22:00-02:00, Fri 22:00-23:00 UTC", "2026-11-26T22:00", "2026-11-27T02:00"),
        ("weekly Fri 22:00-Mon 02:00 UTC", "2026-11-27T22:00", "2026-11-30T02:00"),
    ],
)
def test_a_week_repeats_in_its_zone(text: str, opens: str, closes: str) -> None:
    assert session_at(text, at(opens) - 1) == (False, at(opens))
    assert session_at(text, at(opens)) == (True, at(closes))
    assert session_at(text, at(closes) - 1).is_open
    assert not session_at(text, at(closes)).is_open


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weekly Mon 9-17 UTC", "must be like"),
        ("weekly Mon 25:00-26:00 UTC", "25:00 is no time of day"),
        ("weekly Mon 09:61-10:00 UTC", "09:61 is no time of day"),
        ("weekly Mon 09:00-17:00 Mars/Base", "no time zone 'Mars/Base'"),
        ("weekly Mon-Sun 00:00-24:00 UTC", "write 24/7"),
        ("weekly Mon 00:00-Mon 00:00 UTC", "write 24/7"),
        ("weekly Mon 09:00-09:00 UTC", "must have a length"),
        ("weekly Mon 09:00-17:00 UTC break 08:00-18:00", "never open"),
        ("weekly Mon 09:00-17:00 UTC break 13:00-12:00", "must end after it begins"),
        ("weekly Mon-Fri 09:00-Sat 17:00 UTC", "must be like"),
        ("weekly ", "must be like"),
    ],
)
def test_a_wrong_week_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        WeeklyCalendar(text)


@pytest.mark.parametrize("text", ["", "x", "AAAA", packed([60_000], [120_000])[:-6]])
def test_a_broken_text_of_sessions_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ConfigError, match="bot markets sessions"):
        unpacked(text)


def test_daily_candles_of_a_listed_market_are_its_trading_days(xetra: str) -> None:
    forex = "weekly Sun 17:00-Fri 17:00 America/New_York"
    # Sunday evening belongs to Monday, whose candle closes at 17:00 in New York.
    assert daily_start(forex, at("2026-07-05T21:00"), 300_000) == at("2026-07-05T21:00")
    assert daily_start(forex, at("2026-07-06T20:55"), 300_000) == at("2026-07-05T21:00")
    # In Frankfurt a day is one of its own clock.
    assert daily_start(xetra, at("2026-07-06T07:00"), 300_000) == at("2026-07-05T22:00")


def test_only_a_share_of_new_york_may_be_quoted_at_weekends() -> None:
    saturday = [at("2026-11-28T12:00")]
    assert resting_hours("equity", saturday) is None
    assert resting_hours("weekly Mon-Sat 09:00-17:30 UTC", saturday) == "weekly Mon-Sat 09:00-17:30 UTC"
    assert resting_hours(None, saturday) is None
