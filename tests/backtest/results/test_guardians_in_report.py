"""The actions of guardians in a backtest and their cost are in the report, in the terminal and in JSON, and the
figures add up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.engine import progress
from bot.backtest.engine.driver import drive
from bot.backtest.engine.options import Outage, SessionOptions
from bot.backtest.report.price_chart import chart_data
from bot.backtest.report.summary import by_market
from bot.backtest.report.trade_statistics import exit_text
from bot.backtest.results import run_writer as results
from bot.backtest.results.assumptions import assumptions_of
from bot.backtest.results.run_reader import read_run
from bot.cli.app import call
from bot.number_text import MINUS
from bot.strategy import Bar, Bracket, Intent, MaxHold, Open, TrailingStop, View
from bot.wire.guardian_requests import GuardianRequest
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, placing, ran, settings

WIDE = Bracket(stop_pct=20)
KILLED = ("kill_switch", 1_520, GuardianRequest(type="kill_switch", action="flatten"))
GUARDIANS = [
    {"type": "account_drawdown", "max_loss_pct_from_day_start": 0.12, "action": "flatten"},
    {
        "type": "schedule",
        "cron": "0 2 * * *",
        "order_template": {"market": "ETH", "side": "long", "usdAmount": 500, "bracket": {"stopLoss": {"pct": 10}}},
    },
]


def script(view: View, bar: Bar) -> Iterable[Intent]:
    n = (bar.at_ms - START_MS) // MINUTE_MS
    if bar.market != "BTC":
        return
    if n == 20:
        yield Open("BTC", "long", usd=1_000, guardians=(TrailingStop(trail_pct=0.2),))
    if n == 100:
        yield Open("BTC", "long", usd=1_000, bracket=WIDE, guardians=(MaxHold(seconds=1_800),))
    if n in (200, 1_500):
        yield Open("BTC", "long", usd=1_000, bracket=WIDE)
    if n == 400:
        yield Open("BTC", "long", usd=2_000, leverage=3, bracket=WIDE)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which each of the six types acts at least once.

    The test operates the kill switch, because strategies cannot.
    """
    folder = tmp_path_factory.mktemp("six")
    candles = [minutes(1_600, seed=3), minutes(1_600, seed=3, market="ETH", px=2_500.0)]
    made = settings(("BTC", "ETH"), dead_man={"heartbeat_seconds": 600, "on_miss": "flatten"}, guardians=GUARDIANS)
    options = SessionOptions(outages=(Outage(START_MS + 220 * MINUTE_MS, 30 * MINUTE_MS),))
    test = Backtest(made, candles, options, place=placing(script))
    waiting = [KILLED]

    def by_hand(_done: int, _of: int) -> bool:
        while waiting and test.exchange.clock.now_ms() >= START_MS + waiting[0][1] * MINUTE_MS:
            name, _, request = waiting.pop(0)
            drive(test.session.port.arm(request, key=name))
        return True

    with pytest.MonkeyPatch.context() as patch, (folder / "events.jsonl").open("w") as events:
        patch.setattr(progress, "CHUNK", 1)
        found = test.run(progress=by_hand, events=events)
    assumptions = assumptions_of(test.session.timeline, options, test.exchange, funded=[])
    strategies = [{"name": one.name, "use": one.use, "sha256": "0"} for one in made.strategies]
    manifest = results.manifest_of(
        name="six",
        config_text="",
        strategies=strategies,
        candles=candles,
        funding={},
        options=options,
        accepted=(),
        notes={"besides": (), "assumptions": assumptions},
    )
    results.write(folder, found, manifest)
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "summary.json").read_text())["guardians"])


def test_each_guardian_type_lists_its_trades_and_the_result_of_its_fills(told: Path):
    lines = [json.loads(line) for line in (told / "events.jsonl").read_text().splitlines()]
    fired = [one for one in lines if (one["type"], one["subtype"]) == ("guardian", "fired")]
    rows = rows_of(told)
    assert [row["type"] for row in rows] == [one["data"]["guardianType"] for one in fired]
    assert {row["type"] for row in rows if row["trades"]} == {
        "trailing_stop",
        "max_hold",
        "schedule",
        "dead_man_switch",
        "account_drawdown",
        "kill_switch",
    }
    for row, one in zip(rows, fired, strict=True):
        fills = [
            it["data"] for it in lines if it["type"] == "fill" and it["data"]["tradeId"] in one["data"]["tradeIds"]
        ]
        came_to = sum(Decimal(it["realizedPnlUsd"] or 0) - Decimal(it["feeUsd"]) for it in fills)
        assert (None if row["resultUsd"] is None else Decimal(row["resultUsd"])) == (came_to if fills else None), row
    trades = {one.number: one for one in read_run(told).trades}
    both = [row for row in rows if row["type"] == "dead_man_switch" and row["trades"]]
    assert {trades[number].market for number in both[0]["trades"]} == {"BTC", "ETH"}
    assert {number for row in rows for number in row["trades"]} == {
        one.number for one in trades.values() if one.exit_kind in ("guardian", "kill") or one.market == "ETH"
    }


