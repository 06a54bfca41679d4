"""Another hand on the account, and decisions that go stale, over the real service with a wire that works: what the
very next pass does.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.errors import AccessLost
from bot.runtime.control_plane.status import state_of
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import DEAD_MAN
from bot.strategy import Bar, Bracket, Close, Intent, Open, TrailingStop, View
from tests.fakes import Crash
from tests.integration.builders import (
    CONTROL,
    DEAD_MAN_600,
    MINUTE_MS,
    START_PX,
    BotAndOwner,
    Box,
    bot_and_owner,
    make_bot,
    nothing,
    once_long,
    wire_to,
)
from tests.runtime.builders import later

# requests: until the test lets it arrive
NEVER = 1_000_000


def once_blindly(_view: View, bar: Bar) -> Iterable[Intent]:
    """As long as it has not seen what it did: a bar is decided by the bar alone."""
    if bar.market == "BTC":
        yield Open("BTC", "long", usd=500, bracket=Bracket(stop_pct=2))


async def test_a_stop_that_is_cancelled_by_hand_is_replaced_in_the_next_pass(box: Box) -> None:
    one = await bot_and_owner(box)
    assert await one.hand.cancel_stops("BTC") == 1
    assert await one.bot.cycle()
    held = await one.held()
    assert held is not None
    (trail,) = await one.guardians("trailing_stop")
    assert trail["coin"] == "BTC"
    assert float(trail["trailPct"]) == pytest.approx(2, abs=0.01), "the distance of the stop that was lost"


def with_trail(**trail: Any) -> Any:
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC" and view.position("BTC") is None:
            yield Open("BTC", "long", usd=500, bracket=Bracket(stop_pct=2), guardians=(TrailingStop(**trail),))

    return script


def alarms(one: BotAndOwner) -> list[str]:
    rows = one.bot.kernel.journal.db["outbox"].rows
    return [row["kind"] for row in rows if row["kind"].startswith("protection.")]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_trailing_stop_that_sleeps_is_no_stop(box: Box, tmp_path: Path, is_restarted: bool) -> None:
    """It wakes at a profit: when the stop beside it is taken away, nothing holds the position on its way down."""
    path, script = tmp_path / "journal.db", with_trail(trail_pct=2, activate_at_r=1)
    one = await bot_and_owner(box, script, path=path)
    assert [trail["active"] for trail in await one.guardians("trailing_stop")] == [False]
    one.wants(nothing)
    if is_restarted:
        await one.bot.kill()
    assert await one.hand.cancel_stops("BTC") == 1
    health = (await one.hand.ask("GET", "/v1/account"))["health"]
    assert health["unprotected"] == ["BTC"], "so says the service, too"
    if is_restarted:
        settings = KernelSettings(guardians=(DEAD_MAN_600,))
        one.bot = make_bot(one.hand, one.wire, path, script=nothing, settings=settings)
    await one.bot.cycle()
    trails = await one.guardians("trailing_stop")
    assert sorted(trail["active"] for trail in trails) == [False, True]
    assert alarms(one) == ["protection.lost", "protection.restored"]
    await one.minute(0.97)
    assert await one.held() is None


async def test_a_trailing_stop_that_trails_is_a_stop_when_the_other_one_goes(box: Box) -> None:
    one = await bot_and_owner(box, with_trail(trail_pct=2))
    assert await one.hand.cancel_stops("BTC") == 1
    await one.bot.cycle()
    assert len(await one.guardians("trailing_stop")) == 1
    assert alarms(one) == []


async def test_a_trailing_stop_that_has_woken_up_is_a_stop(box: Box) -> None:
    one = await bot_and_owner(box, with_trail(trail_pct=2, activate_at_r=1))
    one.wants(nothing)
    await one.minute(1.03)
    assert await one.hand.cancel_stops("BTC") == 1
    await one.bot.cycle()
    assert len(await one.guardians("trailing_stop")) == 1
    assert alarms(one) == []


async def test_a_cover_that_is_disarmed_by_hand_too_is_replaced_again(box: Box) -> None:
    one = await bot_and_owner(box)
    await one.hand.cancel_stops("BTC")
    for _ in range(3):
        await one.bot.cycle()
        assert await one.hand.disarm("trailing_stop") == 1
    await one.bot.cycle()
    assert len(await one.guardians("trailing_stop")) == 1


async def test_a_stop_that_goes_while_a_part_is_being_closed_is_replaced_all_the_same(box: Box) -> None:
    """A close of a part whose outcome stays unknown must not keep the rest without a stop."""
    closing = False

    def fate(request: httpx.Request) -> str | None:
        return "unsent" if closing and request.url.path.endswith("/close") else None

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if closing and bar.market == "BTC":
            return [Close("BTC", fraction=0.5)]
        return once_long(view, bar)

    one = await bot_and_owner(box, script, fate=fate)
    closing = True
    await one.minute()
    assert one.rows()[-1]["state"] == "sending"
    await one.hand.cancel_stops("BTC")
    await one.bot.cycle()
    assert len(await one.guardians("trailing_stop")) == 1


async def test_a_dead_man_that_is_disarmed_by_hand_is_armed_before_anything_is_opened(box: Box) -> None:
    one = await bot_and_owner(box, nothing)
    one.wants(once_long)
    assert await one.hand.disarm("dead_man_switch") == 1
    await one.minute()
    events = await one.hand.events()
    told = [(event["type"], event["subtype"]) for event in events]
    assert (
        told.index(("guardian", "disarmed"))
        < len(told) - 1 - told[::-1].index(("guardian", "armed"))
        < told.index(("fill", "entry"))
    )
    assert await one.held() is not None, "the same pass arms it and goes on"


async def test_a_dead_man_that_has_fired_is_armed_anew(box: Box) -> None:
    """Flattened by the switch, the loop looks, arms and trades on."""
    one = await bot_and_owner(box)
    await box.advance(700_000)
    assert await one.held() is None
    await one.minute()
    assert len(await one.guardians("dead_man_switch")) == 1
    await one.minute()
    assert await one.held() is not None


@pytest.mark.parametrize("foreign", ["ignore", "adopt", "flatten"])
async def test_a_position_of_another_hand_is_dealt_with_in_the_next_pass_as_the_config_says(
    box: Box, foreign: str
) -> None:
    one = await bot_and_owner(box, nothing, foreign=foreign)
    await one.hand.order("BTC", "short", 300, stop_pct=3)
    await one.bot.cycle()
    await one.bot.cycle()
    held = await one.held()
    if foreign == "flatten":
        assert held is None
    else:
        assert held is not None
        assert one.bot.kernel.account.account_state.positions["BTC"].owner == ("busy" if foreign == "adopt" else None)


@pytest.mark.parametrize("pct", [None, 4])
async def test_a_position_of_another_hand_without_a_stop_is_adopted_with_one_or_not_at_all(
    box: Box, pct: int | None
) -> None:
    one = await bot_and_owner(box, nothing, foreign="adopt", adopted_stop_pct=pct)
    await one.hand.order("BTC", "short", 300)
    await one.bot.cycle()
    await one.bot.cycle()
    assert await one.held() is not None
    assert one.bot.kernel.account.account_state.positions["BTC"].owner == (None if pct is None else "busy")
    assert [stop["trailPct"] for stop in await one.guardians("trailing_stop")] == ([] if pct is None else [4])


@pytest.mark.parametrize(
    ("trail_pct", "pct", "is_adopted"),
    [(None, 20, False), (None, 1, True), (20, None, False), (20, 20, False), (20, 1, True), (1, None, True)],
)
async def test_a_stop_that_the_price_reaches_only_after_the_liquidation_is_none_to_adopt_with(
    box: Box, trail_pct: int | None, pct: int | None, is_adopted: bool
) -> None:
    """The liquidation price of this position is about 15 % away. The service takes a trailing stop beyond it."""
    one = await bot_and_owner(box, nothing, foreign="adopt", adopted_stop_pct=pct)
    order = {"market": "BTC", "side": "short", "usdAmount": 60_000, "leverage": 20}
    assert (await one.hand.try_to("POST", "/v1/orders", order)).status_code == 200
    if trail_pct is not None:
        trail = {"type": "trailing_stop", "market": "BTC", "trailPct": trail_pct}
        assert (await one.hand.try_to("POST", "/v1/guardians", trail)).status_code == 200
    await one.bot.cycle()
    await one.bot.cycle()
    assert await one.held() is not None
    assert one.bot.kernel.account.account_state.positions["BTC"].owner == ("busy" if is_adopted else None)
    stops = [stop["trailPct"] for stop in await one.guardians("trailing_stop")]
    assert stops == [one for one in (trail_pct, pct if is_adopted else None) if one is not None]


async def test_a_strategy_neither_closes_nor_adds_to_what_another_hand_holds(box: Box) -> None:
    def script(_view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC":
            yield Close("BTC")
            yield Open("BTC", "long", usd=500, bracket=Bracket(stop_pct=2))

    one = await bot_and_owner(box, nothing)
    await one.hand.order("BTC", "short", 300)
    one.wants(script)
    await one.minute()
    held = await one.held()
    assert held is not None
    assert held["side"] == "short"
    assert one.refusals() == ["foreign_position", "foreign_position"]
    assert await one.guardians("trailing_stop") == [], "and what is not ours is not ours to protect"


async def test_an_entry_of_another_hand_is_not_cancelled_with_ours(box: Box) -> None:
    from bot.strategy import Cancel

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC":
            if len(view.orders("BTC")) > 1:
                yield Cancel(market="BTC")
            else:
                yield Open("BTC", "long", usd=100, limit_px=bar.close * 0.9, bracket=Bracket(stop_pct=2))

    one = await bot_and_owner(box, nothing)
    await one.hand.order("BTC", "long", 100, limit_px=one.px["BTC"] * 0.8)
    one.wants(script)
    await one.minute()
    assert len((await one.hand.ask("GET", "/v1/orders"))["orders"]) == 2
    await one.minute()
    (left,) = (await one.hand.ask("GET", "/v1/orders"))["orders"]
    assert left["idempotencyKey"].startswith("hand-")


# -- the account begins anew


async def test_a_reset_arms_the_guardians_before_anything_is_opened(box: Box) -> None:
    one = await bot_and_owner(box)
    await one.hand.ask("POST", "/v1/sandbox/accounts/reset", {})
    await one.minute()
    told = [(event["type"], event["subtype"]) for event in await one.hand.events()]
    assert told[0] == ("account", "reset")
    assert told.index(("guardian", "armed")) < told.index(("fill", "entry"))
    assert one.bot.kernel.account.account_state.epoch == 1


@pytest.mark.parametrize("lost", ["/v1/account", "/v1/guardians"])
async def test_a_reset_whose_resync_is_cut_off_is_not_forgotten(box: Box, lost: str) -> None:
    """The reset is seen, and the very next question fails. Nothing may be opened before it was asked again."""
    cut = False

    def fate(request: httpx.Request) -> str | None:
        return "refuse" if cut and request.url.path == lost else None

    one = await bot_and_owner(box, fate=fate)
    await one.hand.ask("POST", "/v1/sandbox/accounts/reset", {})
    cut = True
    await one.minute()
    assert await one.held() is None, "opened on a cursor or a dead-man that was lost"
    cut = False
    await one.minute()
    await one.minute()
    told = [(event["type"], event["subtype"]) for event in await one.hand.events()]
    assert told.index(("guardian", "armed")) < told.index(("fill", "entry"))
    assert one.bot.kernel.account.account_state.epoch == 1
    assert {row["epoch"] for row in one.rows() if row["state"] == "accepted"} == {0, 1}


async def test_an_intent_of_before_a_reset_never_becomes_an_order(box: Box) -> None:
    lost = False

    def fate(request: httpx.Request) -> str | None:
        return "unsent" if lost and request.url.path == "/v1/orders/confirm" else None

    one = await bot_and_owner(box, nothing, fate=fate)
    lost = True
    one.wants(once_long)
    await one.minute()
    assert [row["state"] for row in one.rows()] == ["sending"]
    await one.hand.ask("POST", "/v1/sandbox/accounts/reset", {})
    lost = False
    one.wants(nothing)
    await one.bot.cycle()
    assert [row["state"] for row in one.rows()] == ["void"]
    assert await one.hand.trades() == []


# -- plans that do not hold


async def test_a_plan_that_runs_out_before_its_confirm_ends_the_intent_and_the_next_bar_decides_anew(box: Box) -> None:
    late = True

    async def fate_now(request: httpx.Request) -> None:
        nonlocal late
        if late and request.url.path == "/v1/orders/confirm":
            late = False
            await box.advance(61_000)

    one = await bot_and_owner_at(box, fate_now)
    assert [row["state"] for row in one.rows()] == ["expired"]
    assert await one.held() is None
    await one.minute()
    assert [row["state"] for row in one.rows()] == ["expired", "accepted"]
    assert await one.held() is not None


async def test_a_price_that_drifts_away_from_the_plan_is_planned_again_under_a_key_of_its_own(box: Box) -> None:
    drifts = True

    async def fate_now(request: httpx.Request) -> None:
        nonlocal drifts
        if drifts and request.url.path == "/v1/orders/confirm":
            drifts = False
            await box.price("BTC", 103_000)

    one = await bot_and_owner_at(box, fate_now)
    assert [(row["leg"], row["state"], row["code"]) for row in one.rows()] == [
        ("order", "rejected", "plan_stale"),
        ("order-2", "accepted", None),
    ]
    assert len({row["id"] for row in one.rows()}) == 2
    assert len(await one.hand.trades()) == 1


async def test_a_price_that_drifts_away_from_every_plan_ends_with_the_third(box: Box) -> None:
    px = START_PX["BTC"]

    async def fate_now(request: httpx.Request) -> None:
        nonlocal px
        if request.url.path == "/v1/orders/confirm" and px < 1.1 * START_PX["BTC"]:
            px *= 1.02
            await box.price("BTC", px)

    one = await bot_and_owner_at(box, fate_now)
    assert [(row["leg"], row["code"]) for row in one.rows()] == [
        ("order", "plan_stale"),
        ("order-2", "plan_stale"),
        ("order-3", "plan_stale"),
    ]
    assert await one.held() is None
    assert one.bot.kernel.intents.live == {}


async def test_a_stale_plan_after_a_lost_answer_is_not_planned_again_before_the_first_is_proven_unused(
    box: Box,
) -> None:
    """The confirm is lost on its way back: the order is there. What comes after must never become a second one."""
    lost = 0

    def fate(request: httpx.Request) -> str | None:
        nonlocal lost
        if request.url.path == "/v1/orders/confirm" and lost < 4:
            lost += 1
            return "lose"
        return None

    one = await bot_and_owner(box, once_blindly, fate=fate)
    one.wants(nothing)
    for _ in range(4):
        later(one.bot.kernel, 20_000)
        await one.minute(1.03)
    assert [row["leg"] for row in one.rows()] == ["order"]
    assert len(await one.hand.trades()) == 1


async def bot_and_owner_at(box: Box, moment: Any) -> BotAndOwner:
    """A bot whose account changes just before a request arrives."""
    hand = await box.hand()
    wire = wire_to(box)
    deliver = wire.deliver

    async def delayed(request: httpx.Request) -> httpx.Response:
        await moment(request)
        return await deliver(request)

    wire.deliver = delayed  # type: ignore[method-assign]
    made = BotAndOwner(
        box,
        hand,
        make_bot(hand, wire, None, script=once_long, settings=KernelSettings(guardians=(DEAD_MAN_600,))),
        wire,
    )
    await made.minute()
    return made


# -- the wire


async def test_an_answer_slower_than_the_deadline_is_in_doubt_and_ends_in_one_order(box: Box) -> None:
    import asyncio

    from bot.client.http import Timeouts

    slow = True

    async def fate_now(request: httpx.Request) -> None:
        return None

    one = await bot_and_owner_at(box, fate_now)
    deliver = one.wire.deliver

    async def slowly(request: httpx.Request) -> httpx.Response:
        nonlocal slow
        answer = await deliver(request)
        if slow and request.url.path.endswith("/close"):
            slow = False
            await asyncio.sleep(1)
        return answer

    one.wire.deliver = slowly
    one.bot.client._exchange.timeouts = Timeouts(total=0.2)
    one.wants(lambda view, bar: [Close("BTC")] if bar.market == "BTC" else [])
    await one.minute()
    closes = [row for row in one.rows() if row["action"] == "close"]
    assert [(row["state"], row["attempts"]) for row in closes] == [("accepted", 2)]
    assert len(await one.hand.trades()) == 2


async def test_a_refusal_after_doubt_settles_nothing_while_the_first_copy_is_on_its_way(box: Box) -> None:
    fates = iter(["late", "denied", "refuse"])

    def fate(request: httpx.Request) -> str | None:
        return next(fates, None) if request.url.path == "/v1/orders/confirm" else None

    hand = await box.hand()
    wire = wire_to(box, fate)
    wire.late_by = NEVER
    one = BotAndOwner(box, hand, make_bot(hand, wire, None, script=once_long), wire)
    await one.minute()
    assert [row["state"] for row in one.rows()] == ["sending"]
    await wire.arrivals(everything=True)
    later(one.bot.kernel, 60_000)
    await one.bot.cycle()
    assert [row["state"] for row in one.rows()] == ["accepted"]
    assert len(await hand.trades()) == 1


async def test_a_copy_that_arrives_after_its_fence_has_no_effect(box: Box) -> None:
    """A close that was given up: what it would close by then may be another position."""
    fates = iter(["late", "refuse", "refuse"])

    def fate(request: httpx.Request) -> str | None:
        return next(fates, "refuse") if request.url.path.endswith("/close") else None

    one = await bot_and_owner(box, once_long)
    one.wants(once_closed())
    one.wire.fate, one.wire.late_by = fate, NEVER
    await one.minute()
    for _ in range(3):
        later(one.bot.kernel, 60_000)
        await one.minute()
    assert one.rows()[-1]["state"] == "expired"
    await one.wire.arrivals(everything=True)
    await one.bot.cycle()
    assert await one.held() is not None
    assert len(await one.hand.trades()) == 1


def once_closed() -> Any:
    """Close BTC on the first bar, then nothing."""
    bars: list[int] = []

    def script(_view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market == "BTC":
            bars.append(bar.at_ms)
            if len(bars) == 1:
                yield Close("BTC")

    return script


async def test_a_page_of_a_proxy_in_place_of_an_answer_ends_no_run(box: Box) -> None:
    """403 or 404 with HTML, or 200 with somebody else's JSON: that was not the service."""
    pages = [
        httpx.Response(403, content=b"<html>denied</html>"),
        httpx.Response(404, content=b"not here"),
        httpx.Response(200, content=b'{"login": "please"}'),
        httpx.Response(401, content=b"<html>who are you</html>"),
    ]
    one = await bot_and_owner(box)
    inner = one.wire.handle_async_request
    for page in pages:

        async def answered(request: httpx.Request, page: httpx.Response = page) -> httpx.Response:
            return httpx.Response(page.status_code, content=page.content)

        one.wire.handle_async_request = answered
        await one.bot.cycle()
        assert one.bot.kernel.state.behind
    one.wire.handle_async_request = inner
    await one.bot.cycle()
    assert not one.bot.kernel.state.behind


