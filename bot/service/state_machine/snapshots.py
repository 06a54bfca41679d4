"""Writes snapshots in small pieces: only the accounts that somebody used since the last snapshot, a few at a time.

Every access to an account goes through this mapping. A running snapshot therefore writes an account just before
somebody can change it, and holds the state of one instant while the service continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from bot.clock import monotonic_ns
from bot.venue.model.state import RecordPage, State, VenueAccount
from bot.venue.storage import codec, pages

EVENTS: Final = "event"
TRADES: Final = "trade"
# the longest delay that a piece of a snapshot may cause a caller
STEP_NS: Final = 4_000_000


class KeptAccount(NamedTuple):
    """The part of an account that a snapshot writes: everything outside pages, and pages that are not on disk yet."""

    account: str
    number: int
    body: str
    # with their kind
    pages: list[tuple[str, RecordPage]]
    # (kind, number): pages whose last record is before that number are deleted
    gone: list[tuple[str, int]]


class Accounts(dict[str, VenueAccount]):
    """The accounts of a state; remembers which of them were used."""

    def __init__(self, accounts: dict[str, VenueAccount], *, saved: bool = False) -> None:
        """`saved`: these accounts are stored in this form."""
        super().__init__(accounts)
        self.asked: set[str] = set() if saved else set(accounts)
        self.saving: SnapshotWriter | None = None
        self._paged = {name: _paged(account) for name, account in accounts.items()} if saved else {}

    def __getitem__(self, name: str) -> VenueAccount:
        account = dict.__getitem__(self, name)
        if name not in self.asked:
            self._ask(name)
        return account

    def __setitem__(self, name: str, account: VenueAccount) -> None:
        if name not in self.asked:
            self._ask(name)
        dict.__setitem__(self, name, account)

    def get(self, name: str, default: Any = None) -> Any:
        account = dict.get(self, name, default)
        if account is not default and name not in self.asked:
            self._ask(name)
        return account

    def values(self) -> Any:
        self._ask_all()
        return dict.values(self)

    def items(self) -> Any:
        self._ask_all()
        return dict.items(self)

    def _ask(self, name: str) -> None:
        if self.saving is not None:
            self.saving.take(name)
        self.asked.add(name)

    def _ask_all(self) -> None:
        if len(self.asked) < len(self):
            for name in self:
                if name not in self.asked:
                    self._ask(name)

    def keep(self, name: str) -> KeptAccount:
        """An account in the form that a snapshot writes."""
        account = dict.__getitem__(self, name)
        pages.fold(account)
        before, now = self._paged.get(name, _NOTHING), _paged(account)
        self._paged[name] = now
        fresh = [(EVENTS, page) for page in _newest(account.pages, before.events_end) if page.count == pages.PAGE]
        fresh += [
            (TRADES, page) for page in _newest(account.trade_pages, before.trades_end) if page.count == pages.PAGE
        ]
        last = pages.tail(account)
        if last is not None:
            fresh.append((EVENTS, last))
        over, trades = pages.trade_tail(account)
        if over is not None:
            fresh.append((TRADES, over))
        gone = []
        if now.events_first != before.events_first:
            gone.append((EVENTS, now.events_first))
        if now.trades_first != before.trades_first:
            gone.append((TRADES, now.trades_first))
        body = _text(replace(account, events=deque(), trades=trades, pages=[], trade_pages=[]))
        return KeptAccount(name, account.number, body, fresh, gone)


class SnapshotWriter:
    """A running snapshot: the state without its accounts, and the accounts that are not written yet."""

    def __init__(self, state: State, accounts: Accounts) -> None:
        self.head = _text(replace(state, accounts={}, deadlines=[], fresh=[]))
        self.written: list[KeptAccount] = []
        self._accounts = accounts
        self._left = dict.fromkeys(sorted(accounts.asked))
        accounts.asked = set()
        accounts.saving = self

    def take(self, name: str) -> None:
        """Write this account now if it is not written yet, because it may change next."""
        if name in self._left:
            del self._left[name]
            self.written.append(self._accounts.keep(name))

    def go_on(self, budget_ns: int | None = STEP_NS) -> bool:
        """Write as many accounts as the time allows; True when all are written."""
        end = None if budget_ns is None else monotonic_ns() + budget_ns
        while self._left:
            name = next(iter(self._left))
            self.take(name)
            if end is not None and monotonic_ns() >= end:
                break
        if self._left:
            return False
        self._accounts.saving = None
        return True


def _text(value: object) -> str:
    """The text that `codec.loads` reads."""
    return to_json(codec.encode(value)).decode()


def tracked(state: State, *, saved: bool = False) -> Accounts:
    """The state's accounts as a mapping that remembers which were used."""
    accounts = state.accounts
    if not isinstance(accounts, Accounts):
        accounts = state.accounts = Accounts(accounts, saved=saved)
    return accounts


def assembled(head: str, bodies: Iterable[str], stored: Iterable[tuple[str, str, int, int, bytes]]) -> State:
    """The state of a snapshot. A head that holds accounts is whole, because it comes from a restored snapshot."""
    state: State = codec.loads(head)
    if state.accounts:
        tracked(state)
        return state
    accounts: dict[str, VenueAccount] = {}
    for body in bodies:
        account: VenueAccount = codec.loads(body)
        accounts[account.id] = account
    for name, kind, first, count, packed in stored:
        account = accounts[name]
        (account.pages if kind == EVENTS else account.trade_pages).append(RecordPage(first, count, packed))
    state.accounts = accounts
    tracked(state, saved=True)
    return state


class _Paged(NamedTuple):
    """The records of an account that are in whole pages on disk: the numbers they end at (exclusive), and the oldest
    ones.
    """

    events_end: int
    trades_end: int
    events_first: int
    trades_first: int


_NOTHING: Final = _Paged(0, 0, 1, 1)


def _paged(account: VenueAccount) -> _Paged:
    return _Paged(
        _end_of(account.pages, account.events_first),
        _end_of(account.trade_pages, account.trade_first),
        account.events_first,
        account.trade_first,
    )


def _end_of(listed: list[RecordPage], first: int) -> int:
    """The number after the last whole page."""
    whole = next((page for page in reversed(listed) if page.count == pages.PAGE), None)
    return first if whole is None else whole.first + whole.count


def _newest(all_pages: list[RecordPage], first: int) -> list[RecordPage]:
    """The pages that begin at number `first` or later."""
    at = len(all_pages)
    while at and all_pages[at - 1].first >= first:
        at -= 1
    return all_pages[at:]
