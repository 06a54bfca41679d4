"""Many: 200 strategies on 50 markets in one daemon, all of which act on every bar, against the embedded service in a
process of its own.

Prints from the close of a bar to the moment each order left, CPU, memory: without rate limits, first with direct
orders, then with planned ones; then with the default limits, where the limits decide how long entries wait. Closes go
first. Figures only; judges none of them.

python -m tests.bench.many [--strategies 200] [--bars 6] [--only direct] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.e2e.processes import own_mb

# a minute's bar in ten seconds: what one costs is over before the next, and a service millisecond is well under a real
# one
SPEED = 6
STEP_MS = 60_000
MARKETS = 50
# the first plan, because nothing is proven of the service yet
WARM_BARS = 3
WAIT_S = 120.0
# the dead-man's real time, long enough that no beat is missed on a busy machine
BEAT_REAL_S = 100
PAIR = '''\
"""In turn: opens on one bar, closes on the next. Every second strategy is one bar behind."""

from bot import Bracket, Close, Field, Open, Params, Strategy


class Pair(Strategy):
    class Params(Params):
        odd: int = Field(0, ge=0, le=1)

    def on_bar(self, view, bar):
        if (bar.at_ms // 60_000 + self.params.odd) % 2:
            if not view.position(bar.market):
                yield Open(bar.market, "long", usd=20, bracket=Bracket(stop_pct=20, target_pct=20))
        elif view.position(bar.market):
            yield Close(bar.market)
'''
CONFIG = """\
account: {base_url: "%(base_url)s", api_key: "${file:api-key}"}
dead_man: {heartbeat_seconds: %(beat_s)s}
state_dir: state
strategies_dir: strategies
orders: {path: %(path)s}
log: {format: json, level: warning}
strategies:
"""


class Mode(NamedTuple):
    """One measurement: the path of the orders, and whether the service limits the rate of requests."""

    name: str
    path: str
    limits: bool


MODES = (
    Mode("direct", "direct", limits=False),
    Mode("planned", "plan", limits=False),
    Mode("limited", "plan", limits=True),
)


class Sent(NamedTuple):
    """One order that left: what it was, on which bar, and how many real milliseconds after the close."""

    kind: str
    bar_ms: int
    after_ms: float


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--strategies", type=int, default=200)
    given.add_argument("--bars", type=int, default=6)
    given.add_argument("--only", choices=[one.name for one in MODES], help="one of the three measurements")
    given.add_argument("--profile", action="store_true")
    given.add_argument("--daemon", nargs=2, metavar=("CONFIG", "OUT"), help=argparse.SUPPRESS)
    asked = given.parse_args()
    if asked.daemon:
        daemon(*asked.daemon, profile=asked.profile)
        return
    with tempfile.NamedTemporaryFile(dir=os.environ.get("BENCH_DIR")) as file:
        synced = []
        for _ in range(100):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            synced.append((time.perf_counter() - began) * 1000)
    print(
        f"one synced write on this disk: p50 {statistics.median(synced):.3f} ms, p99 {_p99(synced):.3f} ms (BENCH_DIR"
        " names another)"
    )
    for mode in MODES:
        if asked.only in (None, mode.name):
            measure(asked.strategies, asked.bars, mode, profile=asked.profile)


# -- the process that is measured


def daemon(config: str, out: str, *, profile: bool) -> None:
    """`bot run CONFIG`, with a note of every order at the moment that its last byte is given to the socket; what is
    sent again is noted too.
    """
    from bot.cli import main as command
    from bot.client import Client
    from bot.client.connections import HttpAnswer, HttpConnection

    clocks: list[Any] = []
    notes: list[tuple[bytes, int]] = []
    made = Client.__init__

    def making(self: Client, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        clocks.append(self.clock)

    asking = HttpConnection.ask

    def noted(self: HttpConnection, request: bytes) -> asyncio.Future[HttpAnswer]:
        answer = asking(self, request)
        # It is read afterwards: this is not to be what is measured.
        notes.append((request, clocks[-1].now_ms()))
        return answer

    Client.__init__ = making  # type: ignore[method-assign]
    HttpConnection.ask = noted  # type: ignore[method-assign]  # notes it, and does what it did
    sys.argv = ["bot", "run", config]
    profiler = None
    if profile:
        import cProfile

        from bot.runtime.kernel.kernel import Kernel

        profiler = cProfile.Profile()
        cycle = Kernel.cycle

        async def profiled(self: Kernel, **named: Any) -> None:
            # What a start costs is another question.
            if self.state.last_bar_ms is not None:
                profiler.enable()
            await cycle(self, **named)

        Kernel.cycle = profiled  # type: ignore[method-assign]
    try:
        command()
    finally:
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(out + ".prof")
        Path(out).write_text(json.dumps([read for request, at_ms in notes if (read := _read(request, at_ms))]))


def _read(request: bytes, at_ms: int) -> tuple[str, str, str, str, int] | None:
    """Path, market, idempotency key, body of a confirm, instant; None for what is no order."""
    head, body = request.split(b"\r\n\r\n", 1)
    method, path, _ = head[: head.index(b"\r\n")].decode().split(" ")
    if method != "POST" or not (path.startswith("/v1/orders") or path.endswith("/close")):
        return None
    key = next((line[17:] for line in head.decode().split("\r\n") if line.startswith("Idempotency-Key: ")), "")
    market = path.split("/")[3] if path.endswith("/close") else json.loads(body).get("market", "")
    return path, market, key, body.decode() if path.endswith("/confirm") else "", at_ms


# -- measuring


def measure(strategies: int, bars: int, mode: Mode, *, profile: bool = False) -> None:
    path = "one request an order" if mode.path == "direct" else "each entry planned and confirmed"
    limits = "as by default" if mode.limits else "off"
    print(f"-- {mode.name}: {strategies} strategies on {MARKETS} markets, {path}, rate limits {limits}")
    with tempfile.TemporaryDirectory(prefix="bot-", dir=os.environ.get("BENCH_DIR")) as name, ExitStack() as closing:
        folder = Path(name)
        service, base_url = start_service(folder, limits=mode.limits)
        try:
            make_project(folder, base_url, strategies, path=mode.path)
            out = folder / "sent.json"
            command = [sys.executable, "-m", "tests.bench.many", "--daemon", str(folder / "many.yaml"), str(out)]
            with (folder / "log").open("ab") as log:
                run = subprocess.Popen(command + (["--profile"] if profile else []), stdout=log, stderr=log)
            # Of one that has ended nothing comes.
            closing.callback(run.kill)
            wait_passes(folder, run)
            started, before = time.monotonic(), {pid: _cpu_s(pid) for pid in (run.pid, service.pid)}
            time.sleep((WARM_BARS + bars) * STEP_MS / 1000 / SPEED)
            took = time.monotonic() - started
            for what, pid in (("daemon", run.pid), ("service", service.pid)):
                print(
                    f"   {what:8s} CPU {(_cpu_s(pid) - before[pid]) / took * 100:5.1f} %, memory {own_mb(pid):6.1f} MB"
                    " of its own"
                )
            run.send_signal(signal.SIGTERM)
            run.wait(WAIT_S)
            if not out.exists():
                raise SystemExit((folder / "log").read_text()[-3000:])
            sent, calm = _sent(json.loads(out.read_text()))
            _report(sent)
            bars_ms = set(sorted({one.bar_ms for one in sent})[WARM_BARS:])
            kept, apart = ([o.after_ms for o in of if o.bar_ms in bars_ms and o.kind != "plan"] for of in (sent, calm))
            print(
                f"   without the {len(kept) - len(apart)} in a market where the service refused one for now on that"
                f" bar: p99 {_p99(apart):.1f} ms"
            )
            shown = [line for line in (folder / "log").read_text().splitlines() if '"level"' in line]
            kinds: dict[str, int] = {}
            for line in shown:
                said = json.loads(line)
                word = f"{said['event']} {said.get('code', '')}".strip()
                kinds[word] = kinds.get(word, 0) + 1
            print(f"   warnings {kinds}")
            if profile:
                import pstats

                pstats.Stats(str(out) + ".prof").sort_stats("tottime").print_stats(45)
        finally:
            service.terminate()
            service.wait(WAIT_S)


def start_service(folder: Path, *, limits: bool, speed: int = SPEED) -> tuple[subprocess.Popen[bytes], str]:
    reader, writer = os.pipe()
    options = [] if limits else ["--no-rate-limits"]
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bot",
                "sandbox",
                "--port",
                "0",
                "--clock",
                f"{speed}x",
                "--seed",
                "7",
                "--db",
                str(folder / "service.db"),
                "--markets",
                ",".join(_markets()),
                "--ready-fd",
                str(writer),
                *options,
            ],
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
        )
    os.close(writer)
    assert select.select([reader], [], [], WAIT_S)[0], "the service is not ready"
    said = json.loads(os.read(reader, 4096))
    os.close(reader)
    return process, said["baseUrl"]


def _markets() -> list[str]:
    from bot.service.market_data.instruments import CATALOGUE

    # perps first, then event markets
    listed = list(CATALOGUE)
    return [*listed[: MARKETS - 3], *listed[-3:]]


def make_project(folder: Path, base_url: str, strategies: int, *, path: str, speed: int = SPEED) -> None:
    answer = httpx.post(
        f"{base_url}/v1/sandbox/accounts", json={"name": "many", "startingBalanceUsd": 100_000}, trust_env=False
    )
    key = folder / "api-key"
    key.touch(0o600)
    key.write_text(answer.raise_for_status().json()["apiKey"])
    (folder / "strategies").mkdir()
    (folder / "strategies" / "pair.py").write_text(PAIR)
    markets = _markets()
    lines = [
        f'  - {{name: s{n:03d}, use: "pair:Pair", markets: ["{markets[n % len(markets)]}"], interval: 1m, budget_usd:'
        f" 100, max_leverage: 1, netting: allow, params: {{odd: {n // len(markets) % 2}}}}}\n"
        for n in range(strategies)
    ]
    (folder / "many.yaml").write_text(
        CONFIG % {"base_url": base_url, "path": path, "beat_s": BEAT_REAL_S * speed} + "".join(lines)
    )


def wait_passes(folder: Path, run: subprocess.Popen[bytes]) -> None:
    from bot.runtime.liveness.progress_stamp import ProgressReader

    reader = ProgressReader(str(folder / "state" / "progress"))
    end = time.monotonic() + WAIT_S
    while (stamp := reader.read()) is None or stamp.cycles < 2 or stamp.is_of_start:
        if run.poll() is not None or time.monotonic() > end:
            raise SystemExit((folder / "log").read_text()[-3000:])
        time.sleep(0.05)
    reader.close()


def _sent(notes: list[tuple[str, str, str, str, int]]) -> tuple[list[Sent], list[Sent]]:
    """Each order once, when it left first. Then the same without those of a market where, on that bar, the service
    refused one for now (no depth, say): the next one in that market waits for what becomes of it, however fast we are.
    """
    # or each entry is one request
    plans = any(path.endswith("/confirm") for path, *_ in notes[len(notes) // 2 :])
    first: dict[tuple[str, str], tuple[str, str, int]] = {}
    again: set[tuple[str, int]] = set()
    for path, market, key, token, now_ms in notes:
        bar_ms = now_ms // STEP_MS * STEP_MS
        kind = "close" if path.endswith("/close") else "entry" if path.endswith("/confirm") or not plans else "plan"
        if key and (key, token) in first:
            again.add((market, first[key, token][2] // STEP_MS * STEP_MS))
            again.add((market, bar_ms))
        else:
            first[(key, token) if key else ("", str(len(first)))] = kind, market, now_ms
    sent, calm = [], []
    for kind, market, now_ms in sorted(first.values(), key=lambda one: one[2]):
        bar_ms = now_ms // STEP_MS * STEP_MS
        sent.append(Sent(kind, bar_ms, (now_ms - bar_ms) / SPEED))
        if not market or (market, bar_ms) not in again:
            calm.append(sent[-1])
    return sent, calm


def _report(sent: list[Sent]) -> None:
    bars = sorted({one.bar_ms for one in sent})[WARM_BARS:]
    everything: list[float] = []
    behind = 0
    for bar_ms in bars:
        mine = [one for one in sent if one.bar_ms == bar_ms]
        after = [one.after_ms for one in mine if one.kind != "plan"]
        first = min((one.after_ms for one in mine if one.kind != "close"), default=None)
        everything += after
        entries = [one.after_ms for one in mine if one.kind == "entry"]
        closes = [one.after_ms for one in mine if one.kind == "close"]
        behind += 0 if first is None else sum(one > first for one in closes)
        print(
            f"   bar: {len(closes):4d} closes {_span(closes)}, {len(entries):4d} entries {_span(entries)}; p99 of all"
            f" {_p99(after):7.1f} ms"
        )
    if everything:
        print(
            f"   from a bar's close to request sent, {len(everything)} orders: p50 {statistics.median(everything):.1f}"
            f" ms, p99 {_p99(everything):.1f} ms, last {max(everything):.1f} ms; closes sent after the first entry of"
            f" their bar: {behind}"
        )


def _span(after: list[float]) -> str:
    return f"{min(after):6.1f}..{max(after):7.1f} ms" if after else "-"


def _p99(values: list[float]) -> float:
    return sorted(values or [0.0])[max(0, int(len(values) * 0.99) - 1)]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
