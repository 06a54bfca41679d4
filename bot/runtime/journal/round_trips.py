"""Round trips: trades as a person counts them, from flat to flat in one market, out of the journal's events. Pure;
money is exact.

A fill that reduces belongs to the open trip; a reversal ends one trip and begins the next. A size that a liquidation or
settlement took without a fill is an exit too. If the journal begins in the middle of a trip, the trip is not
`complete`. A reset ends open trips, whether the journal has its event or only later events of another `epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from bot.clock import iso
from bot.money import format_decimal
from bot.runtime.model.excursions import Excursion, excursion

# An average price is rounded to this; sums are exact.
PX_PLACES: Final = Decimal("0.00000001")
TYPES: Final = ("fill", "funding", "liquidation", "settlement", "account", "trigger", "guardian")
# TYPES, and the events of orders, which tell the first stop of each trade
TYPES_WITH_STOPS: Final = (*TYPES, "order")
# newest causes that a fold keeps; those of one instant are some
CAUSES_KEPT: Final = 1_000
# wider than any sum of amounts here
EXACT: Final = Context(prec=60)

Event = Mapping[str, Any]
Owners = Callable[[list[str]], list[str]]

COLUMNS: Final = (
    "market",
    "side",
    "strategy",
    "status",
    "opened_at",
    "closed_at",
    "size",
    "open_size",
    "entry_px",
    "exit_px",
    "entry_usd",
    "exit_usd",
    "fees_usd",
    "funding_usd",
    "realized_usd",
    "net_usd",
    "exit_reason",
    "entry_kind",
    "entry_trade_id",
    "exit_trade_id",
    "complete",
    "first_stop_px",
    "r_multiple",
    "low_px",
    "high_px",
    "mae_r",
    "mfe_r",
)


@dataclass(slots=True)
class Trip:
    """One trade. `size` is all that was entered; `realized_usd` is without fees and funding, `net_usd` with them."""

    market: str
    side: str
    opened_ms: int | None
    closed_ms: int | None = None
    size: Decimal = Decimal(0)
    exited: Decimal = Decimal(0)
    entry_usd: Decimal = Decimal(0)
    exit_usd: Decimal = Decimal(0)
    fees_usd: Decimal = Decimal(0)
    funding_usd: Decimal = Decimal(0)
    realized_usd: Decimal = Decimal(0)
    lost_margin_usd: Decimal = Decimal(0)
    exit_reason: str | None = None
    entry_kind: str | None = None
    entry_trade_id: str | None = None
    exit_trade_id: str | None = None
    # False: its beginning is not in the journal
    complete: bool = True
    # "reset": the account was wiped with the position open
    ended_by: str | None = None
    keys: list[str] = field(default_factory=list)
    # The first stop, the order that brought it, and the loss of that order if the stop is hit. Known only from order
    # events.
    stop_px: Decimal | None = None
    stop_trade_id: str | None = None
    risk_usd: Decimal = Decimal(0)
    # the event that closed the trade
    closed_by: str | None = None
    # the strategies of a stored trip, joined by +
    owner: str | None = None
    # The lowest and the highest price while the trade was open. None: the journal has not recorded them.
    low_px: Decimal | None = None
    high_px: Decimal | None = None

    @property
    def excursion(self) -> Excursion | None:
        """MAE and MFE; None if the extremes are not known."""
        entry_px = _average(self.entry_usd, self.size)
        if entry_px is None:
            return None
        low, high, stop = (None if px is None else float(px) for px in (self.low_px, self.high_px, self.stop_px))
        return excursion(self.market, self.side, entry_px=float(entry_px), low_px=low, high_px=high, stop_px=stop)

    @property
    def r_multiple(self) -> Decimal | None:
        """The net result in multiples of the loss at the first stop; None without a first stop that would lose."""
        return EXACT.divide(self.net_usd, self.risk_usd) if self.risk_usd > 0 else None

    def loss_at_stop(self, size: Decimal, usd: Decimal) -> Decimal:
        """What an entry of this size, for so much, loses at the first stop."""
        if self.stop_px is None:
            return Decimal(0)
        lost = usd - EXACT.multiply(size, self.stop_px)
        return lost if self.side == "long" else -lost

    @property
    def status(self) -> str:
        return "closed" if self.closed_ms is not None else self.ended_by or "open"

    @property
    def net_usd(self) -> Decimal:
        return self.realized_usd - self.fees_usd + self.funding_usd - self.lost_margin_usd

    def strategy(self, owners: Owners) -> str | None:
        """The strategies of its entries, joined by +. None: no strategy of this journal."""
        return self.owner or "+".join(owners(self.keys)) or None

    def row(self, owners: Owners) -> dict[str, Any]:
        """The columns; amounts are exact text."""
        open_size = Decimal(0) if self.closed_ms is not None else max(self.size - self.exited, Decimal(0))
        entry_px, exit_px = _average(self.entry_usd, self.size), _average(self.exit_usd, self.exited)
        far = self.excursion
        return {
            "market": self.market,
            "side": self.side,
            "strategy": self.strategy(owners),
            "status": self.status,
            "opened_at": None if self.opened_ms is None else iso(self.opened_ms),
            "closed_at": None if self.closed_ms is None else iso(self.closed_ms),
            "size": _text(self.size),
            "open_size": _text(open_size),
            "entry_px": entry_px,
            "exit_px": exit_px,
            "entry_usd": _text(self.entry_usd),
            "exit_usd": _text(self.exit_usd),
            "fees_usd": _text(self.fees_usd),
            "funding_usd": _text(self.funding_usd),
            "realized_usd": _text(self.realized_usd),
            "net_usd": _text(self.net_usd),
            "exit_reason": self.exit_reason,
            "entry_kind": self.entry_kind,
            "entry_trade_id": self.entry_trade_id,
            "exit_trade_id": self.exit_trade_id,
            "complete": self.complete,
            "first_stop_px": None if self.stop_px is None else _text(self.stop_px),
            "r_multiple": _ratio(self.r_multiple),
            "low_px": None if self.low_px is None else _text(self.low_px),
            "high_px": None if self.high_px is None else _text(self.high_px),
            "mae_r": None if far is None or far.adverse_r is None else _ratio(-far.adverse_r),
            "mfe_r": None if far is None else _ratio(far.favorable_r),
        }


@dataclass(slots=True)
class TripFold:
    """The fold of events into trips, one event at a time."""

    open_now: dict[str, Trip] = field(default_factory=dict)
    # market -> trade id -> size of the exits of its open trip; a liquidation repeats their sum
    filled: dict[str, dict[str, Decimal]] = field(default_factory=dict)
    # trade id -> trigger or guardian that caused it, which comes before its fills
    causes: dict[str, str] = field(default_factory=dict)
    epoch: int | None = None

    @property
    def is_flat(self) -> bool:
        """True if later events make the same trips without what came before."""
        return not self.open_now

    def take(self, event: Event) -> Iterator[Trip]:
        """The trips that end with this event."""
        kind, coin, data = event["type"], event.get("coin"), event["data"]
        # A reset whose event is not in the journal.
        if event.get("epoch", self.epoch) != self.epoch:
            self.epoch = event["epoch"]
            yield from self._wiped()
        if kind == "account":
            if event["subtype"] == "reset":
                yield from self._wiped()
        elif kind == "guardian":
            for trade_id in data.get("tradeIds") or ():
                self._cause(trade_id, str(data.get("guardianType")))
        elif kind == "order":
            _armed(self.open_now.get(str(coin)), event)
        elif kind == "trigger":
            self._cause(data["tradeId"], event["subtype"])
        elif kind == "funding":
            if coin in self.open_now:
                self.open_now[coin].funding_usd += Decimal(data["amountUsd"])
        elif kind == "fill":
            yield from self._filled(event)
        else:
            yield from self._ended(event)

    def _filled(self, event: Event) -> Iterator[Trip]:
        coin, data = event["coin"], event["data"]
        size, px, fee = Decimal(data["size"]), Decimal(data["px"]), Decimal(data["feeUsd"])
        is_flat = not Decimal(data["positionSize"])
        trip = self.open_now.get(coin)
        if event["subtype"] == "entry":
            if trip is None:
                trip = self.open_now[coin] = Trip(
                    coin,
                    data["side"],
                    event["ts"],
                    entry_kind=data["kind"],
                    entry_trade_id=data["tradeId"],
                    complete=abs(Decimal(data["positionSize"])) == size,
                )
            if trip.stop_trade_id == data["tradeId"]:
                # Another fill of the order that brought the stop.
                trip.risk_usd += trip.loss_at_stop(size, EXACT.multiply(size, px))
            trip.size += size
            trip.entry_usd = EXACT.add(trip.entry_usd, EXACT.multiply(size, px))
            if event.get("idempotencyKey"):
                trip.keys.append(event["idempotencyKey"])
        else:
            if trip is None:
                trip = self.open_now[coin] = Trip(coin, data["side"], None, complete=False)
            exits = self.filled.setdefault(coin, {})
            exits[data["tradeId"]] = exits.get(data["tradeId"], Decimal(0)) + size
            trip.exited += size
            trip.exit_usd = EXACT.add(trip.exit_usd, EXACT.multiply(size, px))
            trip.realized_usd += _borne(data)
            trip.exit_reason = self.causes.get(data["tradeId"], data["kind"])
            trip.exit_trade_id = data["tradeId"]
        trip.fees_usd += fee
        if is_flat:
            trip.closed_ms, trip.closed_by = event["ts"], event.get("id")
            yield self._popped(coin)

    def _ended(self, event: Event) -> Iterator[Trip]:
        """A liquidation or settlement: the size beyond its fills is an exit at its price."""
        coin, data = event["coin"], event["data"]
        trip = self.open_now.get(coin)
        size = Decimal(data["size"]) - self.filled.get(coin, {}).get(data["tradeId"], Decimal(0))
        if trip is None:
            # The fills of the settlement have closed the trip.
            return
        trip.exit_reason, trip.exit_trade_id = event["type"], data["tradeId"]
        trip.lost_margin_usd += Decimal(data.get("marginLostUsd") or 0)
        if size > 0:
            px = Decimal(data["outcomePx"] if event["type"] == "settlement" else data["px"])
            trip.exited += size
            trip.exit_usd = EXACT.add(trip.exit_usd, EXACT.multiply(size, px))
            trip.realized_usd += _borne(data)
            trip.fees_usd += Decimal(data.get("feeUsd") or 0)
        if event["subtype"] != "partial":
            trip.closed_ms, trip.closed_by = event["ts"], event.get("id")
            yield self._popped(coin)

    def _wiped(self) -> Iterator[Trip]:
        """End all open trips without an exit, because the account was reset."""
        for coin in list(self.open_now):
            trip = self._popped(coin)
            trip.ended_by = "reset"
            yield trip

    def _popped(self, coin: str) -> Trip:
        self.filled.pop(coin, None)
        return self.open_now.pop(coin)

    def _cause(self, trade_id: str, cause: str) -> None:
        self.causes[trade_id] = cause
        if len(self.causes) > CAUSES_KEPT:
            del self.causes[next(iter(self.causes))]


def trips(events: Iterable[Event]) -> Iterator[Trip]:
    """Every trip in the order of its end; open trips come last."""
    fold = TripFold()
    for event in events:
        yield from fold.take(event)
    yield from fold.open_now.values()


def _armed(trip: Trip | None, event: Event) -> None:
    """The first stop of a trade. Its risk is that of the position at this instant."""
    data = event["data"]
    is_stop = (event["subtype"], data.get("kind")) == ("armed", "stop_loss")
    if trip is None or not is_stop or trip.stop_px is not None or not data.get("triggerPx"):
        return
    trip.stop_px, trip.stop_trade_id = Decimal(data["triggerPx"]), data.get("tradeId")
    if not trip.exited:
        trip.risk_usd = trip.loss_at_stop(trip.size, trip.entry_usd)


def _borne(data: Mapping[str, Any]) -> Decimal:
    """What the account gained or lost by an exit: the realised PnL, less the part of a loss that the service paid."""
    return Decimal(data.get("realizedPnlUsd") or 0) + Decimal(data.get("absorbedUsd") or 0)


def with_extremes(closed: Iterable[Trip], known: Mapping[str, tuple[str, str]]) -> Iterator[Trip]:
    """The trips, each with the lowest and the highest price that the journal has of it by its closing event."""
    for trip in closed:
        prices = known.get(trip.closed_by or "")
        if prices is not None:
            low, high = prices
            trip.low_px, trip.high_px = Decimal(low), Decimal(high)
        yield trip


def _average(usd: Decimal, size: Decimal) -> str | None:
    if not size:
        return None
    return _text(EXACT.divide(usd, size).quantize(PX_PLACES, rounding=ROUND_HALF_EVEN, context=EXACT))


def _ratio(value: Decimal | float | None) -> str | None:
    """A ratio with four places, as in the files of a backtest."""
    return None if value is None else f"{value:.4f}"


def _text(value: Decimal) -> str:
    return format_decimal(value)
