"""The book of a session: round trips, steps of cash and holdings, and the digest, folded from the venue's events in their order. Pure.

Figures here are floats and texts for people; money was reckoned by the venue, exactly, and the last line is held against its ledger.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from bot.backtest.engine.memory_journal import OrderFailure, OrderFailures
from bot.backtest.results.column_store import ColumnStore
from bot.backtest.results.event_lines import line_of, line_of_body
from bot.backtest.results.slippage import SlippageMeter
from bot.money import format_e8
from bot.runtime.model.shares import FOREIGN
from bot.venue.events import Event, Fill, FundingPaid, GuardianMoved, Liquidated, OrderChanged, Settled, Triggered
from bot.venue.numbers import E8

# Why the venue ended an order that nobody wanted to end, by the `reason` of its event.
UNFILLED: Final = {
    "insufficient_funds": "its margin was more than the free margin at the price that it met",
    "slippage_bound": "the book held no more within the slippage that it allowed",
    "reduce_only": "the position that it was to close was gone",
    "position_closed": "the position that it was to add to or to turn was gone, and the stop or the leverage with it",
    "guardian": "a guardian of the account allowed no entry",
    "kill": "the kill switch allowed no entry",
    "settled": "its market was settled",
    "session_ended": "it still waited when the session ended",
}
BOTH: Final = "+"  # between the names of strategies that share a trip; no name has it


class Step(NamedTuple):
    """From `ts` on: the account's cash, and in `coin` this signed size, which was entered at this signed notional."""

    ts: int
    cash: int
    coin: str
    size: int
    cost: int


@dataclass(slots=True)
class RoundTrip:
    """A round trip, from flat to flat in one market. Amounts scaled 1e8; `exit_ms` 0: still open at the end."""

    coin: str
    side: str
    strategy: str
    entry_ms: int
    entry_kind: str
    size: int = 0  # the largest it was
    held: int = 0
    bought: int = 0  # opening size and notional, summed
    entry_notional: int = 0
    sold: int = 0
    exit_notional: int = 0
    exit_ms: int = 0
    exit_kind: str = ""
    realized: int = 0
    fees: int = 0
    funding: int = 0
    stop_px: int | None = None  # the first
    target_px: int | None = None
    staked: int = 0  # what the first stop would lose of what it was placed for
    fills: int = 0
    slipped: int = 0  # scaled 1e16, not rounded; it is inside the prices, and so inside `realized`

    def share_with(self, strategy: str) -> None:
        """Another one has entered, too (`netting: allow`): the trip is of both, by the order of their entries."""
        names = [name or FOREIGN for name in self.strategy.split(BOTH)]
        if (strategy or FOREIGN) not in names:
            self.strategy = BOTH.join([*names, strategy or FOREIGN])

    @property
    def slippage(self) -> int:
        """In USD, toward zero."""
        return usd_of(self.slipped)

    @property
    def cost(self) -> int:
        """Entry notional of what is still held, exact as in the ledger: an average price of eight places is too coarse for a large size."""
        gained = self.realized if self.side == "long" else -self.realized
        return self.entry_notional - self.exit_notional + gained

    @property
    def pnl(self) -> int:
        """After fees and funding."""
        return self.realized - self.fees + self.funding

    @property
    def risk(self) -> int | None:
        """What 1 R is in USD: what the first stop would have lost of what it was placed for, whatever is added later. None where it would have lost nothing."""
        return self.staked if self.staked > 0 else None

    @property
    def r_multiple(self) -> float | None:
        return None if self.risk is None else self.pnl / self.risk

    def row(self, number: int) -> tuple[str, ...]:
        """The columns of trades.csv, in the order of folder.COLUMNS."""
        r = self.r_multiple
        return (
            str(number), self.strategy, self.coin, self.side, format_e8(self.size), str(self.entry_ms), _px(self.entry_notional, self.bought),
            self.entry_kind, str(self.exit_ms or ""), _px(self.exit_notional, self.sold), self.exit_kind, format_e8(self.realized),
            format_e8(self.fees), format_e8(self.funding), format_e8(self.pnl), "" if r is None else f"{r:.4f}",
            "" if self.stop_px is None else format_e8(self.stop_px), "" if self.target_px is None else format_e8(self.target_px), str(self.fills),
            format_e8(self.slippage),
        )  # fmt: skip


_TRIP: Final = {one.name: int if "int" in str(one.type) else str for one in fields(RoundTrip)}


