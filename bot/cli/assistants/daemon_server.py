"""`bot mcp --daemon`: an MCP server of the official SDK that passes tool calls on to a running daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import bot
from bot.cli.assistants.backtest_run import BacktestRefused, BacktestRuns
from bot.cli.assistants.daemon_tools import INSTRUCTIONS, TOOLS, DaemonTool, offered, why_absent
from bot.cli.common.daemon_client import Denied, NotRunning, Silent, find
from bot.errors import BotError, ConfigError
from bot.service.mcp.tools import harmless

Context = ServerRequestContext[Any, Any]


class ToolError(Exception):
    """The answer to a call that failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DaemonTools:
    """Calls the tools. Looks for the daemon at each call, because it may start, end or be restarted meanwhile."""

    def __init__(self, config: Path | None, state_dir: Path | None, backtests: BacktestRuns) -> None:
        self._config = config
        self._state_dir = state_dir
        self._backtests = backtests

    async def call(self, tool: DaemonTool, arguments: Mapping[str, Any], client: str) -> Any:
        """The daemon's answer, or ToolError."""
        try:
            if tool.name == "backtest":
                return await self._backtests.run(await self._config_path(), arguments)
            by = {} if tool.read_only else {"by": client}
            answer = await self._ask(tool, {**arguments, **by})
        except NotRunning as error:
            raise ToolError("not_running", f"{error}; a person starts it with bot run CONFIG") from None
        except Silent as error:
            again = "" if tool.read_only else "; repeat the call with the same key to learn what became of it"
            raise ToolError("no_answer", f"{error}{again}") from None
        except (Denied, ConfigError, BacktestRefused) as error:
            raise ToolError("invalid_input", str(error)) from None
        except BotError as error:
            raise ToolError("refused", str(error)) from None
        # Several daemons run.
        except click.ClickException as error:
            raise ToolError("which_daemon", error.format_message()) from None
        if answer.get("state") == "refused":
            raise ToolError(answer["code"], answer["message"])
        return answer

    async def _ask(self, tool: DaemonTool, values: Mapping[str, Any]) -> Any:
        body, query = (None, values) if tool.method == "GET" else (values, None)
        return await asyncio.to_thread(
            lambda: find(self._config, self._state_dir).ask(tool.method, tool.path, body, query)
        )

    async def _config_path(self) -> Path:
        if self._config is not None:
            return self._config
        status = await self._ask(TOOLS["status"], {})
        if not status.get("config"):
            raise BacktestRefused("the daemon does not say which config it runs: start bot mcp with --config")
        return Path(status["config"])


async def serve(config: Path | None, state_dir: Path | None, *, data: Sequence[str], can_propose: bool) -> None:
    """Serve until the assistant closes standard input. UsageError if the options name no daemon."""
    try:
        await asyncio.to_thread(find, config, state_dir)
    except NotRunning as error:
        click.echo(f"{error}; calls fail until it does", err=True)
    server = build(
        DaemonTools(config, state_dir, BacktestRuns(data)), offered(has_data=bool(data), can_propose=can_propose)
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def build(tools: DaemonTools, offer: Sequence[DaemonTool]) -> Server[Any]:
    """An MCP server that offers these tools."""
    rows = {tool.name: _row(tool) for tool in offer}

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(rows.values()))

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if params.name not in rows:
                raise ToolError(*why_absent(params.name))
            answer = await tools.call(TOOLS[params.name], params.arguments or {}, _client(ctx))
        except ToolError as error:
            return _result({"error": {"code": error.code, "message": str(error)}}, failed=True)
        return _result(answer)

    return Server(
        "bracketbot-daemon",
        version=bot.__version__,
        title="Trading daemon",
        instructions=INSTRUCTIONS,
        get_tool_input_schema={name: row.input_schema for name, row in rows.items()}.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _row(tool: DaemonTool) -> types.Tool:
    hints = types.ToolAnnotations(
        title=tool.title,
        read_only_hint=tool.read_only,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.note, input_schema=tool.input_schema, annotations=hints
    )


def _client(ctx: Context) -> str:
    """The assistant's own name for itself. It proves nothing and is only shown."""
    params = ctx.session.client_params
    return "an assistant" if params is None else f"{params.client_info.name} (MCP)"


def _result(answer: Any, *, failed: bool = False) -> types.CallToolResult:
    body = harmless(answer)
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=body, is_error=failed
    )