@pytest.mark.parametrize("orders", ["plan", "direct"])
async def test_a_journal_that_is_lost_with_an_answer_orders_nothing_twice(box: Box, folder: Path, orders: str) -> None:
    """The order stands, its answer is lost, and so is the file.

    The same bar is decided again: the same key, and so the same order.
    """
    dying = False

    def fate(request: httpx.Request) -> str | None:
        return (
            "crash_after"
            if dying
            and request.url.path in ("/v1/orders", "/v1/orders/confirm")
            and b'dryRun":true' not in request.content
            else None
        )

    one = await bot_and_owner(box, nothing, fate=fate, path=folder / "first.db", path_of_orders=orders)
    dying = True
    one.wants(once_blindly)
    with pytest.raises(Crash):
        await one.minute()
    await one.bot.kill()
    dying = False
    assert len(await one.hand.trades()) == 1
    one.bot = make_bot(
        one.hand,
        one.wire,
        folder / "second.db",
        script=once_blindly,
        settings=KernelSettings(guardians=(DEAD_MAN_600,)),
        path_of_orders=orders,
    )
    await one.bot.cycle()
    await one.bot.cycle()
    (trade,) = await one.hand.trades()
    (row,) = one.rows()
    assert (row["state"], row["id"], row["trade_id"]) == ("accepted", trade["idempotencyKey"], trade["id"])
    assert one.bot.kernel.account.account_state.positions["BTC"].owner == "busy"


