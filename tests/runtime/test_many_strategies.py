"""Many strategies in one account: shares of a market, daily losses, pauses, quarantine and timers, over a fake
venue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bot.backtest.engine.bar_runs import BarRuns
from bot.clock import DAY_MS, MINUTE_MS
from bot.errors import ApiError
from bot.runtime.alerts.messages import render
from bot.runtime.control_plane import reporting, status_documents
from bot.runtime.control_plane.metrics import Figures, Meter, MetricSources
from bot.runtime.decisions.entry_conditions import SCHEDULED
from bot.runtime.execution.entry_wait import BLOCKED_MS
from bot.runtime.journal.halt_flags import HALTED
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.intents import Intent as Written
from bot.runtime.model.shares import FOREIGN
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.ports import Calm
from bot.runtime.reconciliation.key_recovery import claimed
from bot.runtime.shutdown import wind_down
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.timers import instants, newest_until, next_after
from bot.strategy import Bar, Bracket, Close, Fill, Intent, Open, Strategy, Timer, View
from bot.wire import CloseRequest, OrderRequest
from tests.faulty_port import ADDRESS, START_MS, Fault, FaultyPort, refused
from tests.runtime.builders import Scripted, kill, later, make_kernel, minutes

STOP = Bracket(stop_pct=50)
FULL = ApiError.of("rate_limited", "too many requests", order_submitted=False, retryable=True)


class Told(Scripted):
    """Wants what it is told to, once; remembers what it was told of."""

    def __init__(self, name: str, markets: tuple[str, ...] = ("BTC",)) -> None:
        super().__init__(self.act, name=name, markets=markets)
        self.wants: list[Intent] = []
        self.fills: list[Fill] = []
        self.holds: list[float] = []

    def act(self, view: View, bar: Bar) -> Iterable[Intent]:
        position = view.position(bar.market)
        self.holds.append(position.size if position else 0)
        wants, self.wants = self.wants, []
        return wants

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        self.fills.append(fill)
        return ()


def codes(kernel: Kernel) -> list[tuple[str, str]]:
    return [(row["strategy"], row["code"]) for row in kernel.journal.db["refusals"].rows]


def notices(kernel: Kernel) -> list[tuple[str, str]]:
    return [(row["kind"], json.loads(row["payload"]).get("strategy")) for row in kernel.journal.db["outbox"].rows]


async def begun(
    venue: FaultyPort, *told: Strategy, path: Path | None = None, path_of_orders: str = "plan", **more: Any
) -> Kernel:
    kernel = make_kernel(venue, strategies=told, path=path, **more)
    kernel.risk.limit({name: replace(one, path=path_of_orders) for name, one in kernel.risk.strategy_limits.items()})
    await kernel.recover()
    await kernel.cycle()
    return kernel


@pytest.fixture
def venue() -> FaultyPort:
    made = FaultyPort()
    made.minute(BTC="100")
    return made


# -- sharing a market


async def test_each_has_its_share_and_a_close_takes_no_more_than_that(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "110")
    b.wants = [Open("BTC", "long", size=3, bracket=STOP)]
    await minutes(kernel, venue, "120")
    await minutes(kernel, venue, "120")
    assert (a.holds[-1], b.holds[-1]) == (1, 3)
    assert status_documents.position(kernel, kernel.account.account_state.positions["BTC"])["shares"] == {
        "alpha": "1",
        "beta": "3",
    }
    b.wants = [Close("BTC")]
    await minutes(kernel, venue, "130")
    assert venue.positions["BTC"].size == 1
    assert (
        kernel.account.attribution.of("alpha").unrealized_usd,
        kernel.account.attribution.of("beta").realized_usd,
    ) == (20, 30)
    assert [(fill.action, fill.size, fill.position_size) for fill in b.fills] == [("open", 3, 3), ("close", 3, 0)]
    assert [fill.action for fill in a.fills] == ["open"], "it is told of its own fills alone"


async def test_a_part_of_a_share_leaves_none_that_is_too_small_to_be_closed(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    a.wants, b.wants = [Close("BTC", usd=90)], [Close("BTC", usd=90.2)]
    await minutes(kernel, venue, "100")
    assert venue.positions["BTC"].size == Decimal("0.1"), "ten dollars can be closed, and less cannot"
    share = kernel.account.attribution.share("BTC", "alpha")
    assert share is not None
    assert share.size == Decimal("0.1")
    assert kernel.account.attribution.share("BTC", "beta") is None


async def test_a_share_that_the_price_has_made_too_small_says_how_it_can_be_closed(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants, b.wants = [Open("BTC", "long", usd=12, bracket=STOP)], [Open("BTC", "long", usd=100, bracket=STOP)]
    await minutes(kernel, venue, "100")
    venue.faults = [Fault("close", refused("below_min_notional", "a part is worth 9.6 USD"), count=2)]
    a.wants, b.wants = [Close("BTC")], [Close("BTC", usd=5)]
    await minutes(kernel, venue, "80")
    alpha, beta = (
        next(row["message"] for row in kernel.journal.db["intents"].rows if row["strategy"] == name and row["code"])
        for name in ("alpha", "beta")
    )
    assert alpha.startswith("a part is worth 9.6 USD. This is all that the strategy has of a shared position")
    assert beta == "a part is worth 9.6 USD", "it has more that can be closed"
    b.wants = [Close("BTC")]
    await minutes(kernel, venue, "80")
    a.wants = [Close("BTC")]
    await minutes(kernel, venue, "80")
    assert venue.positions == {}, "the way out: what is left is whole"


async def test_a_share_is_closed_once_however_often_it_is_asked_for(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    b.wants = [Close("BTC", fraction=0.5), Close("BTC"), Close("BTC")]
    venue.faults = [Fault("close", "drop", count=2)]
    await minutes(kernel, venue, "100")
    b.wants = [Close("BTC")]
    later(kernel, 20_000)
    await minutes(kernel, venue, "100", "100")
    assert venue.positions["BTC"].size == 1
    assert kernel.account.attribution.share("BTC", "alpha") is not None
    assert ("beta", "closing") in codes(kernel)


class ScalesOut(Told):
    """Closes the rest when it is told of the first part."""

    def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
        if fill.action == "close" and fill.position_size:
            yield Close(fill.market)


@pytest.mark.parametrize("lost", [0, 3])
async def test_the_rest_of_a_share_is_closed_on_the_fill_of_the_first_part(venue: FaultyPort, lost: int) -> None:
    a, b = Told("alpha"), ScalesOut("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    b.wants = [Close("BTC", fraction=0.5)]
    venue.faults = [Fault("close", "lose_reply", count=lost)]
    await minutes(kernel, venue, "100")
    assert codes(kernel) == []
    assert venue.positions["BTC"].size == 1
    assert kernel.account.attribution.share("BTC", "beta") is None
    later(kernel, 20_000)
    await minutes(kernel, venue, "100", "100")
    assert (venue.positions["BTC"].size, kernel.account.account_state.closed) == (1, set())


async def test_nobody_goes_against_the_others_share_and_budgets_are_their_own(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants = [Open("BTC", "long", usd=900, bracket=STOP)]
    await minutes(kernel, venue, "100")
    b.wants = [Open("BTC", "short", usd=50, bracket=STOP)]
    await minutes(kernel, venue, "100")
    a.wants, b.wants = [Open("BTC", "long", usd=200, bracket=STOP)], [Open("BTC", "long", usd=900, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert codes(kernel) == [("beta", "against_others"), ("alpha", "over_budget")]
    assert venue.positions["BTC"].size == 18
    a.wants, b.wants = [Close("BTC")], [Close("BTC")]
    await minutes(kernel, venue, "100")
    assert venue.positions == {}


async def test_when_the_first_holder_has_left_the_next_one_answers_for_the_position(venue: FaultyPort) -> None:
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100")
    a.wants = [Close("BTC")]
    await minutes(kernel, venue, "100")
    assert kernel.account.account_state.positions["BTC"].owner == "beta"
    assert kernel.account.account_state.is_protected("BTC")


@pytest.mark.parametrize("abreast", [1, 8])
async def test_an_entry_takes_over_no_leverage_above_its_own_maximum(venue: FaultyPort, abreast: int) -> None:
    """Without one of its own it has the position's: another's of a shared market, or that of an earlier config."""
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True, max_leverage=5)
    kernel.intents.in_flight.abreast = abreast
    kernel.risk.limit(
        kernel.risk.strategy_limits | {"beta": replace(kernel.risk.strategy_limits["beta"], max_leverage=2)}
    )
    a.wants, b.wants = (
        [Open("BTC", "long", size=1, leverage=5, bracket=STOP)],
        [Open("BTC", "long", size=1, bracket=STOP)],
    )
    await minutes(kernel, venue, "100")
    assert venue.positions["BTC"].size == 1, "it was wanted before there was a position, and did not leave"
    assert kernel.account.account_state.positions["BTC"].leverage == 5, "as was asked for, before a comparison says it"
    b.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert (codes(kernel), venue.positions["BTC"].size) == ([("beta", "over_leverage")], 1)


async def test_a_position_of_a_strategy_that_is_gone_is_left_to_its_stop(venue: FaultyPort, tmp_path: Path) -> None:
    a = Told("alpha")
    kernel = await begun(venue, a, path=tmp_path / "j.db")
    a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    kill(kernel)
    b = Told("beta")
    venue.minute(BTC="100")
    kernel = await begun(venue, b, path=tmp_path / "j.db")
    b.wants = [Close("BTC"), Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "101")
    assert codes(kernel) == [("beta", "anothers_position")] * 2
    assert kernel.account.attribution.of("alpha").unrealized_usd == 1
    assert kernel.account.account_state.is_protected("BTC")


# -- daily losses


async def test_a_daily_loss_stops_entries_for_the_day_and_not_exits(venue: FaultyPort, tmp_path: Path) -> None:
    a, b = Told("alpha"), Told("beta", markets=("ETH",))
    kernel = await begun(venue, a, b, path=tmp_path / "j.db", daily_loss_usd=Decimal(20))
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100", "90.01")
    assert kernel.conditions.losses.refusal("alpha", kernel.now_ms()) is None
    await minutes(kernel, venue, "90", "99")
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("ETH", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert codes(kernel) == [("alpha", "daily_loss")]
    assert set(venue.positions) == {"BTC", "ETH"}, "the other one goes on"
    assert notices(kernel).count(("strategy.daily_loss", "alpha")) == 1
    kill(kernel)
    again = Told("alpha")
    venue.minute(BTC="100")
    kernel = await begun(venue, again, b, path=tmp_path / "j.db", daily_loss_usd=Decimal(20))
    again.wants = [Open("BTC", "long", size=1, bracket=STOP), Close("BTC")]
    await minutes(kernel, venue, "100")
    assert codes(kernel)[-1] == ("alpha", "daily_loss")
    assert "BTC" not in venue.positions, "its exit went"
    assert notices(kernel).count(("strategy.daily_loss", "alpha")) == 1
    noted = kernel.journal.state.note(HALTED)
    assert noted is not None
    kill(kernel)
    with closing(open_journal(tmp_path / "anew.db", address=ADDRESS)) as journal:
        journal.state.write_note(HALTED, noted)
    venue.minute(BTC="100")
    again = Told("alpha")
    kernel = await begun(venue, again, b, path=tmp_path / "anew.db", daily_loss_usd=Decimal(20))
    again.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert codes(kernel)[-1] == ("alpha", "daily_loss"), "also in a journal that knows of no loss"
    assert kernel.account.attribution.of("alpha").is_halted
    venue.clock.advance(DAY_MS)
    venue.minute(BTC="100")
    again.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await kernel.cycle()
    await minutes(kernel, venue, "100")
    assert "BTC" in venue.positions, "a new day"


async def test_a_kill_in_the_middle_of_a_halt_leaves_it_to_be_halted_and_told_by_the_next_run(
    venue: FaultyPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    def no_more(*_: Any) -> None:
        raise Killed

    a = Told("alpha")
    kernel = await begun(venue, a, path=tmp_path / "j.db", daily_loss_usd=Decimal(20))
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100")
    kernel.account.account_state.marks["BTC"] = 80.0
    monkeypatch.setattr(kernel.journal, "_write_notices", no_more)
    with pytest.raises(Killed):
        kernel.conditions.losses.watch(kernel.now_ms())
    assert kernel.journal.state.note(HALTED) is None
    kill(kernel)
    venue.minute(BTC="80")
    kernel = await begun(venue, Told("alpha"), path=tmp_path / "j.db", daily_loss_usd=Decimal(20))
    assert kernel.account.attribution.is_halted("alpha")
    assert notices(kernel).count(("strategy.daily_loss", "alpha")) == 1
    assert kernel.journal.state.note(HALTED) is not None


async def test_a_session_steps_through_the_bars_that_could_reach_a_daily_loss(venue: FaultyPort) -> None:
    a = Told("alpha")
    kernel = await begun(venue, a, daily_loss_usd=Decimal(20))
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100")
    calm = Calm(50.0, 150.0, START_MS + 10 * DAY_MS)
    now = venue.clock.now_ms()
    bars = [
        Bar("BTC", now + 60_000 * n, px, px, px, px, 1.0) for n, px in enumerate((100, 95, 90.5, 90.0, 95), start=1)
    ]
    bar, decision = BarRuns(kernel).decide(BarSeries("BTC", "1m"), iter(bars), calm)
    assert bar is not None
    assert (bar.close, decision) == (90.0, None)


# -- pauses and quarantine


async def test_a_pause_stops_entries_of_one_or_all_and_outlives_a_restart(venue: FaultyPort, tmp_path: Path) -> None:
    a, b = Told("alpha"), Told("beta", markets=("ETH",))
    kernel = await begun(venue, a, b, path=tmp_path / "j.db")
    a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert kernel.conditions.pauses.pause("alpha")
    assert not kernel.conditions.pauses.pause("alpha"), "it was so already"
    kill(kernel)
    a, b = Told("alpha"), Told("beta", markets=("ETH",))
    venue.minute(BTC="100")
    kernel = await begun(venue, a, b, path=tmp_path / "j.db")
    a.wants = [Open("BTC", "long", size=1, bracket=STOP), Close("BTC")]
    b.wants = [Open("ETH", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert codes(kernel) == [("alpha", "paused")]
    assert set(venue.positions) == {"ETH"}
    kernel.conditions.pauses.pause(None)
    b.wants = [Open("ETH", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert codes(kernel)[1:] == [("beta", "paused")]
    kernel.conditions.pauses.resume(None)
    a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert "BTC" in venue.positions


async def kept_back(
    venue: FaultyPort, op: str, told: Told, *others: Told, by: str | ApiError = FULL, **more: Any
) -> tuple[Kernel, Written]:
    """The first of them wants an entry, which is kept back at that request."""
    kernel = await begun(venue, told, *others, path_of_orders="direct" if op == "place" else "plan", **more)
    kernel.account.account_state.keys_proven = True
    venue.faults = [Fault(op, by, count=3)]
    told.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    (waits,) = kernel.intents.live.values()
    return kernel, waits


async def test_an_entry_that_was_written_waits_while_its_strategy_is_paused(venue: FaultyPort) -> None:
    kernel, _ = await kept_back(venue, "plan", Told("alpha"), by="drop")
    kernel.conditions.pauses.pause("alpha")
    later(kernel, 20_000)
    await kernel.cycle()
    assert venue.positions == {}


@pytest.mark.parametrize("op", ["place", "plan"])
async def test_an_entry_that_its_own_strategy_is_kept_from_keeps_the_others_of_its_market_out_for_a_minute(
    venue: FaultyPort, op: str
) -> None:
    """beta wants the other side, and would be kept out too by an entry that was never asked for."""
    a, b = Told("alpha"), Told("beta")
    kernel, waits = await kept_back(venue, op, a, b, nets=True)
    assert waits.state == ("sending" if op == "place" else "opened")
    kernel.conditions.pauses.pause("alpha")
    later(kernel, 20_000)
    b.wants = [Open("BTC", "short", size=1, bracket=STOP)]
    venue.close_bar("BTC", "100")
    await kernel.cycle()
    for waited_ms in (BLOCKED_MS - 1, 1):
        assert kernel.intents.live[waits.id].state == waits.state
        later(kernel, waited_ms)
        await kernel.cycle()
    ended = kernel.journal.intents.find(waits.id)
    assert ended is not None
    assert (ended.state, ended.code) == ("expired", "paused")
    assert ended.message == "alpha is paused; bot resume alpha lets it go on (it could not be sent for a minute)"
    b.wants = [Open("BTC", "short", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    assert venue.positions["BTC"].side == "short"


async def test_an_entry_that_all_are_kept_from_waits_as_long_as_it_may(venue: FaultyPort) -> None:
    kernel, _ = await kept_back(venue, "plan", Told("alpha"), by="drop")
    kernel.health.degrade("service", "it is away")
    for _ in range(3):
        later(kernel, BLOCKED_MS)
        await kernel.cycle()
    kernel.health.restore("service")
    later(kernel, BLOCKED_MS)
    await kernel.cycle()
    assert set(venue.positions) == {"BTC"}


@pytest.mark.parametrize(("op", "code"), [("place", "stale_bar"), ("confirm", "plan_stale")])
async def test_an_entry_that_the_rate_limit_kept_back_waits_while_its_strategy_is_paused(
    venue: FaultyPort, op: str, code: str
) -> None:
    kernel, waits = await kept_back(venue, op, Told("alpha"))
    assert waits.state == "sending"
    kernel.conditions.pauses.pause("alpha")
    later(kernel, 20_000)
    await kernel.cycle()
    assert kernel.intents.live[waits.id].state == "sending"
    asked = venue.calls.count(op)
    venue.clock.advance(kernel.budget.hold_ms(0) + 10 * MINUTE_MS)
    later(kernel, 20_000)
    await kernel.cycle()
    assert (venue.positions, venue.calls.count(op)) == ({}, asked), "not even asked"
    done = kernel.journal.intents.find(waits.id)
    assert done is not None
    assert (done.state, done.code) == ("expired", code)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("plan", "it was not sent in time"),
        ("place", "it was not sent in time"),
        ("confirm", "its plan ran out before it was sent"),
    ],
)
async def test_an_entry_that_ran_out_says_what_the_service_said_last(venue: FaultyPort, op: str, said: str) -> None:
    thin = ApiError.of("insufficient_depth", "the book has 3", retryable=True, order_submitted=False)
    kernel, waits = await kept_back(venue, op, Told("alpha"), by=thin)
    venue.clock.advance(kernel.budget.hold_ms(0) + 10 * MINUTE_MS)
    later(kernel, 20_000)
    await kernel.cycle()
    done = kernel.journal.intents.find(waits.id)
    assert done is not None
    assert (done.state, done.code) == ("expired", "insufficient_depth"), "time is not the cause"
    assert done.message == f"{said} (insufficient_depth: the book has 3)"
    assert waits.id not in kernel.intents.states


async def test_an_entry_delayed_by_the_rate_limit_is_sent_when_the_limit_allows(venue: FaultyPort) -> None:
    kernel, _ = await kept_back(venue, "place", Told("alpha"))
    assert venue.positions == {}
    later(kernel, 20_000)
    await kernel.cycle()
    assert venue.positions["BTC"].size == 1


async def test_an_entry_that_the_rate_limit_kept_back_is_given_up_with_the_run(venue: FaultyPort) -> None:
    kernel, waits = await kept_back(venue, "confirm", Told("alpha"))
    await wind_down(kernel, "leave")
    done = kernel.journal.intents.find(waits.id)
    assert done is not None
    assert (done.state, done.code, venue.positions) == ("expired", "run_ended", {})


async def test_metrics_say_of_each_strategy_what_status_says(venue: FaultyPort) -> None:
    pytest.importorskip("prometheus_client")
    a, b = Told("alpha"), Told("beta", ("ETH",))
    kernel = await begun(venue, a, b)
    a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100", "110")
    kernel.conditions.pauses.pause("beta")
    sources = MetricSources(Meter(), kernel, lambda: None, None, state=lambda: "RUNNING", is_recovered=lambda: True)
    samples = {
        (one.name, one.labels.get("strategy")): one.value
        for family in Figures(sources).collect()
        for one in family.samples
    }
    assert [samples["bracketbot_strategy_paused", name] for name in ("alpha", "beta")] == [0, 1]
    nets = [samples["bracketbot_strategy_net_usd", name] for name in ("alpha", "beta")]
    assert nets == [float(kernel.account.attribution.of(name).net_usd) for name in ("alpha", "beta")]
    assert nets[0] > 0
    assert samples["bracketbot_strategy_margin_lost_usd", "alpha"] == 0


async def test_a_halt_ends_in_the_metrics_too_when_its_limit_leaves_the_config(venue: FaultyPort) -> None:
    pytest.importorskip("prometheus_client")
    a = Told("alpha")
    kernel = await begun(venue, a, daily_loss_usd=Decimal(20))
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100", "89")

    def paused() -> list[float]:
        figures = Figures(
            MetricSources(Meter(), kernel, lambda: None, None, state=lambda: "RUNNING", is_recovered=lambda: True)
        )
        families = {family.name: family for family in figures.collect()}
        return [one.value for one in families["bracketbot_strategy_paused"].samples]

    assert paused() == [1]
    kernel.risk.limit({"alpha": replace(kernel.risk.strategy_limits["alpha"], daily_loss_usd=None)})
    assert (kernel.conditions.strategy_stopped("alpha", kernel.now_ms()), paused()) == (None, [0])


async def test_a_quarantine_names_the_entries_that_rest_and_may_still_fill(venue: FaultyPort) -> None:
    class Raises(Told):
        def act(self, view: View, bar: Bar) -> Iterable[Intent]:
            if view.orders(bar.market):
                raise RuntimeError("a mistake")
            return super().act(view, bar)

    a, b = Raises("alpha"), Told("beta", ("ETH",))
    kernel = await begun(venue, a, b)
    a.wants = [Open("BTC", "long", size=1, limit_px=90, bracket=STOP)]
    b.wants = [Open("ETH", "long", size=1, limit_px=90, bracket=STOP)]
    venue.minute(BTC="100", ETH="100")
    await kernel.cycle()
    (mine,), (theirs,) = kernel.account.account_state.entries("BTC"), kernel.account.account_state.entries("ETH")
    await minutes(kernel, venue, "100")
    (said,) = [row["payload"] for row in kernel.journal.db["outbox"].rows if row["kind"] == "strategy.quarantined"]
    text = render("strategy.quarantined", said, bot="bot").text
    assert text.endswith(f"; its positions keep their stops; entries that rest may still fill: {mine.oid} (bot orders)")
    assert (kernel.account.account_state.resting_of("beta"), kernel.account.account_state.resting_of(None)) == (
        (theirs.oid,),
        (mine.oid, theirs.oid),
    )


async def test_a_quarantine_outlives_a_restart_until_the_code_changes(venue: FaultyPort, tmp_path: Path) -> None:
    class Raises(Told):
        def act(self, view: View, bar: Bar) -> Iterable[Intent]:
            raise RuntimeError("a mistake")

    kernel = await begun(venue, Raises("alpha"), path=tmp_path / "j.db")
    assert kernel.strategy_host.instances[0].quarantined is not None
    assert notices(kernel).count(("strategy.quarantined", "alpha")) == 1
    kill(kernel)
    again = Told("alpha")
    venue.minute(BTC="100")
    kernel = await begun(venue, again, path=tmp_path / "j.db")
    assert str(kernel.strategy_host.instances[0].quarantined).startswith(
        "alpha: RuntimeError: a mistake (test_many_strategies.py:"
    )
    assert again.seen == []
    kill(kernel)
    kernel = make_kernel(venue, strategies=[again], path=tmp_path / "j.db")
    other = kernel.strategy_host.make_instance(loop_placed(kernel, again)._replace(version="2"))
    assert other.quarantined is None


def loop_placed(kernel: Kernel, strategy: Strategy) -> Any:
    return StrategySpec(strategy, "1m", kernel.risk.strategy_limits[strategy.name])


# -- timers


class Clocked(Told):
    timers: ClassVar = {"often": 30, "hourly": "0 * * * *"}

    def __init__(self) -> None:
        super().__init__("alpha")
        self.rung: list[Timer] = []
        self.wanted: list[Intent] = []

    def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
        self.rung.append(timer)
        view.state["rung"] = view.state.get("rung", 0) + 1
        wanted, self.wanted = self.wanted, []
        return wanted


async def test_a_timer_fires_once_an_instant_with_a_key_that_its_instant_makes(venue: FaultyPort) -> None:
    one = Clocked()
    kernel = await begun(venue, one)
    assert one.rung == [], "its first instant lies ahead"
    venue.clock.advance(29_999)
    await kernel.cycle()
    assert one.rung == []
    venue.clock.advance(1)
    one.wanted = [Open("BTC", "long", size=1, bracket=STOP)]
    await kernel.cycle()
    await kernel.cycle()
    at_ms = venue.clock.now_ms()
    assert one.rung == [Timer("often", at_ms)]
    (row,) = kernel.journal.db["intents"].rows
    assert (row["cause"], row["state"]) == (f"timer:often:{at_ms}", "accepted")
    venue.clock.set((at_ms // 3_600_000 + 1) * 3_600_000)
    await kernel.cycle()
    assert {timer.name for timer in one.rung[1:]} == {"often", "hourly"}


async def test_of_the_instants_missed_while_down_only_the_newest_fires(venue: FaultyPort, tmp_path: Path) -> None:
    kernel = await begun(venue, Clocked(), path=tmp_path / "j.db")
    venue.clock.advance(30_000)
    await kernel.cycle()
    kill(kernel)
    venue.clock.advance(5 * 3_600_000 + 1_234)
    one = Clocked()
    kernel = await begun(venue, one, path=tmp_path / "j.db")
    hour = venue.clock.now_ms() // 3_600_000 * 3_600_000
    assert [timer for timer in one.rung if timer.name == "hourly"] == [Timer("hourly", hour)]
    assert [timer.at_ms for timer in one.rung if timer.name == "often"] == [venue.clock.now_ms() // 30_000 * 30_000]
    assert kernel.journal.state.of_strategy("alpha")["rung"] == 3
    kill(kernel)
    one = Clocked()
    await begun(venue, one, path=tmp_path / "j.db")
    assert one.rung == [], "what fired does not fire again"


@pytest.mark.parametrize("is_up", [True, False])
async def test_timers_go_on_from_where_the_service_went_back_to(venue: FaultyPort, tmp_path: Path, is_up: bool) -> None:
    """An instant that comes again fires again, and what is wanted on it is ordered: the service has forgotten the
    order of before.
    """
    one = Clocked()
    kernel = await begun(venue, one, path=tmp_path / "j.db")
    venue.clock.advance(600_000)
    one.wanted = [Open("BTC", "long", size=1, bracket=STOP)]
    await kernel.cycle()
    at_ms = venue.clock.now_ms()
    assert one.rung[-1] == Timer("often", at_ms)
    assert len(venue.fills) == 1
    if not is_up:
        kill(kernel)
    venue.clock.go_back(300_000)
    if not is_up:
        one = Clocked()
        kernel = await begun(venue, one, path=tmp_path / "j.db")
    await kernel.cycle()
    one.rung.clear()
    venue.clock.set(at_ms)
    one.wanted = [Open("BTC", "long", size=1, bracket=STOP)]
    await kernel.cycle()
    assert one.rung == [Timer("often", at_ms)]
    rows = list(kernel.journal.db["intents"].rows)
    assert [(row["cause"], row["state"]) for row in rows] == [
        (f"timer:often:{at_ms}", "accepted"),
        (f"timer.1:often:{at_ms}", "accepted"),
    ]
    # as for a run whose journal was lost after the order
    kernel.state.alone_since_ms = at_ms + 1
    assert rows[1]["cause"].startswith(SCHEDULED), "the clock is to be right for it"
    kill(kernel)
    one = Clocked()
    kernel = await begun(venue, one, path=tmp_path / "j.db")
    assert one.rung == [], "what fired does not fire again"
    assert claimed(kernel.run, kernel.account, rows[1]["id"], "BTC", at_ms) == "alpha"
    venue.clock.advance(30_000)
    one.wanted = [Close("BTC")]
    await kernel.cycle()
    assert [row["cause"] for row in kernel.journal.db["intents"].rows][2:] == [f"timer.1:often:{at_ms + 30_000}"]


async def test_a_restart_goes_on_from_where_the_service_went_back_to(venue: FaultyPort, tmp_path: Path) -> None:
    """Also in the last minute before the instant at which the service was before."""
    kernel = await begun(venue, Clocked(), path=tmp_path / "j.db")
    venue.clock.advance(600_000)
    await kernel.cycle()
    was_ms = venue.clock.now_ms()
    venue.clock.go_back(300_000)
    await kernel.cycle()
    venue.clock.set(was_ms - 60_000)
    await kernel.cycle()
    kill(kernel)
    venue.clock.advance(30_000)
    one = Clocked()
    kernel = await begun(venue, one, path=tmp_path / "j.db")
    venue.clock.advance(30_000)
    await kernel.cycle()
    assert one.rung == [Timer("often", was_ms - 30_000), Timer("often", was_ms)]


async def test_bars_are_heard_again_from_where_they_had_come_to_when_the_service_went_back(venue: FaultyPort) -> None:
    """A bar that comes again is decided once: its orders would have the keys of those that were sent."""
    one = Told("alpha")
    kernel = await begun(venue, one)
    for _ in range(3):
        await minutes(kernel, venue, "100")
    heard = len(one.holds)
    venue.clock.go_back(120_000)
    del venue.candle_rows["BTC"][-2:]
    for _ in range(2):
        await minutes(kernel, venue, "101")
        assert len(one.holds) == heard
    await minutes(kernel, venue, "102")
    assert len(one.holds) == heard + 1


async def test_a_clock_that_is_set_back_a_little_fires_no_timer_twice(venue: FaultyPort) -> None:
    one = Clocked()
    kernel = await begun(venue, one)
    venue.clock.advance(30_000)
    await kernel.cycle()
    venue.clock.go_back(60_000)
    await kernel.cycle()
    venue.clock.advance(60_000)
    await kernel.cycle()
    assert len(one.rung) == 1
    assert kernel.timers.next_ms == venue.clock.now_ms() + 30_000


async def test_a_machine_whose_clock_is_set_back_fires_no_timer_twice(
    venue: FaultyPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real service's time does not go back: where it tells none, the clock that did is this machine's, and what
    was ordered stands.
    """
    monkeypatch.setattr(venue.clock, "is_sandbox", False)
    one = Clocked()
    kernel = await begun(venue, one)
    venue.clock.advance(600_000)
    await kernel.cycle()
    rung = list(one.rung)
    assert rung
    venue.clock.go_back(300_000)
    for _ in range(10):
        await kernel.cycle()
        venue.clock.advance(30_000)
    await kernel.cycle()
    assert one.rung == rung
    venue.clock.advance(30_000)
    await kernel.cycle()
    assert len(one.rung) == len(rung) + 1


