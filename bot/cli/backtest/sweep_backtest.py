"""The best trial of a study as a backtest: the command that runs it, and its report if it has run here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.clock import iso

if TYPE_CHECKING:
    from bot.research.study import Study
    from bot.research.sweep_page import BestBacktest

# the newest runs that are looked through
RUNS_MAX: Final = 200


def best_backtest(
    study: Study, words: Sequence[str] | None, sweep: click.Command, backtest: click.Command, page: Path
) -> BestBacktest:
    """`words`: those of the sweep's command line. `page`: the file that links to the report."""
    from bot.research.ranking import ranked, space_of
    from bot.research.sweep_page import BestBacktest

    rows = ranked(study.trials(), space_of(study))
    if not rows or not rows[0].is_feasible:
        return BestBacktest()
    best = rows[0].trial
    command = ""
    if words is not None:
        kept = list(_kept(words, sweep, backtest, without=("--param",)))
        if study.identity.get("holdout") is not None:
            # The trials have not seen the holdout.
            kept = list(_kept(kept, sweep, backtest, without=("--to",)))
            kept.append(f"--to={iso(study.identity['range'][1])}")
        params = [f"--param={name}={_text(value)}" for name, value in best.params.items()]
        command = shlex.join(["bot", "backtest", *kept, *params])
    return BestBacktest(command, _report(best.digest, page))


def _kept(
    words: Sequence[str], sweep: click.Command, backtest: click.Command, *, without: Sequence[str]
) -> Iterator[str]:
    """The words that the backtest takes too."""
    of_sweep = {name: param for param in sweep.params for name in param.opts}
    of_backtest = {name for param in backtest.params for name in param.opts} - {*without, "--json"}
    rest = iter(words)
    for word in rest:
        name, joined, _ = word.partition("=")
        param = of_sweep.get(name) if name.startswith("-") else None
        value = [] if param is None or joined or getattr(param, "is_flag", False) else [next(rest, "")]
        if param is None or name in of_backtest:
            yield from (word, *value)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _report(digest: str, page: Path) -> str:
    """The report of a run with the same events, relative to the page; "" if there is none in the folder `runs`."""
    if not digest:
        return ""
    summaries = sorted(Path("runs").glob("*/summary.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in summaries[: -RUNS_MAX - 1 : -1]:
        report = path.with_name("report.html")
        if report.is_file() and _summary(path).get("eventDigest") == digest:
            return Path(os.path.relpath(report, page.parent)).as_posix()
    return ""


def _summary(path: Path) -> Mapping[str, Any]:
    """The summary of a run; empty for one that is being written."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}
