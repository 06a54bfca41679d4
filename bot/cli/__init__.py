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

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    spare_imports()
    from bot.cli.app import main as run

    run()


def spare_imports() -> None:
    """Keep libraries from importing what no command uses. Only for a process that is ours."""
    # pydantic would read the metadata of every installed package to find plugins that could change how it checks data.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # httpx imports rich and pygments for a command line of its own. With None here that import fails, and httpx goes
    # without.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
