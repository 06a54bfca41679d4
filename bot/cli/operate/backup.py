"""`bot backup`: copy the state, the config and the strategies of one daemon into a new folder, while the daemon and its
service run.

The folder holds `backup.json` with the SHA-256 of every file. `restore.py` reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import click

from bot import __version__
from bot.cli.common.daemon_client import NotRunning, Place, Silent, where
from bot.cli.common.shared_options import json_option
from bot.errors import BotError, ConfigError, Exit
from bot.files import sync, write_private

if TYPE_CHECKING:
    from bot.config import Settings

EPILOG = """\b
Examples:
  bot backup ../my-bot-backup
  bot backup /mnt/backups/my-bot-monday --config bot.yaml

\b
The daemon and its embedded service may run. A secret is copied only where it is in a file of the state directory
already; a config holds references to secrets. Check a backup with: bot restore FOLDER --check
"""

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
JOURNAL: Final = "journal.db"
SERVICE: Final = "sandbox.db"
# copied in this order: after a crash, too, a journal is older than its service
DATABASES: Final = (JOURNAL, SERVICE)
BESIDE: Final = ("journal.safety.json", "sandbox.db.webhook-key", "sandbox.options", "readiness.json")
# folders of a backup
STATE, CONFIG, STRATEGIES, LISTINGS = "state", "config", "strategies", "listings"
# A place of strategies that a backup may name: below the config's folder, or a folder beside that one; none of them
# hidden.
IN_PROJECT: Final = re.compile(r"\.|(?:\.\./)?[^./\\\0~][^/\\\0]*|[^./\\\0~][^/\\\0]*(?:/[^./\\\0][^/\\\0]*)+")
# strategy files; more is a wrong folder
FILES_MAX: Final = 1_000


class Exists(BotError):
    """The destination is there already."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Manifest:
    """`files`: path in the backup -> SHA-256.

    `strategies_dir` is relative to the folder of the config; None if it is outside of the project.
    """

    name: str
    address: str | None
    created_ms: int
    files: Mapping[str, str]
    strategies_dir: str | None = None
    version: str = __version__
    format: int = FORMAT

    def as_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "version": self.version,
            "name": self.name,
            "account": self.address,
            "createdMs": self.created_ms,
            "strategiesDir": self.strategies_dir,
            "files": dict(self.files),
        }

    @property
    def config(self) -> str | None:
        """The file name of the config; None if the backup has none."""
        return self._name_in(CONFIG)

    @property
    def listing_file(self) -> str | None:
        """The name of the listing file, which lies beside the config; None if the backup has none."""
        return self._name_in(LISTINGS)

    def _name_in(self, folder: str) -> str | None:
        return next((PurePosixPath(name).name for name in self.files if name.startswith(f"{folder}/")), None)


