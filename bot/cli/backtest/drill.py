"""`bot drill`: the strategies of a config in many worlds of faults, on recorded candles."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot import terminal
from bot.cli.backtest.backtest_options import WITHOUT_RUN, inputs_of, market_options
from bot.cli.backtest.evidence_records import keep_drill
from bot.cli.common.param_types import reserved
from bot.cli.common.shared_options import WORKERS, json_option
from bot.cli.common.text_table import screen_width, table_lines
from bot.number_text import signed_usd, usd

if TYPE_CHECKING:
    from collections.abc import Callable

    from bot.backtest.inputs import Inputs
    from bot.drill.drill import Summary
    from bot.drill.outcome import WorldOutcome
    from bot.drill.world import DrillSetup

EPILOG: Final = """\b
Examples:
  bot drill configs/paper.yaml --data candles/
  bot drill configs/paper.yaml --data candles/ --worlds 1000 --workers 4 --junit drill.xml
  bot drill configs/paper.yaml --data candles/ --worlds 1 --seed 17 --steps

\b
A world is a stretch of the candles with faults at seeded times: API outage, lost replies, death of the daemon, gap in
the data, price shock, lost heartbeats, canceled stops. The daemon's own code trades in it, in simulated time.
Afterwards the service's events are compared with the journal: no order may be lost or sent twice, every
order has its outcome, the daemon believes what the service has, no position is without a stop for more than a
minute in which the daemon could arm one, and nothing is opened without the dead-man switch. The same seed is the same
world.
Exit codes: 0 every world passed, 1 a world failed, 4 a config or a file cannot be used, 130 stopped (the worlds so far
are shown).
"""
# worlds
FAILED_SHOWN: Final = 20
LEGEND: Final = """
lost, doubled: orders. no stop: the longest time in which a position of a world had no stop. worst: the lowest account
value below that of the beginning, in any world. saved: what the closes of guardians made more than holding on to the
end of the shock, or of the world; below 0, less."""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--worlds", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="How many.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Of the first world; the next have the next numbers.",
)
@click.option(
    "--bars",
    type=click.IntRange(45, 100_000),
    default=240,
    show_default=True,
    help="Length of a world, in bars of the shortest interval.",
)
@WORKERS
@click.option("--steps", is_flag=True, help="Print what happened in each world, step by step.")
@click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write JUnit XML, one test case a world.",
)
@market_options
@json_option("All outcomes as one JSON object on standard output.")
def drill(
    config: Path,
    *,
    worlds: int,
    seed: int,
    bars: int,
    workers: int,
    steps: bool,
    junit_file: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run the strategies of CONFIG through seeded worlds of faults, over recorded candles."""
    import json

    from bot import logs
    from bot.cli.common.files import write_atomic
    from bot.drill import drill as drills
    from bot.errors import Exit

    if steps and (as_json or workers > 1):
        raise click.UsageError("--steps goes with neither --json nor --workers")
    # A world is full of errors that are meant.
    logs.configure(pretty=None, level="critical")
    is_stopped = False
    outcomes: list[WorldOutcome] = []
    with reserved(for_json=as_json):
        inputs = inputs_of(config, {**given, **WITHOUT_RUN, "seed": seed})
        ground = _ground_of(inputs, bars)
        seeds = range(seed, seed + worlds)
        running = _told(ground, seeds) if steps else drills.outcomes(ground, seeds, workers)
        try:
            with closing(running), _shown(len(seeds), quiet=as_json or steps) as show:
                for outcome in running:
                    outcomes.append(outcome)
                    show(outcomes)
        except KeyboardInterrupt:
            is_stopped = True
    outcomes.sort(key=lambda outcome: outcome.seed)
    if not is_stopped:
        keep_drill(ground, outcomes, given["data"])
    if junit_file is not None:
        write_atomic(junit_file, drills.junit(inputs.settings.name, outcomes))
    if as_json:
        click.echo(json.dumps(drills.as_json(outcomes)))
    else:
        _print(outcomes)
        if junit_file is not None:
            click.echo(f"written: {junit_file}")
    if is_stopped:
        click.echo(f"stopped after {len(outcomes):,} of {len(seeds):,} worlds", err=True)
        return int(Exit.STOPPED)
    return int(Exit.DONE if all(outcome.has_passed for outcome in outcomes) else Exit.ERROR)


def _ground_of(inputs: Inputs, bars: int) -> DrillSetup:
    from bot.drill.world import DrillSetup

    ground = DrillSetup(inputs.settings, inputs.candles, inputs.options, inputs.rates, bars)
    # Candles that are too short are an error before the first world.
    ground.starts()
    return ground


def _told(ground: DrillSetup, seeds: Sequence[int]) -> Generator[WorldOutcome]:
    from bot.drill.drill import lived

    for seed in seeds:
        outcome = lived(ground, seed, is_told=True)
        click.echo(f"seed {seed}")
        for step in outcome.steps:
            click.echo(f"  {step}")
        yield outcome


def _print(outcomes: Sequence[WorldOutcome]) -> None:
    """The table of outcomes: all worlds, the worlds with each fault, and the worlds that failed."""
    from bot.drill.drill import by_fault, summary
    from bot.drill.faults import WORDS

    heads = ("worlds with", "worlds", "failed", "lost", "doubled", "no stop [s]", "worst [USD]", "saved [USD]")
    rows = [("all", list(outcomes)), *((WORDS[kind], some) for kind, some in by_fault(outcomes).items())]
    cells = [_cells(word, summary(some)) for word, some in rows if some]
    for line in table_lines(heads, cells, right=range(1, len(heads)), width=screen_width()):
        click.echo(line)
    click.echo(LEGEND)
    failed = [outcome for outcome in outcomes if not outcome.has_passed]
    for outcome in failed[:FAILED_SHOWN]:
        for finding in outcome.findings:
            click.echo(f"seed {outcome.seed}: {finding.kind}: {finding.text}")
    if len(failed) > FAILED_SHOWN:
        click.echo(f"and {len(failed) - FAILED_SHOWN:,} more worlds that failed; --json and --junit list all")
    if failed:
        click.echo(f"Run one again, step by step: add --worlds 1 --seed {failed[0].seed} --steps")


@contextmanager
def _shown(worlds: int, *, quiet: bool) -> Iterator[Callable[[Sequence[WorldOutcome]], object]]:
    """A progress bar with the failures so far and the time left. Without a terminal nothing is shown."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("worlds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )
    with Progress(*columns, console=terminal.console(is_error=True), transient=True) as bar:
        task = bar.add_task("worlds", total=worlds, failed=0)
        yield lambda outcomes: bar.update(
            task, completed=len(outcomes), failed=sum(not outcome.has_passed for outcome in outcomes)
        )


def _cells(word: str, total: Summary) -> list[str]:
    counts = (total.worlds, total.failed, total.lost, total.doubled)
    bare = f"{total.longest_bare_ms / 1000:,.1f}"
    return [word, *(f"{count:,}" for count in counts), bare, usd(total.worst_usd), signed_usd(total.saved_usd)]
