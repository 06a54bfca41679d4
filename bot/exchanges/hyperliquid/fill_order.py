"""The order in which fills happened. Pure.

The exchange tells fills in any order within a millisecond, so those of one market and millisecond are put in the order
in which each starts at the position that the one before it has left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from bot.exchanges.protocol import ExecutionReport, UnknownForm


def in_order(reports: Iterable[ExecutionReport], positions: Mapping[str, int] | None = None) -> list[ExecutionReport]:
    """The fills in the order of execution, each once: by time, then by market.

    `positions`: the position of each market before the first fill, where it is known. Fills that do not chain keep the
    order of their trade ids; `gaps` names them. UnknownForm if copies of one fill differ.
    """
    by_key: dict[tuple[str, int, int, int], ExecutionReport] = {}
    for report in reports:
        check_copy(by_key.setdefault(report.key, report), report)
    groups: defaultdict[tuple[int, str], list[ExecutionReport]] = defaultdict(list)
    for report in by_key.values():
        groups[report.at_ms, report.market].append(report)
    ordered: list[ExecutionReport] = []
    reached = dict(positions or {})
    for at_ms, market in sorted(groups):
        chain = chained(groups[at_ms, market], reached.get(market))
        reached[market] = chain[-1].position_after
        ordered += chain
    return ordered


def check_copy(known: ExecutionReport, report: ExecutionReport) -> None:
    """UnknownForm if a second copy of a fill says something else than the first."""
    if known != report:
        raise UnknownForm(
            f"fill {report.trade_id} of {report.market}: the exchange told it with two contents, {known} and {report}; "
            "compare both with the exchange's own page before you trade on"
        )


def chained(reports: Sequence[ExecutionReport], start: int | None) -> list[ExecutionReport]:
    """Fills of one market and instant so that each starts where the one before it ends, from `start` if it is known.

    Hierholzer's walk over all edges: a position is a node, a fill is an edge. By trade id if no such order exists.
    """
    by_id = sorted(reports, key=lambda report: (report.trade_id, report.position_before))
    leaving: defaultdict[int, list[ExecutionReport]] = defaultdict(list)
    balance: defaultdict[int, int] = defaultdict(int)
    for report in reversed(by_id):
        leaving[report.position_before].append(report)
        balance[report.position_before] += 1
        balance[report.position_after] -= 1
    surplus = next((position for position, more in balance.items() if more > 0), None)
    # Fills that end where they begin tell no start. An account that nothing is known of is taken to begin without one.
    starts = [surplus] if surplus is not None else [start, 0, by_id[0].position_before]
    first = next(begin for begin in starts if begin is not None and begin in leaving)
    stack: list[tuple[int, ExecutionReport | None]] = [(first, None)]
    walk: list[ExecutionReport] = []
    while stack:
        position, arrived = stack[-1]
        if leaving[position]:
            report = leaving[position].pop()
            stack.append((report.position_after, report))
        else:
            stack.pop()
            if arrived is not None:
                walk.append(arrived)
    walk.reverse()
    is_whole = len(walk) == len(by_id) and not any(_breaks(walk))
    return walk if is_whole else by_id


def _breaks(chain: Sequence[ExecutionReport]) -> Iterable[ExecutionReport]:
    """Fills that do not start where the one before them ends."""
    return (after for before, after in pairwise(chain) if before.position_after != after.position_before)


def gaps(ordered: Sequence[ExecutionReport]) -> list[ExecutionReport]:
    """Fills before which at least one fill of their market is missing, in fills that `in_order` has ordered."""
    by_market: defaultdict[str, list[ExecutionReport]] = defaultdict(list)
    for report in ordered:
        by_market[report.market].append(report)
    return [report for chain in by_market.values() for report in _breaks(chain)]
