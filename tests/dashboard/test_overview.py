"""The overview from the answers of daemon and service: figures, positions, the curve in words, health."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from bot.dashboard import server_chart
from bot.dashboard.pages import frame, overview
from bot.dashboard.sources import DaemonSnapshot
from bot.figures import Figure
from bot.wire.wallets import NavPoint, WalletNavResult, WalletResult
from tests.dashboard.builders import NOW_MS, book, order, position, snapshot, strategy


def wallet(**members: Any) -> WalletResult:
    held = {
        "coin": "BTC",
        "side": "long",
        "size": "0.5",
        "leverage": 2,
        "book": "main",
        "liquidation_px": "51.5",
        "margin_used_usd": "26",
    }
    return WalletResult.model_validate(
        {
            "address": "0xabc",
            "registered": True,
            "environment": "sandbox",
            "account_value_usd": "10000",
            "unrealized_pnl_usd": "2",
            "positions": [held],
            "updated_at": NOW_MS,
            **members,
        }
    )


def by_label(found: list[Figure]) -> dict[str, Figure]:
    return {one.name: one for one in found}


def test_the_profit_counts_removed_strategies_and_not_the_trades_of_others() -> None:
    shown = snapshot(
        strategies=[],
        other_books=[
            {"name": "gone", "book": book(day_usd="-2", net_usd="5")},
            {"name": "@foreign", "book": book(day_usd="100", net_usd="100")},
        ],
    )
    assert shown.status is not None
    shown.status["strategies"] = [strategy(book=book(day_usd="3.5", net_usd="-20"))]
    found = by_label(overview.figures(shown, None))
    assert (found["Today"].shown, found["Today"].tone) == ("+1.50", "up")
    assert (found["Total"].shown, found["Total"].tone) == ("−15.00", "down")


def test_exposure_is_at_the_mark_and_margin_is_the_services() -> None:
    found = by_label(overview.figures(snapshot(positions=[position()]), wallet()))
    assert (found["Exposure"].shown, found["Exposure"].note) == ("52.00", "0.01× the account")
    assert found["Margin used"].shown == "26.00"
    assert by_label(overview.figures(snapshot(positions=[position()]), None))["Margin used"].shown == "1,000.00"


def test_a_daemon_that_does_not_know_its_account_shows_no_figure() -> None:
    assert overview.figures(DaemonSnapshot(NOW_MS, status={"state": "STARTING"}), None) == []
    assert overview.figures(DaemonSnapshot(NOW_MS), None) == []


def test_a_position_shows_its_way_from_the_stop_to_the_target() -> None:
    (row,) = overview.position_rows(snapshot(positions=[position()], orders=[order()]), wallet())
    assert (row.entry, row.mark, row.stop, row.stop_away) == ("100.00", "104.00", "98.00", "5.77 % away")
    # 4 above an entry with a stop 2 below it; the target is at 3 R
    assert row.r == "+2.00 R"
    assert row.way is not None
    assert (row.way.stop, row.way.entry, row.way.mark, row.way.targets) == (0.0, 0.25, 0.75, (1.0,))
    assert row.way.text == "stop 98.00, entry 100.00, mark 104.00, target 106.00"
    assert (row.at_stop.shown, row.at_stop.tone) == ("−1.00", "down"), "0.5 of 2 below the entry"
    assert (row.targets, row.liquidation, row.held) == (("106.00",), "51.50", "1 min")


@pytest.mark.parametrize(
    ("side", "entry", "mark", "stop", "targets", "expected"),
    [
        ("short", 100, 96, 102, [94], (0.0, 0.25, 0.75, (1.0,))),
        ("long", 100, 99, 98, [], (0.0, 1 / 3, 1 / 6, ())),
        # A stop beyond the entry, and a mark beyond the last target.
        ("long", 100, 110, 105, [106, 108], (0.5, 0.0, 1.0, (0.6, 0.8))),
        # The price has jumped over the stop.
        ("long", 100, 96, 98, [104], (0.25, 0.5, 0.0, (1.0,))),
        ("long", 100, 104, None, [106], None),
        ("long", 100, None, 98, [106], None),
        ("long", None, 104, 98, [106], None),
        ("long", 100, 100, 100, [], None),
    ],
)
def test_the_track_has_each_price_at_its_place(
    side: str, entry: int | None, mark: int | None, stop: int | None, targets: list[int], expected: Any
) -> None:
    prices = [None if px is None else Decimal(px) for px in (entry, mark, stop)]
    shown = overview.way(side, *prices, [Decimal(px) for px in targets])
    if expected is None:
        assert shown is None
    else:
        assert shown is not None
        assert shown[:3] == pytest.approx(expected[:3])
        assert shown.targets == pytest.approx(expected[3])


def test_the_result_at_the_stop_is_not_known_without_a_fixed_stop() -> None:
    trailing = position(stop_px=None, trailing_stops=[{"id": "1", "active": True}])
    rows = overview.position_rows(snapshot(positions=[trailing, position(market="ETH", protected=False)]), None)
    assert [row.at_stop.shown for row in rows] == ["not known", "not known"]


@pytest.mark.parametrize(("mark", "r"), [(98.0, "+1.00 R"), (102.0, "−1.00 R"), (100.0, "0.00 R")])
def test_r_of_a_short_counts_downwards(mark: float, r: str) -> None:
    short = position(side="short", mark_px=mark, stop_px="101", first_stop_px="102")
    (row,) = overview.position_rows(snapshot(positions=[short]), None)
    assert row.r == r, "measured from the first stop, wherever the stop is now"


def test_a_position_without_a_stop_comes_first_and_says_so() -> None:
    bare = position(market="ETH", stop_px=None, first_stop_px=None, protected=False)
    rows = overview.position_rows(snapshot(positions=[position(), bare]), None)
    assert [(one.market, one.is_protected, one.stop, one.r) for one in rows] == [
        ("ETH", False, "no stop", "–"),
        ("BTC", True, "98.00", "+2.00 R"),
    ]


def test_several_targets_are_listed_by_price() -> None:
    orders = [
        order(kind="limit", limit_px="108", trigger_px=None),
        order(),
        order(market="ETH", trigger_px="9"),
        order(action="open", kind="limit", limit_px="90"),
    ]
    assert overview.targets_of("BTC", orders) == [Decimal(106), Decimal(108)]


def test_the_curve_is_the_services_and_is_told_in_words() -> None:
    points = tuple(NavPoint(ts=NOW_MS + n * 60_000, nav_usd=Decimal(value)) for n, value in enumerate((100, 90, 120)))
    nav = WalletNavResult(address="0xabc", registered=True, range="1d", nav_usd=Decimal(120), series=points)
    found = overview.curve(nav, (), "1d")
    assert found.points[-1] == (NOW_MS + 120_000, 120.0)
    assert found.text.startswith("The account rose by 20.00 USD: from 100.00")
    assert "Lowest 90.00, highest 120.00." in found.text


def test_without_the_services_curve_the_closed_trades_are_added_up() -> None:
    found = overview.curve(None, [(NOW_MS, Decimal(5)), (NOW_MS + 1000, Decimal(-8))], "1d")
    assert found.points == ((NOW_MS, 5.0), (NOW_MS + 1000, -3.0))
    assert "journal" in found.source
    assert overview.curve(None, [], "1d").text == "There are not two points yet."


def tones(**members: Any) -> dict[str, str]:
    return {one.label: one.tone for one in overview.health(snapshot(**members), 0.0)}


def test_the_health_of_a_good_daemon_is_good() -> None:
    assert set(tones().values()) == {"good"}


@pytest.mark.parametrize(
    ("label", "tone", "members"),
    [
        ("Loop lag", "warn", {"health": {"loop_lag_s": 0.3}}),
        ("Loop lag", "bad", {"health": {"loop_lag_s": 2.0}}),
        ("Last pass", "bad", {"last_pass_ms": 25_000}),
        ("Event lag", "warn", {"health": {"cursor_lag_s": 1.5}}),
        ("Heartbeat age", "bad", {"heartbeat": {"age_s": 25.0, "deadline_s": 5.0, "failures": 0}}),
        (
            "Rate budget",
            "warn",
            {
                "health": {
                    "rates": [{"policy": "a", "left": 300, "requests": 400}, {"policy": "b", "left": 2, "requests": 10}]
                }
            },
        ),
        ("Journal", "bad", {"health": {"journal_fault": "disk full"}}),
        ("Orders in doubt", "bad", {"intents": {"in_doubt": 1}}),
        ("Loop lag", "idle", {"health": {}}),
    ],
)
def test_a_figure_of_health_warns(label: str, tone: str, members: dict[str, Any]) -> None:
    assert tones(**members)[label] == tone


def test_the_dead_man_clock_ends_when_the_service_acts() -> None:
    shown = frame.frame(snapshot(), now_ms=NOW_MS).dead_man
    assert (shown.text, shown.tone, shown.fires_at_ms) == ("armed", "good", NOW_MS + 20_000)
    late = frame.frame(snapshot(heartbeat={"deadline_s": 5.0, "age_s": 25.0}), now_ms=NOW_MS).dead_man
    assert late.tone == "warn"
    gone = frame.frame(snapshot(heartbeat={"deadline_s": -1.0, "age_s": 31.0}), now_ms=NOW_MS).dead_man
    assert (gone.text, gone.tone) == ("may have acted", "bad")
    assert (
        frame.frame(
            snapshot(heartbeat={"deadline_s": None, "age_s": None}, positions=[position()]), now_ms=NOW_MS
        ).dead_man.text
        == "not armed"
    )
    assert frame.frame(snapshot(heartbeat=None), now_ms=NOW_MS).dead_man.text == "off"


def test_figures_of_a_dead_daemon_are_marked_as_old() -> None:
    dead = DaemonSnapshot(NOW_MS, "the daemon is not running", is_running=False, status=snapshot().status)
    shown = frame.frame(dead, now_ms=NOW_MS + 90_000)
    assert (shown.state, shown.tone) == ("NOT RUNNING", "bad")
    assert "1 min 30 s ago" in shown.old
    assert frame.frame(snapshot(old_s=30.0), now_ms=NOW_MS).old == "The daemon read the account 30 s ago."
    assert frame.frame(snapshot(), now_ms=NOW_MS).old == ""


def test_real_money_is_named() -> None:
    assert frame.frame(snapshot(), now_ms=NOW_MS).money == "Play money"
    live = frame.frame(snapshot(service={"environment": "production", "speed": 1, "now_ms": NOW_MS}), now_ms=NOW_MS)
    assert (live.money, live.is_real_money) == ("Real money", True)


@pytest.mark.parametrize(
    ("positions", "in_doubt", "lead", "rest", "tone"),
    [
        ([], 0, "No open position.", "No order in doubt.", "good"),
        (
            [position()],
            0,
            "1 open position, each with its stop at the service.",
            "If every stop is hit now: −3.00 USD (from now, −0.03 % of the account). No order in doubt.",
            "good",
        ),
        (
            [position(), position(market="ETH", protected=False)],
            1,
            "1 of 2 open positions without a stop.",
            "1 order in doubt.",
            "bad",
        ),
    ],
)
def test_the_overview_says_first_what_the_account_means(
    positions: list[dict[str, Any]], in_doubt: int, lead: str, rest: str, tone: str
) -> None:
    known = snapshot(positions=positions, intents={"in_doubt": in_doubt})
    shown = overview.verdict(known, overview.figures(known, None))
    assert shown == (lead, rest, tone)
    assert overview.verdict(DaemonSnapshot(NOW_MS), []) is None
    old = replace(known, trouble="it does not answer")
    assert overview.verdict(old, overview.figures(old, None)) is None, "never said of what is old"


def test_the_line_of_a_week_ago_is_the_value_then_and_missing_without_it() -> None:
    hour = 3_600_000
    points = [(NOW_MS + n * hour, 100.0 + n) for n in range(8 * 24 + 1)]
    assert server_chart.week_ago(points) == 124.0
    assert 'class="z dash"' in server_chart.value_chart(points)
    for short in (points[-6 * 24 :], []):
        assert server_chart.week_ago(short) is None
        assert 'class="z dash"' not in server_chart.value_chart(short)
