"""Small real implementations of the runtime's ports, in memory: a venue with single-use tokens, keys and events, and a
pacer that does not wait.

FakeVenue is not the product's venue: no margin, no fees, no slippage, and an order at a level fills at that level. It
breaks the network on request. In all else it answers as the service does: tests/integration/test_fake_venue.py gives
both the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, Decimal
from itertools import groupby
from typing import Any

from bot.clock import ManualClock
from bot.errors import ApiError, OutcomeUnknown
from bot.runtime.journal.event_log import EventLog
from bot.runtime.journal.intent_log import IntentLog
from bot.wire import (
    INTERVAL_MS,
    AccountSnapshot,
    BookResult,
    CancelCoinResult,
    CancelResult,
    Candle,
    CandlesResult,
    CloseRequest,
    Event,
    EventsPage,
    Guardian,
    GuardianRequest,
    Health,
    HeartbeatGuardian,
    HeartbeatResult,
    Limits,
    Market,
    MarketsResult,
    Order,
    OrderRequest,
    OrderResult,
    Plan,
    PlanResult,
    Position,
    StatusResult,
    TradeResource,
    TradesPage,
    bare_coin,
)

ADDRESS = "0x" + "ab" * 20
PLAN_TTL_MS = 60_000
START_MS = 1_748_736_000_000


class FakePacer:
    """Real time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.slept: list[int] = []

    def mono_ms(self) -> int:
        return self.now_ms

    def delay_ms(self, attempt: int) -> int:
        return min(500 * 2 ** (attempt - 1), 10_000)

    async def sleep(self, ms: int) -> None:
        self.slept.append(ms)
        self.now_ms += ms


class FakeClock(ManualClock):
    """The service's clock, moved by hand."""

    is_sandbox = True

    def __init__(self, now_ms: int, speed: float = 0) -> None:
        super().__init__(now_ms)
        self.speed = speed

    def go_back(self, ms: int) -> None:
        """As with a sandbox that is restored."""
        self._now_ms -= ms


def money(usd: Decimal) -> Decimal:
    """USD rounded down to eight decimals, as the venue rounds a notional."""
    return usd.quantize(Decimal("0.00000001"), ROUND_DOWN)


@dataclass
class Held:
    """A position of the fake."""

    side: str
    size: Decimal
    cost: Decimal
    opened_ms: int

    @property
    def entry(self) -> Decimal:
        return money(self.cost / self.size)


@dataclass
class Fault:
    """`op` meets `kind` the next `count` times: lose_reply (done, then no answer), drop (not done, no answer), late
    (no answer, done within the next minute), or an error to raise.
    """

    op: str
    kind: str | ApiError
    count: int = 1


@dataclass
class Planned:
    request: OrderRequest
    expires_ms: int
    trade_id: str | None = None
    used: bool = False


def unknown() -> ApiError:
    return ApiError.of("internal_error", "no answer", order_submitted="unknown")


def refused(code: str, message: str = "no", **named: Any) -> ApiError:
    return ApiError.of(code, message, order_submitted=False, retryable=False, request_id="req_1", **named)


def absent() -> ApiError:
    """What a request that is no order names is not there."""
    return ApiError.of("not_found", "no", retryable=False, request_id="req_1")


def _deliver(do: Callable[[], Any]) -> None:
    """The request arrives; nobody hears the answer."""
    with suppress(ApiError):
        do()


