"""Assertions on a backtest of `bot.testing.backtest`.

A failure says what happened instead, and why orders were refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final

from bot.backtest.backtest import Backtest, cuts_between, prove_causal
from bot.backtest.engine.options import SessionOptions, within
from bot.backtest.engine.outside_reads import watching, watching_clock
from bot.clock import iso
from bot.logs import quiet_log
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.fold import fold_wire_event
from bot.runtime.model.positions import AccountPosition
from bot.testing.backtests import Run, Trade
from bot.words import many

CUTS: Final = 5
TRADES_SHOWN: Final = 5


def assert_opened(run: Run, market: str | None = None, *, side: str | None = None, count: int | None = None) -> None:
    """At least one position was opened, or exactly `count`; only those of this market and side count."""
    __tracebackhide__ = True
    trades = [trade for trade in run.trades if market in (None, trade.market) and side in (None, trade.side)]
    if (len(trades) == count) if count is not None else trades:
        return
    wanted = many(1 if count is None else count, f"{side} position" if side else "position")
    where = f" in {market}" if market else ""
    bound = "at least " if count is None else ""
    raise AssertionError(f"expected {bound}{wanted}{where}, and {len(trades)} opened; {_course(run)}")


def assert_protected(run: Run, market: str | None = None) -> None:
    """From its entry to its end, each position had a stop for its whole size, or a trailing stop.

    Fails too if no position was opened.
    """
    __tracebackhide__ = True
    if not any(market in (None, trade.market) for trade in run.trades):
        raise AssertionError(f"no position was opened, so no stop was tested; {_course(run)}")
    for at_ms, position in _unprotected(run):
        if market in (None, position.market):
            raise AssertionError(
                f"the {position.side} position of {position.size} {position.market} had no stop for its whole size at"
                f" {iso(at_ms)}"
            )


def assert_flat(run: Run, market: str | None = None) -> None:
    """No position is open at the end, and no entry rests."""
    __tracebackhide__ = True
    state = AccountState()
    for event in run.events:
        fold_wire_event(state, event)
    held = [_shown(trade) for trade in run.open_trades(market)]
    held += [
        f"an order to open {order.side} {order.size} {order.market}"
        for order in state.orders.values()
        if order.could_open and market in (None, order.market)
    ]
    if held:
        raise AssertionError(f"expected nothing at the end, and there is {'; '.join(held)}")


def assert_causal(run: Run, *, cuts: int = CUTS) -> None:
    """No decision depends on later bars: the same backtest on bars that end at each of `cuts` instants has the same
    events.

    Fails too if the strategy opens a file, a connection or a process, or reads the clock, and if it opened no position.
    A strategy that is given as "file:Class" is loaded again, so that reads at its import are found.
    """
    __tracebackhide__ = True
    if not run.trades:
        raise AssertionError(
            f"no position was opened, so nothing was proved; give bars that it trades on; {_course(run)}"
        )

    def make(options: SessionOptions, cut_ms: int) -> Backtest:
        parts = [part for candles in run.candles if len(part := candles.slice(None, cut_ms))]
        return run.again(parts, within(options, parts), is_cut=True)

    step_ms = max(candles.step_ms for candles in run.candles)
    instants = cuts_between(cuts, run.result.start_ms, run.result.end_ms, step_ms=step_ms, seed=run.options.seed)
    if not instants:
        raise AssertionError(f"{many(len(run.candles[0]), 'bar')} are too few for a cut, so nothing was proved")
    with quiet_log(), watching() as outside:
        with watching_clock(outside):
            run.again(run.candles, run.options).run()
        proof = prove_causal(make, run.options, run.lines, instants)
    if proof.differs is not None:
        raise AssertionError(f"not causal: {proof.differs}")
    if outside:
        raise AssertionError(
            f"not proved causal: the strategy {', '.join(outside)}, and cutting the bars does not cut that"
        )


def _unprotected(run: Run) -> Iterator[tuple[int, AccountPosition]]:
    """Each position without a stop, by the daemon's own rule, with the instant after whose events it has none."""
    state = AccountState(owner_of=lambda key: key)
    for at_ms, events in groupby(run.events, key=attrgetter("ts")):
        for event in events:
            fold_wire_event(state, event)
        for position in state.unprotected():
            yield at_ms, position


def _course(run: Run) -> str:
    """What happened: the trades, and why orders failed."""
    failures = run.result.failures
    parts = [f"the backtest had {many(len(run.trades), 'trade')}"]
    parts += [_shown(trade) for trade in run.trades[:TRADES_SHOWN]]
    for what, counts, firsts in (
        ("refused by the risk check", failures.refusals, failures.first_refusals),
        ("refused by the service", failures.rejections, failures.first_rejections),
        ("not filled", failures.unfilled, failures.first_unfilled),
    ):
        parts += [
            f"{what}: {code} {many(number, 'time')}, first: {firsts[code].message}" for code, number in counts.items()
        ]
    return "; ".join(parts)


def _shown(trade: Trade) -> str:
    end = "still open" if trade.is_open else f"{trade.exit_kind} at {trade.exit_px:g}, {trade.pnl_usd:+.2f} USD"
    return f"{trade.market} {trade.side} {trade.size:g} at {trade.entry_px:g} ({iso(trade.entry_ms)}), {end}"
