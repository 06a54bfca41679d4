"""The real venue and the service's operations behind the daemon's port, with faults that a test asks for.

The markets are free of cost, and every stop, target and limit order fills at its own level. A test moves the clock and
the prices, acts beside the daemon by `hand`, and names what a request meets (`faults`) and what an answer leaves out or
says otherwise (`unseen`, `said`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, NamedTuple

from bot.backtest.data.candles import Candles
from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.local_port import drive
from bot.backtest.engine.options import MarketRules, SessionOptions
from bot.backtest.engine.simulated_exchange import ACCOUNT, SimulatedExchange
from bot.drill.service_port import ServicePort
from bot.errors import ApiError, Refusal
from bot.model.events import FillEvent
from bot.money import E8, format_e8, parse_e8
from bot.service.bodies import account_bodies, event_bodies
from bot.service.bodies.read_access import peek
from bot.service.bodies.responses import ServiceAnswer
from bot.service.operations.executor import Context
from bot.venue.model.commands import ChangeSettings, Heartbeat, PricePoint, SetMarket, SetRules
from bot.venue.model.state import Rules, VenueAccount, event_id, side_name
from bot.venue.storage import pages
from bot.wire import (
    INTERVAL_MS,
    AccountSnapshot,
    Candle,
    CandlesResult,
    CloseRequest,
    Event,
    EventsPage,
    Guardian,
    Order,
    OrderRequest,
    OrderResult,
    Position,
    TradeResource,
    TradesPage,
    bare_coin,
)
from bot.wire.order_requests import ConfirmRequest
from bot.wire.requests import ResetRequest
from bot.wire.vocabulary import Side, Source

ADDRESS: Final = "0x" + "ab" * 20
START_MS: Final = 1_748_736_000_000
MINUTE_MS: Final = 60_000
FREE: Final = MarketRules(
    taker=Decimal(0),
    maker=Decimal(0),
    spread_bps=Decimal(0),
    depth_usd=Decimal(0),
    tick=Decimal("0.01"),
    lot=Decimal("0.0001"),
)
# the requests that may meet a fault
REQUESTS: Final = (
    "account",
    "plan",
    "confirm",
    "place",
    "close",
    "cancel",
    "orders",
    "guardians",
    "arm",
    "disarm",
    "events",
    "trades",
    "candles",
    "markets",
)


@dataclass
class Fault:
    """The next `count` requests `op` ("*": any) meet it: "lose_reply" (executed, no answer), "drop" (not executed, no
    answer), "late" (no answer, executed in the next minute), or the error that is the answer.
    """

    op: str
    kind: str | ApiError
    count: int = 1


def unknown() -> ApiError:
    return ApiError.of("internal_error", "no answer", order_submitted="unknown")


def refused(code: str, message: str = "no", **named: Any) -> ApiError:
    return ApiError.of(code, message, order_submitted=False, retryable=False, request_id="req_1", **named)


class Held(NamedTuple):
    """A position of the venue."""

    side: str
    size: Decimal
    cost: Decimal


class HandClock:
    """The service's clock, moved by hand."""

    is_sandbox: Final = True

    def __init__(self, port: FaultyPort, speed: float) -> None:
        self._port = port
        self.speed = speed

    def now_ms(self) -> int:
        return self._port.exchange.clock.now_ms()

    def advance(self, ms: int) -> int:
        """Time passes: the daemon's heartbeats arrive in it, and what is due happens."""
        exchange = self._port.exchange
        if self._port.beats:
            exchange.run(Heartbeat(ACCOUNT, ms))
        exchange.clock.move_to(exchange.clock.now_ms() + ms)
        exchange.catch_up()
        return self.now_ms()

    def set(self, now_ms: int) -> int:
        return self.advance(now_ms - self.now_ms())

    def go_back(self, ms: int) -> None:
        """As with a sandbox that is restored."""
        exchange = self._port.exchange
        exchange.clock._anchor_ms -= ms
        exchange.state.now_ms = exchange.caught_ms = exchange.clock.now_ms()


def decimal_of(scaled: int) -> Decimal:
    return Decimal(scaled) / E8


