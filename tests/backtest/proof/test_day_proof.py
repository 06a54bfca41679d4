"""Where the replay of a day begins, what is refused, and what is kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.replay import records
from bot.backtest.replay.records import flat_points, whole_since
from bot.cli.app import call
from bot.clock import iso
from bot.runtime.journal import proof_files, queries
from bot.runtime.kernel.kernel import Kernel
from tests.backtest.builders import MINUTE_MS, minutes, write
from tests.backtest.lived_day import BARS, HISTORY, lived
from tests.backtest.proof.altered import proved

COUNTING = """
from bot import Bracket, Close, Open, Strategy


class Counting(Strategy):
    def on_bar(self, view, bar):
        number = view.state["number"] = view.state.get("number", 0) + 1
        held = view.position(bar.market)
        if number % 7 == 3 and not held:
            yield Open(bar.market, "long", size=0.001 * (1 + number % 3), bracket=Bracket(stop_pct=5))
        elif number % 7 == 6 and held:
            yield Close(bar.market)
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day of a strategy that counts its bars, in a journal with many flat points."""
    return lived_day(tmp_path_factory.mktemp("counted"))


def lived_day(folder: Path, more: str = "") -> Path:
    (folder / "counting.py").write_text(COUNTING)
    (folder / "mine.yaml").write_text(
        f"account: {{base_url: embedded}}\nname: mine\ndead_man: off\nstrategies_dir: {folder}\nstate_dir:"
        f" {folder / 'state'}\nstrategies:\n  - {{name: one, use: counting, markets: [BTC], budget_usd: 1000{more}}}\n"
    )

    def rest(number: int, kernel: Kernel) -> None:
        # A minute of real time passes, so that the daemon looks after its journal. Later no time passes.
        kernel.budget.pacer.now_ms += MINUTE_MS if number < BARS // 2 else 0

    data = write(minutes(HISTORY + BARS + 30, vol=0.001), folder / "BTC_1m.csv")
    asyncio.run(lived(folder / "mine.yaml", data, between=rest))
    return folder


@pytest.fixture
def copied(counted: Path, tmp_path: Path) -> Path:
    """The same day in another folder, for a test that changes its journal."""
    text = (counted / "mine.yaml").read_text().replace(str(counted / "state"), str(tmp_path / "state"))
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "state").mkdir()
    with sqlite3.connect(counted / "state/journal.db") as db, sqlite3.connect(tmp_path / "state/journal.db") as to:
        db.backup(to)
    db.close()
    to.close()
    return tmp_path


def test_the_newest_flat_point_of_a_day_has_states_bars_and_balance(counted: Path) -> None:
    with queries.opened(counted / "state") as db:
        (point,) = flat_points(db, epoch=0)
        fills = [json.loads(row["payload"]) for row in queries.rows(db, "SELECT payload FROM events WHERE type='fill'")]
        (done,) = queries.rows(db, "SELECT max(at_ms) AS at_ms FROM progress")
    before = [event for event in fills if event["ts"] <= point.at_ms]
    assert before[-1]["data"]["positionSize"] == "0"
    assert str(point.balance_usd) == before[-1]["data"]["balanceUsd"]
    ((_, _, decided_ms),) = point.bars
    assert decided_ms <= point.at_ms
    # The state is of the newest decided bar: the strategy counted each bar once.
    missing = (done["at_ms"] - decided_ms) // MINUTE_MS
    assert json.loads(point.states["one"])["number"] == BARS + 1 - missing


def test_a_replay_begins_at_a_flat_point_with_the_states_of_that_instant(
    counted: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the day comes after the point; without the counter it would be decided otherwise."""
    with queries.opened(counted / "state") as db:
        (point,) = flat_points(db, epoch=0)
    data = counted / "BTC_1m.csv"
    words = ["--config", str(copied / "mine.yaml"), "--data", str(data), "--json", "--since"]
    asked_ms = point.next_ms + MINUTE_MS
    call(["proof", *words, iso(asked_ms)])
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == []
    assert (found["replayedFromMs"], found["causes"]) == (point.next_ms, {})
    assert found["counts"]["decisions"] > 10
    with sqlite3.connect(copied / "state/journal.db") as db:
        db.execute("UPDATE flat_points SET states='{}'")
    db.close()
    call(["proof", *words, iso(asked_ms)])
    assert json.loads(capsys.readouterr().out)["causes"] != {}


