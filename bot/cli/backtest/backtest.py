"""`bot backtest`: run the daemon of a config in simulated time. Parses the options, shows the progress and prints the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.backtest.rule_options import rules_of
from bot.cli.backtest.summary import _bar, summary_lines
from bot.cli.common.formatting import say_left_out
from bot.cli.common.param_types import Amount, Capped, Duration, Instant, Out, ParamValue, Settled, Sided, reserved
from bot.cli.data.accept_flags import accepted, accepting

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

\b
The config is the one that runs live, unchanged. The same strategies, risk checks, journal and guardians trade against the same venue, under a
simulated clock. A fee, a spread, a depth, a tick or a lot applies to all markets, or to one class or market:
  --fee 0.05%   --spread stocks=2bps   --depth BTC=50000   --tick BTC=0.1
Caps of an API key are set by their names in the API: --cap maxDailyNotionalUsd=5000 --cap allowedCoins=BTC,ETH
An event market is settled with --settle event:RATE-CUT=yes, or at an instant: --settle event:RATE-CUT=2025-03-20T18:00=no
Ctrl-C or SIGTERM stops the backtest and keeps the results so far. Results go to runs/<name>-<time>/.
Exit codes: 0 ran to the end, 1 the data were refused, or a strategy was quarantined or is not proved causal (the results are kept), 4 a config, a
strategy or a file cannot be used, 130 stopped before the end (the results so far are kept).
"""
BESIDES: Final = ("band", "prove_causal")  # options that add a section to summary.json
CUTS: Final = 5  # repeated runs of --prove-causal


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "data",
    multiple=True,
    required=True,
    metavar="FILE|FOLDER",
    help="Candles: CSV, CSV.gz or Parquet, or a folder of them; MARKET=FILE names the market. Repeatable.",
)
@click.option(
    "--param",
    "params",
    type=ParamValue(),
    multiple=True,
    metavar="STRATEGY.PARAM=VALUE",
    help="A param of a strategy of the config: trend.fast_bars=8. The results record the changed config. Repeatable.",
)
@click.option(
    "--from",
    "start_ms",
    type=Instant(),
    help="Begin here, or with the first candle if that is later. Earlier candles are history. Default: the start of the data.",
)
@click.option("--to", "end_ms", type=Instant(), help="End here, exclusive. Default: the end of the data.")
@click.option(
    "--balance", type=Amount(), default="10000", show_default=True, help="The account's balance at the start."
)
@click.option(
    "--path",
    type=click.Choice(("sl_first", "ohlc", "olhc", "adaptive")),
    default="sl_first",
    show_default=True,
    help="The order in which a bar reaches its high and low.",
)
@click.option(
    "--latency",
    type=Duration(may_be_zero=True),
    default=None,
    help="Delay between decision and order: 300ms, 0.5s; less than a bar. Default: none.",
)
@click.option(
    "--fee", "fees", type=Sided("rate", "rate"), multiple=True, help="Taker fee: 0.05%. Default: the service's."
)
@click.option(
    "--maker-fee", "maker_fees", type=Sided("rate", "rate", signed=True), multiple=True, help="Maker fee: 0.02%, or a rebate: -0.01%."
)  # fmt: skip
@click.option(
    "--spread",
    "spreads",
    type=Sided("rate", "bps"),
    multiple=True,
    help="Best ask over best bid: 2bps. Default: the service's, by turnover.",
)
@click.option(
    "--depth",
    "depths",
    type=Sided("usd", "usd"),
    multiple=True,
    help="USD on the first of twenty levels; 0 is unlimited.",
)
@click.option(
    "--tick",
    "ticks",
    type=Sided("price", "price"),
    multiple=True,
    help="Grid of prices: 0.1. Default: the service's five figures.",
)
@click.option("--lot", "lots", type=Sided("size", "size"), multiple=True, help="Grid of sizes: 0.001.")
@click.option(
    "--fees-of",
    "fees_of",
    metavar="EXCHANGE",
    help="Fees, ticks, lots and smallest orders of this exchange, as `bot data pull --from ccxt:EXCHANGE` stored them. --fee and others win over them.",
)
@click.option(
    "--funding",
    "funding",
    multiple=True,
    metavar="FILE",
    help="Recorded rates (ts,rate); MARKET=FILE names the market. Default: the baseline.",
)
@click.option(
    "--cap",
    "caps",
    type=Capped(),
    multiple=True,
    metavar="NAME=VALUE",
    help="A cap of the key (maxExposureUsd, maxDailyNotionalUsd, maxLeverage, allowedCoins, maxOpenPositions) or of the account "
    "(maxTradeUsd, dailyTradeCapUsd). Repeatable.",
)
@click.option(
    "--settle",
    "settlements",
    type=Settled(),
    multiple=True,
    help="An event market is settled: event:RATE-CUT=2025-03-20T18:00=yes. Without a time: where its candles end; without yes, no or a number "
    "from 0 to 1: as its last price says. Repeatable.",
)
@click.option(
    "--outage", "outages", type=Out(), multiple=True, help="The daemon is down: 2025-05-03T10:00+2h. Repeatable."
)
@click.option(
    "--outages", "outage_count", type=click.IntRange(0, 1_000), default=0, help="So many outages at seeded times."
)
@click.option("--outage-for", type=Duration(), default="30m", show_default=True, help="Their mean length.")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of everything that is left to chance."
)
@accepting
@click.option(
    "--band",
    is_flag=True,
    help="Run under the other three path policies too, and show how far they are apart, and for which orders the path mattered.",
)
@click.option(
    "--prove-causal",
    is_flag=True,
    help=f"Run again on data cut at {CUTS} instants: decisions before a cut must be equal. Nothing is proved of a strategy that opens a file, a "
    "connection or a process by itself, or reads the clock; of what native code opens (Arrow, Polars) and of installed packages nothing is known.",
)
@click.option(
    "--journal", "with_journal", is_flag=True, help="Keep the daemon's journal in the folder, on disk as live; slower."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where results go."
)
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object on standard output.")
def backtest(config: Path, *, as_json: bool, out: Path, **given: Any) -> int:
    """Run the daemon of CONFIG over recorded candles, in simulated time."""
    import json

    from bot import logs
    from bot.backtest.engine.outside_reads import watching
    from bot.backtest.inputs import STRATEGY_LOG
    from bot.backtest.results import run_writer as results
    from bot.clock import SystemClock
    from bot.errors import BotError, Exit

    logs.configure(pretty=None, level="error")
    found: Result | None = None
    lost: OSError | None = None
    band = proof = None
    watch: AbstractContextManager[list[str]] = watching() if given["prove_causal"] else nullcontext([])
    with reserved(for_json=as_json), watch as outside:
        inputs = _inputs(config, given)
        prepared = inputs.make()  # Errors in the input are raised before the folder is made.
        assumptions = inputs.assumptions(prepared)
        manifest = inputs.manifest(assumptions, [name for name in BESIDES if given[name]])
        folder = results.folder_for(out, inputs.settings.name, SystemClock().now_ms())
        with _stopping() as is_stopped, _bar(quiet=as_json) as show:
            try:
                found, lost = inputs.run_into(
                    folder,
                    prepared,
                    lambda done, of: not is_stopped() and show(done, of),
                    with_journal=given["with_journal"],
                    # Only this run looks for the clock, because it contains the bars of the shorter runs and the look takes time.
                    outside=outside if given["prove_causal"] else None,
                )
                if lost is None:
                    results.write(
                        folder, found, manifest
                    )  # Written now, so that the results stay if a following run fails.
                    band, proof = _besides(inputs, given, outside, found, folder, is_stopped=is_stopped)
                    results.write_summary(folder, found.summary(band, proof))
            except OSError as error:
                lost = error
    if found is not None:  # Printed even if the results could not be written.
        if as_json:
            place = None if lost is not None else str(folder)
            click.echo(json.dumps({"folder": place, **found.summary(band, proof)}, ensure_ascii=False))
        else:
            for line in summary_lines(found, assumptions, band=band, proof=proof):
                click.echo(line)
    if lost is not None:
        raise BotError(f"{folder}: cannot be written: {lost.strerror or lost}; choose another place with --out")
    if not as_json:
        click.echo(f"\nResults: {folder}")
        if (folder / STRATEGY_LOG).is_file():
            click.echo(f"The strategies' log: {folder / STRATEGY_LOG}")
    assert found is not None, "without a result an error has been raised"
    wrong, lacking = _problems(found, proof, is_stopped=is_stopped(), no_band=given["band"] and band is None)
    for problem in (*wrong, *lacking):
        click.echo(f"error: {problem}", err=True)
    if wrong:
        return int(Exit.ERROR)
    return int(Exit.STOPPED if lacking or found.stats.is_partial else Exit.DONE)


