"""Packs old events and trades into pages. A page takes a tenth of the memory, is written once, and costs no time at a
start.

`fold` may be called at any time: commands and reads give the same answers. Backtests fold trades only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, Final

from bot.model.events import Event
from bot.venue.model import text_set
from bot.venue.model.state import RecordPage, VenueAccount, VenueTrade
from bot.venue.storage import codec

# small enough to unpack on a read, large enough to pack well
PAGE: Final = 64
# Unpacked pages that readers keep, over all accounts, 70 KB each. A reader goes through old records in order.
PAGES_OPEN: Final = 32


def fold(account: VenueAccount, *, but_newest: int = 0) -> None:
    """Pack events and trades into whole pages, except the `but_newest` newest ones and the trades from the oldest open
    one on. Fills an incomplete last page (snapshots write one) first.
    """
    events, pages = account.events, account.pages
    if pages and pages[-1].count < PAGE and events:
        short = pages.pop()
        events.extendleft(reversed(codec.unpack(short.packed)))
        while events[0].seq < account.events_first:
            events.popleft()
    while len(events) >= PAGE + but_newest:
        happened = [events.popleft() for _ in range(PAGE)]
        pages.append(RecordPage(happened[0].seq, PAGE, codec.pack(happened)))
    fold_trades(account, but_newest=but_newest)


def fold_trades(account: VenueAccount, *, but_newest: int = 0) -> None:
    """Pack trades only, up to the oldest open one."""
    done, trades = 0, account.trades
    if account.trade_pages and account.trade_pages[-1].count < PAGE and trades:
        trades[:0] = codec.unpack(account.trade_pages.pop().packed)
    while len(trades) - done >= PAGE + but_newest and all(
        trade.status != "open" for trade in trades[done : done + PAGE]
    ):
        account.trade_pages.append(RecordPage(trades[done].seq, PAGE, codec.pack(trades[done : done + PAGE])))
        done += PAGE
    del trades[:done]
    if account.trade_by_key:
        _fold_keys(account)


def _fold_keys(account: VenueAccount) -> None:
    """Move the idempotency keys of packed trades into the compact set.

    A key must be known for ever and is rarely looked up.
    """
    first, by_key = account.trade_seq - len(account.trades) + 1, account.trade_by_key
    old = list(takewhile(lambda key: int(by_key[key][-9:]) < first, by_key))
    if len(old) >= PAGE:
        text_set.add(account.old_keys, old)
        for key in old:
            del by_key[key]


def tail(account: VenueAccount) -> RecordPage | None:
    """The events after the last whole page, as a page."""
    if account.events:
        return RecordPage(account.events[0].seq, len(account.events), codec.pack(account.events))
    last = account.pages[-1] if account.pages else None
    return last if last is not None and last.count < PAGE else None


def trade_tail(account: VenueAccount) -> tuple[RecordPage | None, list[VenueTrade]]:
    """The trades after the last whole page: the finished ones as a page, and the rest from the oldest unfinished one
    on.
    """
    trades, last = account.trades, account.trade_pages[-1] if account.trade_pages else None
    if last is not None and last.count < PAGE:
        assert not trades, "fold has run"
        return last, []
    over = next((at for at, trade in enumerate(trades) if trade.status == "open"), len(trades))
    return RecordPage(trades[0].seq, over, codec.pack(trades[:over])) if over else None, trades[over:]


def after(account: VenueAccount, seq: int) -> Iterator[Event]:
    """The events after number `seq`, oldest first."""
    events = account.events
    at = max(seq + 1, account.events_first)
    opened = account.event_seq - len(events) + 1
    if at < opened:
        pages = account.pages
        for page in pages[bisect_right(pages, at, key=_first) - 1 :]:
            yield from _read(page.packed)[max(0, at - page.first) :]
        at = opened
    behind = account.event_seq - at + 1
    if behind <= 0:
        return
    if len(events) - behind < behind:
        yield from islice(events, len(events) - behind, None)
    else:
        yield from list(islice(reversed(events), behind))[::-1]


def trades_before(account: VenueAccount, seq: int | None = None) -> Iterator[VenueTrade]:
    """The trades with numbers below `seq` (None: all), newest first."""
    trades = account.trades
    first = account.trade_seq - len(trades) + 1
    at = len(trades) if seq is None else min(len(trades), seq - first)
    while at > 0:
        at -= 1
        yield trades[at]
    pages = account.trade_pages
    number = len(pages) if seq is None or seq >= first else bisect_right(pages, seq - 1, key=_first)
    for page in reversed(pages[:number]):
        whole = _read(page.packed)
        yield from reversed(whole if seq is None else whole[: max(0, seq - page.first)])


def trade_of(account: VenueAccount, trade_id: str) -> VenueTrade:
    """The trade of the account with this id."""
    # counted from the end: -1 is the newest
    at = int(trade_id[-9:]) - 1 - account.trade_seq
    if at >= -len(account.trades):
        return account.trades[at]
    return next(trades_before(account, at + account.trade_seq + 2))


def trade_of_key(account: VenueAccount, key: str) -> str | None:
    """The id of the trade of this idempotency key in this epoch, however old."""
    trade_id = account.trade_by_key.get(key)
    if trade_id is not None or not text_set.has(account.old_keys, key):
        return trade_id
    return next((trade.id for trade in trades_before(account) if trade.idempotency_key == key), None)


def oldest(account: VenueAccount) -> Event | None:
    """The oldest event that is still stored."""
    return next(after(account, 0), None)


def _first(page: RecordPage) -> int:
    return page.first


@lru_cache(PAGES_OPEN)
def _read(packed: bytes) -> tuple[Any, ...]:
    return tuple(codec.unpack(packed))
