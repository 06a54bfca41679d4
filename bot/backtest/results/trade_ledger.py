"""The trade ledger of a backtest: round trips, steps of cash and positions, totals and the digest, all built from the
venue's events. Pure.

Amounts are whole numbers scaled 1e8, as in the venue. `run_writer` compares the final balance with the venue's own
ledger.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from bot.backtest.engine.memory_journal import OrderFailure, OrderFailures
from bot.backtest.results.column_store import ColumnStore
from bot.backtest.results.event_lines import line_of, line_of_body
from bot.backtest.results.slippage import SlippageMeter
from bot.model.events import Event, FillEvent, FundingPaid, GuardianMoved, Liquidated, OrderChanged, Settled, Triggered
from bot.money import format_e8
from bot.runtime.model.shares import FOREIGN
from bot.venue.model.numbers import E8

# Why the venue ended an order that nobody canceled, by the `reason` of its event.
UNFILLED: Final = {
    "insufficient_funds": "its margin was more than the free margin at the execution price",
    "slippage_bound": "the order book had no more depth within the allowed slippage",
    "reduce_only": "the position to close was gone",
    "position_closed": "the position to add to or to reverse was gone, and with it the stop or the leverage",
    "guardian": "a guardian of the account allowed no entry",
    "kill": "the kill switch allowed no entry",
    "settled": "its market was settled",
    "session_ended": "it still waited when the session ended",
}
# joins the names of strategies that share a round trip; no strategy name contains it
BOTH: Final = "+"


def _is_spared(e: OrderChanged) -> bool:
    """Whether a resting exit ended because its position was closed by something else: a target that was not needed,
    and no lost order.
    """
    return e.kind == "limit" and e.intent == "close" and e.reason == "reduce_only"


class LedgerStep(NamedTuple):
    """From `ts` on: the account's cash, and the signed size of the position in `coin` with its signed entry
    notional.
    """

    ts: int
    cash: int
    coin: str
    size: int
    cost: int


@dataclass(slots=True)
class RoundTrip:
    """A round trip in one market, from flat to flat.

    Amounts are scaled 1e8. `exit_ms` is 0 while the position is open.
    """

    coin: str
    side: str
    strategy: str
    entry_ms: int
    entry_kind: str
    # the largest position size
    size: int = 0
    # summed size of the entries
    bought: int = 0
    entry_notional: int = 0
    # summed size of the exits
    sold: int = 0
    exit_notional: int = 0
    exit_ms: int = 0
    exit_kind: str = ""
    realized: int = 0
    fees: int = 0
    funding: int = 0
    # the first
    stop_px: int | None = None
    target_px: int | None = None
    # loss of the entry order that brought the first stop, if that stop is hit
    staked: int = 0
    fills: int = 0
    # slippage scaled 1e16, not rounded; the prices contain it, so `realized` does too
    slipped: int = 0

    def share_with(self, strategy: str) -> None:
        """Add a strategy that has also entered (`netting: allow`). Names stand in the order of the entries."""
        names = [name or FOREIGN for name in self.strategy.split(BOTH)]
        if (strategy or FOREIGN) not in names:
            self.strategy = BOTH.join([*names, strategy or FOREIGN])

    @property
    def slippage(self) -> int:
        """In USD scaled 1e8, rounded toward zero."""
        return usd_of(self.slipped)

    @property
    def cost(self) -> int:
        """Entry notional of the open position.

        Exact, because an average price with eight decimals is too coarse for a large size.
        """
        gained = self.realized if self.side == "long" else -self.realized
        return self.entry_notional - self.exit_notional + gained

    @property
    def pnl(self) -> int:
        """After fees and funding."""
        return self.realized - self.fees + self.funding

    @property
    def risk(self) -> int | None:
        """1 R in USD: the loss at the first stop of the order that brought it, without later entries.

        None if that stop would not lose.
        """
        return self.staked if self.staked > 0 else None

    @property
    def r_multiple(self) -> float | None:
        return None if self.risk is None else self.pnl / self.risk

    def row(self, number: int) -> tuple[str, ...]:
        """The columns of trades.csv, in the order of `layout.COLUMNS`."""
        r = self.r_multiple
        return (
            str(number),
            self.strategy,
            self.coin,
            self.side,
            format_e8(self.size),
            str(self.entry_ms),
            _px(self.entry_notional, self.bought),
            self.entry_kind,
            str(self.exit_ms or ""),
            _px(self.exit_notional, self.sold),
            self.exit_kind,
            format_e8(self.realized),
            format_e8(self.fees),
            format_e8(self.funding),
            format_e8(self.pnl),
            "" if r is None else f"{r:.4f}",
            "" if self.stop_px is None else format_e8(self.stop_px),
            "" if self.target_px is None else format_e8(self.target_px),
            str(self.fills),
            format_e8(self.slippage),
        )


_TRIP: Final = {column.name: int if "int" in str(column.type) else str for column in fields(RoundTrip)}


@dataclass(slots=True)
class GuardianAction:
    """A guardian that fired: the numbers of the round trips that its orders filled in, and the realized profit of
    these fills after fees.
    """

    event: GuardianMoved
    trips: list[int] = field(default_factory=list)
    gained: int = 0


def _trips() -> ColumnStore[RoundTrip]:
    return ColumnStore(list(_TRIP.values()), read=attrgetter(*_TRIP), make=RoundTrip)


def _steps() -> ColumnStore[LedgerStep]:
    return ColumnStore((int, int, str, int, int), read=tuple, make=LedgerStep)


def usd_of(product: int) -> int:
    """Convert price times size (scaled 1e16) to USD scaled 1e8, rounded toward zero."""
    return product // E8 if product >= 0 else -(-product // E8)


def _loss(trip: RoundTrip, cost: int, size: int) -> int:
    """Loss of this size at the first stop, given the entry notional `cost`.

    Negative: the stop would realize a profit.
    """
    assert trip.stop_px is not None
    lost = cost - size * trip.stop_px // E8
    return lost if trip.side == "long" else -lost


def _px(notional: int, size: int) -> str:
    return format_e8(notional * E8 // size) if size else ""


@dataclass(slots=True)
class _Market:
    """The state of one market between two events."""

    # the open round trip
    trip: RoundTrip | None = None
    # its index in `TradeLedger.trips`
    row: int = -1
    # the newest
    step: LedgerStep | None = None
    # id of the trade that exited last
    exit_trade: str | None = None
    # id of the trade whose entry brought the first stop
    stop_trade: str | None = None

    @property
    def size(self) -> int:
        """Size of the position, without sign."""
        return 0 if self.step is None else abs(self.step.size)


@dataclass(slots=True)
class TradeLedger:
    """Takes every event once, in order.

    `owner_of` names the strategy of an idempotency key. `write` takes lines of events.jsonl, several at a time.
    `slippage_meter` knows the prices before each order.
    """

    cash: int
    owner_of: Callable[[str], str | None]
    write: Callable[[str], object] | None = None
    slippage_meter: SlippageMeter | None = None
    # trades in the order of their entries
    trips: ColumnStore[RoundTrip] = field(default_factory=_trips)
    steps: ColumnStore[LedgerStep] = field(default_factory=_steps)
    fees: int = 0
    funding: int = 0
    realized: int = 0
    fills: int = 0
    # as in RoundTrip
    slipped: int = 0
    count: int = 0
    liquidations: int = 0
    # paid by the service so that no balance went below zero; part of a round trip's `realized`
    backstop: int = 0
    # number of exits by cause
    kinds: Counter[str] = field(default_factory=Counter)
    guardians: list[GuardianAction] = field(default_factory=list)
    failures: OrderFailures = field(default_factory=OrderFailures)
    _markets: defaultdict[str, _Market] = field(default_factory=lambda: defaultdict(_Market))
    # trade -> the guardian that ordered the trade, until it is filled
    _caused: dict[str, GuardianAction] = field(default_factory=dict)
    _hash: Any = field(default_factory=hashlib.sha256)

    def take(self, events: Iterable[Event]) -> None:
        """Add the next events."""
        lines: list[str] = []
        for event in events:
            if isinstance(event, FillEvent):
                self._fill(event)
            elif isinstance(event, OrderChanged):
                if event.trigger_px is not None:
                    self._leg(event)
                elif event.subtype == "canceled" and event.reason != "user" and not _is_spared(event):
                    self.not_filled(event, event.reason or "canceled")
            elif isinstance(event, FundingPaid):
                self._paid(event)
            elif isinstance(event, GuardianMoved):
                if event.subtype == "fired":
                    self.guardians.append(fired := GuardianAction(event))
                    self._caused.update(dict.fromkeys(event.trades, fired))
                    if self.slippage_meter is not None:
                        self.slippage_meter.fired(event)
            elif isinstance(event, Triggered):
                if self.slippage_meter is not None:
                    self.slippage_meter.triggered(event)
            elif isinstance(event, Liquidated):
                self.liquidations += 1
                if event.subtype == "backstop":
                    self._lost(event)
            elif isinstance(event, Settled):
                self._settled(event)
            lines.append(line_of(event))
        self.count += len(lines)
        text = "".join(lines)
        self._hash.update(text.encode())
        if self.write is not None:
            self.write(text)

    @property
    def slippage(self) -> int:
        """Slippage of all fills, in USD scaled 1e8, rounded toward zero."""
        return usd_of(self.slipped)

    @property
    def digest(self) -> str:
        """SHA-256 of all lines so far.

        Two runs have the same digest if the same events happened at the same instants.
        """
        return str(self._hash.hexdigest())

    def not_filled(self, e: OrderChanged, code: str) -> None:
        """Record an order of a strategy that ended before it was filled completely."""
        if e.idempotency_key is not None:
            order = f"{e.kind} order to {e.intent} {e.side} {format_e8(e.size)}, {format_e8(e.filled)} of it filled"
            owner = self.owner_of(e.idempotency_key) or ""
            self.failures.not_filled(code, OrderFailure(e.ts, owner, e.coin, f"{order}: {UNFILLED.get(code, code)}"))

    # -- events

    def _fill(self, e: FillEvent) -> None:
        self.fills += 1
        self.fees += e.fee
        self.cash += e.absorbed - e.fee
        self.backstop += e.absorbed
        market = self._markets[e.coin]
        trip = market.trip
        if e.subtype == "entry":
            owner = (None if e.idempotency_key is None else self.owner_of(e.idempotency_key)) or ""
            if trip is None:
                trip = market.trip = RoundTrip(e.coin, e.side, owner, e.ts, e.kind)
                market.row = self.trips.append(trip, is_moving=True)
            elif owner != trip.strategy:
                trip.share_with(owner)
            trip.bought += e.size
            trip.entry_notional += e.size * e.px // E8
            trip.size = max(trip.size, e.position_size)
            if (
                trip.stop_px is not None and market.stop_trade == e.trade
                # Another fill of the order that brought the stop.
            ):
                trip.staked += _loss(trip, e.size * e.px // E8, e.size)
        elif trip is not None:
            realized = e.realized or 0
            trip.sold += e.size
            trip.exit_notional += e.size * e.px // E8
            trip.realized += realized + e.absorbed
            self.realized += realized
            self.cash += realized
            # Several fills of one order count as one exit.
            if market.exit_trade != e.trade:
                market.exit_trade = e.trade
                self.kinds[e.kind] += 1
        slipped = 0 if self.slippage_meter is None else self.slippage_meter.of(e)
        self.slipped += slipped
        if self._caused and (fired := self._caused.get(e.trade)) is not None:
            self._add_effect(fired, e, market)
        if trip is not None:
            trip.slipped += slipped
            trip.fees += e.fee
            trip.fills += 1
            if not e.position_size:
                self._end(market, trip, e.ts, e.kind)
        self._step(e.ts, e.coin, e.side, e.position_size, trip.cost if trip is not None and e.position_size else 0)

    def _add_effect(self, fired: GuardianAction, e: FillEvent, market: _Market) -> None:
        """Add a fill of an order that a guardian sent."""
        fired.gained += (e.realized or 0) - e.fee
        if market.trip is not None and market.row + 1 not in fired.trips:
            fired.trips.append(market.row + 1)
        if not e.remaining:
            del self._caused[e.trade]

    def _end(self, market: _Market, trip: RoundTrip, ts: int, kind: str) -> None:
        trip.exit_ms, trip.exit_kind = ts, kind
        market.trip = None
        self.trips.settle(market.row)

    def _leg(self, e: OrderChanged) -> None:
        market = self._markets[e.coin]
        trip = market.trip
        if trip is None or e.subtype != "armed":
            return
        if e.kind == "stop_loss" and trip.stop_px is None:
            trip.stop_px = e.trigger_px
            trip.staked = _loss(trip, trip.cost, market.size)
            market.stop_trade = e.trade or ""
        elif e.kind == "take_profit" and trip.target_px is None:
            trip.target_px = e.trigger_px

    def _paid(self, e: FundingPaid) -> None:
        self.funding += e.amount
        self.cash += e.amount
        market = self._markets[e.coin]
        if market.trip is not None:
            market.trip.funding += e.amount
        last = market.step
        self._put(LedgerStep(e.ts, self.cash, e.coin, last.size if last else 0, last.cost if last else 0))

    def _lost(self, e: Liquidated) -> None:
        """The backstop took the position without a fill and kept its margin. The round trip loses that margin."""
        self._taken(e.ts, e.coin, e.realized - e.margin_lost, e.absorbed, e.px, e.size, "liquidation")
        self._step(e.ts, e.coin, e.side, 0, 0)

    def _settled(self, e: Settled) -> None:
        self._taken(e.ts, e.coin, e.realized, e.absorbed, e.outcome_px, e.size, "settlement")
        self._step(e.ts, e.coin, e.side, 0, 0)

    def _taken(self, ts: int, coin: str, realized: int, absorbed: int, px: int, size: int, kind: str) -> None:
        self.realized += realized
        self.cash += realized + absorbed
        self.backstop += absorbed
        self.kinds[kind] += 1
        market = self._markets[coin]
        trip = market.trip
        if trip is not None:
            trip.realized += realized + absorbed
            trip.sold += size
            trip.exit_notional += size * px // E8
            self._end(market, trip, ts, kind)

    def _step(self, ts: int, coin: str, side: str, size: int, cost: int) -> None:
        sign = 1 if side == "long" else -1
        self._put(LedgerStep(ts, self.cash, coin, sign * size, sign * cost))

    def _put(self, step: LedgerStep) -> None:
        self.steps.append(step)
        self._markets[step.coin].step = step


def digest_of(bodies: Iterable[dict[str, Any]]) -> str:
    """The digest of events in a client's form: parsed JSON, in order."""
    sha256 = hashlib.sha256()
    for body in bodies:
        sha256.update(line_of_body(body).encode())
    return sha256.hexdigest()
