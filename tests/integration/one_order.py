"""A process that is to be killed: one decision, one order, by the production loop over real sockets and a real file.
Run by test_kill_points.

It serves lines on stdin, {"base_url", "key", "address", "path", "orders"}, and forks for each; the child says its
number, waits for a line (so that a tracer can take hold of it), decides and sends, and says how its intents stand.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import structlog

from bot.client import Client
from bot.errors import OutcomeUnknown, TryLater
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Intent, Open, Strategy, View

PASSES = 20
PR_SET_PTRACER = 0x59616D61
ANYBODY = 2**64 - 1


class Once(Strategy):
    """Long with a stop on every bar that finds nothing open; the service's clock stands, so there is one bar."""

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        if view.position(bar.market) is None:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))


class Pacer:
    """A retry comes at once."""

    def __init__(self) -> None:
        self.now_ms = 0

    def mono_ms(self) -> int:
        return self.now_ms

    def delay_ms(self, attempt: int) -> int:
        return 1

    async def sleep(self, ms: int) -> None:
        self.now_ms += ms


async def decide(told: dict[str, Any]) -> list[str]:
    client = Client(told["base_url"], told["key"])
    journal = open_journal(Path(told["path"]), address=told["address"], secret=told["key"])
    strategy = Once(name="once", markets=("BTC",))
    allowance = StrategyLimits(
        "once", frozenset(["BTC"]), interval_ms=60_000, budget_usd=Decimal(1_000), max_leverage=3, path=told["orders"]
    )
    pacer = Pacer()
    kernel = Kernel(port=client, journal=journal, specs=[StrategySpec(strategy, "1m", allowance)], pacer=pacer)
    for _ in range(PASSES):
        pacer.now_ms += 1_000
        try:
            if not kernel.state.ready:
                await kernel.recover()
            await kernel.cycle()
        except (TryLater, OutcomeUnknown):
            continue
        states = [row["state"] for row in journal.db["intents"].rows]
        if states and set(states) <= {"accepted", "rejected", "expired", "void"}:
            break
    states = [row["state"] for row in journal.db["intents"].rows]
    await client.aclose()
    journal.close()
    return states


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    while line := os.read(0, 65_536):
        told = json.loads(line)
        pid = os.fork()
        if pid == 0:
            # Only Linux with Yama asks for it.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANYBODY), 0, 0, 0)
            os.write(1, json.dumps({"pid": os.getpid()}).encode() + b"\n")
            os.read(0, 1)
            states = asyncio.run(decide(told))
            os.write(1, json.dumps({"states": states}).encode() + b"\n")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        os.write(1, json.dumps({"ended": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


if __name__ == "__main__":
    main()
