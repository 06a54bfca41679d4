"""Several orders at a time: exits first, one entry a market, each on disk before it leaves, and nothing sent twice whatever happens to a wave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bot.errors import AccessLost, OutcomeUnknown
from bot.runtime.desk import Placed
from bot.runtime.exiting import wind_down
from bot.runtime.feed import Closed
from bot.runtime.intents import Intent
from bot.runtime.journal import open_journal
from bot.runtime.loop import Loop, Settings
from bot.runtime.waves import ABREAST, AHEAD, builds_on, next_wave, one_by_one, place_of, side_by_side
from bot.strategy import Bar, Bracket, Close, Open, View
from bot.strategy import Intent as Wish
from tests.fakes import ADDRESS, FakePacer, FakeVenue
from tests.runtime.rooms import DEAD_MAN_60, Scripted, allowance
from tests.runtime.test_journal import intent

MARKETS = ("BTC", "ETH", "SOL")


def wanted(*words: str) -> list[Intent]:
    """`a BTC open`: strategy, market, action."""
    made = []
    for n, text in enumerate(words):
        strategy, market, action = text.split()
        made.append(intent(n, strategy=strategy, market=market, action=action))
    return made


def waves(*words: str) -> list[list[str]]:
    waiting, found = wanted(*words), []
    while waiting:
        wave = next_wave(waiting)
        assert wave
        found.append([f"{one.strategy} {one.market} {one.action}" for one in wave])
        waiting = [one for one in waiting if one not in wave]
    return found


def test_one_by_one_they_leave_wave_by_wave() -> None:
    made = wanted("a ETH open", "a BTC close", "a BTC open", "a ETH close", "b SOL cancel")
    assert one_by_one(made) == [made[n] for n in (1, 4, 0, 2, 3)]


def test_exits_go_before_every_entry_and_of_entries_one_a_market() -> None:
    assert waves("a BTC open", "b BTC open", "c ETH open", "d ETH close", "e BTC cancel") == [
        ["d ETH close", "e BTC cancel"], ["a BTC open", "c ETH open"], ["b BTC open"],
    ]  # fmt: skip


def test_a_strategys_own_order_in_a_market_stands() -> None:
    assert waves("a BTC close", "a BTC open", "b ETH open", "b ETH close") == [
        ["a BTC close"], ["a BTC open", "b ETH open"], ["b ETH close"],
    ]  # fmt: skip
    reversal = wanted("a BTC close", "a BTC open")
    closed = {place_of(reversal[0])}
    assert builds_on(reversal[1:], closed)
    assert next_wave(reversal[1:], sent=closed) == [], "it waits for the events of its close"
    assert not builds_on(wanted("b BTC open"), closed)
    assert not builds_on(reversal, ())


def test_what_is_under_way_holds_up_its_own_market_and_exits_every_entry() -> None:
    slow, *entries = wanted("a BTC open", "b BTC open", "c ETH open", "d SOL close")
    close = entries.pop()
    assert [one.market for one in next_wave(entries, under_way=[slow])] == ["ETH"]
    assert next_wave([*entries, close], under_way=[slow]) == [close]
    assert next_wave(entries, under_way=[close]) == []


def test_a_wave_is_bounded() -> None:
    assert [len(wave) for wave in waves(*(f"s{n} BTC close" for n in range(2 * AHEAD + 3)))] == [AHEAD, AHEAD, 3]
    assert len(waves(*(f"s M{n} open" for n in range(ABREAST + 3)))[0]) == ABREAST


def test_bars_are_decided_together_when_they_are_of_one_instant_and_nobody_hears_two_of_them() -> None:
    def due(*pairs: tuple[int, str]) -> list[Closed]:
        return [Closed(at, coin, "1m", Bar(coin, at, 1, 1, 1, 1, 1)) for at, coin in pairs]

    names = {"BTC": frozenset("ab"), "ETH": frozenset("c"), "SOL": frozenset("cd")}
    assert side_by_side(due((1, "BTC"), (1, "ETH"), (1, "SOL")), names) == 2, "c hears both ETH and SOL"
    assert side_by_side(due((1, "BTC"), (2, "ETH")), names) == 1
    assert side_by_side(due((1, "BTC"), (1, "BTC")), names) == 1, "two intervals of one market"
    assert side_by_side(due((1, "BTC")), names) == 1


# -- the loop that sends them


class Busy(FakeVenue):
    """Notes how many orders are under way at once, and what the journal says of each when it arrives."""

    path: Path
    most = 0
    under_way = 0
    lost: set[str] = set()  # noqa: RUF012 - of one test
    refuses_key = False

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            reader = open_journal(self.path, address=ADDRESS)
            (row,) = reader.db.conn.execute("SELECT state, attempts FROM intents WHERE id=?", (key,)).fetchall()
            reader.db.close()
            assert row[0] == "sending", "on disk before a byte leaves"
            if self.refuses_key:
                raise AccessLost("unauthorized", "revoked")
            done = await super().place(request, key=key, expires_at_ms=expires_at_ms)
            if request.market in self.lost:
                self.lost = self.lost - {request.market}
                raise OutcomeUnknown("timeout", "the answer was lost")
            return done
        finally:
            self.under_way -= 1


def three(path: Path, script: Any, kind: type[Busy] = Busy) -> tuple[Loop, Busy]:
    venue = kind(MARKETS)
    venue.path = path
    strategies = [Scripted(script, name=f"s-{coin.lower()}", markets=(coin,)) for coin in MARKETS]
    placed = [Placed(one, "1m", allowance(one.name, one.markets, path="direct")) for one in strategies]
    journal: Any = open_journal(path, address=ADDRESS)
    loop = Loop(
        port=venue, journal=journal, placed=placed, pacer=FakePacer(), settings=Settings(guardians=(DEAD_MAN_60,)), abreast=ABREAST
    )  # fmt: skip
    return loop, venue


def once(view: View, bar: Bar) -> Iterable[Wish]:
    if not view.position(bar.market):
        yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))


def in_turn(view: View, bar: Bar) -> Iterable[Wish]:
    yield (
        Close(bar.market)
        if view.position(bar.market)
        else Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))
    )


async def minute(loop: Loop, venue: Busy) -> None:
    venue.minute(BTC="100", ETH="100", SOL="100")
    await loop.cycle()


async def test_orders_of_several_markets_are_under_way_at_once_and_each_once(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", in_turn)
    await loop.recover()
    loop.mirror.keys_proven = True
    for _ in range(4):
        await minute(loop, venue)
    assert venue.most == len(MARKETS)
    rows = loop.journal.db.conn.execute(
        "SELECT state, attempts, count(*) FROM intents GROUP BY state, attempts"
    ).fetchall()
    assert rows == [("accepted", 1, 12)]
    assert venue.positions == {}
    assert not loop.live or all(one.state == "accepted" for one in loop.live.values())


async def test_a_reply_that_is_lost_in_a_wave_is_settled_with_its_own_key_and_holds_up_no_other(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", once)
    await loop.recover()
    loop.mirror.keys_proven = True
    venue.lost = {"ETH"}
    await minute(loop, venue)
    await minute(loop, venue)
    rows = loop.journal.db.conn.execute("SELECT market, state FROM intents ORDER BY market").fetchall()
    assert rows == [(coin, "accepted") for coin in MARKETS]
    assert {coin: one.size for coin, one in venue.positions.items()} == dict.fromkeys(MARKETS, 1), "nothing twice"


def turns(view: View, bar: Bar) -> Iterable[Wish]:
    """A reversal of what is held, else the first entry."""
    if view.position(bar.market):
        yield Close(bar.market)
        yield Open(bar.market, "short", usd=100, bracket=Bracket(stop_pct=5))
    else:
        yield from once(view, bar)


async def test_a_reset_between_two_waves_ends_what_waits(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", turns)
    await loop.recover()
    loop.mirror.keys_proven = True
    await minute(loop, venue)
    events = venue.events

    async def wiped(*given: Any, **named: Any) -> Any:
        if len(venue.positions) < len(MARKETS) and not venue.epoch:
            venue.reset()
        return await events(*given, **named)

    venue.events = wiped  # type: ignore[method-assign]  # of this one venue, for this one test
    await minute(loop, venue)
    rows = loop.journal.db.conn.execute("SELECT market, state FROM intents WHERE ordinal=1").fetchall()
    assert [row[1] for row in rows] == ["void"] * len(MARKETS), "wanted of an account that is no more"
    assert venue.epoch == 1


class Slow(Busy):
    """Answers no order for BTC before `free` is set."""

    free: asyncio.Event
    placed: list[str]

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.placed.append(request.market)
        if request.market == "BTC":
            await self.free.wait()
        elif request.market == "SOL":
            self.free.set()
        return await super().place(request, key=key, expires_at_ms=expires_at_ms)


async def test_an_answer_that_takes_long_holds_up_no_other_market(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", once, Slow)
    assert isinstance(venue, Slow)
    venue.free, venue.placed, loop.abreast = asyncio.Event(), [], 2
    await loop.recover()
    loop.mirror.keys_proven = True
    async with asyncio.timeout(20):
        await minute(loop, venue)  # BTC is answered when SOL, which had no place beside BTC and ETH, has left.
    assert venue.placed == ["BTC", "ETH", "SOL"]
    assert venue.most == 2


async def test_a_run_that_is_cut_in_a_wave_has_written_what_is_known_of_it(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", once, Slow)
    assert isinstance(venue, Slow)
    venue.free, venue.placed, loop.abreast = asyncio.Event(), [], 2
    await loop.recover()
    loop.mirror.keys_proven = True
    venue.minute(BTC="100", ETH="100")
    passing = asyncio.create_task(loop.cycle())
    while "ETH" not in venue.positions:
        await asyncio.sleep(0)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    rows = loop.journal.db.conn.execute("SELECT market, state FROM intents ORDER BY market").fetchall()
    assert rows == [("BTC", "sending"), ("ETH", "accepted"), ("SOL", "opened")]
    assert venue.under_way == 0


async def test_what_ends_the_run_in_a_wave_leaves_the_others_written(tmp_path: Path) -> None:
    loop, venue = three(tmp_path / "journal.db", once)
    await loop.recover()
    loop.mirror.keys_proven = True
    venue.refuses_key = True
    with pytest.raises(AccessLost):
        await minute(loop, venue)
    assert {one.state for one in loop.journal.live()} == {"sending"}
    venue.refuses_key = False
    again = open_journal(tmp_path / "journal.db", address=ADDRESS)
    assert len(again.live()) == len(MARKETS), "the next start goes on with the same keys"
    again.db.close()


class Closing(Busy):
    """Notes the closes as they arrive, and holds up those for BTC and ETH until `free`; then BTC's may be what ends the run."""

    free: asyncio.Event
    closed: list[str]

    async def close(self, market: str, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.closed.append(market)
        if market != "SOL":
            await self.free.wait()
        if self.refuses_key:
            raise AccessLost("unauthorized", "revoked")
        return await super().close(market, request, key=key, expires_at_ms=expires_at_ms)


async def closing(
    path: Path, script: Any = in_turn, kind: type[Closing] = Closing
) -> tuple[Loop, Closing, asyncio.Task[None]]:
    """A pass with three exits and two places: those for BTC and ETH are under way."""
    loop, venue = three(path, script, kind)
    assert isinstance(venue, Closing)
    venue.free, venue.closed, loop.abreast = asyncio.Event(), [], 2
    await loop.recover()
    loop.mirror.keys_proven = True
    await minute(loop, venue)
    passing = asyncio.create_task(minute(loop, venue))
    while len(venue.closed) < 2:
        await asyncio.sleep(0)
    return loop, venue, passing


def attempts(loop: Loop) -> list[Any]:
    return loop.journal.db.conn.execute(
        "SELECT market, state, n, outcome FROM intents JOIN attempts ON intent_id=id WHERE action='close' ORDER BY market, n"
    ).fetchall()


async def test_exits_are_written_together_and_leave_as_there_is_room(tmp_path: Path) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db")
    assert attempts(loop) == [(coin, "sending", 1, None) for coin in MARKETS]
    venue.free.set()
    await passing
    assert venue.closed == ["BTC", "ETH", "SOL"]
    assert attempts(loop) == [(coin, "accepted", 1, "done") for coin in MARKETS]


async def test_an_exit_that_was_written_and_had_no_time_to_leave_is_in_no_doubt_and_leaves_in_the_next_pass(
    tmp_path: Path,
) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db")
    loop.end_pass()
    venue.free.set()
    await passing
    assert venue.closed == ["BTC", "ETH"]
    assert loop.is_late, "the next pass begins at once"
    assert attempts(loop)[2] == ("SOL", "sending", 1, "no")
    await loop.cycle()
    assert venue.closed == ["BTC", "ETH", "SOL"]
    assert attempts(loop)[2:] == [("SOL", "accepted", 1, "no"), ("SOL", "accepted", 2, "done")]
    assert venue.positions == {}


async def test_an_exit_that_waits_for_its_turn_when_the_run_is_cut_has_not_left(tmp_path: Path) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db")
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert venue.closed == ["BTC", "ETH"]
    assert attempts(loop) == [("BTC", "sending", 1, None), ("ETH", "sending", 1, None), ("SOL", "sending", 1, "no")]


async def test_an_exit_that_is_tried_again_and_has_no_time_when_its_turn_comes_waits_for_the_next_pass(
    tmp_path: Path,
) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db")
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    loop.reload_live()
    loop.begin_pass()
    again = asyncio.create_task(loop.settle())
    while len(venue.closed) < 4:
        await asyncio.sleep(0)
    loop.end_pass()
    venue.free.set()
    await again
    assert venue.closed == ["BTC", "ETH", "BTC", "ETH"]
    assert loop.is_late, "the next pass begins at once"
    await loop.cycle()
    assert venue.closed[4:] == ["SOL"]
    assert venue.positions == {}


async def test_what_ends_the_run_lets_no_exit_go_that_waits_for_its_turn(tmp_path: Path) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db")
    venue.refuses_key = True
    venue.free.set()
    with pytest.raises(AccessLost):
        await passing
    assert venue.closed == ["BTC", "ETH"]
    assert attempts(loop)[2] == ("SOL", "sending", 1, "no")


class Wiped(Closing):
    """Its account is reset when only the position in SOL is left."""

    async def events(self, *given: Any, **named: Any) -> Any:
        if set(self.positions) == {"SOL"}:
            self.reset()
        return await super().events(*given, **named)


async def test_an_exit_that_was_written_and_had_not_left_before_a_reset_never_leaves(tmp_path: Path) -> None:
    loop, venue, passing = await closing(tmp_path / "journal.db", turns, Wiped)
    loop.end_pass()
    venue.free.set()
    await passing
    assert venue.epoch == 1
    await loop.cycle()
    assert venue.closed == ["BTC", "ETH"]
    assert attempts(loop)[2] == ("SOL", "void", 1, "no")
    assert not loop.live


class Parting(Slow):
    """Answers ETH, then refuses SOL the key, and never answers BTC."""

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        if request.market == "SOL":
            while "ETH" not in self.positions:
                await asyncio.sleep(0)
            self.free = asyncio.Event()
            raise AccessLost("unauthorized", "revoked")
        return await super().place(request, key=key, expires_at_ms=expires_at_ms)


async def test_a_run_that_is_cut_while_it_waits_for_the_rest_of_a_broken_wave_has_written_what_is_known(
    tmp_path: Path,
) -> None:
    loop, venue = three(tmp_path / "journal.db", once, Parting)
    assert isinstance(venue, Parting)
    venue.free, venue.placed = asyncio.Event(), []
    await loop.recover()
    loop.mirror.keys_proven = True
    passing = asyncio.create_task(minute(loop, venue))
    while venue.under_way or "ETH" not in venue.positions:
        await asyncio.sleep(0)
    for _ in range(20):  # SOL's no ends the wave: what is left of it is waited for.
        await asyncio.sleep(0)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    rows = loop.journal.db.conn.execute("SELECT market, state FROM intents ORDER BY market").fetchall()
    assert rows == [("BTC", "sending"), ("ETH", "accepted"), ("SOL", "sending")]


async def test_at_the_end_every_close_leaves_before_a_strategy_is_told_of_the_first() -> None:
    venue, is_ending = FakeVenue(), False
    venue.minute(BTC="100", ETH="100")

    async def run(_seat: Any, call: Any) -> Any:
        if is_ending:
            await asyncio.Event().wait()  # A hook that takes its time, and the end of a run has none.
        return call()

    def enters(view: View, bar: Bar) -> Iterable[Wish]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))

    one = Scripted(enters, markets=("BTC", "ETH"))
    loop = Loop(
        port=venue, journal=open_journal(None, address=ADDRESS), placed=[Placed(one, "1m", allowance(one.name, one.markets))],
        pacer=FakePacer(), settings=Settings(guardians=(DEAD_MAN_60,)), run=run, abreast=ABREAST,
    )  # fmt: skip
    await loop.recover()
    await loop.cycle()
    assert set(venue.positions) == {"BTC", "ETH"}
    is_ending = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await wind_down(loop, "flatten")
    assert not venue.positions


