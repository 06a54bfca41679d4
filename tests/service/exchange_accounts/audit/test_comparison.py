"""The audit names each row that one side lacks or has otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from bot.clock import iso
from bot.service.exchange_accounts.audit.books import (
    AccountBooks,
    BookedFill,
    BookedOrder,
    BookedPayment,
    books_of,
    hour_of,
    own_differences,
)
from bot.service.exchange_accounts.audit.comparison import BookDifference, differences
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from tests.venue.exchange_worlds import Follower, adopt, session

CASH = 5_000 * E8


class Audited:
    """The books of the service after a session, and those of the exchange."""

    def __init__(self, random: Random, count: int = 40) -> None:
        commands, raw = session(random, count)
        self.follower = Follower()
        self.follower.take(adopt(CASH), *commands)
        account, state = self.follower.account, self.follower.state
        self.ours = books_of(state, account, 0)
        fills = [row.fill for row in commands if isinstance(row, c.BookExecution)]
        self.theirs = AccountBooks(
            cash=CASH + raw.cash,
            sizes={coin: size for coin, size in raw.sizes.items() if size},
            fills=[BookedFill(fill.coin, fill.at_ms, fill.buy * fill.size, fill.px, fill.fee) for fill in fills],
            funding=[
                BookedPayment(r.coin, hour_of(r.at_ms), r.amount) for r in commands if isinstance(r, c.BookFunding)
            ],
            transfers=[BookedPayment("", r.at_ms, r.amount) for r in commands if isinstance(r, c.BookTransfer)],
            margins=dict(self.ours.margins),
        )

    def found(self, ours: AccountBooks, theirs: AccountBooks) -> list[BookDifference]:
        return differences(ours, theirs)


@pytest.mark.parametrize("seed", range(60))
def test_equal_books_have_no_difference(seed: int) -> None:
    audited = Audited(Random(f"{seed}:audit"))
    assert audited.found(audited.ours, audited.theirs) == []
    assert own_differences(audited.follower.account) == []


def test_a_dropped_or_altered_row_is_named_1000_of_1000() -> None:
    named = 0
    for seed in range(50):
        random = Random(f"{seed}:altered")
        audited = Audited(random, 30)
        for _ in range(20):
            theirs = copy.deepcopy(audited.theirs)
            rows = random.choice([rows for rows in (theirs.fills, theirs.funding, theirs.transfers) if rows])
            at = random.randrange(len(rows))
            row = rows[at]
            if random.random() < 0.5:
                del rows[at]
            else:
                name = random.choice(["px", "size", "fee"] if isinstance(row, BookedFill) else ["amount"])
                rows[at] = replace(row, **{name: getattr(row, name) + random.choice((-100, 100))})
            found = audited.found(audited.ours, theirs)
            checks = {"fill"} if isinstance(row, BookedFill) else {"funding", "transfer"}
            named += len(found) == 1 and found[0].check in checks and iso(row.at_ms) in found[0].name
            # The other side: the service lacks it, or has it otherwise.
            swapped = audited.found(theirs, audited.ours)
            assert (swapped[0].here, swapped[0].there) == (found[0].there, found[0].here)
    assert named == 1_000


@pytest.mark.parametrize(
    ("change", "check", "name"),
    [
        (lambda books: setattr(books, "cash", books.cash + 1), "cash", "USD"),
        (lambda books: books.sizes.update(BTC=7), "size", "BTC"),
        (lambda books: books.orders.update({"9": BookedOrder("BTC", 1, 10 * E8, E8)}), "order", "9"),
        (lambda books: books.margins.update(BTC=(7, True)), "margin", "BTC"),
    ],
)
def test_each_other_check_names_what_differs(change: Callable[[AccountBooks], None], check: str, name: str) -> None:
    audited = Audited(Random("checks"))
    audited.ours.margins["BTC"] = audited.theirs.margins["BTC"] = (5, False)
    theirs = copy.deepcopy(audited.theirs)
    change(theirs)
    assert [(row.check, row.name) for row in audited.found(audited.ours, theirs)] == [(check, name)]


def test_a_stop_of_the_whole_position_has_the_size_of_the_position() -> None:
    ours = AccountBooks(0, {}, orders={"1": BookedOrder("BTC", -1, E8, 5)})
    theirs = AccountBooks(0, {}, orders={"1": BookedOrder("BTC", -1, E8, None)})
    assert differences(ours, theirs) == []
    theirs.orders["1"] = BookedOrder("BTC", -1, 2 * E8, None)
    assert [row.check for row in differences(ours, theirs)] == ["order"]


def test_what_was_gained_less_what_positions_have_cost_must_be_the_exchanges_cash() -> None:
    ours, theirs = AccountBooks(100 * E8, {}, sum=100 * E8), AccountBooks(100 * E8, {})
    assert differences(ours, theirs) == []
    ours.sum = 100 * E8 + 1
    assert [row.check for row in differences(ours, theirs)] == ["value"]
    audited = Audited(Random("gained"))
    for name in ("realized", "fees", "funding", "start_balance", "margin_lost"):
        account = audited.follower.account
        setattr(account, name, getattr(account, name) + 1)
        ours = books_of(audited.follower.state, account, 0)
        assert [row.check for row in audited.found(ours, audited.theirs)] == ["value"], name
        setattr(account, name, getattr(account, name) - 1)


def test_a_balance_that_its_sums_do_not_give_is_named() -> None:
    account = Audited(Random("own")).follower.account
    account.balance += 1
    assert [(what, name) for what, name, _, _ in own_differences(account)] == [("equity", "balance and margins")]
