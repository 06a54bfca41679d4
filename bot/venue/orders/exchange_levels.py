"""Where the stop and the target of a position should stand at an exchange.

The stop is the nearest of the bracket's stop and the trailing stops. A trailing stop moves there in steps, so that it
does not use up the account's budget of actions; the venue guards its exact level meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bot.venue.model.numbers import BPS
from bot.venue.model.state import (
    PositionProtection,
    ProtectionOrder,
    State,
    VenueAccount,
    VenueGuardian,
    VenueMarket,
    VenueOrder,
    VenuePosition,
)
from bot.venue.orders import exchange_actions
from bot.venue.protection import guardians

KINDS: Final = ("stop_loss", "take_profit")
# A step is at least so large, so that a stop is not moved for noise.
STEP_TICKS: Final = 4
STEP_BPS: Final = 5
MINUTE_MS: Final = 60_000
# Steps in a minute and market, if at least so many actions are left of the account's budget.
STEPS: Final = ((2_000, 4), (1_000, 2), (0, 0))
# Steps in a minute while nobody knows how many actions are left.
STEPS_UNKNOWN: Final = 2


# `born` of a level that the price has reached, so that it does not act again meanwhile
MUTED: Final = 1 << 50


class ProtectionLevel(NamedTuple):
    """A stop or target of a position. `exact_px`: where the venue acts. `px`: where the exchange's order stands."""

    owner: VenueOrder | VenueGuardian
    kind: str
    exact_px: int
    px: int

    @property
    def trail(self) -> VenueGuardian | None:
        return self.owner if isinstance(self.owner, VenueGuardian) else None


def own(account: VenueAccount, coin: str, kind: str) -> VenueOrder | None:
    """The venue's stop or target of a market; None if there is none. That of a trailing stop is no order."""
    return next((o for o in account.orders.values() if o.coin == coin and o.kind == kind and o.leg is not None), None)


def trails(account: VenueAccount, coin: str) -> list[VenueGuardian]:
    """The active trailing stops of a market."""
    return [g for g in account.guardians.values() if g.spec.coin == coin and g.active and g.stop_px is not None]


def placed(account: VenueAccount, coin: str, kind: str) -> list[ProtectionOrder]:
    """Orders of ours that stand at the exchange or may stand there."""
    known = exchange_actions.known(account).protection_orders
    return [order for order in known.values() if (order.coin, order.kind) == (coin, kind) and order.status != "ended"]


def levels(account: VenueAccount, coin: str, kind: str) -> list[ProtectionLevel]:
    """All levels of a position at which the venue acts, nearest first."""
    position, order = account.positions.get(coin), own(account, coin, kind)
    if position is None:
        return []
    all_levels = []
    if order is not None and order.trigger_px is not None:
        all_levels.append(ProtectionLevel(order, kind, order.trigger_px, order.trigger_px))
    if kind == "stop_loss":
        step_px = exchange_actions.known(account).protections[coin].step_px
        bracket_px = None if order is None or order.reason is not None else order.trigger_px
        standing_px = guardians.nearest(position.side, step_px, bracket_px)
        for trail in trails(account, coin):
            assert trail.stop_px is not None
            all_levels.append(ProtectionLevel(trail, kind, trail.stop_px, standing_px or trail.stop_px))
    return sorted(all_levels, key=lambda level: -level.exact_px * position.side)


def wanted(account: VenueAccount, coin: str, kind: str) -> ProtectionLevel | None:
    """The level that the exchange should have; None: none. One that a caller has canceled is not wanted."""
    return next((level for level in levels(account, coin, kind) if not _is_canceled(level.owner)), None)


def _is_canceled(owner: VenueOrder | VenueGuardian) -> bool:
    return isinstance(owner, VenueOrder) and owner.reason is not None


# ── Steps of a trailing stop ────────────────────────────────────────────────────────────────────────────────────────


def steps_a_minute(actions_left: int | None) -> int:
    """How often the stop of one market may follow its trailing stop."""
    if actions_left is None:
        return STEPS_UNKNOWN
    return next((steps for least, steps in STEPS if actions_left >= least), 0)


