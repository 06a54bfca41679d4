"""The order in which a candle's prices are visited, and the book that a taker walks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from bot.model.events import FillEvent
from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import GuardianSpec, Rules, VenueMarket
from bot.venue.prices import book
from bot.venue.prices.quiet_band import band_of
from bot.venue.triggers import matching
from tests.builders import VenueDriver, dead_man, e8, market, order, trail
from tests.scenario import run


def bar(*prices: str, seed: int = 0, at_ms: int = 0) -> c.PassBar:
    return c.PassBar("BTC", at_ms, *(e8(px) for px in prices), E8, seed=seed)


@pytest.mark.parametrize(
    ("policy", "prices", "path"),
    [
        ("ohlc", ("100", "101", "90", "95"), "OHLC"),
        ("olhc", ("100", "101", "90", "95"), "OLHC"),
        ("adaptive", ("100", "101", "90", "95"), "OHLC"),
        ("adaptive", ("100", "110", "99", "95"), "OLHC"),
        ("adaptive", ("100", "105", "95", "95"), "OLHC"),
        ("sl_first", ("100", "101", "90", "95"), "OHLC"),
    ],
)
def test_a_path_visits_the_four_prices_in_its_policys_order(policy: str, prices: tuple[str, ...], path: str):
    at = dict(zip("OHLC", (e8(px) for px in prices), strict=True))
    assert matching.path_of(bar(*prices), policy) == tuple(at[name] for name in path)


def test_a_seeded_path_is_the_same_for_its_seed_and_market_and_bar():
    draws = [matching.path_of(bar("100", "104", "98", "101", seed=7, at_ms=n), "seeded") for n in range(50)]
    assert draws == [matching.path_of(bar("100", "104", "98", "101", seed=7, at_ms=n), "seeded") for n in range(50)]
    assert len(set(draws)) == 2


def test_a_seeded_path_meets_the_nearer_extreme_first_as_often_as_a_brownian_path():
    # Open 100 between 98 and 104: the high comes first with probability 2/6.
    ups = sum(matching.path_of(bar("100", "104", "98", "101", seed=n), "seeded")[1] == e8("104") for n in range(3000))
    assert 0.30 < ups / 3000 < 0.37


@pytest.mark.parametrize(
    ("path", "protection", "after_ms"),
    [
        ("ohlc", {"take": "101"}, 20_000),
        ("ohlc", {"stop": "98.5"}, 40_000),
        ("olhc", {"guardians": (trail("2%"),)}, 59_999),
    ],
)
def test_a_bars_points_lie_at_its_thirds_and_its_last_millisecond(path: str, protection: dict[str, Any], after_ms: int):
    venue = VenueDriver((market(), "100"), rules=Rules(paths=path))
    start_ms = venue.now_ms
    venue.place(order(size="1", **protection))
    events = venue.bar("BTC", "100", "102", "98.3", "99.5")
    assert {e.ts - start_ms for e in events if isinstance(e, FillEvent)} == {after_ms}


@pytest.mark.parametrize("path", ["ohlc", "olhc", "sl_first"])
@pytest.mark.parametrize("seed", range(12))
def test_a_bar_whose_rest_fires_nothing_gives_the_same_state_as_its_four_points(seed: int, path: str):
    """A whole bar and its single points give the same events, prices and money, with fills at the open, near levels,
    ending holds, and funding.
    """
    chance = Random(seed)
    # for every other seed prices come only in bars
    made = market(bar_length_ms=60_000 * (seed % 2))
    venues = [VenueDriver((made, "100"), rules=Rules(fill_at="next", paths=path)) for _ in range(2)]
    px, third, acted = 10_000, 20_000, 0
    start_ms = (venues[0].now_ms // 3_600_000 + 23) * 3_600_000 - 5 * 60_000
    for number in range(60):
        if chance.random() < 0.3:
            # ends in the middle of a bar
            hold = GuardianSpec("max_hold", seconds=chance.choice((90, 600)))
            spec = order(size="1", leverage=3, stop="2%", take="1.5%", guardians=(hold,))
            for venue in venues:
                if venue.account.positions:
                    venue.close()
                else:
                    venue.place(spec)
        prices = [px, *(px + chance.randint(-150, 150) for _ in range(3))]
        o, close = prices[0], prices[3]
        high, low = max(prices), min(prices)
        whole = c.PassBar("BTC", start_ms + number * 60_000, *(e8(f"{one / 100}") for one in (o, high, low, close)), E8)
        visited = matching.path_of(whole, path)
        end_ms = whole.at_ms + 59_999
        times = (whole.at_ms, whole.at_ms + third, whole.at_ms + 2 * third, end_ms)
        points = tuple(
            (
                at,
                "BTC",
                visited[step],
                step,
                whole.at_ms,
                E8,
                (min(visited[step + 1 :]), max(visited[step + 1 :])) if path == "sl_first" and step < 3 else None,
                whole.close,
            )
            for step, at in enumerate(times)
        )
        one, other = (
            apply(venue.state, command, end_ms)
            for venue, command in zip(venues, (whole, c.PassPoints(points, end_ms)), strict=True)
        )
        assert one.events == other.events
        ends = [
            (m.mark, m.mid, m.oracle, m.bar_ms, m.next_funding_ms, venue.state.now_ms, venue.account.balance)
            for venue in venues
            for m in venue.state.markets.values()
        ]
        assert ends[0] == ends[1]
        acted += bool(one.events)
        for venue in venues:
            venue.now_ms = end_ms
        px = close
    assert acted > 5


@pytest.mark.parametrize("seed", range(50))
def test_the_book_is_never_crossed_and_never_better_than_the_mid(seed: int):
    chance = Random(seed)
    spec = market(
        sz_decimals=chance.randint(0, 5),
        half_spread=chance.choice((0, 10_000, 300_000)),
        level_step=chance.choice((0, 5_000, 50_000)),
        level_size=chance.randint(1, 1000) * E8,
        level_growth=chance.choice((0, 10_000_000)),
    )
    mid = e8(f"{chance.uniform(0.5, 120_000):.2f}")
    bids, asks = book.book(VenueMarket(spec, mid, mid, mid))
    assert 1 <= len(bids) <= 20 and 1 <= len(asks) <= 20
    assert bids[0][0] <= mid <= asks[0][0]
    assert [px for px, _ in bids] == sorted({px for px, _ in bids}, reverse=True)
    assert [px for px, _ in asks] == sorted({px for px, _ in asks})
    assert all(size > 0 for _, size in bids + asks)


def test_a_fill_is_rounded_to_the_grid_never_in_the_takers_favour():
    run("""
        mark BTC 99.999 spread 0.7bps decimals 5
        long BTC 1                     | open 1 @ 100.1
        close BTC                      | close 1 @ 99.9
    """)


def test_the_mark_may_differ_from_mid_and_oracle():
    venue = VenueDriver((market(), "100"))
    venue.do(c.PricePoint("BTC", e8("100"), oracle=e8("101"), mid=e8("102")))
    made = venue.place(order(size="1", stop="99"))
    assert made.answer.trade.avg_px() == e8("102")
    assert venue.position().pnl(venue.state.markets["BTC"].mark) == e8("-2")


@pytest.mark.parametrize("seed", range(20))
def test_a_bar_inside_the_quiet_band_makes_no_event(seed: int):
    chance = Random(seed)
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="5", leverage=10, stop="98", take="104"))
    venue.place(order(size="1", limit_px="97"))
    for _ in range(200):
        band = band_of(venue.state, "BTC")
        low, high = sorted(chance.randint(9_700, 10_450) for _ in range(2))
        px = [f"{x / 100}" for x in (low, high, low, high)]
        inside = band.lo < low / 100 and high / 100 < band.hi and venue.now_ms + 60_000 < band.until_ms
        digest = venue.digest()
        events = venue.bar("BTC", *px)
        if inside:
            assert not events and venue.digest() == digest
        if not venue.account.positions:
            break


def test_two_trails_on_one_position_the_nearer_fires_and_the_other_is_released():
    run("""
        mark BTC 100
        long BTC 5 trail 1% trail 3%
        bar BTC 100 100 98 98          || fired trailing_stop trail, guardian 5 @ 99, released trailing_stop \
