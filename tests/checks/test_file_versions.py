"""A journal or a database that this version cannot continue with is told before a start, with both versions, the way
out and exit 4.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bot.checks.file_versions import service_problem
from bot.cli.app import call
from bot.cli.run.embedded_service import Embedded, ServiceFailed
from bot.errors import Exit
from bot.runtime.journal.opening import open_journal
from bot.service.host import HostOptions, build
from bot.service.state_machine.command_log import SCHEMA_VERSION
from bot.service.state_machine.database_check import stored_problem
from bot.service.state_machine.rules_version import META, program
from tests.runtime.alerts.notification_receiver import postbox
from tests.service.conftest import START_MS


def options(db: Path) -> HostOptions:
    return HostOptions(db=db, clock="manual", start_ms=START_MS, hold_prices=True, markets=("BTC", "ETH"))


async def closed_file(tmp_path: Path) -> Path:
    """The database of a service that wrote a few rows and ended without a snapshot, as after a crash."""
    service = build(options(tmp_path / "s.db"))
    await service.start()
    service.machine.push_price("BTC", 10**13)
    await service.machine.settle()
    service.machine.log.close()
    return tmp_path / "s.db"


OTHER = "Bracketbot 0.0.9 (rules 00000000)"


def sql(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def other_rules(path: Path) -> None:
    sql(
        path,
        "UPDATE commands SET chain = x'00' WHERE seq = 3",
        f"UPDATE meta SET value = '{OTHER}' WHERE name = '{META}'",
    )


def shorter_values(path: Path) -> None:
    """What an old version wrote, which the rules of today cannot even read (it ended as an IndexError)."""
    sql(path, "UPDATE commands SET command = '[]'", f"DELETE FROM meta WHERE name = '{META}'")


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "rules of another version": (other_rules, f"{OTHER} wrote it, and this is {program()}"),
    "values of another version": (
        shorter_values,
        f"an earlier version, which left no name, wrote it, and this is {program()}",
    ),
    "damage": (
        lambda path: sql(path, "UPDATE commands SET chain = x'00' WHERE seq = 3"),
        f"{program()} wrote it and reads it, so it is damaged",
    ),
    "a newer format": (
        lambda path: sql(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}"),
        f"(format {SCHEMA_VERSION + 1}, this one reads {SCHEMA_VERSION})",
    ),
    "an older format": (
        lambda path: sql(path, f"PRAGMA user_version={SCHEMA_VERSION - 1}"),
        f"(format {SCHEMA_VERSION - 1}, this one reads {SCHEMA_VERSION})",
    ),
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with the database of an embedded service that was killed."""
    db = asyncio.run(closed_file(tmp_path))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    db.rename(state / "sandbox.db")
    for left in ("-wal", "-shm"):
        if (wal := db.with_name(db.name + left)).exists():
            wal.rename(state / f"sandbox.db{left}")
    return state


def config(folder: Path, repository: Path, more: str = "") -> str:
    path = folder / "bot.yaml"
    path.write_text(
        f"account: {{base_url: embedded}}\nstate_dir: state\nstrategies_dir: {repository / 'strategies'}\ndead_man:"
        f" null\nstrategies:\n  - {{name: s, use: trend, markets: [BTC], interval: 1m, budget_usd: 500}}\n{more}"
    )
    return str(path)


@pytest.mark.parametrize("case", CASES)
def test_check_doctor_and_status_name_both_versions_and_end_with_4(
    case: str, state: Path, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, says = CASES[case]
    assert stored_problem(state / "sandbox.db") is None
    change(state / "sandbox.db")
    made = config(tmp_path, repository)
    for command in (
        ["check", made],
        ["status", "--config", made],
        ["check", made, "--json"],
        ["status", "--config", made, "--json"],
    ):
        assert call(command) == 4, command
        said = "".join(capsys.readouterr())
        assert says in said, command
        assert "the next start begins a new account" in said
        assert "Error:" not in said.replace("error:", ""), "no name of an exception stands in a sentence"
    assert call(["doctor", made, "--json"]) == 4
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["database"]["level"] == "fail" and says in found["database"]["message"]


def test_a_start_on_such_a_database_ends_with_4(state: Path) -> None:
    other_rules(state / "sandbox.db")
    with pytest.raises(ServiceFailed, match=r"another version of the program") as failed:
        Embedded(state, clock="60x", speed=60).ensure()
    assert failed.value.exit_code is Exit.CONFIG


def test_a_start_that_never_began_is_one_notice(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("apprise")
    (tmp_path / "state").mkdir(mode=0o700)
    with postbox() as box:
        monkeypatch.setenv("NOTIFY", box.url)
        made = config(tmp_path, repository, "notify: {urls: ['${env:NOTIFY}']}\n")
        (tmp_path / "state" / "sandbox.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
        for _ in range(3):
            assert call(["run", made]) == 4
    assert "sandbox.db" in "".join(capsys.readouterr())
    ((title, message),) = box.failures
    assert "has failed" in title and "sandbox.db" in message


def test_a_journal_of_a_newer_version_is_told_by_check_doctor_and_status(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    open_journal(tmp_path / "state" / "journal.db", address="0x1").close()
    made = config(tmp_path, repository)
    assert call(["check", made]) == 0
    sql(tmp_path / "state" / "journal.db", "PRAGMA user_version=999")
    for command in (["check", made], ["status", "--config", made], ["doctor", made]):
        capsys.readouterr()
        assert call(command) == 4, command
        assert "written by a newer version of Bracketbot (format 999, this one reads" in "".join(capsys.readouterr())


async def test_a_database_that_is_in_use_or_not_there_is_not_judged(tmp_path: Path) -> None:
    assert service_problem(tmp_path) is None
    service = build(options(tmp_path / "sandbox.db"))
    await service.start()
    sql(tmp_path / "sandbox.db", "PRAGMA user_version=99")
    assert service_problem(tmp_path) is None
    service.machine.log.close()
    assert service_problem(tmp_path) is not None
