"""Words that a number decides: one of a thing is told of as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cron import BadCron, parse
from bot.runtime.alerts.messages import digest, dropped
from bot.service.market_data.instruments import CATALOGUE
from bot.words import MARKET_NAMES, did_you_mean, many, meant_market

STRATEGIES = Path(__file__).resolve().parent / "backtest" / "strategies"
MS = 1_750_032_000_000


def test_one_is_one_and_any_other_number_is_many() -> None:
    assert [many(n, "candle") for n in (0, 1, 2_160)] == ["0 candles", "1 candle", "2,160 candles"]
    assert [many(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_data_and_a_session_of_one_candle_are_told_of_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    header = "ts,open,high,low,close,volume\n"
    Path("BTC.csv").write_text(f"{header}{MS},100,101,99,100,5\n")
    Path("BTC_other.csv").write_text(f"{header}{MS},100,101,99,101,5\n")
    Path("one.yaml").write_text(
        f"account: {{base_url: embedded}}\nstrategies_dir: {STRATEGIES}\n"
        'strategies: [{name: one, use: "causal:Honest", markets: [BTC], interval: 1m, budget_usd: 1000}]\n'
    )
    assert call(["data", "import", "BTC.csv", "--interval", "1m"]) == 0
    assert call(["data", "list"]) == 0
    assert call(["data", "audit"]) == 0
    assert call(["backtest", "one.yaml", "--data", "data"]) == 0
    (run,) = Path("runs").iterdir()
    assert call(["compare", str(run), str(run)]) == 0
    said = capsys.readouterr().out
    assert said.count("1 candle") == 3
    assert said.count("1 bar,") == 3
    assert call(["data", "import", "BTC_other.csv", "--interval", "1m"]) == 1
    said += capsys.readouterr().err
    assert "1 candle is in the store with other values" in said
    assert "1 candles" not in said
    assert "1 bars" not in said


def test_one_notice_and_one_field_are_told_of_as_one() -> None:
    one = dropped(1, bot="b")
    assert (one.title, one.text) == ("[b] 1 older notice was dropped", "It was written while this target was down.")
    assert digest([("fill.entry", one)], bot="b").title == "[b] 1 more notice"
    with pytest.raises(BadCron, match="has 1 field, not the five"):
        parse("hourly")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("BITCOIN", "BTC"),
        ("xbt-usd", "BTC"),
        ("BTCUSDT", "BTC"),
        ("btc_perp", "BTC"),
        ("BTX", "BTC"),
        ("Ethereum", "ETH"),
        ("pepe", "kPEPE"),
        ("Tesla", None),
        ("QQQQQQ", None),
    ],
)
def test_a_market_is_meant_by_its_name_among_people(written: str, meant: str | None) -> None:
    assert meant_market(written, ["BTC", "ETH", "kPEPE", "SOL"]) == meant


def test_every_name_among_people_means_a_market_of_the_catalogue() -> None:
    assert set(MARKET_NAMES.values()) <= CATALOGUE.keys()
    assert not MARKET_NAMES.keys() & CATALOGUE.keys()


def test_the_last_part_of_a_dotted_name_is_enough_to_be_meant() -> None:
    assert did_you_mean("usd", ["trend.usd", "trend.fast_bars"]) == "; did you mean trend.usd?"
    assert did_you_mean("usd", ["trend.usd", "swing.usd"]) == "; did you mean trend.usd or swing.usd?"
    assert did_you_mean("trnd.usd", ["trend.usd", "swing.usd"]) == "; did you mean trend.usd?"
    assert did_you_mean("zzz", ["trend.usd"]) == ""