def test_a_replay_from_a_flat_point_counts_what_protections_have_counted_by_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lived_day(tmp_path, ", protections: {max_entries: 14, max_drawdown: {usd: 500, within: 1d, rest: 1d}}")
    with queries.opened(folder / "state") as db:
        (point,) = flat_points(db, epoch=0)
        (first,) = queries.rows(db, "SELECT min(at_ms) AS at_ms FROM refusals WHERE code='max_entries'")
    assert first["at_ms"] > point.at_ms, "the limit is reached after the point, by entries from before it too"
    words = ["--config", str(folder / "mine.yaml"), "--data", str(folder / "BTC_1m.csv"), "--json", "--since"]
    capsys.readouterr()
    call(["proof", *words, iso(point.next_ms + MINUTE_MS)])
    found = json.loads(capsys.readouterr().out)
    assert (found["replayedFromMs"], found["differences"]) == (point.next_ms, [])
    with sqlite3.connect(folder / "state/journal.db") as db:
        db.execute("DELETE FROM entries")
    db.close()
    call(["proof", *words, iso(point.next_ms + MINUTE_MS)])
    assert json.loads(capsys.readouterr().out)["differences"] != []


def test_a_journal_without_its_oldest_rows_says_since_when_it_can_prove(
    counted: Path, copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(copied / "state/journal.db") as db:
        (newest,) = db.execute("SELECT max(seq) FROM events").fetchone()
        monkeypatch.setattr(records, "EVENTS_KEPT", newest - 19)
        (kept_ms,) = db.execute("SELECT ts FROM events WHERE seq=20").fetchone()
        db.execute("DELETE FROM events WHERE seq < 20")
        points = db.execute("SELECT at_ms FROM flat_points").fetchall()
        db.execute("DELETE FROM flat_points")
    db.close()
    with queries.opened(copied / "state") as db:
        assert whole_since(db) == kept_ms
    assert points
    assert call(["proof", "--config", str(copied / "mine.yaml"), "--data", str(counted / "BTC_1m.csv")]) == 1
    assert f"cannot be proved any more: it has removed its rows before {iso(kept_ms)}" in capsys.readouterr().err


def test_only_rows_beyond_those_that_are_kept_count_as_removed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of an open position stays although it is old; the rows around it do not."""
    with sqlite3.connect(copied / "state/journal.db") as db:
        (count,) = db.execute("SELECT max(seq) FROM events").fetchone()
        instants = dict(db.execute("SELECT seq, ts FROM events").fetchall())
        db.execute("DELETE FROM events WHERE seq = ?", (count - 5,))
    with queries.opened(copied / "state") as reader:
        assert whole_since(reader) == 0, "a row that is missing among the newest was not removed by age"
        monkeypatch.setattr(records, "EVENTS_KEPT", 10)
        assert whole_since(reader) == 0
    with sqlite3.connect(copied / "state/journal.db") as db:
        db.execute("DELETE FROM events WHERE seq BETWEEN 2 AND 4")
    db.close()
    with queries.opened(copied / "state") as reader:
        assert whole_since(reader) == instants[count - 9]
        monkeypatch.undo()
        assert whole_since(reader) == 0


def test_the_proof_is_kept_and_shown_with_the_trend(copied: Path, counted: Path, capsys: Any) -> None:
    words = ["--config", str(copied / "mine.yaml")]
    assert call(["proof", "show", *words]) == 0
    assert "has no proof yet" in capsys.readouterr().out
    code, found = proved(copied, counted / "BTC_1m.csv", capsys)
    assert (code, found["equalShare"]) == (0, 1.0)
    assert proof_files.days(copied / "state") == ["2025-06-01"]
    assert proof_files.read_proof(copied / "state", "2025-06-01") == found
    assert call(["proof", "show", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 day: 100.00% of the decisions equal, 0 differences of unknown cause, outages +0.00 USD")
    assert call(["proof", "show", *words, "--json"]) == 0
    trend = json.loads(capsys.readouterr().out)
    assert [row["fills"] for row in trend["markets"]] == [found["counts"]["fills"]]
    assert (trend["unknown"], trend["equal_share"], trend["provable_since_ms"]) == (0, 1.0, 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--day", "yesterday"], 2, "is no date like 2026-11-27"),
        (["--day", "2025-06-01", "--since", "2025-06-01"], 2, "give --day or --since, not both"),
        (["--day", "2025-07-01"], 1, "and 2025-07-01 is not in it"),
        (["--since", "2026-01-01"], 2, "lies after the journal's end"),
    ],
)
def test_a_range_that_cannot_be_proved_fails_with_one_sentence(
    words: list[str], code: int, said: str, counted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["proof", "--config", str(counted / "mine.yaml"), *words]) == code
    assert said in capsys.readouterr().err


def test_a_damaged_or_foreign_file_is_no_proof(tmp_path: Path) -> None:
    assert proof_files.read_proof(tmp_path, "2026-01-01") is None
    path = proof_files.write_proof(tmp_path, {"day": "2026-01-01", "format": proof_files.FORMAT})
    assert proof_files.read_proof(tmp_path, "2026-01-01") is not None
    for text in ("", "[]", '{"format": 2, "day": "2026-01-01"}', '{"format": 1, "day": "2026-01-02"}'):
        path.write_text(text)
        assert proof_files.read_proof(tmp_path, "2026-01-01") is None
