"""Options that several commands share, each declared once. Where only the help differs, the command gives its text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from bot.cli.common.param_types import Sided

F = TypeVar("F", bound=Callable[..., Any])


def _know_listings(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Read the config's listing file before the options, which name markets."""
    from bot.checks.listing_file import use_listings_beside

    use_listings_beside(value)
    return value


# the config of a backtest
CONFIG_WITH_MARKETS = click.argument("config", type=click.Path(path_type=Path), is_eager=True, callback=_know_listings)


def json_option(help_text: str) -> Callable[[F], F]:
    """`--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def yes_option(help_text: str = "Do not ask.") -> Callable[[F], F]:
    """`--yes`."""
    return click.option("--yes", is_flag=True, help=help_text)


STATE_DIR: Final = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="The daemon's state directory.",
)
FLATTEN: Final = click.option("--flatten", is_flag=True, help="Close every position too.")
HOST: Final = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
INTERVAL: Final = click.option(
    "--interval", default="1m", show_default=True, metavar="1m", help="1m, 5m, 15m, 1h, 4h or 1d."
)
OPEN: Final = click.option("--open", "shown", is_flag=True, help="Show the page in the browser.")
WORKERS: Final = click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes of this machine."
)
SERVICE_DATA: Final = click.option(
    "--data", "data", multiple=True, metavar="FILE|FOLDER", help="Candles. Default: those of the service."
)
MAKER_FEES: Final = click.option(
    "--maker-fee",
    "maker_fees",
    type=Sided("rate", "rate", signed=True),
    multiple=True,
    help="Maker fee: 0.02%, or a rebate: -0.01%.",
)
LOTS: Final = click.option("--lot", "lots", type=Sided("size", "size"), multiple=True, help="Grid of sizes: 0.001.")
