"""`bot kill` at a service that is not embedded: no daemon, no journal, only an address and a key.

And `bot doctor` of its key.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.common import daemon_client as place_module
from bot.cli.common.daemon_client import Hung, Place, Silent
from bot.cli.operate import kill as kill_module
from bot.operating_system import socket_name
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.instance_lock import hold_state
from bot.runtime.strategy_host.fingerprints import note_run
from bot.testing.sandbox import Sandbox

pytestmark = pytest.mark.sandbox(markets=["BTC", "ETH"])

CONFIG = """\
account: {base_url: "%s", api_key: "${file:key}"}
state_dir: state
strategies_dir: %s
strategies:
  - {name: mine, use: "nothing_that_loads:Mine", markets: [BTC], budget_usd: 100}
"""


@pytest.fixture
def config(tmp_path: Path, sandbox: Sandbox) -> Path:
    """Its strategy does not load: what stops an account may not depend on that."""
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(sandbox.api_key)
    file = tmp_path / "live.yaml"
    file.write_text(CONFIG % (sandbox.base_url, tmp_path))
    return file


def opened(sandbox: Sandbox) -> None:
    order = {"market": "BTC", "side": "long", "usdAmount": 100, "bracket": {"stopLoss": {"pct": 5}}}
    assert sandbox.client().post("/v1/orders", json=order).status_code == 200


def test_on_a_terminal_a_kill_asks_first_and_a_no_or_no_answer_sends_nothing(
    config: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    opened(sandbox)
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert call(["kill", "--flatten", "--config", str(config)]) == 1
        said = capsys.readouterr()
        assert "closes every position. Kill it?" in said.err
        assert "nothing was sent; bot kill --yes does not ask" in said.err
    assert len(sandbox.client().get("/v1/account").json()["positions"]) == 1
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert call(["kill", "--config", str(config)]) == 0
    assert "leaves positions open with their stops. Kill it?" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert call(["kill", "--flatten", "--yes", "--config", str(config)]) == 0
    assert "Kill it?" not in capsys.readouterr().err
    assert sandbox.client().get("/v1/account").json()["positions"] == []


def test_a_kill_leaves_positions_with_their_stops_unless_told_otherwise(
    config: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(sandbox)
    bare = {"market": "ETH", "side": "long", "usdAmount": 100, "requireProtection": False}
    assert sandbox.client().post("/v1/orders", json=bare).status_code == 200
    assert call(["kill", "--config", str(config)]) == 0
    said = capsys.readouterr()
    assert re.search(r"stays open  BTC long [0-9.]+, stop at [0-9.]+\n", said.out)
    assert re.search(r"stays open  ETH long [0-9.]+, WITHOUT A STOP ORDER\n", said.out)
    assert sandbox.api_key not in said.out + said.err
    order = {"market": "BTC", "side": "long", "usdAmount": 100}
    assert sandbox.client().post("/v1/orders", json=order).json()["error"]["code"] == "limit_exceeded"
    assert call(["kill", "--flatten", "--config", str(config)]) == 0
    assert sandbox.client().get("/v1/account").json()["positions"] == []
    assert "positions   none\n" in capsys.readouterr().out
    assert call(["kill", "--flatten", "--lift", "--config", str(config)]) == 2
    assert call(["kill", "--lift", "--config", str(config)]) == 0
    assert "may open positions again" in capsys.readouterr().out
    opened(sandbox)


def been(config: Path) -> Path:
    """The state directory of a daemon that ran with this config and is dead."""
    folder = config.parent / "state"
    folder.mkdir()
    (folder / "lock").touch()
    mark = {"version": "1", "config": {}, "strategies": {}}
    with contextlib.closing(open_journal(folder / "journal.db", address="0x1")) as journal:
        note_run(journal, mark, at_ms=1, epoch=0, config=config)
        # A reload does not say it again.
        note_run(journal, mark, at_ms=2, epoch=0)
    return folder


def test_a_kill_without_a_config_uses_the_config_of_the_last_start_from_the_journal(
    config: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--state-dir", str(been(config))]
    assert call(["kill", *at]) == 0
    assert f"its last config was {config}\n" in capsys.readouterr().err
    assert [one["type"] for one in sandbox.client().get("/v1/guardians").json()["guardians"]] == ["kill_switch"]
    assert call(["kill", "--lift", *at]) == 0
    config.unlink()
    assert call(["kill", *at]) == 4
    assert "its config is not known: name the config with --config CONFIG" in capsys.readouterr().err


def test_a_kill_reaches_the_service_while_the_daemon_hangs(
    config: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = been(config)
    monkeypatch.setattr(kill_module, "STATUS_S", 0.05)
    with hold_state(folder), socket_name(folder / "control.sock") as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        assert call(["kill", "--state-dir", str(folder)]) == 0
    assert [one["type"] for one in sandbox.client().get("/v1/guardians").json()["guardians"]] == ["kill_switch"]


@pytest.mark.parametrize("hangs", [True, False], ids=["the daemon is silent", "the service is silent"])
async def test_a_kill_that_a_hung_daemon_does_not_answer_says_how_to_kill_without_it(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise Hung("the daemon did not answer") if hangs else Silent("the service has not answered; ask again")

    monkeypatch.setattr(kill_module, "WITHIN_S", 0.0)
    monkeypatch.setattr(kill_module, "LOOK_S", 0.0)
    monkeypatch.setattr(place_module, "_ask", silent)
    with hold_state(tmp_path), pytest.raises(Silent) as ended:
        await kill_module.kill_by_daemon(Place(tmp_path), "kill-1", flatten=True)
    assert (f"or end the daemon (kill -9 {os.getpid()}) and run bot kill again" in str(ended.value)) is hangs


def test_a_kill_whose_answer_is_lost_is_retried_and_takes_effect_once(
    config: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(sandbox)
    sandbox.fault("post_account_kill", "lose_reply")
    assert call(["kill", "--flatten", "--config", str(config), "--json"]) == 0
    said = capsys.readouterr()
    assert "retrying" in said.err
    assert json.loads(said.out)["positions"] == []
    guardians = sandbox.client().get("/v1/guardians").json()["guardians"]
    assert [one["type"] for one in guardians] == ["kill_switch"]
    assert [one["kind"] for one in sandbox.client().get("/v1/trades").json()["trades"]].count("kill") == 1


def test_a_kill_that_gets_no_answer_says_that_the_outcome_is_unknown(
    config: Path, sandbox: Sandbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_module, "WITHIN_S", 0.0)
    sandbox.fault("post_account_kill", "drop", count=9)
    assert call(["kill", "--config", str(config)]) == 5
    assert "it is not known whether the kill switch is active" in capsys.readouterr().err


def test_a_lift_that_the_service_does_not_answer_says_to_try_again(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        # and does not listen
        nobody.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        config.write_text(re.sub(r'base_url: "[^"]*"', f'base_url: "{base_url}"', config.read_text()))
        assert call(["kill", "--lift", "--config", str(config)]) == 5
    said = capsys.readouterr().err
    assert said.startswith(f"error: the service at {base_url} did not lift the switch (connect_error: ")
    assert said.endswith("; try again when it answers\n")


def test_a_refused_key_ends_with_the_services_message(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "key").write_text("bbk_test_abcdefgh_" + "A" * 43 + "_000000")
    assert call(["kill", "--config", str(config)]) == 7
    assert "unauthorized" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${credential:api-key}", "Name the file that holds the key (--key '${file:PATH}')"),
        ("${file:none}", "cannot be read"),
        ("${env:NO_SUCH_NAME}", "is not set"),
    ],
)
def test_a_key_that_cannot_be_read_is_an_error_that_says_what_to_do(
    config: Path, sandbox: Sandbox, reference: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("${file:key}", reference))
    assert call(["kill", "--config", str(config)]) == 4
    assert words in capsys.readouterr().err
    assert call(["kill", "--config", str(config), "--key", "${file:key}"]) == 0
    assert call(["kill", "--config", str(config), "--key", sandbox.api_key]) == 4, "a key itself is never taken"
    assert sandbox.api_key not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("speed", "seconds", "code", "said"),
    [
        (60, 3_600, 0, "after 60 s of real time without a heartbeat"),
        (1, 3_600, 0, "after 3600 s of real time without a heartbeat"),
        (0, 3_600, 0, "advanced by hand"),
        (60, 300, 4, "dead_man.heartbeat_seconds: "),
    ],
)
def test_doctor_computes_the_dead_mans_real_time_from_the_services_clock_speed(
    speed: float,
    seconds: int,
    code: int,
    said: str,
    config: Path,
    sandbox: Sandbox,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = config.read_text().replace("nothing_that_loads:Mine", "trend:Trend")
    text = text.replace(f"strategies_dir: {config.parent}", f"strategies_dir: {repository / 'strategies'}")
    config.write_text(f"{text}dead_man: {{heartbeat_seconds: {seconds}, on_miss: flatten}}\n")
    sandbox.control("PATCH", "/clock", {"speed": speed})
    assert call(["doctor", str(config), "--json"]) == code
    (found,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "dead-man"]
    assert said in found["message"]


def test_doctor_checks_the_scopes_and_caps_of_the_key(
    config: Path, sandbox: Sandbox, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        config.read_text()
        .replace("nothing_that_loads:Mine", "trend:Trend")
        .replace(f"strategies_dir: {config.parent}", f"strategies_dir: {repository / 'strategies'}")
    )
    config.write_text(text)

    def key(**body: object) -> None:
        made = sandbox.client().post("/v1/keys", json=body).json()
        (config.parent / "key").write_text(made["apiKey"])

    def found() -> tuple[int, dict[str, list[dict[str, str]]]]:
        capsys.readouterr()
        code = call(["doctor", str(config), "--json"])
        told: dict[str, list[dict[str, str]]] = {}
        for one in json.loads(capsys.readouterr().out)["findings"]:
            told.setdefault(one["check"], []).append(one)
        return code, told

    code, told = found()
    assert code == 0, told
    assert "API 2026-10-19, limits version 2" in told["service"][0]["message"]
    assert "no trade yet" in told["idempotency"][0]["message"]
    key(name="weak", scopes=["read"])
    code, told = found()
    assert (code, "lacks trade" in told["key"][0]["message"]) == (7, True)
    key(name="narrow", scopes=["read", "trade"], allowedCoins=["ETH"], maxExposureUsd=50)
    code, told = found()
    assert code == 7
    assert [one["level"] for one in told["key"]] == ["ok", "fail", "warn"]
    assert "BTC, which the key does not allow" in told["key"][1]["message"]
    sandbox.client().post(
        "/v1/orders", json={"market": "BTC", "side": "long", "usdAmount": 100}, headers={"Idempotency-Key": "k"}
    )
    assert "trades show their keys" in found()[1]["idempotency"][0]["message"]


async def test_a_kill_through_a_daemon_whose_service_is_silent_is_retried_with_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kill_module, "LOOK_S", 0)
    asked: list[tuple[str, str]] = []

    class Daemon:
        def ask(self, method: str, path: str, body: dict[str, str]) -> dict[str, dict[str, str]]:
            asked.append((path, body["key"]))
            if len(asked) == 1:
                raise Silent("the service has not answered; ask again")
            return {"result": {"guardian": "grd_1"}}

    assert await kill_module.kill_by_daemon(Daemon(), "kill-1", flatten=True) == {"guardian": "grd_1"}
    assert asked == [("/kill", "kill-1")] * 2
