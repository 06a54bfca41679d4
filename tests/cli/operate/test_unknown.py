"""Unknown is not empty, in the commands: none says that there is no position or order that it does not know."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.cli.common.daemon_client import Place
from bot.cli.operate.status import status_lines
from bot.cli.run.run_daemon import left_lines
from bot.errors import Exit
from bot.runtime.journal import queries
from bot.runtime.shutdown import DaemonEnd, LeftBehind
from tests.faulty_port import FaultyPort
from tests.runtime.builders import always, make_kernel, minutes

NOTHING = ("no open position", "no resting order", "flat", "none", "no event", "nothing waits")
COMMANDS = ("status", "positions", "orders", "events", "approvals")
SERVICE = {
    "state": "STARTING",
    "name": "mine",
    "pid": 7,
    "at_ms": 5_000,
    "started_ms": 0,
    "base_url": "http://127.0.0.1:9",
}
READ: dict[str, Any] = SERVICE | {
    "state": "RUNNING",
    "address": "0xabc",
    "epoch": 0,
    "account": {"value_usd": 10.0, "free_usd": 10.0},
    "strategies": [],
    "unprotected": [],
    "positions": 0,
    "orders": 0,
    "intents": {"open": 0, "in_doubt": 0, "quarantined": 0},
    "heartbeat": None,
    "guardians": [],
    "last_pass_ms": None,
}


async def traded(folder: Path, *closes: str) -> None:
    venue = FaultyPort()
    kernel = make_kernel(venue, always, path=folder / queries.FILE)
    await kernel.recover()
    await minutes(kernel, venue, *closes)
    kernel.journal.flush()
    kernel.journal.close()


def said_by(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = call([command, "--state-dir", str(folder)])
    told = capsys.readouterr()
    return code, told.out + told.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("journal", ["with a position", "damaged", "missing"])
async def test_a_command_for_a_dead_daemon_claims_nothing_that_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, journal: str
) -> None:
    if journal == "with a position":
        await traded(tmp_path, "100", "100")
    elif journal == "damaged":
        (tmp_path / queries.FILE).write_bytes(b"no database" * 1000)
    capsys.readouterr()
    code, said = said_by(command, tmp_path, capsys)
    assert code != int(Exit.DONE) or journal == "with a position"
    assert [one for one in NOTHING if re.search(rf"\b{one}\b", said)] == []
    if command == "status" and journal == "with a position":
        assert "OLD: its journal was last written" in said
        assert "BTC long 2 @ 100.00" in said


async def test_an_empty_journal_of_a_dead_daemon_says_when_it_was_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await traded(tmp_path, "101")
    capsys.readouterr()
    assert "positions   none when it was last written" in said_by("status", tmp_path, capsys)[1]


@pytest.mark.parametrize("journal", ["with a position", "flat", "damaged", "missing"])
def test_doctor_says_what_a_dead_daemon_left_and_when_that_was_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], journal: str
) -> None:
    if journal == "damaged":
        (tmp_path / queries.FILE).write_bytes(b"no database" * 1000)
    elif journal != "missing":
        asyncio.run(traded(tmp_path, *(("101",) if journal == "flat" else ("100", "100"))))
    capsys.readouterr()
    call(["doctor", "--state-dir", str(tmp_path)])
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one[6:].startswith("daemon "))
    shown = {
        "with a position": r"^warn .* its journal, written last .* ago, has BTC long 2",
        "flat": r"^ok .* its journal, written last .* ago, has no open position$",
        "damaged": r"^warn .* is not known, because its journal cannot be read$",
        "missing": r"^ok .* it has no journal$",
    }
    assert re.search(shown[journal], line), line


def test_the_status_of_a_daemon_says_what_is_known_old_and_not_known() -> None:
    known, old, unknown = (
        "\n".join(status_lines(told)) for told in (READ | {"old_s": 0.1}, READ | {"old_s": 90.0}, SERVICE)
    )
    assert "0, flat;" in known
    assert "0, flat when the account was last read;" in old
    assert "account     not known" in unknown
    assert "flat" not in unknown


@pytest.mark.parametrize(("command", "sentence"), [("positions", "no open position"), ("orders", "no resting order")])
def test_an_empty_list_of_an_old_answer_is_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, sentence: str
) -> None:
    for old_s, shown in ((0.1, sentence), (90.0, f"{sentence} when the account was last read")):
        answer = {command: [], "old_s": old_s}
        monkeypatch.setattr(Place, "ask", lambda _place, *_given, answer=answer, **_more: answer)
        assert call([command, "--state-dir", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{shown}\n"


def test_what_stays_at_a_service_that_did_not_answer_is_not_known() -> None:
    end = DaemonEnd(Exit.DONE, LeftBehind(known=False, positions=("BTC long 1",)))
    lines = left_lines(end)
    assert "  position   BTC long 1" in lines
    assert "  orders     not known" in lines
    assert "  guardians  not known" in lines
