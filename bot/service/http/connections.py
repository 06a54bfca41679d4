"""One HTTP connection: what arrives too slowly, in too many headers or as no HTTP at all ends here, in the interface's words. Knows no operation.

A request that has begun must be whole within REQUEST_SECONDS, however its bytes drip; so must a connection begin its first one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bot.errors import Refusal
from bot.service.security import rate_limits
from bot.service.views.responses import Answer, refuse
from bot.wire.headers import API_VERSION, API_VERSION_HEADER, REQUEST_ID_HEADER

CONNECTION: Final = "bracketbot.connection"  # scope extension: {"close": ends the connection without a word}
HEAD_BYTES_MAX: Final = 32 * 1024  # of a request's line and headers
REQUEST_SECONDS: Final = 30.0  # for a whole request, body included, to arrive
LOOK_SECONDS: Final = 5.0  # how often a connection's patience is looked at

_REASONS: Final = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 with bounds, whose app may end the connection: what an injected fault does to a caller."""

    more_headers: Callable[[], Mapping[str, str]] = staticmethod(dict)  # that every answer of the service has
    request_seconds = REQUEST_SECONDS
    look_seconds = LOOK_SECONDS

    _begun: float | None = None  # when the request that is arriving began; None between requests
    _head: int | None = 0  # bytes of its head so far; None once the head is whole
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrower, as uvicorn's own is
        super().connection_made(transport)
        self._begun = self.loop.time()
        self._watch = self.loop.call_later(self.look_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._begun is None:
            self._begun = self.loop.time()
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._end(431, f"the request line and headers are larger than {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"close": self.transport.close}}

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._begun, self._head = None, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the error object as well."""
        self._end(400, "this is not an HTTP/1.1 request that can be read")

    def _look(self) -> None:
        if self._begun is not None and self.loop.time() - self._begun > self.request_seconds:
            if self._head:
                self._end(408, f"the request did not arrive within {self.request_seconds:g} s")
            else:
                self.transport.close()  # Either nothing was asked, or the body is cut: then it asked for nothing.
            return
        self._watch = self.loop.call_later(self.look_seconds, self._look)

    def _end(self, status: int, text: str) -> None:
        """Answer what cannot be read, and hang up."""
        answer = self._refused(text, status)
        head = [b"HTTP/1.1 %d %s" % (status, _REASONS[status])]
        head += [f"{name}: {value}".encode("latin-1") for name, value in answer.headers.items()]
        head += [b"content-type: application/json", b"content-length: %d" % len(answer.body), b"connection: close"]
        self.transport.write(b"\r\n".join([*head, b"", answer.body]))
        self.transport.close()

    def _refused(self, text: str, status: int) -> Answer:
        host, port = self.server or ("localhost", None)
        address = f"[{host}]" if ":" in host else host
        docs = f"http://{address}{'' if port is None else f':{port}'}/docs"
        request_id = f"req_{secrets.token_hex(12)}"
        verdict = rate_limits.Verdict(rate_limits.POLICIES["public"], rate_limits.POLICIES["public"].burst, 0, 0)
        headers = {API_VERSION_HEADER: API_VERSION, REQUEST_ID_HEADER: request_id, "Cache-Control": "no-store"}
        headers |= {name.decode(): value.decode() for name, value in rate_limits.headers_of(verdict, enabled=True)}
        headers |= self.more_headers()
        refusal = Refusal("invalid_input", text, details={"fields": [_problem(text)]})
        return refuse(refusal, request_id=request_id, docs=docs, is_order=False, status=status, headers=headers)


def _problem(text: str) -> dict[str, object]:
    return {"field": "request", "problem": text, "allowed": f"HTTP/1.1 with a head of at most {HEAD_BYTES_MAX} bytes"}
