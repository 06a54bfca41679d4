"""POST /mcp: the gateway authenticates every POST.

Each tool call is then a request of its own through the same gateway.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.service.bodies import strict_json
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.http.gateway import check_content_type
from bot.service.http.routes_v1 import Router, respond
from bot.service.mcp.tools import Sent, ToolReply
from bot.service.operations.accounts import BODY_BYTES_MAX
from bot.service.operations.operations import Operations
from bot.service.security.auth import OWNER_SCOPES
from bot.wire.interface import Access, Operation

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH: Final = "/mcp"
METADATA: Final = "/.well-known/oauth-protected-resource/mcp"
SERVER_METADATA: Final = "/.well-known/oauth-authorization-server"
CONTENT_TYPE: Final = b"content-type"
# the rate limit of each POST; a tool with the same policy takes no second token
POLICY: Final = "default"

# Headers that a tool's request takes from its POST.
_CARRIED: Final = frozenset({b"host", b"authorization", b"x-api-version"})
# Headers that the POST's response takes from the tool's response.
_RETURNED: Final = frozenset({b"x-request-id", b"idempotency-replayed"})


class McpRoute:
    """Starts the MCP server at the first request, and stops it with the service."""

    def __init__(self, docs: str) -> None:
        self._docs = docs
        self._service: ASGIApp | None = None
        self._manager: StreamableHTTPSessionManager | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._closing = asyncio.Event()

    def lead_to(self, service: ASGIApp) -> None:
        """Set the application that executes the tools' requests: the gateway."""
        self._service = service

    async def answer(self, http: Request) -> Response:
        """Pass one POST to the MCP library."""
        headers = dict(http.scope["headers"])
        check_content_type(headers.get(CONTENT_TYPE), headers.get(b"content-encoding"))
        body = await _body(http)
        try:
            # Ambiguous JSON is refused, as on every route.
            message = strict_json.parse(body)
        except strict_json.BadJson as error:
            raise OperationRefused(invalid("body", str(error))) from None
        if isinstance(message, dict) and "id" in message and type(message["id"]) not in (str, int):
            # The MCP library would treat the message as a notification and send no response.
            raise OperationRefused(invalid("id", "must be a string or an integer", ["a string", "an integer"]))
        return _Handed(await self._open(), body)

    async def close(self) -> None:
        """Stop the MCP server."""
        self._closing.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _open(self) -> StreamableHTTPSessionManager:
        async with self._opening:
            if self._manager is None:
                # The import takes most of a second, so it runs in a thread.
                over_http = await asyncio.to_thread(_imported)
                manager = over_http(self._carry, self._docs, _scopes_of)
                ready = asyncio.Event()
                self._task = task = asyncio.create_task(self._hold(manager, ready), name="service-mcp")
                await ready.wait()
                # The start failed; the next request tries again.
                if task.done():
                    self._task = None
                    await task
                self._manager = manager
            return self._manager

    async def _hold(self, manager: StreamableHTTPSessionManager, ready: asyncio.Event) -> None:
        try:
            async with manager.run():
                ready.set()
                await self._closing.wait()
        finally:
            ready.set()

    async def _carry(self, context: Any, sent: Sent) -> ToolReply:
        """Send a tool's request through the gateway with the credential of its POST."""
        assert self._service is not None
        outer: Scope = context.request.scope
        headers = [(name, value) for name, value in outer["headers"] if name in _CARRIED]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.headers.items()]
        scope: Scope = {
            "type": "http",
            "asgi": outer["asgi"],
            "http_version": "1.1",
            "method": sent.method,
            "scheme": outer["scheme"],
            "path": sent.path,
            "raw_path": sent.target.encode("ascii"),
            "query_string": sent.query.encode("ascii"),
            "root_path": "",
            "headers": headers,
            "client": outer.get("client"),
            "server": outer.get("server"),
            "state": {},
            "paid": POLICY,
        }
        status: int = 500
        returned: dict[bytes, bytes] = {}
        parts: list[bytes] = []
        unread = True

        async def receive() -> Message:
            nonlocal unread
            if not unread:
                return {"type": "http.disconnect"}
            unread = False
            return {"type": "http.request", "body": sent.body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, returned
            if message["type"] == "http.response.start":
                status = message["status"]
                returned = {bytes(name).lower(): bytes(value) for name, value in message["headers"]}
            else:
                parts.append(message.get("body", b""))

        try:
            await self._service(scope, receive, send)
        except ConnectionResetError:
            # an injected fault: the response is lost
            status, returned, parts = 500, {}, []
        outer["mcp.returned"] = [(name, value) for name, value in returned.items() if name in _RETURNED]
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in returned.items()}
        return ToolReply(status, b"".join(parts), named)


async def _scopes_of(context: Any) -> frozenset[str]:
    """The scopes of the caller of the POST."""
    scopes: frozenset[str] = context.request.scope["call"].principal.scopes
    return scopes


def _imported() -> Any:
    # imported on first use, because the SDK needs much memory
    from bot.service.mcp.server import over_http

    return over_http


async def _body(http: Request) -> bytes:
    """The whole body, with the usual size limit."""
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise OperationRefused(invalid("body", f"is larger than {BODY_BYTES_MAX} bytes"), 413)
        parts.append(part)
    return b"".join(parts)


class _Handed(Response):
    """A response that the MCP library writes."""

    def __init__(self, manager: StreamableHTTPSessionManager, body: bytes) -> None:
        super().__init__()
        self._manager = manager
        self._read = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread = True
        if CONTENT_TYPE not in dict(
            scope["headers"]
            # The service treats it as JSON, but the MCP library requires the header.
        ):
            scope = {**scope, "headers": [*scope["headers"], (CONTENT_TYPE, b"application/json")]}

        async def again() -> Message:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": self._read, "more_body": False}
            return await receive()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *scope.get("mcp.returned", [])]
            await send(message)

        await self._manager.handle_request(scope, again, answer)


def add_mcp(router: Router, operations: Operations, origins: frozenset[str] = frozenset()) -> McpRoute:
    """Add /mcp and its OAuth metadata. `origins`: other origins whose pages may call it."""
    base = operations.base_url
    mcp_route = McpRoute(operations.docs)

    protocol: Operation[Any] = Operation(
        "POST", PATH, Access.ANY, POLICY, is_rpc=True, metadata=f"{base}{METADATA}", origins=origins | {base.lower()}
    )

    @router.route(protocol)
    async def mcp(http: Request) -> Response:
        return await mcp_route.answer(http)

    @router.route(Operation("GET", METADATA, Access.NONE, "public"))
    async def protected_resource(http: Request) -> Response:
        return respond(
            ServiceAnswer.ok(
                {
                    "resource": f"{base}{PATH}",
                    "resource_name": "Trading service",
                    "authorization_servers": [base],
                    "scopes_supported": [*OWNER_SCOPES, "trade:close_only"],
                    "bearer_methods_supported": ["header"],
                    "resource_documentation": operations.docs,
                }
            )
        )

    @router.route(Operation("GET", SERVER_METADATA, Access.NONE, "public"))
    async def authorization_server(http: Request) -> Response:
        # There is no OAuth sign-in; clients get keys from the interface.
        return respond(
            ServiceAnswer.ok(
                {
                    "issuer": base,
                    "response_types_supported": [],
                    "grant_types_supported": [],
                    "scopes_supported": [*OWNER_SCOPES, "trade:close_only"],
                    "service_documentation": operations.docs,
                }
            )
        )

    return mcp_route
