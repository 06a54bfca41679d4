"""Which daemon a command means: as given, the project's, the one that runs, or the only one there has been; and
never a guess between two.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from bot.cli.app import call
from bot.cli.backtest import replay
from bot.cli.common import daemon_client as place_module
from bot.cli.common.daemon_client import Hung, NotRunning, Place, Silent, find, folder_of, plain_data
from bot.cli.operate.systemd_unit import USER_UNITS
from bot.cli.run.embedded_service import Embedded
from bot.config import load
from bot.errors import BotError, ConfigError
from bot.operating_system import socket_name
from bot.runtime.liveness.instance_lock import folders_held, hold_state, noted, private_dir

CONFIG = 'account: {base_url: "https://x.example", api_key: "${credential:none}"}\nstrategies: []\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(place_module, "SYSTEM_STATE", tmp_path / "system")
    return tmp_path


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def been(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "journal.db").touch()
    (folder / "lock").touch()
    return folder


def test_without_options_the_running_daemon_is_meant_else_the_only_one(
    home: Path, held: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotRunning, match="no daemon has run here yet"):
        find(None, None)
    one = been(home / "home" / "bot" / "one")
    assert find(None, None).folder == one
    two = been(home / "system" / "bot-two")
    with pytest.raises(NotRunning, match=f"no daemon runs now, .*: {one}, {two}; choose one with --state-dir"):
        find(None, None)
    with pytest.raises(click.UsageError, match=f"no daemon runs now, and several have run: {one}, {two}"):
        find(None, None, dead_too=True)
    assert call(["status", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["message"].endswith(
        f"{one}, {two}; choose one with --state-dir or --config"
    )
    assert [call([name]) for name in ("positions", "stop", "logs", "events", "kill")] == [3, 3, 3, 2, 2]
    held.enter_context(hold_state(two))
    assert find(None, None).folder == two
    held.enter_context(hold_state(one))
    with pytest.raises(click.UsageError, match=f"several daemons run: {one}, {two}"):
        find(None, None)
    assert call(["status"]) == 2


def test_a_daemon_whose_state_dir_is_its_own_is_found_while_it_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = home / "elsewhere"
    with ExitStack() as stack:
        there.mkdir()
        stack.enter_context(noted(stack.enter_context(hold_state(there))))
        assert find(None, None).folder == there
        (home / "bot.yaml").write_text("strategies: [\n")
        monkeypatch.setattr(place_module, "_ask", lambda *_: {"config": str(home / "bot.yaml")})
        assert find(None, None).folder == there, "a broken config hides it no more than another"
    (home / "bot.yaml").unlink()
    with pytest.raises(NotRunning, match="no daemon has run here yet"):
        find(None, None)


def test_a_first_start_that_waits_for_its_service_is_found_but_the_demos_parent_folder_is_not(
    home: Path, held: ExitStack
) -> None:
    one, demo = home / "system" / "bot-one", home / "home" / "bot" / "demo"
    for folder in (one, demo):
        folder.mkdir(parents=True)
        held.enter_context(hold_state(folder))
    (one / "control.sock").touch()
    assert find(None, None).folder == one


def test_a_daemon_that_was_killed_leaves_a_note_that_finds_nobody(home: Path) -> None:
    (home / "there").mkdir()
    with hold_state(home / "there") as mine, noted(mine):
        assert folders_held() == [home / "there"]
        (note,) = (home / "runtime" / "bot").iterdir()
        left = note.read_text()
    assert not note.exists()
    note.write_text(left)
    assert folders_held() == []


def test_an_option_comes_before_the_project_in_this_folder(home: Path) -> None:
    been(home / "home" / "bot" / "one")
    (home / "bot.yaml").write_text(CONFIG + "state_dir: state\n")
    assert find(None, None).folder == home / "state"
    (home / "other.yaml").write_text(CONFIG + "state_dir: ../elsewhere\n")
    assert find(Path("other.yaml"), None).folder == home.parent / "elsewhere"
    assert find(None, home).folder == home
    with pytest.raises(click.UsageError, match="not both"):
        find(Path("other.yaml"), home)
    with pytest.raises(click.UsageError, match="there is no folder"):
        find(None, home / "none")


def test_without_state_dir_a_config_means_the_folder_where_its_daemon_runs_or_ran(home: Path, held: ExitStack) -> None:
    (home / "live.yaml").write_text(CONFIG)
    user, system = home / "home" / "bot" / "live", home / "system" / "bot-live"
    assert folder_of(Path("live.yaml")) == user
    been(system)
    assert folder_of(Path("live.yaml")) == system
    been(user)
    assert folder_of(Path("live.yaml")) == user
    held.enter_context(hold_state(system))
    assert folder_of(Path("live.yaml")) == system


def test_a_config_that_is_broken_or_says_another_folder_does_not_hide_the_daemon_that_runs_with_it(
    home: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "bot.yaml").write_text("strategies: [\n")
    with pytest.raises(ConfigError, match="not YAML"):
        find(None, None)
    mine, other = been(home / "home" / "bot" / "mine"), been(home / "home" / "bot" / "other")
    for folder in (mine, other):
        held.enter_context(hold_state(folder))
    said = {mine: str(home / "bot.yaml"), other: str(home / "other.yaml")}
    monkeypatch.setattr(place_module, "_ask", lambda place, *_: {"config": said[place.folder]})
    assert find(None, None).folder == mine
    assert find(Path("bot.yaml"), None).folder == mine
    (home / "bot.yaml").write_text(CONFIG + "state_dir: elsewhere\n")
    assert find(None, None).folder == mine
    said[mine] = "another"
    assert find(None, None).folder == home / "elsewhere"
    (home / "bot.yaml").write_text("strategies: [\n")
    with pytest.raises(ConfigError, match="not YAML"):
        find(None, None)


def test_a_secret_of_the_config_is_not_looked_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    (home / "live.yaml").write_text(CONFIG.replace("${credential:none}", "${env:KEY}"))
    assert plain_data(Path("live.yaml"))["account"]["api_key"] == "${env:KEY}"
    for text, words in (("", "the file is empty"), ("a: [", "bad.yaml:1")):
        (home / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=words):
            plain_data(Path("bad.yaml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        plain_data(Path("none.yaml"))


@pytest.mark.parametrize("code", [4, 5, 7])
def test_a_refused_reload_ends_with_the_exit_code_of_its_cause(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    been(home / "home" / "bot" / "one")
    told = {"changes": ["~ one"], "applied": [], "refused": ["the service is away. Nothing was changed."]}
    monkeypatch.setattr(place_module, "_ask", lambda *_: told | {"exit_code": code})
    assert call(["reload", "--yes"]) == code
    assert capsys.readouterr().err == "error: the service is away. Nothing was changed.\n"
    assert call(["reload", "--yes", "--json"]) == code
    monkeypatch.setattr(place_module, "_ask", lambda *_: told)
    assert call(["reload", "--yes"]) == 4, "a daemon of an older version sends no exit code"


def test_bot_stop_names_the_systemctl_command_of_the_right_manager(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    been(home / "home" / "bot" / "one")
    monkeypatch.setattr(place_module, "_ask", lambda *_: {"managed_by": "systemd", "name": "one"})
    assert call(["stop"]) == 2
    assert ": use systemctl stop bot-one.service, or bot stop --force" in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(home))
    file = home / USER_UNITS / "bot-one.service"
    file.parent.mkdir(parents=True)
    file.touch()
    assert call(["stop"]) == 2
    assert ": use systemctl --user stop bot-one.service, or bot stop --force" in capsys.readouterr().err


def test_a_pause_that_is_not_saved_is_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    been(home / "home" / "bot" / "one")
    told = {"state": "PAUSED", "why": None, "strategies": [], "forgotten": "in memory only, and a restart forgets it"}
    monkeypatch.setattr(place_module, "_ask", lambda *_: told)
    assert call(["pause"]) == 0
    assert capsys.readouterr().out == "PAUSED\nNOT SAVED: in memory only, and a restart forgets it\n"
    told["forgotten"] = None
    call(["pause"])
    assert capsys.readouterr().out == "PAUSED\n"


def test_a_locked_folder_without_a_socket_is_not_reported_as_a_dead_daemon(home: Path, held: ExitStack) -> None:
    folder = been(home / "home" / "bot" / "one")
    with pytest.raises(NotRunning, match="is not running"):
        find(None, folder).ask("GET", "/status")
    held.enter_context(hold_state(folder))
    with pytest.raises(Silent, match="it is starting or ending"):
        find(None, folder).ask("GET", "/status")


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "silent"])
def test_the_log_of_a_daemon_that_does_not_answer_is_read_from_disk(
    lives: bool, home: Path, held: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = been(home / "home" / "bot" / "one")
    (folder / "daemon.log").write_text('{"at_ms":1,"level":"error","event":"loop.late"}\n')
    if lives:
        held.enter_context(hold_state(folder))
    assert call(["logs", "--state-dir", str(folder)]) == (5 if lives else 3)
    said = capsys.readouterr()
    assert ("loop.late" in said.out, "these are its last lines on disk" in said.err) == (True, True)


def test_a_dead_daemon_with_an_unreadable_journal_is_reported_as_not_running(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = been(home / "home" / "bot" / "one")
    (folder / "journal.db").write_bytes(b"no journal")
    assert call(["status"]) == 3
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"NOT RUNNING  the daemon of {folder} is not running"
    assert second.startswith(f"  journal {folder / 'journal.db'} cannot be opened: ")
    assert call(["status", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["last"], "cannot be opened" in told["message"]) == (None, True)
    folder.chmod(0o700)
    assert call(["doctor", "--json"]) == 6
    (found,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "journal"]
    assert (found["level"], "it keeps the damaged file under another name" in found["fix"]) == ("fail", True)
    (folder / "journal.db").unlink()
    assert call(["status", "--state-dir", str(folder)]) == 3
    assert "it has no journal" in capsys.readouterr().out


@pytest.fixture
def closed(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of another user's daemon: nothing in it can be looked at."""
    folder = been(home / "system" / "bot-one")
    look = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    return folder


