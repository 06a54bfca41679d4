"""Ports: what the runtime asks of the world. Protocols only; the client, the session's local venue and the tests' fake satisfy them.

The HTTP client answers `calm` with None: over a wire nothing may be assumed, so each bar is followed by a look at the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from bot.wire import (
        AccountSnapshot,
        BookResult,
        CancelCoinResult,
        CancelResult,
        CandlesResult,
        CloseRequest,
        EventsPage,
        Guardian,
        GuardianRequest,
        HeartbeatResult,
        MarketsResult,
        Order,
        OrderRequest,
        OrderResult,
        PlanResult,
        StatusResult,
        TradesPage,
    )


class Calm(NamedTuple):
    """A bar strictly inside (lo, hi) that closes before `until_ms` changes nothing at the venue but the mark."""

    lo: float
    hi: float
    until_ms: int


NEVER_CALM = Calm(float("inf"), float("-inf"), 0)


class ServiceClock(Protocol):
    """The service's time: `speed` is 1 (real), more (accelerated) or 0 (moved by hand)."""

    @property
    def speed(self) -> float: ...
    def now_ms(self) -> int: ...


class VenuePort(Protocol):
    """The operations of the interface that the runtime uses. Each raises an ApiError of bot.errors, named for the next move."""

    @property
    def clock(self) -> ServiceClock: ...
    def calm(self, market: str) -> Calm | None: ...
    async def account(self) -> AccountSnapshot: ...
    async def plan(self, request: OrderRequest, *, key: str) -> PlanResult: ...
    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult: ...
    async def place(self, request: OrderRequest, *, key: str, expires_at_ms: int | None = None) -> OrderResult: ...
    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> OrderResult: ...
    async def cancel(self, oid: str) -> CancelResult: ...
    async def cancel_coin(self, coin: str) -> CancelCoinResult: ...
    async def orders(self, coin: str | None = None) -> Sequence[Order]: ...
    async def guardians(self) -> Sequence[Guardian]: ...
    async def arm(self, request: GuardianRequest, *, key: str) -> Guardian: ...
    async def disarm(self, guardian_id: str) -> None: ...
    async def heartbeat(self) -> HeartbeatResult: ...
    async def events(self, since: str | None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage: ...
    async def trades(self, *, limit: int = 50, before: int | None = None, coin: str | None = None) -> TradesPage: ...
    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult: ...
    async def markets(self, *, view: str = "trending", limit: int = 150) -> MarketsResult: ...
    async def book(self, coin: str) -> BookResult: ...
    async def status(self) -> StatusResult: ...


class Pacer(Protocol):
    """Real time for retries: how long to wait, and the waiting. Tests and sessions give one that does not wait."""

    def mono_ms(self) -> int: ...
    def delay_ms(self, attempt: int) -> int: ...
    async def sleep(self, ms: int) -> None: ...
