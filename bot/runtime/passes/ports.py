"""Ports: what the runtime needs from outside, as protocols.

The client, a session's local venue and the tests' fake implement them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from bot.model.events import Event as ModelEvent
    from bot.wire import (
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
        PlanResult,
        StatusResult,
        TradesPage,
    )


class Calm(NamedTuple):
    """A bar strictly inside (lo, hi) that closes before `until_ms` changes nothing at the venue but the mark."""

    lo: float
    hi: float
    until_ms: int


class PortClock(Protocol):
    """The service's time.

    `speed` is 1 (real), more (accelerated) or 0 (moved by hand). The time of a sandbox may go back.
    """

    @property
    def speed(self) -> float: ...
    @property
    def is_sandbox(self) -> bool: ...
    def now_ms(self) -> int: ...


class PlacedTrade(Protocol):
    @property
    def id(self) -> str: ...


class PlacedOrder(Protocol):
    """What the runtime reads of the answer to an order: the id of its trade. The events tell the rest."""

    @property
    def trade(self) -> PlacedTrade: ...


class VenuePort(Protocol):
    """The operations of the interface that the runtime uses.

    Each raises an ApiError of bot.errors; its class says what the caller can do.
    """

    @property
    def clock(self) -> PortClock: ...
    def entry_wait_ms(self) -> int:
        """Real time until the rate limit allows an entry; 0 means now."""

    async def account(self) -> AccountSnapshot: ...
    # `key` is the key of the later confirm; the service does not get it with a plan.
    async def plan(self, request: OrderRequest, *, key: str) -> PlanResult: ...
    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> PlacedOrder: ...
    async def place(self, request: OrderRequest, *, key: str, expires_at_ms: int | None = None) -> PlacedOrder: ...
    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> PlacedOrder: ...
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


class EventSource(Protocol):
    """The events of a venue in this process: in order, none lost, none twice. The account is not reset.

    The journal reads the attribution itself, because nothing that these events change in it is ever undone.
    """

    def fresh(self) -> Sequence[ModelEvent]:
        """The events that the journal has not taken."""
        ...

    def take(self, events: Sequence[ModelEvent]) -> None:
        """Note in the journal that the daemon has taken these events, which are the next ones."""
        ...

    def id_of(self, event: ModelEvent) -> str:
        """The id of an event, as the interface gives it."""
        ...

    def as_wire(self, event: ModelEvent) -> Event:
        """The event as a client reads it, for notices, the log and strategies that are still under construction."""
        ...


class Pacer(Protocol):
    """Real time for retries: how long to wait, and the waiting. The one of tests and sessions does not wait."""

    def mono_ms(self) -> int: ...
    def delay_ms(self, attempt: int) -> int: ...
    async def sleep(self, ms: int) -> None: ...
