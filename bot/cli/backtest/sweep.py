"""`bot sweep`: try many params of a config;

`bot sweep show`: read what came of them; `bot sweep holdout`: try the best on data that no trial saw.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import click

from bot import terminal
from bot.cli.backtest.backtest_options import backtest_options, inputs_of
from bot.cli.backtest.evidence_records import keep_sweep, keep_walk
from bot.cli.backtest.sweep_tables import print_study, print_walk
from bot.cli.common.param_types import reserved
from bot.cli.common.shared_options import CONFIG_WITH_MARKETS, WORKERS, json_option

if TYPE_CHECKING:
    from bot.research.study import Study
    from bot.research.sweep import Progress, SweepPlan
    from bot.research.walk_forward import Walked

STORAGE: Final = "sqlite:///sweeps.db"
EPILOG: Final = """\b
Examples:
  bot sweep configs/paper.yaml --data candles/ --space space.yaml
  bot sweep configs/paper.yaml --data candles/ --space space.yaml --method tpe --trials 200 --workers 4
  bot sweep configs/paper.yaml --data candles/ --space space.yaml --on tcp://127.0.0.1:8786
  bot sweep configs/paper.yaml --data candles/ --space space.yaml --walk-forward train=90d,test=30d
  bot sweep configs/paper.yaml --data candles/ --space space.yaml --holdout 90d
  bot sweep mine.yaml --data candles/ --space space.yaml --screen --top 20
  bot sweep show paper --out sweep.html
  bot sweep holdout paper

\b
The file of --space names the params, the objectives and the constraints:
  params:
    trend.fast_bars: {from: 2, to: 20, step: 2}
    trend.slow_bars: [20, 40, 80]
  objectives: [Sharpe Ratio]              # figures of the report; the highest is best
  constraints: {"# Trades": {min: 30}}
Each trial is stored when it ends. The same command goes on where it was stopped. --on runs the trials on a Dask
cluster.
Exit codes: 0 done, 1 no trial was complete, 2 no such study, 4 a config, a space or a file cannot be used, 130 stopped
(the trials so far are kept).
"""
SHOW_EPILOG: Final = """\b
Examples:
  bot sweep show paper
  bot sweep show paper --top 20 --csv results.csv --out sweep.html
"""
HOLDOUT_EPILOG: Final = """\b
Examples:
  bot sweep configs/paper.yaml --data candles/ --space space.yaml --holdout 90d
  bot sweep holdout paper

\b
No trial sees the holdout, so the first look is a test of the best trial on new data. Look once, when you have stopped
to change things. Each look is recorded, and `bot sweep show` counts them: the more looks, the surer the result must be.
The same best trial is not run again.
Run it in the folder of the sweep: it reads the same config and data, and refuses others. Exit codes: 0 done, 1 refused,
2 no such study.
"""
TOP: Final = 10
# The words of the command, in the context and with a study: `bot sweep holdout` reads the same inputs.
WORDS: Final = "words"


def _without_password(_context: click.Context, _option: click.Parameter, storage: str) -> str:
    """The address of a storage. One that holds a password is refused, and not repeated."""
    address = urlsplit(storage)
    if address.password is not None or "password" in parse_qs(address.query):
        raise click.UsageError(
            "--storage: the address holds a password, which other users of this machine can read; leave it out and keep"
            " it where the database's client looks, for PostgreSQL in ~/.pgpass"
        )
    return storage


_storage_option = click.option(
    "--storage",
    default=STORAGE,
    show_default=True,
    metavar="URL",
    callback=_without_password,
    help="Where the trials are kept: any storage of Optuna.",
)


class _Sweeps(click.Group):
    """`bot sweep CONFIG` is `bot sweep run CONFIG`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = args if args[:1] in (["show"], ["run"], ["holdout"]) else ["run", *args]
        ctx.meta[WORDS] = words[1:]
        return super().parse_args(ctx, words)


@click.group(cls=_Sweeps)
def sweep() -> None:
    """Try many params of CONFIG over recorded candles."""


