"""Orders: placed, planned, confirmed, closed and canceled, and what their fills arm. The caller's side of the venue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from bot.errors import Refusal
from bot.venue import index, ledger, limits, outcome, protection, quote
from bot.venue.book import walk
from bot.venue.commands import ClosePosition, ConfirmPlan, PlaceOrder, StorePlan
from bot.venue.events import AccountChanged
from bot.venue.numbers import BPS, E8, div_up, text_of
from bot.venue.quote import CLOSE_SLIPPAGE_BPS, TRIGGER_SLIPPAGE_BPS, Quote, bound_of
from bot.venue.record import emit, emit_order, next_oid, next_seq, open_trade
from bot.venue.refusals import no_market
from bot.venue.state import (
    DAY_MS,
    MIN_NOTIONAL,
    PLAN_KEPT_MS,
    PLANS_KEPT,
    Account,
    Key,
    Market,
    Order,
    OrderSpec,
    Plan,
    Position,
    State,
    Trade,
    oid_text,
)  # fmt: skip


@dataclass(slots=True)
class OrderPlaced:
    """An accepted order: its trade, what was armed with it, what to warn of."""

    trade: Trade
    leverage_clamped: bool = False
    warnings: tuple[tuple[str, str], ...] = ()
    guardians: tuple[int, ...] = ()
    protected: bool = True  # Of an order that rests: whether the position is now, and will be at its first fill.


@dataclass(slots=True)
class OrderCanceled:
    coin: str
    oids: tuple[str, ...]
    filled: int
    unprotected: bool


# ── Placing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def fenced(state: State, account: Account, command: PlaceOrder | ConfirmPlan | ClosePosition) -> Refusal | None:
    """A request that is too late, or whose key belongs to the past."""
    key = command.idempotency_key
    if key is not None:
        if account.is_fenced(key):
            return Refusal("idempotency_conflict", "the account was reset after this key was used", fix={"action": "resync"},
                           details={"reason": "account_reset", "epoch": account.epoch})  # fmt: skip
        if (made := account.trade_of_key(key)) is not None:
            return Refusal("idempotency_conflict", "this key belongs to an order whose answer is no longer kept",
                           details={"reason": "expired", "tradeId": made})  # fmt: skip
    if command.expires_ms is not None and state.now_ms > command.expires_ms:
        return Refusal(
            "idempotency_conflict",
            "the request arrived after its X-Expires-After",
            fix={"action": "replan"},
            details={"reason": "expired"},
        )
    return None


def place(state: State, account: Account, key: Key | None, command: PlaceOrder) -> OrderPlaced | Refusal:
    """Judge and execute one order."""
    if refused := fenced(state, account, command):
        return refused
    quoted = quote.quote(state, account, command.order, key)
    if isinstance(quoted, Refusal):
        return quoted
    return execute(state, account, command.order, quoted, key, command.request_id, command.idempotency_key)


def store_plan(state: State, account: Account, key: Key | None, command: StorePlan) -> Quote | Refusal:
    """A dry run: the quote is the answer, the plan waits for its one confirm."""
    quoted = quote.quote(state, account, command.order, key)
    if isinstance(quoted, Refusal):
        return quoted
    quoted.max_drift_bps = command.max_drift_bps
    plans = state.plans
    while plans:  # Plans expire in the order they were made: the oldest is the first.
        oldest = next(iter(plans.values()))
        if oldest.expires_ms + PLAN_KEPT_MS > state.now_ms:
            break
        del plans[oldest.token]
    if len(plans) >= PLANS_KEPT and next(iter(plans.values())).expires_ms <= state.now_ms:
        over = list(takewhile(lambda plan: plan.expires_ms <= state.now_ms, islice(plans.values(), PLANS_KEPT // 10)))
        _keep_spent(state, over)
        plans = state.plans = dict(islice(plans.items(), len(over), None))
    assert command.token not in plans, "a confirm token is new"
    plans[command.token] = Plan(
        command.token,
        account.id,
        command.key,
        command.order,
        quoted.mid,
        state.now_ms,
        state.now_ms + command.ttl_ms,
        command.max_drift_bps,
        shrinks=quoted.intent == "close",
    )
    state.quoted = (state.commands, command.token, quoted)
    return quoted


def _keep_spent(state: State, plans: Iterable[Plan]) -> None:
    """Plans that go sooner: what was executed still says so for PLAN_KEPT_MS, or whoever asks again would take it for never executed."""
    for plan in plans:
        if plan.trade is not None:
            spent = state.accounts[plan.account].spent
            day = plan.expires_ms // DAY_MS
            if day not in spent:
                for past in [one for one in spent if (one + 1) * DAY_MS + PLAN_KEPT_MS <= state.now_ms]:
                    del spent[past]
                spent[day] = {}
            spent[day][plan.token] = plan.trade


def confirm(state: State, account: Account, key: Key | None, command: ConfirmPlan) -> OrderPlaced | Refusal:
    """Execute a plan once. The token is used up also when the confirm is refused.

    A used one answers `used_token` with its trade for PLAN_KEPT_MS, however many plans there have been since. A stale one that had to go is
    `not_found`: neither can be executed any more.
    """
    plan = state.plans.get(command.token)
    if plan is None or plan.account != account.id:
        trade = next((made[command.token] for made in account.spent.values() if command.token in made), None)
        if trade is not None:
            return _used(trade)
        used = command.idempotency_key
        if used is not None and account.trade_of_key(used) and (refused := fenced(state, account, command)):
            return refused  # The key of a trade is known for ever, whatever has become of its plan.
        return Refusal("not_found", "no such plan: the confirm token is unknown", fix={"action": "replan"})
    if plan.state == "used":
        return _used(plan.trade)
    if (over := _over(plan)) is not None:
        return over
    if refused := fenced(state, account, command):
        plan.state = "refused"
        return refused
    if state.now_ms >= plan.expires_ms:
        plan.state = "refused"
        return _expired(plan)
    market = state.markets[plan.order.coin]
    if abs(market.mid - plan.mid) * BPS > plan.max_drift_bps * plan.mid:
        plan.state = "refused"
        return Refusal("plan_stale", f"the price moved from {text_of(plan.mid)} to {text_of(market.mid)}, more than {plan.max_drift_bps} bps",
                       fix={"action": "replan"}, details={"midAtPlan": text_of(plan.mid), "midNow": text_of(market.mid)})  # fmt: skip
    order = replace(plan.order, reduce_only=True) if command.reduce_only else plan.order
    quoted = _quoted_just_now(state, plan, command) or quote.quote(state, account, order, key)
    if isinstance(quoted, Refusal):
        plan.state = "refused"
        # The token is used up: no field of this request mends it, and a deeper book needs another plan.
        code = "plan_stale" if quoted.code == "insufficient_depth" else quoted.code
        return replace(quoted, code=code, fix={"action": "replan"})
    placed = execute(state, account, order, quoted, key, command.request_id, command.idempotency_key)
    plan.state, plan.trade = "used", placed.trade.id
    return placed


def shown(state: State, account: Account, token: str, order: OrderSpec | None) -> Plan | Refusal:
    """The open plan that showed this very order, of a schedule that is to place it again and again."""
    plan = state.plans.get(token)
    if plan is None or plan.account != account.id:
        return Refusal("not_found", "no such plan: the confirm token is unknown", fix={"action": "replan"})
    if plan.state == "used":
        return _used(plan.trade)
    if (over := _over(plan)) is not None:
        return over
    if state.now_ms >= plan.expires_ms:
        return _expired(plan)
    if order is None or replace(order, source=plan.order.source) != plan.order:
        text = "confirmToken is of a plan of another order than the orderTemplate's"
        return Refusal("plan_stale", text, fix={"action": "replan"})
    return plan


def _over(plan: Plan) -> Refusal | None:
    if plan.state == "refused":
        return Refusal("plan_stale", "this plan's confirm was refused before", fix={"action": "replan"})
    if plan.state == "armed":
        return Refusal("plan_stale", "this plan's token has armed a schedule", fix={"action": "replan"})
    return None


def _expired(plan: Plan) -> Refusal:
    return Refusal(
        "plan_stale", "the plan has expired", fix={"action": "replan"}, details={"expiredAt": plan.expires_ms}
    )


def _used(trade: str | None) -> Refusal:
    return Refusal(
        "idempotency_conflict", "this plan was executed already", details={"reason": "used_token", "tradeId": trade}
    )


def _quoted_just_now(state: State, plan: Plan, command: ConfirmPlan) -> Quote | None:
    """The plan's own quote, when its confirm is the very next command, by the same key on the same day: judging again would say the same."""
    last = state.quoted
    if last is None or last[0] + 1 != state.commands or last[1] != plan.token or command.key != plan.key:
        return None
    if state.now_ms // DAY_MS != plan.made_ms // DAY_MS:
        return None
    quoted: Quote = last[2]
    return quoted


