"""New rules of a listed market.

While an account has an order or a position there, only rules may change that concern neither: a resting price must stay
on the grid, and a position keeps the margin that it was opened with.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from bot.errors import Refusal
from bot.venue.model.commands import ChangeListing
from bot.venue.model.numbers import E8
from bot.venue.model.state import MarketSpec, State, VenueMarket

# rules of orders and positions that are still to come
FREE: Final = frozenset(
    {
        "name",
        "taker_rate",
        "maker_rate",
        "half_spread",
        "level_step",
        "level_size",
        "level_growth",
        "slippage_bps",
        "funding_rate",
        "funding_factor",
        "hours",
        "strict_hours",
    }
)


def change_listing(state: State, command: ChangeListing) -> Refusal | None:
    """Give a market other rules, or list it. None if it has them now."""
    spec = command.spec
    check_listing(spec)
    if spec.coin not in state.markets:
        assert command.px > 0
        state.markets[spec.coin] = VenueMarket(spec, command.px, command.px, command.px, funding_rate=spec.funding_rate)
        return None
    market = state.markets[spec.coin]
    changed = [each.name for each in fields(MarketSpec) if getattr(spec, each.name) != getattr(market.spec, each.name)]
    bound = [name for name in changed if name not in FREE]
    if bound and (user := _user(state, spec.coin)) is not None:
        return Refusal(
            "conflict", f"{', '.join(bound)} of {spec.coin} cannot change while {user} there; close and cancel it first"
        )
    if bound:
        # A preview on the old grid is worth nothing.
        for token in [token for token, plan in state.plans.items() if plan.order.coin == spec.coin]:
            del state.plans[token]
    if "funding_rate" in changed and not market.is_rate_recorded:
        market.funding_rate = spec.funding_rate
    if "hours" in changed:
        market.external = market.opens_ms = market.closes_ms = market.premium_px = None
    market.spec = spec
    market.__post_init__()
    return None


def check_listing(spec: MarketSpec) -> None:
    """Assert that the venue can hold these rules."""
    assert spec.lot > 0 and (spec.tick is None or (spec.tick > 0 and spec.sig_figs is None)), spec
    assert spec.min_notional >= 0, spec
    assert 0 <= spec.taker_rate < E8 and -E8 < spec.maker_rate < E8, spec


def _user(state: State, coin: str) -> str | None:
    """Who has something in a market; None if nobody has."""
    for account in state.accounts.values():
        if coin in account.positions:
            return f"account {account.name or account.id} has a position"
        if any(order.coin == coin for order in account.orders.values()):
            return f"account {account.name or account.id} has an order"
    return None
