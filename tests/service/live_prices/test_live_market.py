"""A market on live prices: candles of the source, silence, gaps with a stop inside, and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.errors import ConfigError, Refusal
from bot.market_data.quote_filter import scaled
from bot.market_data.source import NoAnswer, NotOffered, Page
from bot.model.events import FillEvent
from bot.service.live_prices.listings import live_options
from bot.service.live_prices.live_market import AGE_MAX_MS, candle_of
from bot.service.state_machine.bootstrap import PriceOptions, open_machine
from bot.service.state_machine.command_log import CommandLog
from bot.venue.model.commands import ClosePosition, OpenAccount, PlaceOrder
from bot.venue.model.state import GuardianSpec, OrderSpec
from bot.venue.orders.orders import OrderPlaced
from tests.service.live_prices.source import BTC, ETH, MINUTE, NOW, START, FakeSource, Live, quote, row, trade

NOON = NOW - 30_000


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


async def test_the_first_start_lists_the_markets_with_the_rules_of_the_source(source: FakeSource) -> None:
    spec = Live(source).machine.state.markets["BTC"].spec
    assert (spec.tick, spec.sig_figs, spec.sz_decimals, spec.size_step, spec.max_leverage) == (
        10_000_000,
        None,
        3,
        None,
        20,
    )
    assert Live(source).machine.state.markets["BTC"].mark == scaled(94_000.0)


async def test_a_market_is_closed_for_openings_until_its_first_price(source: FakeSource) -> None:
    live = Live(source)
    assert live.machine.state.markets["BTC"].external == "closed"
    await live.fetch()
    assert live.machine.state.markets["BTC"].external == "closed"
    live.market().take_quote(quote(94_010.0))
    assert live.machine.state.markets["BTC"].external == "open"
    live.machine.show_marks()
    assert live.machine.state.markets["BTC"].mark == scaled(94_010.0)


async def test_closed_candles_are_those_of_the_source_to_the_last_digit(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    live.market().take_quote(quote(94_500.25))
    live.move(MINUTE)
    page = live.market().candles.page("1m", 3, live.machine.clock.now_ms())
    assert [(one.ts, closed) for one, closed in page] == [
        (NOON - 2 * MINUTE, True),
        (NOON - MINUTE, True),
        (NOON, False),
    ]
    source.rows[BTC.symbol] = [one for one in source.rows[BTC.symbol] if one.at_ms != NOON]
    source.rows[BTC.symbol].append(row(NOON, 94_321.1))
    await live.fetch()
    ((last, closed),) = live.market().candles.page("1m", 1, live.machine.clock.now_ms())
    assert closed
    assert last[1:] == tuple(scaled(one) for one in row(NOON, 94_321.1)[1:])


async def test_a_candle_that_the_source_changes_later_stays_as_it_was_told(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    before = live.market().candles.page("1m", 5, NOW)
    live.market().candles.extend([before[2][0]._replace(close=1)], NOON)
    assert live.market().candles.page("1m", 5, NOW) == before


async def test_coarse_bars_are_made_of_the_minutes(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    page = live.market().candles.page("1h", 100, NOW)
    assert [one.ts for one, closed in page if closed] == [START - 86_400_000 + n * 3_600_000 for n in range(36)]
    assert page[0][0].volume == scaled(1.25) * 60


async def test_silence_closes_a_market_and_its_price_is_kept(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    live.move(AGE_MAX_MS)
    assert live.market().closed_reason is None
    live.move(1)
    assert live.market().closed_reason == "no price for 30 s"
    assert live.machine.state.markets["BTC"].external == "closed"
    view = live.prices.body()["markets"][0]
    assert (view["open"], view["since"]) == (False, NOW + AGE_MAX_MS + 1)


async def test_a_silent_market_opens_no_position_but_closes_one(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    assert isinstance(trade(live), OrderPlaced)
    live.move(AGE_MAX_MS + 1)
    refused = trade(live)
    assert isinstance(refused, Refusal)
    assert refused.code == "market_closed"
    assert isinstance(live.machine.run(ClosePosition("me", "BTC")), OrderPlaced)


async def test_a_stop_inside_a_gap_fills_at_the_price_of_the_gap(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    trade(live, stop=93_500.0)
    live.move(5 * MINUTE)
    dip = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON + 2 * MINUTE)
    source.rows[BTC.symbol][dip] = row(NOON + 2 * MINUTE, 94_000.0, low=93_000.0)
    live.market().take_quote(quote(94_100.0))
    assert live.machine.state.accounts["me"].positions, "the gap is not known yet"
    await live.wait_for_minute(94_100.0)
    assert not live.machine.state.accounts["me"].positions
    fills = [event for event in live.machine.state.accounts["me"].events if isinstance(event, FillEvent)]
    assert scaled(93_400.0) < fills[-1].px <= scaled(93_500.0)
    assert live.market().closed_reason is None
    live.machine.show_marks()
    assert live.machine.state.markets["BTC"].mark == scaled(94_100.0)


async def test_the_part_of_a_minute_before_the_gap_fires_no_stop(source: FakeSource) -> None:
    """The low of that minute may have come before the position."""
    live = Live(source)
    await live.open()
    trade(live, stop=93_500.0)
    live.move(2 * MINUTE)
    half = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON)
    source.rows[BTC.symbol][half] = row(NOON, 94_000.0, low=93_000.0)
    await live.wait_for_minute(94_000.0)
    assert live.market().closed_reason is None
    assert live.machine.state.accounts["me"].positions


async def test_a_market_with_a_stop_waits_for_the_minutes_of_its_gap(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    trade(live, stop=90_000.0)
    live.move(3 * MINUTE)
    # The source tells no newer minute yet.
    source.now_ms = NOW
    live.market().take_quote(quote(94_000.0))
    await live.fetch()
    assert live.market().closed_reason is not None
    source.now_ms = NOW + 3 * MINUTE
    await live.wait_for_minute(94_000.0)
    assert live.market().closed_reason is None


async def test_a_market_without_orders_opens_with_the_first_quote_after_a_gap(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    live.move(3 * MINUTE)
    live.market().take_quote(quote(94_000.0))
    assert live.market().closed_reason is None


async def test_a_stop_in_the_minute_of_the_first_quote_after_a_gap_fires(source: FakeSource) -> None:
    """The first part of that minute belongs to the gap."""
    live = Live(source)
    await live.open()
    trade(live, stop=93_500.0)
    live.move(5 * MINUTE)
    dip = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON + 5 * MINUTE)
    source.rows[BTC.symbol][dip] = row(NOON + 5 * MINUTE, 94_000.0, low=93_000.0)
    await live.fetch()
    live.market().take_quote(quote(94_000.0))
    await live.wait_for_minute(94_000.0)
    assert not live.machine.state.accounts["me"].positions


async def test_a_minute_that_came_before_its_silence_was_noticed_is_lived_through(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    live.move(20_000)
    live.market().take_quote(quote(94_000.0))
    trade(live, stop=93_500.0)
    last = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON)
    source.rows[BTC.symbol][last] = row(NOON, 93_000.0)
    live.move(16_000)
    await live.fetch()
    assert live.market().closed_reason is None, "it has been silent for 16 s only"
    live.move(2 * MINUTE)
    await live.fetch()
    await live.wait_for_minute(94_000.0)
    assert not live.machine.state.accounts["me"].positions


async def test_quotes_older_than_the_missed_minutes_are_not_applied_after_them(source: FakeSource) -> None:
    """While the quotes wait, the candles of their minutes come late.

    A price that goes back would fire a trailing stop.
    """
    live = Live(source)
    await live.open()
    live.machine.run(OpenAccount("me", "0x0", None, 10_000 * 10**8))
    trail = GuardianSpec("trailing_stop", coin="BTC", trail_pct=10**8)
    live.machine.run(PlaceOrder("me", OrderSpec("BTC", 1, size=1_000_000, leverage=1, guardians=(trail,))))
    rise = {NOON + n * MINUTE: min(96_000.0, 94_000.0 + 500.0 * n) for n in range(8)}
    source.rows[BTC.symbol] = [
        row(one.at_ms, rise[one.at_ms]) if one.at_ms in rise else one for one in source.rows[BTC.symbol]
    ]
    live.move(MINUTE)
    for _ in range(12):
        live.move(20_000)
        live.market().take_quote(quote(rise[source.now_ms // MINUTE * MINUTE]))
    await live.wait_for_minute(96_000.0)
    assert live.market().closed_reason is None
    assert live.machine.state.accounts["me"].positions


async def test_a_gap_that_was_lived_through_is_not_lived_through_again_after_a_kill(
    source: FakeSource, tmp_path: Path
) -> None:
    live = Live(source, tmp_path / "s.db")
    await live.open()
    live.move(5 * MINUTE)
    dip = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON + 2 * MINUTE)
    source.rows[BTC.symbol][dip] = row(NOON + 2 * MINUTE, 94_000.0, low=93_000.0)
    await live.fetch()
    live.prices.take_updates([quote(94_000.0)])
    trade(live, stop=93_500.0)
    # The clock is saved no more.
    live.machine.log.close()

    later = Live(source, tmp_path / "s.db", markets=())
    later.move(5 * MINUTE)
    await later.fetch()
    await later.wait_for_minute(94_000.0)
    assert later.market().closed_reason is None
    assert later.machine.state.accounts["me"].positions
    later.end()


async def test_the_silence_before_a_kill_is_lived_through(source: FakeSource, tmp_path: Path) -> None:
    live = Live(source, tmp_path / "s.db")
    await live.open()
    trade(live, stop=93_500.0)
    live.move(15_000)
    live.market().take_quote(quote(94_000.0))
    live.move(25_000)
    live.machine.save_clock()
    live.machine.log.close()
    dip = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON + MINUTE)
    source.rows[BTC.symbol][dip] = row(NOON + MINUTE, 94_000.0, low=93_000.0)

    later = Live(source, tmp_path / "s.db", markets=())
    later.move(2 * MINUTE)
    await later.fetch()
    await later.wait_for_minute(94_000.0)
    assert not later.machine.state.accounts["me"].positions
    later.end()


async def test_a_coarse_bar_that_was_unfinished_in_the_history_comes_when_it_ends(source: FakeSource) -> None:
    """An exchange that lists a market, or gives few minutes, has no minutes of the running day's first part."""
    live = Live(source)
    candles = live.market().candles
    first = [candle_of(row(NOON + n * MINUTE, 94_000.0)) for n in range(-7, 5)]
    candles.extend(first[:6], NOON - MINUTE)
    history = [candle_of(row(NOON - n * 5 * MINUTE, 94_000.0)) for n in (3, 2, 1)]
    assert candles.older("5m", history) is None
    assert [one.ts for one, closed in candles.page("5m", 9, NOON) if closed] == [NOON - 15 * MINUTE, NOON - 10 * MINUTE]
    hour = [candle_of(row(NOON - 3_600_000, 94_000.0))]
    assert candles.older("1h", hour) == NOON
    assert [closed for _, closed in candles.page("1h", 9, NOON)] == [False], "it ends with the next minute"
    candles.extend(first[6:7], NOON)
    assert candles.older("1h", []) == NOON, "the source has left it out"
    assert candles.older("1h", hour) is None
    assert [(one, closed) for one, closed in candles.page("1h", 9, NOON)] == [(hour[0], True)]