def step(state: State, account: VenueAccount, watched: PositionProtection, coin: str) -> int | None:
    """Move the wanted stop after the nearest trailing stop, if the step is large enough and not too soon.

    Returns when a step that is due may be taken; None: time alone changes nothing.
    """
    level, position = wanted(account, coin, "stop_loss"), account.positions.get(coin)
    _note_loosening(account, watched, position, level)
    if level is None or position is None or level.trail is None:
        watched.step_px = None
        return None
    if level.trail.born >= MUTED:
        return None
    market, side, order = state.markets[coin], position.side, own(account, coin, "stop_loss")
    least = max(STEP_TICKS * market.tick(level.exact_px), level.exact_px * STEP_BPS // BPS)
    watched.step_px = _standing_px(account, watched, position, level.exact_px, least)
    bracket_px = None if order is None or order.reason is not None else order.trigger_px
    standing_px = guardians.nearest(side, watched.step_px, bracket_px)
    aim_px = aim(market, side, level.exact_px)
    if standing_px is not None:
        if (aim_px - standing_px) * side < least or _is_under_way(account, coin):
            return None
        # A stop that is to give way is looser after its step, so that step is neither counted nor put off.
        if not any((order.px - aim_px) * side > 0 for order in standing(account, coin, side)):
            watched.steps_ms = tuple(at_ms for at_ms in watched.steps_ms if at_ms > state.now_ms - MINUTE_MS)
            most = steps_a_minute(exchange_actions.known(account).actions_left)
            if len(watched.steps_ms) >= most:
                return watched.steps_ms[-most] + MINUTE_MS if most else None
            if watched.again_ms > state.now_ms:
                return watched.again_ms
            watched.steps_ms += (state.now_ms,)
    watched.step_px = aim_px
    return None


def aim(market: VenueMarket, side: int, exact_px: int) -> int:
    """A trailing stop's level on the grid, rounded toward its extreme."""
    return market.grid_up(exact_px) if side > 0 else market.grid_down(exact_px)


def _note_loosening(
    account: VenueAccount, watched: PositionProtection, position: VenuePosition | None, level: ProtectionLevel | None
) -> None:
    """Note when a looser stop is wanted, or none. Levels do not loosen by themselves: a caller has taken one away, a
    trailing stop has fired, or the position is gone. The stops that were asked for until then may be loosened.
    """
    nearest = None if position is None or level is None else (position.side, level.exact_px)
    if watched.nearest is not None and watched.nearest != nearest:
        side, px = watched.nearest
        if nearest is None or nearest[0] != side or (nearest[1] - px) * side < 0:
            watched.step_px, watched.loosened_nonce = None, exchange_actions.known(account).action_nonce
    watched.nearest = nearest


def may_loosen(watched: PositionProtection, order: ProtectionOrder, px: int) -> bool:
    """True if the stop `order` may give way to one at `px`: it is not tighter, or its level is not wanted any more."""
    return order.kind != "stop_loss" or (order.px - px) * order.side <= 0 or order.nonce <= watched.loosened_nonce


def _standing_px(
    account: VenueAccount, watched: PositionProtection, position: VenuePosition, exact_px: int, least: int
) -> int | None:
    """Where the stop stands for the trailing stops. A tighter one that stands, as an entry takes it along, is kept."""
    side, there = position.side, standing(account, position.coin, position.side)
    if watched.step_px is not None:
        tighter = [order.px for order in there if not may_loosen(watched, order, watched.step_px)]
        return guardians.nearest(side, watched.step_px, *tighter)
    as_good = [order for order in there if (order.px - exact_px) * side > -least]
    kept = [o.px for o in as_good if (o.px - exact_px) * side < least or not may_loosen(watched, o, exact_px)]
    return guardians.nearest(side, *kept)


def standing(account: VenueAccount, coin: str, side: int) -> list[ProtectionOrder]:
    """Stops of a position that stand at the exchange and are to stay."""
    leaving = exchange_actions.leaving(account)
    there = (o for o in placed(account, coin, "stop_loss") if (o.side, o.status) == (side, "there"))
    return [order for order in there if order.client_order_id not in leaving]


def _is_under_way(account: VenueAccount, coin: str) -> bool:
    """True while the exchange has not decided the last step."""
    actions = exchange_actions.known(account).actions
    asked = [actions.get(o.nonce) for o in placed(account, coin, "stop_loss") if o.status == "asked" and not o.size]
    return any(action is not None and not action.over_ms for action in asked)


def step_refused(account: VenueAccount, watched: PositionProtection, order: ProtectionOrder) -> bool:
    """The exchange has refused a step: the stop stays where it stands. False if none stands."""
    there = [other.px for other in standing(account, order.coin, order.side) if not other.size]
    if watched.step_px != order.px or not there:
        return False
    watched.step_px = guardians.nearest(order.side, *there)
    return True
