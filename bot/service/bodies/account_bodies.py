"""Venue state as plain dicts with the fields of the interface. Reads only."""

from __future__ import annotations

import json
from typing import Any

from bot.money import format_e8, format_e12
from bot.service.bodies.read_access import peek
from bot.service.market_data.candles import CandleStore
from bot.venue.accounting import drawdown_floors, funding, ledger, limits
from bot.venue.model import outcome
from bot.venue.model.numbers import E8
from bot.venue.model.state import (
    GuardianSpec,
    State,
    VenueAccount,
    VenueBracket,
    VenueGuardian,
    VenueKey,
    VenueMarket,
    VenueOrder,
    VenuePosition,
    VenueTrade,
    guardian_id,
    oid_text,
    side_name,
)
from bot.venue.orders.exchange_actions import SENT
from bot.venue.orders.open_orders import unprotected
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.orders.suggestion import Suggestion
from bot.venue.prices.book import book
from bot.venue.protection.brackets import resolve_bracket

Body = dict[str, Any]


def opt(value: int | None) -> str | None:
    """A nullable amount."""
    return None if value is None else format_e8(value)


def num(value: int | None) -> int | float | None:
    """A scaled integer as a JSON number; whole numbers without a decimal point."""
    if value is None:
        return None
    return value // E8 if value % E8 == 0 else float(format_e8(value))


def market_name(coin: str) -> str:
    return coin if coin.startswith("event:") else f"perp:{coin}"


# ── Positions, trades, orders ───────────────────────────────────────────────────────────────────────────────────────


