"""What live paid becomes options of a backtest, with intervals that contain the truth, and never silently."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bot.backtest.proof.calibration import SAMPLES_MIN, measure, read_calibration
from bot.cli.app import call
from bot.errors import ConfigError
from bot.service.host import Service
from tests.backtest.builders import minutes, write
from tests.backtest.lived_day import BARS, HISTORY, config, lived

SPREAD_BPS = 9.0
# seeded, with a known median
LATE_MS = 2_000
TAKER = 0.00045


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day at a sandbox with this spread, whose daemon comes about two seconds after each close."""
    folder = tmp_path_factory.mktemp("calibrated")
    chance = Random("late")

    def widen(service: Service) -> None:
        market = service.machine.state.markets["BTC"]
        market.spec = replace(market.spec, half_spread=round(SPREAD_BPS / 2 * 10_000))

    data = write(minutes(HISTORY + BARS + 30, vol=0.001), folder / "BTC_1m.csv")
    late = lambda _number: LATE_MS + chance.choice((-1, 0, 1)) * chance.randrange(800)  # noqa: E731
    asyncio.run(lived(config(folder), data, prepare=widen, late_ms=late))
    return folder


def calibrated(day: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, dict[str, Any]]:
    out = day / "calibration.json"
    words = ["--config", str(day / "mine.yaml"), "--data", str(day / "BTC_1m.csv"), "--out", str(out)]
    capsys.readouterr()
    assert call(["proof", "calibrate", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(out.read_text())
    return out, said


def test_known_spread_latency_and_fee_lie_within_the_intervals(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = calibrated(day, capsys)
    truth = {"spread_bps": SPREAD_BPS, "taker": TAKER}
    measures = said["markets"]["BTC"] | {"latencyMs": said["latencyMs"]}
    for name, value in (truth | {"latencyMs": LATE_MS}).items():
        row = measures[name]
        assert row["low"] - 1e-9 <= value <= row["high"] + 1e-9, (name, row)
        assert row["samples"] >= 10
    spread = measures["spread_bps"]
    assert spread["high"] - spread["low"] < 2, "an interval that says something"
    assert measures["latencyMs"]["high"] - measures["latencyMs"]["low"] < 1_600


def test_a_backtest_uses_a_calibration_only_if_it_is_given_and_names_it(
    day: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, said = calibrated(day, capsys)
    words = ["backtest", str(day / "mine.yaml"), "--data", str(day / "BTC_1m.csv"), "--out"]
    folders = {}
    for name, more in (
        ("plain", []),
        ("calibrated", ["--calibration", str(file)]),
        ("own", ["--calibration", str(file), "--spread", "1bps", "--latency", "0s"]),
    ):
        assert call([*words, str(tmp_path / name), *more]) == 0
        (folder,) = (tmp_path / name).iterdir()
        folders[name] = folder, json.loads((folder / "manifest.json").read_text()), capsys.readouterr().out
    (_, plain, _), (folder, manifest, printed), (_, own, _) = folders.values()
    assert "calibration" not in plain["options"]
    rule = manifest["options"]["rules"]["BTC"]
    assert float(rule["spread_bps"]) == pytest.approx(said["markets"]["BTC"]["spread_bps"]["value"], abs=0.001)
    assert float(rule["taker"]) == pytest.approx(TAKER)
    assert manifest["options"]["latency_ms"] == round(said["latencyMs"]["value"])
    text = read_calibration(file).text
    assert manifest["options"]["calibration"] == text
    assert text in manifest["assumptions"]
    assert text.partition(":")[0] in " ".join(printed.split())
    assert "spread_bps" not in own["options"]["rules"]["BTC"]
    assert (float(own["options"]["rules"]["*"]["spread_bps"]), own["options"]["latency_ms"]) == (1.0, 0)
    assert call(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    assert text.partition(":")[0] in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert call(["replay", str(folder), "--data", str(day / "BTC_1m.csv"), "--json"]) == 0


@pytest.mark.parametrize("count", [1, SAMPLES_MIN - 1, SAMPLES_MIN, 40, 400])
def test_an_interval_contains_the_true_median_for_nearly_every_seed(count: int) -> None:
    inside = 0
    for seed in range(200):
        chance = Random(f"{count}:{seed}")
        measured = measure([chance.gauss(5, 2) for _ in range(count)])
        assert (measured is None) == (count < SAMPLES_MIN)
        inside += measured is not None and measured.low <= 5 <= measured.high
    assert inside >= (180 if count >= SAMPLES_MIN else 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no calibration"),
        ("[]", "is no calibration"),
        ('{"format": 2}', "is of format 2, and this version reads 1"),
        ('{"format": 1, "markets": {"BTC": {"depth": {}}}, "latencyMs": null}', "depth: is not known"),
        (
            '{"format": 1, "latencyMs": {"value": 2, "low": 3, "high": 4, "samples": 9}, "markets": {}}',
            "value 2 must lie between low 3 and 4",
        ),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_calibration(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_calibration(tmp_path / "none.json")
