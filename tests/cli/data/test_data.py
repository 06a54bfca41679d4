"""`bot data`: the files, the output and the exit code of each command, all in this process."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from bot.backtest.data import column_files
from bot.backtest.data.candles import Candles, load, read_file
from bot.backtest.data.store import Store
from bot.cli.app import call
from bot.cli.data import candle_source
from bot.cli.data import data as commands
from bot.client import Client
from bot.clock import SystemClock
from bot.errors import BotError
from bot.testing.sandbox import START_MS, Sandbox
from tests.backtest.builders import research

HEADER = "ts,open,high,low,close,volume"
MS = 1_750_032_000_000
MINUTE = 60_000


def rows(count: int, *, skip: range = range(0)) -> list[str]:
    return [f"{MS + n * MINUTE},100,101,99,100.5,{n + 1}" for n in range(count) if n not in skip]


def write(path: Path, lines: list[str], header: str = HEADER) -> str:
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store is ./data; and the log does not point at this test's stream any more when it has ended."""
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def test_files_that_cannot_be_read_keep_no_other_from_being_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for coin in ("AAPL", "BTC", "ETH", "SOL"):
        assert call(["data", "gen", coin, "--from", "2025-01-06", "--days", "1", "--interval", "1h"]) == 0
    for coin in ("AAPL", "ETH"):
        (broken,) = (tmp_path / "data" / coin).iterdir()
        broken.write_bytes(b"no candles at all")
    capsys.readouterr()
    for command in (["list"], ["audit"]):
        assert call(["data", *command]) == 4
        said = capsys.readouterr()
        assert "BTC" in said.out
        assert "SOL" in said.out
        assert f"data/AAPL/{broken.name}: " in said.err
        assert f"data/ETH/{broken.name}: " in said.err
        assert call(["data", *command, "--json"]) == 4
        data = json.loads(capsys.readouterr().out)
        assert [one["market"] for one in data.get("candles") or data["reports"]] == ["BTC", "SOL"]
    assert data["sound"] is False


@pytest.mark.parametrize("command", ["import", "audit", "gen", "list", "pull"])
def test_every_command_has_a_help_text_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", command, "--help"]) == 0
    assert f"\n    bot data {command}" in capsys.readouterr().out


