"""Which reports of an exchange are new.

Each stream (fills, funding, transfers, orders) keeps the keys of its last days. A copy of an older report is not
booked: no repair reads so far back.
"""

from __future__ import annotations

from typing import Final

from bot.venue.model.state import DAY_MS, HOUR_MS, ExchangeAccount, State, VenueAccount
from bot.venue.orders import exchange_actions

FILL: Final = "fill"
FUNDING: Final = "funding"
TRANSFER: Final = "transfer"
ORDER: Final = "order"
# Ids of orders that stand or were filled and that this database does not know: the names that their programs gave.
CLIENT: Final = exchange_actions.CLIENT
# How long keys of reports are kept: a repair of the link repeats reports of some minutes at most.
KEPT_MS: Final = 2 * DAY_MS
# A new link begins this long before the newest booked fill, because a message may have been lost that no repair
# has brought.
OVERLAP_MS: Final = HOUR_MS


def followed(state: State, account_id: str) -> tuple[VenueAccount, ExchangeAccount]:
    """An account that follows an exchange, and what it knows of it."""
    account = state.accounts[account_id]
    assert account.exchange is not None, account_id
    return account, account.exchange


def is_new(exchange: ExchangeAccount, stream: str, key: str, at_ms: int, size: int = 0) -> bool:
    """Note a report. False for a copy, and for a report that the beginning of the account contains already."""
    name = f"{stream} {key}"
    newest_ms = exchange.newest.get(stream, 0)
    if at_ms <= exchange.adopted_ms or name in exchange.seen or at_ms < newest_ms - KEPT_MS:
        return False
    if at_ms > newest_ms:
        exchange.newest[stream] = at_ms
        if newest_ms // HOUR_MS != at_ms // HOUR_MS:
            _forget(exchange)
    exchange.seen[name] = (at_ms, size)
    return True


def _forget(exchange: ExchangeAccount) -> None:
    """Drop keys that are so old that a copy would not be booked anyway."""
    newest = exchange.newest
    exchange.seen = {
        name: (at_ms, size)
        for name, (at_ms, size) in exchange.seen.items()
        if at_ms >= newest[name.partition(" ")[0]] - KEPT_MS
    }


def cursor(account: VenueAccount) -> tuple[int, dict[str, int]]:
    """From where a new link reads fills: those after this instant, from these signed sizes by market."""
    exchange = account.exchange
    assert exchange is not None
    known_ms = min([exchange.newest.get(FILL, 0), *(fill.at_ms for fill in exchange.waiting)])
    at_ms = max(exchange.adopted_ms, known_ms - OVERLAP_MS)
    sizes = {coin: position.side * position.size for coin, position in account.positions.items()}
    waiting = {f"{FILL} {fill.key}" for fill in exchange.waiting}
    for name, (booked_ms, size) in exchange.seen.items():
        stream, coin, *_ = name.split(" ")
        if stream == FILL and booked_ms > at_ms and name not in waiting:
            sizes[coin] = sizes.get(coin, 0) - size
    return at_ms, {coin: size for coin, size in sizes.items() if size}


def money_cursor(exchange: ExchangeAccount, stream: str) -> int:
    """From where a new link reads funding or transfers."""
    return max(exchange.adopted_ms, exchange.newest.get(stream, 0) - OVERLAP_MS)
