"""Limits on openings: the account's caps, the key's caps, the platform's limits, and blocking guardians.

Exits are refused only for too many open orders.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from bot.errors import Refusal
from bot.venue.accounting import drawdown_floors, exchange_limits, ledger
from bot.venue.model import outcome
from bot.venue.model.numbers import text_of
from bot.venue.model.state import (
    DAY_MS,
    GUARDIANS_MAX,
    OPEN_ORDERS_MAX,
    MarketSpec,
    OrderSpec,
    State,
    VenueAccount,
    VenueGuardian,
    VenueKey,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    guardian_id,
)

# Guardians that block all openings of the account, whichever key armed them.
BRAKES: Final = ("account_drawdown", "kill_switch")
OUTCOMES_BOOK: Final = "events"
# a key's caps on openings: name in the interface, attribute
CAPS: Final = (
    ("maxExposureUsd", "max_exposure"),
    ("maxDailyNotionalUsd", "max_daily_notional"),
    ("maxLeverage", "max_leverage"),
    ("maxOpenPositions", "max_open_positions"),
)
SAME_REACH: Final = "a key disarms only what it could have armed with the same reach"

Largest = Callable[[int], dict[str, Any] | None]


def blocking_guardians(account: VenueAccount) -> list[str]:
    """Ids of the guardians that refuse openings now."""
    return [guardian_id(account, g.number) for g in account.guardians.values() if g.blocks_opens]


def has_scope(key: VenueKey, spec: MarketSpec) -> bool:
    """True if the key's scopes allow closing in this market: outcomes for an event market, otherwise trade or
    trade:close_only.
    """
    if spec.book == OUTCOMES_BOOK:
        return "outcomes" in key.scopes
    return "trade" in key.scopes or "trade:close_only" in key.scopes


def reaches(state: State, guardian: VenueGuardian, coin: str) -> bool:
    """True if this guardian acts in this market. A bounded one acts where the key that armed it may close."""
    if not guardian.spec.bounded or guardian.key is None:
        return True
    key = state.keys[guardian.key]
    return (key.allowed_coins is None or coin in key.allowed_coins) and has_scope(key, state.markets[coin].spec)


def covers(state: State, guardian: VenueGuardian, other: VenueGuardian) -> bool:
    """True if this guardian acts in every market where the other one acts."""
    return all(reaches(state, guardian, coin) for coin in state.markets if reaches(state, other, coin))


def beyond_reach(state: State, key: VenueKey, guardian: VenueGuardian) -> Refusal | None:
    """Refuse a key that could not have armed this guardian with the same reach: its markets, and for a scheduled order
    its caps.

    A guardian of one position acts in its own market, which the caller checks.
    """
    if guardian.spec.order is not None:
        return _tighter_caps(key, None if guardian.key is None else state.keys[guardian.key])
    if guardian.spec.coin is not None:
        return None
    for coin, market in state.markets.items():
        if not reaches(state, guardian, coin):
            continue
        if not has_scope(key, market.spec):
            scope = "outcomes" if market.spec.book == OUTCOMES_BOOK else "trade"
            text = f"this guardian also acts in {coin}, where this key lacks the scope {scope}; {SAME_REACH}"
            return Refusal("forbidden", text, details={"requiredScope": scope})
        if key.allowed_coins is not None and coin not in key.allowed_coins:
            text = f"this guardian also acts in {coin}, which this key may not trade; {SAME_REACH}"
            details = {"cap": "allowedCoins", "allowed": list(key.allowed_coins)}
            return Refusal("key_limit_exceeded", text, details=details)
    return None


def _tighter_caps(key: VenueKey, armed_by: VenueKey | None) -> Refusal | None:
    """Refuse a key whose own caps would hold back the orders of a schedule that this key or session has armed."""
    for field, name in CAPS:
        own, theirs = getattr(key, name), None if armed_by is None else getattr(armed_by, name)
        if own is not None and (theirs is None or theirs > own):
            text = f"this schedule opens beyond the {field} of this key; {SAME_REACH}"
            return Refusal("key_limit_exceeded", text, details={"cap": field})
    return None


def blocker(state: State, account: VenueAccount, coin: str) -> VenueGuardian | None:
    """The first guardian that refuses openings in this market now, if any."""
    for guardian in account.guardians.values():
        if guardian.blocks_opens and (guardian.spec.type in BRAKES or reaches(state, guardian, coin)):
            return guardian
    return None


def is_blocked(state: State, account: VenueAccount, coin: str) -> bool:
    """True if a guardian blocks openings here now.

    A drawdown at its floor blocks them even before it acts at the end of this instant.
    """
    if not account.guardians:
        return False
    return blocker(state, account, coin) is not None or any(
        drawdown_floors.is_due(g) for g in account.guardians.values()
    )


def resets_at_ms(now_ms: int) -> int:
    return now_ms // DAY_MS * DAY_MS + DAY_MS


def used_today(owner: VenueAccount | VenueKey, now_ms: int) -> int:
    """Opening notional filled since 00:00 UTC. Only reads: the stored sums restart at the day's first fill."""
    return owner.day_notional if owner.day == now_ms // DAY_MS else 0


