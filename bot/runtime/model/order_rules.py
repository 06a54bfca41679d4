"""What a market accepts as the size, the price and the value of an order, by the service's list of markets."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.wire import bare_coin

if TYPE_CHECKING:
    from bot.wire import Market

# The decimals for a market whose own are not known yet.
SIZE_DECIMALS: Final = 8
# the interface's minimum of an order, where the list does not say another
LEAST_USD: Final = Decimal(10)


class OrderRules(NamedTuple):
    """`tick` None: prices follow the interface's rule on size decimals.

    `least_usd`: of an order, and of a part of a position that is closed.
    """

    size_decimals: int
    size_step: Decimal
    tick: Decimal | None = None
    least_usd: Decimal = LEAST_USD


UNKNOWN: Final = OrderRules(SIZE_DECIMALS, Decimal(1).scaleb(-SIZE_DECIMALS))


def order_rules(market: Market) -> OrderRules:
    """The rules by the service's list of markets."""
    step = Decimal(1).scaleb(-market.sz_decimals) if market.size_step is None else market.size_step
    least = LEAST_USD if market.min_notional_usd is None else market.min_notional_usd
    return OrderRules(market.sz_decimals, step, market.tick_size, least)


def rules_of(rules: Mapping[str, OrderRules], market: str) -> OrderRules:
    return rules.get(bare_coin(market), UNKNOWN)


def whole_steps(size: Decimal, step: Decimal) -> Decimal:
    """The size rounded down to a whole number of steps."""
    return size // step * step
