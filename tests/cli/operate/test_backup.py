"""`bot backup` and `bot restore`: a running daemon, damaged and foreign backups, newer states, and files that must
stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.cli.operate import backup as backup_module
from bot.cli.operate import restore as restore_module
from bot.cli.operate.backup import MANIFEST, sha256
from bot.cli.run.embedded_service import Embedded
from bot.runtime.journal import proof_files
from bot.runtime.journal.backup import NotCopied
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.instance_lock import hold_state

WAIT_S = 60
ADDRESS = "0x" + "ab" * 20
CONFIG = """\
name: kept
account: {base_url: embedded}
embedded: {clock: 600x, markets: [BTC]}
dead_man: {heartbeat_seconds: 86400}
state_dir: state
strategies:
  - {name: buyer, use: "buyer:Buyer", markets: [BTC], interval: 1m, budget_usd: 500}
log: {format: json}
"""
STRATEGY = """\
from bot import Bracket, Close, Open, Strategy


class Buyer(Strategy):
    def on_bar(self, view, bar):
        if view.position(bar.market):
            yield Close(bar.market)
        else:
            yield Open(bar.market, "long", usd=100, bracket=Bracket(stop_pct=5))
"""


@pytest.fixture
def project(place: Path) -> Path:
    """A project with the state of a daemon that has ended: a journal, without a service."""
    folder = place / "mine"
    (folder / "strategies").mkdir(parents=True)
    (folder / "bot.yaml").write_text(CONFIG)
    (folder / "strategies" / "buyer.py").write_text(STRATEGY)
    (folder / "state").mkdir(mode=0o700)
    (folder / "state" / "journal.safety.json").write_text("{}")
    open_journal(folder / "state" / "journal.db", address=ADDRESS).close()
    return folder


@pytest.fixture
def kept(project: Path) -> Path:
    folder = project.parent / "kept"
    assert call(["backup", str(folder), "--config", str(project / "bot.yaml")]) == 0
    return folder


def journal_row(path: Path, sql: str, *values: object) -> Any:
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = db.execute(sql, values).fetchone()
        db.commit()
    return None if found is None else found[0]


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[Callable[[str], None]]:
    """`bot run` on the project; the value waits for a line of its log that contains the given text."""
    with subprocess.Popen(
        [sys.executable, "-m", "bot", "run", "bot.yaml", "--keep-service"],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        seen: list[str] = []

        def wait_for(text: str) -> None:
            assert process.stderr is not None
            while not any(text in line for line in seen):
                line = process.stderr.readline()
                assert line, "".join(seen)
                seen.append(line)
            seen.clear()

        try:
            wait_for('"event":"daemon.ready"')
            yield wait_for
        finally:
            process.send_signal(signal.SIGKILL)
            process.stderr.read()


def test_a_backup_of_a_running_daemon_is_restored_and_traded_on(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(project / "state")
    old, new, there = project.parent / "old", project.parent / "new", project.parent / "there"
    config, restored = str(project / "bot.yaml"), str(there / "bot.yaml")
    with daemon(project) as wait_for:
        wait_for('"what":"exit"')
        assert call(["backup", str(old), "--state-dir", str(project / "state")]) == 0
        wait_for('"what":"entry"')
        assert call(["backup", str(new), "--config", config]) == 0
        assert call(["restore", str(old), "--config", config]) == 1
        assert "another daemon runs on" in capsys.readouterr().err
    assert call(["restore", str(new), "--config", config]) == 1
    assert "the embedded service of" in capsys.readouterr().err
    Embedded(project / "state").stop()
    assert call(["restore", str(old), "--config", config]) == 2
    said = capsys.readouterr().err
    assert "is newer than the backup (last " in said
    assert "nothing was replaced" in said
    assert list((project / "state").glob("*.before-restore-*")) == []

    there.mkdir()
    assert call(["restore", str(new), "--config", restored]) == 0
    assert (there / "strategies" / "buyer.py").read_text() == STRATEGY
    account = journal_row(new / "state" / "journal.db", "SELECT value FROM meta WHERE name='address'")
    before = journal_row(there / "state" / "journal.db", "SELECT max(seq) FROM events")
    with daemon(there) as wait_for:
        wait_for('"what":"entry"')
    journal = there / "state" / "journal.db"
    assert journal_row(journal, "SELECT value FROM meta WHERE name='address'") == account
    assert journal_row(journal, "SELECT max(seq) FROM events") > before
    assert journal_row(journal, "SELECT count(*) FROM events WHERE type='order' AND subtype='open'") == journal_row(
        journal, "SELECT count(DISTINCT idempotency_key) FROM events WHERE type='order' AND subtype='open'"
    ), "an order was sent twice"


def test_a_backup_has_every_file_private_and_its_digest(kept: Path, project: Path) -> None:
    manifest = json.loads((kept / MANIFEST).read_text())
    assert set(manifest["files"]) == {
        "config/bot.yaml",
        "state/journal.db",
        "state/journal.safety.json",
        "strategies/buyer.py",
    }
    assert manifest["files"] == {name: sha256(kept / name) for name in manifest["files"]}
    assert (manifest["name"], manifest["account"], manifest["strategiesDir"]) == ("kept", ADDRESS, "strategies")
    for path in (kept, *kept.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_backup_overwrites_nothing_and_is_whole_or_not_there(
    project: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(project / "bot.yaml")]
    assert call(["backup", str(kept), *config]) == 2
    assert "exists already; a backup overwrites nothing" in capsys.readouterr().err

    def fail(*_: object) -> None:
        raise NotCopied("no space left on device")

    monkeypatch.setattr(backup_module, "_copy_project", fail)
    assert call(["backup", str(project.parent / "other"), *config]) == 1
    assert sorted(path.name for path in project.parent.iterdir()) == ["kept", "mine"]
    assert call(["backup", str(project.parent / "other"), "--state-dir", str(project)]) == 2
    assert "there is no journal in" in capsys.readouterr().err


def damage(kept: Path, what: str) -> None:
    """Change a backup in one way. Its digests are corrected where the digest is not what must be noticed."""
    manifest = json.loads((kept / MANIFEST).read_text())
    database = kept / "state" / "journal.db"
    if what == "a byte":
        data = bytearray(database.read_bytes())
        data[5_000] ^= 1
        database.write_bytes(data)
    elif what == "a missing file":
        (kept / "strategies" / "buyer.py").unlink()
    elif what == "another file":
        (kept / "strategies" / "evil.py").write_text("")
    elif what == "no manifest":
        (kept / MANIFEST).unlink()
        return
    elif what == "a newer backup":
        manifest["format"] = 2
    elif what == "a path that leads out":
        manifest["files"] |= {"state/../../out": "0"}
    elif what == "a damaged manifest":
        del manifest["createdMs"]
    elif what == "a newer journal":
        journal_row(database, "PRAGMA user_version=99")
        manifest["files"]["state/journal.db"] = sha256(database)
    elif what == "a damaged database":
        data = bytearray(database.read_bytes())
        data[4096 + 8 : 4096 + 2_000] = b"\xff" * 1_992
        database.write_bytes(data)
        manifest["files"]["state/journal.db"] = sha256(database)
    (kept / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("a byte", 1, "has changed since the backup was made"),
        ("a missing file", 1, "strategies/buyer.py is missing"),
        ("another file", 1, "strategies/evil.py is not in the manifest"),
        ("no manifest", 1, "has no backup.json"),
        ("a newer backup", 4, "newer version of Bracketbot (format 2, this one reads 1)"),
        ("a path that leads out", 1, "names state/../../out, which is no file of a backup"),
        ("a damaged manifest", 1, "is damaged (KeyError: 'createdMs')"),
        ("a newer journal", 4, "was written by a newer version of Bracketbot (format 99"),
        ("a damaged database", 1, "journal.db is damaged: "),
    ],
)
def test_a_damaged_or_newer_backup_is_refused_and_nothing_is_written(
    kept: Path, capsys: pytest.CaptureFixture[str], what: str, code: int, said: str
) -> None:
    damage(kept, what)
    there = kept.parent / "there"
    for more in (["--check"], ["--config", str(there / "bot.yaml")]):
        assert call(["restore", str(kept), *more]) == code
        assert said in capsys.readouterr().err
    assert not there.exists()


OUTSIDE = (
    "/home/x/.config/autostart",
    "../home/.config",
    "../../../..",
    "../..",
    "..",
    "../.config",
    ".config/autostart",
    "a/../../b",
    "~",
    "~/x",
    "a//b",
    "/",
    "",
    "./x",
    "../a/b",
    "a\\b",
    "x\0y",
    "../../strategies",
    7,
    ["x"],
)


def test_the_listing_file_beside_the_config_comes_back(project: Path) -> None:
    listing, kept, there = project / "markets.yaml", project.parent / "with-listing", project.parent / "elsewhere"
    listing.write_text("markets: {SHIB: {tick: 0.00000001, lot: 1, price: 0.00001}}\n")
    assert call(["backup", str(kept), "--config", str(project / "bot.yaml")]) == 0
    there.mkdir()
    assert call(["restore", str(kept), "--config", str(there / "bot.yaml")]) == 0
    assert (there / "markets.yaml").read_text() == listing.read_text()
    # One that is there stays.
    (there / "markets.yaml").write_text("markets: {OTHER: {tick: 1, lot: 1}}\n")
    assert call(["restore", str(kept), "--config", str(there / "bot.yaml")]) == 0
    assert "OTHER" in (there / "markets.yaml").read_text()


def test_the_proofs_of_days_come_back_and_replace_none(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, kept, there = project / "state", project.parent / "with-proofs", project.parent / "elsewhere"
    for day in ("2026-11-26", "2026-11-27"):
        proof_files.write_proof(state, {"format": 1, "day": day, "note": "kept"})
    (state / "proofs" / "2026-11-27.json.part").write_text("no proof")
    assert call(["backup", str(kept), "--config", str(project / "bot.yaml")]) == 0
    assert sorted(path.name for path in (kept / "state" / "proofs").iterdir()) == ["2026-11-26.json", "2026-11-27.json"]
    there.mkdir()
    assert call(["restore", str(kept), "--config", str(there / "bot.yaml")]) == 0
    assert proof_files.days(there / "state") == ["2026-11-26", "2026-11-27"]
    proof_files.write_proof(there / "state", {"format": 1, "day": "2026-11-27", "note": "mine"})
    (there / "state" / "proofs" / "2026-11-26.json").unlink()
    assert call(["restore", str(kept), "--config", str(there / "bot.yaml")]) == 0
    notes = [(proof_files.read_proof(there / "state", day) or {})["note"] for day in proof_files.days(there / "state")]
    assert notes == ["kept", "mine"]


@pytest.mark.parametrize("given", OUTSIDE)
def test_strategies_are_written_inside_of_the_project_only(
    kept: Path, capsys: pytest.CaptureFixture[str], given: object
) -> None:
    manifest = json.loads((kept / MANIFEST).read_text())
    (kept / MANIFEST).write_text(json.dumps({**manifest, "strategiesDir": given}))
    there = kept.parent / "there"
    for more in (["--check"], ["--config", str(there / "bot.yaml")]):
        assert call(["restore", str(kept), *more]) == 1
        assert "outside of the project" in capsys.readouterr().err
    assert not there.exists()
    assert call(["restore", str(kept), "--check"]) == 1, "the way out that the message names is another one"


@pytest.mark.parametrize("given", ["strategies", "../strategies", ".", "code/strategies"])
def test_strategies_beside_or_below_the_config_are_restored(kept: Path, given: str) -> None:
    manifest = json.loads((kept / MANIFEST).read_text())
    (kept / MANIFEST).write_text(json.dumps({**manifest, "strategiesDir": given}))
    there = kept.parent / "there" / "configs"
    assert call(["restore", str(kept), "--config", str(there / "bot.yaml")]) == 0
    assert (there / given / "buyer.py").is_file()


@pytest.mark.parametrize(
    "name",
    [
        "strategies/evil.desktop",
        "strategies/.bashrc",
        "state/other.db",
        "config/a/b.yaml",
        "state/x/journal.db",
        "state/proofs/2026-11-27.txt",
        "state/proofs/x/2026-11-27.json",
        "other/x.py",
        "strategies//x.py",
        "strategies/./x.py",
        "strategies/a\\b.py",
        "config/second.yaml",
    ],
)
def test_a_backup_names_only_what_a_backup_has(kept: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = kept / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    manifest = json.loads((kept / MANIFEST).read_text())
    manifest["files"][name] = sha256(path)
    (kept / MANIFEST).write_text(json.dumps(manifest))
    assert call(["restore", str(kept), "--check"]) == 1
    assert "use another backup" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["strategies/buyer.py", "strategies", "state/journal.safety.json", "state", "config/bot.yaml", MANIFEST]
)
def test_links_in_a_backup_are_not_followed(kept: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The target has the digest that the manifest states."""
    elsewhere = kept.parent / "elsewhere"
    (kept / name).rename(elsewhere)
    (kept / name).symlink_to(elsewhere)
    for more in (["--check"], ["--state-dir", str(kept.parent / "there")]):
        assert call(["restore", str(kept), *more]) == 1
        assert "is a link, and links are not followed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": 1e999}', "7", '"' + "x" * 5_000_000 + '"', '{"format": 1, "files": 7}']
)
def test_a_manifest_of_another_form_is_damaged_and_no_bug(
    kept: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (kept / MANIFEST).write_text(text)
    assert call(["restore", str(kept), "--check"]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_config_and_strategies_that_exist_stay_as_they_are(
    project: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "strategies" / "buyer.py").write_text("# mine\n")
    assert call(["restore", str(kept), "--config", str(project / "bot.yaml"), "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["left"] == [str(project / "bot.yaml"), str(project / "strategies" / "buyer.py")]
    assert (project / "strategies" / "buyer.py").read_text() == "# mine\n"
    state = project / "state"
    assert set(done["written"]) == {str(state / "journal.db"), str(state / "journal.safety.json")}
    assert len(done["setAside"]) == 2
    assert sha256(state / "journal.db") == sha256(kept / "state" / "journal.db")
    assert all(stat.S_IMODE(Path(path).stat().st_mode) == 0o600 for path in done["written"])


def test_a_damaged_journal_is_replaced_and_set_aside(project: Path, kept: Path) -> None:
    (project / "state" / "journal.db").write_bytes(b"no database" * 1_000)
    assert call(["restore", str(kept), "--config", str(project / "bot.yaml")]) == 0
    (aside,) = (project / "state").glob("journal.db.before-restore-*")
    assert aside.read_bytes().startswith(b"no database")
    open_journal(project / "state" / "journal.db", address=ADDRESS).close()


def test_a_state_that_must_not_be_replaced_is_refused(
    project: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, to_config = project / "state", ["--config", str(project / "bot.yaml")]
    with hold_state(state):
        assert call(["restore", str(kept), *to_config]) == 1
    assert "another daemon runs on" in capsys.readouterr().err
    journal_row(state / "journal.db", "INSERT INTO progress (market, interval, at_ms) VALUES ('BTC', '1m', 60000)")
    assert call(["restore", str(kept), *to_config]) == 2
    assert "journal.db is newer than the backup (last bar 60000, and 0 in the backup)" in capsys.readouterr().err
    (state / "journal.db").unlink()
    open_journal(state / "journal.db", address="0x" + "cd" * 20).close()
    assert call(["restore", str(kept), *to_config]) == 2
    assert "belongs to account 0xcd" in capsys.readouterr().err
    (state / "journal.db").unlink()
    (state / "sandbox.db").write_bytes(b"")
    with contextlib.closing(sqlite3.connect(state / "sandbox.db")) as db:
        db.executescript("CREATE TABLE commands (seq); CREATE TABLE snapshots (seq); INSERT INTO commands VALUES (1)")
    assert call(["restore", str(kept), *to_config]) == 2
    assert "sandbox.db exists, and the backup has no such file" in capsys.readouterr().err
    assert list(state.glob("*.before-restore-*")) == []


@pytest.mark.parametrize("stop_at", range(6))
def test_a_restore_that_is_stopped_anywhere_loses_nothing_and_can_be_repeated(
    project: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    """It sets three files aside and copies three. The journal is never there without its service."""
    state, kept, to_config = project / "state", project.parent / "kept", ["--config", str(project / "bot.yaml")]
    with contextlib.closing(sqlite3.connect(state / "sandbox.db")) as db:
        db.executescript("CREATE TABLE commands (seq); CREATE TABLE snapshots (seq); PRAGMA user_version=2")
    assert call(["backup", str(kept), *to_config]) == 0
    before = sorted(path.read_bytes() for path in state.iterdir() if path.name != "lock")
    steps = iter(range(6))

    def stopping(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object) -> None:
            if next(steps) == stop_at:
                raise KeyboardInterrupt
            step(*arguments)

        return run

    with monkeypatch.context() as patch:
        for name in ("_move_aside", "_copy_private"):
            patch.setattr(restore_module, name, stopping(getattr(restore_module, name)))
        assert call(["restore", str(kept), *to_config]) == 130
    assert not (state / "journal.db").exists() or (state / "sandbox.db").exists()
    held = [path.read_bytes() for path in state.iterdir()]
    assert all(content in held for content in before)
    assert call(["restore", str(kept), *to_config]) == 0
    for name in ("journal.db", "sandbox.db", "journal.safety.json"):
        assert (state / name).read_bytes() == (kept / "state" / name).read_bytes()


def test_a_backup_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["restore", str(tmp_path / "gone"), "--check"]) == 2
    assert f"there is no folder {tmp_path / 'gone'}" in capsys.readouterr().err


def test_only_the_state_goes_into_a_given_folder(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = kept.parent / "elsewhere"
    assert call(["restore", str(kept), "--state-dir", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"journal.db", "journal.safety.json", "lock"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert call(["restore", str(kept), "--state-dir", str(folder), "--config", "bot.yaml"]) == 2
    assert "give --config or --state-dir, not both" in capsys.readouterr().err


def test_without_a_place_the_project_is_written_into_the_current_folder(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = kept.parent / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    assert call(["restore", str(kept)]) == 0
    assert (there / "bot.yaml").read_text() == CONFIG
    assert (there / "strategies" / "buyer.py").is_file()
    assert (there / "state" / "journal.db").is_file()


def test_a_folder_that_is_missing_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = project.parent / "no" / "such"
    assert call(["backup", str(missing / "kept"), "--config", str(project / "bot.yaml")]) == 1
    assert f"there is no folder {missing} for the backup: make it, or choose another" in capsys.readouterr().err
    missing.mkdir(parents=True)
    assert call(["backup", str(missing / "kept"), "--config", str(project / "bot.yaml")]) == 0
