"""`bot replay`: a daemon's run against a sandbox is repeated on candles.

It is equal if nothing has changed, and each change is named.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import shutil
import sqlite3
import sys
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import Candles
from bot.backtest.replay.records import read_journal
from bot.checks.config_check import checked_config
from bot.cli.app import call
from bot.clock import iso
from bot.runtime.journal.opening import open_journal
from bot.runtime.strategy_host import fingerprints
from tests.backtest.builders import MINUTE_MS, START_MS, minutes, write
from tests.backtest.lived_day import BARS, HISTORY, STRATEGIES, config, lived


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Candles]:
    """The folder of a config after a run, with its journal and the candles of its service."""
    folder = tmp_path_factory.mktemp("lives")
    candles = minutes(HISTORY + BARS + 30, vol=0.001)
    asyncio.run(lived(config(folder), write(candles, folder / "BTC_1m.csv")))
    return folder, candles


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = call(["replay", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def causes(found: dict[str, Any]) -> Counter[tuple[str, str]]:
    return Counter((one["what"], one["cause"]) for one in found["differences"])


def test_a_daemon_against_a_sandbox_and_its_replay_on_the_candles_are_equal(
    lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    code, found = replayed(capsys, str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv"))
    assert found["differences"] == []
    assert (code, found["equal"], found["changed"]) == (0, True, [])
    assert found["counts"]["decisions"]["recorded"] > 10
    assert found["counts"]["fills"]["recorded"] > 20


def test_protections_refuse_the_same_entries_in_a_replay_and_a_change_of_them_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    candles, plain = minutes(HISTORY + BARS + 30, vol=0.001), config(tmp_path)
    rules = "{cooldown: 3 bars, max_entries: 9, stop_guard: {stops: 2, within: 40m, rest: 15m}}"
    with_rules = plain.read_text().replace("budget_usd: 1000", f"budget_usd: 1000, protections: {rules}")
    plain.write_text(with_rules)
    data = write(candles, tmp_path / "BTC_1m.csv")
    asyncio.run(lived(plain, data))
    with sqlite3.connect(tmp_path / "state" / "journal.db") as db:
        refused = Counter(code for (code,) in db.execute("SELECT code FROM refusals"))
    assert {"cooldown", "max_entries"} <= set(refused)
    code, found = replayed(capsys, str(plain), "--data", str(data))
    assert found["differences"] == []
    assert (code, found["equal"], found["changed"]) == (0, True, [])
    other = tmp_path / "other.yaml"
    other.write_text(with_rules.replace("max_entries: 9", "max_entries: 3"))
    code, found = replayed(capsys, str(tmp_path / "state"), "--config", str(other), "--data", str(data))
    assert code == 1
    assert found["changed"] == ["strategy one: protections has changed"]


def test_a_replay_beyond_the_daemons_last_event_is_compared_up_to_it(
    lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    words = [str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv")]
    ends = [replayed(capsys, *words, *more)[1]["toMs"] for more in ([], ["--to", iso(candles.end_ms)])]
    assert ends[0] == ends[1] < candles.end_ms - 20 * MINUTE_MS


def test_a_param_that_was_changed_since_is_named(lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]):
    folder, _ = lives
    other = config(folder, "other.yaml", bars=4)
    code, found = replayed(capsys, str(folder / "state"), "--config", str(other), "--data", str(folder / "BTC_1m.csv"))
    assert code == 1
    assert found["changed"] == ["strategy one: params.bars has changed"]
    decisions = [one for one in found["differences"] if one["what"] == "decision"]
    assert decisions
    assert {(one["cause"], one["why"]) for one in decisions} == {("config", "strategy one: params.bars has changed")}
    assert {one["cause"] for one in found["differences"] if one["what"] == "fill"} == {"follows"}


def test_a_different_candle_is_named_with_both_values(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    with sqlite3.connect(folder / "state/journal.db") as db:
        (payload,) = db.execute("SELECT payload FROM traces WHERE kind='bar' ORDER BY seq LIMIT 1").fetchone()
    bar = json.loads(payload)
    row = candles.at_ms.index(bar["at_ms"] - MINUTE_MS)
    high = candles.high[:]
    high[row] += 7
    data = write(replace(candles, high=high), tmp_path / "BTC_1m.csv")
    code, found = replayed(capsys, str(folder / "mine.yaml"), "--data", str(data))
    assert code == 1
    (told,) = (one for one in found["differences"] if one["what"] == "bar")
    assert (told["cause"], told["atMs"]) == ("data", bar["at_ms"])
    assert told["why"] == "1m bar: other values: high"
    assert f"high {bar['high']:.10g}" in told["recorded"]
    assert f"high {bar['high'] + 7:.10g}" in told["replayed"]


def test_another_fee_is_the_only_difference_and_is_named_on_every_fill(
    lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    arguments = (str(folder / "state/journal.db"), "--data", str(folder / "BTC_1m.csv"), "--fee", "0.05%")
    code, found = replayed(capsys, *arguments)
    assert code == 1
    assert causes(found) == {("fill", "fee"): found["counts"]["fills"]["recorded"]}
    assert found["differences"][0]["why"] == "fee 0.0450 % then, 0.0500 % in the replay"


def test_a_wider_spread_moves_prices_and_has_the_cause_price(
    lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    data = str(folder / "BTC_1m.csv")
    code, found = replayed(capsys, str(folder / "mine.yaml"), "--data", data, "--spread", "8bps")
    assert code == 1
    first = found["differences"][0]
    assert (first["what"], first["cause"]) == ("fill", "price")
    assert "spread, depth or tick" in first["why"]


def test_a_late_order_has_the_cause_timing(lives: tuple[Path, Candles], capsys: pytest.CaptureFixture[str]):
    """Here the replay is late; the record was filled at the opens."""
    folder, _ = lives
    data = str(folder / "BTC_1m.csv")
    code, found = replayed(capsys, str(folder / "mine.yaml"), "--data", data, "--latency", "50s")
    assert code == 1
    assert ("fill", "timing") in causes(found)
    assert found["lateMs"]["median"] <= -50_000


def test_a_fill_at_another_instant_of_the_bar_is_timing_also_beyond_the_bars_range(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Recorded with a latency, the order fills at the first extreme of a bar and pays half of the spread beyond it."""
    folder, _ = lives
    data, made = str(folder / "BTC_1m.csv"), str(folder / "mine.yaml")
    late = ["--latency", "1s", "--spread", "30bps"]
    assert call(["backtest", made, "--data", data, "--out", str(tmp_path), *late]) == 0
    (run,) = tmp_path.glob("mine-*")
    _, found = replayed(capsys, str(run), "--data", data, "--latency", "0s")
    assert ("fill", "timing") in causes(found)
    assert {one["cause"] for one in found["differences"]} <= {"timing", "follows", "guardian"}