async def test_a_timer_that_raises_is_quarantined_and_stays_fired(venue: FaultyPort) -> None:
    class Raises(Clocked):
        def on_timer(self, view: View, timer: Timer) -> Iterable[Intent]:
            raise RuntimeError("a mistake")

    kernel = await begun(venue, Raises())
    venue.clock.advance(60_000)
    await kernel.cycle()
    await kernel.cycle()
    assert str(kernel.strategy_host.instances[0].quarantined).startswith(
        "alpha: RuntimeError: a mistake (test_many_strategies.py:"
    )


async def test_a_session_steps_at_the_next_timer(venue: FaultyPort) -> None:
    kernel = await begun(venue, Clocked())
    assert kernel.timers.next_ms is not None
    now = venue.clock.now_ms()
    bars = [Bar("BTC", now + 10_000 * n, 100, 100, 100, 100, 1.0) for n in range(1, 9)]
    bar, _ = BarRuns(kernel).decide(BarSeries("BTC", "1m"), iter(bars), Calm(1.0, 200.0, now + DAY_MS))
    assert bar is not None
    assert bar.at_ms == kernel.timers.next_ms


def test_instants_are_those_of_the_clock() -> None:
    assert [next_after(30, 0), next_after(30, 29_999), next_after(30, 30_000)] == [30_000, 30_000, 60_000]
    assert (newest_until(30, 89_999), newest_until("*/5 * * * *", 600_000), newest_until("*/5 * * * *", 599_999)) == (
        60_000,
        600_000,
        300_000,
    )
    assert list(instants("*/5 * * * *", 0, 900_000)) == [300_000, 600_000, 900_000]


