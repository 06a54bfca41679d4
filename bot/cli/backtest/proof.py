"""`bot proof`: replay a day of a daemon's journal, give each difference one cause, and keep the result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.daemon_client import find, where
from bot.cli.common.formatting import print_table
from bot.cli.common.param_types import Duration, Instant
from bot.cli.common.shared_options import SERVICE_DATA, json_option
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.proof.day_proof import Range
    from bot.backtest.proof.trend import ProofTrend
    from bot.cli.common.daemon_client import Place

EPILOG: Final = """\b
Examples:
  bot proof
  bot proof --day 2026-11-27
  bot proof --since 2026-11-20 --data data
  bot proof show --days 90
  bot proof calibrate --days 14

\b
Without --day and --since the newest day of the journal is proved, as far as it has come. The journal is only read. The
result is kept in the folder `proofs` of the state directory, one file a day; --since keeps nothing. Exit code 0: each
difference has a cause. 1: some causes are unknown. The causes: timing, price, slippage, fee, funding, guardian,
foreign activity, operator, approval, agent, code, config, data revised, outage, unknown.
"""
CALIBRATE_EPILOG: Final = """\b
Examples:
  bot proof calibrate --days 14 --out calibration.json
  bot backtest configs/paper.yaml --data data --calibration calibration.json

\b
Each measure is a median with an interval of 95 % and the number of its fills; fewer than five say nothing. The spread
includes the walk through the order book. The latency is the time from the close of a bar to the fill of its order.
"""
# differences on a terminal; --json has more
SHOWN_MAX: Final = 40
DAY_COLUMNS: Final = ("day", "decisions", "equal", "differences", "unknown", "slippage_usd", "fee_usd", "outage_usd")
GROUP_COLUMNS: Final = ("fills", "slippage_bps", "slippage_usd", "fee_usd", "tested_fee_usd")
# priority of the daemon's own proof, and its bounds on processor time and memory
NICE: Final = 10
CPU_S: Final = 600
MEMORY_BYTES: Final = 4 * 1024**3


@click.group(invoke_without_command=True, epilog=EPILOG)
@where
@click.option("--day", metavar="YYYY-MM-DD", default=None, help="Prove this UTC day.")
@click.option("--since", "since_ms", type=Instant(), default=None, help="Prove from then to the journal's end.")
@SERVICE_DATA
@click.option("--latency", type=Duration(may_be_zero=True), default=None, help="Delay of an order in the test: 300ms.")
@click.option("--bounded", is_flag=True, hidden=True)
@json_option("The whole proof as JSON.")
@click.pass_context
def proof(
    ctx: click.Context, /, config: Path | None, state_dir: Path | None, *, as_json: bool, bounded: bool, **given: Any
) -> int:
    """Prove that live is what was tested: each difference of a day gets one cause."""
    from bot import logs
    from bot.errors import Exit

    if ctx.invoked_subcommand is not None:
        if config is not None or state_dir is not None or as_json or any(given.values()):
            raise click.UsageError(f"write the options after {ctx.invoked_subcommand}")
        return int(Exit.DONE)
    if bounded:
        _bound()
    logs.configure(pretty=None, level="error")
    document = _proved(find(config, state_dir, dead_too=True), given, is_over=bounded)
    if as_json:
        click.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        for line in proof_lines(document):
            click.echo(line)
    return int(Exit.ERROR if document["causes"].get("unknown") else Exit.DONE)


def _bound() -> None:
    """Take little of the machine: the daemon beside it trades."""
    import os

    from bot.operating_system import limit_work

    os.nice(NICE)
    limit_work(CPU_S, MEMORY_BYTES)


def _proved(place: Place, given: Mapping[str, Any], *, is_over: bool) -> dict[str, Any]:
    from bot.backtest.engine.recorded_answers import AgentOptions
    from bot.backtest.proof.day_proof import prove, start_of, tested_options
    from bot.checks.config_check import checked_without_secrets
    from bot.cli.backtest.replay import candles_for, noted_config
    from bot.runtime.journal import proof_files, queries

    asked = _range(place.folder, given)._replace(is_over=is_over)
    start = start_of(place.folder, asked)
    file = place.config or noted_config(start.record, place.folder)
    settings, _ = checked_without_secrets(file)
    wanted = {"data": given["data"], "start_ms": start.at_ms}
    candles = candles_for(wanted, settings, start.record, file)
    options = tested_options(
        start,
        asked,
        {
            "path": "adaptive",
            "latency_ms": 0 if given["latency"] is None else round(given["latency"] * 1000),
            "agents": AgentOptions("alike", place.folder / queries.FILE),
        },
    )
    document = prove(start, asked, settings, candles, options)
    if given["since_ms"] is None:
        proof_files.write_proof(place.folder, document)
    return document


def _range(folder: Path, given: Mapping[str, Any]) -> Range:
    """The asked day; else from the instant to the journal's end; else the newest day of the journal."""
    from bot.backtest.proof.day_proof import Range
    from bot.backtest.replay.records import read_journal
    from bot.clock import DAY_MS, iso, utc_day_start_ms

    if given["day"] is not None and given["since_ms"] is not None:
        raise click.UsageError("give --day or --since, not both")
    if given["day"] is not None:
        try:
            if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", given["day"], re.ASCII) is None:
                raise ValueError
            from_ms = Instant().convert(given["day"], None, None)
        except (ValueError, click.BadParameter):
            raise click.UsageError(f"--day {given['day']}: is no date like 2026-11-27") from None
        return Range(given["day"], from_ms, from_ms + DAY_MS)
    end_ms = read_journal(folder).end_ms
    from_ms = utc_day_start_ms(end_ms) if given["since_ms"] is None else given["since_ms"]
    if from_ms > end_ms:
        raise click.UsageError(f"--since lies after the journal's end, {iso(end_ms)}")
    return Range(iso(end_ms)[:10], from_ms, end_ms + 1 if given["since_ms"] is not None else from_ms + DAY_MS)