@dataclass(slots=True)
class GuardianAction:
    """A guardian that acted, and what came of it: the numbers of the trips that it ended or began, and what its own fills realised, less their fees."""

    event: GuardianMoved
    trips: list[int] = field(default_factory=list)
    gained: int = 0


def _trips() -> ColumnStore[RoundTrip]:
    return ColumnStore(list(_TRIP.values()), read=attrgetter(*_TRIP), make=RoundTrip)


def _steps() -> ColumnStore[Step]:
    return ColumnStore((int, int, str, int, int), read=tuple, make=Step)


def usd_of(product: int) -> int:
    """A price times a size as USD scaled 1e8, toward zero."""
    return product // E8 if product >= 0 else -(-product // E8)


def _loss(trip: RoundTrip, cost: int, size: int) -> int:
    """What the first stop loses of this size, entered at this notional; below zero where it gains."""
    assert trip.stop_px is not None
    lost = cost - size * trip.stop_px // E8
    return lost if trip.side == "long" else -lost


def _px(notional: int, size: int) -> str:
    return format_e8(notional * E8 // size) if size else ""


@dataclass(slots=True)
class TradeLedger:
    """Feed it every event once. `owner_of` names the strategy of an idempotency key; `write` takes the lines of events.jsonl, some at a time; `slippage_meter` knows the prices
    that orders met."""

    cash: int
    owner_of: Callable[[str], str | None]
    write: Callable[[str], object] | None = None
    slippage_meter: SlippageMeter | None = None
    trips: ColumnStore[RoundTrip] = field(default_factory=_trips)  # in the order of their entries
    open: dict[str, RoundTrip] = field(default_factory=dict)
    steps: ColumnStore[Step] = field(default_factory=_steps)
    fees: int = 0
    funding: int = 0
    realized: int = 0
    fills: int = 0
    slipped: int = 0  # as of a Trip
    count: int = 0
    liquidations: int = 0
    backstop: int = (
        0  # what the service paid so that nothing went below zero; of a trip it is part of what was realised
    )
    kinds: Counter[str] = field(default_factory=Counter)  # exits by what caused them
    guardians: list[GuardianAction] = field(default_factory=list)
    failures: OrderFailures = field(default_factory=OrderFailures)
    _last: dict[str, Step] = field(default_factory=dict)  # of each market
    _row: dict[str, int] = field(default_factory=dict)  # of the trip that is open in a market
    _exits: dict[str, str] = field(default_factory=dict)  # the trade of the newest exit of each market
    _staked: dict[str, str] = field(default_factory=dict)  # the trade whose entry brought the first stop of each market
    _caused: dict[str, GuardianAction] = field(
        default_factory=dict
    )  # trades that are not over, of the guardians that made them
    _hash: Any = field(default_factory=hashlib.sha256)

    def take(self, events: Iterable[Event]) -> None:
        """The next events."""
        lines: list[str] = []
        for one in events:
            if isinstance(one, Fill):
                self._fill(one)
            elif isinstance(one, OrderChanged):
                if one.trigger_px is not None:
                    self._leg(one)
                elif one.subtype == "canceled" and one.reason != "user":
                    self.not_filled(one, one.reason or "canceled")
            elif isinstance(one, FundingPaid):
                self._paid(one)
            elif isinstance(one, GuardianMoved):
                if one.subtype == "fired":
                    self.guardians.append(fired := GuardianAction(one))
                    self._caused.update(dict.fromkeys(one.trades, fired))
                    if self.slippage_meter is not None:
                        self.slippage_meter.fired(one)
            elif isinstance(one, Triggered):
                if self.slippage_meter is not None:
                    self.slippage_meter.triggered(one)
            elif isinstance(one, Liquidated):
                self.liquidations += 1
                if one.subtype == "backstop":
                    self._lost(one)
            elif isinstance(one, Settled):
                self._settled(one)
            lines.append(line_of(one))
        self.count += len(lines)
        text = "".join(lines)
        self._hash.update(text.encode())
        if self.write is not None:
            self.write(text)

    @property
    def slippage(self) -> int:
        """Of all fills, in USD, toward zero."""
        return usd_of(self.slipped)

    @property
    def digest(self) -> str:
        """SHA-256 of all lines so far: equal when the same happened at the same instants, whoever asked."""
        return str(self._hash.hexdigest())

    def not_filled(self, e: OrderChanged, code: str) -> None:
        """An order that a strategy wanted has come to its end without all of its size."""
        if e.idempotency_key is not None:
            told = f"{e.kind} order to {e.intent} {e.side} {format_e8(e.size)}, {format_e8(e.filled)} of it filled"
            owner = self.owner_of(e.idempotency_key) or ""
            self.failures.not_filled(code, OrderFailure(e.ts, owner, e.coin, f"{told}: {UNFILLED.get(code, code)}"))

    # -- folds

    def _fill(self, e: Fill) -> None:
        self.fills += 1
        self.fees += e.fee
        self.cash += e.absorbed - e.fee
        self.backstop += e.absorbed
        trip = self.open.get(e.coin)
        if e.subtype == "entry":
            owner = (None if e.idempotency_key is None else self.owner_of(e.idempotency_key)) or ""
            if trip is None:
                trip = self.open[e.coin] = RoundTrip(e.coin, e.side, owner, e.ts, e.kind)
                self._row[e.coin] = self.trips.append(trip, is_moving=True)
            elif owner != trip.strategy:
                trip.share_with(owner)
            trip.bought += e.size
            trip.entry_notional += e.size * e.px // E8
            trip.size = max(trip.size, e.position_size)
            if (
                trip.stop_px is not None and self._staked.get(e.coin) == e.trade
            ):  # The rest of the order that brought it.
                trip.staked += _loss(trip, e.size * e.px // E8, e.size)
        elif trip is not None:
            realized = e.realized or 0
            trip.sold += e.size
            trip.exit_notional += e.size * e.px // E8
            trip.realized += realized + e.absorbed
            self.realized += realized
            self.cash += realized
            if self._exits.get(e.coin) != e.trade:  # Several fills of one order are one exit.
                self._exits[e.coin] = e.trade
                self.kinds[e.kind] += 1
        slipped = 0 if self.slippage_meter is None else self.slippage_meter.of(e)
        self.slipped += slipped
        if self._caused and (fired := self._caused.get(e.trade)) is not None:
            self._effect(fired, e)
        if trip is not None:
            trip.slipped += slipped
            trip.fees += e.fee
            trip.fills += 1
            trip.held = e.position_size
            if not e.position_size:
                self._end(trip, e.ts, e.kind)
        self._step(e.ts, e.coin, e.side, e.position_size, trip.cost if trip is not None and e.position_size else 0)

    def _effect(self, fired: GuardianAction, e: Fill) -> None:
        """A fill that a guardian has caused."""
        fired.gained += (e.realized or 0) - e.fee
        number = self._row.get(e.coin)
        if number is not None and number + 1 not in fired.trips:
            fired.trips.append(number + 1)
        if not e.remaining:
            del self._caused[e.trade]

    def _end(self, trip: RoundTrip, ts: int, kind: str) -> None:
        trip.exit_ms, trip.exit_kind, trip.held = ts, kind, 0
        del self.open[trip.coin]
        self.trips.settle(self._row.pop(trip.coin))

    def _leg(self, e: OrderChanged) -> None:
        trip = self.open.get(e.coin)
        if trip is None or e.subtype != "armed":
            return
        if e.kind == "stop_loss" and trip.stop_px is None:
            trip.stop_px = e.trigger_px
            trip.staked = _loss(trip, trip.cost, trip.held)
            self._staked[e.coin] = e.trade or ""
        elif e.kind == "take_profit" and trip.target_px is None:
            trip.target_px = e.trigger_px

    def _paid(self, e: FundingPaid) -> None:
        self.funding += e.amount
        self.cash += e.amount
        trip = self.open.get(e.coin)
        if trip is not None:
            trip.funding += e.amount
        last = self._last.get(e.coin)
        self._put(Step(e.ts, self.cash, e.coin, last.size if last else 0, last.cost if last else 0))

    def _lost(self, e: Liquidated) -> None:
        """Taken by the backstop: no fill says so. The margin that it kept is lost to the trip."""
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
        trip = self.open.get(coin)
        if trip is not None:
            trip.realized += realized + absorbed
            trip.sold += size
            trip.exit_notional += size * px // E8
            self._end(trip, ts, kind)

    def _step(self, ts: int, coin: str, side: str, size: int, cost: int) -> None:
        sign = 1 if side == "long" else -1
        self._put(Step(ts, self.cash, coin, sign * size, sign * cost))

    def _put(self, step: Step) -> None:
        self.steps.append(step)
        self._last[step.coin] = step


def digest_of(bodies: Iterable[dict[str, Any]]) -> str:
    """The digest of events as a client has them: parsed JSON, in order."""
    made = hashlib.sha256()
    for body in bodies:
        made.update(line_of_body(body).encode())
    return made.hexdigest()