def worth(state: State, position: VenuePosition, *, leaving: int = 0) -> int:
    """|Notional| of a position at mark, without `leaving` of its size. A No share is worth 1 USD less the price."""
    market = state.markets[position.coin]
    return outcome.worth(market.spec, position.side, market.mark, position.size - leaving)


def _staying(state: State, account: VenueAccount, position: VenuePosition) -> int:
    """|Notional| of a position at mark, without the part that waiting exits will close."""
    return worth(state, position, leaving=ledger.leaving(account, state.markets[position.coin]))


def waiting(state: State, account: VenueAccount, key: VenueKey | None = None) -> int:
    """Notional of resting entries, which may fill at any moment. With a key: only of its own entries."""
    if not account.orders:
        return 0
    resting = _waiting_orders(account)
    return sum(opening_notional(state, order) for order in resting if key is None or order.key == key.id)


def _waiting_orders(account: VenueAccount) -> list[VenueOrder]:
    """Orders that wait here; at an exchange those that wait there, and those that it has not decided."""
    if account.exchange is None:
        return [account.orders[number] for number in account.resting]
    waiting = [order for order in account.orders.values() if order.kind in ("market", "limit")]
    return [order for order in waiting if order.status in ("open", "sent")]


def spoken_for_today(state: State, account: VenueAccount, key: VenueKey | None = None) -> int:
    """The used part of a daily cap of the account or the key: openings filled today and resting entries."""
    return used_today(account if key is None else key, state.now_ms) + waiting(state, account, key)


def exposure(state: State, account: VenueAccount) -> int:
    """|Notional| at mark of positions and of the unfilled part of resting entries."""
    return sum(_staying(state, account, position) for position in account.positions.values()) + waiting(state, account)


def exposure_beside(state: State, account: VenueAccount, market: VenueMarket, side: int) -> int:
    """Exposure without the opposite position of this market, which an opening on `side` closes first."""
    position = account.positions.get(market.spec.coin)
    closed = 0 if position is None or position.side == side else _staying(state, account, position)
    return exposure(state, account) - closed


def opening_notional(state: State, order: VenueOrder) -> int:
    market = state.markets[order.coin]
    px = order.limit_px if order.limit_px is not None else market.mark
    if order.status == "sent":
        # What crosses the book at the exchange fills there at its price: a sale above its limit.
        px = max(px, market.mark)
    return outcome.worth(market.spec, order.buy, px, order.left_to_open())


def busy_markets(state: State, account: VenueAccount) -> set[str]:
    """Markets with a resting entry, or with a position that no waiting exit closes."""
    stay = {
        coin
        for coin, position in account.positions.items()
        if position.size > ledger.leaving(account, state.markets[coin])
    }
    return stay | {order.coin for order in _waiting_orders(account) if not order.reduce_only}