# ── What a person sees ──────────────────────────────────────────────────────────────────────────────────────────────


def proof_lines(document: Mapping[str, Any]) -> list[str]:
    """A proof for a terminal: the counts, the causes, and the first differences."""
    from bot.clock import iso

    counts, share = document["counts"], document["equalShare"]
    compared = ", ".join(
        f"{counts[what]:,} {what}"
        for what in ("decisions", "refusals", "fills", "fundings", "bars")
        if counts.get(what)
    )
    lines = [
        f"{document['name']}, {document['day']}: {iso(document['fromMs'])[:19]} to {iso(document['toMs'])[:19]}",
        f"  compared: {compared or 'nothing'}",
    ]
    lines += [f"  note: {note}" for note in document["notes"]]
    lines += [f"  changed: {text}" for text in document["changed"]]
    if not document["causes"]:
        return [*lines, "  equal: live did what the test does"]
    if share is not None:
        lines.append(f"  equal decisions: {share:.2%}")
    for cause, count in document["causes"].items():
        usd = document["resultUsd"].get(cause, "0")
        lines.append(f"  {cause:<16}  {many(count, 'difference')}, {float(usd):+,.2f} USD against the test")
    for difference in document["differences"][:SHOWN_MAX]:
        who = " ".join(filter(None, (difference["market"], difference["strategy"])))
        lines += [
            f"  {difference['at'][:23]}  {difference['cause']}  {difference['what']}  {who}: {difference['why']}",
            f"      live  {difference['recorded'] or 'nothing'}",
            f"      test  {difference['replayed'] or 'nothing'}",
        ]
    more = sum(document["causes"].values()) - len(document["differences"][:SHOWN_MAX])
    return [*lines, f"  and {more:,} more: --json"] if more > 0 else lines


