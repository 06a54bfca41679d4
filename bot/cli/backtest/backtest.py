"""`bot backtest`: run the daemon of a config in simulated time.

Parses the options, shows the progress and prints the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.backtest.backtest_options import backtest_options, inputs_of
from bot.cli.backtest.evidence_records import keep_backtest
from bot.cli.backtest.summary import _bar, summary_lines
from bot.cli.common.param_types import Duration, reserved
from bot.cli.common.shared_options import CONFIG_WITH_MARKETS, json_option

if TYPE_CHECKING:
    from bot.backtest.inputs import Inputs
    from bot.backtest.results.run_writer import Result

EPILOG = """\b
Examples:
  bot backtest configs/paper.yaml --data candles/ --from 2025-05-01 --to 2025-06-01 --balance 10000
  bot backtest configs/paper.yaml --data BTC=btc_1m.csv.gz --fee 0.05% --path adaptive --band --prove-causal
  bot backtest configs/paper.yaml --data candles/ --outage 2025-05-03T10:00+2h --out runs
  bot backtest configs/paper.yaml --data data --fees-of binance
  bot backtest configs/paper.yaml --data candles/ --param trend.fast_bars=8
  bot backtest configs/paper.yaml --data candles/ --monte-carlo 1000 --bootstrap 100

\b
The config is the one that runs live, unchanged. The same strategies, risk checks, journal and guardians trade against
the same venue, under a simulated clock. A fee, a spread, a depth, a tick or a lot applies to all markets, or to one
class or market:
  --fee 0.05%   --spread stocks=2bps   --depth BTC=50000   --tick BTC=0.1
