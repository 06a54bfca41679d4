"""Event markets that are settled inside a backtest: positions are paid the outcome, resting orders are canceled, and
the figures add up.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.backtest import Backtest
from bot.backtest.data.candles import Candles
from bot.backtest.data.quality import checked
from bot.backtest.engine.options import SessionOptions, Settlement
from bot.cli.app import call
from bot.errors import ConfigError
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.backtest.builders import FREE, MINUTE_MS, START_MS, minutes, placing, ran, settings, write

CUT, CPI = "event:RATE-CUT", "event:CPI-ABOVE-3"


def odds(market: str, closes: Iterable[float]) -> Candles:
    """A minute for each close, each opening at the close before."""
    rows = list(closes)
    opens = [rows[0], *rows[:-1]]
    at = array("q", range(START_MS, START_MS + len(rows) * MINUTE_MS, MINUTE_MS))
    columns = (opens, map(max, opens, rows), map(min, opens, rows), rows, [5_000.0] * len(rows))
    return Candles(market, "1m", at, *(array("d", one) for one in columns))


def holds(view: View, bar: Bar) -> Iterable[Intent]:
    """Holds Yes of one market and No of the other, has entries that rest too far away, and tries to order after the
    end.
    """
    n = (bar.at_ms - START_MS) // MINUTE_MS
    yes = bar.market == CUT
    if n == 2:
        stop = Bracket(stop_px=0.05 if yes else 0.95)
        yield Open(bar.market, "long" if yes else "short", size=100, bracket=stop)
    if n == 3:
        limit, stop = (0.1, 0.05) if yes else (0.9, 0.95)
        yield Open(bar.market, "long" if yes else "short", size=200, limit_px=limit, bracket=Bracket(stop_px=stop))
    if n == 30 and yes:
        yield Open(bar.market, "long", size=100, bracket=Bracket(stop_px=0.05))


def subjects(lines: list[str], type_: str) -> list[dict[str, Any]]:
    return [one for one in map(json.loads, lines) if one["type"] == type_]


def test_at_settlement_positions_are_paid_and_resting_orders_are_canceled():
    """Yes at 0.4 pays 1, No at 0.3 (Yes at 0.7) pays nothing."""
    worth: dict[int, float] = {}

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.market != "BTC":
            return holds(view, bar)
        worth[(bar.at_ms - START_MS) // MINUTE_MS] = view.equity_usd
        return ()

    data = [odds(CUT, [0.4] * 30), odds(CPI, [0.7] * 60), minutes(60)]
    settled = {CUT: Settlement(outcome=Decimal(1)), CPI: Settlement(START_MS + 45 * MINUTE_MS, Decimal(1))}
    one = ran(data, script=script, rules=FREE, settlements=settled)
    assert [worth[n] for n in (20, 31, 46)] == [10_000, 10_060, 10_030], "at once, and not from the next snapshot on"
    found = subjects(one.lines, "settlement")
    assert [(it["coin"], it["ts"], it["data"]["payoutUsd"]) for it in found] == [
        (CUT, START_MS + 30 * MINUTE_MS - 1, "100"),
        (CPI, START_MS + 45 * MINUTE_MS - 1, "0"),
    ]
    canceled = [it for it in subjects(one.lines, "order") if it["data"]["reason"] == "settled"]
    assert sorted((it["coin"], it["data"]["kind"]) for it in canceled) == [
        (CPI, "limit"),
        (CPI, "stop_loss"),
        (CUT, "limit"),
        (CUT, "stop_loss"),
    ]
    result, summary = one.result, one.result.summary()
    assert {(trip.coin, trip.exit_kind, trip.pnl) for trip in result.trade_ledger.trips} == {
        (CUT, "settlement", 60 * 10**8),
        (CPI, "settlement", -30 * 10**8),
    }
    assert (result.end_usd, result.curve.equity[-1], result.left) == (10_030.0, 10_030.0, [])
    assert summary["exits"] == {"settlement": 2}
    assert summary["costs"] | {"realizedUsd": "30", "unrealizedUsd": "0", "backstopUsd": "0"} == summary["costs"]
    assert result.rejections == {"market_closed": 1}


@pytest.mark.parametrize(("last", "left"), [(0.6, 10_060.0), (0.3, 9_960.0)])
@pytest.mark.parametrize("skip", [True, False])
def test_without_an_outcome_an_event_is_settled_by_its_last_price(last: float, left: float, skip: bool):
    """One market alone uses the faster path; the backtest ends with it."""
    data = odds(CUT, [*[0.4] * 25, last])
    one = ran([data], script=holds, rules=FREE, settlements={CUT: Settlement()}, skip=skip)
    assert (one.result.end_usd, one.result.curve.equity[-1]) == (left, left)
    assert one.result.end_ms == START_MS + 26 * MINUTE_MS
    (found,) = subjects(one.lines, "settlement")
    assert found["data"]["outcomePx"] == ("1" if last > 0.5 else "0")
    # Whoever holds Yes from 0.4 on is paid, too.
    assert one.result.figures["Buy & Hold Return [%]"] == pytest.approx(150 if last > 0.5 else -100)


def test_no_bar_is_delivered_after_a_settlement_and_no_settlement_comes_early():
    heard: list[int] = []

    def listening(view: View, bar: Bar) -> Iterable[Intent]:
        heard.append((bar.at_ms - START_MS) // MINUTE_MS)
        return holds(view, bar)

    data = odds(CUT, [0.4] * 26)
    at = START_MS + 20 * MINUTE_MS
    one = ran([data], script=listening, rules=FREE, settlements={CUT: Settlement(at, Decimal("0.5"))})
    assert (heard[-1], one.result.end_usd) == (20, 10_010.0)
    early = ran([data], script=holds, rules=FREE, settlements={CUT: Settlement(at)}, end_ms=at - MINUTE_MS)
    assert (subjects(early.lines, "settlement"), len(early.result.left)) == ([], 1)


@pytest.mark.parametrize("others", [[], [minutes(15)]])
def test_a_settlement_inside_a_candle_is_paid_at_its_instant_without_other_markets(others: list[Candles]):
    """At minute 20 and a half; the last whole candle ends at 20."""
    data, at = odds(CUT, [0.4] * 26), START_MS + 20 * MINUTE_MS + 30_000

    def script(view: View, bar: Bar) -> Iterable[Intent]:
        return holds(view, bar) if bar.market == CUT else ()

    one = ran([data, *others], script=script, rules=FREE, settlements={CUT: Settlement(at, Decimal(0))})
    (found,) = subjects(one.lines, "settlement")
    assert (found["ts"], found["data"]["payoutUsd"]) == (at - 1, "0")
    assert (one.result.end_ms, one.result.left) == (at, [])
    assert one.result.end_usd == one.result.curve.equity[-1] == 9_960
    assert one.result.curve.at_ms[-2] == START_MS + 20 * MINUTE_MS
    early = ran([data], script=holds, rules=FREE, settlements={CUT: Settlement(at)}, end_ms=at - 1)
    assert (early.result.end_ms, len(early.result.left)) == (START_MS + 20 * MINUTE_MS, 1)


def test_an_impossible_settlement_is_refused():
    data = [odds(CUT, [0.4] * 26), minutes(26)]
    for market, one, said in (
        ("BTC", Settlement(), "it is not an event market"),
        (CPI, Settlement(), "no strategy trades it"),
        (CUT, Settlement(START_MS), "and the session begins at"),
        (CUT, Settlement(START_MS + 27 * MINUTE_MS), "and the data end at"),
    ):
        with pytest.raises(ConfigError, match=said):
            ran(data, script=holds, settlements={market: one})
    late = Settlement(START_MS + 27 * MINUTE_MS)
    with pytest.raises(ConfigError, match="and the data end at"):
        ran(data, script=holds, settlements={CUT: late}, end_ms=START_MS + 30 * MINUTE_MS)
    cut = SessionOptions(settlements={CUT: late}, end_ms=START_MS + 30 * MINUTE_MS)
    # All of the data go on after the hole.
    Backtest(settings([CUT, "BTC"]), data, cut, place=placing(holds), is_cut=True)
    with pytest.raises(ConfigError, match="from 0 \\(No\\) to 1"):
        Settlement(outcome=Decimal("1.2"))
    told = SessionOptions(settlements={CUT: Settlement(5, Decimal("0.5")), CPI: Settlement()})
    assert SessionOptions.of_plain(json.loads(json.dumps(told.plain()))) == told


@pytest.mark.parametrize("px", [0.0005, 0.9995])
def test_odds_beyond_the_price_limits_are_played_at_the_limits(px: float):
    def script(view: View, bar: Bar) -> Iterable[Intent]:
        if bar.at_ms == START_MS + MINUTE_MS:
            yield Open(CUT, "long", usd=100)

    (held,), _ = checked([odds(CUT, [px] * 5)])
    one = ran([held], made=settings([CUT], safety={"require_protection": False}), script=script, rules=FREE)
    assert one.result.left
    assert set(one.result.curve.equity) == {10_000.0}, "bought at the price that it is worth"


CONFIG = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {folder}
strategies:
  - {{name: one, use: "mine:Holds", markets: ["{market}"], budget_usd: 5000}}
"""
HOLDS = """\
from bot import Bracket, Open, Strategy


class Holds(Strategy):
    def on_bar(self, view, bar):
        if not view.position(bar.market) and not view.orders(bar.market):
            yield Open(bar.market, "long", size=100, bracket=Bracket(stop_px=0.05))
"""


