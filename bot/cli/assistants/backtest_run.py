"""A backtest that an assistant asks for:

`bot backtest` as a process of its own, at low priority, one at a time, with a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bot.errors import BotError

# a longer backtest is for a person, with a progress bar
RUN_S: Final = 300.0
# a lower priority than that of the daemon, which may run on the same machine
NICE: Final = 10
# characters of what the backtest says on standard error
ERROR_MAX: Final = 1_000


class BacktestRefused(BotError):
    """The backtest cannot be run as it was asked for; the message says why."""


class BacktestRuns:
    """Runs backtests on these candles. The results are returned and not kept."""

    def __init__(self, data: Sequence[str]) -> None:
        self._data = data
        self._running = asyncio.Lock()

    async def run(self, config: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        """The summary, as `bot backtest --json` prints it.

        BacktestRefused if it fails, takes too long, or another one runs.
        """
        options = options_of(given)
        if self._running.locked():
            raise BacktestRefused("a backtest is running already; call again when it has ended")
        async with self._running:
            with tempfile.TemporaryDirectory(prefix="bot-backtest-") as out:
                data = [f"--data={place}" for place in self._data]
                command = [
                    sys.executable,
                    "-m",
                    "bot",
                    "backtest",
                    *data,
                    *options,
                    f"--out={out}",
                    "--json",
                    "--",
                    str(config),
                ]
                return await _summary(command)


def options_of(given: Mapping[str, Any]) -> list[str]:
    """The options of `bot backtest`. Each is one argument, so that no value can become another option."""
    left = dict(given)
    params = left.pop("params", None) or {}
    options = []
    for name in ("from", "to", "balance"):
        value = left.pop(name, None)
        if value is not None:
            options.append(f"--{name}={_plain(name, value)}")
    if left:
        raise BacktestRefused(f"unknown field {next(iter(left))}; known are from, to, balance and params")
    if not isinstance(params, dict):
        raise BacktestRefused('params is an object, such as {"trend.fast_bars": 8}')
    if any("${" in f"{name}{value}" for name, value in params.items()):
        raise BacktestRefused(
            "params: a value takes no reference such as ${env:NAME}; only the author of the config may write one"
        )
    return options + [f"--param={name}={_plain(name, value)}" for name, value in params.items()]


def _plain(name: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        raise BacktestRefused(f"{name} is text or a number")
    return json.dumps(value) if isinstance(value, bool) else str(value)


async def _summary(command: Sequence[str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        async with asyncio.timeout(RUN_S):
            out, err = await process.communicate()
    except TimeoutError:
        raise BacktestRefused(f"it took longer than {RUN_S:g} s: choose a shorter range with from and to") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    problem = err.decode("utf-8", "replace").strip().removeprefix("error: ")[:ERROR_MAX]
    try:
        summary: dict[str, Any] = json.loads(out)
    except ValueError:
        raise BacktestRefused(problem or f"bot backtest ended with {process.returncode}") from None
    # The folder was temporary.
    summary.pop("folder", None)
    return summary | ({"problem": problem} if process.returncode else {})
