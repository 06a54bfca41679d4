"""The progress bar and the final summary of `bot backtest`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bot import terminal
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.results.run_writer import Result

GUARDIANS_SHOWN: Final = 20


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[int, int], bool]]:
    """Show a progress bar with bars per second. Without a terminal nothing is shown."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda _done, _of: True
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from bot.clock import monotonic_ns

    started_ns = monotonic_ns()
    columns = (
        TextColumn("bars"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal.console(is_error=True), transient=True, refresh_per_second=8) as progress:
        task = progress.add_task("bars", total=None, rate="")

        def show(done: int, of: int) -> bool:
            rate = done / max(1e-9, (monotonic_ns() - started_ns) / 1e9)
            progress.update(task, completed=done, total=of, rate=f"{rate:,.0f} bars/s")
            return True

        yield show


def summary_lines(
    result: Result,
    assumptions: Sequence[str],
    *,
    band: Mapping[str, Any] | None = None,
    proof: Mapping[str, Any] | None = None,
    monte_carlo: Mapping[str, Any] | None = None,
) -> list[str]:
    """The summary for a terminal."""
    from bot.backtest.report.summary import (
        COSTS,
        FIRST,
        band_lines,
        figure_lines,
        guardian_text,
        line_of,
        refusals_text,
    )
    from bot.backtest.report.verdicts import monte_carlo_lines
    from bot.backtest.results.run_writer import failures_as_json, fired_row
    from bot.clock import iso
    from bot.money import format_e8
    from bot.number_text import duration_ms, usd

    stats, trade_ledger = result.stats, result.trade_ledger
    lines = [
        (
            f"{iso(result.start_ms)[:16]} to {iso(result.end_ms)[:16]}   {many(stats.bars, 'bar')}, {stats.touched:,}"
            " of them could touch an order, a stop or a deadline"
        )
    ]
    if stats.is_partial:
        lines.append(f"PARTIAL: stopped after {stats.bars:,} of {many(stats.bars_in_all, 'bar')}")
    lines += figure_lines(result.figures, band, result.end_ms - result.start_ms)
    paid = {"feesUsd": trade_ledger.fees, "fundingUsd": trade_ledger.funding, "slippageUsd": trade_ledger.slippage}
    lines += [line_of(COSTS[name].of(format_e8(usd_e8))) for name, usd_e8 in paid.items()]
    if trade_ledger.kinds:
        lines.append("  exits: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(trade_ledger.kinds.items())))
    failures = failures_as_json(result.failures)
    lines += [f"  {line}" for by in FIRST for line in refusals_text(failures, by)]
    if result.liquidations:
        lines.append(f"  LIQUIDATIONS: {result.liquidations}")
    if trade_ledger.backstop:
        lines.append(
            f"  losses beyond the margin: {format_e8(trade_ledger.backstop)} USD, paid by the service so that no"
            " balance went below zero"
        )
    lines += [
        f"  guardian {guardian_text(fired_row(guardian))}" for guardian in trade_ledger.guardians[:GUARDIANS_SHOWN]
    ]
    if len(trade_ledger.guardians) > GUARDIANS_SHOWN:
        lines.append(f"  and {len(trade_ledger.guardians) - GUARDIANS_SHOWN:,} more: summary.json has all of them")
    for down in stats.outage_records:
        lines.append(
            f"  down {iso(down.outage.at_ms)[:19]} for {duration_ms(down.outage.ms)}: "
            f"{many(max(0, down.last_event - down.first_event + 1), 'event')}, "
            f"equity {usd(down.equity_before_usd)} -> {usd(down.equity_after_usd)}"
        )
    lines += [f"  QUARANTINED {name}: {why}" for name, why in stats.quarantined.items()]
    lines += [f"  open at the end: {line}" for line in result.left]
    lines += [f"  {line}" for line in (() if band is None else band_lines(band))]
    lines += [f"  {line}" for line in monte_carlo_lines(monte_carlo or {})]
    lines += [f"  {line}" for line in _proof_lines(proof)]
    lines.append("  assumptions:")
    lines += [f"    {assumption}" for assumption in assumptions]
    return lines


def _proof_lines(proof: Mapping[str, Any] | None) -> Iterator[str]:
    """What the proof of causality has shown; nothing without one."""
    from bot.backtest.engine.outside_reads import PROVED
    from bot.backtest.report.summary import outside_text

    if proof is None:
        return
    verdict = "causal: equal decisions" if proof["isWhole"] else "not proven causal: equal decisions so far"
    if proof["differs"] is not None:
        verdict = "NOT CAUSAL"
    elif proof["outside"]:
        verdict = f"not proved: {outside_text(proof['outside'])}; equal decisions"
    elif proof["moved"]:
        verdict = f"not proved: {'; '.join(proof['moved'])}; equal decisions"
    cuts, events = many(len(proof["cutsMs"]), "instant"), many(proof["eventsCompared"], "event")
    yield f"{verdict} on data cut at {cuts}, {events} compared"
    if verdict.startswith("causal"):
        yield f"the proof covers {PROVED}, and nothing else"