async def test_a_key_that_may_only_close_runs_degraded_and_protects(box: Box) -> None:
    hand = await box.hand()
    owner = make_bot(hand, wire_to(box), None, script=once_long, settings=KernelSettings(guardians=(DEAD_MAN_600,)))
    made = BotAndOwner(box, hand, owner, owner.client)
    await made.minute()
    assert await made.held() is not None
    body = {"name": "closer", "scopes": ["read", "trade:close_only"]}
    key = (await hand.ask("POST", "/v1/keys", body))["apiKey"]
    journal = owner.kernel.journal
    one = make_bot(
        hand, wire_to(box), None, script=once_long, settings=KernelSettings(guardians=(DEAD_MAN_600,)), key=key
    )
    made = BotAndOwner(box, hand, one, one.client)
    await made.minute()
    assert list(one.kernel.health.degraded) == ["scope", "guardian:dead_man"], (
        "its dead-man would block the owner's openings"
    )
    assert state_of(one.kernel).word == "DEGRADED"
    assert one.kernel.account.account_state.positions["BTC"].owner == "busy", "known again by the key of its entry"
    await hand.cancel_stops("BTC")
    assert await one.cycle()
    assert len(await made.guardians("trailing_stop")) == 1, "it may still protect"
    await hand.try_to("POST", "/v1/positions/BTC/close", {})
    await made.minute()
    assert await made.held() is None, "and opens nothing"
    journal.close()


