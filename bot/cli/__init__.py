"""The command `bot`: parses, builds, calls, and ends with an exit code. No rule of trading lives here.

`app` is the group and the last word on failures; one file holds one family of commands (demo, run, sandbox, project).
`embedded` starts or finds the service of `base_url: embedded`, `narrator` turns events into lines for people, `play` runs the
daemon beside that service. Commands are imported when they are called, so that `bot --help` costs little.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script."""
    from bot.cli.app import main as run

    run()