class FaultyPort(ServicePort):
    """`keys`: "shown", "on trades" alone, or "hidden". A service that does not show them to all takes no notice of them
    either, so that a request that is sent twice is executed twice.
    """

    def __init__(
        self,
        coins: Sequence[str] = ("BTC", "ETH"),
        *,
        speed: float = 0,
        keys: str = "shown",
        fee_rate: str = "0",
        least_usd: str = "10",
    ) -> None:
        fee, least = Decimal(fee_rate), Decimal(least_usd)
        rules = {"": replace(FREE, taker=fee, maker=fee, min_notional=least)}
        exchange = SimulatedExchange(
            [_nothing_yet(coin) for coin in coins], SessionOptions(rules=rules), start_ms=START_MS, address=ADDRESS
        )
        super().__init__(exchange, ())
        exchange.run(SetRules(Rules()))
        for coin in coins:
            market = exchange.state.markets[coin]
            market.spec = replace(market.spec, limit_touch=True)
            # What is derived from the listing.
            market.__post_init__()
            market.level_sizes = ()
            exchange.run(SetMarket(coin, funding_rate=0))
        self.coins = tuple(coins)
        self.keys = keys
        self.clock: HandClock = HandClock(self, speed)
        # the same venue without faults, for everybody but the daemon
        self.hand = ServicePort(exchange, ())
        # True: a heartbeat process keeps the dead-man switches from firing
        self.beats = True
        self.px = dict.fromkeys(self.coins, Decimal(100))
        self.candle_rows: dict[str, list[Candle]] = {coin: [] for coin in coins}
        self.faults: list[Fault] = []
        self.late: list[Callable[[], Any]] = []
        self.calls: list[str] = []
        self.plans: dict[str, OrderRequest] = {}
        self.refuse: Callable[[OrderRequest], ApiError | None] = lambda _request: None
        # ids that no answer names
        self.unseen: set[str] = set()
        # fields that the answers give otherwise, by id (a position: by coin)
        self.said: dict[str, dict[str, Any]] = {}
        # what lists have besides
        self.also: list[Order] = []
        # False: the token of a plan that was used is refused without its trade
        self.tells_of_tokens = True
        # False: a wiped cursor is not noticed, the reset comes as an event
        self.says_gone = True

    # -- the world

    def minute(self, **closes: str) -> None:
        """The clock moves on by a minute, what was late arrives, and every coin has a bar."""
        self.clock.advance(MINUTE_MS // 2)
        late, self.late = self.late, []
        for arrive in late:
            with suppress(ApiError):
                arrive()
        self.clock.advance(MINUTE_MS // 2)
        for coin in self.coins:
            self.close_bar(coin, closes.get(coin, self.px[coin]))

    def close_bar(self, coin: str, close: str | Decimal, *, high: str | None = None, low: str | None = None) -> None:
        """A minute's prices pass, the low before the high, and the candle is there. Move the clock yourself."""
        opened, closed = self.px[coin], Decimal(close)
        path = [Decimal(px) for px in (low, high, close) if px is not None]
        for px in path:
            self.move(coin, px)
        top, bottom = max(opened, *path), min(opened, *path)
        self.candle_rows[coin].append(
            Candle(
                ts=self.clock.now_ms() - MINUTE_MS, open=opened, high=top, low=bottom, close=closed, volume=Decimal(1)
            )
        )

    def move(self, coin: str, px: Decimal | str | int) -> None:
        """The price goes to `px` and stops at each level on its way, so that every order fills at its own."""
        end = Decimal(px)
        while True:
            last = self.px[coin]
            ahead = [level for level in self._levels(coin) if min(last, end) < level < max(last, end)]
            self.px[coin] = nearest = min([*ahead, end], key=lambda level: abs(level - last))
            at_ms = self.exchange.catch_up()
            self.exchange.run(PricePoint(coin, parse_e8(str(nearest)), 0, at_ms - at_ms % MINUTE_MS))
            if nearest == end:
                return

    def spike(self, coin: str, px: Decimal | str | int) -> None:
        """The price goes to `px` and comes back."""
        before = self.px[coin]
        self.move(coin, px)
        self.move(coin, before)

    def _levels(self, coin: str) -> list[Decimal]:
        orders = [order for order in self._account.orders.values() if order.coin == coin]
        stops = [armed.stop_px for armed in self._account.guardians.values() if armed.spec.coin == coin]
        levels = [level for order in orders for level in (order.trigger_px, order.limit_px)] + stops
        return [decimal_of(level) for level in levels if level is not None]

    def reset(self) -> None:
        """A sandbox reset: all is wiped, keys are fenced."""
        self.operations.reset(self.principal, ResetRequest(), Context("req_reset"))

    def by_hand(
        self,
        coin: str = "BTC",
        side: Side = "long",
        size: str | int | Decimal = 1,
        *,
        key: str | None = None,
        source: Source | None = "agent",
        **more: Any,
    ) -> None:
        """Somebody else buys or sells at the market. `source` None: the trade names no source."""
        request = OrderRequest(market=coin, side=side, size=str(size), source=source, **more)
        drive(self.hand.place(request, key=key))
        trade_id = self._account.trades[-1].id
        if source is None:
            self.said[trade_id] = {"source": None}
        self._show_key(trade_id, key)

    def closed_by_hand(self, coin: str = "BTC", key: str | None = None, **more: Any) -> None:
        """Somebody else closes the position."""
        drive(self.hand.close(coin, CloseRequest(**more), key=key))
        self._show_key(self._account.trades[-1].id, key)

    def canceled_by_hand(self, oid: str) -> None:
        drive(self.hand.cancel(oid))

    def lose(self, *ids: str) -> None:
        """These orders and guardians end, and no event tells of it."""
        with self.untold():
            for gone in ids:
                drive(self.hand.cancel(gone) if gone in self.working else self.hand.disarm(gone))

    @contextmanager
    def untold(self) -> Iterator[None]:
        """No event tells of what happens meanwhile."""
        first = self._account.event_seq
        yield
        self.unseen |= {event_id(number) for number in range(first + 1, self._account.event_seq + 1)}

    def other_event(self) -> None:
        """Something happens that concerns no order."""
        self.exchange.run(ChangeSettings(ACCOUNT, None, None))

    def saved(self) -> Any:
        """What the service would store now."""
        return deepcopy((self.exchange.state, self.exchange.log.replies_in_memory(), self.px))

    def restore(self, saved: Any) -> None:
        """The service goes on from what it had stored; its time does not go back."""
        self.exchange.state, replies, self.px = deepcopy(saved)
        self.exchange.log.replace_replies(replies)
        self.exchange.account = self._account
        # The heartbeats have gone on, so that no dead-man switch fires for the time in between.
        then_ms = self.exchange.state.now_ms
        self.exchange._apply(Heartbeat(ACCOUNT, self.clock.now_ms() - then_ms), then_ms)

    # -- what there is at the venue

    @property
    def _account(self) -> VenueAccount:
        return peek(self.exchange.state, ACCOUNT)

    @property
    def epoch(self) -> int:
        return self._account.epoch

    @property
    def positions(self) -> dict[str, Held]:
        return {
            coin: Held(side_name(one.side), decimal_of(one.size), decimal_of(one.entry_notional))
            for coin, one in sorted(self._account.positions.items())
        }

    @property
    def working(self) -> dict[str, Order]:
        bodies = account_bodies.orders(self.exchange.state, self._account)
        return {order.oid: order for order in map(Order.model_validate, bodies)}

    @property
    def guards(self) -> dict[str, Guardian]:
        return {one.id: one for one in map(Guardian.model_validate, account_bodies.guardians(self._account))}

    @property
    def trade_rows(self) -> list[TradeResource]:
        """Oldest first."""
        return [TradeResource.model_validate(account_bodies.trade(self._account, one)) for one in self._account.trades]

    @property
    def event_rows(self) -> list[Event]:
        return [Event.model_validate(event_bodies.event(event)) for event in pages.after(self._account, 0)]

    @property
    def fills(self) -> list[tuple[int, str, str, str, str, str]]:
        """What was executed, without ids."""
        return [
            (event.ts, event.coin, event.side, event.intent, format_e8(event.size), format_e8(event.px))
            for event in pages.after(self._account, 0)
            if type(event) is FillEvent
        ]

    # -- the port

    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
        rows = self.candle_rows[bare_coin(coin)]
        whole = rows if interval == "1m" else _longer(rows, INTERVAL_MS[interval])
        answer = CandlesResult(coin=bare_coin(coin), interval=interval, candles=tuple(whole[-limit:]))
        return self._call("candles" if interval == "1m" else "longer candles", lambda: answer)

    def _call(self, op: str, execute: Callable[[], Any]) -> Any:
        self.calls.append(op)
        fault = next((fault for fault in self.faults if fault.op in (op, "*") and fault.count > 0), None)
        if fault is None:
            return self._shown(execute())
        fault.count -= 1
        if isinstance(fault.kind, ApiError):
            raise fault.kind
        if fault.kind == "late":
            self.late.append(execute)
        if fault.kind == "lose_reply":
            with suppress(ApiError):
                execute()
        raise unknown()

    def _context(self, body: bytes, key: str | None = None, expires_ms: int | None = None) -> Context:
        return super()._context(body, key, expires_ms) if self.keys == "shown" else super()._context(body)

    def _show_key(self, trade_id: str, key: str | None) -> None:
        if self.keys == "on trades":
            self.said.setdefault(trade_id, {})["idempotency_key"] = key

    def _last_told(self, at: str) -> str:
        """The newest event up to this one that the service tells of."""
        while at in self.unseen:
            at = event_id(int(at[4:]) - 1)
        return at

    def _refused(self, no: ApiError, body: bytes, key: str | None) -> ServiceAnswer:
        """The service refuses an order, and stores that under its key as it does with any refusal."""
        refusal = Refusal(no.code, no.message, details=no.details)
        return self.operations.decide(self.principal, self._context(body, key), lambda _now: refusal, lambda *_: {})

    def _shown(self, answer: Any) -> Any:
        """The answer as this service gives it."""
        match answer:
            case list() | tuple():
                kept = [self._shown(one) for one in answer if _id_of(one) not in self.unseen]
                return type(answer)(kept + [also for also in self.also if isinstance(also, tuple(map(type, kept)))])
            case AccountSnapshot():
                shown = _with(answer, self._shown, "positions", "orders", "guardians")
                return shown.model_copy(update={"last_event_id": self._last_told(answer.last_event_id)})
            case OrderResult():
                return _with(answer, self._shown, "trade", "position")
            case TradesPage():
                return _with(answer, self._shown, "trades")
            case EventsPage():
                shown = _with(answer, self._shown, "events")
                return shown.model_copy(update={"last_event_id": self._last_told(answer.last_event_id)})
            case Order() | Event() | TradeResource():
                named: dict[str, Any] = {} if self.keys == "shown" else {"idempotency_key": None}
                return answer.model_copy(update=named | self.said.get(_id_of(answer) or "", {}))
            case Guardian() | Position():
                return answer.model_copy(update=self.said.get(_id_of(answer) or "", {}))
        return answer


def _longer(rows: Sequence[Candle], step_ms: int) -> list[Candle]:
    """Longer candles, the running one included."""
    whole: list[Candle] = []
    for start_ms, parts in groupby(rows, key=lambda row: row.ts - row.ts % step_ms):
        part = list(parts)
        whole.append(
            Candle(
                ts=start_ms,
                open=part[0].open,
                high=max(row.high for row in part),
                low=min(row.low for row in part),
                close=part[-1].close,
                volume=sum(row.volume for row in part),
                closed=part[-1].ts + MINUTE_MS >= start_ms + step_ms,
            )
        )
    return whole


def _with(answer: Any, shown: Callable[[Any], Any], *names: str) -> Any:
    return answer.model_copy(update={name: shown(getattr(answer, name)) for name in names})


def _id_of(one: Any) -> str | None:
    return getattr(one, "oid", None) or getattr(one, "id", None) or getattr(one, "coin", None)


def _nothing_yet(coin: str) -> CandleReader:
    """The market before its first bar, at 100."""
    row = [array("d", [value]) for value in (100.0, 100.0, 100.0, 100.0, 1.0)]
    return CandleReader(Candles(coin, "1m", array("q", [START_MS]), *row), start_ms=START_MS, end_ms=START_MS)


def _faulty(op: str) -> Callable[..., Any]:
    """The request of the service, which may meet a fault."""
    inner = getattr(ServicePort, op)

    async def request(self: FaultyPort, *args: Any, **named: Any) -> Any:
        order = args[0] if op in ("plan", "place") else self.plans.get(args[0]) if op == "confirm" else None

        def execute() -> Any:
            if order is not None and (no := self.refuse(order)) is not None:
                body = ConfirmRequest(confirm_token=args[0]).body() if op == "confirm" else order.body()
                key = None if op == "plan" else named["key"]
                return self._ask(OrderResult, lambda: self._refused(no, body, key), reads=op == "plan")
            try:
                answer = drive(inner(self, *args, **named))
            except ApiError as error:
                if op == "events" and error.status == 410 and not self.says_gone:
                    return drive(inner(self, None, **named))
                if (error.details or {}).get("reason") == "used_token" and not self.tells_of_tokens:
                    raise refused("plan_stale") from None
                raise
            if op == "plan":
                self.plans[answer.confirm_token] = order.model_copy(update={"dry_run": False})
            elif isinstance(answer, OrderResult):
                self._show_key(answer.trade.id, named["key"])
            return answer

        return self._call(op, execute)

    return request


for _op in REQUESTS:
    if _op != "candles":
        setattr(FaultyPort, _op, _faulty(_op))