@sweep.command("run", epilog=EPILOG)
@CONFIG_WITH_MARKETS
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Params, objectives and constraints. Default: the ranges that the params carry themselves.",
)
@click.option(
    "--method",
    type=click.Choice(("grid", "random", "tpe", "nsgaii")),
    default="grid",
    show_default=True,
    help="How params are chosen: every cell of the grid, by chance, or by a sampler of Optuna.",
)
@click.option(
    "--trials",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How many, for methods other than grid.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="End a trial after a third of the range if its first objective is worse there than the median so far.",
)
@click.option(
    "--screen",
    "is_screened",
    is_flag=True,
    help=(
        "Try the params by the compiled screen (a strategy with `signals`), then run the best again as full backtests."
    ),
)
@click.option(
    "--top",
    type=click.IntRange(1, 1_000),
    default=TOP,
    show_default=True,
    help="How many of the best --screen runs again.",
)
@WORKERS
@click.option(
    "--on", "address", default=None, metavar="ADDRESS", help="A Dask scheduler that runs the trials: tcp://HOST:8786."
)
@click.option(
    "--walk-forward",
    "windows",
    default=None,
    metavar="WINDOWS",
    help="Choose params on a window and try them on the next: train=90d,test=30d; also embargo=1d, anchored.",
)
@click.option(
    "--holdout",
    "holdout_length",
    default=None,
    metavar="LENGTH",
    help="Keep the last part of the range from every trial: 90d. `bot sweep holdout STUDY` looks at it.",
)
@click.option("--study", "name", default=None, metavar="NAME", help="Default: the config's name.")
@_storage_option
@backtest_options
@json_option("The ranking as one JSON object on standard output.")
def run(
    config: Path,
    *,
    space: Path | None,
    name: str | None,
    storage: str,
    windows: str | None,
    holdout_length: str | None,
    top: int,
    as_json: bool,
    **given: Any,
) -> int:
    """Try many params of CONFIG over recorded candles."""
    from bot import logs
    from bot.errors import Exit
    from bot.research import runners
    from bot.research import trials as trials_
    from bot.research.study import one_sweep
    from bot.research.sweep import SweepPlan
    from bot.research.sweep_inputs import PreparedSweep

    plan = SweepPlan(given["method"], given["trials"], given["seed"], given["prune"], given["is_screened"])
    _refuse_together(plan, windows=windows, agents=given["agents"])
    logs.configure(pretty=None, level="error")
    with reserved(for_json=as_json):
        prepared = PreparedSweep(inputs_of(config, given), space, plan, holdout=holdout_length, windows=windows)
        study_name, bundle = name or prepared.inputs.settings.name, trials_.bundle_of(prepared.inputs)
        for note in prepared.notes():
            click.echo(note, err=True)
        address: str | None = given["address"]
        runner = runners.Processes(bundle, given["workers"]) if address is None else runners.Cluster(bundle, address)
        walked: Sequence[Walked] = []
        study: Study | None = None
        with closing(runner), one_sweep(storage, study_name), progress_bar(quiet=as_json) as show:
            try:
                if prepared.folds is not None:
                    walked = prepared.walk(storage, study_name, runner, show)
                else:
                    study = prepared.study(storage, study_name)
                    study.keep(WORDS, click.get_current_context().meta[WORDS])
                    prepared.run(study, runner, top, show)
            except KeyboardInterrupt:
                click.echo("stopped: the trials so far are stored; the same command goes on", err=True)
                return int(Exit.STOPPED)
    if study is None:
        keep_walk(prepared, walked, given["data"])
        print_walk(walked, prepared.space, as_json=as_json)
    else:
        keep_sweep(prepared, study, bundle, given["data"])
        print_study(study, TOP, _holdout_lines(study, storage), as_json=as_json)
    return _exit_code(study, walked)


def _exit_code(study: Study | None, walked: Sequence[Walked]) -> int:
    """DONE if any trial, or any window of a walk forward, has a result."""
    from bot.errors import Exit

    states = (trial.state == "complete" for trial in study.trials()) if study is not None else ()
    return int(Exit.DONE if any(states) or any(fold.outcome is not None for fold in walked) else Exit.ERROR)


def _refuse_together(plan: SweepPlan, *, windows: str | None, agents: str) -> None:
    """UsageError for options that do not go together."""
    if plan.is_pruned and windows is not None:
        raise click.UsageError("--prune does not go with --walk-forward; leave one out")
    if plan.is_screened and (plan.is_pruned or windows is not None):
        raise click.UsageError("--screen goes with neither --prune nor --walk-forward; leave one out")
    if agents == "live":
        raise click.UsageError("a sweep asks no model: record the answers with `bot backtest --agents live` first")


