"""The first hour by a stopwatch: `python -m tests.bench.newcomer [--python PYTHON] [--candles FILE] [--keep FOLDER]`.

It runs what README and the tutorial say, in a fresh clone of this repository and a new virtual environment: (a) from
the clone to the first trade of the demo; (b) from the clone to a strategy of one's own, backtested, with its report. It
prints each command with its seconds. Packages come from where the installer finds them: the first run on a machine also
downloads them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# the longest wait for a line of output
LINE_S = 600


class Stopwatch:
    """Runs commands and prints their seconds."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.total_s = 0.0
        self.count = 0
        self._environ = environ

    def run(self, command: str, folder: Path, *, until: str | None = None) -> str:
        """The output of a command.

        With `until`: up to the first line that has this text; then the command is interrupted.
        """
        began = time.monotonic()
        process = subprocess.Popen(
            shlex.split(command),
            cwd=folder,
            env=self._environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = []
        is_seen = until is None
        for line in process.stdout:
            lines.append(line)
            if until is not None and until in line:
                is_seen = True
                break
        seconds = time.monotonic() - began
        if until is not None:
            os.killpg(process.pid, signal.SIGINT)
            process.stdout.read()
        code = process.wait(LINE_S)
        if not is_seen or (until is None and code != 0):
            sys.exit(f"{command}: exit code {code}\n{''.join(lines)[-3000:]}")
        self.total_s += seconds
        self.count += 1
        print(f"  {seconds:7.1f} s  {command}" + (f"   (to the first line with {until.strip()!r})" if until else ""))
        return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="", help="for make: PYTHON=...")
    parser.add_argument(
        "--candles", type=Path, help="a file of BTC candles to import; without it candles are generated"
    )
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bot-newcomer-") as temporary:
        folder = Path(temporary) if given.keep is None else given.keep
        folder.mkdir(exist_ok=True)
        environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        python = f" PYTHON={shlex.quote(given.python)}" if given.python else ""
        clone = folder / "bracketbot"

        print("(a) from the clone to the first trade")
        watch = Stopwatch(environ)
        watch.run(f"git clone --quiet {shlex.quote(str(REPOSITORY))} bracketbot", folder)
        watch.run(f"make demo{python}", clone, until=" fill ")
        print(f"  {watch.total_s:7.1f} s  in all, {watch.count} commands")

        print("(b) then to a strategy of one's own, backtested, with its report")
        own = Stopwatch(environ)
        bot = ".venv/bin/bot"
        own.run(f"{bot} init my-bot --template breakout", clone)
        project = clone / "my-bot"
        bot = f"../{bot}"
        if given.candles is not None:
            own.run(f"{bot} data import BTC={shlex.quote(str(given.candles.resolve()))}", project)
        else:
            own.run(f"{bot} data gen BTC --from 2025-01-01 --days 30", project)
        own.run(f"{bot} check bot.yaml", project)
        own.run(f"{bot} backtest bot.yaml --data data", project)
        (run,) = (project / "runs").iterdir()
        own.run(f"{bot} report {run.relative_to(project)}", project)
        page = run / "report.html"
        print(
            f"  {own.total_s:7.1f} s  in all, {own.count} commands; the report has {page.stat().st_size / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
