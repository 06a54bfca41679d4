"""`bot restore`: put a backup of `bot backup` back. It replaces no newer state, no running daemon's state, and no
config or strategy.

State files that are replaced keep their content under another name. The service's database comes first, then the
journal: a stop between the two leaves a service without a journal, and a journal is made again from its service.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import click

from bot.cli.common.daemon_client import folder_of
from bot.cli.common.shared_options import json_option
from bot.cli.operate.backup import (
    BESIDE,
    CONFIG,
    DATABASES,
    FORMAT,
    IN_PROJECT,
    JOURNAL,
    LISTINGS,
    MANIFEST,
    SERVICE,
    STATE,
    STRATEGIES,
    Exists,
    Manifest,
    sha256,
)
from bot.errors import BotError, ConfigError
from bot.files import OutsideFolder, inside, replacing, sync

EPILOG = """\b
Examples:
  bot restore ../my-bot-backup --check
  bot restore ../my-bot-backup
  bot restore /mnt/backups/my-bot-monday --config bot.yaml

\b
Without --config and --state-dir the config of the backup is written into the current folder, and its state where that
config says.
A config and strategies that exist stay as they are. Stop the daemon first: bot stop
"""

ASIDE: Final = "before-restore"
# 10,000 names with their digests
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024


class Marks(NamedTuple):
    """How far a database has come. A state is newer than another if any of its marks is higher."""

    address: str | None
    marks: Mapping[str, int]


class Unsound(BotError):
    """A backup is not what its manifest says, or its databases are damaged."""


@click.command("restore", epilog=EPILOG)
@click.argument("source", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="CONFIG", help="Where the config is, or goes."
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Restore only the state, into this folder.",
)
@click.option("--check", "only_checks", is_flag=True, help="Only check the backup: digests, databases, versions.")
@json_option("The restored files as one JSON object.")
def restore(source: Path, config: Path | None, state_dir: Path | None, *, only_checks: bool, as_json: bool) -> int:
    """Check the backup in FOLDER, and put it back."""
    if config is not None and state_dir is not None:
        raise click.UsageError("give --config or --state-dir, not both")
    manifest = checked(source)
    written: list[Path] = []
    left: list[Path] = []
    aside: list[Path] = []
    folder: Path | None = None
    if not only_checks:
        if state_dir is None:
            target = _config_path(manifest, config)
            _write_project(source, manifest, target, written, left)
            folder = folder_of(target)
        else:
            folder = state_dir.absolute()
        _restore_state(source, folder, written, aside)
    if as_json:
        lists = {"written": written, "left": left, "setAside": aside}
        shown = {name: [str(path) for path in paths] for name, paths in lists.items()}
        click.echo(
            json.dumps(
                {"ok": True, "name": manifest.name, "stateDir": None if folder is None else str(folder), **shown}
            )
        )
        return 0
    click.echo(f"{source}: the backup of {manifest.name} is sound: {len(manifest.files)} files")
    for title, paths in (("restored", written), ("left as it is", left), ("set aside", aside)):
        for path in paths:
            click.echo(f"{title} {path}")
    return 0


def checked(source: Path) -> Manifest:
    """The manifest of a backup whose files are all there and sound.

    ConfigError for a backup of a newer version, Unsound for a damaged one.
    """
    manifest = _read_manifest(source)
    _check_names(source, manifest)
    there = {
        path.relative_to(source).as_posix() for path in source.rglob("*") if not path.is_dir() or path.is_symlink()
    } - {MANIFEST}
    for name in sorted(there ^ manifest.files.keys()):
        raise Unsound(
            f"{source / name} {'is not in the manifest' if name in there else 'is missing'}: use another backup"
        )
    for name, digest in manifest.files.items():
        if sha256(source / name) != digest:
            raise Unsound(
                f"{source / name} has changed since the backup was made (its SHA-256 differs): use another backup"
            )
    for name in DATABASES:
        if f"{STATE}/{name}" in manifest.files:
            _check_database(source / STATE / name)
    if f"{STATE}/{JOURNAL}" not in manifest.files:
        raise Unsound(f"{source} has no journal: use another backup")
    return manifest


def _read_manifest(source: Path) -> Manifest:
    path = source / MANIFEST
    if not source.is_dir():
        raise click.UsageError(f"there is no folder {source}")
    try:
        data = json.loads(_bytes_of(path))
        if int(data["format"]) > FORMAT:
            raise ConfigError(
                f"{source} was written by a newer version of Bracketbot (format {data['format']}, this one reads"
                f" {FORMAT}): run that version"
            )
        files = {str(name): str(digest) for name, digest in data["files"].items()}
        manifest = Manifest(
            name=data["name"],
            address=data["account"],
            created_ms=int(data["createdMs"]),
            files=files,
            strategies_dir=data["strategiesDir"],
            version=data["version"],
            format=data["format"],
        )
    except FileNotFoundError:
        raise Unsound(f"{source} has no {MANIFEST}: it is not a folder that `bot backup` made") from None
    except OSError as error:
        raise BotError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Unsound(f"{path} is damaged ({type(error).__name__}: {error}): use another backup") from None
    return manifest


def _bytes_of(path: Path) -> bytes:
    """The bytes of the manifest. ValueError if it is a link, or longer than that of the largest backup."""
    with inside(path.parent, path.name).open("rb") as file:
        raw = file.read(MANIFEST_BYTES_MAX + 1)
    if len(raw) > MANIFEST_BYTES_MAX:
        raise ValueError(f"it is larger than {MANIFEST_BYTES_MAX:,} bytes")
    return raw


def _check_names(source: Path, manifest: Manifest) -> None:
    """A manifest names only files that a backup has, inside of its folder, and a place inside of the project.

    Unsound otherwise.
    """
    from bot.runtime.journal import proof_files

    path = source / MANIFEST
    for name in manifest.files:
        try:
            inside(source, name)
        except OutsideFolder as error:
            raise Unsound(f"{path} names {name}, which is no file of a backup ({error}): use another backup") from None
        kind, *rest = name.split("/")
        is_known = {
            STATE: "/".join(rest) in (*DATABASES, *BESIDE) or proof_files.is_name("/".join(rest)),
            CONFIG: len(rest) == 1,
            STRATEGIES: bool(rest) and name.endswith(".py"),
            LISTINGS: len(rest) == 1,
        }
        if not is_known.get(kind, False):
            raise Unsound(f"{path} names {name}, which is no file of a backup: use another backup")
    for folder in (CONFIG, LISTINGS):
        if sum(name.startswith(f"{folder}/") for name in manifest.files) > 1:
            raise Unsound(f"{path} names several files in {folder}: use another backup")
    given: object = manifest.strategies_dir
    if given is not None and not (isinstance(given, str) and IN_PROJECT.fullmatch(given)):
        raise Unsound(
            f"{path}: the strategies belong into {given!r}, which is outside of the project, so that `bot restore` does"
            " not write there. Restore the state alone with --state-dir, and copy config and strategies yourself"
        )


def _check_database(path: Path) -> None:
    from bot.runtime.journal.backup import faults
    from bot.runtime.journal.opening import refuse_newer
    from bot.service.state_machine.command_log import SCHEMA_VERSION

    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            number = int(db.execute("PRAGMA user_version").fetchone()[0])
            damage = faults(db)
    except sqlite3.Error as error:
        raise Unsound(f"{path} cannot be read: {error}: use another backup") from error
    if path.name == JOURNAL:
        refuse_newer(path)
    elif number > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} was written by a newer version of Bracketbot (format {number}, this one reads {SCHEMA_VERSION}):"
            " run that version"
        )
    if damage is not None:
        raise Unsound(f"{path} is damaged: {damage}: use another backup")


# ── Config and strategies ───────────────────────────────────────────────────────────────────────────────────────────


def _config_path(manifest: Manifest, given: Path | None) -> Path:
    if given is not None:
        return given.absolute()
    if manifest.config is None:
        raise click.UsageError(
            "the backup has no config: name one with --config, or a state directory with --state-dir"
        )
    return Path.cwd() / manifest.config


def _write_project(source: Path, manifest: Manifest, config: Path, written: list[Path], left: list[Path]) -> None:
    """Write config and strategies where no such file is."""
    if manifest.config is None:
        if not config.is_file():
            raise ConfigError(f"{config} does not exist, and the backup has no config")
        return
    _write_missing(source / CONFIG / manifest.config, config, written, left)
    if (listings := manifest.listing_file) is not None:
        _write_missing(source / LISTINGS / listings, config.with_name(listings), written, left)
    if manifest.strategies_dir is None and any(name.startswith(f"{STRATEGIES}/") for name in manifest.files):
        click.echo(
            f"The strategies folder is outside of the project: copy {source / STRATEGIES} there yourself", err=True
        )
    for name in manifest.files:
        if name.startswith(f"{STRATEGIES}/") and manifest.strategies_dir is not None:
            folder = Path(os.path.normpath(config.parent / manifest.strategies_dir))
            _write_missing(source / name, folder / PurePosixPath(name).relative_to(STRATEGIES), written, left)


def _write_missing(source: Path, target: Path, written: list[Path], left: list[Path]) -> None:
    if target.exists():
        left.append(target)
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_private(source, target)
    except OSError as error:
        raise BotError(f"{target} cannot be written: {error.strerror or error}") from None
    written.append(target)


def _copy_private(source: Path, target: Path) -> None:
    """Copy a file for its owner only. `target` appears when it is whole and on disk."""
    # Checked before; a link that has come since is refused by the open.
    content = os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    with content, replacing(target) as file:
        shutil.copyfileobj(content, file)


# ── State ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _restore_state(source: Path, folder: Path, written: list[Path], aside: list[Path]) -> None:
    from bot.clock import SystemClock, iso
    from bot.runtime.liveness.instance_lock import hold_state, private_dir

    private_dir(folder)
    # A daemon that runs has this lock, and none can start meanwhile.
    with hold_state(folder):
        _refuse_running_service(folder)
        for name in DATABASES:
            _refuse_newer_state(folder / name, source / STATE / name)
        stamp = iso(SystemClock().now_ms())[:19].replace("-", "").replace(":", "")
        try:
            for name in (*DATABASES, *BESIDE):
                _move_aside(folder / name, stamp, aside)
            # Of a day that is proved here too, this proof stays.
            for name in (*_missing_proofs(source / STATE, folder), *BESIDE, *reversed(DATABASES)):
                if (source / STATE / name).exists():
                    _copy_private(source / STATE / name, folder / name)
                    written.append(folder / name)
            sync(folder)
        except OSError as error:
            raise BotError(
                f"{folder}: the state cannot be restored: {error.strerror or error}; correct that and run it again"
            ) from None


def _missing_proofs(source: Path, folder: Path) -> list[str]:
    """The proofs of a backup whose days have none in this state directory, and a folder for them."""
    from bot.runtime.journal import proof_files

    days = sorted({*proof_files.days(source)} - {*proof_files.days(folder)})
    if days:
        (folder / proof_files.FOLDER).mkdir(mode=0o700, exist_ok=True)
    return [proof_files.name_of(day) for day in days]


def _refuse_running_service(folder: Path) -> None:
    from bot.runtime.liveness.instance_lock import is_free

    for name in ("sandbox.lock", "sandbox.db.lock"):
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as lock:
            if not is_free(lock):
                raise BotError(f"the embedded service of {folder} runs: stop it first (bot services --stop)")


def _refuse_newer_state(there: Path, kept: Path) -> None:
    """BotError if the state that is there belongs to another account, or has come further than the backup.

    A damaged file may be replaced.
    """
    ours, its = _marks_of(there), _marks_of(kept)
    if ours is None:
        return
    if its is None:
        raise Exists(f"{there} exists, and the backup has no such file: move it away first")
    if None not in (ours.address, its.address) and ours.address != its.address:
        raise Exists(
            f"{there} belongs to account {ours.address}, and the backup to account {its.address}: choose another folder"
        )
    newer = {name: mark for name, mark in ours.marks.items() if mark > its.marks.get(name, 0)}
    if newer:
        shown = ", ".join(f"{name} {mark}, and {its.marks.get(name, 0)} in the backup" for name, mark in newer.items())
        raise Exists(
            f"{there} is newer than the backup ({shown}); nothing was replaced. To go back anyway, move the file away"
            " first"
        )


_QUERIES: Final[Mapping[str, Mapping[str, str]]] = {
    JOURNAL: {
        "last event": "SELECT max(seq) FROM events",
        "last intent": "SELECT max(seq) FROM intents",
        "last bar": "SELECT max(at_ms) FROM progress",
    },
    SERVICE: {"last command": "SELECT max(seq) FROM (SELECT seq FROM commands UNION ALL SELECT seq FROM snapshots)"},
}


def _marks_of(path: Path) -> Marks | None:
    """How far a database has come; None if it is missing, empty or damaged."""
    from bot.runtime.journal.queries import address_of

    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.row_factory = sqlite3.Row
            marks = {name: int(db.execute(sql).fetchone()[0] or 0) for name, sql in _QUERIES[path.name].items()}
            return Marks(address_of(db) if path.name == JOURNAL else None, marks)
    except sqlite3.DatabaseError:
        return None


def _move_aside(path: Path, stamp: str, aside: list[Path]) -> None:
    """Rename a file, and the log of a database with it."""
    if not path.exists():
        return
    name = f"{path.name}.{ASIDE}-{stamp}"
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(path.with_name(name + suffix))
    aside.append(path.with_name(name))