def test_a_settlement_of_the_command_is_in_report_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(HOLDS)
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG.format(folder=tmp_path, market=CUT))
    data = write(odds(CUT, [0.4] * 30), tmp_path / "cut.csv")
    out = ["--data", f"{CUT}={data}", "--out", str(tmp_path / "runs"), "--accept-zero-volume"]
    assert call(["backtest", str(config), *out]) == 0
    said = capsys.readouterr().out
    assert f"{CUT}: is not settled within the session" in said
    assert (
        f"{CUT}: prices come from 1m candles; taker 5 % of price x (1 - price), maker 0 % of price x (1 - price),"
        " spread 40 bps of the payout" in said
    )
    assert call(["backtest", str(config), *out, "--settle", f"{CUT}=yes", "--prove-causal", "--journal"]) == 0
    said = capsys.readouterr().out
    assert "exits: settlement 1" in said
    assert f"{CUT}: settled at 2025-06-01T00:30:00: a share of Yes pays 1;" in said
    folder = max((tmp_path / "runs").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    assert call(["report", str(folder)]) == 0
    assert "<dt>Settlements</dt><dd>event:RATE-CUT at 1</dd>" in (folder / "report.html").read_text()
    capsys.readouterr()
    # a run by its manifest, a journal by its events
    for run in (folder, folder / "journal.db"):
        words = ["--config", str(config), "--data", f"{CUT}={data}"]
        assert call(["replay", str(run), *words, "--path", "sl_first"]) == 0, capsys.readouterr().out
    assert call(["backtest", str(config), *out, "--settle", f"{CUT}=2025-06-01T00:10=no=yes"]) == 2
    assert "'no' is not a time" in capsys.readouterr().err


SIZES = """

class Sizes(Strategy):
    def on_bar(self, view, bar):
        if bar.at_ms % 2_400_000 == 0:
            yield Open(bar.market, "long", usd=round(view.equity_usd / 100, 2), bracket=Bracket(stop_pct=40))
"""


def test_a_journal_is_replayed_with_its_settlements(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The payment of another market is in the balance that sizes the next order."""
    (tmp_path / "mine.py").write_text(HOLDS + SIZES)
    config = tmp_path / "c.yaml"
    config.write_text(
        CONFIG.format(folder=tmp_path, market=CUT)
        + '  - {name: two, use: "mine:Sizes", markets: [BTC], budget_usd: 5000}\n'
    )
    cut, btc = write(odds(CUT, [0.4] * 30), tmp_path / "cut.csv"), write(minutes(60), tmp_path / "BTC_1m.csv")
    data = ["--data", f"{CUT}={cut}", "--data", f"BTC={btc}"]
    words = [str(config), *data, "--out", str(tmp_path / "runs"), "--settle", f"{CUT}=yes", "--journal"]
    assert call(["backtest", *words]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    capsys.readouterr()
    words = [str(folder / "journal.db"), "--config", str(config), *data, "--path", "sl_first", "--balance", "10000"]
    assert call(["replay", *words]) == 0, capsys.readouterr().out
    assert "3 decisions then and 3 in the replay" in capsys.readouterr().out
