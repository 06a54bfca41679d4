"""Plans: dry runs, each stored for one confirm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, takewhile

from bot.errors import Refusal
from bot.venue.model.commands import ConfirmPlan, StorePlan
from bot.venue.model.numbers import BPS, text_of
from bot.venue.model.state import DAY_MS, PLAN_KEPT_MS, PLANS_KEPT, OrderSpec, State, VenueAccount, VenueKey, VenuePlan
from bot.venue.orders import orders
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.orders.preview import preview_order
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.storage import pages


def store_plan(state: State, account: VenueAccount, key: VenueKey | None, command: StorePlan) -> OrderPreview | Refusal:
    """Preview an order, and store it as a plan for one confirm."""
    preview = preview_order(state, account, command.order, key)
    if isinstance(preview, Refusal):
        return preview
    preview.max_drift_bps = command.max_drift_bps
    plans = state.plans
    # Plans expire in the order they were made, so the first is the oldest.
    while plans:
        oldest = next(iter(plans.values()))
        if oldest.expires_ms + PLAN_KEPT_MS > state.now_ms:
            break
        del plans[oldest.token]
    if len(plans) >= PLANS_KEPT and next(iter(plans.values())).expires_ms <= state.now_ms:
        over = list(takewhile(lambda plan: plan.expires_ms <= state.now_ms, islice(plans.values(), PLANS_KEPT // 10)))
        _keep_spent(state, over)
        plans = state.plans = dict(islice(plans.items(), len(over), None))
    assert command.token not in plans, "a confirm token is new"
    plans[command.token] = VenuePlan(
        command.token,
        account.id,
        command.key,
        command.order,
        preview.mid,
        state.now_ms,
        state.now_ms + command.ttl_ms,
        command.max_drift_bps,
        shrinks=preview.intent == "close",
    )
    state.preview = (state.commands, command.token, preview)
    return preview


def _keep_spent(state: State, plans: Iterable[VenuePlan]) -> None:
    """Before plans are removed early: keep the trades of executed plans for PLAN_KEPT_MS, so that a repeated confirm
    finds them.
    """
    for plan in plans:
        if plan.trade is not None:
            spent = state.accounts[plan.account].spent
            day = plan.expires_ms // DAY_MS
            if day not in spent:
                for past in [
                    spent_day for spent_day in spent if (spent_day + 1) * DAY_MS + PLAN_KEPT_MS <= state.now_ms
                ]:
                    del spent[past]
                spent[day] = {}
            spent[day][plan.token] = plan.trade


def confirm(
    state: State, account: VenueAccount, key: VenueKey | None, command: ConfirmPlan
) -> orders.OrderPlaced | ActionsSent | Refusal:
    """Execute a plan once. The token is used up also when the confirm is refused.

    For PLAN_KEPT_MS a used token answers `used_token` with its trade, also after the plan was removed. A stale plan
    that was removed is `not_found`. Neither can be executed.
    """
    plan = state.plans.get(command.token)
    if plan is None or plan.account != account.id:
        trade = next((trades[command.token] for trades in account.spent.values() if command.token in trades), None)
        if trade is not None:
            return _used(trade)
        used = command.idempotency_key
        if (
            used is not None
            and pages.trade_of_key(account, used)
            and (refused := orders.fenced(state, account, command))
        ):
            # The key of a trade is known for ever, also after its plan was removed.
            return refused
        return Refusal("not_found", "no such plan: the confirm token is unknown", fix={"action": "replan"})
    if plan.state == "used":
        return _used(plan.trade)
    if (over := _over(plan)) is not None:
        return over
    if refused := orders.fenced(state, account, command):
        plan.state = "refused"
        return refused
    if state.now_ms >= plan.expires_ms:
        plan.state = "refused"
        return _expired(plan)
    market = state.markets[plan.order.coin]
    if abs(market.mid - plan.mid) * BPS > plan.max_drift_bps * plan.mid:
        plan.state = "refused"
        return Refusal(
            "plan_stale",
            f"the price moved from {text_of(plan.mid)} to {text_of(market.mid)}, more than {plan.max_drift_bps} bps",
            fix={"action": "replan"},
            details={"midAtPlan": text_of(plan.mid), "midNow": text_of(market.mid)},
        )
    order = replace(plan.order, reduce_only=True) if command.reduce_only else plan.order
    preview = _previewed_just_now(state, plan, command) or preview_order(state, account, order, key)
    if isinstance(preview, Refusal):
        plan.state = "refused"
        # The token is used up, so the caller needs another plan.
        code = "plan_stale" if preview.code == "insufficient_depth" else preview.code
        return replace(preview, code=code, fix={"action": "replan"})
    placed = orders.execute(state, account, order, preview, key, command.request_id, command.idempotency_key)
    if type(placed) is orders.OrderPlaced:
        plan.state, plan.trade = "used", placed.trade.id
    elif isinstance(placed, ActionsSent):
        plan.state, plan.trade = "used", placed.trade
    # Of a refused one nothing was sent, and nothing of the plan is used up.
    return placed


def shown(state: State, account: VenueAccount, token: str, order: OrderSpec | None) -> VenuePlan | Refusal:
    """The open plan of exactly this order, for a schedule that will place it."""
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
        text = "confirmToken belongs to a plan of another order than orderTemplate"
        return Refusal("plan_stale", text, fix={"action": "replan"})
    return plan


def _over(plan: VenuePlan) -> Refusal | None:
    if plan.state == "refused":
        return Refusal("plan_stale", "this plan's confirm was refused before", fix={"action": "replan"})
    if plan.state == "armed":
        return Refusal("plan_stale", "this plan was already used to arm a schedule", fix={"action": "replan"})
    return None


def _expired(plan: VenuePlan) -> Refusal:
    return Refusal(
        "plan_stale", "the plan has expired", fix={"action": "replan"}, details={"expiredAt": plan.expires_ms}
    )


def _used(trade: str | None) -> Refusal:
    return Refusal(
        "idempotency_conflict", "this plan was executed already", details={"reason": "used_token", "tradeId": trade}
    )


def _previewed_just_now(state: State, plan: VenuePlan, command: ConfirmPlan) -> OrderPreview | None:
    """The plan's own preview if its confirm is the next command, by the same key, on the same day.

    A new preview would be equal.
    """
    last = state.preview
    if last is None or last[0] + 1 != state.commands or last[1] != plan.token or command.key != plan.key:
        return None
    if state.now_ms // DAY_MS != plan.made_ms // DAY_MS:
        return None
    preview: OrderPreview = last[2]
    return preview
