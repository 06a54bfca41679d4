"""What an account held, and since when: the part of its history from which its value at any step of the past can be told.

No price is kept here and nothing waits for a clock: a stand is written when a command has moved money or positions, and a reader prices it
with the candles. Kept as far as the steps of the interface need: every 5 minutes for a day, 1 h for 7, 4 h for 30, 1 d from there on.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from bot.venue.events import AccountChanged, Event, GuardianMoved, OrderChanged, Triggered
from bot.venue.numbers import E8
from bot.venue.state import DAY_MS, HOUR_MS, Account, Stand, State

STEP_MS: Final = 300_000  # the finest step of the interface's ranges
DAYS_KEPT: Final = 4_000  # points of the longest series; a chart has no more pixels

# (age up to which, step): of each step the last stand is kept, the one that its end is told from.
KEPT: Final = ((DAY_MS, STEP_MS), (7 * DAY_MS, HOUR_MS), (30 * DAY_MS, 4 * HOUR_MS), (DAYS_KEPT * DAY_MS, DAY_MS))

_QUIET: Final = frozenset(
    {OrderChanged, Triggered, GuardianMoved, AccountChanged}
)  # these move neither money nor sizes


def note(state: State, events: list[Event]) -> None:
    """Write down how the accounts of these events stand now."""
    moved: dict[str, None] = {}
    for event in events:
        if type(event) not in _QUIET:
            moved[event.account] = None
    for name in moved:
        write(state.accounts[name], state)


def write(account: Account, state: State) -> None:
    """The account's stand at this instant, in the place of an earlier one of the same step."""
    now = state.now_ms
    stand = stand_of(account, state)
    history = account.history
    if not history:
        history.append(stand)
        return
    last = history[-1].ts
    if _step(last, STEP_MS) == _step(now, STEP_MS):
        history[-1] = stand
        return
    history.append(stand)
    if _step(last, DAY_MS) != _step(now, DAY_MS):
        account.history = thinned(history, now)


def stand_of(account: Account, state: State) -> Stand:
    """Cash and sizes as they are: value = cash + sum of signed size * mark, exactly `ledger.account_value`."""
    cash = account.balance
    held = []
    for coin, position in account.positions.items():
        cash += position.margin - position.side * position.entry_notional
        held.append((coin, position.side * position.size, state.markets[coin].mark))
    return Stand(state.now_ms, cash, tuple(held))


def value(cash: int, sizes: list[tuple[int, int]]) -> int:
    """What cash and (signed size, mark) are worth."""
    for size, mark in sizes:
        cash += mark * size // E8 if size > 0 else -(mark * -size // E8)
    return cash


def thinned(history: list[Stand], now_ms: int) -> list[Stand]:
    """The last stand of each step, in the step that its age calls for; of what is older than all of them, the last one."""
    # One step more than the range, so that its first point is told from a stand and not from nothing.
    begins = [bisect_left(history, now_ms - reach - step, key=_ts) for reach, step in KEPT]
    kept = history[: begins[-1]][-1:]
    for (_, step), first, last in zip(reversed(KEPT), reversed(begins), (*begins[-2::-1], len(history)), strict=True):
        kept += {_step(stand.ts, step): stand for stand in history[first:last]}.values()
    return kept


def _step(ts: int, step: int) -> int:
    """The step that an instant belongs to: a boundary to the step that ends there, so that its point has what was paid at that instant."""
    return (ts - 1) // step


def _ts(stand: Stand) -> int:
    return stand.ts
