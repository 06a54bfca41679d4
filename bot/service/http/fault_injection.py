"""Faults on demand: the sandbox makes requests to /v1 fail, so that clients can test their error handling. Faults end
with the process.

At most one fault applies to a request: the oldest that matches. In addition the feed may repeat an event. Time is real
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from bot.errors import Refusal
from bot.service.bodies.responses import OperationRefused, invalid
from bot.service.http.connections import CONNECTION
from bot.wire.control import FaultRequest
from bot.wire.interface import Operation

ANY: Final = "*"
# the operations that can repeat an event
FEED: Final = "get_events"
STREAM: Final = "get_events_stream"
FAULTS_MAX: Final = 100
COUNT_MAX: Final = 1_000_000
# to wait for the rest of a request before its connection is closed
READ_S: Final = 5.0
# scope key: the refusal that the gateway sends instead of running the operation
INJECTED: Final = "bracketbot.injected"

Run = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class InjectedFault:
    id: str
    op: str
    kind: str
    remaining: int
    ms: int | None

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "op": self.op, "kind": self.kind, "remaining": self.remaining, "ms": self.ms}


class InjectedFaults:
    """The faults that are set. A fault names an operationId of the OpenAPI document, or "*"."""

    def __init__(self) -> None:
        self._operations: frozenset[str] = frozenset()
        self._rule_of: Callable[[Scope], Operation[Any] | None] = lambda scope: None
        self._faults: list[InjectedFault] = []
        self._seq = 0

    def follow(self, rules: Sequence[Operation[Any]], rule_of: Callable[[Scope], Operation[Any] | None]) -> None:
        """Take the routes whose requests may fail, and the function that finds a request's route."""
        self._operations = frozenset(rule.name for rule in rules if rule.path.startswith("/v1/"))
        self._rule_of = rule_of

    def _operation_of(self, scope: Scope) -> str | None:
        rule = self._rule_of(scope) if scope["path"].startswith("/v1/") else None
        return None if rule is None else rule.name

    def body(self) -> dict[str, Any]:
        return {"faults": [fault.body() for fault in self._faults]}

    def clear(self) -> None:
        self._faults = []

    def add(self, request: FaultRequest) -> None:
        op, kind = request.op, request.kind
        if op != ANY and op not in self._operations:
            raise OperationRefused(invalid("op", f"{op!r} is not an operation", [ANY, *sorted(self._operations)]))
        if kind == "delay" and request.ms is None:
            raise OperationRefused(invalid("ms", "is required for a delay", "0..600000"))
        if kind == "duplicate_event" and op not in (ANY, FEED, STREAM):
            raise OperationRefused(
                invalid(
                    "op",
                    "must be the event feed or the event stream: only they can repeat an event",
                    [ANY, FEED, STREAM],
                )
            )
        if request.count > COUNT_MAX:
            raise OperationRefused(invalid("count", "is too large", f"1..{COUNT_MAX}"))
        if len(self._faults) >= FAULTS_MAX:
            raise OperationRefused(
                invalid("op", f"cannot be set: the limit is {FAULTS_MAX} faults; delete the faults first")
            )
        self._seq += 1
        self._faults.append(InjectedFault(f"flt_{self._seq:06d}", op, kind, request.count, request.ms))

    def _find(self, op: str, *, repeats: bool) -> InjectedFault | None:
        return next((f for f in self._faults if f.op in (ANY, op) and (f.kind == "duplicate_event") == repeats), None)

    def _use(self, fault: InjectedFault) -> None:
        fault.remaining -= 1
        if not fault.remaining:
            self._faults = [kept for kept in self._faults if kept is not fault]

    # ── Applying a fault
    # ────────────────────────────────────────────────────────────────────────────────────────────────

    def is_idle(self, scope: Scope) -> bool:
        """True if no fault can apply to this request.

        A fault that is set while a stream is open applies to the stream.
        """
        return not self._faults and scope["path"] != "/v1/events/stream"

    async def around(self, scope: Scope, receive: Receive, send: Send, run: Run) -> None:
        """Run a request with its fault."""
        op = None
        if self._faults or scope["path"] == "/v1/events/stream":
            op = self._operation_of(scope)
        if op is None:
            await run(scope, receive, send)
            return
        if op == STREAM:
            send = self._repeating_stream(send)
        elif op == FEED and self._find(op, repeats=True) is not None:
            send = self._repeating_page(send)
        fault = self._find(op, repeats=False)
        if fault is None:
            await run(scope, receive, send)
            return
        self._use(fault)
        if fault.ms:
            await asyncio.sleep(fault.ms / 1000)
        if fault.kind == "drop":
            await _hang_up(scope, Whole(receive))
            return
        if fault.kind == "lose_reply":
            await _without_reply(scope, Whole(receive), run)
            return
        if fault.kind in ("status_429", "status_500"):
            scope[INJECTED] = _refusal(fault.kind)
        await run(scope, receive, send)

    def _repeating_page(self, send: Send) -> Send:
        """Repeat the last event of a page of the feed. A page without events leaves the fault for the next page."""
        start: Message | None = None
        parts: list[bytes] = []

        async def repeat(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            parts.append(message.get("body", b""))
            if message.get("more_body", False) or start is None:
                return
            body = b"".join(parts)
            fault = self._find(FEED, repeats=True)
            if start["status"] == 200 and fault is not None:
                page = json.loads(body)
                if page["events"]:
                    self._use(fault)
                    page["events"].append(page["events"][-1])
                    body = json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode()
            length = (b"content-length", str(len(body)).encode())
            headers = [
                length if name.lower() == b"content-length" else (name, value) for name, value in start["headers"]
            ]
            await send({**start, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        return repeat

    def _repeating_stream(self, send: Send) -> Send:
        async def repeat(message: Message) -> None:
            body = message.get("body", b"")
            fault = self._find(STREAM, repeats=True) if self._faults and body.startswith(b"id: evt_") else None
            if fault is not None:
                self._use(fault)
                # One write may hold several events.
                first, end, _ = body.partition(b"\n\n")
                await send({**message, "body": first + end})
            await send(message)

        return repeat


def _refusal(kind: str) -> OperationRefused:
    if kind == "status_429":
        text = "injected by the sandbox control: too many requests"
        return OperationRefused(
            Refusal("rate_limited", text, fix={"action": "wait", "seconds": 1}), None, {"Retry-After": "1"}
        )
    return OperationRefused(Refusal("internal_error", "injected by the sandbox control: internal error"), 500)


class Whole:
    """A request's `receive`; tells whether the whole request has arrived."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_read = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.is_read = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


async def _hang_up(scope: Scope, receive: Whole) -> None:
    """Close the connection without a response, after reading the whole request. With unread bytes the kernel would
    sometimes reset the connection, so the caller would see different errors by chance.
    """
    connection = (scope.get("extensions") or {}).get(CONNECTION)
    if connection is None:
        raise ConnectionResetError("injected by the sandbox control: internal error closed this connection")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READ_S):
            while not receive.is_read:
                await receive()
    connection["close"]()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _without_reply(scope: Scope, receive: Whole, run: Run) -> None:
    """Execute the request up to the commit, and send no response."""
    answered = asyncio.Event()

    async def swallow(message: Message) -> None:
        # The gateway sends after the commit: at the first message the operation is done.
        answered.set()

    running = asyncio.ensure_future(run(scope, receive, swallow))
    waiting = asyncio.create_task(answered.wait())
    both: set[asyncio.Future[Any]] = {running, waiting}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    await _hang_up(scope, receive)
