"""An order whose end no message told is looked up when two states lack it; one state proves nothing."""

from __future__ import annotations

from bot.exchanges.hyperliquid.live.order_watch import ABSENT_MS, KEPT, OrderWatch
from bot.exchanges.protocol import OpenOrders, OrderReport, OrderState, OrderUpdate


def state(*order_ids: str, group: str = "", market: str = "BTC") -> OpenOrders:
    fields = dict.fromkeys(("is_reduce_only", "is_for_position", "is_waiting"), False)
    orders = (
        OrderReport(order_id, None, market, True, "limit", 1, 1, None, placed_ms=0, **fields) for order_id in order_ids
    )
    return OpenOrders(group, tuple(orders))


def update(order_id: str, kind: OrderState, at_ms: int = 1) -> OrderUpdate:
    return OrderUpdate(order_id, None, "BTC", at_ms, kind)


def test_two_states_without_an_order_make_it_due_and_its_answer_ends_it() -> None:
    watch = OrderWatch()
    watch.see(state("1", "2"), 0)
    watch.see(state("2"), 100)
    watch.see(state("2"), 100 + ABSENT_MS - 1)
    assert watch.due == []
    watch.see(state("2"), 100 + ABSENT_MS)
    assert watch.due == ["1"]
    ended = update("1", "canceled")
    assert watch.looked_up("1", ended, 3_000) == [ended]
    assert watch.hear(ended) == []
    watch.see(state("2"), 9_000)
    assert watch.due == []


def test_a_state_that_has_the_order_again_starts_the_count_anew() -> None:
    watch = OrderWatch()
    for now_ms, order_ids in ((0, "1"), (100, ""), (200, "1"), (300, ""), (300 + ABSENT_MS - 1, "")):
        watch.see(state(*order_ids), now_ms)
    assert watch.due == []


def test_a_state_of_another_dex_says_nothing_about_an_order() -> None:
    watch = OrderWatch()
    watch.see(state("1"), 0)
    for now_ms in (100, 9_000):
        watch.see(state(group="xyz"), now_ms)
    assert watch.due == []


def test_an_order_that_the_exchange_does_not_know_yet_is_asked_for_again_later() -> None:
    watch = OrderWatch()
    watch.hear(update("1", "open"))
    for now_ms in (0, ABSENT_MS):
        watch.see(state(), now_ms)
    assert (watch.due, watch.looked_up("1", None, ABSENT_MS), watch.due) == (["1"], [], [])
    watch.see(state(), 2 * ABSENT_MS)
    assert watch.due == ["1"]


def test_a_late_state_or_message_does_not_bring_an_ended_order_back() -> None:
    watch = OrderWatch()
    watch.hear(update("1", "filled"))
    watch.see(state("1"), 0)
    assert watch.hear(update("1", "open")) == [update("1", "open")]
    for now_ms in (100, 9_000):
        watch.see(state(), now_ms)
    assert watch.due == []


def test_memory_holds_the_newest_changes_only() -> None:
    watch = OrderWatch()
    for number in range(3 * KEPT):
        watch.hear(update(str(number), "canceled"))
    assert len(watch._reported) == len(watch._ended) == KEPT and watch._open == {}
