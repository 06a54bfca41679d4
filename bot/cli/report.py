"""`bot report` and `bot compare`: a run's folder as a page, in the terminal, or as JSON."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bot.session.kept import KeptRun

REPORT_EPILOG = """\b
Examples:
  bot report runs/paper-20261120T165637Z
  bot report runs/paper-20261120T165637Z --out page.html --open
  bot report runs/paper-20261120T165637Z --json

\b
The page is one file that needs no network: report.html in the run's folder unless --out says otherwise.
"""
COMPARE_EPILOG = """\b
Examples:
  bot compare runs/paper-20261120T165637Z runs/paper-20261120T170012Z
  bot compare RUN RUN --out page.html
"""


@click.command(epilog=REPORT_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Where the page goes. Default: report.html in RUN."
)
@click.option("--open", "shown", is_flag=True, help="Show the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON; no page is written.")
def report(run: Path, out: Path | None, *, shown: bool, as_json: bool) -> None:
    """Write a run's page: equity, trades on their candles, months, R multiples, costs, and what it all rests on."""
    from bot.session.kept import read_run
    from bot.session.report import costs_of

    kept = read_run(run)
    if as_json:
        _print({"run": kept.name, **kept.summary, "assumptions": kept.manifest["assumptions"]})
        return
    for name, value in kept.summary["figures"].items():
        click.echo(f"  {name:<30} {_shown(value):>16}")
    for name, value in costs_of(kept).items():
        click.echo(f"  {f'{name} [$]':<30} {_shown(value):>16}")
    for line in kept.summary.get("left", ()):
        click.echo(f"  open at the end: {line}")
    _write(out or run / "report.html", kept, None, shown=shown)


@click.command(epilog=COMPARE_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write a page too.")
@click.option("--open", "shown", is_flag=True, help="Show the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def compare(run: Path, other: Path, out: Path | None, *, shown: bool, as_json: bool) -> None:
    """Show two runs side by side: their figures, and what differs in what was run."""
    from bot.session.kept import read_run
    from bot.session.report import compared, differences

    one, two = read_run(run), read_run(other)
    differing = differences(one, two)
    if as_json:
        _print({
            "runs": [one.name, two.name],
            "figures": {name: [value, two.summary["figures"].get(name)] for name, value in one.summary["figures"].items()},
            "sameEvents": one.summary["eventDigest"] == two.summary["eventDigest"],
            "differences": differing,
        })  # fmt: skip
    else:
        for letter, which in (("A", one), ("B", two)):
            click.echo(f"  {letter}  {which.name}")
        click.echo(f"  {'':<30} {'A':>14} {'B':>14} {'B - A':>14}")
        for name, *values in compared(one, two):
            click.echo(f"  {name:<30} " + " ".join(f"{_shown(value):>14}" for value in values))
        same = one.summary["eventDigest"] == two.summary["eventDigest"]
        click.echo("  the events are equal to the byte" if same else "  the events differ")
        for line in differing:
            click.echo(_narrow(f"  differs: {line}"))
    if out is not None or shown:
        _write(out or run / f"compare-{two.name}.html", one, two, shown=shown)


def _write(path: Path, run: KeptRun, other: KeptRun | None, *, shown: bool) -> None:
    from bot.cli.files import write_atomic
    from bot.session.report import page

    write_atomic(path, page(run, other))
    click.echo(f"Page: {path}")
    if shown:
        click.launch(str(path))


def _print(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def _narrow(line: str) -> str:
    """Folded between words where a terminal would cut it anywhere; whole for whatever else reads it."""
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(line, columns, subsequent_indent=" " * 11, break_on_hyphens=False)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:z,.2f}"
