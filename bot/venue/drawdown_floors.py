"""Drawdown floors: what an account was worth when its UTC day began, how far it may fall, and the price at which it has. Pure; `guardian_actions` acts.

The slack above the tightest floor is divided among the account's positions in equal shares, each a level in its market. While none has used up its
share the account cannot be at its floor, so a bar that touches no level cannot hide a drawdown. When one has, that position gets the whole
slack for the rest of this price, which is exact since no other market moves meanwhile; then it is divided again.
"""

from __future__ import annotations

from typing import Final

from bot.venue import index
from bot.venue.numbers import E8, div_up
from bot.venue.state import DAY_MS, Account, Guardian, Market, Position, State

TYPE: Final = "account_drawdown"
PERCENT: Final = 100 * E8


def begin_day(account: Account, now_ms: int, value: int) -> None:
    """Keep what the account is worth as its day begins; a day that has begun stays as it is."""
    if account.value_day != now_ms // DAY_MS:
        account.value_day, account.day_value = now_ms // DAY_MS, value


def is_rolling(state: State) -> bool:
    """Does a day begin at this instant, before its first values are taken? Yesterday's floors no longer hold."""
    return 0 < state.next_day_ms <= state.now_ms


def armed(account: Account) -> list[Guardian]:
    """The drawdown guardians that watch now. An account without value at the start of its day has none."""
    if account.day_value <= 0:
        return []
    return [g for g in account.guardians.values() if g.spec.type == TYPE and g.status == "armed"]


def is_due(guardian: Guardian) -> bool:
    """Has a fill taken the account to this floor? Its drawdown acts at this very instant."""
    return guardian.spec.type == TYPE and guardian.status == "armed" and guardian.deadline_ms is not None


def is_watched(account: Account) -> bool:
    return any(g.spec.type == TYPE for g in account.guardians.values())


def floor_of(account: Account, guardian: Guardian) -> int:
    """Account value at which the loss since the day's start is the greatest allowed, to the unit."""
    assert guardian.spec.max_loss_pct is not None
    return account.day_value - div_up(max(0, account.day_value) * guardian.spec.max_loss_pct, PERCENT)


def breached(account: Account, value: int) -> list[Guardian]:
    """Armed guardians whose floor `value` has reached, the tightest first."""
    found = [g for g in armed(account) if value <= floor_of(account, g)]
    return sorted(found, key=lambda g: (-floor_of(account, g), g.number))


def level_of(market: Market, position: Position, slack: int) -> int | None:
    """The first price, going against the position, at which it has lost `slack` USD more than at mark. None: no such price."""
    side, size = position.side, position.size
    left = side * (market.mark * size // E8) - slack
    # The largest p with p * size // E8 <= left of a long, the smallest with p * size // E8 >= -left of a short.
    px = ((left + 1) * E8 - 1) // size if side > 0 else div_up(-left * E8, size)
    return px if px > 0 else None


def rewatch(state: State, account: Account, value: int) -> None:
    """Put the floor's watches where they belong now that the account is worth `value`. At or below the floor it falls due at once."""
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


def widen(state: State, account: Account, market: Market, value: int) -> None:
    """This market's position has used up its share: for the rest of this price the whole slack is its own."""
    slack = value - max(floor_of(account, g) for g in armed(account))
    assert slack > 0
    position = account.positions[market.spec.coin]
    index.move_floor(market, position, level_of(market, position, slack))