def test_the_page_the_terminal_and_the_json_name_each_action_and_its_cost(
    told: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert call(["report", str(told), "--out", str(tmp_path / "page.html")]) == 0
    terminal = capsys.readouterr().out
    assert call(["report", str(told), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["guardians"] == rows_of(told)
    shown = (tmp_path / "page.html").read_text()
    trades = {one.number: one for one in read_run(told).trades}
    data = json.loads(shown.split('id="data">')[1].split("</script>")[0])
    for row in whole["guardians"]:
        if not row["trades"]:
            assert "None" not in shown.split("<h2>Guardians</h2>")[1].split("</table>")[0]
            continue
        numbers, cost = ", ".join(map(str, row["trades"])), f"{float(row['resultUsd']):+,.2f}"
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", shown)
        assert f"|{row['reason']}|{numbers}|{cost.replace('-', MINUS)}|" in "|".join(cells)
        assert f"({row['reason']}), trade {numbers}, {cost} USD\n" in terminal
        for one in (trades[number] for number in row["trades"]):
            if one.exit_ms is not None and row["type"] != "schedule":
                drawn = next(it for it in data["trades"] if it[0] == one.number)
                assert [exit_text(row["type"]), round(one.pnl_usd, 4)] == [
                    drawn[[column["key"] for column in data["columns"]].index(key)] for key in ("exitBy", "result")
                ], "named on the candles and in the table of trades"


def test_results_costs_months_strategies_and_markets_are_one_sum(told: Path, capsys: pytest.CaptureFixture[str]):
    assert call(["report", str(told), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    costs = {name: float(usd) for name, usd in whole["costs"].items()}
    gain = costs["realizedUsd"] - costs["feesUsd"] + costs["fundingUsd"]
    assert costs["unrealizedUsd"] == 0, "all was closed in the end"
    assert gain == pytest.approx(whole["endUsd"] - 10_000, abs=1e-6)
    for parts in (whole["strategies"], whole["markets"]):
        assert sum(float(one["pnlUsd"]) for one in parts.values()) == pytest.approx(gain, abs=1e-6)
        assert sum(float(one["feesUsd"]) for one in parts.values()) == pytest.approx(costs["feesUsd"], abs=1e-6)
        assert sum(float(one["slippageUsd"]) for one in parts.values()) == pytest.approx(costs["slippageUsd"], abs=1e-6)
    assert whole["markets"] == by_market(read_run(told))
    ((year, months),) = whole["months"].items()
    assert (year, months["Jun"]) == ("2025", pytest.approx(whole["figures"]["Return [%]"], abs=1e-6))
    assert (months["Year"], months["May"]) == (pytest.approx(months["Jun"]), None)


def test_account_guardians_are_drawn_also_after_many_others(told: Path):
    run = read_run(told)
    stop = next(row for row in run.summary["guardians"] if row["type"] == "trailing_stop")
    many = [stop] * 150 + [row for row in run.summary["guardians"] if row["market"] is None]
    object.__setattr__(run, "summary", run.summary | {"guardians": many})
    drawn = chart_data([run], ["six"])["guardians"]
    assert "kill_switch" in {guardian for _, guardian in drawn}


@pytest.mark.parametrize("markets", [("BTC",), ("BTC", "ETH")])
@pytest.mark.parametrize(("policy", "closed_at"), [("adopt", []), ("flatten", [11]), ("ignore", [])])
def test_a_position_that_a_guardian_opens_without_a_stop_is_handled_at_once(
    policy: str, closed_at: list[int], markets: tuple[str, ...]
):
    """As in live trading, at the end of the pass that gets the event: the order template has no bracket, so the
    position has no owner and no stop.
    """
    bought = {"market": "BTC", "side": "long", "usdAmount": 500}
    made = settings(
        markets,
        guardians=[{"type": "schedule", "cron": "10 0 * * *", "order_template": bought}],
        safety={"foreign_positions": policy},
    )
    one = ran([minutes(60, seed=1, market=market) for market in markets], made=made, script=lambda _view, _bar: ())
    events = [json.loads(line) for line in one.lines]
    exits = [e["ts"] for e in events if (e["type"], e["subtype"]) == ("fill", "exit")]
    assert [(at_ms - START_MS) // MINUTE_MS for at_ms in exits] == closed_at
    assert len(one.result.left) == (not closed_at)
