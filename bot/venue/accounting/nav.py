"""The history of an account's holdings, from which its value at past instants is computed.

An entry is written when a command has moved money or positions; the reader prices it with candles. Entries are kept as
finely as the interface shows them: every 5 minutes for a day, 1 h for 7 days, 4 h for 30 days, then daily.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from bot.model.events import AccountChanged, Event, GuardianMoved, OrderChanged, Triggered
from bot.venue.model.numbers import E8
from bot.venue.model.state import DAY_MS, HOUR_MS, Stand, State, VenueAccount, new_stand

# the shortest step of the interface's ranges
STEP_MS: Final = 300_000
# points of the longest series; a chart has no more pixels
DAYS_KEPT: Final = 4_000

# (largest age, step): the last entry of each step is kept; it gives the value at the end of the step.
KEPT: Final = ((DAY_MS, STEP_MS), (7 * DAY_MS, HOUR_MS), (30 * DAY_MS, 4 * HOUR_MS), (DAYS_KEPT * DAY_MS, DAY_MS))

# commands that move neither money nor sizes
_QUIET: Final = frozenset({OrderChanged, Triggered, GuardianMoved, AccountChanged})


def note(state: State, events: list[Event]) -> None:
    """Record the holdings of the accounts of these events."""
    moved = ""
    for event in events:
        if type(event) not in _QUIET and event.account != moved:
            moved = event.account
            write(state.accounts[moved], state)


def write(account: VenueAccount, state: State) -> None:
    """Write the account's present holdings. Replaces an earlier entry of the same step."""
    stand, history = stand_of(account, state), account.history
    now, last = stand.ts, history[-1].ts if history else stand.ts
    if (last - 1) // STEP_MS == (now - 1) // STEP_MS:
        history[-1:] = (stand,)
        return
    history.append(stand)
    if (last - 1) // DAY_MS != (now - 1) // DAY_MS:
        account.history = thinned(history, now)


def stand_of(account: VenueAccount, state: State) -> Stand:
    """Cash and sizes now: value = cash + sum of signed size * mark, exactly `ledger.account_value`."""
    cash = account.balance
    held = []
    for coin, position in account.positions.items():
        side = position.side
        cash += position.margin - side * position.entry_notional
        held.append((coin, side * position.size, state.markets[coin].mark))
    return new_stand((state.now_ms, cash, tuple(held)))


def value(cash: int, sizes: list[tuple[int, int]]) -> int:
    """The value of cash and (signed size, mark)."""
    for size, mark in sizes:
        cash += mark * size // E8 if size > 0 else -(mark * -size // E8)
    return cash


def thinned(history: list[Stand], now_ms: int) -> list[Stand]:
    """The last entry of each step, with the step for the entry's age, and the last of all older entries."""
    # One step more than the range, so that its first point has an entry before it.
    begins = [bisect_left(history, now_ms - reach - step, key=_ts) for reach, step in KEPT]
    newest = history[: begins[-1]][-1:]
    for (_, step), first, last in zip(reversed(KEPT), reversed(begins), (*begins[-2::-1], len(history)), strict=True):
        newest += {_step(stand.ts, step): stand for stand in history[first:last]}.values()
    return newest


def _step(ts: int, step: int) -> int:
    """The step of an instant.

    A boundary belongs to the step that it ends, so that its value includes payments at that instant.
    """
    return (ts - 1) // step


def _ts(stand: Stand) -> int:
    return stand.ts