@pytest.mark.parametrize(
    "command", ["events", "events --type fill", "explain 5", "export trades", "replay", "kill", "kill --lift"]
)
def test_another_users_daemon_is_not_reported_as_running_or_dead(
    command: str, home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = home / "one.yaml"
    config.write_text(f"account: {{base_url: embedded}}\nstate_dir: {closed}\nstrategies: []\n")
    which = [str(closed)] if command == "replay" else ["--config", str(config)]
    assert call([*command.split(), *which]) == 2
    assert f"error: {closed} belongs to another user: ask as that user, or as root (sudo)\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "positions", "orders", "events", "logs", "pause", "kill", "doctor"])
def test_a_folder_that_this_user_may_not_look_for_is_an_error(
    command: str, home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = closed / "inner"
    assert call([command, "--state-dir", str(folder)]) == 2
    assert f"error: {folder} belongs to another user: ask as that user, or as root (sudo)\n" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read: No such file"), ("strategies: [", "one.yaml:1:")])
def test_doctor_reports_a_config_that_cannot_be_read(
    text: str | None, words: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (home / "one.yaml").write_text(text)
    assert call(["doctor", "one.yaml", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    (found,) = told["findings"]
    assert (told["ok"], told["exit_code"], found["check"], found["level"]) == (False, 4, "config", "fail")
    assert words in found["message"]
    assert call(["doctor", "one.yaml"]) == 4
    assert capsys.readouterr().out.startswith("fail  config      one.yaml:")


@pytest.mark.parametrize(
    ("name", "db", "words"),
    [
        ("st", None, None),
        ("x" * 100, None, "is too long for the service's socket"),
        ("st", b"no database", "sandbox.db is damaged"),
    ],
)
def test_doctor_says_why_an_embedded_service_cannot_start(
    name: str, db: bytes | None, words: str | None, home: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = private_dir(home / name)
    if db is not None:
        (folder / "sandbox.db").write_bytes(db)
    strategy = '{name: s, use: "trend:Trend", markets: [BTC], budget_usd: 100}'
    (home / "one.yaml").write_text(
        f"account: {{base_url: embedded}}\nstate_dir: {folder}\n"
        f"strategies_dir: {repository / 'strategies'}\nstrategies: [{strategy}]\n"
    )
    assert call(["doctor", "one.yaml", "--json"]) == (0 if words is None else 4)
    (found,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "service"]
    assert (found["level"], words is None or words in found["message"]) == ("ok" if words is None else "fail", True)
    assert words is None or call(["run", "one.yaml"]) == 4, "and that is how the run would end"


def test_doctor_says_that_a_journal_is_another_users(
    home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["doctor", "--state-dir", str(closed), "--json"]) == 1
    (found,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "journal"]
    assert (found["level"], found["message"].startswith(f"{closed} belongs to another user")) == ("fail", True)


async def test_candles_are_asked_of_the_embedded_service_where_a_unit_has_it(
    home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = been(home / "system" / "bot-paper")
    (folder / "sandbox.db").touch()
    config = home / "paper.yaml"
    strategy = '{name: s, use: "trend:Trend", markets: [BTC], budget_usd: 100}'
    config.write_text(f"account: {{base_url: embedded}}\nstrategies: [{strategy}]\n")
    asked: list[Path] = []

    def is_alive(one: Embedded) -> bool:
        asked.append(one.folder)
        return True

    monkeypatch.setattr(Embedded, "is_alive", is_alive)
    with pytest.raises(BotError, match="is not running"):
        async with replay._service(load(config), config):
            pass
    assert asked == [folder, folder], "of the record's and of the candles'"


def test_candles_of_a_service_that_this_user_cannot_see_are_not_reported_as_missing(
    home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = '{name: s, use: "trend:Trend", markets: [BTC], budget_usd: 100}'
    (home / "one.yaml").write_text(f"account: {{base_url: embedded}}\nstrategies: [{strategy}]\n")
    assert call(["data", "pull", "BTC", "--config", "one.yaml"]) == 2
    assert f"{closed} belongs to another user" in capsys.readouterr().err


@pytest.mark.parametrize("has_own", [False, True], ids=["no journal of one's own", "a journal of one's own, left over"])
@pytest.mark.parametrize("command", ["status", "events", "logs", "kill"])
def test_a_units_hidden_folder_is_not_replaced_by_this_users_folder(
    command: str, has_own: bool, home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "one.yaml").write_text("account: {base_url: embedded}\nstrategies: []\n")
    if has_own:
        been(home / "home" / "bot" / "one")
    assert call([command, "--config", "one.yaml"]) == 2
    assert f"error: {closed} belongs to another user: ask as that user, or as root (sudo)\n" in capsys.readouterr().err


def test_a_kill_that_cannot_read_the_units_key_suggests_the_option_key(
    home: Path, closed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "one.yaml").write_text(CONFIG)
    assert call(["kill", "--config", "one.yaml"]) == 4
    assert (
        "Name the file that holds the key (--key '${file:PATH}'), or run this as root (sudo)" in capsys.readouterr().err
    )


def test_doctor_reports_that_it_may_not_see_a_units_daemon_and_continues(
    home: Path, closed: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == closed and follow_symlinks:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, follow_symlinks=follow_symlinks)

    # A unit's folder is a link to one that only root can reach.
    monkeypatch.setattr(Path, "stat", stat)
    strategy = '{name: s, use: "trend:Trend", markets: [BTC], budget_usd: 100}'
    (home / "one.yaml").write_text(
        f"account: {{base_url: embedded}}\nstrategies_dir: {repository / 'strategies'}\nstrategies: [{strategy}]\n"
    )
    assert call(["doctor", "one.yaml", "--json"]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    for name in ("state", "journal", "daemon"):
        assert (found[name]["level"], found[name]["message"].partition(":")[0]) == (
            "fail",
            f"{closed} belongs to another user",
        )
    assert (found["service"]["level"], {"disk", "unit"} <= found.keys()) == ("skip", True)


def test_the_error_for_no_daemon_names_the_folders_that_only_root_can_see(home: Path, closed: Path) -> None:
    with pytest.raises(
        NotRunning, match=rf"no daemon has run here yet: .*; only root can see whether a daemon runs in {closed}"
    ):
        find(None, None)


@pytest.mark.parametrize(
    ("command", "told", "code"),
    [
        ("status", {"is_safe": True}, 0),
        ("status", {"is_safe": False, "unprotected": ["BTC"]}, 6),
        ("positions", {"positions": [{"market": "BTC", "protected": True, "strategy": "trend"}]}, 0),
        ("positions", {"positions": [{"market": "BTC", "protected": False, "strategy": "trend"}]}, 6),
        ("positions", {"positions": [{"market": "BTC", "protected": False, "strategy": None}]}, 0),
        ("positions", {"positions": [{"market": "BTC", "protected": None, "strategy": "trend"}]}, 0),
    ],
    ids=["safe", "unsafe", "with its stop", "without a stop", "another hand's", "not known yet"],
)
def test_positions_ends_with_6_if_a_strategys_position_has_no_stop(
    command: str, told: dict[str, object], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = SimpleNamespace(ask=lambda *_: {"old_s": 0.1, **told})
    monkeypatch.setattr(place_module, "find", lambda *_: place)
    assert call([command, "--json"]) == code


@pytest.mark.parametrize(("method", "path"), [("GET", "/status"), ("POST", "/pause")])
def test_a_command_to_a_daemon_that_hangs_prints_what_it_waits_for(
    method: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place_module, "NOTICE_S", 0.05)
    folder = private_dir(tmp_path / "state")
    with hold_state(folder), socket_name(folder / "control.sock") as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        with pytest.raises(Hung) as caught:
            Place(folder).ask(method, path, within_s=1.0)
    said = "it may still carry out the command"
    assert f"the daemon of {folder} has not answered yet; waiting for up to 1 s" in capfd.readouterr().err
    assert (said in str(caught.value)) == (method == "POST")