async def test_a_key_that_is_revoked_ends_the_run(box: Box) -> None:
    hand = await box.hand()
    minted = await box.control("keys", {"accountId": hand.account["accountId"]})
    bot = make_bot(hand, wire_to(box), None, script=once_long, key=minted["apiKey"])
    one = BotAndOwner(box, hand, bot, None)
    await one.minute()
    await box.http.post("/sandbox/v1/keys", json={"accountId": hand.account["accountId"]}, headers=CONTROL)
    with pytest.raises(AccessLost):
        await bot.cycle()
    assert await one.held() is not None
    assert [row["state"] for row in one.rows()] == ["accepted"]


# -- bars


async def test_no_bar_is_skipped_when_the_pass_that_took_it_fails(box: Box) -> None:
    """A reset found between two bars of one answer, and no answer to the questions it asks: both bars are decided,
    once each, in order.
    """
    seen: list[tuple[str, int]] = []

    def script(_view: View, bar: Bar) -> Iterable[Intent]:
        seen.append((bar.market, bar.at_ms))
        return ()

    cut = False

    def fate(request: httpx.Request) -> str | None:
        return "refuse" if cut and request.url.path == "/v1/account" else None

    one = await bot_and_owner(box, script, fate=fate)
    seen.clear()
    for n in range(4):
        if n == 1:
            await one.hand.ask("POST", "/v1/sandbox/accounts/reset", {})
            cut = True
        await box.minute(**one.px)
        await one.bot.cycle()
    cut = False
    for _ in range(2):
        await one.bot.cycle()
    first = seen[0][1]
    assert seen == [(coin, first + n * MINUTE_MS) for n in range(4) for coin in ("BTC", "ETH")]


async def test_a_service_that_hangs_does_not_keep_a_pass_from_ending(box: Box) -> None:
    """Each question takes all its time.

    A pass asks no more once its time is over, so that the proof of progress goes on.
    """
    one = await bot_and_owner(box)
    pacer: Any = one.bot.kernel.budget.pacer

    async def hung(request: httpx.Request) -> httpx.Response:
        pacer.now_ms += 15_000
        raise httpx.ReadTimeout("hung", request=request)

    one.wire.handle_async_request = hung
    before = pacer.now_ms
    await one.bot.cycle()
    assert pacer.now_ms - before <= 2 * 15_000, "the beat, and one question of the pass"


async def test_the_dead_man_of_the_config_is_found_by_its_name(box: Box) -> None:
    one = await bot_and_owner(box)
    assert one.bot.kernel.guardians.ids[DEAD_MAN] == (await one.guardians("dead_man_switch"))[0]["id"]
    assert Decimal((await one.held() or {})["size"]) > 0
