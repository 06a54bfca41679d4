"""Backtests with agents: live answers are recorded, the same recording gives the same events, and a replay names the
cause `agent`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from tests.agents.builders import HOLD, close, model_server, open_
from tests.backtest.builders import minutes

pytest.importorskip("pydantic_ai")

CONFIG = """\
name: agents
account: {{base_url: embedded}}
dead_man: "off"
strategies:
  - name: agent
    use: "bot.agents:AgentStrategy"
    markets: [BTC]
    interval: 15m
    budget_usd: 1000
    params:
      model: local
      base_url: {url}
      usd_per_million_in: 1
      usd_per_million_out: 4
      instructions: {instructions}
      usd_per_day: {usd_per_day}
      cooldown_minutes: 0
      knowledge_cutoff: 2025-12-31
"""


def said(body: Any) -> Any:
    """Opens, holds and closes by turns, from the number of the bar."""
    prompt = body["messages"][-1]["content"]
    turn = json.loads(prompt.split("<data>")[1].split("</data>")[0])["markets"]["BTC"]["bars"][-1][0] // 900_000 % 4
    return (open_(stop_pct=0.5), HOLD, HOLD, close())[turn]


class Place:
    """A folder with candles and a config, and backtests of it."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.url, self.capsys = folder, url, capsys
        candles = minutes(330)
        rows = zip(candles.at_ms, candles.open, candles.high, candles.low, candles.close, candles.volume, strict=True)
        lines = ["ts,open,high,low,close,volume", *(",".join(map(str, row)) for row in rows)]
        (folder / "BTC-1m.csv").write_text("\n".join(lines) + "\n")
        self.write()

    def write(self, *, instructions: str = "Trade.", usd_per_day: float = 100) -> None:
        text = CONFIG.format(url=self.url, instructions=instructions, usd_per_day=usd_per_day)
        (self.folder / "agents.yaml").write_text(text)

    def run(self, *options: str) -> tuple[int, dict[str, Any], str]:
        out = self.folder / "runs"
        code = call(
            [
                "backtest",
                str(self.folder / "agents.yaml"),
                "--data",
                f"BTC={self.folder / 'BTC-1m.csv'}",
                "--out",
                str(out),
                "--json",
                *options,
            ]
        )
        said = self.capsys.readouterr()
        return code, json.loads(said.out) if said.out else {}, said.err

    @property
    def recording(self) -> Path:
        return self.folder / "agents.answers.jsonl"


def events_of(found: dict[str, Any]) -> str:
    return (Path(found["folder"]) / "events.jsonl").read_text()


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    with model_server(said) as server:
        made: Any = Place(tmp_path, server.url, capsys)
        made.server = server
        yield made


def test_a_recorded_session_replays_to_the_same_digest_and_changed_instructions_have_the_cause_agent(
    place: Any,
) -> None:
    code, live, error = place.run("--agents", "live", "--max-usd", "5")
    assert code == 0, error
    asked = len(place.server.requests)
    assert asked > 12
    assert events_of(live).count('"type":"fill"') > 3
    rows = [json.loads(line) for line in place.recording.read_text().splitlines()]
    assert len(rows) == asked
    assert all(row["prompt"] and row["setup"] and row["answer"] for row in rows)

    code, replayed, error = place.run("--journal")
    assert code == 0, error
    assert events_of(replayed) == events_of(live)
    assert len(place.server.requests) == asked, "a replay asks nobody"
    manifest = json.loads((Path(replayed["folder"]) / "manifest.json").read_text())
    assert any("WARNING agent: look-ahead" in line for line in manifest["assumptions"])

    place.write(instructions="Trade less.")
    code, _, error = place.run()
    assert code == 1
    assert "no recorded answer for the question on bar:BTC:" in error
    assert "--agents live" in error
    data = f"BTC={place.folder / 'BTC-1m.csv'}"
    config = str(place.folder / "agents.yaml")
    assert call(["replay", replayed["folder"], "--data", data, "--config", config, "--json"]) == 1
    found = json.loads(place.capsys.readouterr().out)
    assert next(iter(found["causes"])) in ("agent", "follows")
    assert found["differences"][0]["cause"] == "agent"
    assert "instructions has changed" in found["differences"][0]["why"]


def test_a_live_backtest_ends_at_its_budget_and_keeps_what_it_paid_for(place: Any) -> None:
    code, _, error = place.run("--agents", "live", "--max-usd", "0.055")
    assert code == 1
    assert "of --max-usd 0.055" in error
    paid = len(place.recording.read_text().splitlines())
    assert 0 < paid == len(place.server.requests) < 39
    assert sum(json.loads(line)["usd"] for line in place.recording.read_text().splitlines()) <= 0.055


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--agents", "live"), "--max-usd 5"),
        (("--max-usd", "1"), "for --agents live"),
        (("--agents", "live", "--max-usd", "1", "--answers", "journal.db"), "only read"),
    ],
)
def test_options_that_do_not_fit_are_refused(place: Any, options: tuple[str, ...], why: str) -> None:
    code, _, error = place.run(*options)
    assert code != 0
    assert why in error


def test_a_damaged_recording_is_named_with_its_line(place: Any) -> None:
    place.recording.write_text('{"key": 1}\n')
    code, _, error = place.run()
    assert code != 0
    assert "line 1: is no recorded answer" in error
