"""`bot ready`: a checklist before real money. Each line has its evidence and the command that would raise it; together
they give a grade.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bot.cli.common.shared_options import json_option

if TYPE_CHECKING:
    from bot.config import Settings

EPILOG: Final = """\b
Examples:
  bot ready configs/paper.yaml
  bot ready live.yaml --paper configs/paper.yaml
  bot ready live.yaml --test-notice

\b
Backtests, sweeps and drills of the config keep what they came to in its state directory; so do proofs, backups and test
notices. A line is known, old (of another version of the config or of a strategy, or too long ago) or not known; only
what is known counts. --paper is kept too, and need not be given again. The rule of the grade is in docs/readiness.md.
Exit codes: 0 grade C or better, 1 below C, 4 the config cannot be used.
"""
MESSAGE: Final = "This is a test notice of `bot ready`. Nothing has happened; notices reach this address."


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--paper",
    type=click.Path(path_type=Path, exists=True),
    default=None,
    metavar="CONFIG|DIR",
    help="The config, or the state directory, of the daemon that has traded this on play money.",
)
@click.option("--test-notice", is_flag=True, help="Send a test notice to each address of the config first.")
@json_option("Grade and lines as one JSON object.")
def ready(config: Path, *, paper: Path | None, test_notice: bool, as_json: bool) -> int:
    """Grade how ready CONFIG is for real money, from A to F, and say what would raise the grade most."""
    from bot.checks.config_check import checked_without_secrets
    from bot.checks.evidence import keep_evidence, version_of
    from bot.cli.operate.credentials import key_of
    from bot.cli.run.readiness_check import readiness_for, readiness_text
    from bot.errors import ConfigError, Exit

    settings, _ = checked_without_secrets(config)
    if paper is not None:
        keep_evidence(settings.state_dir, "paper", version_of(settings), {"folder": str(_paper_folder(paper))})
    if test_notice:
        _send_test_notice(settings, config)
    api_key = None
    with suppress(ConfigError):
        api_key = None if settings.account.embedded else key_of(config)
    readiness, _ = readiness_for(settings, config, api_key)
    if as_json:
        click.echo(json.dumps(readiness.plain()))
    else:
        for line in readiness_text(readiness):
            click.echo(line)
    return int(Exit.DONE if readiness.is_enough else Exit.ERROR)


def _paper_folder(given: Path) -> Path:
    from bot.cli.common.daemon_client import folder_of
    from bot.runtime.journal.queries import FILE, is_there

    folder = (given if given.is_dir() else folder_of(given)).absolute()
    if not is_there(folder / FILE):
        raise click.UsageError(f"--paper {given}: there is no journal in {folder}: no daemon has run there")
    return folder


def _send_test_notice(settings: Settings, config: Path) -> None:
    """Send a message to each address through apprise, as the daemon does, and keep which ones accepted it."""
    from bot.checks.evidence import keep_evidence, version_of
    from bot.cli.run.readiness_check import addresses_of
    from bot.errors import ConfigError
    from bot.runtime.alerts.messages import Message
    from bot.runtime.alerts.notifier import SEND_S, AppriseTarget, key_of

    addresses = addresses_of(settings, config)
    if not addresses:
        raise ConfigError(f"{config}: has no section notify, so there is no address for a test notice: add one")
    unread = [reference for reference, url in addresses if url is None]
    if unread:
        raise ConfigError(f"{config}: {', '.join(unread)} cannot be read here: ask as the daemon's user, or as root")

    async def sent(target: AppriseTarget) -> bool:
        try:
            async with asyncio.timeout(SEND_S):
                return await target.send(Message("info", f"Test notice of {settings.name}", MESSAGE))
        except TimeoutError:
            return False

    targets = {key_of(url): AppriseTarget(url, place) for place, (_, url) in enumerate(addresses) if url is not None}
    accepted = {key: asyncio.run(sent(target)) for key, target in targets.items()}
    keep_evidence(settings.state_dir, "test_notice", version_of(settings), {"targets": accepted})
