"""A drill: many worlds, here or in other processes, and what came of them together.

Also as JUnit XML, for a test server.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from bot.drill.faults import KINDS, Kind
from bot.drill.outcome import WorldOutcome
from bot.drill.world import DrillSetup, World
from bot.errors import BotError
from bot.operating_system import watch_parent

# The ground of the process in which worlds run: forked processes have it without a copy.
_ground: DrillSetup | None = None


def lived(ground: DrillSetup, seed: int, *, is_told: bool = False) -> WorldOutcome:
    """The outcome of one world. The same seed on the same ground gives the same outcome."""
    with TemporaryDirectory(prefix="bot-drill-") as folder:
        return World(ground, seed, Path(folder), is_told=is_told).run()


def outcomes(ground: DrillSetup, seeds: Iterable[int], workers: int = 1) -> Generator[WorldOutcome]:
    """The outcomes of the worlds as they finish.

    BotError if a process dies. Closing the iterator ends the processes.
    """
    if workers == 1:
        yield from (lived(ground, seed) for seed in seeds)
        return
    global _ground  # noqa: PLW0603  read by the forked processes
    _ground = ground
    waiting, running = iter(seeds), dict[Future[WorldOutcome], int]()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_ready, initargs=(os.getpid(),))
    try:
        while True:
            running |= {pool.submit(_lived, seed): seed for seed in islice(waiting, 2 * workers - len(running))}
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                del running[future]
    except BrokenProcessPool:
        seeds_left = ", ".join(str(seed) for seed in sorted(running.values()))
        raise BotError(
            f"a process died in one of the worlds {seeds_left}; run each alone, with --worlds 1 --seed SEED"
        ) from None
    finally:
        # The pool offers no way to stop a running task.
        for process in list((pool._processes or {}).values()):  # noqa: SLF001
            process.kill()
        pool.shutdown(cancel_futures=True)


def _lived(seed: int) -> WorldOutcome:
    assert _ground is not None
    return lived(_ground, seed)


def _ready(parent: int) -> None:
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(parent)


class Summary(NamedTuple):
    """Several worlds together. `longest_bare_ms`: the longest stretch in which a position had no stop; `worst_usd`: the
    lowest account value below the beginning's, of any world.
    """

    worlds: int
    failed: int
    lost: int
    doubled: int
    bare_ms: int
    longest_bare_ms: int
    worst_usd: float
    fires: int
    saved_usd: float


def summary(outcomes: Sequence[WorldOutcome]) -> Summary:
    return Summary(
        worlds=len(outcomes),
        failed=sum(not outcome.has_passed for outcome in outcomes),
        lost=sum(outcome.count("lost") for outcome in outcomes),
        doubled=sum(outcome.count("doubled") for outcome in outcomes),
        bare_ms=sum(outcome.bare_ms for outcome in outcomes),
        longest_bare_ms=max((outcome.longest_bare_ms for outcome in outcomes), default=0),
        worst_usd=min((outcome.worst_usd for outcome in outcomes), default=0.0),
        fires=sum(len(outcome.fires) for outcome in outcomes),
        saved_usd=sum(outcome.saved_usd for outcome in outcomes),
    )


def by_fault(outcomes: Sequence[WorldOutcome]) -> dict[Kind, list[WorldOutcome]]:
    """The worlds in which a fault came up. A world with several faults stands under each of them."""
    return {
        kind: [outcome for outcome in outcomes if any(fault.kind == kind for fault in outcome.faults)] for kind in KINDS
    }


def as_json(outcomes: Sequence[WorldOutcome]) -> dict[str, Any]:
    """A drill as JSON: the sums, and each world in the order of seeds."""
    total = summary(outcomes)
    return {
        "worlds": total.worlds,
        "failed": total.failed,
        "orders": sum(outcome.orders for outcome in outcomes),
        "lost": total.lost,
        "doubled": total.doubled,
        "secondsWithoutStop": total.bare_ms / 1000,
        "longestWithoutStop": total.longest_bare_ms / 1000,
        "worstUsd": round(total.worst_usd, 2),
        "guardianFires": total.fires,
        "savedUsd": round(total.saved_usd, 2),
        "outcomes": [outcome.plain() for outcome in outcomes],
    }


def junit(name: str, outcomes: Sequence[WorldOutcome]) -> str:
    """A test suite of JUnit XML with one test case for each world."""
    root = Element("testsuites")
    count = {"tests": str(len(outcomes)), "failures": str(summary(outcomes).failed), "errors": "0"}
    took_s = sum(outcome.took_s for outcome in outcomes)
    suite = SubElement(root, "testsuite", {"name": f"drill {name}", "time": f"{took_s:.3f}", **count})
    for outcome in outcomes:
        case = SubElement(
            suite, "testcase", classname=f"drill.{name}", name=f"seed {outcome.seed}", time=f"{outcome.took_s:.3f}"
        )
        if not outcome.has_passed:
            text = "\n".join(f"{finding.kind}: {finding.text}" for finding in outcome.findings)
            failure = SubElement(case, "failure", message=outcome.findings[0].text, type=outcome.findings[0].kind)
            failure.text = text
        SubElement(case, "system-out").text = "\n".join(str(fault) for fault in outcome.faults) or "no fault"
    indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{tostring(root, encoding='unicode')}\n"
