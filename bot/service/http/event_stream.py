"""The event stream: server-sent events over the same feed as GET /v1/events, resumed by id. Reads committed events; changes nothing.

A stream looks at the feed at least every 2 s and whenever an event of its account happens. It ends with one `event: error`, whose data is the
interface's error object and which has no id, when its caller may read no more (revoked or expired: within 2 s) or when what it had
not read yet is gone (a reset, or too slow a reader: resync). A resume after such an end answers that same error as a plain response.
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
from bot.service.http.routes_v1 import Router, call_of
from bot.service.operations.accounts import AccountOperations, another_feed, lost_place
from bot.service.security.auth import Access, Principal, authenticate, refuse_access
from bot.service.views import event_views
from bot.service.views.read_access import peek
from bot.service.views.responses import Refused
from bot.service.views.strict_json import dumps
from bot.venue import pages
from bot.venue.events import Event
from bot.venue.state import event_id
from bot.wire.queries import EventStreamQuery

STREAMS_MAX: Final = 64  # open at once, an account
LOOK_SECONDS: Final = 1.5  # the interface says 2: what has run out in between is noticed within those
PING_SECONDS: Final = 15
RETRY_MS: Final = 2_000
EXAMINED_MAX: Final = 500  # events taken from the feed at a time, so that one far reader does not hold up the rest
TOGETHER_MAX: Final = 25  # events of a burst that leave as one piece
LAST_EVENT_ID: Final = "Last-Event-ID"


class Streams:
    """All open streams: whom to wake, how many there are, when they have to end."""

    def __init__(self) -> None:
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._closed = False
        self.generation = 0  # another one: what a stream has told need not have happened any more

    def ring(self, events: Iterable[Event]) -> None:
        """Something happened to these accounts."""
        if self._bells:
            for account in {event.account for event in events}:
                for bell in self._bells.get(account, ()):
                    bell.set()

    def close(self) -> None:
        """End every stream; the service stops."""
        self._closed = True
        for bells in self._bells.values():
            for bell in bells:
                bell.set()

    def interrupt(self) -> None:
        """Have every open stream end with a resync: the feed is another one now."""
        self.generation += 1
        for bells in self._bells.values():
            for bell in bells:
                bell.set()

    def has_closed(self) -> bool:
        return self._closed

    def count(self, account: str) -> int:
        return len(self._bells.get(account, ()))

    def enter(self, account: str) -> asyncio.Event:
        bell = asyncio.Event()
        self._bells.setdefault(account, set()).add(bell)
        return bell

    def leave(self, account: str, bell: asyncio.Event) -> None:
        bells = self._bells[account]
        bells.discard(bell)
        if not bells:
            del self._bells[account]


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
    """Opens streams over the feed of an AccountDesk."""

    def __init__(self, accounts: AccountOperations, streams: Streams) -> None:
        self._accounts = accounts
        self._machine = accounts.machine
        self._streams = streams

    def open(self, http: Request) -> Response:
        """GET /v1/events/stream. Refused, before anything is sent, when the place to resume from is lost."""
        call = call_of(http)
        query = call.ask(EventStreamQuery)
        account_id = call.principal.account
        self._accounts.look()
        # A browser that comes back sends its old address with the newer header.
        account = self._accounts.account(call.principal)
        cursor = account.events_first - 1
        if last := http.headers.get(LAST_EVENT_ID, "").strip():
            cursor = self._accounts.place_of(account, last, name=LAST_EVENT_ID)
        elif query.since is not None:
            cursor = self._accounts.place_of(account, query.since)
        if self._streams.count(account_id) >= STREAMS_MAX:
            text = f"an account has at most {STREAMS_MAX} open streams; end one of them first"
            fix = {"action": "wait", "seconds": RETRY_MS // 1000}
            details = {"streamsMax": STREAMS_MAX}
            raise Refused(
                Refusal("rate_limited", text, fix=fix, details=details), None, {"Retry-After": str(RETRY_MS // 1000)}
            )
        bell = self._streams.enter(account_id)
        header = http.headers.get("Authorization")

        def error(refusal: Refusal) -> bytes:
            body: bytes = http.scope["refuse"](refusal).body
            return ServerSentEvent(body.decode(), event="error", sep="\n").encode()

        content = self._follow(account_id, header, query.filters, cursor, bell, error)
        return EventStream(content, lambda: self._streams.leave(account_id, bell))

    async def _follow(
        self,
        account_id: str,
        header: str | None,
        wanted: frozenset[str] | None,
        cursor: int,
        bell: asyncio.Event,
        error: Callable[[Refusal], bytes],
    ) -> AsyncIterator[bytes]:
        generation = self._streams.generation
        yield ServerSentEvent(retry=RETRY_MS, sep="\n").encode()
        while not self._streams.has_closed():
            bell.clear()
            refusal = self._refusal(header) or self._gap(account_id, cursor)
            if refusal is None and generation != self._streams.generation:
                refusal = another_feed(peek(self._machine.state, account_id))
            if refusal is not None:
                yield error(refusal)
                return
            found = list(islice(pages.after(peek(self._machine.state, account_id), cursor), EXAMINED_MAX))
            if not found:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), LOOK_SECONDS)
                continue
            await self._machine.settle()  # Nobody hears of what a crash could still undo.
            for at in range(0, len(found), TOGETHER_MAX):
                if generation != self._streams.generation:
                    break
                if self._streams.has_closed() or self._refusal(header) is not None:
                    break  # A slow reader may be kept at this batch for long.
                together = found[at : at + TOGETHER_MAX]
                cursor = together[-1].seq
                if piece := b"".join(_told(happened) for happened in together if _is_wanted(happened, wanted)):
                    yield piece
            await asyncio.sleep(0)

    def _gap(self, account_id: str, cursor: int) -> Refusal | None:
        """Why the next event is not there any more, if so. A reader who had all of it before a reset just hears of the reset."""
        account = peek(self._machine.state, account_id)
        return lost_place(account, cursor) if cursor < account.events_first - 1 else None

    def _refusal(self, header: str | None) -> Refusal | None:
        """Why the caller who opened the stream may read no more, if so."""
        found = authenticate(self._machine.state, header, self._machine.clock.now_ms())
        return refuse_access(found, Access.READ) if isinstance(found, Principal) else found


def _is_wanted(happened: Event, wanted: frozenset[str] | None) -> bool:
    if wanted is None:
        return True
    kind, subtype = event_views.kind_of(happened)
    return kind in wanted or f"{kind}.{subtype}" in wanted


def _told(happened: Event) -> bytes:
    text = dumps(event_views.event(happened)).decode()
    name = event_views.kind_of(happened)[0]
    return ServerSentEvent(text, event=name, id=event_id(happened.seq), sep="\n").encode()


def add_stream(router: Router, desk: StreamOperations) -> None:
    """The stream's route."""

    @router.route("GET", "/v1/events/stream", Access.READ, "default", query=EventStreamQuery)
    async def event_stream(http: Request) -> Response:
        return desk.open(http)
