"""The tools as an MCP server of the official SDK.

Imported at the first MCP request, because the SDK needs much memory.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from bot.service.bodies.responses import OperationRefused
from bot.service.mcp.tools import (
    INSTRUCTIONS,
    TOOLS,
    Sent,
    Tool,
    ToolReply,
    ToolResult,
    input_schema,
    refused,
    request_of,
    result_of,
    tools_of,
    unknown,
)
from bot.service.operations.accounts import BODY_BYTES_MAX
from bot.wire.headers import DESCRIPTION_VERSION
from bot.wire.interface import Access

Context = ServerRequestContext[Any, Any]
# sends a request to the service with the caller's credential
Send = Callable[[Context, Sent], Awaitable[ToolReply]]
# the caller's scopes; None: unknown
ScopesOf = Callable[[Context], Awaitable[frozenset[str] | None]]

SERVER_NAME = "bracketbot"
# How a tool's description names the scope that its operation needs.
SCOPES = {
    Access.READ: "read",
    Access.TRADE: "trade",
    Access.SHRINK: "trade, trade:close_only or (event markets) outcomes",
}


def build(send: Send, docs: str, scopes_of: ScopesOf) -> Server[Any]:
    """An MCP server that sends the tools' requests with `send`. `docs`: the base URL of error documentation."""
    offered = {tool.name: _offered(tool) for tool in TOOLS.values()}
    schemas = {name: tool.input_schema for name, tool in offered.items()}

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[offered[tool.name] for tool in tools_of(await scopes_of(ctx))])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            return _said(refused(unknown(params.name), docs))
        try:
            request = request_of(tool, params.arguments or {})
        except OperationRefused as no:
            return _said(refused(no.refusal, docs, is_order=tool.operation.is_order))
        return _said(result_of(await send(ctx, request), request, docs))

    return Server(
        SERVER_NAME,
        version=DESCRIPTION_VERSION,
        title="Trading service",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def over_http(send: Send, docs: str, scopes_of: ScopesOf) -> StreamableHTTPSessionManager:
    """The server over HTTP: no sessions, one JSON body per response. The gateway checks caller, Host and Origin."""
    return StreamableHTTPSessionManager(
        build(send, docs, scopes_of),
        json_response=True,
        stateless=True,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=BODY_BYTES_MAX,
    )


def _offered(tool: Tool) -> types.Tool:
    needs = SCOPES.get(tool.operation.access)
    scope = "Needs no scope." if needs is None else f"Needs the scope {needs}."
    hints = types.ToolAnnotations(
        title=tool.title,
        read_only_hint=tool.read_only,
        destructive_hint=tool.destructive,
        idempotent_hint=tool.idempotent,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=f"{tool.note} {scope} ({tool.operation.method} {tool.operation.path})",
        input_schema=input_schema(tool),
        annotations=hints,
    )


def _said(result: ToolResult) -> types.CallToolResult:
    text = json.dumps(result.body, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=result.body,
        is_error=result.failed,
        meta=result.meta,
    )