@proof.command(epilog=CALIBRATE_EPILOG)
@where
@click.option("--days", type=click.IntRange(1, 400), default=30, show_default=True, help="The newest days.")
@SERVICE_DATA
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write the calibration here.  [default: calibration.json in the state directory]",
)
@json_option("The calibration as JSON on standard output.")
def calibrate(
    config: Path | None, state_dir: Path | None, days: int, data: tuple[str, ...], out: Path | None, *, as_json: bool
) -> int:
    """Measure spread, fees and latency of the newest days, as options of a backtest."""
    from bot import logs
    from bot.backtest.proof.calibration import calibrate as measured
    from bot.backtest.proof.calibration import write_calibration
    from bot.backtest.replay.records import read_journal
    from bot.checks.config_check import checked_without_secrets
    from bot.cli.backtest.replay import candles_for, noted_config
    from bot.clock import DAY_MS, utc_day_start_ms
    from bot.errors import BotError, Exit

    logs.configure(pretty=None, level="error")
    place = find(config, state_dir, dead_too=True)
    record = read_journal(place.folder)
    from_ms = max(record.start_ms, utc_day_start_ms(record.end_ms) - (days - 1) * DAY_MS)
    file = place.config or noted_config(record, place.folder)
    settings, _ = checked_without_secrets(file)
    candles = candles_for({"data": data, "start_ms": from_ms}, settings, record, file)
    path = out or place.folder / "calibration.json"
    calibration = measured(record, candles, settings.name, from_ms, record.end_ms + 1)
    if not calibration.markets:
        raise BotError(f"{place.folder}: too few fills in the newest {many(days, 'day')}: nothing can be measured")
    calibration = write_calibration(path, calibration)
    if as_json:
        click.echo(json.dumps(calibration.plain(), indent=1))
    else:
        click.echo(calibration.text)
        click.echo(f"written to {path}: bot backtest CONFIG --data DATA --calibration {path}")
    return int(Exit.DONE)


@proof.command(epilog="\b\nExamples:\n  bot proof show\n  bot proof show --days 7 --json\n")
@where
@click.option("--days", type=click.IntRange(1, 400), default=90, show_default=True, help="The newest proofs.")
@json_option("Data instead of tables.")
def show(config: Path | None, state_dir: Path | None, days: int, *, as_json: bool) -> int:
    """Show the trend of the kept proofs: equal decisions, slippage, fees and outages."""
    from bot.backtest.proof.day_proof import provable_since
    from bot.backtest.proof.trend import read_trend
    from bot.clock import iso
    from bot.errors import Exit

    place = find(config, state_dir, dead_too=True)
    trend, since_ms = read_trend(place.folder, days), provable_since(place.folder)
    if as_json:
        click.echo(json.dumps(trend.plain() | {"provable_since_ms": since_ms}, indent=1))
        return int(Exit.DONE)
    if not trend.days:
        click.echo(f"{place.folder} has no proof yet: bot proof {place.flag} makes one of the newest day")
        return int(Exit.DONE)
    _print_trend(trend)
    if since_ms:
        click.echo(f"days before {iso(since_ms)[:19]} can no longer be proved: the journal has removed their rows")
    return int(Exit.DONE)


def _print_trend(trend: ProofTrend) -> None:
    share = "unknown" if trend.equal_share is None else f"{trend.equal_share:.2%}"
    click.echo(
        f"{many(len(trend.days), 'day')}: {share} of the decisions equal,"
        f" {many(trend.unknown, 'difference')} of unknown cause, outages {trend.outage_usd:+,.2f} USD against the test"
    )
    days = [
        row._asdict() | {"equal": None if row.equal_share is None else f"{row.equal_share:.2%}"} for row in trend.days
    ]
    print_table(days, DAY_COLUMNS, empty="")
    for name, groups in (("market", trend.markets), ("hour", trend.hours)):
        if groups:
            click.echo()
            rows = [
                group._asdict() | {name: group.name, "slippage_bps": f"{group.slippage_bps:+.2f}"} for group in groups
            ]
            print_table(rows, (name, *GROUP_COLUMNS), empty="")
