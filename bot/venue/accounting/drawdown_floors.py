"""Drawdown floors: account value at the start of the UTC day, the largest loss, and the price that reaches it. Pure;
`guardian_actions` acts.

The slack above the tightest floor is divided equally among the account's positions, and each share gives a price level
in its market. The account cannot reach its floor before a position has used up its share, so a bar that touches no
level cannot hide a drawdown. Then that position gets the whole slack while this price is applied, which is exact
because no other market moves meanwhile. Afterwards the slack is divided again.
"""

from __future__ import annotations

from typing import Final

from bot.venue.model.numbers import E8, div_up
from bot.venue.model.state import DAY_MS, State, VenueAccount, VenueGuardian, VenueMarket, VenuePosition
from bot.venue.prices import index

TYPE: Final = "account_drawdown"
PERCENT: Final = 100 * E8


def begin_day(account: VenueAccount, now_ms: int, value: int) -> None:
    """Store the account's value at the start of its day. Does nothing if the day has started already."""
    if account.value_day != now_ms // DAY_MS:
        account.value_day, account.day_value = now_ms // DAY_MS, value


def is_rolling(state: State) -> bool:
    """True if a day begins at this instant and its first values are not stored yet.

    Yesterday's floors are not valid any more.
    """
    return 0 < state.next_day_ms <= state.now_ms


def armed(account: VenueAccount) -> list[VenueGuardian]:
    """The drawdown guardians that watch the account now.

    An account whose value was zero at the start of the day has none.
    """
    if account.day_value <= 0:
        return []
    return [g for g in account.guardians.values() if g.spec.type == TYPE and g.status == "armed"]


def is_due(guardian: VenueGuardian) -> bool:
    """True if a fill has taken the account to this floor. The drawdown then acts at the same instant."""
    return guardian.spec.type == TYPE and guardian.status == "armed" and guardian.deadline_ms is not None


def is_watched(account: VenueAccount) -> bool:
    return any(g.spec.type == TYPE for g in account.guardians.values())


def floor_of(account: VenueAccount, guardian: VenueGuardian) -> int:
    """The account value, to the unit, at which the loss since the start of the day reaches the maximum."""
    assert guardian.spec.max_loss_pct is not None
    return account.day_value - div_up(max(0, account.day_value) * guardian.spec.max_loss_pct, PERCENT)


def breached(account: VenueAccount, value: int) -> list[VenueGuardian]:
    """Armed guardians whose floor `value` has reached, the highest floor first."""
    guardians = [g for g in armed(account) if value <= floor_of(account, g)]
    return sorted(guardians, key=lambda g: (-floor_of(account, g), g.number))


def level_of(market: VenueMarket, position: VenuePosition, slack: int) -> int | None:
    """The first price against the position at which it has lost `slack` USD compared with the mark.

    None if there is no such price.
    """
    side, size = position.side, position.size
    left = side * (market.mark * size // E8) - slack
    # For a long the largest p with p * size // E8 <= left, for a short the smallest with p * size // E8 >= -left.
    px = ((left + 1) * E8 - 1) // size if side > 0 else div_up(-left * E8, size)
    return px if px > 0 else None


def rewatch(state: State, account: VenueAccount, value: int) -> None:
    """Place the price levels of the floor for an account worth `value`.

    At or below the floor, the guardian is due at once.
    """
    guards = [] if is_rolling(state) else armed(account)
    slack = value - max((floor_of(account, g) for g in guards), default=value)
    if not guards or slack <= 0:
        for position in account.positions.values():
            index.move_floor(state.markets[position.coin], position, None)
        for guardian in guards:
            if guardian.deadline_ms is None and value <= floor_of(account, guardian):
                guardian.deadline_ms = state.now_ms
                index.schedule_guardian(state, account, guardian)
        return
    share = slack // max(1, len(account.positions))
    for position in account.positions.values():
        market = state.markets[position.coin]
        index.move_floor(market, position, level_of(market, position, share))


def widen(state: State, account: VenueAccount, market: VenueMarket, value: int) -> None:
    """The position in this market has used up its share: while this price is applied, it has the whole slack."""
    slack = value - max(floor_of(account, g) for g in armed(account))
    assert slack > 0
    position = account.positions[market.spec.coin]
    index.move_floor(market, position, level_of(market, position, slack))