# -- the direct path


async def test_the_direct_path_is_taken_only_when_the_service_is_known_to_keep_keys(venue: FaultyPort) -> None:
    a = Told("alpha")
    kernel = await begun(venue, a, path_of_orders="direct")
    for _ in range(2):
        a.wants = [Open("BTC", "long", size=1, bracket=STOP)]
        await minutes(kernel, venue, "100")
    assert [call for call in venue.calls if call in ("plan", "confirm", "place")] == ["plan", "confirm", "place"]
    assert [row["path"] for row in kernel.journal.db["intents"].rows] == ["plan", "direct"]


async def test_who_looks_at_plans_is_shown_each_of_them_on_the_direct_path_too(venue: FaultyPort) -> None:
    class Choosy(Told):
        def confirm(self, plan: Any) -> bool:
            return plan.size < 2

    a = Choosy("alpha")
    kernel = await begun(venue, a, path_of_orders="direct")
    for size in (1, 1, 3):
        a.wants = [Open("BTC", "long", size=size, bracket=STOP)]
        await minutes(kernel, venue, "100")
    assert [call for call in venue.calls if call in ("plan", "confirm", "place")] == ["plan", "confirm"] * 2 + ["plan"]
    assert [row["code"] for row in kernel.journal.db["intents"].rows] == [None, None, "vetoed"]


