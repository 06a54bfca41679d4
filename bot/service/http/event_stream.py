"""The event stream: server-sent events of the feed that GET /v1/events reads, resumed by event id. Reads committed
events only.

A stream reads the feed at least every 2 s, and whenever its account has an event. A stream ends with one `event: error`
that has no id and the interface's error object as its data. It ends within 2 s after the credential is revoked or
expires. It also ends, with the fix resync, if unread events are gone: after a reset, or because the reader was too
slow. A client that then resumes gets the same error as a plain response.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bot.errors import Refusal
from bot.model.events import Event
from bot.service.bodies import event_bodies
from bot.service.bodies.read_access import peek
from bot.service.bodies.responses import OperationRefused
from bot.service.bodies.strict_json import dumps
from bot.service.http.routes_v1 import Router, call_of
from bot.service.operations.accounts import AccountOperations, cursor_lost, feed_replaced
from bot.service.security.auth import Principal, authenticate, refuse_access
from bot.venue.model.state import event_id
from bot.venue.storage import pages
from bot.wire import interface
from bot.wire.interface import Access
from bot.wire.queries import EventStreamQuery

# open streams of one account
STREAMS_MAX: Final = 64
# the interface promises 2 s for noticing an expired credential
LOOK_SECONDS: Final = 1.5
PING_SECONDS: Final = 15
RETRY_MS: Final = 2_000
# events read from the feed at a time, so that one reader far behind does not delay the others
EXAMINED_MAX: Final = 500
# events of a burst that are sent in one write
TOGETHER_MAX: Final = 25
LAST_EVENT_ID: Final = "Last-Event-ID"


class Streams:
    """All open streams: wakes them, counts them and ends them."""

    def __init__(self) -> None:
        self._wakeups: dict[str, set[asyncio.Event]] = {}
        self._closed = False
        # changes when the service is restored: events that a stream has sent may no longer exist
        self.generation = 0

    def wake(self, events: Iterable[Event]) -> None:
        """Wake the streams of the accounts that these events belong to."""
        if self._wakeups:
            for account in {event.account for event in events}:
                for wakeup in self._wakeups.get(account, ()):
                    wakeup.set()

    def close(self) -> None:
        """End every stream because the service stops."""
        self._closed = True
        for wakeups in self._wakeups.values():
            for wakeup in wakeups:
                wakeup.set()

    def interrupt(self) -> None:
        """End every open stream with a resync because the service was restored to another state."""
        self.generation += 1
        for wakeups in self._wakeups.values():
            for wakeup in wakeups:
                wakeup.set()

    def has_closed(self) -> bool:
        return self._closed

    def count(self, account: str) -> int:
        return len(self._wakeups.get(account, ()))

    def enter(self, account: str) -> asyncio.Event:
        wakeup = asyncio.Event()
        self._wakeups.setdefault(account, set()).add(wakeup)
        return wakeup

    def leave(self, account: str, wakeup: asyncio.Event) -> None:
        wakeups = self._wakeups[account]
        wakeups.discard(wakeup)
        if not wakeups:
            del self._wakeups[account]


class EventStream(EventSourceResponse):
    """A response that counts as an open stream from its creation to its end, however it ends."""

    def __init__(self, content: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(content, ping=PING_SECONDS, ping_message_factory=_ping, sep="\n")
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep="\n")


class StreamOperations:
    """Opens streams over the feed of an account."""

    def __init__(self, accounts: AccountOperations, streams: Streams) -> None:
        self._accounts = accounts
        self._machine = accounts.machine
        self._streams = streams

    def open(self, http: Request) -> Response:
        """GET /v1/events/stream. Refused, before anything is sent, if the feed no longer has the cursor."""
        call = call_of(http)
        query = call.ask(EventStreamQuery)
        account_id = call.principal.account
        self._accounts.refresh()
        # A browser that reconnects sends its old URL and a newer Last-Event-ID.
        account = self._accounts.account(call.principal)
        cursor = account.events_first - 1
        if last := http.headers.get(LAST_EVENT_ID, "").strip():
            cursor = self._accounts.cursor_seq(account, last, name=LAST_EVENT_ID)
        elif query.since is not None:
            cursor = self._accounts.cursor_seq(account, query.since)
        if self._streams.count(account_id) >= STREAMS_MAX:
            text = f"an account has at most {STREAMS_MAX} open streams; end one of them first"
            fix = {"action": "wait", "seconds": RETRY_MS // 1000}
            details = {"streamsMax": STREAMS_MAX}
            raise OperationRefused(
                Refusal("rate_limited", text, fix=fix, details=details), None, {"Retry-After": str(RETRY_MS // 1000)}
            )
        wakeup = self._streams.enter(account_id)
        header = http.headers.get("Authorization")

        def error(refusal: Refusal) -> bytes:
            body: bytes = http.scope["refuse"](refusal).body
            return ServerSentEvent(body.decode(), event="error", sep="\n").encode()

        content = self._follow(account_id, header, query.filters, cursor, wakeup, error)
        return EventStream(content, lambda: self._streams.leave(account_id, wakeup))

    async def _follow(
        self,
        account_id: str,
        header: str | None,
        wanted: frozenset[str] | None,
        cursor: int,
        wakeup: asyncio.Event,
        error: Callable[[Refusal], bytes],
    ) -> AsyncIterator[bytes]:
        generation = self._streams.generation
        yield ServerSentEvent(retry=RETRY_MS, sep="\n").encode()
        while not self._streams.has_closed():
            wakeup.clear()
            refusal = self._refusal(header) or self._gap(account_id, cursor)
            if refusal is None and generation != self._streams.generation:
                refusal = feed_replaced(peek(self._machine.state, account_id))
            if refusal is not None:
                yield error(refusal)
                return
            unread = list(islice(pages.after(peek(self._machine.state, account_id), cursor), EXAMINED_MAX))
            if not unread:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wakeup.wait(), LOOK_SECONDS)
                continue
            # Send only events that a crash cannot undo.
            await self._machine.settle()
            for at in range(0, len(unread), TOGETHER_MAX):
                if generation != self._streams.generation:
                    break
                if self._streams.has_closed() or self._refusal(header) is not None:
                    # Sending this batch to a slow reader may take long.
                    break
                together = unread[at : at + TOGETHER_MAX]
                cursor = together[-1].seq
                if piece := b"".join(_told(happened) for happened in together if _is_wanted(happened, wanted)):
                    yield piece
            await asyncio.sleep(0)

    def _gap(self, account_id: str, cursor: int) -> Refusal | None:
        """Why the next event is no longer in the feed, or None.

        A reader who had read everything before a reset only gets the reset event.
        """
        account = peek(self._machine.state, account_id)
        return cursor_lost(account, cursor) if cursor < account.events_first - 1 else None

    def _refusal(self, header: str | None) -> Refusal | None:
        """Why the caller may no longer read this stream, or None."""
        unread = authenticate(self._machine.state, header, self._machine.clock.now_ms())
        return refuse_access(unread, Access.READ) if isinstance(unread, Principal) else unread


def _is_wanted(happened: Event, wanted: frozenset[str] | None) -> bool:
    if wanted is None:
        return True
    kind, subtype = event_bodies.kind_of(happened)
    return kind in wanted or f"{kind}.{subtype}" in wanted


def _told(happened: Event) -> bytes:
    text = dumps(event_bodies.event(happened)).decode()
    name = event_bodies.kind_of(happened)[0]
    return ServerSentEvent(text, event=name, id=event_id(happened.seq), sep="\n").encode()


def add_stream(router: Router, streams: StreamOperations) -> None:
    """The stream's route."""

    @router.route(interface.EVENT_STREAM)
    async def event_stream(http: Request) -> Response:
        return streams.open(http)
