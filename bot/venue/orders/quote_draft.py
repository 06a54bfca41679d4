"""A quote, and the draft that its steps fill in."""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.venue.model.state import Account, Bracket, GuardianSpec, Key, Market, OrderSpec, Position, State

Warning_ = tuple[str, str]


@dataclass(slots=True)
class Quote:
    """The answer of a dry run.

    `fills`: executions that the book offers now. `reduce`: the part of `size` that closes the position.
    """

    coin: str
    side: int
    intent: str
    type: str
    buy: int
    size: int
    reduce: int
    fill_size: int
    fills: list[tuple[int, int]]
    notional: int
    mid: int
    est_px: int | None
    bound_px: int
    slippage_bps: int | None
    # less the rebate
    fee: int
    rebate: int
    leverage: int
    clamped: bool
    margin: int
    liquidation_px: int | None
    bracket: Bracket | None
    risk: int | None
    guardians: tuple[GuardianSpec, ...]
    protected: bool
    max_drift_bps: int = 50
    warnings: tuple[Warning_, ...] = ()


@dataclass(slots=True)
class Draft:
    """A quote in progress. Each step of `quote` sets the fields that later steps read."""

    state: State
    account: Account
    order: OrderSpec
    key: Key | None
    market: Market
    # the position that the order will find
    position: Position | None
    limit: bool
    # the market's positions are paid in full
    full: bool
    warnings: list[Warning_]
    # _set_size
    # worst price
    bound: int = field(init=False)
    # the limit, or the mid
    value_px: int = field(init=False)
    # the position has the other side
    against: bool = field(init=False)
    size: int = field(init=False)
    reduce: int = field(init=False)
    opening: int = field(init=False)
    side: int = field(init=False)
    # _set_leverage
    leverage: int = field(init=False)
    clamped: bool = field(init=False)
    # _set_fills
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
    same: Position | None = field(init=False)
    liquidation: int | None = field(init=False)
    # nearest liquidation price of all positions that a limit may leave
    beyond: int | None = field(init=False)
    # liquidation price of the position at the new leverage, before the order fills
    alone: int | None = field(init=False)
    # _set_bracket, _set_guardians, _set_protection
    bracket: Bracket | None = field(init=False)
    guardians: tuple[GuardianSpec, ...] = field(init=False)
    protected: bool = field(init=False)

    @property
    def at_limit(self) -> tuple[int, int]:
        """Price and size of what a limit leaves to rest."""
        return (self.value_px, self.size - self.fill_size) if self.limit else (0, 0)
