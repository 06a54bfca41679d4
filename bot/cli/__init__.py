"""The command `bot`: parses, builds, calls, and ends with an exit code. No rule of trading lives here.

Start with `app`: the group, the list of commands, and how a failure becomes a message and an exit code. Each folder
holds the
commands of one section of `bot --help`; `common` holds what several of them use. The modules that are not commands:

- `common/daemon_client` finds the daemon that a command means and asks its control socket.
- `run/embedded_service` starts, finds and stops the service of `base_url: embedded`; `run/run_daemon` runs the daemon
beside it.
- `common/event_lines` turns log events into lines for people.

A command is imported when it is called, so that `bot --help` starts quickly. This package may import every other one.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    from bot.cli.app import main as run

    run()
