"""The sources by themselves: retries, clocks, symbols, what yfinance's tables become, and the spans that a store
still lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.history import Pull, PullTarget, WantedCandles, holes
from bot.backtest.data.origins import Origin
from bot.backtest.data.store import Store
from bot.clock import DAY_MS, HOUR_MS, ManualClock
from bot.errors import ConfigError, Exit
from bot.market_data.ccxt_source import TRIES_MAX, CcxtSource
from bot.market_data.feeder_client import Failure, FeederProcess
from bot.market_data.source import AccessDenied, Action, Instrument, NoAnswer, NotOffered, Page, SourceError
from bot.market_data.symbols import MappedCoin, mapped
from bot.market_data.yfinance_source import YfinanceSource

MINUTE = 60_000
# 2025-06-16
NOW = 1_750_032_000_000


class FakeFeeder(FeederProcess):
    """Answers from a list; the last answer repeats. Nothing is started."""

    def __init__(self, *answers: dict[str, Any] | Failure) -> None:
        super().__init__({})
        self.answers = list(answers)
        self.asked: list[str] = []

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.asked.append(op)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Failure):
            raise answer
        return answer


def source(*answers: dict[str, Any] | Failure) -> tuple[CcxtSource, list[float], FakeFeeder]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    feeder = FakeFeeder(*answers)
    return CcxtSource("binance", clock=ManualClock(NOW), sleep=sleep, feeder=feeder), slept, feeder


def instruments(now_ms: int | None = NOW) -> dict[str, Any]:
    return {"result": [], "now_ms": now_ms}


async def test_a_failure_that_passes_is_tried_again_with_growing_waits() -> None:
    busy = Failure("busy", "too many", None)
    one, slept, _ = source(busy, busy, busy, instruments())
    assert await one.instruments(str) == []
    assert slept == [0.5, 1.0, 2.0]


async def test_tries_are_bounded() -> None:
    one, slept, feeder = source(instruments(), Failure("unreachable", "503", None))
    await one.instruments(str)
    with pytest.raises(NoAnswer, match="run the same command again") as raised:
        await one.instruments(str)
    assert len(feeder.asked) == 1 + TRIES_MAX
    assert sum(slept) < 60
    assert raised.value.exit_code == Exit.TIMEOUT


async def test_an_exchange_that_never_answered_is_tried_twice() -> None:
    one, slept, feeder = source(Failure("unreachable", "no route", None))
    with pytest.raises(NoAnswer):
        await one.instruments(str)
    assert (len(feeder.asked), slept) == (2, [0.5])


async def test_a_told_wait_is_kept_and_a_long_ban_ends_the_pull() -> None:
    one, slept, _ = source(Failure("busy", "wait", 90_000), instruments())
    await one.instruments(str)
    assert slept == [90.0]
    one, slept, _ = source(Failure("busy", "banned", 3_600_000))
    with pytest.raises(NoAnswer, match="accepts no request until 2025-06-16T01:00"):
        await one.instruments(str)
    assert slept == []


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("country", AccessDenied, Exit.REFUSED),
        ("key", AccessDenied, Exit.REFUSED),
        ("unsupported", NotOffered, Exit.USAGE),
        ("unknown_symbol", NotOffered, Exit.USAGE),
        ("failed", SourceError, Exit.ERROR),
    ],
)
async def test_other_failures_are_not_tried_again(kind: str, error: type[SourceError], code: Exit) -> None:
    one, slept, _ = source(Failure(kind, "no", None))
    with pytest.raises(error) as raised:
        await one.instruments(str)
    assert (raised.value.exit_code, slept) == (code, [])


@pytest.mark.parametrize(("own", "theirs"), [(0, -120_000), (-120_000, 0)])
async def test_the_earlier_clock_decides_what_is_closed_and_a_difference_is_told_once(own: int, theirs: int) -> None:
    rows = [[NOW + n * MINUTE, 1, 1, 1, 1, 1] for n in range(-10, 1)]
    one, _, _ = source({"result": rows, "now_ms": NOW + theirs})
    one._clock = ManualClock(NOW + own)
    said: list[str] = []
    found = [
        row
        async for page in one.history("BTC/USDT", "1m", NOW - 10 * MINUTE, NOW + MINUTE, said.append)
        for row in page.rows
    ]
    assert found[-1].at_ms == NOW - 4 * MINUTE
    assert len(said) == 1
    assert "120 s" in said[0]


# ── Symbols ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def market(symbol: str, base: str, quote: str, kind: str = "swap", **more: Any) -> Instrument:
    return Instrument(symbol, base, quote, kind, linear=kind == "swap", **more)


LISTED = [
    market("BTC/USD", "BTC", "USD", "spot"),
    market("BTC/USDC:USDC", "BTC", "USDC"),
    market("BTC/USDT:USDT", "BTC", "USDT"),
    replace(market("BTC/USD:BTC", "BTC", "USD"), linear=False),
    market("ETH/EUR", "ETH", "EUR", "spot"),
    market("SOL/USDC", "SOL", "USDC", "spot"),
    market("1000PEPE/USDT:USDT", "1000PEPE", "USDT"),
    market("XRP/USDT:USDT", "XRP", "USDT", active=False),
    market("XRP/USD", "XRP", "USD", "spot"),
]


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("BTC", "BTC/USDT:USDT"),
        ("SOL", "SOL/USDC"),
        ("KPEPE", "1000PEPE/USDT:USDT"),
        ("XRP", "XRP/USD"),
        ("ETH=ETH/EUR", "ETH/EUR"),
    ],
)
def test_a_coin_is_the_perpetual_in_dollars_else_spot_and_a_given_symbol_wins(text: str, symbol: str) -> None:
    assert mapped(text, LISTED, "ccxt:x").symbol == symbol


@pytest.mark.parametrize("text", ["ETH", "BTCC", "BTC=BTC/USDT:USD"])
def test_a_market_that_is_not_there_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(NotOffered, match=r"did you mean|there are"):
        mapped(text, LISTED, "ccxt:x")


# ── Spans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_span_counts_as_asked_while_its_candles_are_there() -> None:
    at_ms = [0, 10, 20, 50, 60]
    origin = Origin("BTC", "1m", "s", "x", 0).after((0, 70), at_ms, 1)
    assert origin.unasked(at_ms, 0, 100) == [(70, 100)]
    assert origin.unasked(at_ms, -20, 60) == [(-20, 0)]
    assert origin.unasked([0, 20, 50, 60], 0, 70) == [(0, 70)]
    assert holes([0, 20, 50, 60], 0, 70, 10) == [(10, 20), (30, 50)]
    assert holes([], 0, 70, 10) == [(0, 70)]


def test_adjacent_spans_become_one() -> None:
    origin = Origin("BTC", "1m", "s", "x", 0)
    for span in ((0, 10), (30, 40), (10, 20), (15, 32)):
        origin = origin.after(span, [5, 15, 35], 1)
    assert [(one.from_ms, one.until_ms, one.candles) for one in origin.asked] == [(0, 40, 3)]


# ── yfinance ────────────────────────────────────────────────────────────────────────────────────────────────────────

NEW_YORK = timezone(timedelta(hours=-4))


class Frame:
    """What this source uses of a pandas table."""

    def __init__(self, index: list[datetime], **columns: list[float]) -> None:
        self.index, self.columns = index, {name.replace("_", " "): column for name, column in columns.items()}

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> Any:
        frame = self

        class Column(list[float]):
            def items(self) -> Iterator[tuple[datetime, float]]:
                return zip(frame.index, self, strict=True)

        return Column(self.columns[name])


class Ticker:
    """One symbol: a table, or an error."""

    def __init__(self, answer: Frame | Exception) -> None:
        self.answer, self.asked = answer, {}

    def history(self, **asked: Any) -> Frame:
        self.asked = asked
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def days(count: int, *, hour: int = 0, every: timedelta = timedelta(days=1)) -> Frame:
    index = [datetime(2025, 6, 2, hour, 30 if hour else 0, tzinfo=NEW_YORK) + n * every for n in range(count)]
    prices = [100.0 + n for n in range(count)]
    zeros = [0.0] * count
    return Frame(
        index,
        Open=prices,
        High=prices,
        Low=prices,
        Close=prices,
        Volume=prices,
        Stock_Splits=[*zeros[1:], 4.0],
        Dividends=[0.25, *zeros[1:]],
    )


async def rows(
    one: YfinanceSource, interval: str, *, since: str = "2025-06-01", until: str = "2025-07-01"
) -> list[Page]:
    since_ms, until_ms = (
        int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000) for text in (since, until)
    )
    async with one:
        return [page async for page in one.history("SPY", interval, since_ms, until_ms, str)]


async def test_days_open_at_midnight_utc_and_the_running_day_is_left_out() -> None:
    ticker = Ticker(days(5))
    now = ManualClock(int(datetime(2025, 6, 7, 4, tzinfo=UTC).timestamp() * 1000))
    (page,) = await rows(YfinanceSource(ticker=lambda _symbol: ticker, clock=now), "1d")
    assert [row.at_ms % DAY_MS for row in page.rows] == [0] * 4
    assert page.until_ms == page.rows[-1].at_ms + DAY_MS
    assert ticker.asked["auto_adjust"] is False


async def test_hours_move_forward_to_the_full_hour_and_two_of_one_hour_are_one() -> None:
    ticker = Ticker(days(4, hour=9, every=timedelta(hours=1)))
    # The closing auction, as a row of its own.
    ticker.answer.index[3] -= timedelta(minutes=30)
    (page,) = await rows(YfinanceSource("adjusted", ticker=lambda _symbol: ticker, clock=ManualClock(NOW)), "1h")
    first = int(datetime(2025, 6, 2, 14, tzinfo=UTC).timestamp() * 1000)
    assert [row.at_ms for row in page.rows] == [first, first + HOUR_MS, first + 2 * HOUR_MS]
    assert page.rows[-1][1:] == (102.0, 103.0, 102.0, 103.0, 205.0)
    assert ticker.asked["start"] * 1_000 == int(datetime(2025, 5, 31, 23, tzinfo=UTC).timestamp() * 1000)
    assert ticker.asked["auto_adjust"] is True


async def test_empty_prices_are_no_candles_and_actions_are_recorded() -> None:
    frame = days(3)
    frame.columns["Close"][1] = math.nan
    one = YfinanceSource(ticker=lambda _symbol: Ticker(frame), clock=ManualClock(NOW))
    (page,) = await rows(one, "1d")
    assert len(page.rows) == 2
    second, fourth = (int(datetime(2025, 6, day, tzinfo=UTC).timestamp() * 1000) for day in (2, 4))
    assert await one.actions("SPY") == [Action(second, "dividend", 0.25), Action(fourth, "split", 4.0)]


@pytest.mark.parametrize(
    ("answer", "interval", "error"),
    [
        (RuntimeError("429 Too Many Requests"), "1d", NoAnswer),
        (ValueError("possibly delisted"), "1d", NotOffered),
        (Frame([]), "1d", NotOffered),
        (Frame([]), "1m", NotOffered),
    ],
)
async def test_every_error_of_yahoo_has_a_name(answer: Any, interval: str, error: type[SourceError]) -> None:
    with pytest.raises(error):
        await rows(YfinanceSource(ticker=lambda _symbol: Ticker(answer), clock=ManualClock(NOW)), interval)


def test_a_source_for_tests_is_on_this_machine() -> None:
    with pytest.raises(ConfigError, match="a server on this machine"):
        FeederProcess({"BOT_MARKETS_URL": "http://127.0.0.1.example.com:80"})


async def test_a_split_replaces_the_candles_before_it(tmp_path: Path) -> None:
    prices = days(5)
    split = days(5)
    for name in ("Open", "High", "Low", "Close"):
        split.columns[name] = [px / 4 for px in split.columns[name]]
    wanted = WantedCandles(MappedCoin("SPY", "SPY", None), "1d", NOW - 30 * DAY_MS, NOW)
    target = PullTarget(Store(tmp_path), ManualClock(NOW), ("gaps", "jumps"))
    for frame in (prices, split):
        one = YfinanceSource(ticker=lambda _symbol, frame=frame: Ticker(frame), clock=ManualClock(NOW))
        async with one:
            done = await Pull(
                one, replace(wanted, since_ms=wanted.since_ms + 20 * DAY_MS * (frame is split)), target
            ).run(str, str)
    held = Store(tmp_path).read("SPY", "1d")
    assert held is not None
    assert list(held.close) == split.columns["Close"]
    assert done.added == 0