def execute(
    state: State,
    account: Account,
    spec: OrderSpec,
    quoted: Quote,
    key: Key | None,
    request_id: str | None,
    idempotency_key: str | None,
) -> OrderPlaced:
    """Turn a quote into an order: fills now, or a resting or pending rest."""
    market = state.markets[spec.coin]
    (found, _), held = quote.at_its_turn(account, market), account.positions.get(spec.coin)
    if (
        held is not None
        and found is not None
        and held.side == found.side == quoted.buy
        and quoted.leverage != held.leverage
    ):
        change_leverage(state, account, market, held, quoted.leverage)
    # An order that is no larger than the position is a close of it, and was judged as one: it opens nothing, whatever becomes of the position.
    order = Order(
        number=next_oid(account), account=account.id, coin=spec.coin, kind=spec.type, side=quoted.side, buy=quoted.buy, size=quoted.size,
        created_ms=state.now_ms, limit_px=spec.limit_px, stop_leg=spec.stop, target_leg=spec.target, guardians=quoted.guardians,
        require_protection=spec.require_protection, reduce_only=quoted.intent == "close", leverage=quoted.leverage, bound_px=quoted.bound_px, slippage_bps=spec.slippage_bps, source=spec.source,
        idempotency_key=idempotency_key,
        request_id=request_id, key=key.id if key is not None else None, born=market.point,
        opens=quoted.size - quoted.reduce if quoted.reduce else None,
    )  # fmt: skip
    trade = open_trade(state, account, order, kind=spec.type, intent=quoted.intent, side=quoted.side, size=quoted.size)
    if state.rules.fill_at == "next" and (spec.type == "market" or quoted.fills):
        if spec.type == "market" and not quoted.reduce:
            order.usd = spec.usd
        _rest(state, account, market, order, quoted.margin + quoted.fee)
        market.pending.append((account.id, order.number))
    else:
        armed = take(state, account, market, order, trade, quoted.fills)
        rest = order.size - order.filled
        if rest and spec.type == "limit":
            rest_at_limit(account, market, order)
            emit_order(state, account, order, "open")
        else:
            finish(state, trade, reason="slippage_bound" if rest else None)
        return OrderPlaced(trade, quoted.clamped, quoted.warnings, armed, quoted.protected)
    return OrderPlaced(trade, quoted.clamped, quoted.warnings, protected=quoted.protected)


