"""Values of the account state: a position, an order, a guardian, and the kinds of drift between account state and
service.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

from bot.money import decimal_of_e8

DriftKind = Literal[
    "missing_fill", "foreign_order", "foreign_position", "naked_position", "guardian_gone", "order_gone", "cursor_lost"
]


PROTECTIVE: Final = ("stop_loss", "take_profit")


# prefix of event markets: long is a Yes, short is a No
EVENT: Final = "event:"
# type of the guardian that acts when heartbeats stop
SWITCH: Final = "dead_man_switch"


Px = TypeVar("Px", Decimal, float)


def is_no(market: str, side: str) -> bool:
    return side == "short" and market.startswith(EVENT)


def unit_px(market: str, side: str, px: Px) -> Px:
    """Value of one unit of this side: the price, or for a No 1 USD less the price."""
    return 1 - px if is_no(market, side) else px


class AccountPosition(NamedTuple):
    """An open position.

    `owner` is the strategy whose order opened it, or that has adopted it; None if it is not ours.
    """

    market: str
    side: str
    size_e8: int
    entry_e8: int | None
    leverage: float = 1
    # The first stop of the newest bracket: 1 R is measured from it, even after the stop has ended.
    first_stop_e8: int | None = None
    opened_ms: int = 0
    owner: str | None = None
    # True: another hand opened the position, and no order of ours has added to it
    is_adopted: bool = False

    @property
    def size(self) -> Decimal:
        return decimal_of_e8(self.size_e8)

    @property
    def entry_px(self) -> Decimal | None:
        return None if self.entry_e8 is None else decimal_of_e8(self.entry_e8)

    @property
    def first_stop_px(self) -> Decimal | None:
        return None if self.first_stop_e8 is None else decimal_of_e8(self.first_stop_e8)

    def can_fire(self, stop_px: Decimal | None, liquidation_px: Decimal | None) -> bool:
        """False for a stop at or beyond the liquidation price, which the price reaches first.

        True if one of the two is not known.
        """
        if stop_px is None or liquidation_px is None:
            return True
        return stop_px > liquidation_px if self.side == "long" else stop_px < liquidation_px

    @property
    def notional_usd(self) -> Decimal:
        """Notional at entry: the position's part of a budget."""
        if self.entry_px is None:
            return Decimal(0)
        return self.size * unit_px(self.market, self.side, self.entry_px)


class AccountOrder(NamedTuple):
    """A resting entry (`limit`) or an armed leg of a bracket (`stop_loss`, `take_profit`); in a market with trading
    hours also an order that waits for the next open (`market`, `close`).
    """

    oid: str
    market: str
    kind: str
    side: str
    action: str
    size_e8: int
    filled_e8: int
    limit_e8: int | None
    trigger_e8: int | None
    trade_id: str | None
    key: str | None
    created_ms: int = 0
    # the leverage that an entry of ours requested
    leverage: float = 1

    @property
    def size(self) -> Decimal:
        return decimal_of_e8(self.size_e8)

    @property
    def filled(self) -> Decimal:
        return decimal_of_e8(self.filled_e8)

    @property
    def limit_px(self) -> Decimal | None:
        return None if self.limit_e8 is None else decimal_of_e8(self.limit_e8)

    @property
    def trigger_px(self) -> Decimal | None:
        return None if self.trigger_e8 is None else decimal_of_e8(self.trigger_e8)

    def resting_usd(self, mark: float | None) -> Decimal:
        """Notional of the unfilled rest of an entry: at its limit, or at the mark for a market entry that waits for
        the next price.
        """
        px = self.limit_px
        if px is None:
            px = None if mark is None else Decimal(repr(mark))
        return Decimal(0) if px is None else (self.size - self.filled) * unit_px(self.market, self.side, px)

    @property
    def could_open(self) -> bool:
        return self.action == "open" and self.kind not in PROTECTIVE


account_position: Final = partial(tuple.__new__, AccountPosition)
account_order: Final = partial(tuple.__new__, AccountOrder)


@dataclass(frozen=True, slots=True)
class AccountGuardian:
    id: str
    type: str
    market: str | None
    latched: bool = False
    blocks_opens: bool = False
    # False: a trailing stop that waits and does not protect yet; None: not known
    active: bool | None = True


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between the service and the account state."""

    kind: DriftKind
    market: str | None = None
    # the order's or guardian's id, or a guardian's name in the config
    subject: str = ""
    message: str = ""
