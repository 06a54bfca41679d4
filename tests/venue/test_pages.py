"""Old events and trades in pages: packed at any moment and any number of times, the log, the trades and the state
read the same.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from random import Random

from bot.venue.apply import apply
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.model.numbers import E8
from bot.venue.model.record import forget_oldest
from bot.venue.storage import codec, pages
from tests.venue.world import Log, restored

PX = 100 * E8


def trading(chance: Random, trips: int) -> Log:
    """Round trips with brackets, a limit order that rests through all of them from a random moment on, and a reset
    at a random moment.
    """
    log: Log = [
        (1, c.ListMarket(s.MarketSpec("BTC", sz_decimals=2), PX)),
        (2, c.OpenAccount("a", "0x" + "0" * 40, None, 10_000 * E8)),
    ]
    rests, wiped = chance.randrange(trips), chance.randrange(trips)
    for trip in range(trips):
        now = 10 + trip * 10
        order = s.OrderSpec("BTC", 1, usd=100 * E8, stop=s.LegSpec(pct=E8), target=s.LegSpec(r=E8), source="api")
        log.append((now, c.PlaceOrder("a", order, idempotency_key=f"k{trip}")))
        log.append((now + 1, c.PricePoint("BTC", PX * 102 // 100 if trip % 2 else PX * 98 // 100, step=1)))
        log.append((now + 2, c.PricePoint("BTC", PX, step=1)))
        if trip == rests:
            limit = s.OrderSpec("BTC", 1, usd=50 * E8, type="limit", limit_px=50 * E8, stop=s.LegSpec(pct=E8))
            log.append((now + 3, c.PlaceOrder("a", limit)))
        if trip == wiped and chance.random() < 0.5:
            log.append((now + 4, c.ResetAccount("a", None)))
    return log


def test_packing_old_events_and_trades_at_any_moment_changes_no_read(worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + max(3, worlds // 20)):
        chance = Random(seed)
        plain, packed = s.State(), s.State()
        packs = 0
        for now_ms, command in trading(chance, 90):
            assert apply(plain, command, now_ms).events == apply(packed, command, now_ms).events
            if chance.random() < 0.05:
                for account in packed.accounts.values():
                    pages.fold(account)
                    packs += 1
            if chance.random() < 0.02:
                packed = restored(packed)
        a, b = plain.accounts["a"], packed.accounts["a"]
        pages.fold(b)
        assert packs and b.pages and codec.digest(packed) == codec.digest(plain)
        assert codec.opened(b) == a
        for seq in [0, a.event_seq, *(chance.randint(0, a.event_seq) for _ in range(20))]:
            assert list(pages.after(b, seq)) == list(pages.after(a, seq)) == [e for e in a.events if e.seq > seq]
        for before in [None, *(chance.randint(0, a.trade_seq + 2) for _ in range(20))]:
            wanted = [t for t in reversed(a.trades) if before is None or t.seq < before]
            assert list(pages.trades_before(b, before)) == list(pages.trades_before(a, before)) == wanted
        for trade in a.trades:
            assert pages.trade_of(b, trade.id) == trade


def test_the_last_event_of_a_page_to_leave_the_log_removes_the_page() -> None:
    state = s.State()
    for now_ms, command in trading(Random(1), 60):
        apply(state, command, now_ms)
    account = state.accounts["a"]
    plain = deepcopy(account)
    pages.fold(account)
    for _ in range(pages.PAGE + 10):
        forget_oldest(account)
        forget_oldest(plain)
    assert codec.opened(account).events == plain.events
    assert pages.oldest(account) == plain.events[0]


def test_a_short_page_of_a_file_is_filled_up_before_the_next_one_begins() -> None:
    state = s.State()
    log = trading(Random(3), 60)
    for now_ms, command in log[:100]:
        apply(state, command, now_ms)
    account = state.accounts["a"]
    pages.fold(account)
    last = pages.tail(account)
    assert last is not None
    assert 0 < last.count < pages.PAGE
    account.events.clear()
    # The state at a start.
    account.pages.append(last)
    for now_ms, command in log[100:]:
        apply(state, command, now_ms)
    pages.fold(account)
    assert {page.count for page in account.pages} == {pages.PAGE}
    assert [e.seq for e in pages.after(account, 0)] == list(range(account.events_first, account.event_seq + 1))


def test_the_key_of_a_packed_trade_is_kept_for_ever_in_a_few_bytes() -> None:
    state = s.State()
    order = s.OrderSpec("BTC", 1, usd=100 * E8, source="api")
    apply(state, c.ListMarket(s.MarketSpec("BTC", sz_decimals=2), PX), 1)
    apply(state, c.OpenAccount("a", "0x" + "0" * 40, None, 10_000 * E8), 2)
    for n in range(300):
        side = replace(order, side=1 if n % 2 == 0 else -1)
        apply(state, c.PlaceOrder("a", side, idempotency_key=f"k{n}"), 10 + n)
    account = state.accounts["a"]
    pages.fold(account)
    state = restored(state)
    account = state.accounts["a"]
    assert len(account.trade_by_key) < pages.PAGE and sum(map(len, account.old_keys)) <= 300 * 8
    for n in (0, 1, 150, 299):
        no = apply(state, c.PlaceOrder("a", order, idempotency_key=f"k{n}"), 1_000).answer
        assert (no.code, no.details) == (
            "idempotency_conflict",
            {"reason": "expired", "tradeId": s.trade_id(account, n + 1)},
        )
    assert account.trade_seq == 300
    apply(state, c.ResetAccount("a", None), 2_000)
    no = apply(state, c.PlaceOrder("a", order, idempotency_key="k7"), 2_001).answer
    assert no.details == {"reason": "account_reset", "epoch": 1}
    assert apply(state, c.PlaceOrder("a", order, idempotency_key="new"), 2_002).answer.trade.idempotency_key == "new"