def _problems(
    found: Result, proof: Mapping[str, Any] | None, *, is_stopped: bool, no_band: bool
) -> tuple[list[str], list[str]]:
    """What is wrong with a finished backtest, and what it lacks because it was stopped."""
    wrong = [f"{why}: quarantined, and not called again" for why in found.stats.quarantined.values()]
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
    elif proof is not None and not proof["isWhole"]:
        why = "the range is too short for a cut" if not is_stopped else "it was stopped"
        (lacking if is_stopped else wrong).append(f"whether the strategies are causal was not proven: {why}")
    return wrong, lacking


def _inputs(config: Path, given: Mapping[str, Any]) -> Inputs:
    """The options of the command with the files that they name, read and checked."""
    from bot.backtest.engine.options import SessionOptions
    from bot.backtest.inputs import Chance, Files, Inputs, traded
    from bot.checks.config_check import checked_without_secrets

    settings, _ = checked_without_secrets(config)
    options = SessionOptions(
        start_ms=given["start_ms"], end_ms=given["end_ms"], balance_usd=given["balance"], path=given["path"],
        latency_ms=0 if given["latency"] is None else round(given["latency"] * 1000), rules=rules_of(given, traded(settings)),
        outages=given["outages"], settlements=dict(given["settlements"]), seed=given["seed"], caps=dict(given["caps"]),
    )  # fmt: skip
    files = Files(given["data"], given["funding"], given["fees_of"], accepted(dict(given)))
    chance = Chance(given["outage_count"], given["outage_for"] * 1000)
    return Inputs(config, files, options, params=dict(given["params"]), chance=chance, report=say_left_out)


