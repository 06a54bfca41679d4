"""`bot check` on the section notify: an address is a reference, a kind and a field are known ones, and the line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.cli import judging
from bot.cli.app import call

CONFIG = """\
account: {{base_url: embedded}}
strategies_dir: {strategies}
strategies:
  - {{name: s, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 100}}
notify:
  urls: [{url}]
  {rest}
"""


@pytest.mark.parametrize(
    ("url", "rest", "problem"),
    [
        ('"${env:NOTIFY}"', "mute: [fill.entry]", None),
        ('"json://hunter2@localhost"', "level: info", ":6:10: notify.urls[0]: a secret"),
        ('"${env:NOTIFY}"', "texts: {fill.exit: '{pnl}'}", ":7:22: notify.texts.fill.exit: {pnl} is no field of fill.exit"),
        ('"${env:NOTIFY}"', "mute: [fill.exot]", ":7:10: notify.mute[0]: there is no notice 'fill.exot'"),
        ('"${env:NOTIFY}", "${env:OTHER}"', "level: info", ":6:27: notify.urls[1]: is no URL that apprise knows"),
        ('"${env:NOTIFY}"', "per_hour: 0", ":7:13: notify.per_hour: must be 1..3600"),
    ],
)  # fmt: skip
def test_the_section_is_judged_with_its_place(
    url: str, rest: str, problem: str | None, tmp_path: Path, repository: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("apprise")
    monkeypatch.setenv("NOTIFY", "json://localhost/hunter2")
    monkeypatch.setenv("OTHER", "nosuch://hunter2")
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG.format(strategies=repository / "strategies", url=url, rest=rest))
    code = call(["check", str(config)])
    said = "".join(capsys.readouterr())
    assert "hunter2" not in said
    assert code == (0 if problem is None else 4), said
    assert problem is None or problem in said, said


def test_a_section_whose_package_is_missing_is_refused_before_a_service_is_started(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY", "json://localhost")
    monkeypatch.setattr(judging, "find_spec", lambda name: None)
    config = tmp_path / "c.yaml"
    text = CONFIG.format(strategies=repository / "strategies", url='"${env:NOTIFY}"', rest="level: info")
    config.write_text(f"{text}metrics: {{port: 0}}\nstate_dir: state\n")
    for command in ("check", "run"):
        assert call([command, str(config)]) == 4
        said = capsys.readouterr().err
        assert ":6:3: notify: needs the package apprise: install bracketbot[notify]" in said
        assert ":8:10: metrics: needs the package prometheus-client: install bracketbot[metrics]" in said
    assert not (tmp_path / "state").exists()