def position(state: State, account: VenueAccount, held: VenuePosition) -> Body:
    market = state.markets[held.coin]
    stop = account.orders.get(held.stop_oid) if held.stop_oid is not None else None
    target = account.orders.get(held.target_oid) if held.target_oid is not None else None
    mark = market.mark
    return {
        "coin": held.coin,
        "side": side_name(held.side),
        "size": format_e8(held.size),
        "leverage": held.leverage,
        "entryPx": format_e8(held.entry_px()),
        "markPx": format_e8(mark),
        "liquidationPx": opt(ledger.liquidation_px(state, held)),
        "unrealizedPnlUsd": format_e8(held.pnl(mark)),
        "fundingUsd": format_e8(held.funding),
        "marginUsedUsd": format_e8(held.margin if held.isolated else ledger.initial_margin(market, held)),
        "book": market.spec.book,
        "market": market_name(held.coin),
        "notionalUsd": format_e8(limits.worth(state, held)),
        "stopPx": opt(stop.trigger_px) if stop is not None else None,
        "takeProfitPx": opt(target.trigger_px) if target is not None else None,
        "riskUsd": format_e8(held.r_px * held.size // E8) if held.r_px is not None and stop is not None else None,
        "openedAt": held.opened_ms,
    }


def positions(state: State, account: VenueAccount) -> list[Body]:
    return [position(state, account, account.positions[coin]) for coin in sorted(account.positions)]


def _status_of(account: VenueAccount, recorded: VenueTrade) -> str:
    """Pending: an exchange has not decided the order."""
    order = account.orders.get(recorded.oid or 0)
    return "pending" if order is not None and order.status == SENT and order.trade == recorded.id else recorded.status


def trade(account: VenueAccount, recorded: VenueTrade) -> Body:
    return {
        "id": recorded.id,
        "requestId": recorded.request_id,
        "source": recorded.source,
        "kind": recorded.kind,
        "symbol": recorded.coin,
        "side": side_name(recorded.side),
        "intent": recorded.intent,
        "reduceOnly": recorded.reduce_only,
        "size": format_e8(recorded.size),
        "avgPx": opt(recorded.avg_px()),
        "feeUsd": format_e8(recorded.fee),
        "realizedPnlUsd": opt(recorded.realized),
        "fillStatus": recorded.fill_status(),
        "status": recorded.status if account.exchange is None else _status_of(account, recorded),
        "venueOid": None if recorded.oid is None else oid_text(account, recorded.oid),
        "idempotencyKey": recorded.idempotency_key,
        "seq": recorded.seq,
        "market": market_name(recorded.coin),
        "filledSize": format_e8(recorded.filled),
        "leverage": recorded.leverage,
        "guardianId": recorded.guardian,
        "reason": recorded.reason,
        "ts": recorded.ts,
        "updatedAt": recorded.updated_ms,
        "marginLostUsd": format_e8(recorded.margin_lost),
        "absorbedUsd": format_e8(recorded.absorbed),
    }


def bracket(resolved: VenueBracket | None) -> Body | None:
    if resolved is None or (resolved.stop is None and resolved.target is None):
        return None
    stop, target = resolved.stop, resolved.target
    return {
        "stopLoss": None if stop is None else {"px": format_e8(stop.px), "pct": num(stop.pct), "r": None},
        "takeProfit": None
        if target is None
        else {"px": format_e8(target.px), "pct": num(target.pct), "r": num(target.r)},
    }


def _waiting_bracket(state: State, order: VenueOrder) -> Body | None:
    """The bracket of a resting entry, computed from its limit price until the first fill arms it."""
    if order.armed or order.limit_px is None or (order.stop_leg is None and order.target_leg is None):
        return None
    market = state.markets[order.coin]
    resolved = resolve_bracket(
        market, order.side, order.limit_px, order.stop_leg, order.target_leg, mark=market.mark, resting=True
    )
    return bracket(resolved) if isinstance(resolved, VenueBracket) else None


def order(state: State, account: VenueAccount, waiting: VenueOrder) -> Body:
    return {
        "oid": oid_text(account, waiting.number),
        "tradeId": waiting.trade,
        "coin": waiting.coin,
        "market": market_name(waiting.coin),
        "side": side_name(waiting.side),
        "intent": "close" if waiting.side != waiting.buy or waiting.reduce_only else "open",
        "kind": waiting.kind,
        "reduceOnly": waiting.reduce_only,
        "size": format_e8(waiting.size),
        "filledSize": format_e8(waiting.filled),
        "limitPx": opt(waiting.limit_px),
        "triggerPx": opt(waiting.trigger_px),
        "bracket": _waiting_bracket(state, waiting),
        "status": waiting.status,
        "source": waiting.source,
        "idempotencyKey": waiting.idempotency_key,
        "createdAt": waiting.created_ms,
    }


def is_listed(waiting: VenueOrder) -> bool:
    """True for open limit orders and armed triggers, which are the orders that lists show."""
    return waiting.status == "armed" or (waiting.status == "open" and waiting.kind == "limit")


def orders(state: State, account: VenueAccount, coin: str | None = None) -> list[Body]:
    return [
        order(state, account, waiting)
        for waiting in account.orders.values()
        if is_listed(waiting) and (coin is None or waiting.coin == coin)
    ]


# ── Guardians ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _type_fields(spec: GuardianSpec) -> Body:
    """The fields that only some types of guardian have."""
    return {
        "heartbeatSeconds": spec.heartbeat_seconds,
        "onMiss": spec.on_miss,
        "seconds": spec.seconds,
        "trailPct": num(spec.trail_pct),
        "trailR": num(spec.trail_r),
        "activateAtR": num(spec.activate_at_r),
        "maxLossPctFromDayStart": num(spec.max_loss_pct),
        "action": spec.action,
        "cron": spec.cron,
        "orderTemplate": None if spec.order_template is None else json.loads(spec.order_template),
    }


def guardian_spec(spec: GuardianSpec) -> Body:
    """A guardian as it was requested."""
    body: Body = {
        "type": spec.type,
        "scope": spec.scope,
        "market": None if spec.coin is None else market_name(spec.coin),
        **_type_fields(spec),
    }
    return {name: value for name, value in body.items() if value is not None}


def guardian(account: VenueAccount, armed: VenueGuardian) -> Body:
    spec = armed.spec
    floor = drawdown_floors.floor_of(account, armed) if spec.type == drawdown_floors.TYPE else None
    # A drawdown at its floor and an order's kill switch act at once, so they have no deadline to show.
    waits = armed.status == "latched" or (floor is None and spec.type != "kill_switch")
    return {
        "id": guardian_id(account, armed.number),
        "type": spec.type,
        "scope": spec.scope,
        "status": armed.status,
        "coin": spec.coin,
        "market": None if spec.coin is None else market_name(spec.coin),
        **_type_fields(spec),
        "nextDeadline": armed.deadline_ms if waits else None,
        "lastHeartbeatAt": armed.last_heartbeat_ms,
        "active": armed.active,
        "extremePx": opt(armed.extreme) if armed.active else None,
        "stopPx": opt(armed.stop_px),
        "dayStartValueUsd": None if floor is None else format_e8(account.day_value),
        "floorValueUsd": opt(floor),
        "blocksOpens": armed.blocks_opens,
        "tradeId": armed.trade,
        "firedAt": armed.fired_ms,
        "fireCount": armed.fire_count,
        "createdAt": armed.created_ms,
    }


def guardians(account: VenueAccount) -> list[Body]:
    return [guardian(account, armed) for armed in account.guardians.values()]


# ── Plans ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def warnings(noted: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> list[Body]:
    return [{"code": code, "message": message} for code, message in noted]


def plan(preview: OrderPreview) -> Body:
    return {
        "coin": preview.coin,
        "market": market_name(preview.coin),
        "side": side_name(preview.side),
        "intent": preview.intent,
        "type": preview.type,
        "size": format_e8(preview.size),
        "fillSize": format_e8(preview.fill_size),
        "notionalUsd": format_e8(preview.notional),
        "midPx": format_e8(preview.mid),
        "estPx": opt(preview.est_px),
        "boundPx": format_e8(preview.bound_px),
        "slippageBps": num(preview.slippage_bps),
        "feeUsd": format_e8(preview.fee),
        "leverage": preview.leverage,
        "leverageClamped": preview.clamped,
        "marginUsd": format_e8(preview.margin),
        "liquidationPx": opt(preview.liquidation_px),
        "bracket": bracket(preview.bracket),
        "riskUsd": opt(preview.risk),
        "guardians": [guardian_spec(spec) for spec in preview.guardians],
        "maxDriftBps": preview.max_drift_bps,
        "protected": preview.protected,
        "warnings": warnings(preview.warnings),
    }


def suggestion(suggested: Suggestion) -> Body:
    market = market_name(suggested.coin)
    request: Body | None = None
    if suggested.feasible and suggested.size is not None:
        size = format_e8(suggested.size)
        if suggested.intent == "close":
            path = f"/v1/positions/{market}/close"
            request = {"method": "POST", "path": path, "body": {"size": size, "slippageBps": suggested.bound_bps}}
        else:
            body = {
                "market": market,
                "side": side_name(suggested.side),
                "size": size,
                "leverage": suggested.leverage,
                "maxSlippageBps": suggested.bound_bps,
            }
            if suggested.changes_leverage:
                body["acknowledgeLeverageChange"] = True
            request = {"method": "POST", "path": "/v1/orders", "body": body}
    return {
        "coin": suggested.coin,
        "market": market,
        "intent": suggested.intent,
        "side": side_name(suggested.side),
        "feasible": suggested.feasible,
        "request": request,
        "size": opt(suggested.size),
        "notionalUsd": opt(suggested.notional),
        "leverage": suggested.leverage,
        "midPx": format_e8(suggested.mid),
        "estPx": opt(suggested.est_px),
        "slippageBps": num(suggested.slippage_bps),
        "feeUsd": opt(suggested.fee),
        "marginUsd": opt(suggested.margin),
        "minSize": format_e8(suggested.min_size),
        "minNotionalUsd": format_e8(suggested.min_notional),
        "maxSize": format_e8(max(0, suggested.max_size)),
        "warnings": warnings(suggested.warnings),
    }


# ── Markets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def spread_bps(bid: int | None, ask: int | None, mid: int) -> int | float | None:
    if bid is None or ask is None:
        return None
    return num((ask - bid) * 10_000 * E8 // mid // 10_000 * 10_000)


def market(state: State, listed: VenueMarket, store: CandleStore, now_ms: int) -> Body:
    spec = listed.spec
    bids, asks = book(listed)
    bid, ask = (bids[0][0] if bids else None), (asks[0][0] if asks else None)
    day = store.day(now_ms)
    held = sum(peek(state, name).positions[spec.coin].size for name in listed.holders)
    paid = spec.margin_mode == "full"
    # An event market's fee per share is rate * p * (1 - p), shown relative to the price of Yes.
    fee_part = (outcome.PAYOUT - listed.mark, outcome.PAYOUT) if paid else (1, 1)
    settled = listed.status == "settled"
    body = {
        "coin": spec.coin,
        "market": market_name(spec.coin),
        "name": spec.name,
        "assetClass": spec.asset_class,
        "book": spec.book,
        "status": listed.status,
        "markPx": format_e8(listed.mark),
        "midPx": None if settled else format_e8(listed.mid),
        "oraclePx": None if paid else format_e8(listed.oracle),
        "bidPx": opt(bid),
        "askPx": opt(ask),
        "spreadBps": spread_bps(bid, ask, listed.mid),
        "change24hPct": None if day is None else num((listed.mark - day[0]) * 1_000_000 // day[0] * 10_000),
        "volume24hUsd": "0" if day is None else format_e8(day[3] // 1_000_000 * 1_000_000),
        "openInterestUsd": format_e8(held * listed.mark // E8),
        "fundingRateHourly": None if paid else format_e12(funding.hourly_rate_now(listed)),
        "nextFundingAt": None if paid else funding.next_payment_ms(listed, now_ms),
        "szDecimals": spec.sz_decimals,
        "maxLeverage": spec.max_leverage,
        "marginMode": spec.margin_mode,
        "minNotionalUsd": format_e8(spec.min_notional),
        "takerFeeBps": num(spec.taker_rate * 10_000 * fee_part[0] // fee_part[1] // 10_000 * 10_000),
        "makerFeeBps": num(spec.maker_rate * 10_000),
        "external": listed.external,
        "opensAt": listed.opens_ms,
        "closesAt": listed.closes_ms,
        "expiresAt": spec.expires_ms,
        "outcomePx": opt(listed.outcome_px),
    }
    if spec.tick is not None:
        body["tickSize"] = format_e8(spec.tick)
    if spec.size_step is not None:
        body["sizeStep"] = format_e8(spec.size_step)
    return body


# ── Limits, health, credit ──────────────────────────────────────────────────────────────────────────────────────────


def account_limits(state: State, account: VenueAccount, now_ms: int) -> Body:
    used = limits.used_today(account, now_ms)
    left = None if account.daily_cap is None else max(0, account.daily_cap - used - limits.waiting(state, account))
    return {
        "maxTradeUsd": opt(account.max_trade),
        "dailyTradeCapUsd": opt(account.daily_cap),
        "usedTodayUsd": format_e8(used),
        "remainingTodayUsd": opt(left),
        "resetsAt": limits.resets_at_ms(now_ms),
    }


def key_limits(state: State, account: VenueAccount, key: VenueKey, now_ms: int) -> Body:
    return {
        "id": key.id,
        "scopes": list(key.scopes),
        "maxExposureUsd": opt(key.max_exposure),
        "exposureUsd": format_e8(limits.exposure(state, account)),
        "maxDailyNotionalUsd": opt(key.max_daily_notional),
        "usedTodayUsd": format_e8(limits.used_today(key, now_ms)),
        "maxLeverage": key.max_leverage,
        "allowedCoins": None if key.allowed_coins is None else list(key.allowed_coins),
        "maxOpenPositions": key.max_open_positions,
        "openPositions": len(limits.busy_markets(state, account)),
        "expiresAt": key.expires_ms,
    }


def key(record: VenueKey, last_used_ms: int | None) -> Body:
    """An API key without its secret."""
    return {
        "id": record.id,
        "name": record.name,
        "prefix": record.prefix,
        "scopes": list(record.scopes),
        "maxExposureUsd": opt(record.max_exposure),
        "maxDailyNotionalUsd": opt(record.max_daily_notional),
        "maxLeverage": record.max_leverage,
        "allowedCoins": None if record.allowed_coins is None else list(record.allowed_coins),
        "maxOpenPositions": record.max_open_positions,
        "expiresAt": record.expires_ms,
        "createdAt": record.created_ms,
        "lastUsedAt": last_used_ms,
        "source": record.source,
    }


def health(state: State, account: VenueAccount) -> Body:
    blocked = limits.blocking_guardians(account)
    need, value = ledger.margin_ratio(state, account)
    liquidating = any(p.liquidation_cooldown_ms > state.now_ms for p in account.positions.values())
    return {
        "status": "liquidating" if liquidating else "restricted" if blocked else "ok",
        "opensBlocked": bool(blocked),
        "blockedBy": blocked,
        "marginRatio": num(need * E8 // value) if account.positions else None,
        "unprotected": sorted(coin for coin in account.positions if unprotected(state, account, coin)),
        "venue": _venue(state),
    }


def _venue(state: State) -> str:
    """The venue's health: degraded if a market has closed for good before its end, halted if all have."""
    are_open = {market.status == "open" for market in state.markets.values() if market.status != "settled"}
    return "ok" if False not in are_open else "degraded" if True in are_open else "halted"


def environment(account: VenueAccount) -> str:
    """What the money of an account is: sandbox, local (an exchange on this machine), testnet or mainnet."""
    if account.exchange is None:
        return "sandbox"
    network = account.exchange.network
    return "local" if network.isdigit() else network


def exchange(account: VenueAccount) -> Body | None:
    """The account at an exchange that this account follows; None for a sandbox account."""
    followed = account.exchange
    if followed is None:
        return None
    return {
        "name": followed.exchange,
        "network": followed.network,
        "link": followed.link,
        "since": followed.link_since_ms,
        "reason": followed.link_reason,
        "transferredUsd": format_e8(followed.transferred),
    }


def credit(state: State, account: VenueAccount) -> Body:
    return {
        "grantedUsd": format_e8(account.start_balance),
        "remainingUsd": format_e8(ledger.free_margin(state, account)),
        "expiresAt": None,
        "policy": "sandbox" if account.exchange is None else "exchange",
    }
