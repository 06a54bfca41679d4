"""The local port: the runtime's VenuePort on the service's operations, in one process and under a clock that the
session moves.

Rare requests go through the service's operation, and its JSON is parsed. The requests of every order (plan, confirm,
close, events) give the same commands to the same state machine. What the venue has placed is the answer to an order,
and a daemon of this process takes the venue's events as they are (`OwnEvents`). Idempotent answers are not stored: for
a repeated key the venue names its trade. No coroutine here ever suspends, so `drive` runs each to its end.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

from bot.backtest.data.resampling import resample
from bot.backtest.engine.candle_readers import SeriesReader
from bot.backtest.engine.memory_journal import MemoryEvents, number_of
from bot.backtest.engine.simulated_exchange import ACCOUNT, SimulatedExchange
from bot.client.calls import read_error
from bot.errors import ApiError, OrderSubmitted, Refusal
from bot.model.events import Event as ModelEvent
from bot.money import parse_e8
from bot.runtime.passes.ports import PlacedOrder, PortClock
from bot.service.bodies import account_bodies, event_bodies
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, status_of, submitted_by
from bot.service.operations.executor import Context, parse_scaled
from bot.service.operations.orders import PLAN_TTL_REAL_MS, exact, order_spec
from bot.venue.model.commands import ClosePosition, ConfirmPlan, PlaceOrder, StorePlan
from bot.venue.model.state import OrderSpec, event_id
from bot.venue.orders.orders import OrderPlaced
from bot.venue.orders.preview_draft import OrderPreview
from bot.wire import (
    INTERVAL_MS,
    AccountSnapshot,
    BookResult,
    CancelCoinResult,
    CancelResult,
    CandlesResult,
    CloseRequest,
    Event,
    EventsPage,
    Guardian,
    GuardianRequest,
    HeartbeatResult,
    MarketsResult,
    Order,
    OrderRequest,
    Plan,
    PlanResult,
    StatusResult,
    TradesPage,
    bare_coin,
)
from bot.wire.base import Resource
from bot.wire.errors import ErrorEnvelope
from bot.wire.order_requests import CancelCoinRequest
from bot.wire.orders import GuardiansPage, OrdersPage
from bot.wire.queries import EventsQuery, MarketsQuery, TradesQuery

T = TypeVar("T")
R = TypeVar("R", bound=Resource)
# requests of a session are in no log
REQUEST: Final = "req_000000000000"


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise AssertionError("a session's coroutine has waited, which it must not do")


class LocalPort:
    """`arrive` is called with the key before each order request.

    With latency it advances the market until the order arrives.
    """

    def __init__(self, exchange: SimulatedExchange, series_readers: Sequence[SeriesReader]) -> None:
        self.exchange = exchange
        self.clock: PortClock = exchange.clock
        self.operations = exchange.operations
        self.principal = exchange.principal
        self.key = exchange.key
        self._series_readers = {
            (series_reader.reader.coin, series_reader.interval): series_reader for series_reader in series_readers
        }
        self.arrive: Callable[[str | None], None] | None = None
        self._plans = 0
        # the last order request and its venue form
        self._asked: tuple[OrderRequest, OrderSpec] | None = None

    def delay_orders(self, arrive: Callable[[str | None], None]) -> None:
        """Call `arrive` before each order request from now on."""
        self.arrive = arrive

    def entry_wait_ms(self) -> int:
        """Always 0: there is no rate limit in a session."""
        return 0

    # -- orders

    async def plan(self, request: OrderRequest, *, key: str) -> PlanResult:
        self._begin(key)
        exchange = self.exchange
        try:
            spec = self._spec(request)
        except OperationRefused as no:
            _raise(no.refusal, no.status, reads=True)
        self._plans += 1
        token = f"cft_{self._plans:028d}"
        preview = exchange.run(StorePlan(ACCOUNT, spec, token, PLAN_TTL_REAL_MS, request.max_drift_bps, self.key))
        if isinstance(preview, Refusal):
            _raise(preview, reads=True)
        assert isinstance(preview, OrderPreview)
        plan = Plan.model_validate_json(json.dumps(account_bodies.plan(preview)))
        return PlanResult(plan=plan, confirm_token=token, expires_at=exchange.state.now_ms + PLAN_TTL_REAL_MS)

    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> PlacedOrder:
        self._begin(key)
        return self._placed(self.exchange.run(ConfirmPlan(ACCOUNT, token, self.key, None, key, expires_at_ms)))

    async def place(self, request: OrderRequest, *, key: str, expires_at_ms: int | None = None) -> PlacedOrder:
        self._begin(key)
        try:
            spec = self._spec(request)
        except OperationRefused as no:
            _raise(no.refusal, no.status)
        return self._placed(self.exchange.run(PlaceOrder(ACCOUNT, spec, self.key, None, key, expires_at_ms)))

    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> PlacedOrder:
        self._begin(key)
        try:
            command = ClosePosition(
                ACCOUNT,
                bare_coin(market),
                fraction=None if request.fraction is None else exact(request.fraction, "fraction"),
                usd=None if request.usd_amount is None else exact(request.usd_amount, "usdAmount"),
                size=None if request.size is None else parse_scaled(request.size, "size", parse_e8),
                slippage_bps=request.slippage_bps,
                source=request.source or "api",
                key=self.key,
                idempotency_key=key,
                expires_ms=expires_at_ms,
            )
        except OperationRefused as no:
            _raise(no.refusal, no.status)
        return self._placed(self.exchange.run(command))

    def _spec(self, request: OrderRequest) -> OrderSpec:
        """The venue's form of a request.

        Plan and placement of one order pass the same request object, so the last one is kept.
        """
        if self._asked is None or self._asked[0] is not request:
            self._asked = request, order_spec(request)
        return self._asked[1]

    def _begin(self, key: str | None = None) -> None:
        if self.arrive is not None:
            self.arrive(key)
        self.exchange.catch_up()

    def _placed(self, placed: OrderPlaced | Refusal) -> PlacedOrder:
        if isinstance(placed, Refusal):
            _raise(placed)
        return placed

    async def cancel(self, oid: str) -> CancelResult:
        self._begin()
        return self._ask(CancelResult, lambda: self.operations.cancel(self.principal, oid, _context(is_order=False)))

    async def cancel_coin(self, coin: str) -> CancelCoinResult:
        self._begin()
        request = CancelCoinRequest(coin=coin)
        return self._ask(
            CancelCoinResult, lambda: self.operations.cancel_coin(self.principal, request, _context(is_order=False))
        )

    async def orders(self, coin: str | None = None) -> list[Order]:
        return list(self._ask(OrdersPage, lambda: self.operations.open_orders(self.principal, coin), reads=True).orders)

    # -- guardians

    async def guardians(self) -> list[Guardian]:
        return list(self._ask(GuardiansPage, lambda: self.operations.guardians(self.principal), reads=True).guardians)

    async def arm(self, request: GuardianRequest, *, key: str) -> Guardian:
        context = Context(REQUEST, idempotency_key=key, fingerprint=request.body().decode())
        return self._ask(Guardian, lambda: self.operations.arm(self.principal, request, context))

    async def disarm(self, guardian_id: str) -> None:
        from bot.wire.orders import DisarmResult

        self._ask(DisarmResult, lambda: self.operations.disarm(self.principal, guardian_id, _context(is_order=False)))

    async def heartbeat(self) -> HeartbeatResult:
        return self._ask(HeartbeatResult, lambda: self.operations.heartbeat(self.principal))

    # -- state

    async def account(self) -> AccountSnapshot:
        context = _context(is_order=False)
        return self._ask(AccountSnapshot, lambda: self.operations.snapshot(self.principal, context), reads=True)

    async def events(self, since: str | None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        self.exchange.catch_up()
        if since is None or types:
            given: dict[str, Any] = {"limit": limit, "since": since, "types": ",".join(types) or None}
            query = EventsQuery.from_wire({name: str(value) for name, value in given.items() if value is not None})
            return self._ask(
                EventsPage, lambda: self.operations.events(self.principal, query, _context(is_order=False)), reads=True
            )
        buffer = self.exchange.event_buffer
        fresh = buffer.events[int(since[4:]) + 1 - buffer.first :]
        page = tuple(map(_read, fresh[:limit]))
        return EventsPage(events=page, last_event_id=page[-1].id if page else since)

    async def trades(self, *, limit: int = 50, before: int | None = None, coin: str | None = None) -> TradesPage:
        given = {"limit": limit, "before": before, "coin": coin}
        query = TradesQuery.from_wire({name: str(value) for name, value in given.items() if value is not None})
        return self._ask(TradesPage, lambda: self.operations.trades(self.principal, query), reads=True)

    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
        """The closed bars of a series that a strategy listens to, or longer ones. A bar counts as closed in its last
        millisecond.
        """
        now_ms, name = self.exchange.clock.now_ms(), bare_coin(coin)
        of_market = [reader for (market, _), reader in self._series_readers.items() if market == name]
        finest = min(of_market, key=lambda reader: reader.step_ms, default=None)
        if finest is None or INTERVAL_MS[interval] < finest.step_ms:
            _raise(Refusal("not_found", f"there are no {interval} candles of {coin} in this session"), reads=True)
        series_reader = self._series_readers.get((name, interval))
        c = resample(finest.candles, interval) if series_reader is None else series_reader.candles
        last = bisect_right(c.at_ms, now_ms + 1 - c.step_ms)
        rows = [
            {
                "ts": c.at_ms[row],
                "open": _text(c.open[row]),
                "high": _text(c.high[row]),
                "low": _text(c.low[row]),
                "close": _text(c.close[row]),
                "volume": _text(c.volume[row]),
                "closed": True,
            }
            for row in range(max(0, last - limit), last)
        ]
        return CandlesResult.model_validate({"coin": finest.reader.coin, "interval": interval, "candles": rows})

    async def markets(self, *, view: str = "trending", limit: int = 150) -> MarketsResult:
        query = MarketsQuery.from_wire({"view": view, "limit": str(limit)})
        return self._ask(MarketsResult, lambda: self.operations.markets(query), reads=True)

    async def book(self, coin: str) -> BookResult:
        return self._ask(BookResult, lambda: self.operations.book(coin), reads=True)

    async def status(self) -> StatusResult:
        context = _context(is_order=False)
        return self._ask(StatusResult, lambda: self.operations.status(context), reads=True)

    # -- inside

    def _ask(self, model: type[R], operation: Callable[[], ServiceAnswer], *, reads: bool = False) -> R:
        """An operation's answer, parsed from its JSON as a client does."""
        try:
            answer = operation()
        except OperationRefused as no:
            _raise(no.refusal, no.status, reads=reads)
        if answer.status != 200:
            raise read_error(ErrorEnvelope.model_validate_json(answer.body).error, answer.status, reads=reads)
        return model.model_validate_json(answer.body)


