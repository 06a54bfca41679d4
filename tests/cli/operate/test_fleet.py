"""`bot fleet`: several daemons of one machine, some of them dead or silent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from bot.cli.app import call
from bot.cli.operate import fleet
from tests.cli.operate.daemon_process import Ran, made

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Ran, Ran]]:
    """Two daemons: `left` holds a position, `right` is idle."""
    with made("Holds") as left, made("Idle") as right:
        for name, daemon in (("left", left), ("right", right)):
            daemon.config.write_text(f"name: {name}\n{daemon.config.read_text()}")
            daemon.start()
        left.until("a position", lambda: left.query("SELECT 1 FROM events WHERE type='fill' LIMIT 1"))
        right.recovered()
        yield left, right


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A command: its exit code, what it printed, what it complained of. Daemons of other tests are not seen."""
    monkeypatch.setattr(fleet, "known_folders", list)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = call(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def at(*daemons: Ran) -> list[str]:
    return [word for daemon in daemons for word in ("--state-dir", str(daemon.state))]


def test_each_daemon_is_listed_with_its_account_and_the_sums(two: tuple[Ran, Ran], ask: Ask) -> None:
    left, right = two
    code, out, _ = ask("fleet", "list", *at(*two))
    lines = {words[0]: line for line in out.splitlines() if (words := line.split())}
    assert code == 0
    assert "RUNNING" in lines["left"]
    assert str(left.state) in lines["left"]
    assert str(right.state) in lines["right"]
    _, out, _ = ask("fleet", "list", "--json", *at(*two))
    told = {member["name"]: member for member in json.loads(out)["daemons"]}
    assert told["left"]["status"]["positions"] == 1
    assert told["right"]["status"]["positions"] == 0
    assert {told[name]["problem"] for name in ("left", "right")} == {None}


def test_pause_and_resume_reach_the_named_ones_only(two: tuple[Ran, Ran], ask: Ask) -> None:
    def states() -> dict[str, str]:
        told = json.loads(ask("fleet", "list", "--json", *at(*two))[1])["daemons"]
        return {member["name"]: member["status"]["strategies"][0]["state"] for member in told}

    code, out, _ = ask("fleet", "pause", "right", *at(*two))
    assert (code, out.startswith("right: ")) == (0, True)
    assert states() == {"left": "RUNNING", "right": "PAUSED"}
    assert ask("fleet", "resume", str(two[1].state), *at(*two))[0] == 0
    assert states() == {"left": "RUNNING", "right": "RUNNING"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the daemons, or give --all"),
        (("left", "--all"), "give names or --all, not both"),
        (("lefft",), "did you mean left?"),
        (("zzzz",), "there are "),
    ],
)
@pytest.mark.parametrize("action", ["pause", "resume", "kill"])
def test_a_wrong_choice_changes_nothing(
    action: str, words: tuple[str, ...], said: str, two: tuple[Ran, Ran], ask: Ask
) -> None:
    code, _, err = ask("fleet", action, *words, *at(*two))
    assert (code, said in err) == (2, True), err


def test_a_silent_and_a_dead_daemon_do_not_hide_the_others(two: tuple[Ran, Ran], ask: Ask) -> None:
    left, right = two
    with made("Idle") as dead:
        dead.config.write_text(f"name: gone\n{dead.config.read_text()}")
        dead.start()
        dead.recovered()
        assert dead.process is not None
        dead.process.kill()
        dead.process.wait()
        assert right.process is not None
        os.kill(right.process.pid, signal.SIGSTOP)
        try:
            code, out, err = ask("fleet", "list", *at(left, right, dead))
        finally:
            os.kill(right.process.pid, signal.SIGCONT)
        lines = {words[0]: line for line in out.splitlines() if (words := line.split())}
        assert code == 5
        assert "RUNNING" in lines["left"]
        assert "NO ANSWER" in lines["right"]
        assert "not known" in lines["right"]
        assert "NOT RUNNING" in lines["gone"]
        assert "is stopped by a signal" in err
        assert "2 accounts not known" in out

        # A dead one has no embedded service to be killed at; the other is killed, and the code says so.
        code, out, err = ask("fleet", "kill", "gone", "left", "--flatten", "--json", *at(left, right, dead))
        told = {member["name"]: member for member in json.loads(out)["daemons"]}
        assert told["left"]["done"] == "killed, every position closed"
        assert left.until("flat", lambda: "kill switch blocks entries" in ask("fleet", "list", *at(left))[1])
        assert (told["gone"]["done"] is None) == (code != 0)