@sweep.command("show", epilog=SHOW_EPILOG)
@click.argument("name", metavar="STUDY")
@_storage_option
@click.option("--top", type=click.IntRange(1, 1_000), default=TOP, show_default=True, help="Rows of the ranking.")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write every trial with every figure as CSV.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write a page (HTML) that needs no network.",
)
@json_option("The ranking as one JSON object on standard output.")
def show(name: str, *, storage: str, top: int, csv_file: Path | None, out: Path | None, as_json: bool) -> int:
    """Show the trials of STUDY: the best and their neighbours, the Pareto front, what matters, a map of two params."""
    from bot.cli.backtest.backtest import backtest
    from bot.cli.backtest.sweep_backtest import best_backtest
    from bot.cli.common.files import PRIVATE, write_atomic
    from bot.errors import Exit
    from bot.research.ranking import space_of, table_of
    from bot.research.study import open_study
    from bot.research.sweep_page import render_sweep

    study = open_study(storage, name)
    if csv_file is not None:
        write_atomic(csv_file, table_of(study.trials(), space_of(study)), mode=PRIVATE)
    held = _holdout_lines(study, storage)
    if out is not None:
        best = best_backtest(study, study.kept(WORDS), run, backtest, out)
        write_atomic(out, render_sweep(study, held, best), mode=PRIVATE)
    print_study(study, top, held, as_json=as_json)
    for path in filter(None, (csv_file, out)):
        click.echo(f"written: {path}", err=as_json)
    return int(Exit.DONE)


@sweep.command("holdout", epilog=HOLDOUT_EPILOG)
@click.argument("name", metavar="STUDY")
@_storage_option
@click.option("--trust-paths", is_flag=True, help="Read also what the study names outside of this folder or by a link.")
@json_option("The look as one JSON object on standard output.")
def holdout(name: str, *, storage: str, trust_paths: bool, as_json: bool) -> int:
    """Look at the holdout of STUDY: run its best trial there, and record the look."""
    import json

    from bot import logs
    from bot.clock import SystemClock
    from bot.errors import BotError, Exit
    from bot.research.holdout import look, looks_of
    from bot.research.study import one_sweep, open_study

    logs.configure(pretty=None, level="error")
    with reserved(for_json=as_json), one_sweep(storage, name):
        study = open_study(storage, name)
        words = study.kept(WORDS)
        if words is None:
            raise BotError(f"the study {name!r} was not finished by a sweep; run its sweep first")
        given = dict(run.make_context("run", list(words)).params)
        if not trust_paths:
            _refuse_elsewhere(name, given)
        record = look(study, inputs_of(given["config"], given), SystemClock().now_ms())
    if as_json:
        click.echo(json.dumps({**record, "looks": len(looks_of(study))}))
    else:
        for line in _holdout_lines(study, storage):
            click.echo(line)
    return int(Exit.DONE)


def _refuse_elsewhere(name: str, given: Mapping[str, Any]) -> None:
    """BotError if a study, which may come from others, names a file outside of this folder or by a link."""
    from bot.errors import BotError
    from bot.files import OutsideFolder, inside

    files = [given["config"], given["space"], given["answers"]]
    named = [
        *(file for file in files if file is not None),
        *(text.rpartition("=")[2] for text in (*given["data"], *given["funding"])),
    ]
    for path in named:
        try:
            inside(Path.cwd(), os.path.relpath(path))
        except OutsideFolder as error:
            raise BotError(
                f"the study {name!r} names a file elsewhere: {error}. A study may come from others: run this in the"
                " folder of its sweep, or, if the study is yours, add --trust-paths"
            ) from None


def _holdout_lines(study: Study, storage: str) -> list[str]:
    from bot.research.holdout import holdout_lines
    from bot.research.study import every_study

    return holdout_lines(study, every_study(storage))


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[Progress], object]]:
    """A progress bar with the best so far and the time left. Without a terminal nothing is shown."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Bar(*columns, console=terminal.console(is_error=True), transient=True) as bar:
        task = bar.add_task("trials", total=None, best="")

        def show(now: Progress) -> None:
            best = "" if now.best is None else f"best {now.best:,.4g} {dict(now.best_params or {})}"
            bar.update(task, completed=now.done, total=now.of, best=best)

        yield show
