"""Agents: from a bar's close to the request of 20 other strategies, without an agent and beside one whose model hangs.
Figures only.

python -m tests.bench.agents [--bars 6]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.agents.builders import model_server
from tests.bench import many

STRATEGIES = 20
AGENT = """\
  - name: agent
    use: "bot.agents:AgentStrategy"
    markets: [%s]
    interval: 1m
    budget_usd: 100
    params: {model: local, base_url: "%s", usd_per_million_in: 0, usd_per_million_out: 0, instructions: Trade., \
asks_per_hour: 60}
"""


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--bars", type=int, default=6)
    bars = given.parse_args().bars
    with model_server(fault="hang") as server:
        for label, agent in (("without an agent", ""), ("beside an agent whose model hangs", AGENT)):
            after = measure(agent and agent % (many._markets()[STRATEGIES], server.url), bars)
            print(
                f"{label}: {len(after)} orders, from a bar's close to request sent p50 {statistics.median(after):.1f}"
                f" ms, p99 {many._p99(after):.1f} ms, last {max(after):.1f} ms; the model was asked"
                f" {len(server.requests)} times"
            )


def measure(agent: str, bars: int) -> list[float]:
    """Milliseconds from the close to the request, of each order after the first bars."""
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        folder = Path(name)
        service, base_url = many.start_service(folder, limits=False)
        try:
            many.make_project(folder, base_url, STRATEGIES, path="direct")
            config, out = folder / "many.yaml", folder / "sent.json"
            config.write_text(config.read_text() + agent)
            command = [sys.executable, "-m", "tests.bench.many", "--daemon", str(config), str(out)]
            with (folder / "log").open("ab") as log:
                run = subprocess.Popen(command, stdout=log, stderr=log)
            many.wait_passes(folder, run)
            time.sleep((many.WARM_BARS + bars) * many.STEP_MS / 1000 / many.SPEED)
            run.send_signal(signal.SIGTERM)
            run.wait(many.WAIT_S)
            sent, _ = many._sent(json.loads(out.read_text()))
        finally:
            service.terminate()
            service.wait(many.WAIT_S)
    counted = sorted({one.bar_ms for one in sent})[many.WARM_BARS :]
    return [one.after_ms for one in sent if one.bar_ms in counted and one.kind != "plan"]


if __name__ == "__main__":
    main()
