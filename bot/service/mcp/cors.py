"""CORS for /mcp: preflight responses and headers for the allowed origins.

It runs before the gateway, which refuses all other origins.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.service.mcp.route import PATH

MAX_AGE_SECONDS: Final = 600
_HEADERS: Final = (
    b"Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name,"
    b" X-API-Version"
)
_EXPOSED: Final = (
    b"X-Request-Id, X-API-Version, Idempotency-Replayed, Retry-After, WWW-Authenticate, Mcp-Protocol-Version"
)
_PREFLIGHT: Final = [
    (b"access-control-allow-methods", b"POST"),
    (b"access-control-allow-headers", _HEADERS),
    (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
]
_OF_REFUSAL: Final = frozenset({b"allow", b"content-type", b"content-length"})


class CrossOrigin:
    """Grants listed origins access to /mcp only."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = b""
        if scope["type"] == "http" and scope["path"] == PATH:
            origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        if origin.decode("latin-1").lower() not in self._origins:
            await self._app(scope, receive, send)
            return
        granted = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        # a preflight request that the gateway allows
        asks_first = False

        async def grant(message: Message) -> None:
            nonlocal asks_first
            if message["type"] == "http.response.start":
                asks_first = scope["method"] == "OPTIONS" and message["status"] == 405
                own, more = message["headers"], [(b"access-control-expose-headers", _EXPOSED)]
                if asks_first:
                    own, more = [header for header in own if header[0] not in _OF_REFUSAL], _PREFLIGHT
                    message = {**message, "status": 204}
                message = {**message, "headers": [*own, *granted, *more]}
            elif asks_first:
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, grant)
