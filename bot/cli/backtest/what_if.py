"""`bot whatif`: what other settings of a guardian would have changed in the real history of an account."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.param_types import Instant, reserved
from bot.cli.common.shared_options import SERVICE_DATA, STATE_DIR, WORKERS, json_option
from bot.cli.data.accept_flags import accepting
from bot.words import many

if TYPE_CHECKING:
    from bot.research.what_if.account_replay import PlayedTrade
    from bot.research.what_if.comparison import WhatIf
    from bot.research.what_if.history import AccountHistory

EPILOG: Final = """\b
Examples:
  bot whatif live --guardian 'trailing_stop: 0.5..3 step 0.25'
  bot whatif live --since 2026-11-20 --guardian 'max_hold: off, 1h, 4h' --guardian 'account_drawdown: 2..5 step 1'
  bot whatif runs/paper-20261120T165637Z --data data --guardian 'trailing_stop.trailR: 1..3 step 0.5' --workers 2

\b
RUN is the folder of a backtest; `live` is the daemon of --config or --state-dir. TYPE means its main field; the others
are named: TYPE.FIELD.
  trailing_stop     trailPct, trailR, activateAtR      dead_man_switch  heartbeatSeconds, onMiss
  max_hold          seconds (also 90m, 4h)             schedule         cron (values with |), action
  account_drawdown  maxLossPctFromDayStart, action     kill_switch      action (of the kills of the history)
VALUES are LOW..HIGH step STEP, or values with commas; `off` is a setting without the guardian. Several --guardian make
a grid. Later orders stay as they were given, and no strategy decides again. Exit codes: 0 done, 1 the history cannot
be played again, 2 no such folder or daemon, 4 a setting, a config or a file cannot be used.
"""
# rows of a table; --json and --csv have all
SHOWN_MAX: Final = 10
LIVE: Final = "live"
FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.command(epilog=EPILOG)
@click.argument("what", metavar="RUN|live")
@click.option(
    "--guardian", "guardians", multiple=True, required=True, metavar="TYPE: VALUES", help="The settings to try."
)
@click.option("--since", "since_ms", type=Instant(), help="Try them from then on. Default: the start.")
@SERVICE_DATA
@click.option("--funding", "funding", multiple=True, metavar="FILE", help="Recorded rates (ts,rate) of a backtest.")
@click.option("--config", type=FILE, help="The config of the daemon or of the run.")
@STATE_DIR
@WORKERS
@accepting
@click.option("--csv", "csv_file", type=FILE, metavar="FILE", help="Write every setting as CSV.")
@json_option("Every setting with its trades as one JSON object on standard output.")
def whatif(what: str, *, csv_file: Path | None, as_json: bool, workers: int, **given: Any) -> int:
    """Show what other settings of a guardian would have changed in a real history."""
    import json
    from contextlib import closing

    from bot import logs
    from bot.cli.backtest.sweep import progress_bar
    from bot.cli.common.files import PRIVATE, write_atomic
    from bot.errors import Exit
    from bot.research.runners import Processes
    from bot.research.what_if.account_replay import evaluate_setting
    from bot.research.what_if.comparison import what_if
    from bot.research.what_if.setting import read_grid

    logs.configure(pretty=None, level="error")
    with reserved(for_json=as_json):
        cells = read_grid(given["guardians"])
        history = (_of_journal(given) if what == LIVE else _of_run(Path(what), given)).since(given["since_ms"])
        with closing(Processes(history, workers, evaluate_setting)) as runner, progress_bar(quiet=as_json) as show:
            result = what_if(history, cells, runner, show)
    if csv_file is not None:
        write_atomic(csv_file, result.table(), mode=PRIVATE)
    if as_json:
        click.echo(json.dumps(result.plain(), indent=1, ensure_ascii=False))
    else:
        _print(result)
    if csv_file is not None:
        click.echo(f"written: {csv_file}", err=as_json)
    return int(Exit.DONE)


def _of_run(folder: Path, given: Mapping[str, Any]) -> AccountHistory:
    from bot.cli.backtest.replay import run_inputs
    from bot.research.what_if.history import history_of_run

    run, settings, candles, options, fundings = run_inputs(folder, given["config"], given)
    rates = {market: rate_file.rates for market, rate_file in fundings.items()}
    return history_of_run(run, settings, candles, options, rates)


def _of_journal(given: Mapping[str, Any]) -> AccountHistory:
    """From the journal's start, or from the newest instant without a position before --since."""
    from bot.backtest.proof.day_proof import Range, start_of
    from bot.checks.config_check import checked_without_secrets
    from bot.cli.backtest.replay import candles_for, noted_config
    from bot.cli.common.daemon_client import find
    from bot.research.what_if.history import history_of_journal

    place = find(given["config"], given["state_dir"], dead_too=True)
    start = start_of(place.folder, Range("the range", given["since_ms"] or 0, sys.maxsize))
    file = place.config or noted_config(start.record, place.folder)
    settings, _ = checked_without_secrets(file)
    candles = candles_for({**given, "start_ms": start.at_ms, "later": "--since"}, settings, start.record, file)
    return history_of_journal(place.folder, start, settings, candles)


def _print(result: WhatIf) -> None:
    """The best settings and the present one, the trades that the best changes, and what to know of it."""
    from bot.cli.common.formatting import print_table
    from bot.clock import iso
    from bot.money import format_e8
    from bot.research.what_if.comparison import PRESENT

    def text(setting: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {value}" for name, value in setting.items())

    def ended(trade: PlayedTrade | None) -> str:
        if trade is None:
            return "no trade"
        return f"{iso(trade.exit_ms)[:19]} {trade.exit_kind}" if trade.exit_ms else "open"

    best = result.best
    rows = [{"setting": text(effect.setting), **effect.row()} for effect in result.effects[:SHOWN_MAX]]
    present = f"{PRESENT}: {text(result.present_setting)}"
    rows.append({"setting": present, **dict.fromkeys(best.row(), 0)})
    print_table(rows, [*rows[0]], empty="")
    _print_more(len(result.effects), "setting", "--csv")
    trades = [
        {
            "trade": f"{changed.trade.market} {changed.trade.side} {iso(changed.trade.entry_ms)[:19]}",
            PRESENT: ended(changed.present),
            "best": ended(changed.other),
            "net_usd": format_e8(changed.usd),
        }
        for changed in best.trades[:SHOWN_MAX]
    ]
    if trades:
        click.echo(f"\nChanged by {text(best.setting)}")
        print_table(trades, [*trades[0]], empty="")
        _print_more(len(best.trades), "trade", "--json")
    click.echo()
    for request, code in best.not_placed[:SHOWN_MAX]:
        click.echo(f"not placed: {request.action} {request.market} {iso(request.at_ms)[:19]}: {code}")
    _print_more(len(best.not_placed), "request", "--json")
    for note in result.notes():
        click.echo(note)


def _print_more(count: int, thing: str, option: str) -> None:
    if count > SHOWN_MAX:
        click.echo(f"and {many(count - SHOWN_MAX, thing)} more: {option}")
