"""A strategy's share of a position, and its totals: fills, fees, funding, realized profit. Amounts are exact (USD, coins)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final, NamedTuple

from bot.runtime.model.positions import is_no
from bot.wire import bare_coin

FOREIGN: Final = "@foreign"  # another hand's, the service's own, or from before our time


NETTING: Final = "@netting"  # between the account's average entry and the shares' own


UNIT: Final = Decimal("0.00000001")


NOUGHT: Final = Decimal(0)


SIZE_DECIMALS: Final = 8  # of a market whose own are not known yet


EXACT: Final = Context(prec=64)  # price times size has up to 40 digits; the default of 28 would round


class TotalsRow(NamedTuple):
    """One strategy's sums since the journal began, as they are kept. `base_usd` is what they came to, at mark, when the day began."""

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
    """What one strategy holds of a market's position. `cost_usd` is size times price of its entries."""

    market: str
    strategy: str
    side: str
    size: Decimal
    cost_usd: Decimal

    @property
    def notional_usd(self) -> Decimal:
        """At entry: what it takes of a budget."""
        return self.size - self.cost_usd if is_no(self.market, self.side) else self.cost_usd

    @property
    def entry_px(self) -> Decimal:
        # Strategies read it too, in contexts of their own making.
        return EXACT.divide(self.cost_usd, self.size).quantize(UNIT, context=EXACT) if self.size else NOUGHT

    def gain_usd(self, mark: Decimal) -> Decimal:
        gain = mark * self.size - self.cost_usd
        return gain if self.side == "long" else -gain


class AttributionChanges(NamedTuple):
    """What the journal has to write: rows anew, the shares of these markets anew, or all of it away first."""

    epoch: int
    rows: tuple[TotalsRow, ...] = ()
    markets: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    wiped: bool = False


class Part(NamedTuple):
    """What one strategy has of a fill."""

    size: Decimal
    fee_usd: Decimal
    realized_usd: Decimal | None
    left: Decimal  # of its share


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
        """What it has come to: realised and unrealised, less fees and lost margin, with funding."""
        return self.realized_usd + self.unrealized_usd - self.fees_usd + self.funding_usd - self.margin_lost_usd


def size_step(size_decimals: Mapping[str, int], market: str) -> Decimal:
    """The smallest size in this market. `size_decimals` are those of each market."""
    return Decimal(1).scaleb(-size_decimals.get(bare_coin(market), SIZE_DECIMALS))
