"""The command `bot`: parses, builds, calls, and ends with an exit code. No rule of trading lives here.

`app` is the group and the last word on failures; one file holds commands that belong together: `begin`, `project` and `doctor`
before a start; `demo`, `run` and `unit` start; `look` tells of a running daemon, `operate` asks it for something, `explain` reads
its journal, `kill` needs none; `session`, `report`, `replay` and `data` are about simulated time; `sandbox`, `mcp`.
`place` finds the daemon that is meant and asks its control socket; `judging` judges a config as a whole.
`embedded` starts or finds the service of `base_url: embedded`, `narrator` turns events into lines for people, `play` runs the
daemon beside that service. Commands are imported when they are called, so that `bot --help` costs little.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    from bot.cli.app import main as run

    run()
