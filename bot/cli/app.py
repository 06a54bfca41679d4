"""The group `bot`: the list of its commands, and how each ends.

A failure becomes one message and an exit code, never a traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final, NamedTuple, NoReturn

import click

from bot import __version__
from bot.terminal import guarded


class Entry(NamedTuple):
    """Module and function of a command, and its line in `bot --help`, which is shown without importing the command."""

    module: str
    name: str
    summary: str


# The commands in the order of `bot --help`.
FAMILIES: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Start here": {
        "demo": Entry(
            "bot.cli.start.demo", "demo", "Trade play money now: starts the service, an account and the daemon."
        ),
        "paper": Entry(
            "bot.cli.start.paper", "paper", "Trade play money at the prices of a real exchange, in one command."
        ),
        "init": Entry("bot.cli.start.init", "init", "Create a project: config, strategy, test and unit."),
        "new-strategy": Entry("bot.cli.start.init", "new_strategy", "Create a strategy and its test."),
        "convert": Entry("bot.cli.freqtrade.command", "convert", "Write a strategy from one of freqtrade."),
        "strategies": Entry("bot.cli.start.config", "strategies", "List the strategies and their params."),
        "check": Entry("bot.cli.start.config", "check", "Check a config, and call its strategies on generated bars."),
        "config": Entry(
            "bot.cli.start.config", "config", "Show a config with its defaults, compare two, or print the JSON Schema."
        ),
        "doctor": Entry(
            "bot.cli.start.doctor", "doctor", "Check everything that a run needs; say how to fix what fails."
        ),
        "ready": Entry(
            "bot.cli.start.readiness", "ready", "Grade how ready a config is for money, by the evidence that exists."
        ),
        "docs": Entry("bot.cli.docs.docs", "docs", "Show the documentation in a browser, without a network."),
    },
    "Run": {
        "run": Entry("bot.cli.run.run", "run", "Run the daemon of a config in the foreground."),
        "systemd": Entry("bot.cli.operate.systemd", "systemd", "Print or install the systemd unit of a config."),
        "launchd": Entry(
            "bot.cli.operate.launchd", "launchd", "Print or install the launchd agent of a config (macOS)."
        ),
        "stop": Entry("bot.cli.operate.operate", "stop", "End the daemon and its embedded service, as SIGTERM does."),
        "reload": Entry(
            "bot.cli.operate.operate", "reload_config", "Reload the config and its strategies without a restart."
        ),
        "services": Entry(
            "bot.cli.run.services", "services", "List the running embedded services; stop those without a daemon."
        ),
    },
    "Operate": {
        "status": Entry(
            "bot.cli.operate.status", "status", "Show the state of the daemon, its account and its profit."
        ),
        "fleet": Entry("bot.cli.operate.fleet", "fleet", "Show all daemons of this machine; pause or kill some."),
        "audit": Entry("bot.cli.audit.audit", "audit", "Compare the books of a service with its exchange."),
        "positions": Entry("bot.cli.operate.status", "positions", "List the open positions, each with its stop."),
        "trades": Entry("bot.cli.operate.trades", "trades", "List the newest trades with their profit."),
        "orders": Entry("bot.cli.operate.status", "orders", "List the orders that rest at the service."),
        "events": Entry("bot.cli.operate.status", "events", "List the events of the account, from the journal."),
        "dashboard": Entry(
            "bot.cli.operate.dashboard", "dashboard", "Show a daemon in the browser; needs the extra `ui`."
        ),
        "logs": Entry("bot.cli.operate.status", "logs", "Show the daemon's log."),
        "explain": Entry("bot.cli.operate.explain", "explain", "Trace one order from its bar to its exit."),
        "export": Entry("bot.cli.operate.explain", "export", "Export the trades as CSV or JSON."),
        "pause": Entry("bot.cli.operate.operate", "pause", "Stop new entries of one strategy or of all."),
        "resume": Entry("bot.cli.operate.operate", "resume", "Allow entries again."),
        "reconcile": Entry(
            "bot.cli.operate.operate", "reconcile", "Compare the daemon's record with the service, and repair it."
        ),
        "approvals": Entry(
            "bot.cli.operate.approvals", "approvals", "List entries that wait for a person; approve or refuse one."
        ),
        "telegram": Entry(
            "bot.cli.operate.telegram", "telegram", "Answer Telegram chats: status, pause, resume, kill."
        ),
        "backup": Entry(
            "bot.cli.operate.backup", "backup", "Copy a daemon's state, config and strategies, also while it runs."
        ),
        "restore": Entry("bot.cli.operate.restore", "restore", "Check a backup, and put it back."),
        "close": Entry("bot.cli.operate.close", "close", "Close a position, or a fraction of it, at the market."),
        "kill": Entry("bot.cli.operate.kill", "kill", "Activate the account's kill switch; needs no daemon."),
    },
    "Sandbox": {
        "sandbox": Entry("bot.cli.sandbox.sandbox", "sandbox", "Run the trading service alone, on play money."),
        "exchange": Entry(
            "bot.cli.exchange.exchange",
            "exchange",
            "Read an account at Hyperliquid; run a local exchange for tests of bots.",
        ),
    },
    "Backtests": {
        "backtest": Entry(
            "bot.cli.backtest.backtest", "backtest", "Run a config over recorded candles in simulated time."
        ),
        "sweep": Entry("bot.cli.backtest.sweep", "sweep", "Try many params of a config, here or on a cluster."),
        "drill": Entry("bot.cli.backtest.drill", "drill", "Run a config through seeded worlds of faults."),
        "report": Entry(
            "bot.cli.backtest.report",
            "report",
            "Write the HTML report of a backtest: equity, trades, costs, assumptions.",
        ),
        "compare": Entry("bot.cli.backtest.report", "compare", "Compare two backtests and what was run in them."),
        "replay": Entry(
            "bot.cli.backtest.replay",
            "replay",
            "Repeat a recorded run of a daemon or backtest, and explain differences.",
        ),
        "proof": Entry(
            "bot.cli.backtest.proof", "proof", "Prove that a day of a daemon was what the test does; show the trend."
        ),
        "whatif": Entry(
            "bot.cli.backtest.what_if", "whatif", "Show what other guardians would have changed in a real history."
        ),
    },
    "Data": {
        "data": Entry("bot.cli.data.data", "data", "Import, audit, generate, list and pull candles for backtests."),
        "markets": Entry(
            "bot.cli.data.markets", "markets", "List the markets of an exchange, or of the embedded service."
        ),
    },
    "Agents": {"mcp": Entry("bot.cli.assistants.mcp", "mcp", "Connect an assistant to a running service or daemon.")},
}
COMMANDS: Final[Mapping[str, Entry]] = {name: entry for family in FAMILIES.values() for name, entry in family.items()}

# What people type for a command whose name is not near in letters.
MEANT: Final[Mapping[str, str]] = {
    "start": "run",
    "live": "run",
    "trade": "run",
    "up": "run",
    "down": "stop",
    "quit": "stop",
    "balance": "status",
    "account": "status",
    "portfolio": "positions",
    "flatten": "close",
    "sell": "close",
    "exit": "close",
    "history": "trades",
    "profit": "trades",
    "optimize": "sweep",
    "optimise": "sweep",
    "hyperopt": "sweep",
    "download": "data",
    "import": "data",
    "panic": "kill",
    "ui": "dashboard",
    "web": "dashboard",
    "validate": "check",
    "version": "--version",
    "help": "--help",
}

ERROR: Final = 1

EPILOG: Final = """\b
Two commands to begin with:
  bot demo --for 60s
  bot check configs/paper.yaml

