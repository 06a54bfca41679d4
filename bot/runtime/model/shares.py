"""A strategy's share of a position, and its totals: fills, fees, funding, realized profit. Amounts are exact (USD, coins)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final, NamedTuple

from bot.runtime.model.positions import is_no

FOREIGN: Final = "@foreign"  # placed by somebody else or by the service, or before this journal began


NETTING: Final = "@netting"  # the difference between the account's average entry price and those of the shares


UNIT: Final = Decimal("0.00000001")


NOUGHT: Final = Decimal(0)


EXACT: Final = Context(prec=64)  # price times size has up to 40 digits; the default of 28 would round


class TotalsRow(NamedTuple):
    """One strategy's sums since the journal began. `base_usd` is their value at 00:00 UTC, at the mark price."""

    strategy: str
    fills: int = 0
    fees_usd: Decimal = NOUGHT
    funding_usd: Decimal = NOUGHT
    realized_usd: Decimal = NOUGHT
    margin_lost_usd: Decimal = NOUGHT
    day_ms: int = 0
    base_usd: Decimal = NOUGHT
    halted_day_ms: int = 0  # the day on which its daily loss was reached

    @property
    def net_usd(self) -> Decimal:
        return self.realized_usd - self.fees_usd + self.funding_usd - self.margin_lost_usd


class Share(NamedTuple):
    """One strategy's part of a market's position. `cost_usd` is size times price of its entries."""

    market: str
    strategy: str
    side: str
    size: Decimal
    cost_usd: Decimal

    @property
    def notional_usd(self) -> Decimal:
        """Notional at entry: its part of the strategy's budget."""
        return self.size - self.cost_usd if is_no(self.market, self.side) else self.cost_usd

    @property
    def entry_px(self) -> Decimal:
        # Strategies read it too, in decimal contexts of their own.
        return EXACT.divide(self.cost_usd, self.size).quantize(UNIT, context=EXACT) if self.size else NOUGHT

    def gain_usd(self, mark: Decimal) -> Decimal:
        gain = mark * self.size - self.cost_usd
        return gain if self.side == "long" else -gain


class AttributionChanges(NamedTuple):
    """What the journal must write: these rows, and all shares of these markets. `wiped`: delete everything first."""

    epoch: int
    rows: tuple[TotalsRow, ...] = ()
    markets: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    wiped: bool = False


class Part(NamedTuple):
    """One strategy's part of a fill."""

    size: Decimal
    fee_usd: Decimal
    realized_usd: Decimal | None
    left: Decimal  # size of its share afterwards


@dataclass(frozen=True, slots=True)
class StrategyTotals:
    """One strategy's account, for people. Funding is negative when paid; `day_usd` counts from 00:00 UTC, all in, at mark."""

    strategy: str
    fills: int
    fees_usd: Decimal
    funding_usd: Decimal
    realized_usd: Decimal
    margin_lost_usd: Decimal
    unrealized_usd: Decimal
    day_usd: Decimal
    notional_usd: Decimal
    is_halted: bool
    shares: tuple[Share, ...]

    @property
    def net_usd(self) -> Decimal:
        """Realised and unrealised profit, with funding, less fees and lost margin."""
        return self.realized_usd + self.unrealized_usd - self.fees_usd + self.funding_usd - self.margin_lost_usd
