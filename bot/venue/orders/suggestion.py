"""Order sizes that would pass now."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.errors import Refusal
from bot.venue.accounting import ledger, limits
from bot.venue.accounting.order_margin import leverage_margin
from bot.venue.accounting.order_sizes import CLOSE_SLIPPAGE_BPS, bound_of, bps_from_mid, fee_of_fills, least_size
from bot.venue.model import outcome
from bot.venue.model.numbers import E8, div_up, text_of
from bot.venue.model.refusals import no_market
from bot.venue.model.state import State, VenueAccount, VenueKey, VenueMarket
from bot.venue.prices.book import book, walk

Warning_ = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """What a caller asks for: a new order, or a reduce-only exit. None: the service chooses."""

    coin: str
    intent: str = "open"
    side: int = 1
    notional: int | None = None
    size: int | None = None
    leverage: int | None = None
    slippage_bps: int | None = None


@dataclass(slots=True, kw_only=True)
class Suggestion:
    """An order that would pass. `feasible` false (`size` None): no order passes."""

    coin: str
    intent: str
    side: int
    feasible: bool
    size: int | None = None
    notional: int | None = None
    leverage: int | None
    mid: int
    est_px: int | None = None
    slippage_bps: int | None = None
    fee: int | None = None
    margin: int | None = 0
    min_size: int
    min_notional: int
    max_size: int
    bound_bps: int
    # The leverage of the open position changes. The order must acknowledge it.
    changes_leverage: bool = False
    warnings: list[Warning_] = field(default_factory=list)


def _refused(state: State, account: VenueAccount, coin: str, *, closing: bool) -> Refusal | None:
    market = state.markets.get(coin)
    if market is None:
        return no_market(coin, state.markets)
    if market.status != "open":
        return Refusal("market_closed", f"{coin} is {market.status}", details={"opensAt": market.opens_ms})
    if closing and coin not in account.positions:
        return Refusal("not_found", f"there is no position in {coin} to close")
    return None


def suggest(state: State, account: VenueAccount, key: VenueKey | None, question: SizeQuestion) -> Suggestion | Refusal:
    """The size of an order (or a reduce-only exit) that would pass now: within depth, slippage, margin and caps, and
    not below the minimum.
    """
    coin, side, size, notional = question.coin, question.side, question.size, question.notional
    closing = question.intent == "close"
    if (refused := _refused(state, account, coin, closing=closing)) is not None:
        return refused
    market, position = state.markets[coin], account.positions.get(coin)
    if closing and position is not None:
        side = position.side
    buy = -side if closing else side
    bps = CLOSE_SLIPPAGE_BPS if closing else market.spec.slippage_bps
    if question.slippage_bps is not None:
        bps = question.slippage_bps
    bound = bound_of(market, market.mid, buy, bps)
    deep = sum(s for _, s in book(market)[1 if buy > 0 else 0])
    depth = sum(s for _, s in walk(market, market.mid, buy, deep, bound))
    unit_px = outcome.share_px(market.spec, -buy if closing else buy, market.mid)
    low = least_size(market, unit_px)
    warnings: list[Warning_] = []
    used = 1
    if closing and position is not None:
        most, low = min(depth, position.size), min(low, position.size)
    else:
        used, most = _most_opened(state, account, key, market, buy, question.leverage, warnings)
        most = min(depth, most)
    if limits.refuse_coin(market, key) is not None:
        most = 0
    fetched_px, held = outcome.share_px(market.spec, -buy, market.mid), 0
    if not closing and position is not None and position.side != side and market.spec.margin_mode == "full":
        held = position.size
    asked = size if size is not None else notional * E8 // fetched_px if notional is not None else low
    reduces = 0 < asked <= held
    # The order only closes, so it is worth the proceeds of those shares.
    if reduces:
        unit_px, low, held = fetched_px, min(held, least_size(market, fetched_px)), 0
    want = most if closing else low
    if size is not None:
        want = size
    # Closes shares of the opposite position first.
    elif notional is not None:
        want = held + (notional - fetched_px * held // E8) * E8 // unit_px
    want = max(low, min(want, most)) if closing or want <= most else most
    want -= want % market.lot if not (closing and position is not None and want == position.size) else 0
    if (size or 0) > want:
        warnings.append(("partial_depth" if depth < (size or 0) else "rounded", f"the size is cut to {text_of(want)}"))
    suggestion = Suggestion(
        coin=coin,
        intent=question.intent,
        side=side,
        feasible=0 < low <= want <= most,
        leverage=None if closing else used,
        mid=market.mid,
        min_size=low,
        min_notional=market.spec.min_notional,
        max_size=most,
        bound_bps=bps,
        changes_leverage=not closing and extra_margin(account, market, used, buy) is not None,
        warnings=warnings,
    )
    if suggestion.feasible:
        fills = walk(market, market.mid, buy, want, bound)
        against = position.size if position is not None and position.side != buy else 0
        _set_cost(suggestion, market, fills, want, buy, against, used, reduces=closing or reduces)
    return suggestion


def _most_opened(
    state: State,
    account: VenueAccount,
    key: VenueKey | None,
    market: VenueMarket,
    side: int,
    leverage: int | None,
    warnings: list[Warning_],
) -> tuple[int, int]:
    """The leverage of the order, and the largest size that margin, caps and trading hours allow."""
    coin, position = market.spec.coin, account.positions.get(market.spec.coin)
    used = min(
        leverage or (position.leverage if position else 1),
        market.spec.max_leverage,
        (key.max_leverage if key and key.max_leverage else 50),
    )
    if leverage and used < leverage:
        warnings.append(("leverage_clamped", f"leverage {leverage} is clamped to {used}"))
    most = affordable_size(state, account, key, market, used, side)
    if market.spec.strict_hours and market.external == "closed":
        most = min(most, position.size if position is not None and position.side != side else 0)
        warnings.append(("external_closed", f"{coin} opens no position while its outside price is closed"))
    return used, most


def _set_cost(
    suggestion: Suggestion,
    market: VenueMarket,
    fills: list[tuple[int, int]],
    size: int,
    buy: int,
    against: int,
    leverage: int,
    *,
    reduces: bool,
) -> None:
    """Set the cost of these fills: estimated price, slippage, notional, fee and margin."""
    spec = market.spec
    notional = sum(px * part // E8 for px, part in outcome.paid(spec, -buy if reduces else buy, fills))
    est = sum(px * part // E8 for px, part in fills) * E8 // size
    suggestion.size, suggestion.notional, suggestion.est_px = size, notional, est
    suggestion.slippage_bps = bps_from_mid(market, est, market.mid) if est else None
    suggestion.fee = fee_of_fills(spec, fills, against, maker=False)
    suggestion.margin = 0 if reduces else div_up(notional, leverage)


def extra_margin(account: VenueAccount, market: VenueMarket, leverage: int, buy: int) -> int | None:
    """Margin that a change of leverage takes when an order grows an open position; None if the leverage stays."""
    position = account.positions.get(market.spec.coin)
    if position is None or position.side != buy or position.leverage == leverage:
        return None
    return leverage_margin(market, position, leverage)


def affordable_size(
    state: State, account: VenueAccount, key: VenueKey | None, market: VenueMarket, leverage: int, buy: int
) -> int:
    """Largest opening size in lots that margin and caps allow."""
    free = ledger.free_margin(state, account) - max(0, extra_margin(account, market, leverage, buy) or 0)
    usd = free * leverage * E8 // (E8 + leverage * market.spec.taker_rate) * 999 // 1000
    if limits.blocker(state, account, market.spec.coin) is not None or limits.refuse_orders(account) is not None:
        return 0
    if key is not None and limits.is_full(state, account, key, market):
        return 0
    today = limits.spoken_for_today(state, account)
    for cap in (account.max_trade, None if account.daily_cap is None else account.daily_cap - today):
        usd = usd if cap is None else min(usd, cap)
    if (exposure_cap := limits.exposure_cap(account)) is not None:
        usd = min(usd, exposure_cap - limits.exposure_beside(state, account, market, buy))
    if key is not None:
        if key.max_exposure is not None:
            usd = min(usd, key.max_exposure - limits.exposure_beside(state, account, market, buy))
        if key.max_daily_notional is not None:
            usd = min(usd, key.max_daily_notional - limits.spoken_for_today(state, account, key))
    # Negative if a cap was lowered below its used part, or losses exceed the free margin.
    usd = max(usd, 0)
    size = usd * E8 // outcome.share_px(market.spec, buy, market.mid) // market.lot * market.lot
    fills = outcome.paid(market.spec, buy, walk(market, market.mid, buy, size)) if size else []
    cost = sum(px * sz // E8 for px, sz in fills)
    return size * usd // cost // market.lot * market.lot if cost > usd else size
