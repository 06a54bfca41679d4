"""The protection of a previewed order: its bracket, its guardians, and whether the position it leaves has a stop."""

from __future__ import annotations

from bot.errors import Refusal
from bot.venue.accounting import ledger
from bot.venue.accounting.order_sizes import invalid
from bot.venue.model.numbers import text_of
from bot.venue.model.refusals import no_market
from bot.venue.model.state import OrderSpec
from bot.venue.orders.preview_draft import OrderPreview
from bot.venue.protection import guardians
from bot.venue.protection.brackets import resolve_bracket


def set_bracket(draft: OrderPreview) -> Refusal | None:
    order, market = draft.order, draft.market
    draft.bracket = None
    if not draft.opening and (attached := _attached(order)):
        return invalid(
            attached,
            f"this order only reduces a position; {attached} belongs to an order that opens",
            fix={"action": "remove", "field": attached},
        )
    if order.stop is None and order.target is None:
        return None
    resting = draft.limit and draft.fill_size <= draft.reduce
    bracket = resolve_bracket(
        market, order.side, draft.entry_px, order.stop, order.target, mark=market.mark, resting=resting
    )
    if isinstance(bracket, Refusal):
        return bracket
    stop, beyond = bracket.stop, draft.beyond
    if stop is not None and beyond is not None and not guardians.can_fire(stop.px, order.side, beyond):
        return invalid(
            "bracket.stopLoss",
            f"{text_of(stop.px)} lies beyond the liquidation price {text_of(beyond)}: it could never fire",
            fix={"action": "lower_leverage", "field": "leverage"},
        )
    draft.bracket = bracket
    return None


def _attached(order: OrderSpec) -> str | None:
    """The name of a field that only an opening order may have: bracket or guardians. None if there is none."""
    if order.stop is not None or order.target is not None:
        return "bracket"
    return "guardians" if order.guardians else None


def set_guardians(draft: OrderPreview) -> Refusal | None:
    draft.guardians = ()
    order = draft.order
    if not order.guardians:
        return None
    specs = guardians.normalise_inline(order.guardians, order.coin)
    if isinstance(specs, Refusal):
        return specs
    markets = draft.state.markets
    for at, inline in enumerate(specs):
        if inline.order is not None and inline.order.coin not in markets:
            return no_market(inline.order.coin, markets, field=f"guardians.{at}.orderTemplate.market")
    position = draft.position
    has_r = _has_stop(draft) or (position is not None and not draft.against and position.r_px is not None)
    draft.guardians = specs
    return guardians.refuse_inline(specs, has_r=has_r)


def _has_stop(draft: OrderPreview) -> bool:
    return draft.bracket is not None and draft.bracket.stop is not None


def set_protection(draft: OrderPreview) -> Refusal | None:
    """Set whether the position that the order leaves has a stop."""
    if not draft.opening:
        draft.protected = _protects_rest(draft)
        return None
    draft.protected, dead_stop = _protects_opening(draft)
    if draft.protected:
        _warn_until_filled(draft)
        return None
    if draft.order.require_protection:
        return invalid(
            "bracket.stopLoss",
            dead_stop
            or "requireProtection needs a stop: in the bracket, on the position already, or an inline trailing_stop",
            fix={"action": "arm_stop", "field": "bracket.stopLoss", "value": {"pct": 2}},
        )
    draft.warnings.append(
        ("unprotected", f"{dead_stop}: it could never fire" if dead_stop else "the position will have no stop")
    )
    return None


def _protects_rest(draft: OrderPreview) -> bool:
    """True if a stop covers the rest of the position after a reducing order, or nothing is left."""
    position = draft.position
    if position is None or position.size <= draft.fill_size:
        return True
    left_at = ledger.liquidation_px(draft.state, position) if draft.limit else draft.liquidation_px
    return guardians.can_fire(guardians.held_stop(draft.account, position), position.side, left_at)


def _protects_opening(draft: OrderPreview) -> tuple[bool, str | None]:
    """Whether an opening order has a stop that can fire, and what is wrong with a stop that cannot."""
    account, same, buy = draft.account, draft.same, draft.order.side
    protected, dead_stop = _has_stop(draft), None
    if not protected:
        r_px = None if same is None else same.r_px
        stop_px = guardians.coming_trail(draft.guardians, buy, draft.entry_px, r_px)
        if same is not None:
            held = guardians.held_stop(account, same)
            # A bracket with only a target replaces the old bracket and its stop.
            if draft.bracket is not None:
                held = guardians.held_trail(account, draft.order.coin, buy)
            stop_px = guardians.nearest(buy, stop_px, held)
        protected = guardians.can_fire(stop_px, buy, draft.beyond)
        if stop_px is not None and draft.beyond is not None and not protected:
            dead_stop = _dead(stop_px, draft.beyond)
    if draft.alone is not None and same is not None and protected:
        held = guardians.held_stop(account, same)
        if held is not None and not guardians.can_fire(held, buy, draft.alone):
            return False, _dead(held, draft.alone)
    return protected, dead_stop


def _dead(stop_px: int, liquidation: int) -> str:
    return f"the position's stop {text_of(stop_px)} would lie beyond the liquidation price {text_of(liquidation)}"


def _warn_until_filled(draft: OrderPreview) -> None:
    """Warn that the present position does not have the bracket of a limit order before it fills."""
    position = draft.position
    if not draft.limit or position is None or (draft.fill_size >= draft.reduce and draft.fill_size):
        return
    left_at = ledger.liquidation_px(draft.state, position) if draft.alone is None else draft.alone
    if not guardians.can_fire(guardians.held_stop(draft.account, position), position.side, left_at):
        draft.protected = False
        draft.warnings.append(("unprotected", "the position has no stop until this order fills"))
