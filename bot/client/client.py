"""The interface as typed methods, one per operation. Each call is one attempt with a time limit; the caller decides
about repeats.

A method returns a wire model or raises an exception of `bot.errors`:
Refused: the service says no. TryLater: not done; repeat after `after_ms` with the same key. OutcomeUnknown: it may be
done; the same key or token tells. AccessLost: the credential is not valid any more.
`bot.client.faults.verdict_of(error)` distinguishes further.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from decimal import Decimal
from types import TracebackType
from typing import Final, Self

from pydantic import SecretStr

from bot.client.account_calls import AccountCalls
from bot.client.calls import present
from bot.client.http import TIMEOUTS, Timeouts, Transport
from bot.client.limiter import Limiter, RequestKind
from bot.client.service_clock import ServiceClock
from bot.wire import interface
from bot.wire.account import AccountSnapshot, KillResult, ResetResult, SandboxAccountResult
from bot.wire.events import Event, EventsPage
from bot.wire.guardian_requests import GuardianRequest
from bot.wire.limits import Limits
from bot.wire.market import BookResult, CandlesResult, MarketsResult, StatusResult
from bot.wire.order_requests import CancelCoinRequest, CloseRequest, ConfirmRequest, OrderRequest, SuggestRequest
from bot.wire.orders import (
    CancelCoinResult,
    CancelResult,
    HeartbeatResult,
    OrderResult,
    PlanResult,
    SuggestResult,
    TradesPage,
)
from bot.wire.requests import HeartbeatRequest, KillRequest, ResetRequest, SandboxAccountRequest
from bot.wire.resources import Guardian, Order

_PLAN: Final = interface.PLACE_ORDER.answering(PlanResult)
_ARM: Final = interface.ARM_GUARDIAN.answering(Guardian)


class Client(AccountCalls):
    """A client of /v1. `clock` follows the service's time from the first answer on. `limiter` keeps the service's rate
    limits.

    `base_url`: https, or http to this machine. `api_key` may be None for operations that need no credential.
    `transport` is for tests and for a service in the same process.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | SecretStr | None = None,
        *,
        transport: Transport | None = None,
        timeouts: Timeouts = TIMEOUTS,
        clock: ServiceClock | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self.limiter = Limiter() if limiter is None else limiter
        super().__init__(base_url, api_key, transport=transport, timeouts=timeouts, clock=clock, limiter=self.limiter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def clock(self) -> ServiceClock:
        """The service's time, known from the first answer on."""
        return self._clock

    def entry_wait_ms(self) -> int:
        """Milliseconds of real time until the rate limit allows an entry; 0 means now."""
        return 0 if self._clock.speed <= 0 else self.limiter.wait_ms(RequestKind.ENTRY, "POST /v1/orders")

    async def status(self) -> StatusResult:
        return await self._call(interface.SYSTEM_STATUS)

    async def create_sandbox_account(
        self, *, name: str | None = None, starting_balance_usd: Decimal | int = 10_000
    ) -> SandboxAccountResult:
        """Create a play-money account and its owner's key.

        Only this answer contains the secret. Each successful repeat creates another account.
        """
        request = SandboxAccountRequest(name=name, starting_balance_usd=Decimal(starting_balance_usd))
        return await self._call(interface.OPEN_ACCOUNT, body=request)

    async def reset(self, *, balance_usd: Decimal | int | None = None) -> ResetResult:
        """Wipe the sandbox account. The epoch increases, and earlier idempotency keys and cursors become invalid."""
        request = ResetRequest(balance_usd=None if balance_usd is None else Decimal(balance_usd))
        return await self._call(interface.RESET_ACCOUNT, body=request)

    async def account(self) -> AccountSnapshot:
        return await self._call(interface.ACCOUNT)

    async def place(self, request: OrderRequest, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        """Place an order. After `expires_at_ms` on the service's clock the service refuses it for good."""
        assert not request.dry_run, "a dry run is a plan"
        return await self._call(
            interface.PLACE_ORDER, body=request, key=key, expires_at_ms=expires_at_ms, kind=RequestKind.ENTRY
        )

    async def plan(self, request: OrderRequest, *, key: str | None = None) -> PlanResult:
        """What the order would do, and a single-use token that executes it. Changes nothing, so it may be repeated.
        `key` is unused: the runtime's port has this parameter, and only the confirm must be unique.
        """
        dry = request.model_copy(update={"dry_run": True})
        return await self._call(_PLAN, body=dry, reads=True, kind=RequestKind.ENTRY)

    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        """Execute a plan.

        Repeating a token whose outcome is unknown returns that outcome and never executes the plan twice.
        """
        return await self._call(
            interface.CONFIRM_ORDER,
            body=ConfirmRequest(confirm_token=token),
            key=key,
            expires_at_ms=expires_at_ms,
            kind=RequestKind.ENTRY,
        )

    async def suggest(self, request: SuggestRequest) -> SuggestResult:
        return await self._call(interface.SUGGEST_ORDER, body=request, reads=True)

    async def close(
        self, market: str, request: CloseRequest, *, key: str, expires_at_ms: int | None = None
    ) -> OrderResult:
        """Reduce or close a position. An empty request closes all of it."""
        return await self._call(
            interface.CLOSE_POSITION, market, body=request, key=key, expires_at_ms=expires_at_ms, kind=RequestKind.EXIT
        )

    async def orders(self, coin: str | None = None) -> list[Order]:
        page = await self._call(interface.OPEN_ORDERS, query=present({"coin": coin}))
        return list(page.orders)

    async def cancel(self, oid: str) -> CancelResult:
        """Cancel one order or trigger by its venue id. It may be the stop: `unprotected` tells."""
        return await self._call(interface.CANCEL_ORDER, oid, kind=RequestKind.EXIT)

    async def cancel_coin(self, coin: str) -> CancelCoinResult:
        """Cancel all open orders of a coin, stops and targets included."""
        return await self._call(interface.CANCEL_ORDERS, body=CancelCoinRequest(coin=coin), kind=RequestKind.EXIT)

    async def guardians(self) -> list[Guardian]:
        page = await self._call(interface.GUARDIANS)
        return list(page.guardians)

    async def arm(self, request: GuardianRequest, *, key: str) -> Guardian:
        return await self._call(_ARM, body=request, key=key, kind=RequestKind.EXIT)

    async def disarm(self, guardian_id: str) -> None:
        await self._call(interface.DISARM_GUARDIAN, guardian_id, kind=RequestKind.EXIT)

    async def lift_kill_switches(self) -> list[str]:
        """Disarm every kill switch and return their ids. The service refuses this for a key that is not the owner's."""
        switches = [guardian.id for guardian in await self.guardians() if guardian.type == "kill_switch"]
        for switch in switches:
            await self.disarm(switch)
        return switches

    async def heartbeat(self) -> HeartbeatResult:
        """Refresh all armed dead-man switches. An empty list means that none is armed."""
        return await self._call(interface.HEARTBEAT, body=HeartbeatRequest(), kind=RequestKind.EXIT)

    async def kill(self, *, flatten: bool = False, key: str) -> KillResult:
        """Cancel all entries, close all positions if `flatten`, and block openings until the owner lifts the block.

        The same key is the same kill.
        """
        return await self._call(interface.KILL, body=KillRequest(flatten=flatten), key=key, kind=RequestKind.EXIT)

    async def limits(self) -> Limits:
        """The limits of the account and of this key: caps, scopes, rates."""
        return await self._call(interface.LIMITS)

    async def events(self, since: str | None = None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        """Events after `since`, oldest first. A page with fewer than `limit` events is the last one for now."""
        query = present({"since": since, "limit": limit, "types": ",".join(types) or None})
        return await self._call(interface.EVENTS, query=query)

    def stream(self, since: str | None = None, *, types: Sequence[str] = ()) -> AsyncGenerator[Event, None]:
        """Events after `since` as they happen. Reconnects when the connection breaks. Use `async for`, then `aclose()`.

        The stream is only a wake-up: read `events` when it yields, because a stream can miss events. It raises Refused
        if the cursor is lost (resync) and AccessLost if the credential is.
        """
        return self._stream(present({"types": ",".join(types) or None}), since)

    async def trades(self, *, limit: int = 50, before: int | None = None, coin: str | None = None) -> TradesPage:
        query = present({"limit": limit, "before": before, "coin": coin})
        return await self._call(interface.TRADES, query=query)

    async def markets(
        self, query: str = "", *, asset_class: str = "all", view: str = "trending", limit: int = 150
    ) -> MarketsResult:
        asked = present({"query": query or None, "asset_class": asset_class, "view": view, "limit": limit})
        return await self._call(interface.MARKETS, query=asked)

    async def candles(self, coin: str, interval: str, limit: int) -> CandlesResult:
        """Candles, oldest first. The last one is running (`closed` is False)."""
        query = present({"interval": interval, "limit": limit})
        return await self._call(interface.CANDLES, coin, query=query)

    async def book(self, coin: str) -> BookResult:
        return await self._call(interface.ORDER_BOOK, coin)