async def test_an_empty_answer_is_no_history(source: FakeSource) -> None:
    """Some exchanges answer with no rows where they fail."""
    candles = Live(source).market().candles
    candles.extend([candle_of(row(NOON + n * MINUTE, 94_000.0)) for n in range(-7, 0)], NOON)
    assert candles.older("1h", []) == NOON
    candles.extend([candle_of(row(NOON + n * MINUTE, 94_000.0)) for n in range(60)], NOON + 60 * MINUTE)
    hours = [candle_of(row(NOON - n * 60 * MINUTE, 94_000.0)) for n in (2, 1)]
    assert candles.older("1h", hours) is None
    assert [one.ts for one, closed in candles.page("1h", 9, NOON) if closed] == [*(one.ts for one in hours), NOON]


async def test_a_history_that_is_not_offered_is_asked_for_again(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange that delists a market may list it again."""
    live = Live(source)
    market = live.market()
    market.candles.extend([candle_of(row(NOON - MINUTE, 94_000.0))], NOON)

    async def refuses(*_: object) -> AsyncIterator[Page]:
        raise NotOffered("no such market")
        yield

    monkeypatch.setattr(source, "history", refuses)
    ((again_ms, *_),) = await live.prices._fetch_coarse(source, market, "1h")
    assert again_ms > live.machine.clock.now_ms()


async def test_a_history_waits_for_the_first_minute(source: FakeSource) -> None:
    live = Live(source)
    market = live.market()
    market.candles.extend([], NOON)
    assert [interval for _, _, interval in await live.prices._fetch_coarse(source, market, "1h")] == ["1h"]


async def test_a_restart_fills_the_time_in_between(source: FakeSource, tmp_path: Path) -> None:
    live = Live(source, tmp_path / "s.db")
    await live.open()
    trade(live, stop=93_500.0)
    live.end()
    dip = next(n for n, one in enumerate(source.rows[BTC.symbol]) if one.at_ms == NOON + 2 * MINUTE)
    source.rows[BTC.symbol][dip] = row(NOON + 2 * MINUTE, 94_000.0, low=93_000.0)

    later = Live(source, tmp_path / "s.db", markets=())
    later.move(5 * MINUTE)
    assert later.machine.state.accounts["me"].positions
    await later.wait_for_minute(94_000.0)
    assert not later.machine.state.accounts["me"].positions
    later.end()


async def test_quotes_without_an_effect_are_not_logged(source: FakeSource) -> None:
    live = Live(source)
    await live.open()
    trade(live, stop=90_000.0)
    seq = live.machine.seq
    for n in range(1_000):
        live.market().take_quote(quote(94_000.0 + n % 7))
    assert live.machine.seq == seq


async def test_a_later_start_with_another_source_or_symbol_is_refused(source: FakeSource, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Live(source, path).end()
    for name, markets in (("other", ()), ("fake", ("BTC=BTC/USD",))):
        with pytest.raises(
            ConfigError, match=r"this database (was created with the prices of fake|has BTC/USDT:USDT as BTC)"
        ):
            open_machine(
                CommandLog(path), speed=0.0, prices=PriceOptions(live=(live_options(name, markets, lambda: source),))
            )
    plain = tmp_path / "p.db"
    simulated = open_machine(CommandLog(plain), speed=0.0, prices=PriceOptions(markets=("BTC",), start_ms=NOW)).log
    simulated.start()
    simulated.close()
    with pytest.raises(ConfigError, match="was created without live prices"):
        open_machine(
            CommandLog(plain), speed=0.0, prices=PriceOptions(live=(live_options("fake", (), lambda: source),))
        )


async def test_by_default_crypto_is_live_and_the_rest_is_simulated(source: FakeSource) -> None:
    live = Live(source, markets=())
    assert {market.coin for market in live.prices.markets} == {"BTC", "ETH"}
    listed = live.machine.state.markets
    assert "SOL" not in listed
    assert listed["AAPL"].spec.hours == "equity"


async def test_a_named_market_that_the_source_lacks_is_an_error(source: FakeSource) -> None:
    with pytest.raises(NotOffered, match="SOL"):
        Live(source, markets=("SOL",))


async def test_a_delisted_market_closes_alone_and_a_session_ends_by_silence(source: FakeSource) -> None:
    live = Live(source)
    ticks = 0

    async def sleep(_: float) -> None:
        nonlocal ticks
        ticks += 1
        await asyncio.sleep(0)
        if ticks == 20:
            source.delisted.add(BTC.symbol)
        live.source.now_ms += 1_000
        live.machine.clock.move_to(live.machine.clock.now_ms() + 1_000)
        if ticks < 200:
            source.send(quote(94_000.0), quote(1_800.0, ETH.symbol))

    live.prices._sleep = sleep
    with pytest.raises(NoAnswer, match="no quote for 60 s"):
        await live.prices.session()
    assert live.market().closed_reason == "fake has no market 'BTC/USDT:USDT'"
    assert live.market("ETH").closed_reason == "no price for 30 s"
    assert live.market("ETH").candles.until_ms > NOW + MINUTE