class FakeVenue:
    def __init__(self, coins: Sequence[str] = ("BTC", "ETH"), *, speed: float = 0) -> None:
        self.clock = FakeClock(START_MS, speed)
        self.coins = tuple(coins)
        self.px: dict[str, Decimal] = dict.fromkeys(self.coins, Decimal(100))
        self.candle_rows: dict[str, list[Candle]] = {coin: [] for coin in self.coins}
        self.positions: dict[str, Held] = {}
        self.working: dict[str, Order] = {}
        self.guards: dict[str, Guardian] = {}
        self.trade_rows: list[TradeResource] = []
        self.event_rows: list[Event] = []
        self.plans: dict[str, Planned] = {}
        self.replies: dict[str, tuple[bytes, object]] = {}
        self.balance = Decimal(10_000)
        self.epoch = 0
        self.serial = 0
        # events before it were wiped by a reset
        self.first_event = 0
        self.faults: list[Fault] = []
        self.late: list[Callable[[], Any]] = []
        self.calls: list[str] = []
        self.refuse: Callable[[OrderRequest], ApiError | None] = lambda _request: None
        self.shows_keys = True
        # False: exits keep their size when the position grows or shrinks
        self.resizes = True
        # False: a wiped cursor is not noticed, the reset comes as an event
        self.says_gone = True
        self._event("account", "created", None, {"balanceUsd": "10000"})

    # -- the world

    def close_bar(self, coin: str, close: str | Decimal, *, high: str | None = None, low: str | None = None) -> None:
        """A minute passes on the coin: its stops and targets are tried, then the candle is there.

        Move the clock yourself.
        """
        px = Decimal(close)
        top, bottom = max(px, Decimal(high or px), self.px[coin]), min(px, Decimal(low or px), self.px[coin])
        for order in list(self.working.values()):
            if order.coin != coin or order.oid not in self.working:
                continue
            level = order.trigger_px if order.trigger_px is not None else order.limit_px
            if level is not None and bottom <= level <= top:
                self._touch(order, level)
        row = Candle(
            ts=self.clock.now_ms() - 60_000, open=self.px[coin], high=top, low=bottom, close=px, volume=Decimal(1)
        )
        self.candle_rows[coin].append(row)
        self.px[coin] = px

    def minute(self, **closes: str) -> None:
        """The clock moves on by a minute, what was late arrives, and every coin has a bar."""
        self.clock.advance(60_000)
        late, self.late = self.late, []
        for do in late:
            _deliver(do)
        for coin in self.coins:
            self.close_bar(coin, closes.get(coin, self.px[coin]))

    def reset(self) -> None:
        """A sandbox reset: all is wiped, keys are fenced."""
        self.epoch += 1
        self.balance = Decimal(10_000)
        self.positions, self.working, self.guards, self.plans = {}, {}, {}, {}
        self.trade_rows, self.event_rows = [], []
        self.first_event = self.serial
        self.replies = {
            key: (
                b"",
                ApiError.of(
                    "idempotency_conflict",
                    "reset",
                    order_submitted=False,
                    retryable=False,
                    details={"reason": "account_reset"},
                ),
            )
            for key in self.replies
        }
        self._event("account", "reset", None, {"balanceUsd": "10000", "epoch": self.epoch})

    @property
    def fills(self) -> list[tuple[int, str, str, str, str, str]]:
        """What was executed, without ids."""
        return [
            (e.ts, e.coin or "", e.data.side, e.data.intent, str(e.data.size), str(e.data.px))
            for e in self.event_rows
            if e.type == "fill"
        ]

    # -- the port

    def entry_wait_ms(self) -> int:
        return 0

    async def account(self) -> AccountSnapshot:
        return await self._call("account", self._account)

    async def plan(self, request: OrderRequest, *, key: str | None = None) -> PlanResult:
        assert request.dry_run, "a plan is a dry run"
        return await self._call("plan", lambda: self._plan(request))

    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        return await self._call("confirm", lambda: self._once(key, token.encode(), lambda: self._confirm(token, key)))

    async def place(self, request: OrderRequest, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        return await self._call(
            "place", lambda: self._once(key, request.body(), lambda: self._place(request, key), expires_at_ms)
        )

    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> OrderResult:
        return await self._call(
            "close", lambda: self._once(key, request.body(), lambda: self._close(market, request, key), expires_at_ms)
        )

    async def cancel(self, oid: str) -> CancelResult:
        return await self._call("cancel", lambda: self._cancel(oid))

    async def cancel_coin(self, coin: str) -> CancelCoinResult:
        oids = tuple(order.oid for order in self.working.values() if order.coin == coin)
        for oid in oids:
            self._cancel(oid)
        return CancelCoinResult(coin=coin, canceled_oids=oids)

    async def orders(self, coin: str | None = None) -> list[Order]:
        return await self._call("orders", lambda: [o for o in self.working.values() if coin in (None, o.coin)])

    async def guardians(self) -> list[Guardian]:
        return await self._call("guardians", lambda: list(self.guards.values()))

    async def arm(self, request: GuardianRequest, *, key: str) -> Guardian:
        return await self._call("arm", lambda: self._once(key, request.body(), lambda: self._arm(request)))

    async def disarm(self, guardian_id: str) -> None:
        def gone() -> None:
            guardian = self.guards.pop(guardian_id)
            self._guardian_event("disarmed", guardian, reason="user")

        await self._call("disarm", gone)

    async def heartbeat(self) -> HeartbeatResult:
        found = [
            HeartbeatGuardian(id=g.id, next_deadline=g.next_deadline)
            for g in self.guards.values()
            if g.type == "dead_man_switch"
        ]
        return HeartbeatResult(guardians=tuple(found), server_time=self.clock.now_ms())

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        return await self._call("events", lambda: self._events(since, limit))

    async def trades(self, *, limit: int = 50, before: int | None = None, coin: str | None = None) -> TradesPage:
        def page() -> TradesPage:
            rows = [
                t
                for t in reversed(self.trade_rows)
                if (before is None or (t.seq or 0) < before) and coin in (None, t.symbol)
            ]
            more = rows[limit - 1].seq if len(rows) > limit else None
            return TradesPage(trades=tuple(rows[:limit]), next_before=more)

        return await self._call("trades", page)

    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
        rows = self.candle_rows[bare_coin(coin)]
        whole = rows if interval == "1m" else _longer(rows, INTERVAL_MS[interval])
        answer = CandlesResult(coin=bare_coin(coin), interval=interval, candles=tuple(whole[-limit:]))
        return await self._call("candles" if interval == "1m" else "longer candles", lambda: answer)

    async def markets(self, *, view: str = "trending", limit: int = 150) -> MarketsResult:
        rows = [
            Market(
                coin=c,
                market=f"perp:{c}",
                name=c,
                asset_class="crypto",
                book="main",
                status="open",
                sz_decimals=4,
                max_leverage=50,
            )
            for c in self.coins
        ]
        return await self._call("markets", lambda: MarketsResult(markets=tuple(rows)))

    async def book(self, coin: str) -> BookResult:
        return BookResult(coin=coin)

    async def status(self) -> StatusResult:
        return StatusResult(status="ok")

    # -- network

    async def _call(self, op: str, do: Callable[[], Any]) -> Any:
        self.calls.append(op)
        fault = next((f for f in self.faults if f.op in (op, "*") and f.count > 0), None)
        if fault is None:
            return do()
        fault.count -= 1
        if isinstance(fault.kind, ApiError):
            raise fault.kind
        if fault.kind == "late":
            self.late.append(do)
        if fault.kind == "lose_reply":
            _deliver(do)
        raise unknown()

    def _once(self, key: str, body: bytes, do: Callable[[], Any], expires_at_ms: int | None = None) -> Any:
        """A key and a body have one answer: a result, or a refusal that the venue decided."""
        known = self.replies.get(key)
        if known is not None:
            if known[0] and known[0] != body:
                details = {"reason": "fingerprint"}
                raise OutcomeUnknown("idempotency_conflict", "other body", order_submitted=False, details=details)
            if isinstance(known[1], ApiError):
                raise known[1]
            return known[1]
        if expires_at_ms is not None and self.clock.now_ms() > expires_at_ms:
            answer: object = ApiError.of(
                "idempotency_conflict", "late", order_submitted=False, retryable=False, details={"reason": "expired"}
            )
        else:
            try:
                answer = do()
            except ApiError as error:
                answer = error
        self.replies[key] = (body, answer)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    # -- the venue

    def _plan(self, request: OrderRequest) -> PlanResult:
        no = self.refuse(request)
        if no is not None:
            raise no
        self.serial += 1
        token = f"token-{self.serial:06d}"
        expires_ms = self.clock.now_ms() + PLAN_TTL_MS
        self.plans[token] = Planned(request.model_copy(update={"dry_run": False}), expires_ms)
        size = self._size(request)
        plan = Plan(
            coin=request.market,
            market=f"perp:{request.market}",
            side=request.side,
            intent="open",
            type=request.type,
            size=size,
            notional_usd=size * self.px[request.market],
        )
        return PlanResult(confirm_token=token, expires_at=expires_ms, plan=plan)

    def _confirm(self, token: str, key: str) -> OrderResult:
        plan = self.plans.get(token)
        if plan is None:
            raise refused("not_found")
        if plan.used:
            details = {"reason": "used_token", "tradeId": plan.trade_id}
            if plan.trade_id is None:
                raise refused("plan_stale")
            raise ApiError.of("idempotency_conflict", "used", order_submitted=True, retryable=False, details=details)
        if self.clock.now_ms() > plan.expires_ms:
            raise refused("plan_stale")
        plan.used = True
        result = self._place(plan.request, key)
        plan.trade_id = result.trade.id
        return result

    def _place(self, request: OrderRequest, key: str | None) -> OrderResult:
        no = self.refuse(request)
        if no is not None:
            raise no
        coin, size = request.market, self._size(request)
        trade = self._trade(coin, request.side, "open", request.type, size, key)
        if request.type == "limit":
            limit = Decimal(request.limit_px or "0")
            self._work(coin, request.side, "open", "limit", size, trade, key, limit_px=limit, request=request)
            self._order_event("open", self.working[trade.venue_oid or ""])
        else:
            self._fill(coin, request.side, "open", "market", size, self.px[coin], trade, key)
            self._protect(request, trade, self.px[coin])
        return self._result(coin, trade)

    def _close(self, market: str, request: CloseRequest, key: str | None) -> OrderResult:
        held = self.positions.get(market)
        if held is None:
            raise refused("not_found")
        size = held.size if request.size is None else min(held.size, Decimal(request.size))
        trade = self._trade(market, held.side, "close", "close", size, key)
        self._fill(market, held.side, "close", "close", size, self.px[market], trade, key)
        return self._result(market, trade)

    def _size(self, request: OrderRequest) -> Decimal:
        if request.size is not None:
            return Decimal(request.size)
        px = Decimal(request.limit_px) if request.limit_px is not None else self.px[request.market]
        return (Decimal(request.usd_amount or 0) / px).quantize(Decimal("0.0001"), ROUND_DOWN)

    def _trade(
        self,
        coin: str,
        side: str,
        intent: str,
        kind: str,
        size: Decimal,
        key: str | None,
        source: str | None = "agent",
        oid: str | None = None,
    ) -> TradeResource:
        self.serial += 1
        trade = TradeResource(
            id=f"trd_{self.serial:06d}",
            kind=kind,
            symbol=coin,
            side=side,
            intent=intent,
            reduce_only=intent == "close",
            size=size,
            status="open" if kind == "limit" else "done",
            venue_oid=oid or str(self.serial),
            idempotency_key=key if self.shows_keys else None,
            seq=self.serial,
            ts=self.clock.now_ms(),
            source=source,
        )
        self.trade_rows.append(trade)
        return trade

    def _fill(
        self,
        coin: str,
        side: str,
        intent: str,
        kind: str,
        size: Decimal,
        px: Decimal,
        trade: TradeResource,
        key: str | None,
    ) -> None:
        held = self.positions.get(coin)
        realized = None
        if intent == "open":
            assert held is None or held.side == side, "the fake turns no position around: close it first"
            if held is None:
                held = self.positions[coin] = Held(side, Decimal(0), Decimal(0), self.clock.now_ms())
            held.cost += money(px * size)
            held.size += size
        else:
            assert held is not None
            part = money(held.cost * size / held.size)
            realized = (money(px * size) - part) * (1 if side == "long" else -1)
            self.balance += realized
            held.cost -= part
            held.size -= size
        left, entry = held.size, held.entry if held.size else None
        self._event(
            "fill",
            "entry" if intent == "open" else "exit",
            coin,
            {
                "tradeId": trade.id,
                "oid": trade.venue_oid,
                "kind": kind,
                "side": side,
                "intent": intent,
                "reduceOnly": intent == "close",
                "size": str(size),
                "px": str(px),
                "feeUsd": "0",
                "realizedPnlUsd": None if realized is None else str(realized),
                "liquidity": "taker",
                "remainingSize": "0",
                "positionSize": str(left),
                "entryPx": None if entry is None else str(entry),
                "balanceUsd": str(self.balance),
            },
            key if self.shows_keys else None,
        )
        for order in [o for o in self.working.values() if o.coin == coin and o.reduce_only]:
            if left and self.resizes:
                self.working[order.oid] = order.model_copy(update={"size": left})
                self._order_event("changed", self.working[order.oid])
            elif not left:
                del self.working[order.oid]
                self._order_event("canceled", order, reason="position_closed")
        if not left:
            del self.positions[coin]
            for guardian in [g for g in self.guards.values() if g.coin == coin]:
                del self.guards[guardian.id]
                self._guardian_event("released", guardian, reason="position_closed")

    def _protect(self, request: OrderRequest, trade: TradeResource, px: Decimal) -> None:
        coin = request.market
        held = self.positions[coin]
        sign = 1 if held.side == "long" else -1
        stop: Decimal | None = None
        for order in [
            o for o in self.working.values() if o.coin == coin and o.reduce_only and request.bracket is not None
        ]:
            del self.working[order.oid]
            self._order_event("canceled", order, reason="replaced")
        for kind, leg, away in (
            ("stop_loss", request.bracket and request.bracket.stop_loss, -sign),
            ("take_profit", request.bracket and request.bracket.take_profit, sign),
        ):
            if leg is None:
                continue
            if leg.px is not None:
                level = Decimal(leg.px)
            elif leg.pct is not None:
                level = px * (1 + away * leg.pct / 100)
            else:
                assert stop is not None and leg.r is not None
                level = px + sign * leg.r * abs(px - stop)
            level = level.quantize(Decimal("0.01"))
            if kind == "stop_loss":
                stop = level
            self.serial += 1
            oid = str(self.serial)
            self.working[oid] = Order(
                oid=oid,
                trade_id=trade.id,
                coin=coin,
                side=held.side,
                intent="close",
                kind=kind,
                reduce_only=True,
                size=held.size,
                filled_size=Decimal(0),
                trigger_px=level,
                status="armed",
                created_at=self.clock.now_ms(),
            )
            self._order_event("armed", self.working[oid])
        for inline in request.guardians:
            self._arm(inline.on(coin))

    def _work(
        self,
        coin: str,
        side: str,
        intent: str,
        kind: str,
        size: Decimal,
        trade: TradeResource,
        key: str | None,
        *,
        limit_px: Decimal,
        request: OrderRequest,
    ) -> None:
        oid = trade.venue_oid or ""
        self.working[oid] = Order(
            oid=oid,
            trade_id=trade.id,
            coin=coin,
            side=side,
            intent=intent,
            kind=kind,
            reduce_only=False,
            size=size,
            filled_size=Decimal(0),
            limit_px=limit_px,
            status="open",
            idempotency_key=key if self.shows_keys else None,
            created_at=self.clock.now_ms(),
        )
        self.plans[f"resting-{oid}"] = Planned(request, 0)

    def _touch(self, order: Order, px: Decimal) -> None:
        del self.working[order.oid]
        held = self.positions.get(order.coin)
        if order.kind == "limit":
            trade = self._end_trade(order, "done")
            self._fill(order.coin, order.side, "open", "limit", order.size, px, trade, order.idempotency_key)
            self._protect(self.plans[f"resting-{order.oid}"].request, trade, px)
            return
        assert held is not None
        trade = self._trade(order.coin, held.side, "close", order.kind, held.size, None, source=None, oid=order.oid)
        data = {
            "oid": order.oid,
            "tradeId": trade.id,
            "side": held.side,
            "size": str(held.size),
            "triggerPx": str(px),
            "markPx": str(px),
        }
        self._event("trigger", order.kind, order.coin, data)
        for sibling in [o for o in self.working.values() if o.coin == order.coin and o.reduce_only]:
            del self.working[sibling.oid]
            self._order_event("canceled", sibling, reason="sibling_filled")
        self._fill(order.coin, held.side, "close", order.kind, held.size, px, trade, None)

    def _end_trade(self, order: Order, status: str) -> TradeResource:
        """The trade of a resting order is filled or canceled."""
        at = next(n for n, trade in enumerate(self.trade_rows) if trade.id == order.trade_id)
        ended = self.trade_rows[at].model_copy(update={"status": status, "updated_at": self.clock.now_ms()})
        self.trade_rows[at] = ended
        return ended

    def _cancel(self, oid: str) -> CancelResult:
        order = self.working.pop(oid, None)
        if order is None:
            raise absent()
        if order.kind == "limit":
            self._end_trade(order, "canceled")
        self._order_event("canceled", order, reason="user")
        return CancelResult(oid=oid, coin=order.coin)

    def _arm(self, request: GuardianRequest) -> Guardian:
        self.serial += 1
        given = {
            name: getattr(request, name)
            for name in (
                "heartbeat_seconds",
                "on_miss",
                "action",
                "cron",
                "seconds",
                "trail_pct",
                "trail_r",
                "activate_at_r",
                "max_loss_pct_from_day_start",
                "order_template",
            )
        }
        numbers = {k: float(v) if isinstance(v, Decimal) else v for k, v in given.items()}
        if request.market is not None and request.market not in self.positions:
            raise absent()
        guardian = Guardian(
            id=f"grd_{self.serial:06d}",
            type=request.type,
            scope="position" if request.market else "account",
            status="armed",
            coin=request.market,
            created_at=self.clock.now_ms(),
            **numbers,
        )
        self.guards[guardian.id] = guardian
        self._guardian_event("armed", guardian)
        return guardian

    def _events(self, since: str | None, limit: int) -> EventsPage:
        rows = self.event_rows
        if since is not None:
            number = int(since[4:])
            if (number <= self.first_event and self.epoch and self.says_gone) or (
                rows and number > int(rows[-1].id[4:])
            ):
                raise ApiError.of(
                    "not_found", "wiped", status=410, retryable=False, reads=True, fix={"action": "resync"}
                )
            rows = [e for e in rows if int(e.id[4:]) > number]
        page = rows[:limit]
        return EventsPage(events=tuple(page), last_event_id=page[-1].id if page else since)

    def _account(self) -> AccountSnapshot:
        positions = [self._position(coin) for coin in sorted(self.positions)]
        upnl = sum((p.unrealized_pnl_usd or Decimal(0) for p in positions), Decimal(0))
        return AccountSnapshot(
            account_id="acc_1",
            address=ADDRESS,
            epoch=self.epoch,
            account_value_usd=self.balance + upnl,
            balance_usd=self.balance,
            free_margin_usd=self.balance,
            margin_used_usd=Decimal(0),
            unrealized_pnl_usd=upnl,
            positions=tuple(positions),
            orders=tuple(self.working.values()),
            guardians=tuple(self.guards.values()),
            limits=Limits.model_construct(),
            last_event_id=self.event_rows[-1].id,
            health=Health.model_construct(),
            server_time=self.clock.now_ms(),
        )

    def _position(self, coin: str) -> Position:
        held = self.positions[coin]
        gain = (money(self.px[coin] * held.size) - held.cost) * (1 if held.side == "long" else -1)
        stop = next((o.trigger_px for o in self.working.values() if o.coin == coin and o.kind == "stop_loss"), None)
        return Position(
            coin=coin,
            side=held.side,
            size=held.size,
            leverage=1,
            entry_px=held.entry,
            mark_px=self.px[coin],
            book="main",
            unrealized_pnl_usd=gain,
            stop_px=stop,
            opened_at=held.opened_ms,
        )

    def _result(self, coin: str, trade: TradeResource) -> OrderResult:
        return OrderResult(
            trade=trade,
            position=self._position(coin) if coin in self.positions else None,
            last_event_id=self.event_rows[-1].id,
        )

    # -- events

    def _event(self, type_: str, subtype: str, coin: str | None, data: dict[str, Any], key: str | None = None) -> None:
        self.serial += 1
        self.event_rows.append(
            Event(
                id=f"evt_{self.serial:010d}",
                type=type_,
                subtype=subtype,
                ts=self.clock.now_ms(),
                coin=coin,
                idempotency_key=key,
                data=data,
            )
        )

    def _order_event(self, subtype: str, order: Order, reason: str | None = None) -> None:
        self._event(
            "order",
            subtype,
            order.coin,
            {
                "oid": order.oid,
                "tradeId": order.trade_id,
                "kind": order.kind,
                "side": order.side,
                "intent": order.intent,
                "size": str(order.size),
                "filledSize": "0",
                "limitPx": None if order.limit_px is None else str(order.limit_px),
                "triggerPx": None if order.trigger_px is None else str(order.trigger_px),
                "reason": reason,
            },
            order.idempotency_key,
        )

    def _guardian_event(self, subtype: str, guardian: Guardian, reason: str | None = None) -> None:
        data = {"guardianId": guardian.id, "guardianType": guardian.type, "scope": guardian.scope, "reason": reason}
        self._event("guardian", subtype, guardian.coin, data)


class Crash(BaseException):
    """The process is gone: no `except` of ours may take it."""


@dataclass
class Tap:
    """Counts points and crashes at one of them; 0 never does."""

    at: int = 0
    seen: int = 0
    names: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        self.seen += 1
        self.names.append(name)
        if self.seen == self.at:
            raise Crash(name)


class Tapped:
    """Any port or journal, with a point before and after each call; a journal's `intents` and `events` too."""

    def __init__(self, inner: Any, tap: Tap, *, only: Sequence[str] | None = None) -> None:
        self._inner = inner
        self._tap = tap
        self._only = only

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if isinstance(value, IntentLog | EventLog):
            return Tapped(value, self._tap, only=self._only)
        if not callable(value) or name == "entry_wait_ms" or (self._only is not None and name not in self._only):
            return value
        tap = self._tap
        if name in _ASYNC:

            async def call_async(*args: Any, **named: Any) -> Any:
                tap.point(f"before {name}")
                answer = await value(*args, **named)
                tap.point(f"after {name}")
                return answer

            return call_async

        def call(*args: Any, **named: Any) -> Any:
            tap.point(f"before {name}")
            answer = value(*args, **named)
            tap.point(f"after {name}")
            return answer

        return call


_ASYNC = frozenset(
    name
    for name in vars(FakeVenue)
    if not name.startswith("_")
    and getattr(getattr(FakeVenue, name), "__code__", None) is not None
    and getattr(FakeVenue, name).__code__.co_flags & 0x80
)


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
                closed=part[-1].ts + 60_000 >= start_ms + step_ms,
            )
        )
    return whole
