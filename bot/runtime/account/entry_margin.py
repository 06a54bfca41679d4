"""How much free margin an entry needs, by the fee rate and the margin mode of its market."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bot.runtime.model.positions import EVENT

if TYPE_CHECKING:
    from bot.wire import Market

# the service gives a rate in basis points with four decimals
FEE_ROUNDING: Final = 1e-8


class EntryTerms(NamedTuple):
    """`fee`: the highest taker fee, as a fraction of the notional. `margin_mode`: cross, isolated or full."""

    fee: float = 0.0
    margin_mode: str = "cross"

    def margin_usd(self, notional_usd: float, leverage: float) -> float:
        """The free margin that an entry of this notional needs.

        An isolated position pays its fee from its own margin.
        """
        return notional_usd * (1 / leverage + (0 if self.margin_mode == "isolated" else self.fee))


def entry_terms(market: Market) -> EntryTerms:
    """The terms by the service's list of markets.

    The list gives the fee of an event for a Yes at its present price. A No, or another price, may pay up to the whole
    rate.
    """
    fee = float(market.taker_fee_bps or 0) / 10_000 + FEE_ROUNDING
    if market.coin.startswith(EVENT) and market.mark_px is not None and market.mark_px < 1:
        fee /= 1 - float(market.mark_px)
    return EntryTerms(fee, market.margin_mode or "cross")