def test_files_go_into_the_store_and_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "BTC_1m.csv", rows(20))
    write(tmp_path / "eth.txt", [f"{MS // 1000 + n * 3600};1;2;1;2" for n in range(5)], "Time;Open;High;Low;Close")
    assert call(["data", "import", "BTC_1m.csv", "eth.txt", "--columns", "volume=none"]) == 0
    text = capsys.readouterr().out
    assert "BTC 1m: 20 candles in data/BTC/1m." in text
    assert "(20 new), 2025-06-16 to 2025-06-16 00:19" in text
    assert "ETH 1h: 5 candles" in text
    assert "no row has any volume" in text
    assert text.endswith("Next: bot backtest CONFIG --data data --accept-zero-volume\n")
    assert call(["data", "list"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["BTC", "1m", "20"],
        ["ETH", "1h", "5"],
    ]
    assert call(["data", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["candles"]
    assert [(one["market"], one["rows"], one["firstTs"]) for one in listed] == [("BTC", 20, MS), ("ETH", 5, MS)]


def test_an_import_again_appends_and_a_correction_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "BTC.csv", rows(20))
    assert call(["data", "import", path]) == 0
    write(tmp_path / "BTC.csv", rows(30))
    capsys.readouterr()
    assert call(["data", "import", path, "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)["written"]
    assert (done["rows"], done["added"], done["same"]) == (30, 10, 20)
    write(tmp_path / "BTC.csv", [line.replace("100.5", "100.25") for line in rows(3)])
    assert call(["data", "import", path]) == 1
    assert "3 candles are in the store with other values; nothing was changed" in capsys.readouterr().err
    assert call(["data", "import", path, "--replace"]) == 0
    read = Store(Path("data")).read("BTC", "1m")
    assert read is not None
    assert list(read.close[:4]) == [100.25, 100.25, 100.25, 100.5]


def test_all_files_are_imported_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "BTC.csv", rows(20))
    bad = write(tmp_path / "ETH.csv", [*rows(5), f"{MS},1,2,1,2,1"])
    assert call(["data", "import", good, bad]) == 1
    said = capsys.readouterr().err
    assert f"{bad}: row 7: 2025-06-16 00:00: comes after 2025-06-16 00:04" in said
    assert "--accept-unsorted" in said
    assert not Path("data").exists()
    assert call(["data", "import", good, bad, "--accept-unsorted", "--accept-duplicates"]) == 0
    assert len(load([Path("data")], markets=["ETH"])[0]) == 5


def test_a_conflict_of_one_market_keeps_all_files_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eth = write(tmp_path / "ETH.csv", rows(5))
    assert call(["data", "import", eth]) == 0
    write(tmp_path / "ETH.csv", [line.replace("100.5", "100.25") for line in rows(5)])
    assert call(["data", "import", write(tmp_path / "BTC.csv", rows(20)), eth]) == 1
    assert "nothing was changed" in capsys.readouterr().err
    assert [(one.market, one.rows) for one in Store(Path("data")).held()] == [("ETH", 5)]


def test_a_candle_that_is_still_running_is_left_out_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda _self: MS + 5 * MINUTE + 30_000)
    write(tmp_path / "BTC_1m.csv", rows(6))
    assert call(["data", "import", "BTC_1m.csv"]) == 0
    said = capsys.readouterr()
    assert "BTC_1m.csv: 1 candle left out, which by this machine's clock is not closed yet" in said.err
    assert "(5 new)" in said.out
    other = f"{MS + 5 * MINUTE},100,109,99,108,77"
    write(tmp_path / "BTC_1m.csv", [other, *reversed(rows(5))])
    assert call(["data", "import", "BTC_1m.csv"]) == 0, "its newer values are no others"
    monkeypatch.setattr(SystemClock, "now_ms", lambda _self: MS + 6 * MINUTE)
    assert call(["data", "import", "BTC_1m.csv"]) == 0
    said = capsys.readouterr()
    assert "(1 new, 5 there already)" in said.out
    write(tmp_path / "ETH_1m.csv", [other])
    monkeypatch.setattr(SystemClock, "now_ms", lambda _self: MS + 5 * MINUTE)
    assert call(["data", "import", "ETH_1m.csv", "--interval", "1m"]) == 4
    assert "ETH_1m.csv: no candles here" in capsys.readouterr().err


def test_gaps_are_imported_and_left_for_the_backtest_to_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "BTC.csv", rows(60, skip=range(10, 20)))
    assert call(["data", "import", path]) == 0
    said = capsys.readouterr().out
    assert "10 missing bars before it" in said
    assert said.endswith("\nNext: bot backtest CONFIG --data data --accept-gaps\n")
    assert call(["data", "audit", "data"]) == 1
    assert capsys.readouterr().out.endswith("A backtest refuses 1 of 1. It accepts them with --accept-gaps.\n")
    assert call(["data", "audit", "--accept-gaps"]) == 0
    assert capsys.readouterr().out.endswith("A backtest accepts them with --accept-gaps.\n")


def test_an_import_of_new_yorks_wall_clock_is_refused_until_its_zone_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        f"2025-06-{day} {hour:02}:00,100,100,100,100,5" for day in range(16, 21) if day != 19 for hour in range(9, 16)
    ]
    file = write(tmp_path / "AAPL_1h.csv", lines)
    assert call(["data", "import", file]) == 1
    said = capsys.readouterr().err
    assert (
        "FAULT hours: the rows fill 38% of the exchange's regular hours, and 100% if their times are New York's" in said
    )
    assert "AAPL_1h.csv: row 2: 2025-06-16 09:00: is 05:00 in New York" in said
    assert "--accept-hours: the times are used unchanged" in said
    assert not Path("data").exists()
    assert call(["data", "import", file, "--tz", "America/New_York"]) == 0
    assert call(["data", "audit"]) == 0
    assert "AAPL 1h: 28 candles, 2025-06-16 13:00 to 2025-06-20 19:00: sound\n" in capsys.readouterr().out


