"""`bot check` on the section notify: an address is a reference, a kind and a field are known ones, and the line is
named.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bot.checks import config_check
from bot.cli.app import call
from bot.dashboard.server import _recorded
from bot.extras import install
from bot.runtime.liveness.instance_lock import hold_state

CONFIG = """\
account: {{base_url: embedded}}
strategies_dir: {strategies}
strategies:
  - {{name: s, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500}}
notify:
  urls: [{url}]
  {rest}
"""


@pytest.mark.parametrize(
    ("url", "rest", "problem"),
    [
        ('"${env:NOTIFY}"', "mute: [fill.entry]", None),
        ('"json://hunter2@localhost"', "level: info", ":6:10: notify.urls[0]: a secret"),
        (
            '"${env:NOTIFY}"',
            "texts: {fill.exit: '{pnl}'}",
            ":7:22: notify.texts.fill.exit: {pnl} is no field of fill.exit",
        ),
        ('"${env:NOTIFY}"', "mute: [fill.exot]", ":7:10: notify.mute[0]: there is no notice 'fill.exot'"),
        ('"${env:NOTIFY}", "${env:OTHER}"', "level: info", ":6:27: notify.urls[1]: is no URL that apprise knows"),
        ('"${env:NOTIFY}"', "per_hour: 0", ":7:13: notify.per_hour: must be 1..3600"),
    ],
)
def test_errors_of_the_section_name_their_place(
    url: str,
    rest: str,
    problem: str | None,
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    monkeypatch.setattr(config_check, "find_spec", lambda name: None)
    config = tmp_path / "c.yaml"
    text = CONFIG.format(strategies=repository / "strategies", url='"${env:NOTIFY}"', rest="level: info")
    config.write_text(f"{text}metrics: {{port: 0}}\nstate_dir: state\n")
    for command in ("check", "run"):
        assert call([command, str(config)]) == 4
        said = capsys.readouterr().err
        assert f":6:3: notify: needs the package apprise: {install('notify')}, or" in said
        assert f":8:10: metrics: needs the package prometheus-client: {install('metrics')}, or" in said
    assert not (tmp_path / "state").exists()


Examined = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def examined(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> Examined:
    """What `bot doctor` finds of a section: its exit code, and the findings of that name."""

    def look(
        name: str, *, account: str = "embedded", url: str = '"${env:NOTIFY}"', more: str = ""
    ) -> tuple[int, list[dict[str, Any]]]:
        config = tmp_path / "c.yaml"
        text = CONFIG.format(strategies=repository / "strategies", url=url, rest="level: info")
        text = text.replace("base_url: embedded", f"base_url: {account}")
        config.write_text(f"{text}state_dir: state\n{more}\n")
        capsys.readouterr()
        code = call(["doctor", str(config), "--json"])
        said = capsys.readouterr().out
        assert "hunter2" not in said
        return code, [one for one in json.loads(said)["findings"] if one["check"] == name]

    return look


def test_doctor_looks_at_each_address_and_shows_none(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apprise")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setenv("NOTIFY", "json://localhost/hunter2")
    monkeypatch.setenv("OTHER", "nosuch://hunter2")
    code, found = examined("notify", url='"${env:NOTIFY}", "${env:OTHER}", "${credential:pager}"')
    assert [one["level"] for one in found] == ["ok", "fail", "skip"]
    assert found[0]["message"] == "${env:NOTIFY} is a valid address (JSON#0); nothing was sent"
    assert found[1]["message"].startswith("notify.urls[1]: is no URL that apprise knows")
    assert found[1]["fix"] == "correct the address behind ${env:OTHER}"
    assert code == 4
    code, (secret,) = examined("secrets")
    assert (code, secret["level"]) == (0, "warn"), "every process of the user can read it there"
    assert "${env:NOTIFY}" in secret["message"]
    assert "${file:PATH}" in secret["fix"]
    assert examined("notify")[0] == 0
    monkeypatch.setattr(config_check, "find_spec", lambda name: None)
    (code, (found_one,)) = examined("notify")
    assert (code, found_one["fix"]) == (4, install("notify"))


def test_doctor_asks_of_the_api_key_alone_that_it_is_one(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apprise")
    monkeypatch.setenv("NOTIFY", "json://localhost/hunter2?+X=B\u00f6rse und mehr")
    code, (found,) = examined("secrets")
    assert (code, found["level"]) == (0, "warn")
    (notify,) = examined("notify")[1]
    assert notify["level"] == "ok"
    code, (found,) = examined("secrets", account='"http://127.0.0.1:1", api_key: "${env:NOTIFY}"')
    assert (code, found["level"]) == (4, "fail")
    assert "${env:NOTIFY} does not hold an API key" in found["message"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a daemon that is not running."""
    pytest.importorskip("apprise")
    monkeypatch.setenv("NOTIFY", "json://localhost")
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def level_and_text(examined: Examined, part: str, port: int) -> tuple[str, str]:
    (found,) = examined(part, more=f"{part}: {{port: {port}}}")[1]
    return found["level"], found["message"]


@pytest.mark.parametrize(("part", "library"), [("metrics", "prometheus_client"), ("dashboard", "jinja2")])
def test_doctor_says_whether_a_port_is_free_or_the_daemons_own(
    examined: Examined, state: Path, part: str, library: str
) -> None:
    pytest.importorskip(library)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, (found,) = examined(part, more=f"{part}: {{port: {port}}}")
        assert (code, found["level"], f"{port} on 127.0.0.1 cannot be used" in found["message"]) == (4, "fail", True)
        with served(state, part, port):
            assert "served by the running daemon" in level_and_text(examined, part, port)[1]
    assert level_and_text(examined, part, port) == ("ok", f"port {port} is free on 127.0.0.1, for this machine only")


@contextmanager
def served(state: Path, part: str, port: int) -> Iterator[None]:
    """A daemon that runs and has written that it serves this part."""
    if part == "dashboard":
        with _recorded(state, port):
            yield
        return
    (state / "metrics.port").write_text(f"{port}\n")
    with hold_state(state):
        yield


def test_a_metrics_port_of_a_daemon_that_is_gone_is_not_the_daemons_own(examined: Examined, state: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with served(state, "metrics", port):
            assert f":{port}/metrics" in level_and_text(examined, "metrics", 0)[1]
        assert level_and_text(examined, "metrics", port)[0] == "fail"
    assert examined("metrics") == (0, []), "none is asked for"