def _context(*, is_order: bool) -> Context:
    return Context(REQUEST, is_order=is_order)


def _text(value: float) -> str:
    """The amount text of a price or volume of a candle, with at most 8 decimals."""
    text = f"{value:.8f}".rstrip("0").rstrip(".")
    return text or "0"


def _raise(refusal: Refusal, status: int | None = None, *, reads: bool = False) -> NoReturn:
    """Raise a refusal as a client does."""
    own, retryable = status_of(refusal)
    raise ApiError.of(
        refusal.code,
        refusal.message,
        request_id=REQUEST,
        order_submitted=cast(OrderSubmitted, submitted_by(refusal)),
        retryable=retryable,
        details=refusal.details,
        fix=refusal.fix,
        status=own if status is None else status,
        reads=reads,
    )


class OwnEvents:
    """The events of a venue in this process, as an EventSource of its journal."""

    def __init__(self, exchange: SimulatedExchange, log: MemoryEvents) -> None:
        self._exchange = exchange
        self._log = log
        self.take = log.take_own

    def fresh(self) -> Sequence[ModelEvent]:
        number = self._log.newest
        if number == self._exchange.count:
            return ()
        if number < 0:
            cursor = self._log.cursor
            assert cursor is not None, "recover sets the cursor"
            number = number_of(cursor.last_id)
        buffer = self._exchange.event_buffer
        return buffer.events[number + 1 - buffer.first :]

    def id_of(self, event: ModelEvent) -> str:
        return event_id(event.seq)

    def as_wire(self, event: ModelEvent) -> Event:
        return _read(event)


def _read(event: ModelEvent) -> Event:
    """The event as a client reads it."""
    return Event.model_validate_json(json.dumps(event_bodies.event(event)))
