"""Web pages that may call /mcp: the answers a browser wants before and after such a call. Stands in front of the edge, which refuses all other pages."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.service.mcp_route import PATH

MAX_AGE_SECONDS: Final = 600
_HEADERS: Final = b"Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name, X-API-Version"
_EXPOSED: Final = (
    b"X-Request-Id, X-API-Version, Idempotency-Replayed, Retry-After, WWW-Authenticate, Mcp-Protocol-Version"
)


class AllowedPages:
    """Only for what is in the list, only at /mcp: everywhere else a page of another site sees nothing."""

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
        if scope["method"] == "OPTIONS":
            granted += [
                (b"access-control-allow-methods", b"POST"),
                (b"access-control-allow-headers", _HEADERS),
                (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": granted})
            await send({"type": "http.response.body", "body": b""})
            return

        async def grant(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", _EXPOSED)
                message = {**message, "headers": [*message["headers"], *granted, exposed]}
            await send(message)

        await self._app(scope, receive, grant)
