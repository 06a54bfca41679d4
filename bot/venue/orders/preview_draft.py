"""The preview of an order. A dry run returns its figures; the execution of the order uses the same figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.venue.accounting.order_sizes import bps_from_mid
from bot.venue.model.numbers import E8
from bot.venue.model.state import (
    GuardianSpec,
    OrderSpec,
    State,
    VenueAccount,
    VenueBracket,
    VenueKey,
    VenueMarket,
    VenuePosition,
)

Warning_ = tuple[str, str]


# It names the whole state, so it has no repr and compares by identity.
@dataclass(slots=True, repr=False, eq=False)
class OrderPreview:
    """The checks of an order against the present state.

    Each step of `preview_order` sets the fields that later steps and the readers use.
    """

    state: State
    account: VenueAccount
    order: OrderSpec
    key: VenueKey | None
    market: VenueMarket
    # the position that the order will find
    position: VenuePosition | None
    limit: bool
    # the market's positions are paid in full
    full: bool
    warnings: list[Warning_]
    # _set_size
    mid: int = field(init=False)
    # worst price
    bound_px: int = field(init=False)
    # the limit, or the mid
    value_px: int = field(init=False)
    # the position has the other side
    against: bool = field(init=False)
    size: int = field(init=False)
    # the part of `size` that closes the position
    reduce: int = field(init=False)
    opening: int = field(init=False)
    side: int = field(init=False)
    # _set_leverage
    leverage: int = field(init=False)
    clamped: bool = field(init=False)
    # _set_fills
    # executions that the book offers now
    fills: list[tuple[int, int]] = field(init=False)
    fill_size: int = field(init=False)
    fill_notional: int = field(init=False)
    # _set_cost
    est_px: int | None = field(init=False)
    notional: int = field(init=False)
    entry_px: int = field(init=False)
    # what the fills open; for a limit, all that it may open
    opened: int = field(init=False)
    open_notional: int = field(init=False)
    margin: int = field(init=False)
    # less the rebate
    fee: int = field(init=False)
    # The rebate on the part of a limit that rests; 0 if the maker pays.
    rebate: int = field(init=False)
    # _set_liquidation
    # the position, if the order adds to it
    same: VenuePosition | None = field(init=False)
    liquidation_px: int | None = field(init=False)
    # nearest liquidation price of all positions that a limit may leave
    beyond: int | None = field(init=False)
    # liquidation price of the position at the new leverage, before the order fills
    alone: int | None = field(init=False)
    # _set_bracket, _set_guardians, _set_protection
    bracket: VenueBracket | None = field(init=False)
    guardians: tuple[GuardianSpec, ...] = field(init=False)
    protected: bool = field(init=False)
    # store_plan
    max_drift_bps: int = 50

    @property
    def at_limit(self) -> tuple[int, int]:
        """Price and size of what a limit leaves to rest."""
        return (self.value_px, self.size - self.fill_size) if self.limit else (0, 0)

    @property
    def coin(self) -> str:
        return self.order.coin

    @property
    def type(self) -> str:
        return self.order.type

    @property
    def intent(self) -> str:
        return "open" if self.opening else "close"

    @property
    def slippage_bps(self) -> int | None:
        return None if self.est_px is None else bps_from_mid(self.market, self.est_px, self.mid)

    @property
    def risk(self) -> int | None:
        """The loss at the stop, in USD. None without a stop."""
        stop = None if self.bracket is None else self.bracket.stop
        return None if stop is None else abs(self.entry_px - stop.px) * self.opened // E8
