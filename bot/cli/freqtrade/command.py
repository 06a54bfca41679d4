"""`bot convert freqtrade`: a strategy of freqtrade as a strategy and a config of this project."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

import click

from bot.cli.common.shared_options import json_option

CONVERT = """\b
Examples:
  bot convert freqtrade MyStrategy.py
  bot convert freqtrade MyStrategy.py -o my-bot
"""


@click.group(epilog=CONVERT)
def convert() -> None:
    """Write a strategy of this project from one of another program."""


@convert.command(epilog=CONVERT)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Project to write into.  [default: this folder]",
)
@json_option("Files and findings as one JSON object.")
def freqtrade(file: Path, folder: Path, *, as_json: bool) -> int:
    """Write the freqtrade strategy in FILE as strategies/NAME.py and NAME.yaml. FILE is read, never executed.

    Exit 1 if something had to be left out; the new strategy then names it at its top.
    """
    from bot.cli.freqtrade.strategy_reader import converted
    from bot.cli.start.templates import write_files
    from bot.errors import Exit

    strategy = converted(file)
    config = f"{strategy.module.replace('_', '-')}.yaml"
    texts = {Path("strategies") / f"{strategy.module}.py": strategy.strategy(), Path(config): strategy.config()}
    files = [str(path) for path in write_files(folder, texts)]
    lost = any(finding.is_lost for finding in strategy.findings)
    if as_json:
        findings = [finding._asdict() for finding in strategy.findings]
        click.echo(json.dumps({"files": files, "whole": not lost, "findings": findings}))
    else:
        for path in files:
            click.echo(f"made {path}")
        for finding in strategy.findings:
            click.echo(f"  {file}:{finding.line}: {'LEFT OUT: ' if finding.is_lost else ''}{finding.text}")
        click.echo(f"Next:\n  cd {quote(str(folder))}\n  bot check {config}")
    return int(Exit.ERROR if lost else Exit.DONE)
