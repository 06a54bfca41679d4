"""One HTTP connection. Answers slow, oversized and malformed requests with the interface's error object. Knows no
operation.

A request must arrive whole within REQUEST_SECONDS of its first byte. A new connection must send its first request
within the same time. At most WAITING_MAX connections of a server may be in this state: one more closes the one that
began first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bot.errors import Refusal
from bot.service.bodies.responses import ServiceAnswer, refuse
from bot.service.security import rate_limits
from bot.wire.headers import API_VERSION, API_VERSION_HEADER, REQUEST_ID_HEADER

# scope extension: {"close": closes the connection without a response}
CONNECTION: Final = "bracketbot.connection"
# The bytes of the request line and headers.
HEAD_BYTES_MAX: Final = 32 * 1024
# time for a whole request, body included, to arrive
REQUEST_SECONDS: Final = 30.0
# Half of the 1,024 descriptors that a process usually has: the rest is for requests that run, event streams and files.
WAITING_MAX: Final = 512
# how often the timeout is checked
LOOK_SECONDS: Final = 5.0

_REASONS: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 with limits. The application may close the connection, which injected faults use."""

    # headers that every response of the service has
    more_headers: Callable[[], Mapping[str, str]] = staticmethod(dict)
    request_seconds = REQUEST_SECONDS
    look_seconds = LOOK_SECONDS

    # The server's connections that have begun no request or a part of one, the first one first.
    waiting: ClassVar[dict[Protocol, None]]
    waiting_max = WAITING_MAX

    # when the current request began to arrive; None between requests
    _begun: float | None = None
    # bytes of its headers so far; None when the headers are complete
    _head: int | None = 0
    _watch: asyncio.TimerHandle | None = None

    # Narrower, as uvicorn's own is.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        self._watch = self.loop.call_later(self.look_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._begun is None:
            self._wait()
        while data and not self.transport.is_closing():
            if self._head is None:
                super().data_received(data)
                return
            # One read may hold more than the whole head may have, so the parser never gets more than the rest of it at
            # once.
            part, data = data[: HEAD_BYTES_MAX - self._head], data[HEAD_BYTES_MAX - self._head :]
            if not part:
                self._end(431, f"the request line and headers are larger than {HEAD_BYTES_MAX} bytes")
                return
            self._head += len(part)
            super().data_received(part)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"close": self.transport.close}}

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._begun, self._head = None, 0
        self.waiting.pop(self, None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with the error object."""
        self._end(400, "this is not a valid HTTP/1.1 request")

    def _wait(self) -> None:
        """Begin to wait for a request."""
        self._begun = self.loop.time()
        self.waiting[self] = None
        if len(self.waiting) > self.waiting_max:
            next(iter(self.waiting)).give_up(f"more than {self.waiting_max} connections wait for their requests")

    def _look(self) -> None:
        if self._begun is not None and self.loop.time() - self._begun > self.request_seconds:
            self.give_up(f"the request did not arrive within {self.request_seconds:g} s")
            return
        self._watch = self.loop.call_later(self.look_seconds, self._look)

    def give_up(self, why: str) -> None:
        self.waiting.pop(self, None)
        if self._head:
            self._end(408, why)
        else:
            # No request has begun, or its body is incomplete, which is the same as no request.
            self.transport.close()

    def _end(self, status: int, text: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        answer = self._refused(text, status)
        head = [b"HTTP/1.1 %d %s" % (status, _REASONS[status])]
        head += [f"{name}: {value}".encode("latin-1") for name, value in answer.headers.items()]
        head += [b"content-type: application/json", b"content-length: %d" % len(answer.body), b"connection: close"]
        self.transport.write(b"\r\n".join([*head, b"", answer.body]))
        self.transport.close()

    def _refused(self, text: str, status: int) -> ServiceAnswer:
        host, port = self.server or ("localhost", None)
        address = f"[{host}]" if ":" in host else host
        docs = f"http://{address}{'' if port is None else f':{port}'}/docs"
        request_id = f"req_{secrets.token_hex(12)}"
        verdict = rate_limits.RateVerdict(rate_limits.POLICIES["public"], rate_limits.POLICIES["public"].burst, 0, 0)
        headers = {API_VERSION_HEADER: API_VERSION, REQUEST_ID_HEADER: request_id, "Cache-Control": "no-store"}
        headers |= {name.decode(): value.decode() for name, value in rate_limits.headers_of(verdict, enabled=True)}
        headers |= self.more_headers()
        refusal = Refusal("invalid_input", text, details={"fields": [_problem(text)]})
        return refuse(refusal, request_id=request_id, docs=docs, is_order=False, status=status, headers=headers)


def _problem(text: str) -> dict[str, object]:
    return {"field": "request", "problem": text, "allowed": f"HTTP/1.1 with a head of at most {HEAD_BYTES_MAX} bytes"}