def _rest(state: State, account: Account, market: Market, order: Order, held: int) -> None:
    _keep_open(account, order, held)
    emit_order(state, account, order, "open")


def rest_at_limit(account: Account, market: Market, order: Order) -> None:
    """What is left of a limit waits for its price from the next point on, with the margin and the fee that it would then need set aside."""
    order.born = market.point
    _keep_open(account, order, held_at_limit(market, order))
    index.watch_order(market, order)


def held_at_limit(market: Market, order: Order) -> int:
    """The margin and the fee of what a limit may still open, at its price."""
    opening = order.left_to_open()
    held = div_up(outcome.worth(market.spec, order.buy, order.bound_px, opening), order.leverage)
    return held + ledger.fee_on(market.spec, order.bound_px, opening, maker=False)


def _keep_open(account: Account, order: Order, held: int) -> None:
    order.reserved = held
    account.reserved += held
    account.orders[order.number] = order
    account.resting[order.number] = None


def unreserve(account: Account, order: Order, *, keep: int = 0) -> None:
    account.reserved -= order.reserved - keep
    order.reserved = keep


def finish(state: State, trade: Trade, *, reason: str | None = None) -> None:
    """The order ended by its own rule: filled, or its rest dropped."""
    trade.status, trade.updated_ms = "done", state.now_ms
    if reason is not None:
        trade.reason = reason