def test_what_an_import_says_is_next_has_the_flags_that_the_whole_store_needs(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(
        f"account: {{base_url: embedded}}\nstrategies_dir: {repository / 'strategies'}\nstrategies:\n"
        '  - {name: a, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 5}\n'
    )
    early, late = rows(60), rows(120)[70:]
    silent = [f"{line.rpartition(',')[0]},0" for line in early]
    for lines, flags in ((early, ""), (late, " --accept-gaps"), (silent, " --accept-gaps --accept-zero-volume")):
        assert call(["data", "import", write(tmp_path / "BTC.csv", lines), "--replace"]) == 0
        hint = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: bot ")
        assert hint == f"backtest CONFIG --data data{flags}"
        assert call(hint.replace("CONFIG", "mine.yaml").split()) == 0
        capsys.readouterr()
    assert call(["data", "import", f"MYCOIN={write(tmp_path / 'own.csv', rows(120))}"]) == 0
    hint = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: bot ")
    assert call(hint.replace("CONFIG", "mine.yaml").replace("LISTED", "BTC").split()) == 0


def test_an_audit_as_data_has_file_row_and_instant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.csv", [*rows(9), f"{MS + 9 * MINUTE},100,99,100,100,1"])
    assert call(["data", "audit", f"BTC={path}", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = told["reports"][0]["findings"]
    assert told["sound"] is False
    assert (found["kind"], found["severity"], found["flag"]) == ("ohlc", "fault", "--accept-ohlc")
    assert found["examples"][0] == {"file": path, "row": 11, "ts": MS + 9 * MINUTE, "text": "high 99 is below low 100"}
    assert call(["data", "audit", f"BTC={path}", "--to", "2025-06-16T00:05"]) == 0


@pytest.mark.parametrize(
    ("lines", "header", "code", "says"),
    [
        (rows(3), "time,o,h,l,c,v", 4, "row 1: the columns are"),
        ([f"{MS // 1000},1,2,1,2,1", f"{MS // 1000 + 60},1,2,1,2,1"], HEADER, 1, "import the file with --unit s"),
        ([*rows(2), f"{MS // 1000 + 120},1,2,1,2,1"], HEADER, 1, "units are mixed"),
        ([*rows(3), rows(2)[1]], HEADER, 1, "row 5: 2025-06-16 00:01: comes after"),
        ([*rows(3), "x"], HEADER, 4, "row 5: has 1 column, not 6"),
        ([], HEADER, 4, "has no candles below its header"),
    ],
)
def test_a_bad_file_ends_with_its_code_and_its_row(
    tmp_path: Path, lines: list[str], header: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "BTC.csv", lines, header)
    assert call(["data", "audit", path]) == code
    out, err = capsys.readouterr()
    assert says in out + err
    assert path in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["audit"], 2, "there is no store data here"),
        (["list"], 2, "there is no store data here"),
        (["import"], 2, "Missing argument"),
        (["import", "none.csv"], 4, "no such file or folder"),
        (["import", "BTC.csv", "--market", "BTCUS"], 0, "BTCUS is not listed by the embedded service"),
        (["import", "BTC.csv", "--interval", "2m"], 4, "--interval '2m'"),
        (["import", "BTC.csv", "--columns", "ts"], 4, "write it like ts=Time"),
        (["audit", "BTC.csv", "--from", "2031-01-01"], 4, "no candle in this span"),
        (
            ["audit", "BTC.csv", "--from", "2025-01-02", "--to", "2025-01-02"],
            4,
            "the span is empty: --from must lie before --to",
        ),
        (["audit", "BTC.csv", "--hours", "nyse"], 4, "there are continuous, equity, index"),
        (["audit", "BTC.csv", "--market", "B/C"], 4, "dots, underscores and dashes"),
        (
            ["gen", "BTCC", "--from", "2025-01-01", "--days", "1"],
            4,
            "did you mean BTC? (for an unlisted market, give its class with --class)",
        ),
        (["gen", "BTC", "--from", "soon", "--days", "1"], 2, "is not a time"),
        (
            ["gen", "BTC", "--from", "2025-01-01", "--days", "1", "--out", "x.json"],
            2,
            "must end with .csv, .csv.gz or .parquet",
        ),
        (["pull", "BTC", "--config", "x.yaml", "--base-url", "http://127.0.0.1:1"], 2, "give one of them"),
        (["pull", "BTC", "--base-url", "http://example.com"], 4, "use https"),
        (["pull", "BTC", "--config", "x.yaml"], 4, "x.yaml"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "BTC.csv", rows(9))
    assert call(["data", *arguments]) == code
    out, err = capsys.readouterr()
    assert says in out + err
    assert "Traceback" not in err


def test_generated_candles_are_sound_repeatable_and_never_put_over_others(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["data", "gen", "BTC", "--from", "2025-01-01", "--days", "2", "--seed", "7"]
    assert call(asked) == 0
    digest = capsys.readouterr().out.split()[-1]
    assert call([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["same"], told["digest"]) == (2_880, 2_880, digest)
    assert call(["data", "audit"]) == 0
    assert call([*asked[:-1], "8"]) == 1
    assert "holds 2,880 other candles; nothing was changed" in capsys.readouterr().err
    assert call([*asked, "--out", "BTC.csv"]) == 0
    assert read_file(Path("BTC.csv"), market="BTC").digest() == digest
    assert call([*asked, "--out", "BTC.csv"]) == 1


def test_a_pull_takes_closed_candles_appends_and_compares(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["data", "pull", "BTC", "--base-url", sandbox.base_url]
    assert call([*asked, "--json"]) == 0
    (first,) = json.loads(capsys.readouterr().out)["written"]
    assert first["lastTs"] == START_MS - MINUTE
    assert first["rows"] == 1_000
    sandbox.advance(10 * MINUTE)
    assert call([*asked, "--json"]) == 0
    (more,) = json.loads(capsys.readouterr().out)["written"]
    assert (more["added"], more["missingBefore"], more["lastTs"]) == (10, 0, START_MS + 9 * MINUTE)
    assert call(["data", "audit", "--accept-jumps"]) == 0


def test_a_pull_does_without_a_key_that_a_unit_alone_is_handed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    strategy = '{name: one, use: "trend:Trend", markets: [BTC], budget_usd: 100}'
    account = f'{{base_url: "{sandbox.base_url}", api_key: "${{credential:api-key}}"}}'
    Path("live.yaml").write_text(f"account: {account}\nstrategies: [{strategy}]\n")
    assert call(["data", "pull", "BTC", "--config", "live.yaml"]) == 0


def test_a_pull_refuses_other_prices_and_tells_of_a_hole(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["data", "pull", "ETH", "--interval", "1h", "--base-url", sandbox.base_url]
    assert call(asked) == 0
    store = Store(Path("data"))
    held = store.read("ETH", "1h")
    assert held is not None
    other = replace(held, close=array("d", (px + 1 for px in held.close)))
    store.put(other, replacing=True)
    assert call(asked) == 1
    assert "1,000 candles are in the store with other values; nothing was changed" in capsys.readouterr().err
    assert store.read("ETH", "1h") == other
    long_ago = array("q", (at - 1_050 * held.step_ms for at in held.at_ms))
    store.put(replace(held, at_ms=long_ago), replacing=True)
    assert call(asked) == 0
    lost = "50 candles between the store and the service's oldest candle are lost; pull at least every 208 d 8 h"
    assert lost in capsys.readouterr().err


def serving(monkeypatch: pytest.MonkeyPatch, **served: Candles) -> None:
    """A service that has these candles."""

    async def pulled(names: list[str], *_more: object) -> list[Candles]:
        return [served[name] for name in names]

    monkeypatch.setattr(commands, "_pull", pulled)


def of_service(market: str, at_ms: list[int], px: float = 100.0) -> Candles:
    flat = array("d", [px] * len(at_ms))
    return Candles(market, "1m", array("q", at_ms), flat, flat, flat, flat, flat)


def test_a_pull_refuses_candles_with_faults_and_takes_those_of_other_markets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [MS + n * MINUTE for n in range(20)]
    serving(monkeypatch, BTC=of_service("BTC", good), ETH=of_service("ETH", good))
    assert call(["data", "pull", "BTC", "ETH", "BTC"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    later = [at + 20 * MINUTE for at in good if at % (7 * MINUTE)]
    for bad, says in (
        (of_service("BTC", [at // 1_000 for at in later]), "FAULT units: the instants look like seconds"),
        (of_service("BTC", [at + 9 for at in later]), "candle 1: 2025-06-16 00:20:00.009: is not on the grid of 1m"),
        (of_service("BTC", later, -1.0), "candle 1: 2025-06-16 00:20: close is -1, it must be above 0"),
        (of_service("BTC", good, 5.0), "20 candles are in the store with other values; nothing was changed"),
    ):
        serving(monkeypatch, BTC=bad, ETH=of_service("ETH", later))
        assert call(["data", "pull", "BTC", "ETH", "--json"]) == 1
        out, err = capsys.readouterr()
        assert says in err
        assert [(one["market"], one["lastTs"]) for one in json.loads(out)["written"]] == [("ETH", later[-1])]
        assert Store(Path("data")).read("BTC", "1m") == of_service("BTC", good)
    serving(monkeypatch, BTC=of_service("BTC", [at + 9 for at in later]))
    assert call(["data", "pull", "BTC", "--accept-off-grid"]) == 0


def test_a_pull_of_a_market_without_a_closed_candle_takes_those_of_the_others(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = candle_source.newest

    async def pulled(client: Client, name: str, interval: str) -> Candles:
        if name == "ETH":
            raise BotError("ETH 1m: the service has no closed candle yet")
        return await newest(client, name, interval)

    monkeypatch.setattr(candle_source, "newest", pulled)
    assert call(["data", "pull", "BTC", "ETH", "SOL", "--base-url", sandbox.base_url]) == 1
    assert "ETH 1m: the service has no closed candle yet" in capsys.readouterr().err
    assert [one.market for one in Store(Path("data")).held([])] == ["BTC", "SOL"]


def test_a_pull_reports_gaps_in_the_services_candles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serving(monkeypatch, BTC=of_service("BTC", [MS + n * MINUTE for n in range(50) if not 10 < n < 20]))
    assert call(["data", "pull", "BTC"]) == 0
    said = capsys.readouterr().out
    assert "(41 new)" in said
    assert "candle 12: 2025-06-16 00:20: 9 missing bars before it" in said
    assert "--accept-gaps" in said


def test_a_pull_after_a_reset_says_that_the_store_goes_on(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["data", "pull", "BTC", "--base-url", sandbox.base_url]
    sandbox.advance(10 * MINUTE)
    assert call(asked) == 0
    assert capsys.readouterr().err == ""
    sandbox.control("POST", "/reset", {})
    assert call(asked) == 0
    assert "BTC 1m: the store has 10 candles after the service's newest candle" in capsys.readouterr().err
    sandbox.control("POST", "/seed", {"seed": 9})
    held = Store(Path("data")).read("BTC", "1m")
    assert call(asked) == 1
    assert "or keep them apart with another --store" in capsys.readouterr().err
    assert Store(Path("data")).read("BTC", "1m") == held


def test_a_pull_without_a_service_names_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(
        "account: {base_url: embedded}\nstate_dir: state\nstrategies:\n"
        "  - {name: a, use: a, markets: [BTC], budget_usd: 5}\n"
    )
    for given, said in (
        (
            ["--base-url", "http://127.0.0.1:9"],
            "no service answers at http://127.0.0.1:9 (.*): start one with `bot sandbox`, or name it",
        ),
        (
            ["--config", "mine.yaml"],
            "is not running: `bot run mine.yaml` starts it; --base-url URL names another service",
        ),
    ):
        assert call(["data", "pull", "BTC", *given]) == 1
        assert re.search(said, capsys.readouterr().err)


def test_a_pull_of_an_unknown_market_lists_the_markets(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", "pull", "DOGGE", "--base-url", sandbox.base_url]) == 2
    said = capsys.readouterr().err
    assert "DOGGE: the service has no such market. Did you mean DOGE? There are " in said
    assert "BTC, " in said
    assert call(["data", "pull", "BTC", "--base-url", f"{sandbox.base_url}/nothing"]) == 7, "it is not the market"


@research
def test_the_store_is_csv_without_the_extra_with_the_same_digest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["data", "gen", "SOL", "--from", "2025-01-01", "--days", "1", "--store"]
    assert call([*asked, "with"]) == 0
    monkeypatch.setattr(column_files, "has_research", lambda: False)
    assert call([*asked, "without"]) == 0
    assert Path("with/SOL/1m.parquet").is_file()
    assert Path("without/SOL/1m.csv.gz").is_file()
    assert load([Path("with")])[0].digest() == load([Path("without")])[0].digest()