\b
Exit codes: 0 done, 1 error, 2 wrong usage or not found, 3 daemon not running, 4 config error,
5 timeout, 6 unsafe state, 7 refused by the service, 130 stopped by Ctrl-C before it was done.
"""


class Lazy(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for family, commands in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl([(name.ljust(widest), entry.summary) for name, entry in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            meant = MEANT.get(args[0].lower())
            near = [meant] if meant is not None else difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint} There are: {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bot", message="%(prog)s %(version)s")
def bot() -> None:
    """Bracketbot: bracketed orders, a dead-man heartbeat, and the trading service itself embedded for play money."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    _open_standard_streams()
    code = call(args)
    _drop_unread_errors()
    sys.exit(code)


def _drop_unread_errors() -> None:
    """Drop what standard error still holds if its reader has ended: Python would fail to flush it and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _open_standard_streams() -> None:
    """Open each closed standard stream on /dev/null, so that no file or socket gets its number.

    Let stdout print paths that are not UTF-8.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        import fcntl

        # Child processes inherit it, too.
        fcntl.fcntl(number, fcntl.F_SETFD, 0)
    os.close(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")


def call(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Errors are printed on standard error."""
    with guarded():
        return _call(args)


def _call(args: Sequence[str] | None) -> int:
    try:
        result: Any = bot.main(args=args, prog_name="bot", standalone_mode=False)
    except click.ClickException as error:
        error = _with_config_hint(error)
        # If standard error cannot be written, the exit code still reports the failure.
        with suppress(OSError):
            error.show()
        return error.exit_code
    except click.Abort:
        # imported here: a help text needs no errors
        from bot.errors import Exit

        with suppress(OSError):
            click.echo("stopped before it was done", err=True)
        return int(Exit.STOPPED)
    except Exception as error:  # noqa: BLE001 - every other exception becomes one line and an exit code
        # imported here: a help text needs neither errors nor logs
        from bot.cli.common import crash_report

        # The reader of our output has ended (`bot strategies | head`).
        if isinstance(error, BrokenPipeError):
            crash_report.reader_has_gone(error)
            return ERROR
        return crash_report.print_error(error)
    return result if isinstance(result, int) else 0


def _with_config_hint(error: click.ClickException) -> click.ClickException:
    """Add a hint if the config was given as an argument (`bot status my.yaml`) to a command that takes it as
    --config.
    """
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None or not any("--config" in param.opts for param in ctx.command.params):
        return error
    extra = re.search(r"unexpected extra argument \((\S+\.ya?ml)\)", error.message)
    if extra is None:
        return error
    return click.UsageError(f"{error.message}: give the config as --config {extra[1]}", ctx)