Caps of an API key are set by their names in the API: --cap maxDailyNotionalUsd=5000 --cap allowedCoins=BTC,ETH
An event market is settled with --settle event:RATE-CUT=yes, or at an instant: --settle
event:RATE-CUT=2025-03-20T18:00=no
Ctrl-C or SIGTERM stops the backtest and keeps the results so far. Results go to runs/<name>-<time>/.
Exit codes: 0 ran to the end, 1 the data were refused, or a strategy was quarantined or is not proved causal (the
results are kept), 4 a config, a strategy or a file cannot be used, 130 stopped before the end (the results so far are
kept).
"""
# options that add a section to summary.json
BESIDES: Final = ("band", "prove_causal", "monte_carlo", "bootstrap")
# repeated runs of --prove-causal
CUTS: Final = 5


@click.command(epilog=EPILOG)
@CONFIG_WITH_MARKETS
@backtest_options
@click.option(
    "--band",
    is_flag=True,
    help=(
        "Run under the other three path policies too, and show how far they are apart, and for which orders the path"
        " mattered."
    ),
)
@click.option(
    "--prove-causal",
    is_flag=True,
    help=(
        f"Run again on data cut at {CUTS} instants: decisions before a cut must be equal. The proof covers candles,"
        " funding rates, params, the strategy's own code and recorded answers, and nothing else. It fails for a"
        " strategy that opens a file, a database, a connection or a process, lists a folder, maps memory, or reads the"
        " clock or the environment. What native code opens (Arrow, Polars) and installed packages is not seen."
    ),
)
@click.option(
    "--monte-carlo",
    type=click.IntRange(10, 100_000),
    metavar="N",
    help=(
        "Put the finished trades in N other orders, and draw them N times with replacement: quantiles of drawdown and"
        " end equity."
    ),
)
@click.option(
    "--bootstrap",
    type=click.IntRange(2, 10_000),
    metavar="N",
    help="Run again on N other histories, made of random blocks of the candles: quantiles of return and drawdown.",
)
@click.option(
    "--bootstrap-block",
    type=Duration(),
    default="1d",
    show_default=True,
    help="The mean length of a block of --bootstrap.",
)
@click.option(
    "--journal", "with_journal", is_flag=True, help="Keep the daemon's journal in the folder, on disk as live; slower."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where results go."
)
@json_option("The summary as one JSON object on standard output.")
def backtest(config: Path, *, as_json: bool, out: Path, **given: Any) -> int:
    """Run the daemon of CONFIG over recorded candles, in simulated time."""
    import json

    from bot import logs
    from bot.backtest.engine.outside_reads import watching
    from bot.backtest.monte_carlo import check_bootstrap
    from bot.backtest.results import run_writer as results
    from bot.clock import SystemClock
    from bot.errors import BotError, Exit

    logs.configure(pretty=None, level="error")
    result: Result | None = None
    lost: OSError | None = None
    band = proof = monte_carlo = None
    watch: AbstractContextManager[list[str]] = watching() if given["prove_causal"] else nullcontext([])
    with reserved(for_json=as_json), watch as outside:
        inputs = inputs_of(config, given)
        # Errors in the input are raised before the folder is made.
        prepared = inputs.make()
        block_ms = round(given["bootstrap_block"] * 1000)
        if given["bootstrap"]:
            check_bootstrap(inputs, prepared, block_ms)
        assumptions = inputs.assumptions(prepared)
        manifest = inputs.manifest(assumptions, _asked(given))
        folder = results.folder_for(out, inputs.settings.name, SystemClock().now_ms())
        with _stopping() as is_stopped, _bar(quiet=as_json) as show:
            try:
                result, lost = inputs.run_into(
                    folder,
                    prepared,
                    lambda done, of: not is_stopped() and show(done, of),
                    with_journal=given["with_journal"],
                    # Only this run looks for the clock, because it contains the bars of the shorter runs and the look
                    # takes time.
                    outside=outside if given["prove_causal"] else None,
                )
                if lost is None:
                    # Written now, so that the results stay if a following run fails.
                    results.write(folder, result, manifest)
                    band, proof = _besides(inputs, given, outside, result, folder, is_stopped=is_stopped)
                    monte_carlo = _monte_carlo(
                        inputs, given, result, block_ms, lambda done, of: not is_stopped() and show(done, of)
                    )
                    results.write_summary(folder, result.summary(band, proof, monte_carlo))
            except OSError as error:
                lost = error
    # Printed even if the results could not be written.
    if result is not None:
        if as_json:
            place = None if lost is not None else str(folder)
            click.echo(json.dumps({"folder": place, **result.summary(band, proof, monte_carlo)}, ensure_ascii=False))
        else:
            for line in summary_lines(result, assumptions, band=band, proof=proof, monte_carlo=monte_carlo):
                click.echo(line)
    if lost is not None:
        raise BotError(f"{folder}: cannot be written: {lost.strerror or lost}; choose another place with --out")
    assert result is not None, "without a result an error has been raised"
    keep_backtest(inputs.settings, result, given["data"], folder)
    _show_end(result, folder, as_json=as_json)
    wrong, lacking = _problems(result, proof, is_stopped=is_stopped(), no_band=given["band"] and band is None)
    if given["bootstrap"] and "candles" not in (monte_carlo or {}):
        lacking.append("the runs on bootstrapped candles are missing: the backtest was stopped")
    for problem in (*wrong, *lacking):
        click.echo(f"error: {problem}", err=True)
    if wrong:
        return int(Exit.ERROR)
    return int(Exit.STOPPED if lacking or result.stats.is_partial else Exit.DONE)


def _show_end(result: Result, folder: Path, *, as_json: bool) -> None:
    """The last lines: where the results are, and why nothing was traded."""
    from bot.backtest.inputs import STRATEGY_LOG
    from bot.backtest.report.summary import nothing_traded

    if not as_json:
        click.echo(f"\nResults: {folder}")
        if (folder / STRATEGY_LOG).is_file():
            click.echo(f"The strategies' log: {folder / STRATEGY_LOG}")
    if (nothing := nothing_traded(result.summary())) is not None:
        click.echo(nothing, err=as_json)


def _problems(
    result: Result, proof: Mapping[str, Any] | None, *, is_stopped: bool, no_band: bool
) -> tuple[list[str], list[str]]:
    """What is wrong with a finished backtest, and what it lacks because it was stopped."""
    wrong = [f"{why}: quarantined, and not called again" for why in result.stats.quarantined.values()]
    lacking = []
    if no_band:
        lacking.append("the band of the path policies is missing: the backtest was stopped")
    if proof is not None and proof["differs"] is not None:
        wrong.append(f"not causal: {proof['differs']}")
    elif proof is not None and proof["outside"]:
        from bot.backtest.report.summary import outside_text

        wrong.append(
            f"not proved causal: a strategy {outside_text(proof['outside'])}, and cutting the candles does not cut that"
        )
    elif proof is not None and proof["moved"]:
        wrong.append(
            f"not proved causal: {'; '.join(proof['moved'])}; give candles whose times are their source's, in UTC and"
            " on the grid"
        )
    elif proof is not None and not proof["isWhole"]:
        why = "the range is too short for a cut" if not is_stopped else "it was stopped"
        (lacking if is_stopped else wrong).append(f"whether the strategies are causal was not proven: {why}")
    return wrong, lacking


def _asked(given: Mapping[str, Any]) -> list[str]:
    """The options that add a section to summary.json, with their numbers, for the manifest."""
    asked = [name if given[name] is True else f"{name}={given[name]}" for name in BESIDES if given[name]]
    return [*asked, f"bootstrap_block={given['bootstrap_block']:g}s"] if given["bootstrap"] else asked


def _monte_carlo(
    inputs: Inputs, given: Mapping[str, Any], result: Result, block_ms: int, progress: Callable[[int, int], bool]
) -> dict[str, Any]:
    """Run --monte-carlo and --bootstrap. A stopped backtest has neither."""
    from bot.backtest.monte_carlo import of_candles, of_trades

    drawn: dict[str, Any] = {}
    if result.stats.is_partial:
        return drawn
    if given["monte_carlo"]:
        drawn["trades"] = of_trades(result, given["monte_carlo"], inputs.options.seed)
    if given["bootstrap"]:
        histories = of_candles(inputs, result, given["bootstrap"], block_ms, progress)
        drawn |= {} if histories is None else {"candles": histories}
    return drawn


def _besides(
    inputs: Inputs,
    given: Mapping[str, Any],
    outside: Sequence[str],
    finished: Result,
    folder: Path,
    *,
    is_stopped: Callable[[], bool],
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Run --band and --prove-causal. A stopped backtest has no band, and its proof is not complete."""
    from dataclasses import replace

    from bot.backtest import backtest
    from bot.backtest.engine.options import PATHS

    def going(_done: int, _of: int) -> bool:
        return not is_stopped()

    band = proof = None
    options = inputs.options
    if given["band"] and not finished.stats.is_partial:
        by_path: dict[str, Result] = {options.path: finished}
        for path in PATHS:
            if path != options.path and not is_stopped():
                by_path[path] = inputs.make(replace(options, path=path)).run(progress=going)
        if len(by_path) == len(PATHS) and not any(result.stats.is_partial for result in by_path.values()):
            band = backtest.band_of(options.path, by_path, inputs.candles)
    if given["prove_causal"]:
        whole, cuts = [], []
        if not finished.stats.is_partial:
            whole = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            step_ms = max(series.step_ms for series in inputs.candles)
            start_ms = max(finished.start_ms, inputs.begun_ms)
            cuts = backtest.cuts_between(CUTS, start_ms, finished.end_ms, step_ms=step_ms, seed=options.seed)
        cut = backtest.prove_causal(inputs.make, options, whole, cuts, progress=going)
        proof = cut.spoiled_by(outside).of_moved(inputs.moved).plain()
    return band, proof


# ── What a person sees ──────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """True after Ctrl-C, SIGTERM or a closed terminal: the backtest stops at its next progress report.

    A second signal ends the process.
    """
    import signal
    import threading

    # Only the main thread can set signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    stopped = False

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        restore()
        # The terminal may be closed.
        with suppress(OSError):
            click.echo("stopping; the results so far are kept (Ctrl-C again ends at once)", err=True)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda: stopped
    finally:
        restore()
