"""`bot report` and `bot compare`: show the results of backtests as a page, in the terminal, or as JSON."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.shared_options import OPEN, json_option
from bot.cli.common.text_table import screen_width, table_lines
from bot.number_text import duration_ms, usd
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.results.run_reader import StoredRun
    from bot.figures import Column

# the page has more
DRAWDOWNS_SHOWN: Final = 3
# the newest runs; --json has all of them
GUARDIANS_SHOWN: Final = 20
# The indent of a table's lines.
INDENT: Final = "  "
REPORT_EPILOG = """\b
Examples:
  bot report runs/paper-20261120T165637Z
  bot report runs/paper-20261120T165637Z --out page.html --open
  bot report runs/paper-20261120T165637Z --json

\b
The page is one file that needs no network. It is report.html in the run's folder, or the file given by --out.
"""
COMPARE_EPILOG = """\b
Examples:
  bot compare runs/paper-20261120T165637Z runs/paper-20261120T170012Z
  bot compare RUN RUN --out page.html

\b
A run is named by its config and the params that differ. The differences come from what each run has stored: options,
the lines of the config, params, and digests of code, strategies and candles. The files themselves are not read again,
so later changes to them have no effect here. `bot replay RUN` runs again with the files of today.
"""


@click.command(epilog=REPORT_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file of the page. Default: report.html in RUN."
)
@OPEN
@json_option("Print the figures as JSON and write no page.")
def report(run: Path, out: Path | None, *, shown: bool, as_json: bool) -> None:
    """Write a run's page: config, equity, trades on their candles, months, drawdowns, risk, costs and assumptions."""
    from bot.backtest.report.derived import derived_as_json
    from bot.backtest.report.summary import more_as_json
    from bot.backtest.results.run_reader import read_run

    kept = read_run(run)
    if as_json:
        _print({"run": kept.name, **kept.summary, **more_as_json(kept), **derived_as_json(kept)})
        return
    for line in report_lines(kept):
        click.echo(_narrow(line))
    _write(out or run / "report.html", kept, None, shown=shown)