@pytest.fixture
def doctored(lives: tuple[Path, Candles], tmp_path: Path) -> Path:
    """A separate state directory, for a test that changes its content."""
    shutil.copytree(lives[0] / "state", tmp_path / "state")
    return tmp_path / "state"


def entries(db: sqlite3.Connection) -> list[tuple[int, dict[str, Any]]]:
    rows = db.execute("SELECT seq, payload FROM events WHERE type='fill' AND subtype='entry' ORDER BY seq")
    return [(seq, json.loads(payload)) for seq, payload in rows]


def test_a_live_fill_after_the_open_is_timing_and_one_outside_its_bar_is_price(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    with sqlite3.connect(doctored / "journal.db") as db:
        (first, late), (second, far) = entries(db)[:2]
        row = candles.at_ms.index(late["ts"])
        late["data"]["px"], late["ts"] = f"{candles.low[row]:f}", late["ts"] + 350
        far["data"]["px"] = f"{candles.high[candles.at_ms.index(far['ts'])] * 1.01:.1f}"
        for seq, event in ((first, late), (second, far)):
            db.execute("UPDATE events SET payload=?, ts=? WHERE seq=?", (json.dumps(event), event["ts"], seq))
    db.close()
    code, found = replayed(
        capsys, str(doctored), "--config", str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv")
    )
    assert code == 1
    told = {one["atMs"]: one for one in found["differences"] if one["cause"] not in ("follows", "fee")}
    assert told[late["ts"]]["cause"] == "timing"
    assert "filled 350 ms later" in told[late["ts"]]["why"]
    assert told[far["ts"]]["cause"] == "price"


def test_refusals_guardians_and_unknown_differences_have_their_own_causes(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    with sqlite3.connect(doctored / "journal.db") as db:
        opens = db.execute("SELECT id, cause FROM intents WHERE action='open' ORDER BY seq").fetchall()
        (refused, cause), (gone, _), (stopped, _) = opens[0], opens[1], opens[2]
        for one in (refused, gone):
            db.execute("DELETE FROM attempts WHERE intent_id=?", (one,))
            db.execute("DELETE FROM intents WHERE id=?", (one,))
        row = (1, "one", "BTC", cause, 0, "behind", "the service's events could not be read to their end")
        db.execute(
            "INSERT INTO refusals (at_ms, strategy, market, cause, ordinal, code, message) VALUES (?,?,?,?,?,?,?)", row
        )
        (ts,) = db.execute("SELECT ts FROM events WHERE idempotency_key=? AND type='fill'", (stopped,)).fetchone()
        fired = {
            "id": "evt_x",
            "type": "guardian",
            "subtype": "fired",
            "ts": ts,
            "data": {"guardianType": "kill_switch", "action": "flatten"},
        }
        db.execute(
            "INSERT INTO events (id, epoch, type, subtype, ts, payload) VALUES ('evt_x', 0, 'guardian', 'fired', ?, ?)",
            (ts, json.dumps(fired)),
        )
    db.close()
    _, found = replayed(
        capsys, str(doctored), "--config", str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv")
    )
    told = [(one["cause"], one["why"]) for one in found["differences"] if one["what"] in ("decision", "guardian")]
    assert (
        "refused",
        "recorded: the risk check refused it (behind): the service's events could not be read to their end",
    ) in told
    assert ("guardian", "it fired on one side only: someone operated the kill switch") in told
    assert any(cause == "unknown" for cause, _ in told)


def test_a_fill_whose_order_was_refused_on_one_side_follows_from_that(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    with sqlite3.connect(doctored / "journal.db") as db:
        (one,) = db.execute("SELECT id FROM intents WHERE action='open' ORDER BY seq LIMIT 1").fetchone()
        why = "openings are blocked by guardian grd_1 (account_drawdown)"
        db.execute("UPDATE intents SET state='rejected', code='limit_exceeded', message=? WHERE id=?", (why, one))
        (ts,) = db.execute("SELECT ts FROM events WHERE idempotency_key=? AND type='fill'", (one,)).fetchone()
        db.execute("DELETE FROM events WHERE idempotency_key=?", (one,))
    db.close()
    _, found = replayed(
        capsys, str(doctored), "--config", str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv")
    )
    told = [(one["what"], one["cause"], one["why"]) for one in found["differences"] if one["atMs"] <= ts]
    assert told == [
        ("decision", "guardian", f"recorded: rejected, {why}"),
        ("fill", "follows", "its decision did not become an order on one side"),
    ]


def test_decisions_missed_while_the_daemon_was_down_have_the_cause_down(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    with sqlite3.connect(doctored / "journal.db") as db:
        (text,) = db.execute("SELECT value FROM meta WHERE name='runs'").fetchone()
        opens = db.execute("SELECT opened_ms FROM intents WHERE action='open' ORDER BY seq").fetchall()
        from_ms, to_ms = opens[2][0] - 1, opens[5][0] - 1
        db.execute(
            "DELETE FROM attempts WHERE intent_id IN (SELECT id FROM intents WHERE opened_ms BETWEEN ? AND ?)",
            (from_ms, to_ms),
        )
        db.execute("DELETE FROM intents WHERE opened_ms BETWEEN ? AND ?", (from_ms, to_ms))
        db.execute("DELETE FROM events WHERE ts BETWEEN ? AND ?", (from_ms, to_ms))
        marks = json.loads(text)
        db.execute("UPDATE meta SET value=? WHERE name='runs'", (json.dumps([*marks, marks[0] | {"atMs": to_ms}]),))
    db.close()
    _, found = replayed(
        capsys, str(doctored), "--config", str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv")
    )
    missed = [one for one in found["differences"] if one["what"] == "decision" and one["recorded"] is None]
    assert missed
    assert {one["cause"] for one in missed} == {"down"}
    assert any("started, or read its config again, 2 times" in note for note in found["notes"])


def test_a_backtest_that_kept_its_journal_is_replayed_by_every_decision(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    data, made = str(folder / "BTC_1m.csv"), str(folder / "mine.yaml")
    assert call(["backtest", made, "--data", data, "--out", str(tmp_path), "--journal"]) == 0
    (run,) = tmp_path.glob("mine-*")
    code, found = replayed(capsys, str(run), "--data", data)
    assert (code, found["differences"]) == (0, [])
    assert found["counts"]["decisions"]["recorded"] == found["counts"]["decisions"]["replayed"] > 10


def test_decisions_without_an_order_are_not_counted_if_the_run_has_no_journal(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    data, made = str(folder / "BTC_1m.csv"), str(folder / "mine.yaml")
    counts = []
    for name in ("with", "without"):
        more = ["--journal"] if name == "with" else []
        capped = ["--cap", "maxDailyNotionalUsd=700", "--out", str(tmp_path / name)]
        assert call(["backtest", made, "--data", data, *capped, *more]) == 0
        (run,) = (tmp_path / name).glob("mine-*")
        code, found = replayed(capsys, str(run), "--data", data)
        assert (code, found["equal"]) == (0, True)
        assert found["counts"]["decisions"]["recorded"] == found["counts"]["decisions"]["replayed"]
        counts.append((found["counts"]["decisions"]["replayed"], found["notes"]))
    (whole, nothing), (known, (note,)) = counts
    assert nothing == []
    assert whole > known > 0
    assert note.startswith(f"not compared: {whole - known} decisions of the replay without an order")


def test_a_backtest_is_replayed_from_its_folder_and_what_has_changed_since_is_named(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    data, made = str(folder / "BTC_1m.csv"), str(folder / "mine.yaml")
    assert call(["backtest", made, "--data", data, "--out", str(tmp_path), "--spread", "2bps"]) == 0
    (run,) = tmp_path.glob("mine-*")
    code, found = replayed(capsys, str(run), "--data", data)
    assert (code, found["differences"], found["changed"]) == (0, [], [])
    assert found["counts"]["fills"]["recorded"] > 20
    code, found = replayed(capsys, str(run), "--data", data, "--config", str(config(tmp_path, bars=3)))
    assert found["changed"] == ["strategy one: params.bars has changed"]
    assert found["differences"][0]["cause"] == "config"
    opens = candles.open[:]
    opens[-40:] = type(opens)("d", [px + 3 for px in opens[-40:]])
    lows, highs = (
        type(opens)("d", map(pick, zip(one, opens, strict=True)))
        for one, pick in ((candles.low, min), (candles.high, max))
    )
    other = write(replace(candles, open=opens, low=lows, high=highs), tmp_path / "BTC_1m.csv")
    code, found = replayed(capsys, str(run), "--data", str(other))
    assert found["changed"] == ["BTC 1m: the data of the run: its candles differ"]
    assert {one["cause"] for one in found["differences"]} <= {"data", "follows"}
    assert found["differences"][0]["cause"] == "data"


def test_a_run_with_missing_strategies_is_refused_with_advice_to_name_the_config(
    lives: tuple[Path, Candles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    text = (folder / "mine.yaml").read_text()
    where = next(line for line in text.splitlines() if line.startswith("strategies_dir:")).partition(": ")[2]
    made, data = tmp_path / "mine.yaml", str(folder / "BTC_1m.csv")
    made.write_text(text.replace(where, "./own"))
    shutil.copytree(where, tmp_path / "own")
    assert call(["backtest", str(made), "--data", data, "--out", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert call(["replay", str(run), "--data", data]) == 4
    said = capsys.readouterr().err
    assert f"so relative paths start at {tmp_path / 'elsewhere'}; give the file with --config" in said
    code, found = replayed(capsys, str(run), "--data", data, "--config", str(made))
    assert (code, found["differences"]) == (0, [])


def test_what_a_strategy_imports_is_recorded_and_named_when_it_has_changed_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """An installed package by its version, a module that is only on the path by its content."""
    (tmp_path / "path").mkdir()
    sizes = tmp_path / "path" / "my_sizes.py"
    sizes.write_text("USD = 100\n")
    monkeypatch.syspath_prepend(sizes.parent)
    (tmp_path / "strategies").mkdir()
    source = (
        (STRATEGIES / "replaying.py")
        .read_text()
        .replace("annotations\n", "annotations\nimport math, click, my_sizes\n", 1)
    )
    (tmp_path / "strategies" / "replaying.py").write_text(source)
    made = config(tmp_path)
    made.write_text(made.read_text().replace(str(STRATEGIES), str(tmp_path / "strategies")))
    data = write(minutes(400, vol=0.001), tmp_path / "BTC_1m.csv")
    runs = []
    for usd in (100, 200):
        sizes.write_text(f"USD = {usd}\n")
        assert call(["backtest", str(made), "--data", str(data), "--out", str(tmp_path / f"{usd}")]) == 0
        runs += (tmp_path / f"{usd}").iterdir()
    sources = (b"my_sizes.py\0USD = %d\n\0" % usd for usd in (100, 200))
    digests = [f"sha256:{hashlib.sha256(source).hexdigest()}" for source in sources]
    for run, digest in zip(runs, digests, strict=True):
        (strategy,) = json.loads((run / "manifest.json").read_text())["strategies"]
        assert strategy["packages"] == {"click": version("click"), "my_sizes": digest}
    capsys.readouterr()
    assert call(["compare", *map(str, runs)]) == 0
    assert "strategies.one.packages.my_sizes: the source differs" in capsys.readouterr().out
    _, found = replayed(capsys, str(runs[0]), "--data", str(data))
    assert found["changed"] == [f"strategy one imports my_sizes: {digests[0]} then, {digests[1]} now"]
    del sys.modules["my_sizes"]


def test_a_reload_and_a_start_record_their_config_and_the_first_one_stays(tmp_path: Path):
    made = checked_config(config(tmp_path, bars=7)).settings
    journal = open_journal(tmp_path / "journal.db", address="0x1")
    mark = fingerprints.mark_of(made, fingerprints.sources_of(made))
    for at_ms in range(fingerprints.MARKS_KEPT + 5):
        fingerprints.note_run(journal, mark, at_ms=at_ms, epoch=0)
    marks = fingerprints.marks_in(journal.state.note(fingerprints.NOTE))
    journal.close()
    assert [mark["atMs"] for mark in marks] == [0, *range(6, fingerprints.MARKS_KEPT + 5)]
    assert marks[0]["strategies"]["one"]["source"]
    assert fingerprints.changes(marks[0], mark) == {}
    other = fingerprints.mark_of(checked_config(config(tmp_path, bars=8)).settings, fingerprints.sources_of(made))
    assert fingerprints.changes(marks[0], other) == {"one": [("config", "strategy one: params.bars has changed")]}


def marked(doctored: Path, other: Path, *, at_ms: int, times: int = 1) -> None:
    """As if the daemon had continued with another config from then on, and had read it this many times."""
    mark = fingerprints.mark_of(checked_config(other).settings, fingerprints.sources_of(checked_config(other).settings))
    journal = open_journal(doctored / "journal.db", address=read_journal(doctored).address or "")
    for _ in range(times):
        fingerprints.note_run(journal, mark, at_ms=at_ms, epoch=0)
    journal.close()


def test_a_decision_is_compared_with_the_config_of_its_time(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, _ = lives
    other, at_ms = config(folder, "other.yaml", bars=4), START_MS + (HISTORY + BARS // 2) * MINUTE_MS
    marked(doctored, other, at_ms=at_ms)
    words = [str(doctored), "--data", str(folder / "BTC_1m.csv"), "--config"]
    _, found = replayed(capsys, *words, str(other))
    assert found["changed"] == ["strategy one: params.bars has changed"]
    told = [(one["atMs"] < at_ms, one["cause"]) for one in found["differences"] if one["what"] == "decision"]
    assert {is_before for is_before, _ in told} == {True, False}
    assert all(is_before == (cause == "config") for is_before, cause in told)
    _, found = replayed(capsys, *words, str(other), "--from", iso(at_ms))
    assert found["changed"] == []
    code, found = replayed(capsys, *words, str(folder / "mine.yaml"))
    assert (code, found["changed"]) == (0, ["strategy one: params.bars has changed"])


def test_for_times_without_a_config_record_no_config_is_named(
    lives: tuple[Path, Candles], doctored: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    other = config(folder, "other.yaml", bars=4)
    marked(doctored, other, at_ms=candles.end_ms, times=fingerprints.MARKS_KEPT)
    _, found = replayed(capsys, str(doctored), "--config", str(other), "--data", str(folder / "BTC_1m.csv"))
    assert found["differences"]
    assert "config" not in {one["cause"] for one in found["differences"]}


def test_unreadable_config_records_are_set_aside_and_a_start_continues(tmp_path: Path):
    made = checked_config(config(tmp_path, bars=7)).settings
    journal = open_journal(tmp_path / "journal.db", address="0x1")
    mark = fingerprints.mark_of(made, {})
    damages = ('[{"atMs"', "7", "[{}]", '[{"atMs": "soon"}]', None)
    for at_ms, damage in enumerate(damages):
        if damage is not None:
            journal.state.write_note(fingerprints.NOTE, damage)
        fingerprints.note_run(journal, mark, at_ms=at_ms, epoch=0)
        if damage is not None:
            assert journal.state.note(f"damaged:{fingerprints.NOTE}") == damage
    assert [one["atMs"] for one in fingerprints.marks_in(journal.state.note(fingerprints.NOTE))] == [3, 4]
    journal.close()


def test_an_incomplete_config_record_is_ignored(tmp_path: Path):
    made = checked_config(config(tmp_path, bars=7)).settings
    mark = {**fingerprints.mark_of(made, fingerprints.sources_of(made)), "atMs": 1, "epoch": 0}
    assert fingerprints.marks_in(json.dumps([mark])) == [mark]
    for name in mark:
        assert fingerprints.marks_in(json.dumps([{**mark, name: "damaged" if name != "version" else 1}])) == [], name
    broken = {"strategies": {"one": {**mark["strategies"]["one"], "limits": 1}}}
    assert fingerprints.marks_in(json.dumps([mark | broken])) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nowhere", "there is no "),
        ("empty", "has neither a journal.db nor a manifest.json"),
        ("text.txt", "is not a config (.yaml), state directory, journal.db or folder of a backtest"),
        ("fresh", "has no decision and no fill yet: there is nothing to replay"),
        ("BTC.yaml", "unknown key"),
    ],
)
def test_a_replay_that_is_not_possible_fails_with_one_sentence(
    tmp_path: Path, what: str, said: str, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("no")
    (tmp_path / "BTC.yaml").write_text("nothing: true\n")
    (tmp_path / "fresh").mkdir()
    open_journal(tmp_path / "fresh/journal.db", address="0x1").close()
    arguments = ["--config", str(tmp_path / "BTC.yaml")] if what == "BTC.yaml" else []
    target = "fresh" if arguments else what
    if arguments:
        with sqlite3.connect(tmp_path / "fresh/journal.db") as db:
            db.execute("INSERT INTO progress (market, interval, at_ms) VALUES ('BTC', '1m', 5)")
            mark = {"version": "0", "config": {}, "strategies": {}, "atMs": 1, "epoch": 0}
            db.execute("INSERT INTO meta (name, value) VALUES ('runs', ?)", (json.dumps([mark]),))
        db.close()
    assert call(["replay", str(tmp_path / target), *arguments]) != 0
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_journal_whose_config_is_gone_names_the_config(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    state = shutil.copytree(lives[0] / "state", tmp_path / "state")
    with sqlite3.connect(state / "journal.db") as db:
        db.execute("UPDATE meta SET value=replace(value, 'mine.yaml', 'gone.yaml') WHERE name='runs'")
    db.close()
    assert call(["replay", str(state)]) == 2
    assert (
        f"names the config {lives[0] / 'gone.yaml'}, which does not exist: give the config" in capsys.readouterr().err
    )


def test_candles_that_begin_too_late_are_reported_with_advice(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    late = write(candles.slice(START_MS + (HISTORY + 100) * MINUTE_MS), tmp_path / "BTC_1m.csv")
    assert call(["replay", str(folder / "mine.yaml"), "--data", str(late)]) != 0
    err = capsys.readouterr().err
    assert "begin at 2025-06-01T05:00" in err
    assert "--from" in err


def test_funding_outside_the_time_of_the_journal_is_refused(
    lives: tuple[Path, Candles], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, candles = lives
    data = ["--data", str(folder / "BTC_1m.csv"), "--funding", str(tmp_path / "BTC_rates.csv")]
    hours = range(START_MS, candles.end_ms + 3_600_000, 3_600_000)
    for shift_ms, code in ((-40 * 86_400_000, 4), (0, 0)):
        lines = ["ts,rate", *(f"{at + shift_ms},0.0000125" for at in hours)]
        (tmp_path / "BTC_rates.csv").write_text("\n".join(lines))
        assert call(["replay", str(folder / "mine.yaml"), *data]) == code
    assert "BTC_rates.csv: no rate from 2025-06-01T" in capsys.readouterr().err


def test_a_decision_at_the_start_on_the_bar_before_it_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A daemon is started at any second, and decides on the newest closed bar at once."""
    (tmp_path / "mine.py").write_text(
        "from bot import Bracket, Open, Strategy\n\n\nclass Mine(Strategy):\n    def on_bar(self, view, bar):\n"
        "        if not view.position(bar.market):\n"
        "            yield Open(bar.market, 'long', usd=100, bracket=Bracket(stop_pct=40))\n"
    )
    made = tmp_path / "c.yaml"
    made.write_text(
        f"account: {{base_url: embedded}}\nstrategies_dir: {tmp_path}\n"
        "strategies:\n  - {name: one, use: 'mine:Mine', markets: [BTC], budget_usd: 1000}\n"
    )
    data = write(minutes(60), tmp_path / "BTC_1m.csv")
    words = ["backtest", str(made), "--data", str(data), "--from", "2025-06-01T00:20:30", "--journal"]
    assert call([*words, "--out", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    for what in (folder, folder / "journal.db"):
        code, found = replayed(
            capsys, str(what), "--config", str(made), "--data", str(data), "--balance", "10000", "--path", "sl_first"
        )
        assert (code, found["counts"]["decisions"]) == (0, {"recorded": 1, "replayed": 1})


def test_fills_before_the_first_decision_of_the_replay_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The run began inside a bar, and without a dead-man switch nothing happens before the first order."""
    data = str(write(minutes(160, vol=0.001), tmp_path / "BTC_1m.csv"))
    words = ["backtest", str(config(tmp_path)), "--data", data, "--from", "2025-06-01T00:20:30"]
    assert call([*words, "--out", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    first = next(event for event in events if event["type"] == "order")
    other = config(tmp_path, "other.yaml", bars=60)
    code, found = replayed(capsys, str(folder), "--config", str(other), "--data", data)
    assert (code, found["fromMs"]) == (1, START_MS + 20 * MINUTE_MS + 30_000)
    difference = found["differences"][0]
    assert (difference["what"], difference["cause"], difference["atMs"]) == ("decision", "config", first["ts"])
    assert difference["why"] == "strategy one: params.bars has changed"


@pytest.mark.parametrize("has_journal", [True, False])
def test_an_end_at_another_stop_follows_from_the_decision_that_set_it(
    tmp_path: Path, has_journal: bool, capsys: pytest.CaptureFixture[str]
):
    """The decision is in the journal.

    Without a journal the stop is the first difference, and the config is its cause.
    """
    data = str(write(minutes(200, vol=0.001), tmp_path / "BTC_1m.csv"))
    words = ["backtest", str(config(tmp_path)), "--data", data, *(["--journal"] if has_journal else [])]
    assert call([*words, "--out", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    other = config(tmp_path, "other.yaml", stop_pct=0.1)
    _, found = replayed(capsys, str(folder), "--config", str(other), "--data", data)
    ends = [one for one in found["differences"] if "exit stop_loss" in f"{one['recorded']} {one['replayed']}"]
    assert {bool(one["recorded"]) for one in ends} == {True, False}, "moved, and met on one side only"
    cause = "follows" if has_journal else "config"
    assert {one["cause"] for one in ends} <= {cause, "follows"}
    assert ends[0]["cause"] == cause


def test_a_stop_that_fires_on_one_side_only_has_the_cause_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    candles = minutes(160, vol=0.001)
    words = ["backtest", str(config(tmp_path)), "--data", str(write(candles, tmp_path / "BTC_1m.csv"))]
    assert call([*words, "--out", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    with (folder / "trades.csv").open(newline="") as file:
        trade = next(
            one
            for one in csv.DictReader(file)
            if one["exit_kind"] != "stop_loss" and int(one["exit_ms"]) - int(one["entry_ms"]) > 3 * MINUTE_MS
        )
    # The position was held during this whole bar.
    row = bisect_left(candles.at_ms, int(trade["entry_ms"])) + 1
    lows = candles.low[:]
    lows[row] = float(trade["stop_px"]) - 10
    (tmp_path / "other").mkdir()
    other = write(replace(candles, low=lows), tmp_path / "other" / "BTC_1m.csv")
    _, found = replayed(capsys, str(folder), "--data", str(other))
    difference = found["differences"][0]
    assert (difference["what"], difference["cause"]) == ("fill", "data")
    assert difference["recorded"] is None
    assert difference["replayed"].startswith("exit stop_loss long")
    assert candles.at_ms[row] <= difference["atMs"] < candles.at_ms[row] + MINUTE_MS
    assert {one["cause"] for one in found["differences"][1:]} <= {"data", "follows"}


ECHOING = """
from bot import Bracket, Close, Open, Strategy


class Idle(Strategy):
    def on_bar(self, view, bar):
        return ()


class Echoing(Strategy):
    def on_bar(self, view, bar):
        minute, held = bar.at_ms // 60_000 % 20, view.position(bar.market)
        if minute == 5 and not held:
            yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))
        elif minute in (10, 15) and held:
            yield Close(bar.market)

    def on_fill(self, view, fill):
        if fill.action == "close" and fill.side == "long":
            yield Open(fill.market, "short", usd=200, bracket=Bracket(stop_pct=5))
"""


@pytest.fixture(scope="module")
def echoed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A backtest with its journal, and the command that replays it.

    It also decides on fills, is flat at each hour, and a guardian buys in each hour.
    """
    folder = tmp_path_factory.mktemp("echoed")
    (folder / "mine.py").write_text(ECHOING)
    made = folder / "mine.yaml"
    made.write_text(
        f"account: {{base_url: embedded}}\ndead_man: off\nstrategies_dir: {folder}\nguardians:\n  - {{type: schedule,"
        ' cron: "18 * * * *", order_template: {market: ETH, side: long, usdAmount: 50}}\nstrategies:\n  - {name:'
        ' one, use: "mine:Echoing", markets: [BTC], interval: 5m, budget_usd: 1000}\n  - {name: two, use:'
        ' "mine:Idle", markets: [ETH], budget_usd: 1000}\n'
    )
    write(minutes(240), folder / "BTC_1m.csv")
    write(minutes(240, market="ETH", px=3_000.0), folder / "ETH_1m.csv")
    words = ["--data", str(folder / "BTC_1m.csv"), "--data", str(folder / "ETH_1m.csv")]
    out = folder / "runs"
    assert (
        call(["backtest", str(made), *words, "--out", str(out), "--journal", "--outage", "2025-06-01T03:04:30+40m"])
        == 0
    )
    (run,) = out.iterdir()
    return run, [*words, "--config", str(made)]


@pytest.fixture(params=["with its journal", "without", "the journal alone"])
def kept(echoed: tuple[Path, list[str]], tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The command of a replay of that run."""
    run, words = echoed
    if request.param == "the journal alone":
        return [str(run / "journal.db"), *words, "--balance", "10000", "--path", "sl_first"]
    if request.param == "without":
        run = Path(shutil.copytree(run, tmp_path / "run"))
        (run / "journal.db").unlink()
    return [str(run), *words]


def test_a_replay_that_begins_later_is_compared_from_its_beginning(kept: list[str], capsys: pytest.CaptureFixture[str]):
    """The replay does not count fills and guardians' actions that the record had before its beginning."""
    code, found = replayed(capsys, *kept, "--from", "2025-06-01T01:00", "--to", "2025-06-01T02:00")
    assert (code, found["differences"]) == (0, [])


@pytest.mark.parametrize("end", ["02:00", "02:31:20"])
def test_a_replay_that_ends_earlier_is_compared_up_to_there(
    kept: list[str], end: str, capsys: pytest.CaptureFixture[str]
):
    """On a close, and inside of a bar."""
    code, found = replayed(capsys, *kept, "--to", f"2025-06-01T{end}")
    assert (code, found["differences"]) == (0, [])
    assert found["counts"]["fills"]["recorded"] > 20


def test_a_replay_that_ends_during_an_outage_starts_no_daemon_early(
    echoed: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
):
    run, words = echoed
    code, found = replayed(capsys, str(run), *words, "--to", "2025-06-01T03:06:30")
    assert (code, found["differences"]) == (0, [])