def guardians_there(account: VenueAccount) -> int:
    """Number of guardians that are armed, or that resting orders will arm at their first fill."""
    waiting = _waiting_orders(account)
    return len(account.guardians) + sum(len(order.guardians) for order in waiting if not order.armed)


def refuse_coin(market: VenueMarket, key: VenueKey | None) -> Refusal | None:
    """Refuse a market outside the key's allowedCoins. This applies to exits too."""
    coin = market.spec.coin
    if key is not None and key.allowed_coins is not None and coin not in key.allowed_coins:
        return Refusal(
            "key_limit_exceeded",
            f"this key may not trade {coin}",
            details={"cap": "allowedCoins", "allowed": list(key.allowed_coins)},
        )
    return None


def refuse_orders(account: VenueAccount, more: int = 1) -> Refusal | None:
    """Refuse orders beyond the limit of open orders; reduce-only orders count too."""
    if len(account.orders) + more <= OPEN_ORDERS_MAX:
        return None
    return Refusal(
        "limit_exceeded",
        f"{len(account.orders)} orders are open, an account may have {OPEN_ORDERS_MAX} with the bracket",
        fix={"action": "cancel_orders"},
    )


def refuse_opening(
    state: State,
    account: VenueAccount,
    key: VenueKey | None,
    market: VenueMarket,
    order: OrderSpec,
    notional: int,
    largest: Largest,
) -> Refusal | None:
    """The first rule that forbids opening `notional` USD in this market, if any. The bracket and the guardians of the
    order count too.

    `largest(left)` is the fix that opens at most `left` USD; None if that is below the minimum order.
    """
    if account.exchange is not None and (
        refused := _refuse_at_exchange(state, account, key, market, order, notional, largest)
    ):
        return refused
    if (guardian := blocker(state, account, market.spec.coin)) is not None:
        gid = guardian_id(account, guardian.number)
        return Refusal(
            "limit_exceeded",
            f"openings are blocked by guardian {gid} ({guardian.spec.type})",
            details={"guardianId": gid, "guardianType": guardian.spec.type},
        )
    legs = (order.stop is not None) + (order.target is not None)
    if refused := refuse_orders(account, legs or 1):
        return refused
    if order.guardians and (there := guardians_there(account)) + len(order.guardians) > GUARDIANS_MAX:
        return Refusal(
            "limit_exceeded",
            f"{there} guardians are armed or attached to resting orders, an account may have {GUARDIANS_MAX}",
            fix={"action": "disarm"},
        )
    if account.max_trade is not None and notional > account.max_trade:
        return Refusal(
            "limit_exceeded",
            f"the order opens {text_of(notional)} USD, maxTradeUsd is {text_of(account.max_trade)}",
            fix=_way_out(state, account, key, market, order.side, largest),
            details={"cap": "maxTradeUsd"},
        )
    if account.daily_cap is not None and (used := spoken_for_today(state, account)) + notional > account.daily_cap:
        left = max(0, account.daily_cap - used)
        return Refusal(
            "limit_exceeded",
            f"dailyTradeCapUsd is {text_of(account.daily_cap)}, {text_of(left)} USD of it is left today",
            fix=_way_out(state, account, key, market, order.side, largest),
            details={"cap": "dailyTradeCapUsd", "resetsAt": resets_at_ms(state.now_ms)},
        )
    return refuse_key(state, account, key, market, order.side, notional, largest) if key is not None else None


def _refuse_at_exchange(
    state: State,
    account: VenueAccount,
    key: VenueKey | None,
    market: VenueMarket,
    order: OrderSpec,
    notional: int,
    largest: Largest,
) -> Refusal | None:
    """What forbids an opening on an account at an exchange alone."""
    if (refused := exchange_limits.refuse(account, market.spec.coin)) is not None:
        return refused
    if (cap := exposure_cap(account)) is not None and (
        held := exposure_beside(state, account, market, order.side)
    ) + notional > cap:
        return Refusal(
            "limit_exceeded",
            f"exchangeCapUsd is {text_of(cap)}, {text_of(max(0, cap - held))} USD of it is left; only the config of the"
            " service raises it",
            fix=_way_out(state, account, key, market, order.side, largest),
            details={"cap": "exchangeCapUsd"},
        )
    return None