async def test_another_hands_close_is_booked_as_such(venue: FaultyPort) -> None:
    a = Told("alpha")
    kernel = await begun(venue, a)
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100")
    await venue.close("BTC", CloseRequest(size="1"), key="FOREIGN")
    await minutes(kernel, venue, "110")
    book = kernel.account.attribution.of("alpha")
    assert (book.shares[0].size, book.unrealized_usd) == (1, 10)
    assert kernel.account.attribution.of(FOREIGN).fills == 0


async def test_a_notice_of_a_fill_names_those_whose_fill_it_was(venue: FaultyPort) -> None:
    """Another hand in a strategy's market is not that strategy; what closes all of a shared position is everybody's."""
    a, b = Told("alpha"), Told("beta")
    kernel = await begun(venue, a, b, nets=True)
    kernel.events.notices_of = partial(reporting.notices_of, kernel)
    a.wants, b.wants = [Open("BTC", "long", size=1, bracket=STOP)], [Open("BTC", "long", size=1, bracket=STOP)]
    await minutes(kernel, venue, "100")
    await venue.place(OrderRequest(market="BTC", side="long", usd_amount=Decimal(100)), key="FOREIGN")
    await minutes(kernel, venue, "100")
    await venue.close("BTC", CloseRequest(), key="FOREIGN TOO")
    await minutes(kernel, venue, "100")
    assert [strategy for kind, strategy in notices(kernel) if kind.startswith("fill.")] == [
        "alpha",
        "beta",
        "someone else",
        "someone else + alpha + beta",
    ]


