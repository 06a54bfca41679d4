"""Orders, fills and reports: the records that the engine makes and the wire form shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class ExchangeRefusal(NamedTuple):
    """The exchange's refusal: the text, and the order status that it leads to ("" if no order was created)."""

    text: str
    status: str = ""


class Resting(NamedTuple):
    """The order rests in the book, or waits for its trigger."""

    oid: int
    cloid: str | None


class Filled(NamedTuple):
    """The order filled at once, whole or in part."""

    size: int
    avg_px: int
    oid: int
    cloid: str | None


# a child whose parent has not filled
WAITING_FOR_FILL: Final = "waitingForFill"
# a child whose parent has filled, or a stop of a position
WAITING_FOR_TRIGGER: Final = "waitingForTrigger"

Outcome = Resting | Filled | ExchangeRefusal | str


class ExchangeTrigger(NamedTuple):
    px: int
    is_market: bool
    is_target: bool


@dataclass(slots=True)
class ExchangeOrderRequest:
    """One order of an action, with amounts as numbers. `tif` is None for a trigger order."""

    coin: str
    asset: int
    buy: bool
    px: int
    sz: int
    reduce_only: bool
    tif: str | None
    trigger: ExchangeTrigger | None
    cloid: str | None


@dataclass(slots=True)
class ExchangeOrder:
    """`sz` is what is left; `told_sz` what was left when the status last changed, which is what orderStatus shows.

    `parent`: the order that a child waits for; `group`: orders of which one cancels the others; `whole`: follows the
    position's size.
    """

    oid: int
    user: str
    coin: str
    asset: int
    buy: bool
    px: int
    sz: int
    orig_sz: int
    reduce_only: bool
    tif: str | None
    cloid: str | None
    at_ms: int
    trigger: ExchangeTrigger | None = None
    grouping: str = "na"
    whole: bool = False
    parent: int | None = None
    children: tuple[int, ...] = ()
    group: int = 0
    is_live: bool = True
    status: str = "open"
    status_ms: int = 0
    told_sz: int = 0
    filled_notional: int = 0
    builder: tuple[str, int] | None = None
    in_book: bool = False

    @property
    def filled(self) -> int:
        return self.orig_sz - self.sz


class Execution(NamedTuple):
    """What both sides of a trade share. `liquidation`: (liquidated address, mark price, method)."""

    px: int
    sz: int
    tid: int
    liquidation: tuple[str, int, str] | None


class ExchangeFill(NamedTuple):
    """One side of a trade, as userFills shows it. `liquidation`: (liquidated address, mark price, method)."""

    user: str
    coin: str
    px: int
    sz: int
    buy: bool
    time: int
    start_position: int
    dir: str
    closed_pnl: int
    hash: str
    oid: int
    crossed: bool
    fee: int
    tid: int
    cloid: str | None
    builder_fee: int
    liquidation: tuple[str, int, str] | None


class ExchangeTrade(NamedTuple):
    coin: str
    buy: bool
    px: int
    sz: int
    hash: str
    time: int
    tid: int
    buyer: str
    seller: str


class Report(NamedTuple):
    """Something that a channel tells: kind order | fill | trade | funding | ledger | liquidation | cancel, the address
    ("" for everybody), the row.
    """

    kind: str
    user: str
    row: Any


class Agent(NamedTuple):
    """A key that may sign for its master. The unnamed agent has the name ""."""

    address: str
    master: str
    name: str
    valid_until: int
