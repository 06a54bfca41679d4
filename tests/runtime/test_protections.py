"""Protections in a running kernel: what ends a trade, what counts as an entry, and what a kill leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.cli.operate.status import _protection_lines
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, iso
from bot.dashboard.pages.strategies import protection_texts
from bot.dashboard.values.formatting import instant
from bot.money import e16_of_decimal
from bot.runtime.control_plane import status_documents
from bot.runtime.control_plane.metrics import Meter, MetricSources, exposition, registry_of
from bot.runtime.journal import queries, round_trips
from bot.runtime.journal.order_trace import explain
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.protection_rules import (
    COOLDOWN,
    MAX_ENTRIES,
    MAX_OPEN_POSITIONS,
    STOP_GUARD,
    Length,
    ProtectionRule,
)
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, TrailingStop, View
from tests.faulty_port import Fault, FaultyPort, unknown
from tests.runtime.builders import kill, later, make_kernel, minutes

STOP = Bracket(stop_pct=5)
LONG = Open("BTC", "long", size=1, bracket=STOP)
BARS_3 = Length(3 * MINUTE_MS, "3 bars", MINUTE_MS)
COOL = ProtectionRule(COOLDOWN, "a", "market", rest=BARS_3)


class Asked(Strategy):
    """Wants on the next bar of a market what a test asks it for."""

    def __init__(self, name: str = "a", markets: tuple[str, ...] = ("BTC", "ETH")) -> None:
        super().__init__(name=name, markets=markets)
        self.wants: list[Intent] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        wants, self.wants = self.wants, []
        return wants


async def begun(venue: FaultyPort, strategy: Strategy, *rules: ProtectionRule, path: Path, **more: Any) -> Kernel:
    kernel = make_kernel(venue, strategies=[strategy], path=path, protections=rules, **more)
    await kernel.recover()
    await kernel.cycle()
    return kernel


@pytest.fixture
def venue() -> FaultyPort:
    made = FaultyPort()
    made.minute(BTC="100", ETH="100")
    return made


async def asks(kernel: Kernel, venue: FaultyPort, strategy: Asked, *wants: Intent, px: str = "100") -> None:
    strategy.wants = list(wants)
    await minutes(kernel, venue, px)


def refusals(kernel: Kernel) -> list[tuple[str, str]]:
    return [(row["code"], row["message"]) for row in kernel.journal.db["refusals"].rows]


def refused(kernel: Kernel) -> list[str]:
    return [code for code, _ in refusals(kernel)]


def kept(kernel: Kernel) -> list[tuple[str, int, int, bool]]:
    """The closed trades of the journal: market, end, result in 1e-16 USD, and whether a stop ended it."""
    trades = [row for row in kernel.journal.state.trade_rows(kernel.account.attribution.epoch) if row.closed_ms]
    return [(row.market, row.closed_ms or 0, row.net or 0, row.is_stop) for row in trades]


def recounted(kernel: Kernel) -> list[tuple[str, int, int]]:
    """The same from the events of the journal, by the code that shows trades to people."""
    events = [json.loads(row["payload"]) for row in kernel.journal.db["events"].rows]
    trips = [trip for trip in round_trips.trips(events) if trip.closed_ms is not None]
    return [(trip.market, trip.closed_ms or 0, e16_of_decimal(trip.net_usd)) for trip in trips]


def by_trailing_stop() -> Open:
    return Open("BTC", "long", size=1, guardians=(TrailingStop(trail_pct=2),))


async def test_exits_of_every_kind_end_a_trade_with_the_result_that_the_events_have(
    venue: FaultyPort, tmp_path: Path
) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, path=tmp_path / "j.db")
    # A partial exit ends nothing; the rest of it does.
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC", fraction=0.5), px="101")
    assert kept(kernel) == []
    await asks(kernel, venue, asked, Close("BTC"), px="102")
    # A stop.
    await asks(kernel, venue, asked, LONG, px="100")
    await minutes(kernel, venue, "94", "94")
    # A trailing stop.
    await asks(kernel, venue, asked, by_trailing_stop(), px="100")
    await minutes(kernel, venue, "97", "97")
    # A reversal ends one trade and begins the next.
    await asks(kernel, venue, asked, LONG, px="100")
    await asks(kernel, venue, asked, Open("BTC", "short", size=2, bracket=STOP), px="101")
    # An operator.
    venue.closed_by_hand("BTC")
    await minutes(kernel, venue, "101", "101")
    assert [is_stop for *_, is_stop in kept(kernel)] == [False, True, True, False, False]
    assert [trade[:3] for trade in kept(kernel)] == recounted(kernel)


async def test_what_another_hand_does_is_no_trade_and_no_entry(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    kernel = await begun(
        venue,
        asked,
        COOL,
        ProtectionRule(MAX_ENTRIES, "a", "strategy", count=1),
        ProtectionRule(MAX_OPEN_POSITIONS, "a", "strategy", count=1),
        path=tmp_path / "j.db",
    )
    venue.by_hand("ETH")
    await minutes(kernel, venue, "100", "100")
    venue.closed_by_hand("ETH")
    await minutes(kernel, venue, "100")
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions
    assert refused(kernel) == []
    assert kept(kernel) == []


async def test_a_cooldown_refuses_the_next_bars_and_no_exit_and_outlives_a_kill(
    venue: FaultyPort, tmp_path: Path
) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, COOL, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"))
    closed_ms = kept(kernel)[-1][1]
    until_ms = closed_ms // MINUTE_MS * MINUTE_MS + 4 * MINUTE_MS
    for _ in range(2):
        await asks(kernel, venue, asked, LONG, Open("ETH", "long", size=1, bracket=STOP))
        kill(kernel)
        asked = Asked()
        venue.minute(BTC="100")
        kernel = await begun(venue, asked, COOL, path=tmp_path / "j.db")
        assert [wait.until_ms for wait in kernel.protections.active(kernel.now_ms())] == [until_ms] * (
            kernel.now_ms() < until_ms
        )
    assert set(refused(kernel)) == {COOLDOWN}
    assert "ETH" in venue.positions, "another market does not wait"
    asked.wants = [Close("ETH")]
    await minutes(kernel, venue, "100")
    assert "ETH" not in venue.positions, "an exit is never refused"
    count = len(refused(kernel))
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions
    assert len(refused(kernel)) == count


async def test_an_entry_in_the_decision_that_closes_waits_too(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, COOL, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"), Open("BTC", "short", size=1, bracket=STOP))
    assert refused(kernel) == [COOLDOWN]
    assert "BTC" not in venue.positions, "the exit went"


@pytest.mark.parametrize(("px", "codes"), [("101", []), ("99", [COOLDOWN])])
async def test_only_a_losing_exit_of_the_same_decision_makes_a_reversal_wait(
    venue: FaultyPort, tmp_path: Path, px: str, codes: list[str]
) -> None:
    asked = Asked()
    rule = ProtectionRule(COOLDOWN, "a", "market", rest=BARS_3, only_losses=True)
    kernel = await begun(venue, asked, rule, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"), Open("BTC", "short", size=1, bracket=STOP), px=px)
    assert refused(kernel) == codes


async def test_stops_pause_entries_and_an_exit_by_the_strategy_does_not(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    hour = Length(HOUR_MS, "1h")
    guard = ProtectionRule(STOP_GUARD, "a", "strategy", within=hour, rest=hour, count=2)
    kernel = await begun(venue, asked, guard, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG, px="100")
    await asks(kernel, venue, asked, Close("BTC"), px="97")
    for _ in range(2):
        await asks(kernel, venue, asked, LONG, px="100")
        await minutes(kernel, venue, "94", "94")
    assert refused(kernel) == []
    await asks(kernel, venue, asked, LONG, px="100")
    assert refused(kernel) == [STOP_GUARD]
    kill(kernel)
    venue.minute(BTC="100")
    asked = Asked()
    kernel = await begun(venue, asked, guard, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG, px="100")
    assert refused(kernel) == [STOP_GUARD] * 2
    (wait,) = kernel.protections.active(kernel.now_ms())
    assert wait.until_ms == kept(kernel)[-1][1] // MINUTE_MS * MINUTE_MS + HOUR_MS
    assert "2 stops within 1h; entries are refused until 20" in refusals(kernel)[0][1]


async def test_entries_of_a_day_count_while_they_may_still_fill_and_begin_anew_at_midnight(
    venue: FaultyPort, tmp_path: Path
) -> None:
    asked = Asked()
    most = ProtectionRule(MAX_ENTRIES, "a", "strategy", count=2)
    kernel = await begun(venue, asked, most, path=tmp_path / "j.db")
    resting = Open("BTC", "long", size=1, limit_px=50, bracket=STOP)
    both = [resting, Open("ETH", "long", size=1, bracket=STOP), Open("ETH", "long", size=1, bracket=STOP)]
    await asks(kernel, venue, asked, *both)
    assert refused(kernel) == [MAX_ENTRIES], "the third of one decision"
    kill(kernel)
    venue.minute(BTC="100")
    asked = Asked()
    kernel = await begun(venue, asked, most, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    assert refused(kernel) == [MAX_ENTRIES] * 2, "one is filled and one rests"
    (oid,) = [order.oid for order in kernel.account.account_state.orders.values() if order.could_open]
    venue.canceled_by_hand(oid)
    await minutes(kernel, venue, "100")
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions, "an entry that was not filled leaves its place"
    await asks(kernel, venue, asked, Close("BTC"), Close("ETH"))
    await asks(kernel, venue, asked, LONG)
    assert refused(kernel) == [MAX_ENTRIES] * 3
    assert "2 of 2 entries of this UTC day are used; entries are refused until" in refusals(kernel)[-1][1]
    venue.clock.advance(DAY_MS)
    venue.minute(BTC="100", ETH="100")
    await kernel.cycle()
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions


async def test_an_order_without_an_answer_counts_as_a_position(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    most = ProtectionRule(MAX_OPEN_POSITIONS, "a", "strategy", count=1)
    kernel = await begun(venue, asked, most, path=tmp_path / "j.db")
    venue.faults += [Fault("confirm", unknown(), count=3)]
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Open("ETH", "long", size=1, bracket=STOP))
    assert refused(kernel) == [MAX_OPEN_POSITIONS]
    venue.faults.clear()
    later(kernel, 60_000)
    await minutes(kernel, venue, "100", "100")
    await asks(kernel, venue, asked, LONG)
    assert refused(kernel) == [MAX_OPEN_POSITIONS], "an entry in the same market is no new position"
    await asks(kernel, venue, asked, Close("BTC"), Open("ETH", "long", size=1, bracket=STOP))
    assert refused(kernel) == [MAX_OPEN_POSITIONS], "a position that the decision closes leaves its place"
    assert (
        "a has 1 of 1 positions (BTC); entries in other markets are refused until one of them is closed"
        in (refusals(kernel)[0][1])
    )


@pytest.mark.parametrize("is_killed", [False, True])
async def test_an_entry_counts_once_its_late_answer_has_named_it(tmp_path: Path, is_killed: bool) -> None:
    """On a service without keys, its fill comes before the answer that says whose it is."""
    venue, asked = FaultyPort(keys="hidden", fee_rate="0.005"), Asked(markets=("BTC",))
    venue.minute(BTC="100")
    most = ProtectionRule(MAX_ENTRIES, "a", "strategy", count=1)
    kernel = await begun(venue, asked, most, COOL, path=tmp_path / "j.db")
    venue.faults = [Fault("confirm", "lose_reply", 1), Fault("confirm", "drop", 2)]
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions
    assert kernel.account.log_trades().entries == {}, "nobody's yet"
    if is_killed:
        kill(kernel)
        asked = Asked(markets=("BTC",))
        kernel = await begun(venue, asked, most, COOL, path=tmp_path / "j.db")
    later(kernel, 60_000)
    await minutes(kernel, venue, "100")
    assert [row.strategy for row in kernel.account.log_trades().entries.values()] == ["a"]
    await asks(kernel, venue, asked, Close("BTC"))
    ((market, _, net, _),) = kept(kernel)
    assert (market, net) == ("BTC", kernel.account.attribution.rows["a"].net), "the fee of the entry is in it"
    await asks(kernel, venue, asked, LONG)
    assert refused(kernel) == [MAX_ENTRIES]


async def test_a_page_that_was_not_written_counts_its_trades_once(
    venue: FaultyPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, COOL, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    venue.closed_by_hand("BTC")
    approvals = kernel.events.approvals
    take = approvals.take
    monkeypatch.setattr(approvals, "take", lambda *_args, **_named: (_ for _ in ()).throw(OSError("full")))
    venue.minute(BTC="100")
    with pytest.raises(OSError, match="full"):
        await kernel.cycle()
    log = kernel.account.log_trades()
    assert [*log.open] == [("a", "BTC")]
    assert kernel.protections.active(kernel.now_ms()) == []
    monkeypatch.setattr(approvals, "take", take)
    await minutes(kernel, venue, "100")
    assert [trade[:3] for trade in kept(kernel)] == recounted(kernel)
    assert len(kernel.protections.active(kernel.now_ms())) == 1


async def test_an_account_reset_forgets_all(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    rules = (COOL, ProtectionRule(MAX_ENTRIES, "a", "strategy", count=1))
    kernel = await begun(venue, asked, *rules, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"))
    venue.reset()
    venue.minute(BTC="100", ETH="100")
    await kernel.cycle()
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions
    assert kernel.journal.db["trades"].count == 1
    assert [row["closed_ms"] for row in kernel.journal.db["trades"].rows] == [None]


async def test_rules_that_a_reload_brings_count_what_was_before(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"))
    limits = kernel.risk.strategy_limits["a"]
    kernel.protections.configure((COOL,), [limits])
    await asks(kernel, venue, asked, LONG)
    assert refused(kernel) == [COOLDOWN]
    kernel.protections.configure((), [limits])
    await asks(kernel, venue, asked, LONG)
    assert "BTC" in venue.positions
    assert Decimal(1) == venue.positions["BTC"].size


async def test_status_and_metrics_show_what_waits_and_count_what_was_refused(venue: FaultyPort, tmp_path: Path) -> None:
    asked = Asked()
    kernel = await begun(venue, asked, COOL, path=tmp_path / "j.db")
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, Close("BTC"))
    await asks(kernel, venue, asked, LONG)
    await asks(kernel, venue, asked, LONG)
    told = status_documents.protections(kernel)
    (wait,) = told["waits"]
    assert {name: wait[name] for name in ("strategy", "protection", "market")} == {
        "strategy": "a",
        "protection": "cooldown",
        "market": "BTC",
    }
    assert told["refused"] == [{"strategy": "a", "protection": "cooldown", "count": 2}]
    until = iso(wait["until_ms"])
    assert [*_protection_lines(told)] == [
        f"  protection  a cooldown: no entries in BTC until {until}: {wait['why']}",
        "  protection  entries of a refused so far: cooldown 2",
    ]
    assert protection_texts({"protections": told}, "a") == [
        f"cooldown: no entries in BTC until {instant(wait['until_ms'])}: {wait['why']}",
        "entries refused by protections: cooldown 2",
    ]
    assert protection_texts({"protections": told}, "b") == []
    with queries.in_rows(kernel.journal.db.conn) as db:
        head, *rest = explain(db, "a")
    assert head.text == "entries of a refused by protections: cooldown 2"
    assert [step.text.partition(": ")[0] for step in rest] == ["an order in BTC"] * 2
    pytest.importorskip("prometheus_client")
    sources = MetricSources(Meter(), kernel, lambda: None, None, lambda: "RUNNING", lambda: True)
    text = exposition(registry_of(sources)).decode()
    assert 'bracketbot_protection_waits{market="BTC",protection="cooldown",strategy="a"} 1.0' in text
    assert 'bracketbot_protection_refusals{protection="cooldown",strategy="a"} 2.0' in text
    kill(kernel)
    venue.minute(BTC="100")
    kernel = await begun(venue, Asked(), COOL, path=tmp_path / "j.db")
    assert status_documents.protections(kernel)["refused"] == told["refused"], "they outlive a kill"