async def test_an_entry_in_answer_to_the_very_fill_that_lost_too_much_is_refused(venue: FaultyPort) -> None:
    class Again(Told):
        def on_fill(self, view: View, fill: Fill) -> Iterable[Intent]:
            if fill.action == "close":
                yield Open("BTC", "long", size=1, bracket=STOP)

    a = Again("alpha")
    kernel = await begun(venue, a, daily_loss_usd=Decimal(20))
    a.wants = [Open("BTC", "long", size=2, bracket=Bracket(stop_pct=10))]
    await minutes(kernel, venue, "100", "89")
    assert venue.positions == {}
    assert codes(kernel) == [("alpha", "daily_loss")]
    assert notices(kernel).count(("strategy.daily_loss", "alpha")) == 1


@pytest.mark.parametrize("refusals", [0, 1], ids=["", "candles refused at first"])
async def test_a_day_that_began_while_it_was_down_counts_from_its_midnight(
    venue: FaultyPort, tmp_path: Path, refusals: int
) -> None:
    a = Told("alpha")
    kernel = await begun(venue, a, path=tmp_path / "j.db", daily_loss_usd=Decimal(15))
    a.wants = [Open("BTC", "long", size=2, bracket=STOP)]
    await minutes(kernel, venue, "100", "104")
    kill(kernel)
    venue.clock.set(START_MS + DAY_MS - 60_000)
    venue.minute(BTC="110")
    for _ in range(3):
        venue.minute(BTC="101")
    venue.faults = [Fault("candles", refused("not_found", "a gateway's page"), refusals)] * bool(refusals)
    kernel = await begun(venue, Told("alpha"), path=tmp_path / "j.db", daily_loss_usd=Decimal(15))
    await kernel.cycle()
    assert kernel.account.attribution.of("alpha").day_usd == -18, "from 110 at 00:00 to 101 now, for a size of 2"
    assert kernel.account.attribution.is_halted("alpha")


