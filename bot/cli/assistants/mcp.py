"""`bot mcp`: tools for an assistant over standard input and output.

It keeps no state; what it serves runs elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

EPILOG = """\b
Examples:
  BOT_API_KEY=... bot mcp
  bot mcp --base-url https://trading.example.com --key '${file:~/.config/bot/key}'
  bot mcp --daemon --config bot.yaml
  bot mcp --daemon --config bot.yaml --data candles --propose

\b
For an MCP host with a config file:
  {"mcpServers": {"trading": {"command": "bot", "args": ["mcp"], "env": {"BOT_API_KEY": "..."}}}}
  {"mcpServers": {"my-daemon": {"command": "bot", "args": ["mcp", "--daemon", "--config", "/home/me/bot.yaml"]}}}

\b
Without --daemon it offers the service's own tools, which place orders with the key. At the start it calls the service
once. If the service refuses the key, it ends with exit code 7. If the service does not answer, it prints that on
standard error and goes on.
With --daemon it offers tools of a running daemon: status, positions, approvals, explain; backtest with --data; propose
with --propose. No tool places, approves or closes anything. A proposal passes the strategy's limits and then waits for
a person (bot approvals). Calls fail with a clear error while the daemon does not run.
"""
OF_SERVICE: Final = ("base_url", "reference")
OF_DAEMON: Final = ("config", "state_dir", "data", "can_propose")


@click.command(epilog=EPILOG)
@click.option("--base-url", default="http://127.0.0.1:8700", show_default=True, metavar="URL", help="The service.")
@click.option(
    "--key",
    "reference",
    default="${env:BOT_API_KEY}",
    show_default=True,
    metavar="REFERENCE",
    help="Reference to the API key: ${credential:NAME}, ${file:PATH} or ${env:NAME}; never the key itself.",
)
@click.option(
    "--daemon", "is_daemon", is_flag=True, help="Offer the tools of a running daemon, not those of a service."
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="CONFIG", help="The daemon's config file."
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="The daemon's state directory."
)
@click.option(
    "--data",
    multiple=True,
    metavar="FILE|FOLDER",
    help="Candles that the assistant may use for backtests, as in bot backtest. Repeatable. Default: no backtests.",
)
@click.option(
    "--propose", "can_propose", is_flag=True, help="The assistant may propose entries. Each waits for a person."
)
@click.pass_context
def mcp(ctx: click.Context, /, *, is_daemon: bool, **given: Any) -> None:
    """Offer the tools of a service or of a running daemon to an assistant, over standard input and output.

    It ends when the assistant ends.
    """
    import asyncio

    wrong = OF_SERVICE if is_daemon else OF_DAEMON
    for option in ctx.command.params:
        name = option.name or ""
        if name in wrong and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            problem = (
                "is for a service, so it cannot stand beside --daemon" if is_daemon else "is for a daemon: add --daemon"
            )
            raise click.UsageError(f"{option.opts[0]} {problem}")
    if is_daemon:
        from bot.cli.assistants import daemon_server

        asyncio.run(
            daemon_server.serve(
                given["config"], given["state_dir"], data=given["data"], can_propose=given["can_propose"]
            )
        )
        return
    from bot.cli.assistants import service_tools

    base_url, key = service_tools.checked(given["base_url"], given["reference"])
    asyncio.run(service_tools.serve(base_url, key))