position_closed
    """)


def test_a_resting_limit_may_turn_a_position():
    run("""
        mark BTC 100
        long BTC 5 stop 95
        short BTC 8 limit 105 stop 110
        bar BTC 100 106 100 106        || limit 5 @ 105, open 3 @ 105, canceled stop_loss 95 position_closed, armed \
stop_loss 110
        position BTC                   | short 3 @ 105 1x
    """)


def test_no_bar_is_quiet_while_an_exit_works_or_an_order_waits_for_the_next_point():
    thin = VenueDriver((market(level_size=10**7, level_step=600_000), "100"))
    for _ in range(2):
        thin.place(order(size="1.5", allow_partial=True))
    thin.arm(dead_man(60, "flatten"))
    thin.wait(60_000)
    assert thin.state.markets["BTC"].working
    session = VenueDriver((market(), "100"), rules=Rules(fill_at="next"))
    session.place(order(size="1"))
    for venue in (thin, session):
        assert band_of(venue.state, "BTC").lo > band_of(venue.state, "BTC").hi
        venue.bar("BTC", "100", "100", "100", "100")
        assert band_of(venue.state, "BTC").lo < band_of(venue.state, "BTC").hi


@pytest.mark.parametrize(("running", "filled"), [(True, ["98"]), (False, [])], ids=["points of a bar", "whole bars"])
def test_a_mark_set_within_a_bar_keeps_the_volume_for_resting_orders(running: bool, filled: list[str]):
    venue = VenueDriver((market(), "100"))
    venue.place(order(size="1", limit_px="98"))
    venue.do(c.PricePoint("BTC", e8("99"), step=0, bar_ms=venue.now_ms, volume=e8("100")))
    venue.do(c.SetMarks((("BTC", e8("99.5")),), running=running))
    events = venue.do(c.PricePoint("BTC", e8("97"), step=2, bar_ms=venue.now_ms, volume=e8("100"))).events
    assert [e.px for e in events if isinstance(e, FillEvent)] == [e8(px) for px in filled]


@pytest.mark.parametrize("path", ["ohlc", "olhc", "adaptive", "sl_first"])
@pytest.mark.parametrize("seed", range(12))
def test_bars_of_several_markets_give_the_same_state_as_their_points_in_time_order(seed: int, path: str):
    """Markets of one account together and point by point: the same events, prices, watches and money."""
    chance = Random(seed)
    coins = ("BTC", "ETH", "SOL")
    made = [(market(coin, bar_length_ms=60_000 * (seed % 2)), "100") for coin in coins]
    venues = [VenueDriver(*made, rules=Rules(fill_at="next", paths=path)) for _ in range(2)]
    px, acted = dict.fromkeys(coins, 10_000), 0
    start_ms = (venues[0].now_ms // 3_600_000 + 23) * 3_600_000 - 5 * 60_000
    for number in range(60):
        for coin in coins:
            if chance.random() < 0.3:
                # ends in the middle of a bar
                hold = GuardianSpec("max_hold", seconds=chance.choice((90, 600)))
                spec = order(coin=coin, size="1", leverage=3, stop="2%", take="1.5%", guardians=(hold,))
                for venue in venues:
                    if coin in venue.account.positions:
                        venue.close(coin)
                    else:
                        venue.place(spec)
        at_ms = start_ms + number * 60_000
        times = (at_ms, at_ms + 20_000, at_ms + 40_000, at_ms + 59_999)
        wild = chance.choice((20, 150))
        bars, points = [], []
        for place, coin in enumerate(chance.sample(coins, chance.choice((1, 3)))):
            prices = [px[coin], *(px[coin] + chance.randint(-wild, wild) for _ in range(3))]
            px[coin] = prices[3]
            low, high = min(prices), max(prices)
            whole = c.PassBar(coin, at_ms, *(e8(f"{one / 100}") for one in (prices[0], high, low, prices[3])), E8)
            bars.append(whole)
            visited = matching.path_of(whole, path)
            for step, at in enumerate(times):
                rest = visited[step + 1 :]
                ahead = (min(rest), max(rest)) if path == "sl_first" and rest else None
                points.append((at, place, (at, coin, visited[step], step, at_ms, E8, ahead, whole.close)))
        points.sort(key=lambda one: one[:2])
        walked = c.PassPoints(tuple(point for *_, point in points), times[3])
        one, other = (
            apply(venue.state, command, times[3])
            for venue, command in zip(venues, (c.PassBars(tuple(bars)), walked), strict=True)
        )
        assert one.events == other.events
        ends = [
            [
                (m.mark, m.mid, m.oracle, m.bar_ms, m.point, m.next_funding_ms, m.volume_left, m.falling, m.rising)
                for m in venue.state.markets.values()
            ]
            for venue in venues
        ]
        assert venues[0].account == venues[1].account
        assert venues[0].state.now_ms == venues[1].state.now_ms
        assert ends[0] == ends[1]
        acted += bool(one.events)
        for venue in venues:
            venue.now_ms = times[3]
    assert acted > 10