@click.command("backup", epilog=EPILOG)
@click.argument("dest", metavar="FOLDER", type=click.Path(path_type=Path))
@where
@json_option("The manifest as one JSON object.")
def backup(dest: Path, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Copy journal, embedded service, config and strategies of a daemon into a new FOLDER, also while it runs."""
    from bot.cli.common.daemon_client import find

    place = _with_config(find(config, state_dir, dead_too=True))
    manifest = write_backup(place, dest)
    _note(place.folder, manifest.created_ms)
    if as_json:
        click.echo(json.dumps({"folder": str(dest), **manifest.as_json()}))
        return int(Exit.DONE)
    click.echo(f"{dest}: {len(manifest.files)} files of {manifest.name}, checked")
    if place.config is None:
        click.echo("The config and the strategies are not in it: name the config with --config.")
    return int(Exit.DONE)


def write_backup(place: Place, dest: Path) -> Manifest:
    """Write a backup of the daemon's files. `dest` appears when the backup is complete."""
    from bot.clock import SystemClock
    from bot.runtime.journal import queries

    if dest.exists() or dest.is_symlink():
        raise Exists(f"{dest} exists already; a backup overwrites nothing: name another folder")
    part = dest.absolute().with_name(f".{dest.name}.part-{os.getpid()}")
    try:
        part.mkdir(mode=0o700)
        _copy_state(place.folder, part / STATE)
        strategies_dir = None if place.config is None else _copy_project(place.config, part)
        manifest = Manifest(
            name=place.folder.name if place.config is None else _name_of(place.config),
            address=queries.last_state(part / STATE).address,
            created_ms=SystemClock().now_ms(),
            files={path.relative_to(part).as_posix(): sha256(path) for path in sorted(_files(part))},
            strategies_dir=strategies_dir,
        )
        write_private(part / MANIFEST, (json.dumps(manifest.as_json(), indent=2) + "\n").encode())
        sync(part)
        part.rename(dest)
        sync(dest.absolute().parent)
    except OSError as error:
        file = error.filename if isinstance(error.filename, str) else None
        if isinstance(error, FileNotFoundError) and not dest.absolute().parent.is_dir():
            raise BotError(
                f"there is no folder {dest.absolute().parent} for the backup: make it, or choose another"
            ) from None
        where = "" if file is None or file == str(dest) else f" ({file})"
        raise BotError(f"{dest}: the backup cannot be written: {error.strerror or error}{where}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def _note(folder: Path, at_ms: int) -> None:
    """Tell the daemon of this folder when its last backup was written."""
    from bot.runtime.control_plane.alarm_watch import LAST_BACKUP

    try:
        write_private(folder / LAST_BACKUP, json.dumps({"at_ms": at_ms}).encode())
    except OSError as error:
        why = error.strerror or error
        click.echo(
            f"{folder / LAST_BACKUP} cannot be written ({why}): the daemon does not know of this backup", err=True
        )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_config(place: Place) -> Place:
    """The place with the config that its daemon runs.

    BotError without a journal, or if the daemon cannot write it: then its newest rows are in memory.
    """
    from bot.runtime.journal.queries import NotFound, is_there

    if not is_there(place.folder / JOURNAL):
        raise NotFound(f"there is no journal in {place.folder}: no daemon has run there")
    try:
        status = place.ask("GET", "/status")
    except (NotRunning, Silent):
        return place
    if (fault := status.get("degraded", {}).get("journal")) is not None:
        raise BotError(f"the daemon cannot write its journal ({fault}): correct that, then make the backup")
    running = status["config"]
    return place if place.config is not None or running is None else Place(place.folder, Path(running))


def _copy_state(source: Path, target: Path) -> None:
    from bot.runtime.journal import proof_files
    from bot.runtime.journal.backup import write_copy

    target.mkdir(mode=0o700)
    for name in DATABASES:
        if (source / name).exists():
            write_copy(source / name, target / name)
    for name in BESIDE:
        if (source / name).exists():
            write_private(target / name, (source / name).read_bytes())
    names = [proof_files.name_of(day) for day in proof_files.days(source)]
    if names:
        (target / proof_files.FOLDER).mkdir(mode=0o700)
    for name in names:
        # Beside a running daemon the oldest proof may be removed meanwhile.
        with suppress(FileNotFoundError):
            write_private(target / name, (source / name).read_bytes())


def _copy_project(config: Path, target: Path) -> str | None:
    """Copy the config, its strategies and the listing file beside it.

    Returns the place of the strategies, seen from the config; None if it is outside of the project.
    """
    config = config.absolute()
    for folder in (CONFIG, STRATEGIES):
        (target / folder).mkdir(mode=0o700)
    write_private(target / CONFIG / config.name, config.read_bytes())
    settings = _settings_of(config)
    if settings is None:
        return None
    listings, strategies = settings.listings, settings.strategies_dir
    # One that lies elsewhere is of several projects, as candle files are.
    if listings is not None and listings.parent == config.parent and listings.is_file():
        (target / LISTINGS).mkdir(mode=0o700)
        write_private(target / LISTINGS / listings.name, listings.read_bytes())
    if not strategies.is_dir():
        return None
    files = [path for path in sorted(strategies.rglob("*.py")) if path.is_file()]
    if len(files) > FILES_MAX:
        raise ConfigError(
            f"{strategies} has {len(files):,} Python files; a folder of strategies has at most {FILES_MAX:,}"
        )
    for path in files:
        place = target / STRATEGIES / path.relative_to(strategies)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(place, path.read_bytes())
    seen_from_config = os.path.relpath(strategies, config.parent)
    return seen_from_config if IN_PROJECT.fullmatch(seen_from_config) else None


def _settings_of(config: Path) -> Settings | None:
    """The settings of a config; None if it cannot be read, because it is copied all the same."""
    from bot.config import read
    from bot.config.references import Outside

    try:
        return read(config, lookup=Outside(config.parent, os.environ)).settings
    except ConfigError:
        return None


def _name_of(config: Path) -> str:
    from bot.cli.common.daemon_client import outline

    return outline(config)[0]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
