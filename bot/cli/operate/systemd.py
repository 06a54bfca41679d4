"""`bot systemd CONFIG`: print or install the unit of one daemon, for the system or for one user. It starts nothing.

A hardened unit cannot see home folders and /tmp. The files there that the daemon needs (this installation, the config,
its strategies and candle files) are mounted read-only. A config that a unit could not start is refused, with what to
change.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from bot.cli.common.shared_options import json_option
from bot.cli.operate.systemd_unit import Unit, _control, _start, opening, unit_of
from bot.errors import BotError, Exit

EPILOG = """\b
Examples:
  bot systemd configs/paper.yaml
  bot systemd configs/paper.yaml --user --install
  sudo bot systemd /etc/bot/live.yaml --install
"""


@click.command("systemd", epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--user",
    "is_user",
    is_flag=True,
    help="Make a user unit (systemctl --user). It needs no root, but is less hardened.",
)
@click.option("--install", is_flag=True, help="Write the unit where systemd finds it, and print the next commands.")
@click.option("--print", "prints", is_flag=True, help="Print the unit (the default without --install).")
@click.option("--force", is_flag=True, help="Overwrite an existing unit that differs.")
@json_option("Name, path and text as one JSON object.")
def systemd(config: Path, *, is_user: bool, install: bool, prints: bool, force: bool, as_json: bool) -> int:
    """Print or install the systemd unit of CONFIG. systemd restarts and watches the daemon; secrets are passed as
    credentials.
    """
    unit = unit_of(config, is_user=is_user)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "name": unit.name,
                    "path": str(unit.path),
                    "text": unit.text,
                    "credentials": {name: str(file) for name, file in unit.credentials.items()},
                }
            )
        )
    elif prints or not install:
        click.echo(unit.text, nl=False)
    if install:
        written = _install(unit, force=force)
        if not as_json:
            click.echo(f"{unit.path} {'written' if written else 'is already up to date'}. Next:")
            for line in next_commands(unit):
                click.echo(f"  {line}")
            if unit.text.partition("\nExecReload=")[0].endswith(" --yes"):
                click.echo(f"The unit starts at any readiness grade. See first: bot ready {shlex.quote(str(config))}")
    elif not as_json:
        click.echo(
            f"# Install it with: bot systemd {shlex.quote(str(config))}{' --user' if is_user else ''} --install",
            err=True,
        )
    return int(Exit.DONE)


def next_commands(unit: Unit) -> Iterator[str]:
    """The commands for a person to run after the installation."""
    control = _control(is_user=unit.is_user)
    for name, file in unit.credentials.items():
        if not file.exists():
            yield (
                f"install -D -m 600 /dev/stdin {shlex.quote(str(file))}      # then type the secret {name}, Enter,"
                " Ctrl-D"
            )
    if unit.closed:
        yield f"{opening(unit)}      # the unit's own user must read these"
    if unit.is_user:
        yield "loginctl enable-linger                     # keeps it running while you are not logged in"
    yield f"{control} daemon-reload"
    yield f"{control} enable --now {unit.name}"
    yield f"{control} status {unit.name}"


def _install(unit: Unit, *, force: bool) -> bool:
    """Write the unit file. False if it exists already with the same text."""
    from bot.cli.common.files import write_atomic

    try:
        there = unit.path.read_text(encoding="utf-8")
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise BotError(f"cannot read {unit.path}: {error.strerror}") from None
    if there == unit.text:
        return False
    if there is not None and not force:
        raise Differs(f"{unit.path} exists with another text: compare it, then overwrite it with --force")
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BotError(f"cannot create the folder {unit.path.parent}: {error.strerror}") from None
    if not os.access(unit.path.parent, os.W_OK):
        raise BotError(
            f"only root can write to {unit.path.parent}: sudo {shlex.join((*_start(), *sys.argv[1:]))}, or make a user"
            " unit with --user"
        )
    write_atomic(unit.path, unit.text)
    return True


class Differs(BotError):
    """The file to be written exists with another text."""

    exit_code = Exit.USAGE
