"""A strategy's share of a position, and its totals: fills, fees, funding, realized profit.

Amounts are exact (USD, coins).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final, NamedTuple

from bot.money import decimal_of_e8, decimal_of_e16
from bot.runtime.model.positions import is_no
from bot.runtime.model.protection_rules import EndedTrade

# placed by somebody else or by the service, or before this journal began
FOREIGN: Final = "@foreign"


# the difference between the account's average entry price and those of the shares
NETTING: Final = "@netting"


UNIT: Final = Decimal("0.00000001")


NOUGHT: Final = Decimal(0)


# price times size has up to 40 digits; the default of 28 would round
EXACT: Final = Context(prec=64)


class TotalsRow(NamedTuple):
    """One strategy's sums since the journal began, in 1e-16 USD.

    `base`: their value at 00:00 UTC, at the mark price.
    """

    strategy: str
    fills: int = 0
    fees: int = 0
    funding: int = 0
    realized: int = 0
    margin_lost: int = 0
    day_ms: int = 0
    base: int = 0
    # the day on which its daily loss was reached
    halted_day_ms: int = 0

    @property
    def net(self) -> int:
        return self.realized - self.fees + self.funding - self.margin_lost


class Share(NamedTuple):
    """One strategy's part of a market's position. `cost_usd` is size times price of its entries."""

    market: str
    strategy: str
    side: str
    size_e8: int
    # scaled 1e16
    cost: int

    @property
    def size(self) -> Decimal:
        return decimal_of_e8(self.size_e8)

    @property
    def cost_usd(self) -> Decimal:
        return decimal_of_e16(self.cost)

    @property
    def notional_usd(self) -> Decimal:
        """The share's notional at entry, which counts against the strategy's budget."""
        return self.size - self.cost_usd if is_no(self.market, self.side) else self.cost_usd

    @property
    def entry_e8(self) -> int:
        """Mean price of the share's entries, rounded half even; 0 without a size."""
        if not self.size_e8:
            return 0
        px, rest = divmod(self.cost, self.size_e8)
        return px + (2 * rest > self.size_e8 or (2 * rest == self.size_e8 and px % 2 == 1))

    @property
    def entry_px(self) -> Decimal:
        return decimal_of_e8(self.entry_e8)

    def gain(self, mark: int) -> int:
        """Scaled 1e16, at a mark scaled 1e8."""
        gain = mark * self.size_e8 - self.cost
        return gain if self.side == "long" else -gain


class TradeRow(NamedTuple):
    """A trade of a strategy in a market, as the journal has it. `closed_ms` None: it is open.

    `net` is its result so far, in 1e-16 USD. None: the trade is to be removed.
    """

    strategy: str
    market: str
    side: str
    opened_ms: int
    closed_ms: int | None
    net: int | None
    is_stop: bool

    def closed(self) -> EndedTrade:
        """The trade as the protections see it."""
        assert self.closed_ms is not None, "the trade is open"
        return EndedTrade(self.strategy, self.market, self.closed_ms, self.net or 0, self.is_stop)


class EntryRow(NamedTuple):
    """An order of a strategy that opened or grew a position: its key, and when its first fill came."""

    key: str
    strategy: str
    market: str
    at_ms: int


class AttributionChanges(NamedTuple):
    """What the journal must write: these rows, and all shares of these markets. `wiped`: delete everything first.

    `trades` and `entries` are those of the trade log, in their order.
    """

    epoch: int
    rows: tuple[TotalsRow, ...] = ()
    markets: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    wiped: bool = False
    trades: tuple[TradeRow, ...] = ()
    entries: tuple[EntryRow, ...] = ()


class Part(NamedTuple):
    """One strategy's part of a fill. Sizes are integers of 1e-8, amounts of 1e-16 USD."""

    size_e8: int
    fee: int
    realized: int | None
    # size of its share afterwards
    left_e8: int


@dataclass(frozen=True, slots=True)
class StrategyTotals:
    """One strategy's account, for people.

    Funding is negative when paid; `day_usd` counts from 00:00 UTC, all in, at mark.
    """

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
