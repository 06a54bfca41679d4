"""What a comparison with the exchange forbids, and what a correction books: exactly the exchange's cash and sizes."""

from __future__ import annotations

from random import Random

import pytest

from bot.errors import Refusal
from bot.model.events import AccountChanged
from bot.venue.accounting import exchange_limits, limits, nav
from bot.venue.exchange import audit
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.state import HOUR_MS, AuditDifference, ExchangePosition, OrderSpec
from bot.venue.storage import pages
from tests.venue.exchange_worlds import BEGIN_MS, COINS, NAME, Follower, adopt, session

BTC = AuditDifference("size", "BTC", "size BTC: here 1; there 2")
CASH = AuditDifference("cash", "", "cash USD: here 1; there 2")


def begun() -> Follower:
    follower = Follower()
    follower.take(adopt(5_000 * E8))
    return follower


def refused(follower: Follower, coin: str, usd: int = 10) -> Refusal | None:
    order = OrderSpec(coin=coin, side=1, size=E8)
    market = follower.state.markets[coin]
    return limits.refuse_opening(follower.state, follower.account, None, market, order, usd * E8, lambda left: None)


@pytest.mark.parametrize(
    ("differences", "blocked"), [((), ()), ((BTC,), ("BTC",)), ((BTC, CASH), ("BTC",)), ((CASH,), ("",))]
)
def test_a_difference_forbids_entries_of_its_market_or_of_all_if_no_market_explains_it(
    differences: tuple[AuditDifference, ...], blocked: tuple[str, ...]
) -> None:
    follower = begun()
    follower.take(c.SeeAudit(NAME, BEGIN_MS + 1, differences))
    exchange = follower.account.exchange
    assert exchange is not None
    assert exchange_limits.blocked(exchange) == blocked
    for coin in COINS:
        refusal = refused(follower, coin)
        is_blocked = coin in blocked or blocked == ("",)
        assert (refusal is not None and refusal.details == {"reason": "audit"}) is is_blocked
    follower.take(c.SeeAudit(NAME, BEGIN_MS + 2, ()))
    assert refused(follower, "BTC") is None


@pytest.mark.parametrize(("difference_ms", "is_refused"), [(30_000, False), (30_001, True), (-30_001, True)])
def test_a_clock_that_is_off_forbids_entries(difference_ms: int, is_refused: bool) -> None:
    follower = begun()
    follower.take(c.SeeAgent(NAME, "0xab", difference_ms))
    refusal = refused(follower, "BTC")
    assert (refusal is not None and refusal.details == {"reason": "clock"}) is is_refused


def test_the_exposure_cap_counts_positions_and_the_entry() -> None:
    follower = begun()
    held = ExchangePosition("ETH", E8 // 50, 2_500 * E8, 5, False, 0, None)
    follower.take(c.SetExposureCap(NAME, 100 * E8), c.CorrectBooks(NAME, BEGIN_MS + 1, 4_950 * E8, (held,)))
    assert refused(follower, "BTC", 50) is None
    refusal = refused(follower, "BTC", 51)
    assert refusal is not None
    assert (refusal.code, refusal.details) == ("limit_exceeded", {"cap": "exchangeCapUsd"})
    assert "50 USD of it is left" in refusal.message
    follower.take(c.SetExposureCap(NAME, None))
    assert refused(follower, "BTC", 5_000) is None


def test_an_audit_is_an_event_when_its_result_is_another_than_before() -> None:
    follower = begun()
    results = [(), (BTC,), (BTC,), (BTC, CASH), ()]
    follower.take(*(c.SeeAudit(NAME, BEGIN_MS + 1 + n, rows) for n, rows in enumerate(results)))
    told = [event for event in pages.after(follower.account, 0) if isinstance(event, AccountChanged)]
    assert [(event.state, event.reason) for event in told if event.subtype == "audit"] == [
        ("differs", BTC.text),
        ("differs", f"{BTC.text}; and 1 more"),
        ("equal", None),
    ]


def test_the_next_audit_reads_only_what_the_last_equal_one_has_not() -> None:
    follower = begun()
    exchange = follower.account.exchange
    assert exchange is not None
    assert audit.begin(exchange) == (BEGIN_MS, 0)
    seqs = []
    for hour in range(1, 7):
        follower.take(c.BookTransfer(NAME, str(hour), BEGIN_MS + hour * HOUR_MS - 1, "deposit", E8))
        follower.take(c.SeeAudit(NAME, BEGIN_MS + hour * HOUR_MS, ()))
        seqs.append(follower.account.event_seq)
    # Half an hour is read twice, and no event of a row after it has a number until the second.
    assert audit.begin(exchange) == (BEGIN_MS + 5 * HOUR_MS + HOUR_MS // 2, seqs[-2])
    follower.take(c.SeeAudit(NAME, BEGIN_MS + 7 * HOUR_MS, (BTC,)))
    assert audit.begin(exchange) == (BEGIN_MS + 5 * HOUR_MS + HOUR_MS // 2, seqs[-2])


@pytest.mark.parametrize("seed", range(60))
def test_a_correction_gives_the_exchanges_cash_and_sizes_whatever_was_missed(seed: int) -> None:
    """Half of the reports never come, some stay in wait, and late ones come after the correction."""
    random = Random(f"{seed}:correction")
    commands, raw = session(random, 40)
    follower = begun()
    seen = [command for command in commands if random.random() < 0.5]
    follower.take(*seen)
    end_ms = BEGIN_MS + 100 * HOUR_MS
    sizes = {coin: size for coin, size in raw.sizes.items() if size}
    told = tuple(ExchangePosition(coin, size, COINS[coin][0], 3, False, 0, None) for coin, size in sizes.items())
    cash = 5_000 * E8 + raw.cash
    follower.take(c.CorrectBooks(NAME, end_ms, cash, told), *commands)
    account = follower.account
    assert account.exchange is not None
    assert {coin: held.side * held.size for coin, held in account.positions.items()} == sizes
    assert nav.stand_of(account, follower.state).cash == cash
    assert account.exchange.waiting == []
    equity = account.start_balance + account.realized - account.fees + account.funding + account.exchange.transferred
    assert account.balance + sum(held.margin for held in account.positions.values()) == equity
    assert {trade.kind for trade in account.trades} <= {"market", "liquidation", "adl", "correction"}