def take(
    state: State,
    account: Account,
    market: Market,
    order: Order,
    trade: Trade,
    fills: Sequence[tuple[int, int]],
    *,
    maker: bool = False,
    by_limit: bool = False,
) -> tuple[int, ...]:
    """Book an order's fills and do what they cause: protect what opened, let go what closed. Returns the guardians armed."""
    if not fills:
        return ()
    before = account.positions.get(market.spec.coin)
    for px, size in fills:
        ledger.fill(state, account, market, trade, order, px, size, maker=maker)
    position = account.positions.get(market.spec.coin)
    armed: tuple[int, ...] = ()
    protection.follow(state, account, market, before)
    if account.resting and before is not None and before is not position:
        _drop_closings(state, account, market)
    if (
        position is not None
        and position.side == order.buy
        and not order.armed
        and (order.stop_leg or order.target_leg or order.guardians)
    ):
        order.armed = True
        entry_px = position.entry_px() if before is not position else trade.avg_px()
        assert entry_px is not None
        if order.stop_leg is not None or order.target_leg is not None:
            protection.arm_bracket(state, account, market, position, order, entry_px, by_limit=by_limit)
        if order.guardians:
            armed = tuple(_arm_inline(state, account, market, position, order, entry_px, by_limit=by_limit))
    return armed


def _arm_inline(
    state: State, account: Account, market: Market, position: Position, order: Order, entry_px: int, *, by_limit: bool
) -> list[int]:
    from bot.venue import acting  # The one way back: an order arms guardians, a guardian places exits.

    numbers = []
    for spec in order.guardians:
        if spec.type == "trailing_stop":
            made = protection.arm_trail(
                state, account, market, position, spec, extreme=entry_px, trade=order.trade, by_limit=by_limit
            )
        else:
            made = acting.arm_inline(state, account, position, spec, trade=order.trade, key=order.key)
        numbers.append(made.number)
    return numbers


def change_leverage(state: State, account: Account, market: Market, position: Position, leverage: int) -> None:
    """Set an open position's leverage; margin moves between it and the balance when it is isolated. Affordability was judged by the quote."""
    if position.isolated:
        delta = quote.leverage_margin(market, position, leverage)
        position.margin += delta
        account.balance -= delta
    old, position.leverage = position.leverage, leverage
    emit(state, account, AccountChanged(
        account.id, next_seq(account), state.now_ms, "leverage", coin=position.coin, leverage_from=old, leverage_to=leverage
    ))  # fmt: skip
    ledger.rewatch(state, account, position)


# ── Exits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def close(state: State, account: Account, key: Key | None, command: ClosePosition) -> OrderPlaced | Refusal:
    """A caller's reduce-only exit of a part or the whole."""
    if refused := fenced(state, account, command):
        return refused
    market = state.markets.get(command.coin)
    if market is None:
        return no_market(command.coin, state.markets)
    if refused := limits.refuse_coin(market, key):
        return refused
    position, _ = quote.at_its_turn(account, market)
    if position is None:
        return Refusal("not_found", f"there is no position in {command.coin}")
    if market.status != "open":
        return Refusal("market_closed", f"{command.coin} is {market.status}", details={"opensAt": market.opens_ms})
    size = _size_of_close(market, position, command)
    if isinstance(size, Refusal):
        return size
    bps = command.slippage_bps if command.slippage_bps is not None else CLOSE_SLIPPAGE_BPS
    bound = bound_of(market, market.mid, -position.side, bps)
    fills = walk(market, market.mid, -position.side, size, bound)
    if state.rules.fill_at != "next" and not fills:
        return Refusal("insufficient_depth", f"the book holds nothing within {bps} bps", fix={"action": "wait"})
    order = exit_order(state, account, market, position, size=size, bound_px=bound, source=command.source, request_id=command.request_id,
                       idempotency_key=command.idempotency_key, reason=None, key=key.id if key else None)  # fmt: skip
    order.slippage_bps = command.slippage_bps
    trade = open_trade(state, account, order, kind="close", intent="close", side=position.side, size=size)
    if state.rules.fill_at == "next":
        _rest(state, account, market, order, 0)
        market.pending.append((account.id, order.number))
        return OrderPlaced(trade)
    take(state, account, market, order, trade, fills)
    rest = order.filled < order.size
    finish(state, trade, reason="slippage_bound" if rest else None)
    return OrderPlaced(
        trade, warnings=(("partial_depth", f"{text_of(order.size - order.filled)} stays open"),) if rest else ()
    )


