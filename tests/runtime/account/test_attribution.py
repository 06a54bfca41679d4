"""Attribution: the strategies' figures add up to the account, to the last unit; each strategy gets its own fills."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from bot.clock import DAY_MS
from bot.money import E8, E16, decimal_of_e8
from bot.runtime.account.attribution import Attribution
from bot.runtime.account.attribution_fold import align, attribute_event, name_foreign_entries
from bot.runtime.journal.opening import open_journal
from bot.runtime.model.shares import FOREIGN, NETTING
from bot.service.bodies import event_bodies
from bot.wire import Event
from tests.builders import MINUTE_MS, T0, VenueDriver, market, order
from tests.faulty_port import ADDRESS
from tests.runtime.builders import folded_form, held_position, share_of

STRATEGIES = ("alpha", "beta", "gamma")
# the size step of both markets
STEP = Decimal("0.00001")


@dataclass
class Fixture:
    """A venue with an account, and an attribution that reads its events."""

    cash: str = "10000"
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        costs = {"taker_rate": 45_000, "maker_rate": 15_000, "funding_rate": 12_500_000, **self.more}
        self.venue = VenueDriver((market("BTC", **costs), "100"), (market("ETH", **costs), "30"), cash=self.cash)
        self.journal = open_journal(None, address=ADDRESS)
        self.seen = 0
        self.serial = 0
        self.attribution = self.reread()

    def reread(self) -> Attribution:
        """The attribution as the next run reads it."""
        return Attribution.of_journal(
            self.journal, owner_of=owner_of, mark_at=self.mark_at, step_of=lambda _market: STEP
        )

    def mark_at(self, coin: str, at_ms: int | None) -> Decimal:
        return decimal_of_e8(self.venue.mark(coin))

    def learn(self) -> list[dict[str, Any]]:
        """Take new events and write them with the attribution in one transaction."""
        kept = list(self.venue.account.events)
        fresh = [e for e in kept if e.seq > self.seen]
        self.seen = kept[-1].seq if kept else 0
        events = [Event.model_validate(event_bodies.event(one)) for one in fresh]
        parts = [dict(attribute_event(self.attribution, folded_form(event))) for event in events]
        if events:
            self.journal.take(events, events[-1].id, epoch=0, attribution=self.attribution.changes())
        return parts

    def trade(self, who: str | None, *, coin: str = "BTC", side: int = 1, **over: Any) -> list[dict[str, Any]]:
        self.serial += 1
        key = None if who is None else f"{who}-{self.serial}"
        self.venue.place(order(coin, side, **over), idempotency_key=key)
        return self.learn()

    def check(self) -> None:
        """Check that the sums over all strategies equal the account, and the shares the positions."""
        account, attribution = self.venue.account, [self.attribution.of(name) for name in self.attribution.names()]
        assert sum(one.fees_usd for one in attribution) == decimal_of_e8(account.fees)
        assert sum(one.funding_usd for one in attribution) == decimal_of_e8(account.funding)
        assert sum(one.realized_usd for one in attribution) == decimal_of_e8(account.realized + account.absorbed)
        assert sum(one.margin_lost_usd for one in attribution) == decimal_of_e8(account.margin_lost)
        for coin in ("BTC", "ETH"):
            held = account.positions.get(coin)
            shares = self.attribution.shares.get(coin, {}).values()
            assert sum(one.size for one in shares) == (decimal_of_e8(held.size) if held else 0), coin
            assert all(one.size % STEP == 0 for one in shares), "each can be closed by itself"
            assert {one.side for one in shares} <= ({"long" if held.side > 0 else "short"} if held else set())
        unrealized = sum(p.pnl(self.venue.mark(coin)) for coin, p in account.positions.items())
        # The service cuts each product to 1e-8; the attribution does not.
        assert abs(sum(one.unrealized_usd for one in attribution) - decimal_of_e8(unrealized)) < Decimal("0.00001")


def owner_of(key: str) -> str | None:
    name = key.rpartition("-")[0]
    return name if name in STRATEGIES or name == "@runtime" else None


def one_step(harness: Fixture, chance: random.Random) -> None:
    who = chance.choice([*STRATEGIES, "foreign", "@runtime", None])
    coin = chance.choice(["BTC", "ETH"])
    usd = str(chance.randint(10, 3_000))
    kind = chance.randrange(10)
    if kind < 4:
        harness.trade(who, coin=coin, side=chance.choice([1, 1, -1]), usd=usd, leverage=5)
    elif kind == 4:
        harness.trade(
            who, coin=coin, usd=usd, stop=f"{chance.randint(1, 5)}%", take=f"{chance.randint(1, 9)}%", leverage=5
        )
    elif kind == 5:
        px = harness.venue.mark(coin) * chance.randint(90, 110) // 100
        harness.trade(who, coin=coin, side=chance.choice([1, -1]), usd=usd, limit_px=f"{px / 1e8:.2f}", leverage=5)
    elif kind == 6 and coin in harness.venue.account.positions:
        harness.serial += 1
        size = max(10**5, harness.venue.position(coin).size * chance.randint(1, 100) // 100)
        harness.venue.close(coin, size=size, idempotency_key=f"{who}-{harness.serial}" if who else None)
    elif kind == 7:
        harness.venue.wait(chance.choice([1_000, MINUTE_MS, 60 * MINUTE_MS]))
    else:
        px = harness.venue.mark(coin) / 1e8 * chance.choice([0.9, 0.97, 0.99, 1.01, 1.03, 1.1])
        harness.venue.move(coin, f"{px:.2f}")
    harness.learn()


@pytest.mark.soak(worlds=25, full=1_000)
def test_the_sum_over_all_strategies_equals_the_account(worlds: int, base_seed: int) -> None:
    for seed in range(base_seed, base_seed + worlds):
        chance, harness = random.Random(seed), Fixture()
        try:
            for _ in range(80):
                one_step(harness, chance)
                harness.check()
                # A restart: what is written is what is known.
                if chance.random() < 0.1:
                    harness.attribution = harness.reread()
        except AssertionError as error:
            raise AssertionError(f"world {seed}: {error}") from error


def test_a_strategy_alone_in_a_market_has_the_services_figures() -> None:
    harness = Fixture()
    harness.trade("alpha", size="3")
    harness.venue.move("BTC", "107.33")
    harness.trade("alpha", side=-1, size="1")
    harness.trade("beta", coin="ETH", size="2")
    book = harness.attribution.of("alpha")
    assert book.realized_usd == decimal_of_e8(harness.venue.account.realized)
    assert (book.fills, [str(share.size) for share in book.shares]) == (2, ["2"])
    assert NETTING not in harness.attribution.rows
    harness.check()


def test_two_strategies_in_one_market_each_count_against_their_own_entries() -> None:
    harness = Fixture(more={"taker_rate": 0, "funding_rate": 0})
    harness.trade("alpha", size="1")
    harness.venue.move("BTC", "110")
    harness.trade("beta", size="1")
    harness.venue.move("BTC", "120")
    (parts,) = harness.trade("beta", side=-1, size="1")
    gains = {name: (part.size_e8, part.realized, part.left_e8) for name, part in parts.items()}
    assert gains == {"beta": (E8, 10 * E16, 0)}
    assert harness.attribution.of("alpha").unrealized_usd == 20
    assert harness.attribution.of(NETTING).realized_usd == 5, "the account's average entry of 105 says 15"
    harness.check()
    harness.trade("alpha", side=-1, size="1")
    assert [harness.attribution.of(name).realized_usd for name in ("alpha", "beta", NETTING)] == [20, 10, 0]
    harness.check()


def test_a_stop_closes_every_share_and_funding_is_split_to_the_last_unit() -> None:
    harness = Fixture(more={"funding_rate": 33_333_333})
    harness.trade("alpha", size="1", stop="5%")
    harness.trade("beta", size="2")
    harness.venue.wait(60 * MINUTE_MS)
    harness.learn()
    paid = [harness.attribution.of(name).funding_usd for name in ("alpha", "beta")]
    assert sum(paid) == decimal_of_e8(harness.venue.account.funding) < 0
    assert abs(paid[1] - 2 * paid[0]) <= Decimal("0.00000002")
    harness.venue.move("BTC", "94")
    harness.learn()
    assert harness.attribution.shares.get("BTC", {}) == {}
    assert harness.attribution.of("alpha").realized_usd < 0
    harness.check()


def test_a_foreign_close_of_a_shared_position_leaves_sizes_that_can_be_traded() -> None:
    harness = Fixture()
    for who, size in (("alpha", "0.244"), ("beta", "0.142"), ("gamma", "0.11")):
        harness.trade(who, size=size)
    harness.venue.close("BTC", size=10_000_000)
    harness.learn()
    # 0.0491935, 0.0286290 and 0.0221774 go; the two steps that are left over take those that lost most by the cut.
    assert [str(share.size) for share in harness.attribution.shares["BTC"].values()] == [
        "0.19481",
        "0.11337",
        "0.08782",
    ]
    harness.check()


def test_a_share_that_is_no_whole_number_of_lots_can_be_closed() -> None:
    harness = Fixture()
    harness.trade("alpha", size="1")
    harness.trade("beta", size="1")
    held = harness.attribution.shares["BTC"]
    held["alpha"] = share_of("BTC", "alpha", size="0.999995", cost_usd="99.9995")
    held["beta"] = share_of("BTC", "beta", size="1.000005", cost_usd="100.0005")
    harness.venue.close("BTC", size=199_999_000)
    harness.learn()
    assert sum(s.size for s in harness.attribution.shares["BTC"].values()) == Decimal("0.00001")
    assert all(s.size > 0 for s in harness.attribution.shares["BTC"].values())


def test_a_foreign_order_or_a_repair_belongs_to_no_strategy() -> None:
    harness = Fixture()
    harness.trade("foreign", size="1")
    harness.trade("alpha", size="1")
    harness.trade("foreign", side=-1, size="1")
    assert [(s.strategy, s.size) for s in harness.attribution.shares["BTC"].values()] == [("alpha", 1)]
    harness.trade("@runtime", side=-1, size="0.4")
    assert str(harness.attribution.of("alpha").shares[0].size) == "0.6"
    assert harness.attribution.of(FOREIGN).fills == 2
    harness.check()


def test_a_backstop_liquidation_counts_once_with_its_lost_margin() -> None:
    harness = Fixture(cash="100")
    harness.trade("alpha", usd="2000", leverage=40)
    harness.venue.jump("BTC", "96")
    harness.learn()
    assert not harness.venue.account.positions
    assert harness.attribution.of("alpha").shares == ()
    harness.check()


@pytest.mark.parametrize(("mode", "px"), [("isolated", "50"), ("cross", "50"), ("isolated", "91"), ("cross", "86")])
def test_a_loss_that_the_service_pays_is_no_loss_of_the_strategy(mode: str, px: str) -> None:
    harness = Fixture(cash="300", more={"margin_mode": mode})
    harness.trade("alpha", usd="2000", leverage=10)
    harness.venue.jump("BTC", px)
    harness.learn()
    account = harness.venue.account
    assert not account.positions
    assert (account.absorbed > 0) == (px == "50")
    harness.check()
    assert harness.attribution.of("alpha").net_usd == decimal_of_e8(account.balance) - 300


def test_the_days_profit_counts_from_midnight() -> None:
    harness = Fixture(more={"taker_rate": 0, "funding_rate": 0})
    harness.trade("alpha", size="1")
    harness.venue.move("BTC", "110")
    assert harness.attribution.of("alpha").day_usd == 10
    marks = {T0 + DAY_MS: Decimal(108)}
    harness.attribution.mark_at = lambda coin, at_ms: marks.get(at_ms or 0, harness.mark_at(coin, None))
    assert harness.attribution.roll(T0 + DAY_MS + 5_000)
    assert harness.attribution.of("alpha").day_usd == 2, "since the mark of 00:00 UTC, not since it was asked"
    harness.attribution.halt("alpha")
    changes = harness.attribution.changes()
    harness.journal.write_attribution(changes)
    again = harness.reread()
    assert (again.of("alpha").day_usd, again.is_halted("alpha")) == (Decimal(10) - 108 + 100, True)
    assert again.roll(T0 + 2 * DAY_MS)
    assert not again.is_halted("alpha")


def test_a_page_that_is_not_written_changes_no_attribution() -> None:
    harness = Fixture()
    harness.trade("alpha", size="1")
    before = harness.attribution.of("alpha")

    harness.attribution.begin_page()
    harness.venue.place(order("BTC", 1, size="1"), idempotency_key="alpha-9")
    event = Event.model_validate(event_bodies.event(harness.venue.account.events[-1]))
    attribute_event(harness.attribution, folded_form(event))
    assert harness.attribution.of("alpha").fills == 2
    harness.attribution.end_page(is_written=False)
    assert harness.attribution.of("alpha") == before
    assert harness.attribution.changes() is None


def test_a_position_with_a_new_owner_counts_for_the_owner_from_then_on() -> None:
    harness = Fixture(more={"taker_rate": 0, "funding_rate": 0})
    unowned = held_position("BTC", size="2", owner=None)
    harness.venue.move("BTC", "110")
    align(harness.attribution, {"BTC": unowned}, 0, T0)
    assert [(s.strategy, s.size) for s in harness.attribution.shares["BTC"].values()] == [(FOREIGN, 2)]
    align(harness.attribution, {"BTC": held_position("BTC", size="2", owner="alpha")}, 0, T0)
    book = harness.attribution.of("alpha")
    assert (book.unrealized_usd, book.day_usd) == (20, 0), "what it gained before is not this day's"
    align(harness.attribution, {}, 0, T0)
    assert harness.attribution.names() == sorted(harness.attribution.rows)
    assert not harness.attribution.shares


@pytest.mark.parametrize("mixed", [False, True])
def test_an_entry_whose_owner_is_known_late_counts_as_if_known_at_once(mixed: bool) -> None:
    late, at_once = Fixture(), Fixture()
    for harness, who in ((late, None), (at_once, "beta")):
        harness.trade("alpha", usd="300", leverage=5)
        harness.venue.move("BTC", "101.37")
        if mixed:
            harness.trade(None, usd="70", leverage=5)
        harness.trade(who, usd="213.7", leverage=5)
    named = Event.model_validate(event_bodies.event(list(late.venue.account.events)[-1]))
    assert late.attribution.of("beta").fills == 0
    name_foreign_entries(late.attribution, [folded_form(named)], "beta")
    late.journal.write_attribution(late.attribution.changes())
    for attribution in (late.attribution, late.reread()):
        for name in ("alpha", "beta", FOREIGN):
            assert attribution.of(name) == at_once.attribution.of(name), name
    late.check()
    for harness in (late, at_once):
        harness.venue.move("BTC", "97")
        harness.venue.close("BTC", idempotency_key="beta-9")
        harness.learn()
    assert late.attribution.of("beta").realized_usd == at_once.attribution.of("beta").realized_usd
    late.check()


def test_a_reset_clears_the_attribution() -> None:
    harness = Fixture()
    harness.trade("alpha", size="1")
    align(harness.attribution, {}, 1, T0)
    harness.journal.write_attribution(harness.attribution.changes())
    assert harness.attribution.names() == []
    assert harness.journal.state.attribution_rows(0) == harness.journal.state.share_rows(0) == []
