"""Live over HTTP, a strategy reads and decides on longer bars as it does in a backtest of the same candles."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.backtest.data.candles import Candles
from bot.testing import SessionOptions, backtest
from bot.testing.sandbox import START_MS, Options, Sandbox
from bot.wire import CANDLES_MAX

MINUTES = 40
# the market that a rule reads while it trades BTC
READ = ("BTC", "SOL")
FILE = """\
from bot import Bracket, Close, Open, Strategy, {function}


class Mine(Strategy):
    line = {function}({period}, interval="{interval}")
    intervals = {{"{other}": {period}}}
    read = []

    def on_bar(self, view, bar):
        other = view.bars("{read}", {period}, interval="{other}")
        free = view.closes("{read}", 3) + view.closes(bar.market, 3, interval="5m")
        line = self.line["{read}"]
        if view.is_warming_up or line is None or len(other) < {period}:
            return
        wanted = "long" if view.closes("{read}", 1)[0] > (line + other[0].close) / 2 else "short"
        # The service has more past than the file, so a running sum may differ in its last bits.
        rows = [[one.at_ms, one.open, one.high, one.low, one.close] for one in other]
        values = [bar.at_ms, round(line, 6), rows, free, wanted]
        view.log("read", values=values)
        self.read.append(values)
        held = view.position(bar.market)
        if held is None and not view.orders(bar.market):
            yield Open(bar.market, wanted, usd=100, bracket=Bracket(stop_pct=5))
        elif held is not None and held.side != wanted:
            yield Close(bar.market)
"""


def rule(seed: int) -> str:
    """A strategy file with functions, periods and intervals of its own."""
    chance = Random(seed)
    interval, other = chance.sample(["3m", "5m", "15m", "30m", "1h", "2h"], 2)
    function = chance.choice(["sma", "highest", "lowest"])
    period, read = chance.randint(2, 4), READ[seed % len(READ)]
    return FILE.format(function=function, period=period, interval=interval, other=other, read=read)


def candles_of(sandbox: Sandbox, market: str) -> Candles:
    """The closed minutes of the service, those before its start included."""
    client = sandbox.client()
    rows = client.get(f"/v1/markets/{market}/candles", params={"interval": "1m", "limit": CANDLES_MAX}).json()[
        "candles"
    ]
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in range(5)))
    for row in (row for row in rows if row["closed"]):
        for column, name in zip(columns, ("ts", "open", "high", "low", "close", "volume"), strict=True):
            column.append(row[name] if name == "ts" else float(row[name]))
    return Candles(market, "1m", *columns)


@pytest.mark.soak(worlds=2, full=1_000)
def test_seeded_strategies_decide_live_as_in_a_backtest(tmp_path: Path, worlds: int):
    decided, sides = 0, set[str]()
    for seed in range(worlds):
        use = f"mine{seed}:Mine"
        (tmp_path / f"mine{seed}.py").write_text(rule(seed))
        informative = [market for market in {READ[seed % len(READ)]} if market != "BTC"]
        with Sandbox(Options(seed=seed, markets=("BTC", *informative))) as sandbox:
            with sandbox.run(use, strategies_dir=tmp_path, informative=informative) as daemon:
                daemon.minutes(MINUTES)
                assert daemon._kernel is not None
                (instance,) = daemon._kernel.strategy_host.instances
                strategy: Any = instance.strategy
                live = list(strategy.read)
            candles = [candles_of(sandbox, market) for market in ("BTC", *informative)]
        run = backtest(
            use, candles, strategies_dir=tmp_path, options=SessionOptions(start_ms=START_MS), informative=informative
        )
        tested = [line["fields"]["values"] for line in run.log]
        first = live[0][0]
        tested = [values for values in tested if values[0] >= first]
        assert json.dumps(live) == json.dumps(tested[: len(live)]), (seed, rule(seed))
        assert len(live) >= MINUTES - 1, seed
        sides |= {values[-1] for values in live}
        decided += len(live)
    assert decided >= worlds * (MINUTES - 1)
    assert sides == {"long", "short"}