class Queued(Busy):
    """Answers an entry after 400 ms, and notes the order in which orders arrive."""

    def __init__(self, markets: Iterable[str]) -> None:
        super().__init__(markets)
        self.pacer = FakePacer()
        self.sent: list[str] = []

    async def place(self, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.sent.append(f"open {request.market}")
        self.pacer.now_ms += 400
        return await super().place(request, key=key, expires_at_ms=expires_at_ms)

    async def close(self, market: str, request: Any, *, key: str, expires_at_ms: int | None = None) -> Any:
        self.sent.append(f"close {market}")
        return await super().close(market, request, key=key, expires_at_ms=expires_at_ms)


async def test_a_bar_that_closes_while_entries_wait_is_decided_before_they_go_on(tmp_path: Path) -> None:
    """Its exit does not stand in their queue; they go on after it, each once."""

    def script(view: View, bar: Bar) -> Iterable[Wish]:
        if not venue.sent:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))
        elif bar.market == "BTC":
            yield Close(bar.market)

    loop, venue = three(tmp_path / "journal.db", script, Queued)
    assert isinstance(venue, Queued) and isinstance(loop.pacer, FakePacer)
    venue.pacer = loop.pacer
    await loop.recover()
    loop.abreast, loop.mirror.keys_proven = 2, True
    await minute(loop, venue)
    assert set(venue.positions) == {"BTC", "ETH"}, "the third was not begun any more"
    assert loop.is_late, "and is not left to the next regular pass"
    await minute(loop, venue)
    assert venue.sent == ["open BTC", "open ETH", "close BTC", "open SOL"]
    assert set(venue.positions) == {"ETH", "SOL"}