def exposure_cap(account: VenueAccount) -> int | None:
    """The most exposure that an account at an exchange may have; None: no cap."""
    return None if account.exchange is None else account.exchange.exposure_cap


def refuse_key(
    state: State, account: VenueAccount, key: VenueKey, market: VenueMarket, side: int, notional: int, largest: Largest
) -> Refusal | None:
    """The key's own caps."""
    if (
        key.max_daily_notional is not None
        and (used := spoken_for_today(state, account, key)) + notional > key.max_daily_notional
    ):
        left = max(0, key.max_daily_notional - used)
        return Refusal(
            "key_limit_exceeded",
            f"maxDailyNotionalUsd is {text_of(key.max_daily_notional)}, {text_of(left)} USD of it is left today",
            fix=_way_out(state, account, key, market, side, largest),
            details={"cap": "maxDailyNotionalUsd", "resetsAt": resets_at_ms(state.now_ms)},
        )
    if (
        key.max_exposure is not None
        and (held := exposure_beside(state, account, market, side)) + notional > key.max_exposure
    ):
        left = max(0, key.max_exposure - held)
        return Refusal(
            "key_limit_exceeded",
            f"maxExposureUsd is {text_of(key.max_exposure)}, {text_of(left)} USD of it is left",
            fix=_way_out(state, account, key, market, side, largest),
            details={"cap": "maxExposureUsd"},
        )
    if is_full(state, account, key, market):
        return Refusal(
            "key_limit_exceeded",
            f"maxOpenPositions is {key.max_open_positions}",
            fix={"action": "close_first"},
            details={"cap": "maxOpenPositions"},
        )
    return None


def exceeds_leverage(state: State, order: VenueOrder, leverage: int) -> bool:
    """True if this is more leverage than the order's key allows.

    An entry that waited gets the leverage of the present position.
    """
    key = None if order.key is None else state.keys.get(order.key)
    return key is not None and key.max_leverage is not None and leverage > key.max_leverage


def _way_out(
    state: State, account: VenueAccount, key: VenueKey | None, market: VenueMarket, side: int, largest: Largest
) -> dict[str, Any]:
    """The fix for a cap: the largest order that every cap allows.

    If the tightest cap leaves less than the minimum order, the action against that cap.
    """
    if key is not None and is_full(state, account, key, market):
        return {"action": "close_first"}
    allowances: list[tuple[int, dict[str, Any]]] = []
    if account.max_trade is not None:
        allowances.append((account.max_trade, {"action": "raise_limit", "field": "maxTradeUsd"}))
    if account.daily_cap is not None:
        allowances.append((account.daily_cap - spoken_for_today(state, account), {"action": "wait"}))
    if key is not None and key.max_daily_notional is not None:
        allowances.append((key.max_daily_notional - spoken_for_today(state, account, key), {"action": "wait"}))
    if key is not None and key.max_exposure is not None:
        allowances.append((key.max_exposure - exposure_beside(state, account, market, side), {"action": "close_first"}))
    if (cap := exposure_cap(account)) is not None:
        allowances.append((cap - exposure_beside(state, account, market, side), {"action": "close_first"}))
    left, otherwise = min(allowances, key=itemgetter(0))
    return largest(left) or otherwise


def is_full(state: State, account: VenueAccount, key: VenueKey, market: VenueMarket) -> bool:
    """True if this market would exceed the key's maxOpenPositions."""
    if key.max_open_positions is None:
        return False
    busy = busy_markets(state, account)
    return market.spec.coin not in busy and len(busy) >= key.max_open_positions