def _size_of_close(market: Market, position: Position, command: ClosePosition) -> int | Refusal:
    size = position.size
    unit_px = outcome.share_px(market.spec, position.side, market.mid)
    if command.fraction is not None and command.fraction < E8:
        size = position.size * command.fraction // E8 // market.lot * market.lot
    elif command.usd is not None:
        size = min(position.size, command.usd * E8 // unit_px // market.lot * market.lot)
    elif command.size is not None:
        if command.size < position.size and command.size % market.lot:
            down = command.size - command.size % market.lot
            return quote.invalid(
                "size",
                f"{text_of(command.size)} is no multiple of {text_of(market.lot)}",
                value=text_of(down or market.lot),
            )
        size = min(position.size, command.size)
    if size < position.size and unit_px * size // E8 < MIN_NOTIONAL:
        least = min(quote.least_size(market, unit_px), position.size)
        fix = {"field": "size", "value": text_of(least)}
        if command.usd is not None:
            fix = {"field": "usdAmount", "value": text_of(div_up(least * unit_px, E8))}
        elif command.fraction is not None:
            fix = {"field": "fraction", "value": text_of(div_up(least * E8, position.size))}
        return Refusal("below_min_notional", f"a part is worth {text_of(unit_px * size // E8)} USD, the least is 10; all of it always goes",
                       fix=fix)  # fmt: skip
    return size


def exit_order(
    state: State, account: Account, market: Market, position: Position, *, size: int, bound_px: int, source: str | None = None,
    request_id: str | None = None, idempotency_key: str | None = None, reason: str | None = None, key: str | None = None,
) -> Order:  # fmt: skip
    """A reduce-only order against the position, not yet written down."""
    return Order(
        number=next_oid(account), account=account.id, coin=position.coin, kind="close", side=position.side, buy=-position.side, size=size,
        created_ms=state.now_ms, reduce_only=True, leverage=position.leverage, bound_px=bound_px, source=source, request_id=request_id,
        idempotency_key=idempotency_key, reason=reason, born=market.point, key=key,
    )  # fmt: skip


def force_exit(
    state: State,
    account: Account,
    market: Market,
    position: Position,
    *,
    size: int,
    kind: str,
    reason: str,
    ref_px: int,
    guardian: str | None = None,
) -> Trade:
    """Close `size` of the position at once around `ref_px`, at most ten per cent away; what the book lacks is tried again at each point. Where the
    market has no price, there is no book."""
    order = exit_order(
        state,
        account,
        market,
        position,
        size=size,
        bound_px=bound_of_trigger(market, ref_px, -position.side),
        reason=reason,
    )
    trade = open_trade(
        state,
        account,
        order,
        kind=kind,
        intent="close",
        side=position.side,
        size=size,
        guardian=guardian,
        reason=reason,
    )
    if market.px_at(state.now_ms) is not None:
        take(state, account, market, order, trade, walk(market, ref_px, order.buy, order.size, order.bound_px))
    settle_exit(state, account, market, order, trade)
    return trade


def bound_of_trigger(market: Market, px: int, buy: int) -> int:
    """Worst price of a stop, a target or a guardian's exit around `px`: ten per cent of it, of an event's share ten cents."""
    if outcome.is_paid(market.spec):
        return bound_of(market, px, buy, TRIGGER_SLIPPAGE_BPS)
    return max(1, px + buy * px * TRIGGER_SLIPPAGE_BPS // BPS)


def settle_exit(state: State, account: Account, market: Market, order: Order, trade: Trade) -> None:
    """An exit that is not whole keeps working; one that is whole is done."""
    position = account.positions.get(order.coin)
    if order.filled >= order.size or position is None or position.side != order.side:
        account.orders.pop(order.number, None)
        if order.status == "working":
            market.working.remove((account.id, order.number))
            if position is not None and position.stop_oid == order.number:
                position.stop_oid = None
            elif position is not None and position.target_oid == order.number:
                position.target_oid = None
        finish(state, trade)
    elif order.status != "working":
        order.status = "working"
        account.orders[order.number] = order
        market.working.append((account.id, order.number))
        emit_order(state, account, order, "changed")


def work(state: State, account: Account, market: Market, order: Order) -> None:
    """Try the rest of an exit at the current price."""
    position = account.positions.get(order.coin)
    trade = account.trade(order.trade or "")
    if position is not None and position.side == order.side:
        size = min(order.size - order.filled, position.size)
        # A working stop of the position is part of it: take() must not cancel it as a child of a position that is gone.
        if position.stop_oid == order.number:
            position.stop_oid = None
        elif position.target_oid == order.number:
            position.target_oid = None
        take(
            state,
            account,
            market,
            order,
            trade,
            walk(market, market.mid, order.buy, size, bound_of_trigger(market, market.mid, order.buy)),
        )
        if position.size and order.kind == "stop_loss" and position.stop_oid is None:
            position.stop_oid = order.number
    settle_exit(state, account, market, order, trade)


# ── Canceling ───────────────────────────────────────────────────────────────────────────────────────────────────────


def drop_entry(state: State, account: Account, market: Market, order: Order, reason: str) -> None:
    """Take a resting entry (or one that waits for the next point) away."""
    unreserve(account, order)
    waiting = account.id, order.number
    if waiting in market.pending:
        market.pending.remove(waiting)
    else:
        index.unwatch_order(market, order)
    del account.resting[order.number]
    del account.orders[order.number]
    trade = account.trade(order.trade or "")
    trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
    emit_order(state, account, order, "canceled", reason=reason)


def drop(state: State, account: Account, order: Order, reason: str) -> None:
    market = state.markets[order.coin]
    if order.number in account.resting:
        drop_entry(state, account, market, order, reason)
        return
    position = account.positions.get(order.coin)
    if order.kind == "close":
        market.working.remove((account.id, order.number))
        del account.orders[order.number]
        trade = account.trade(order.trade or "")
        trade.status, trade.reason, trade.updated_ms = "canceled", reason, state.now_ms
        emit_order(state, account, order, "canceled", reason=reason)
        return
    assert position is not None
    protection.drop_child(state, account, market, position, order, reason)


def _drop_closings(state: State, account: Account, market: Market) -> None:
    """The position is gone or has turned round: limits that only close it go with it, as its stop does."""
    for order in [account.orders[n] for n in account.resting]:
        if order.coin == market.spec.coin and order.kind == "limit" and order.reduce_only and order.filled < order.size:
            drop_entry(state, account, market, order, "reduce_only")


def unprotected(state: State, account: Account, coin: str) -> bool:
    """A position without any stop that could fire at the venue."""
    position = account.positions.get(coin)
    return position is not None and not protection.is_protected(state, account, position)


def cancel(state: State, account: Account, oid: str) -> OrderCanceled | Refusal:
    number = int(oid) - account.number * 1_000_000_000 if oid.isascii() and oid.isdigit() else -1
    order = account.orders.get(number)
    # "0123" is no spelling of 123: who may cancel is judged by the text.
    if order is None or oid != oid_text(account, number) or _is_exit_at_work(order):
        return Refusal("not_found", f"no open order {oid}")
    drop(state, account, order, "user")
    return OrderCanceled(order.coin, (oid,), order.filled, unprotected(state, account, order.coin))


def _is_exit_at_work(order: Order) -> bool:
    """What a guardian still closes is no open order, and in no list of them: it goes on until the position is flat."""
    return order.kind == "close" and order.status == "working"


def cancel_coin(state: State, account: Account, coin: str) -> OrderCanceled | Refusal:
    if coin not in state.markets:
        return no_market(coin, state.markets)
    orders = [o for o in account.orders.values() if o.coin == coin and not _is_exit_at_work(o)]
    for order in orders:
        drop(state, account, order, "user")
    return OrderCanceled(
        coin,
        tuple(oid_text(account, o.number) for o in orders),
        sum(o.filled for o in orders),
        unprotected(state, account, coin),
    )


def entries(account: Account) -> list[Order]:
    """What rests and could open. An order that only reduces could not."""
    return [order for n in account.resting if not (order := account.orders[n]).reduce_only]


def cancel_resting(
    state: State, account: Account, reason: str, coin: str, *, entries_elsewhere: bool = False
) -> tuple[str, ...]:
    """Cancel all that rests in a market, a close that waits too, and in the others what could open if that is asked; stops and targets stay."""
    gone = [
        order
        for n in account.resting
        if (order := account.orders[n]).coin == coin or (entries_elsewhere and not order.reduce_only)
    ]
    return cancel_each(state, account, gone, reason)


def cancel_each(state: State, account: Account, gone: list[Order], reason: str) -> tuple[str, ...]:
    for order in gone:
        drop_entry(state, account, state.markets[order.coin], order, reason)
    return tuple(oid_text(account, o.number) for o in gone)
