"""Daemon: seconds from the command to the first decided bar, embedded service included and already running; memory of
all three processes, idle.

python -m tests.bench.daemon
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CONFIG = """\
account: {base_url: embedded}
dead_man: {heartbeat_seconds: 300}
embedded: {clock: real, markets: [BTC]}
strategies_dir: %s
state_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 3}
log: {format: json}
"""
IDLE_S = 5.0
WAIT_S = 60.0


def main() -> None:
    strategies = Path(__file__).resolve().parents[2] / "strategies"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(CONFIG % (strategies, Path(folder) / "state"))
        for name, event in (
            ("first bar, the service starts too", "bar.closed"),
            ("ready again, the service runs", "daemon.ready"),
        ):
            started = time.perf_counter()
            daemon = subprocess.Popen(
                [sys.executable, "-m", "bot", "run", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            _until(daemon, event)
            print(f"start to {name}: {time.perf_counter() - started:5.2f} s")
            if event == "daemon.ready":
                time.sleep(IDLE_S)
                _memory(daemon.pid, folder)
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=20)
        for pid in _processes(folder):
            os.kill(pid, signal.SIGTERM)


def _until(daemon: subprocess.Popen[bytes], event: str) -> None:
    assert daemon.stdout is not None
    end = time.monotonic() + WAIT_S
    lines: list[bytes] = []
    for line in daemon.stdout:
        lines.append(line)
        if line.startswith(b"{") and json.loads(line).get("event") == event:
            return
        if time.monotonic() > end:
            break
    raise SystemExit(b"".join(lines[-20:]).decode())


def _processes(folder: str) -> Iterator[int]:
    """Processes that have a file of the state directory open."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()).startswith(folder) for fd in (place / "fd").iterdir()):
                yield int(place.name)
        except OSError:
            continue


def _memory(daemon_pid: int, folder: str) -> None:
    found = {pid for pid in _processes(folder) if pid != os.getpid()} | {daemon_pid}
    total = 0
    for pid in sorted(found):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        total += pss
        kind = "heartbeat" if "heartbeat" in command else "service" if "sandbox" in command else "daemon"
        print(f"memory: {kind:9s} {pss / 1024:6.1f} MB PSS")
    print(f"memory: together  {total / 1024:6.1f} MB PSS")


if __name__ == "__main__":
    main()