@click.command(epilog=COMPARE_EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page to this file.")
@OPEN
@json_option("Print as JSON.")
def compare(run: Path, other: Path, out: Path | None, *, shown: bool, as_json: bool) -> None:
    """Show two runs side by side: their figures, and the differences in config, code and data."""
    from bot.backtest.report.run_diff import (
        compared,
        config_changes,
        differences,
        names_of,
        other_differences,
        side_by_side,
        unexplained,
    )
    from bot.backtest.report.summary import TONES, ran_text
    from bot.backtest.results.run_reader import read_run

    left, right = read_run(run), read_run(other)
    differing, names = differences(left, right), names_of(left, right)
    if as_json:
        _print(
            {
                "runs": [left.name, right.name],
                "names": list(names),
                "figures": side_by_side(left.summary["figures"], right.summary["figures"]),
                "costs": side_by_side(left.summary["costs"], right.summary["costs"]),
                "sameEvents": left.summary["eventDigest"] == right.summary["eventDigest"],
                "differences": differing,
                "config": [change._asdict() for change in config_changes(left, right)],
                "besides": other_differences(left, right),
            }
        )
    else:
        for letter, name, which in zip("AB", names, (left, right), strict=True):
            click.echo(_narrow(f"  {letter}  {name}") + f"\n     {which.folder}\n     {ran_text(which)}")
        rows = [
            (f"{name} [{unit}]" if unit else name, first, second, change, TONES[tone])
            for name, unit, first, second, change, tone in compared(left, right)
        ]
        click.echo("\n".join(_columns([("", "A", "B", "B - A", ""), *rows], range(1, 5))))
        same = left.summary["eventDigest"] == right.summary["eventDigest"]
        click.echo("  the events are equal to the byte" if same else "  the events differ")
        for line in differing or filter(None, [unexplained(left, right)]):
            click.echo(_narrow(f"  differs: {line}"))
    if out is not None or shown:
        _write(out or run / f"compare-{right.name}.html", left, right, shown=shown)


def report_lines(run: StoredRun) -> list[str]:
    """The figures of a run's page as lines for a terminal."""
    from bot.backtest.report.derived import DERIVED, figure_named, figures_of, sources_of
    from bot.backtest.report.result_sections import SOURCES, source_rows
    from bot.backtest.report.summary import (
        BOOKED,
        DRAWDOWNS,
        FIRST,
        MONTHS,
        band_lines,
        booked_rows,
        costs_of,
        daily_of,
        drawdown_row,
        figure_lines,
        guardian_text,
        line_of,
        monthly,
        nothing_traded,
        proof_text,
        ran_text,
        refusals_text,
        risk_of,
        worst_drawdowns,
    )
    from bot.backtest.report.verdicts import run_lines, verdict_of
    from bot.clock import iso

    summary = run.summary
    values = figures_of(run)
    said = verdict_of(run, values)
    lines = [f"  {said.head} {said.text}", f"  {ran_text(run)}"]
    lines += [f"  QUARANTINED {name}: {why}" for name, why in summary.get("quarantined", {}).items()]
    if summary.get("proof") is not None:
        lines.append(f"  {proof_text(summary['proof'])}")
    lines += figure_lines(
        {**summary["figures"], **risk_of(run)},
        summary.get("band"),
        summary["course"]["toMs"] - summary["course"]["fromMs"],
    )
    lines += [line_of(figure_named(name, values)) for name in DERIVED]
    lines += [line_of(figure) for figure in costs_of(run)]
    lines += [f"  open at the end: {line}" for line in summary.get("left", ())]
    for year, months in monthly(run).items():
        named = zip((*MONTHS, "Year"), months, strict=True)
        lines.append(
            f"  {year} [%]  " + "  ".join(f"{name} {value:+.2f}" for name, value in named if value is not None)
        )
    lines += _table(DRAWDOWNS, [drawdown_row(fall) for fall in worst_drawdowns(run)[:DRAWDOWNS_SHOWN]], "drawdown")
    # The bars of the page are not for a terminal.
    lines += _table(SOURCES[:-1], [row[:-1] for row in source_rows(sources_of(run))], "by")
    lines += _table(BOOKED, booked_rows(run), "booked to")
    if summary.get("exits"):
        lines.append("  exits: " + ", ".join(f"{name} {count:,}" for name, count in summary["exits"].items()))
    lines += [f"  {line}" for by in FIRST for line in refusals_text(summary, by)]
    lines += [f"  {line}" for line in (band_lines(summary["band"]) if summary.get("band") else ())]
    lines += [f"  {line}" for line in run_lines(daily_of(run, only_with_prices=True), summary.get("monteCarlo"))]
    lines += [
        f"  down {iso(outage['atMs'])[:19]} for {duration_ms(outage['forMs'])}: {many(outage['events'], 'event')}, "
        f"equity {usd(outage['equityBeforeUsd'])} -> {usd(outage['equityAfterUsd'])}"
        for outage in summary.get("outages", ())
    ]
    fired = summary.get("guardians", ())
    lines += [f"  guardian {guardian_text(guardian)}" for guardian in fired[-GUARDIANS_SHOWN:]]
    if len(fired) > GUARDIANS_SHOWN:
        lines.append(f"  the last {GUARDIANS_SHOWN} of {len(fired):,} guardians; --json has all of them")
    if (nothing := nothing_traded(summary)) is not None:
        lines.append(nothing)
    return lines


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], first: str) -> list[str]:
    """The lines of a table, nothing without rows. `first` is the head of its first column."""
    heads = (first, *(column.title for column in columns[1:]))
    texts = [tuple(column.text(value) for column, value in zip(columns, row, strict=True)) for row in rows]
    right = [n for n, column in enumerate(columns) if "right" in column.kind.split()]
    return _columns([heads, *texts], right) if texts else []


def _columns(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Format a table; its first row has the heads."""
    heads, *body = rows
    width = screen_width()
    lines = table_lines(heads, body, right=right, width=None if width is None else width - len(INDENT))
    return [f"{INDENT}{line}" for line in lines]


def _write(path: Path, run: StoredRun, other: StoredRun | None, *, shown: bool) -> None:
    from bot.backtest.report.page import render_html
    from bot.cli.common.files import PRIVATE, write_atomic

    write_atomic(path, render_html(run, other), mode=PRIVATE)
    click.echo(f"Page: {path}")
    if shown:
        click.launch(str(path))


def _print(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def _narrow(line: str) -> str:
    """Wrap a line between words on a terminal. Without a terminal it stays one line."""
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(line, columns, subsequent_indent=" " * 11, break_on_hyphens=False)
