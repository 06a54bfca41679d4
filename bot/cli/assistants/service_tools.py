"""`bot mcp` for a service: passes tool calls on as requests of the interface, and keeps no state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    import httpx

    from bot.service.mcp.tools import Sent, ToolReply

CONNECT_SECONDS: Final = 5.0
# longer than the service's slowest operation
ANSWER_SECONDS: Final = 30.0


def checked(base_url: str, reference: str) -> tuple[str, str]:
    """The service's address and the key.

    ConfigError for a bad address or reference. The process is made private before it holds a key.
    """
    from bot.client.http import checked_base_url
    from bot.config.document import Rejected
    from bot.config.references import References
    from bot.errors import ConfigError
    from bot.operating_system import harden

    base_url = checked_base_url(base_url)
    try:
        key = References(Path.cwd(), os.environ)(reference, "api_key")
    except Rejected as error:
        raise ConfigError(f"--key: {error}") from None
    harden()
    return base_url, key


async def serve(base_url: str, key: str) -> None:
    import httpx
    from mcp.server.stdio import stdio_server

    from bot.client.http import REPLY_BYTES_MAX
    from bot.http_limits import bounded_transport
    from bot.service.mcp.server import build

    await _check_key(base_url, key)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    headers = {"Authorization": f"Bearer {key}"}
    transport = bounded_transport(REPLY_BYTES_MAX, trusts_proxies=False)
    async with httpx.AsyncClient(headers=headers, timeout=timeout, transport=transport) as http:
        forwarder = _Forwarder(http, base_url)
        server = build(forwarder.forward, forwarder.docs, forwarder.scopes_of)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


async def _check_key(base_url: str, key: str) -> None:
    """Raise AccessLost if the service refuses the key.

    If the service does not answer, only print that, because it may start later.
    """
    import asyncio

    from bot.client import Client
    from bot.errors import AccessLost, ApiError

    try:
        async with asyncio.timeout(CONNECT_SECONDS), Client(base_url, key) as client:
            await client.limits()
    except AccessLost as error:
        problem = f"the service at {base_url} refuses the key: {error.message}; "
        fix = (
            "put a valid key where --key points (by default BOT_API_KEY); a sandbox issues one with POST"
            " /v1/sandbox/accounts"
        )
        raise AccessLost(error.code, problem + fix) from None
    except (ApiError, TimeoutError) as error:
        if isinstance(error, ApiError) and error.status == 403:
            # The key is valid but lacks the scope `read`. The service checks its scopes at each call.
            return
        why = error.message if isinstance(error, ApiError) else f"no answer within {CONNECT_SECONDS:g} s"
        click.echo(
            f"the service at {base_url} does not answer ({why}), so calls fail until it does;"
            " start it (bot sandbox), or give its address with --base-url",
            err=True,
        )


class _Forwarder:
    """Sends the request of a tool call to the service, once. Only the agent retries, with the same idempotencyKey."""

    def __init__(self, http: httpx.AsyncClient, base_url: str) -> None:
        self._http = http
        self._base_url = base_url
        self.docs = f"{base_url}/docs"

    async def forward(self, context: Any, sent: Sent) -> ToolReply:
        import httpx

        from bot.service.mcp.tools import ToolReply

        address = self._base_url + sent.target + (f"?{sent.query}" if sent.query else "")
        try:
            answer = await self._http.request(sent.method, address, content=sent.body, headers=dict(sent.headers))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return self._lost(f"the service at {self._base_url} cannot be reached", sent, submitted=False)
        except httpx.TransportError as error:
            text = (
                f"the answer was lost ({type(error).__name__}); repeat the call with the same idempotencyKey to learn"
                " the outcome"
            )
            return self._lost(text, sent, submitted="unknown")
        return ToolReply(
            answer.status_code, answer.content, {name.lower(): value for name, value in answer.headers.items()}
        )

    async def scopes_of(self, context: Any) -> frozenset[str] | None:
        """The key's scopes, read from the service; None if it does not answer."""
        from bot.service.mcp.tools import TOOLS, request_of

        reply = await self.forward(context, request_of(TOOLS["get_limits"], {}))
        # The key lacks the scope `read`, so the service does not list the others.
        if reply.status == 403:
            return frozenset({"trade", "trade:close_only", "outcomes"})
        if reply.status != 200:
            return None
        try:
            key = json.loads(reply.body)["key"]
            return None if key is None else frozenset(map(str, key["scopes"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def _lost(self, text: str, sent: Sent, *, submitted: bool | str) -> ToolReply:
        from bot.errors import Refusal
        from bot.service.mcp.tools import ToolReply, refused

        result = refused(Refusal("service_unavailable", text), self.docs, is_order=sent.is_order)
        if sent.is_order:
            result.body["error"]["orderSubmitted"] = submitted
        return ToolReply(503, json.dumps(result.body).encode(), {"x-request-id": result.meta["requestId"]})