def _besides(
    inputs: Inputs, given: Mapping[str, Any], outside: Sequence[str], found: Result, folder: Path, *, is_stopped: Callable[[], bool]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:  # fmt: skip
    """Run --band and --prove-causal. A stopped backtest has no band, and its proof is not complete."""
    from dataclasses import replace

    from bot.backtest import backtest
    from bot.backtest.engine.options import PATHS

    def going(_done: int, _of: int) -> bool:
        return not is_stopped()

    band = proof = None
    options = inputs.options
    if given["band"] and not found.stats.is_partial:
        by_path: dict[str, Result] = {options.path: found}
        for path in PATHS:
            if path != options.path and not is_stopped():
                by_path[path] = inputs.make(replace(options, path=path)).run(progress=going)
        if len(by_path) == len(PATHS) and not any(result.stats.is_partial for result in by_path.values()):
            band = backtest.band_of(options.path, by_path, inputs.candles)
    if given["prove_causal"]:
        whole, cuts = [], []
        if not found.stats.is_partial:
            whole = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            step_ms = max(series.step_ms for series in inputs.candles)
            start_ms = max(found.start_ms, inputs.begun_ms)
            cuts = backtest.cuts_between(CUTS, start_ms, found.end_ms, step_ms=step_ms, seed=options.seed)
        cut = backtest.prove_causal(inputs.make, options, whole, cuts, progress=going)
        proof = cut.spoiled_by(outside).plain()
    return band, proof


# ── What a person sees ──────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """True after Ctrl-C, SIGTERM or a closed terminal: the backtest stops at its next progress report. A second signal ends the process."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():  # Only the main thread can set signal handlers.
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
        with suppress(OSError):  # The terminal may be closed.
            click.echo("stopping; the results so far are kept (Ctrl-C again ends at once)", err=True)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda: stopped
    finally:
        restore()