async def before_midnight(venue: FaultyPort, stop: Bracket) -> Kernel:
    """A loop that holds 2 BTC, bought at 100, when the bar of 23:59 has closed."""
    a = Told("alpha")
    kernel = await begun(venue, a, daily_loss_usd=Decimal(30))
    a.wants = [Open("BTC", "long", size=2, bracket=stop)]
    await minutes(kernel, venue, "100")
    venue.clock.set(START_MS + DAY_MS - 2 * MINUTE_MS)
    await minutes(kernel, venue, "100")
    assert (venue.clock.now_ms(), venue.positions["BTC"].size) == (START_MS + DAY_MS - MINUTE_MS, 2)
    return kernel


@pytest.mark.parametrize("close", ["80", "120"])
async def test_an_event_of_midnight_that_comes_before_its_bar_begins_the_day_at_the_price_of_that_bar(
    venue: FaultyPort, close: str
) -> None:
    kernel = await before_midnight(venue, STOP)
    venue.minute(BTC=close)
    paid = next(event for event in reversed(venue.event_rows) if event.type == "funding")
    assert paid.ts == START_MS + DAY_MS, "funding is paid before the bar's price"
    await kernel.cycle()
    await minutes(kernel, venue, close)
    assert kernel.account.attribution.day_ms == START_MS + DAY_MS
    assert kernel.account.attribution.of("alpha").day_usd == 0, "what the last bar of a day brought is that day's"
    assert not kernel.account.attribution.is_halted("alpha")


async def test_what_a_service_that_was_away_over_midnight_tells_of_the_day_before_is_that_days(
    venue: FaultyPort,
) -> None:
    kernel = await before_midnight(venue, Bracket(stop_pct=20))
    venue.spike("BTC", 80)
    venue.faults = [Fault("events", refused("internal_error"), 10**9)]
    await minutes(kernel, venue, "80", "80")
    assert kernel.state.behind
    assert kernel.conditions.strategy_stopped("alpha", kernel.now_ms()) is None, (
        "for a loss of a day that is over nobody is stopped"
    )
    venue.faults = []
    await minutes(kernel, venue, "80")
    assert (kernel.state.behind, kernel.account.attribution.day_ms) == (False, START_MS + DAY_MS)
    book = kernel.account.attribution.of("alpha")
    assert (book.realized_usd, book.day_usd, book.is_halted) == (-40, 0, False)
