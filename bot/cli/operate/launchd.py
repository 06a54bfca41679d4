"""`bot launchd CONFIG`: print or install the launchd agent of one daemon, for a user of macOS. It starts nothing.

launchd restarts the daemon after a failure and starts it at the user's login. It has no watchdog, no credentials and no
limits as a systemd unit has them. macOS is untried: tests read the file with `plistlib` only.
"""

from __future__ import annotations

import json
import os
import plistlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.shared_options import json_option
from bot.cli.operate.systemd_unit import Unit, _credential_name, _markets_python, _start, run_flags
from bot.errors import ConfigError, Exit
from bot.market_data.feeder_client import PYTHON as MARKETS_PYTHON

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.config.references import Noted

EPILOG = """\b
Examples:
  bot launchd configs/paper.yaml
  bot launchd configs/paper.yaml --install
"""

# in the user's home
AGENTS: Final = Path("Library/LaunchAgents")
LOG: Final = "launchd.log"
# launchd knows no exit code that forbids a restart, so a config that is refused is tried again after so long
RESTART_S: Final = 30
STOP_S: Final = 20
FILES_MAX: Final = 4_096
# launchd sets these for the agents of a user
USERS_OWN: Final = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR")


@click.command("launchd", epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--install", is_flag=True, help="Write the agent where launchd finds it, and print the next commands.")
@click.option("--force", is_flag=True, help="Overwrite an existing agent that differs.")
@json_option("Name, path and text as one JSON object.")
def launchd(config: Path, *, install: bool, force: bool, as_json: bool) -> int:
    """Print or install the launchd agent of CONFIG, for macOS. launchd starts and restarts the daemon."""
    from bot.cli.operate.systemd import _install

    agent = agent_of(config)
    if as_json:
        click.echo(json.dumps({"name": agent.name, "path": str(agent.path), "text": agent.text}))
    elif not install:
        click.echo(agent.text, nl=False)
        click.echo(f"# Install it with: bot launchd {shlex.quote(str(config))} --install", err=True)
    if install:
        written = _install(agent, force=force)
        if not as_json:
            click.echo(f"{agent.path} {'written' if written else 'is already up to date'}. Next:")
            for line in next_commands(agent):
                click.echo(f"  {line}")
    return int(Exit.DONE)


def agent_of(config: Path) -> Unit:
    """The agent that runs this config with this installation. ConfigError if launchd could not start the config."""
    from bot.checks.config_check import checked_and_noted
    from bot.config.state_folder import home

    settings, noted = checked_and_noted(config)
    _check(config, settings, noted)
    name = f"bracketbot.{settings.name}"
    text = plistlib.dumps(_keys(config.resolve(), settings, name), sort_keys=False).decode()
    return Unit(name, text, home() / AGENTS / f"{name}.plist", is_user=True, credentials={})


def next_commands(agent: Unit) -> Iterator[str]:
    """The commands for a person to run after the installation. `bot stop` ends the daemon until the next login."""
    domain = f"gui/{os.getuid()}"
    yield f"launchctl bootout {domain}/{agent.name}      # only if an older agent of this name runs"
    yield f"launchctl bootstrap {domain} {shlex.quote(str(agent.path))}"
    yield f"launchctl print {domain}/{agent.name}"


def _keys(config: Path, settings: Settings, name: str) -> dict[str, Any]:
    environment = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
    if shells := os.environ.get("XDG_STATE_HOME", ""):
        environment["XDG_STATE_HOME"] = shells
    if (python := _markets_python(settings)) is not None:
        environment[MARKETS_PYTHON] = str(python)
    log = str(settings.state_dir / LOG)
    return {
        "Label": name,
        "ProgramArguments": [*_start(), "run", str(config), *run_flags(settings)],
        "EnvironmentVariables": environment,
        "WorkingDirectory": str(config.parent),
        "RunAtLoad": True,
        # `bot stop` ends it with 0, and then it stays ended.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": STOP_S,
        # Otherwise macOS delays the timers of a process without a window.
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": FILES_MAX, "Core": 0},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }


def _check(config: Path, settings: Settings, noted: Noted) -> None:
    """Raise ConfigError with everything that would keep launchd from starting the daemon."""
    from bot.checks.config_check import missing_packages, needs_package
    from bot.config.state_folder import home

    problems = []
    for kind, name in noted.secrets:
        if kind != "file":
            file = home() / ".config" / "bot" / _credential_name(name)
            problems.append(f"${{{kind}:{name}}} is not given by launchd: write ${{file:{file}}} instead")
    problems += [
        f"${{env:{name}}} is not set by launchd: write the value itself"
        for name in dict.fromkeys(noted.plain)
        if name not in USERS_OWN
    ]
    problems += [f"{place}: {needs_package(place, name)}" for place, name in missing_packages(settings)]
    if problems:
        raise ConfigError(
            f"{config}: launchd could not start this config\n" + "\n".join(f"  {problem}" for problem in problems)
        )
