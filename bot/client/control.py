"""Client of the sandbox control, /sandbox/v1, over its Unix socket.

No hosted service has it, and the daemon does not need it.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from bot.client.calls import Caller
from bot.client.http import Timeouts, Transport, unix_transport
from bot.wire import interface
from bot.wire.control import (
    AdvanceRequest,
    ClockAdvanced,
    ClockRequest,
    ClockState,
    ControlResetResult,
    DigestResult,
    FaultRequest,
    FaultsResult,
    ForkResult,
    MintKeyRequest,
    MintKeyResult,
    NameRequest,
    PriceRequest,
    SeedRequest,
    SeedResult,
    SnapshotResult,
)
from bot.wire.resources import Market
from bot.wire.vocabulary import FaultKind

# advancing over days processes every price between
CONTROL_TIMEOUTS = Timeouts(total=60.0)


class ControlClient(Caller):
    """Controls the sandbox's clock and prices. `socket`: path of its Unix socket, whose file permissions are the
    credential. `base_url` and `token`:
    for a control that is served on a port.
    """

    def __init__(
        self,
        socket: str | Path | None = None,
        *,
        base_url: str = "http://localhost",
        token: str | SecretStr | None = None,
        transport: Transport | None = None,
        timeouts: Timeouts = CONTROL_TIMEOUTS,
    ) -> None:
        over = unix_transport(str(socket)) if transport is None and socket is not None else transport
        super().__init__(base_url, token, transport=over, timeouts=timeouts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def mint_key(self, account_id: str | None = None) -> MintKeyResult:
        """Create an owner's key of the embedded account; the previous one stops working.

        `account_id` None: the only account.
        """
        return await self._call(interface.MINT_KEY, body=MintKeyRequest(account_id=account_id))

    async def clock(self) -> ClockState:
        return await self._call(interface.CLOCK)

    async def set_speed(self, speed: float | Decimal) -> ClockState:
        """Set the clock's speed: 0 is manual, 1 real time, more is accelerated."""
        number = speed if isinstance(speed, Decimal) else Decimal(repr(speed))
        return await self._call(interface.SET_SPEED, body=ClockRequest(speed=number))

    async def advance(
        self, *, ms: int | None = None, to_ms: int | None = None, to_next: bool | None = None
    ) -> ClockAdvanced:
        """Advance a manual clock by `ms`, to an instant, or to the next deadline. Give exactly one of the three."""
        request = AdvanceRequest(ms=ms, to_ms=to_ms, to_next=to_next)
        return await self._call(interface.ADVANCE, body=request)

    async def price(
        self,
        coin: str,
        px: str,
        *,
        oracle_px: str | None = None,
        bid_px: str | None = None,
        ask_px: str | None = None,
        volume: str | None = None,
    ) -> Market:
        """Push one price. Amounts are text, as on the wire."""
        request = PriceRequest(px=px, oracle_px=oracle_px, bid_px=bid_px, ask_px=ask_px, volume=volume)
        return await self._call(interface.PUSH_PRICE, coin, body=request)

    async def seed(self, seed: int) -> SeedResult:
        return await self._call(interface.SET_SEED, body=SeedRequest(seed=seed))

    async def digest(self) -> DigestResult:
        """SHA-256 of the event log."""
        return await self._call(interface.DIGEST)

    async def faults(self) -> FaultsResult:
        return await self._call(interface.FAULTS)

    async def add_fault(self, op: str, kind: FaultKind, *, count: int = 1, ms: int | None = None) -> FaultsResult:
        request = FaultRequest(op=op, kind=kind, count=count, ms=ms)
        return await self._call(interface.ADD_FAULT, body=request)

    async def clear_faults(self) -> FaultsResult:
        return await self._call(interface.CLEAR_FAULTS)

    async def snapshot(self, name: str) -> SnapshotResult:
        return await self._call(interface.SNAPSHOT, body=NameRequest(name=name))

    async def restore(self, name: str) -> SnapshotResult:
        return await self._call(interface.RESTORE, body=NameRequest(name=name))

    async def fork(self, name: str) -> ForkResult:
        return await self._call(interface.FORK, body=NameRequest(name=name))

    async def reset(self) -> ControlResetResult:
        """Reset the whole service to its start."""
        return await self._call(interface.RESET_SERVICE)
