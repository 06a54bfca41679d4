"""`bot doctor`: checks everything that a run needs.

Prints one line for each check, and how to fix what fails. Changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from bot.errors import BotError, ConfigError, Exit
from bot.number_text import ago, duration_ms
from bot.words import many

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client
    from bot.config import Settings
    from bot.wire.market import StatusResult

DISK_WARN_MB: Final = 1_024
DISK_FAIL_MB: Final = 64
# SQLite cannot shrink the write-ahead log while another program reads the journal
WAL_WARN_MB: Final = 64
# in older versions two writing processes can damage a file; the daemon is the only one
SQLITE_SAFE: Final = (3, 51, 3)
ASK_S: Final = 5.0
# least difference between the clocks of the service and of its prices for a warning
APART_MS: Final = 5_000

EPILOG = """\b
Examples:
  bot doctor configs/paper.yaml
  bot doctor --json configs/paper.yaml

\b
Exit 0: no check failed; warnings are allowed. Otherwise the code of the first failure: 4 config, 5 no answer, 6
journal, 7 key, 1 any other.
"""

Level = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check. `fix` says what to do about a warning or a failure."""

    check: str
    level: Level
    message: str
    fix: str | None = None
    code: int = 0


@dataclass(slots=True)
class Patient:
    """What the checks read, and their findings so far. A value is None if it could not be read."""

    place: Place
    settings: Settings | None = None
    references: Sequence[tuple[str, str]] = ()
    # The speed of the service's clock; None until the service has answered.
    speed: float | None = None
    findings: list[DoctorFinding] = field(default_factory=list)

    def say(self, check: str, level: Level, message: str, fix: str | None = None, code: int = 0) -> None:
        assert (level in ("ok", "skip")) or fix, f"{check} has no fix"
        self.findings.append(DoctorFinding(check, level, message, fix, code))


@click.command(epilog=EPILOG)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="State directory of the daemon, if there is no config.",
)
@click.option("--json", "as_json", is_flag=True, help="The findings as one JSON object.")
def doctor(config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Check the config, secrets, service, key, clock, disk, journal, heartbeat, notices, ports and unit of a daemon.

    Say how to fix what is wrong.
    """
    from bot.cli.common.daemon_client import find

    try:
        place = find(config, state_dir, dead_too=True)
    # Without the config the daemon's state directory is unknown.
    except ConfigError as error:
        findings = [
            DoctorFinding("config", "fail", str(error), "correct it, then run bot doctor again", int(Exit.CONFIG))
        ]
    else:
        findings = _examined(Patient(place))
    failed = next((one for one in findings if one.level == "fail"), None)
    code = 0 if failed is None else failed.code or int(Exit.ERROR)
    if as_json:
        click.echo(json.dumps({"ok": failed is None, "exit_code": code, "findings": [asdict(one) for one in findings]}))
        return code
    for one in findings:
        click.echo(f"{one.level:<5} {one.check:<11} {one.message}")
        if one.fix is not None:
            click.echo(f"{'':<17} -> {one.fix}")
    return code


def _examined(patient: Patient) -> list[DoctorFinding]:
    from bot.client.names import run_unheld

    _config(patient)
    _secrets(patient)
    _state_dir(patient)
    _disk(patient)
    _journal(patient)
    _stored(patient)
    _daemon(patient)
    _notify(patient)
    _metrics(patient)
    _dashboard(patient)
    run_unheld(_service(patient))
    _heartbeat(patient)
    _unit(patient)
    return patient.findings


def _config(patient: Patient) -> None:
    from bot.checks.config_check import checked_without_secrets

    path = patient.place.config
    if path is None:
        patient.say(
            "config", "skip", "none given: bot doctor CONFIG also checks the config, its secrets and its service"
        )
        return
    try:
        patient.settings, patient.references = checked_without_secrets(path)
    except ConfigError as error:
        patient.say("config", "fail", str(error), f"change it, then bot check {quote(str(path))}", int(Exit.CONFIG))
        return
    names = ", ".join(one.name for one in patient.settings.strategies)
    patient.say("config", "ok", f"{path}: {names}")
    from bot.runtime.strategy_host import loader

    for strategy in patient.settings.strategies:
        for warning in loader.load(strategy.use, patient.settings.strategies_dir).warnings:
            patient.say(
                "strategies",
                "warn",
                f"{strategy.name}: {warning}",
                "other users must not be able to change a strategy: chmod go-w",
            )


def _secrets(patient: Patient) -> None:
    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References

    if not patient.references:
        return
    assert patient.place.config is not None
    api_key = plain_data(patient.place.config)["account"].get("api_key")
    for kind, name in patient.references:
        what = f"${{{kind}:{name}}}"
        if kind == "credential" and not os.environ.get("CREDENTIALS_DIRECTORY"):
            _credential(patient, name)
            continue
        try:
            look = References(patient.place.config.absolute().parent, os.environ)
            look(what, "api_key" if what == api_key else "secret")
        except Rejected as error:
            patient.say(
                "secrets", "fail", str(error), "put the secret there, or correct the reference", int(Exit.CONFIG)
            )
            continue
        if kind == "env":
            patient.say(
                "secrets",
                "warn",
                f"{what}: each of your processes can read the environment",
                "use a file that only you can read: ${file:PATH}, or ${credential:NAME}",
            )
        else:
            patient.say("secrets", "ok", f"{what} exists, and only its owner can read it")


def _credential(patient: Patient, name: str) -> None:
    """Check the file that the systemd unit reads a credential from. Only the unit gets its content."""
    from bot.cli.operate.systemd_unit import credential_file

    assert patient.place.config is not None
    file = credential_file(patient.place.config, name)
    if file is None:
        patient.say(
            "secrets",
            "warn",
            f"a systemd unit provides the credential {name}, and none is installed",
            f"bot systemd {quote(str(patient.place.config))} --install",
        )
        return
    try:
        mode = file.stat().st_mode
    except PermissionError:
        patient.say("secrets", "skip", f"the credential {name} comes from {file}, which you may not read")
    except OSError:
        patient.say(
            "secrets",
            "fail",
            f"the unit reads the credential {name} from {file}, which does not exist",
            f"install -D -m 600 /dev/stdin {quote(str(file))}",
        )
    else:
        if stat.S_IMODE(mode) & 0o077:
            patient.say(
                "secrets",
                "fail",
                f"other users can read {file} (mode {stat.S_IMODE(mode):04o})",
                f"chmod 600 {quote(str(file))}",
            )
        else:
            patient.say("secrets", "ok", f"the credential {name} comes from {file}, which only its owner can read")


def _state_dir(patient: Patient) -> None:
    from bot.cli.common.daemon_client import is_closed
    from bot.runtime.journal.queries import Closed

    folder = patient.place.folder
    if is_closed(folder):
        patient.say("state", "fail", str(Closed(folder)), _ASK)
        return
    try:
        status = folder.stat()
    except FileNotFoundError:
        patient.say("state", "ok", f"the first run creates {folder}")
        return
    except OSError as error:
        patient.say("state", "fail", f"{folder}: {error.strerror}", _ASK)
        return
    if not stat.S_ISDIR(status.st_mode):
        patient.say(
            "state",
            "fail",
            f"{folder} is not a folder",
            "set state_dir to a folder that you can write to",
            int(Exit.CONFIG),
        )
    elif stat.S_IMODE(status.st_mode) & 0o077:
        patient.say(
            "state",
            "fail",
            f"other users can enter {folder} (mode {stat.S_IMODE(status.st_mode):04o})",
            f"chmod 700 {quote(str(folder))}",
        )
    elif not os.access(folder, os.W_OK):
        patient.say(
            "state",
            "fail",
            f"you cannot write to {folder}",
            f"uid {status.st_uid} owns it: chown it to the user who runs the daemon, or set another state_dir",
        )
    else:
        patient.say("state", "ok", f"{folder}; only its owner can enter it")


def _disk(patient: Patient) -> None:
    folder = patient.place.folder
    while not _is_seen(folder):
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_048_576
    text = f"{free_mb:,} MB free on the disk of {patient.place.folder}"
    if free_mb < DISK_FAIL_MB:
        patient.say(
            "disk", "fail", text, "free some space: without a journal the daemon sends no entries", int(Exit.UNSAFE)
        )
    elif free_mb < DISK_WARN_MB:
        patient.say("disk", "warn", text, "free some space soon")
    else:
        patient.say("disk", "ok", text)


def _is_seen(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.exists()
    return False


def _journal(patient: Patient) -> None:
    import sqlite3

    from bot.errors import JournalError
    from bot.runtime.journal import queries

    version = ".".join(map(str, sqlite3.sqlite_version_info))
    if sqlite3.sqlite_version_info < SQLITE_SAFE:
        patient.say(
            "sqlite",
            "ok",
            f"{version}; versions before {'.'.join(map(str, SQLITE_SAFE))} are safe with one writer, and only the"
            " daemon writes its journal",
        )
    else:
        patient.say("sqlite", "ok", version)
    folder = patient.place.folder
    try:
        with queries.opened(folder) as db:
            found = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
            mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    except queries.NotFound:
        patient.say("journal", "ok", "none yet; the first run creates it")
        return
    except queries.Closed as error:
        patient.say("journal", "fail", str(error), _ASK)
        return
    except JournalError as error:
        is_shut = isinstance(error.__cause__, sqlite3.OperationalError)
        patient.say("journal", "fail", str(error), _OPEN if is_shut else _ANEW, int(Exit.UNSAFE))
        return
    if found != ["ok"]:
        patient.say("journal", "fail", f"damaged: {'; '.join(found)}", _ANEW, int(Exit.UNSAFE))
        return
    wal = folder / f"{queries.FILE}-wal"
    wal_mb = wal.stat().st_size // 1_048_576 if wal.exists() else 0
    size_mb = (folder / queries.FILE).stat().st_size / 1_048_576
    if mode != "wal":
        patient.say(
            "journal",
            "warn",
            f"whole, but in mode {mode}",
            "the next run corrects it; the state directory must be on a local disk",
        )
    elif wal_mb > WAL_WARN_MB:
        patient.say(
            "journal",
            "warn",
            f"whole, {size_mb:.1f} MB and {wal_mb} MB of write-ahead log",
            "another program keeps it open: end that program, or restart the daemon",
        )
    else:
        patient.say("journal", "ok", f"whole, {size_mb:.1f} MB")


def _stored(patient: Patient) -> None:
    """The journal and the embedded service's database, if a later start of this version would refuse them."""
    from bot.checks.file_versions import journal_problem, service_problem
    from bot.errors import Exit

    settings, folder = patient.settings, patient.place.folder
    problem = journal_problem(folder / "journal.db")
    if problem is not None:
        patient.say("journal", "fail", problem, "run the newer version, or restore an older backup", int(Exit.CONFIG))
    if (
        settings is None
        or not settings.account.embedded
        or not _is_seen(folder)
        or not (folder / "sandbox.db").exists()
    ):
        return
    problem = service_problem(folder)
    if problem is None:
        patient.say("database", "ok", "this version can continue with the embedded service's database")
    else:
        message, _, way_out = problem.partition(". Run the version")
        patient.say("database", "fail", message, f"run the version{way_out}" if way_out else _DAMAGED, int(Exit.CONFIG))


_DAMAGED: Final = "restore a backup (bot restore), or move the file away: the next start begins a new account"
_ASK: Final = "run this as the user who runs the daemon, or as root (sudo)"
_OPEN: Final = (
    "the user who runs the daemon must be able to read and write it: chown or chmod it, or end the program that"
    " locks it"
)
_ANEW: Final = (
    "check the disk, then start the daemon: it keeps the damaged file under another name and rebuilds the journal from"
    " the service; no order is sent twice, because a repeated decision has the same key"
)


def _daemon(patient: Patient) -> None:
    from bot.cli.common.daemon_client import NotRunning
    from bot.runtime.journal.queries import Closed

    try:
        status = patient.place.ask("GET", "/status")
    except NotRunning:
        _dead(patient)
        return
    except Closed as error:
        patient.say("daemon", "fail", str(error), _ASK)
        return
    except BotError as error:
        patient.say("daemon", "fail", str(error), f"bot logs {patient.place.flag}", int(error.exit_code))
        return
    text = f"{status['state']} (pid {status['pid']}){': ' + status['why'] if status.get('why') else ''}"
    if not status.get("is_safe", True):
        # A daemon of an older version sends no list of reasons.
        why = status.get("unsafe") or [f"without a stop: {', '.join(status['unprotected'])}"]
        patient.say(
            "daemon",
            "fail",
            f"{text}; {'; '.join(why)}",
            "bot reconcile --apply, or bot kill --flatten",
            int(Exit.UNSAFE),
        )
    elif status["state"] == "DEGRADED":
        patient.say("daemon", "warn", text, "bot status says why; until then no entries are sent, exits continue")
    elif waiting := status.get("intents", {}).get("quarantined"):
        patient.say(
            "daemon",
            "warn",
            f"{text}; {many(waiting, 'intent')} {'waits' if waiting == 1 else 'wait'} for a person",
            "run bot explain for each (bot status lists them), check the account, then bot resume",
        )
    else:
        patient.say("daemon", "ok", text)


def _dead(patient: Patient) -> None:
    """A daemon that does not run, with what its journal says that it left open. Without a journal that is not known."""
    from bot.clock import SystemClock
    from bot.errors import JournalError
    from bot.runtime.journal import queries

    try:
        last = queries.last_state(patient.place.folder)
    except queries.NotFound:
        patient.say("daemon", "ok", "not running, and it has no journal")
        return
    except JournalError:
        known = "whether it left positions is not known, because its journal cannot be read"
        patient.say("daemon", "warn", f"not running; {known}", "look at the account at the service")
        return
    age = ago(SystemClock().now_ms() - last.written_ms)
    held = [f"{one['market']} {one['side']} {one['size']}" for one in last.positions]
    held += [f"{one['action']} {one['market']} ({one['state']})" for one in last.open_intents]
    if not held:
        patient.say("daemon", "ok", f"not running; its journal, written last {age}, has no open position")
        return
    text = f"not running; its journal, written last {age}, has {', '.join(held)}"
    patient.say("daemon", "warn", text, "start it: bot run, or close everything without it: bot kill --flatten")


def _heartbeat(patient: Patient) -> None:
    settings = patient.settings
    if settings is None:
        return
    dead_man = settings.dead_man
    if dead_man is None:
        patient.say(
            "dead-man",
            "warn",
            "off: if the daemon dies, nothing closes its positions",
            "dead_man: {heartbeat_seconds: 300, on_miss: flatten}",
        )
        return
    speed = patient.speed
    # The service did not answer. A hosted service's clock runs in real time.
    if speed is None:
        speed = settings.embedded.speed if settings.account.embedded else 1.0
    from bot.runtime.liveness.heartbeat_supervision import beat_timing_of

    try:
        lengths = beat_timing_of(settings, speed)
    except ConfigError as error:
        patient.say("dead-man", "fail", str(error), "set a larger dead_man.heartbeat_seconds", int(Exit.CONFIG))
        return
    if lengths is None:
        patient.say("dead-man", "ok", "sends heartbeats when the clock is advanced by hand")
        return
    patient.say(
        "dead-man",
        "ok",
        f"acts ({dead_man.on_miss}) after {lengths.deadline_ns / 1e9:g} s of real time without a heartbeat; the daemon"
        f" sends one every {lengths.period_ns / 1e9:g} s while it makes progress",
    )


def _notify(patient: Patient) -> None:
    """Check that apprise accepts each address for notices. Prints no address and sends nothing."""
    from pydantic import SecretStr

    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References
    from bot.runtime.alerts.notifier import AppriseTarget

    settings, config = patient.settings, patient.place.config
    if settings is None or settings.notify is None or _lacks_package(patient, settings, "notify"):
        return
    assert config is not None
    look = References(config.absolute().parent, os.environ)
    for index, reference in enumerate(plain_data(config)["notify"]["urls"]):
        try:
            target = AppriseTarget(SecretStr(look(reference, "urls")), index)
        except Rejected:
            patient.say("notify", "skip", f"{reference} cannot be read here, so its address was not checked")
        except ConfigError as error:
            fix = f"correct the address behind {reference}"
            patient.say("notify", "fail", str(error), fix, int(Exit.CONFIG))
        else:
            patient.say("notify", "ok", f"{reference} is a valid address ({target.name}); nothing was sent")


def _metrics(patient: Patient) -> None:
    from bot.runtime.control_plane.reporting import PORT_FILE

    section = None if patient.settings is None else patient.settings.metrics
    if section is None:
        return
    taken = None
    with contextlib.suppress(OSError, ValueError):
        taken = int((patient.place.folder / PORT_FILE).read_text(encoding="utf-8"))
    _port(patient, "metrics", section.port, taken if patient.place.is_running() else None, "/metrics")


def _dashboard(patient: Patient) -> None:
    section = None if patient.settings is None else patient.settings.dashboard
    if section is None:
        return
    from bot.dashboard.server import running_in

    running = running_in(patient.place.folder)
    _port(patient, "dashboard", section.port, None if running is None else running.port)


def _port(patient: Patient, section: str, port: int, taken: int | None, path: str = "") -> None:
    """Check that the port of a section is free, or in use by the daemon itself: `taken`."""
    from bot.runtime.control_plane.acceptor import HOST, loopback_listener

    assert patient.settings is not None
    if _lacks_package(patient, patient.settings, section):
        return
    if taken is not None and port in {0, taken}:
        patient.say(section, "ok", f"http://{HOST}:{taken}{path}, served by the running daemon to this machine only")
        return
    try:
        loopback_listener(port, f"{section}.port:").close()
    except ConfigError as error:
        patient.say(section, "fail", str(error), "set another port, or 0 for a free one", int(Exit.CONFIG))
        return
    patient.say(section, "ok", f"{f'port {port} is free' if port else 'a free port'} on {HOST}, for this machine only")


def _lacks_package(patient: Patient, settings: Settings, section: str) -> bool:
    from bot.checks.config_check import extra_of, missing_packages, needs_package
    from bot.extras import install

    name = dict(missing_packages(settings)).get(section)
    if name is not None:
        fix = install(extra_of(section))
        patient.say(section, "fail", f"{section}: {needs_package(section, name)}", fix, int(Exit.CONFIG))
    return name is not None


# -- the service


async def _service(patient: Patient) -> None:
    settings = patient.settings
    if settings is None:
        return
    from bot.client import Client
    from bot.client.http import Timeouts
    from bot.errors import ApiError

    found = await _address_and_key(patient, settings)
    if found is None:
        return
    base_url, api_key = found
    async with Client(base_url, api_key, timeouts=Timeouts(total=ASK_S)) as client:
        try:
            await _versions(patient, client, base_url)
        except ApiError as error:
            patient.say(
                "service",
                "fail",
                f"{base_url}: {error.message} ({error.code})",
                "check that the service runs and that account.base_url is right",
                int(Exit.TIMEOUT),
            )
            return
        patient.speed = client.clock.speed
        _skew(patient, client)
        if api_key is None:
            return
        try:
            await _key(patient, client, settings)
            await _keys_proven(patient, client, settings)
        except ApiError as error:
            patient.say(
                "key",
                "fail",
                f"{error.message} ({error.code})",
                "create a new key and store it where the config's account.api_key points",
                int(Exit.REFUSED),
            )


async def _address_and_key(patient: Patient, settings: Settings) -> tuple[str, str | None] | None:
    """The service's address, and the key if this user can read it.

    For an embedded service there is no key: a new one would replace the daemon's.
    """
    from bot.cli.common.daemon_client import is_closed
    from bot.cli.operate.credentials import key_of
    from bot.cli.run.embedded_service import Embedded

    if not settings.account.embedded:
        try:
            assert patient.place.config is not None
            return settings.account.base_url, key_of(patient.place.config)
        except ConfigError as error:
            patient.say("key", "skip", f"not checked: {error}")
            return settings.account.base_url, None
    if is_closed(patient.place.folder):
        patient.say("service", "skip", "embedded: this user may not see whether it runs")
        return None
    service = Embedded(patient.place.folder)
    base_url = service.base_url
    if not patient.place.folder.is_dir() or base_url is None or not service.is_alive():
        _at_rest(patient, service)
        return None
    return base_url, None


def _at_rest(patient: Patient, service: Embedded) -> None:
    """Check whether an embedded service that does not run could be started."""
    from bot.runtime.journal import queries

    try:
        service.check_name()
    except BotError as error:
        patient.say(
            "service", "fail", str(error), "set state_dir to a folder with a shorter path", int(error.exit_code)
        )
        return
    if queries.is_damaged(service.db):
        patient.say(
            "service",
            "fail",
            f"{service.db} is damaged",
            "restore a copy of it, or set another state_dir: the service starts a new database there",
            int(Exit.CONFIG),
        )
        return
    patient.say("service", "ok", "embedded: it starts with the daemon")


async def _versions(patient: Patient, client: Client, base_url: str) -> None:
    from bot.wire.headers import API_VERSION, LIMITS_VERSION

    status = await client.status()
    problems = []
    if status.api_version is not None and status.api_version != API_VERSION:
        problems.append(f"its API version is {status.api_version}, this client was made for {API_VERSION}")
    if status.limits_version is not None and status.limits_version != LIMITS_VERSION:
        problems.append(f"its limits version is {status.limits_version}, this client was made for {LIMITS_VERSION}")
    if status.api_version is None:
        problems.append("it does not report its API version")
    words = f"{base_url}: {status.status}, version {status.version or 'not reported'}"
    if problems:
        patient.say(
            "service",
            "warn",
            f"{words}; {'; '.join(problems)}",
            "read its changelog (GET /v1/changelog) and test on its sandbox first",
        )
    else:
        patient.say("service", "ok", f"{words}, API {status.api_version}, limits version {status.limits_version}")
    _prices(patient, status)


def _prices(patient: Patient, status: StatusResult) -> None:
    """Check the source of the service's prices, if the service names one."""
    from bot.clock import iso

    prices = status.prices
    if prices is None:
        return
    network = (
        "check the network of this machine and the status page of the exchange; the service connects again by itself"
    )
    if not prices.connected:
        patient.say(
            "prices",
            "warn",
            f"{prices.source} is not connected: {prices.trouble or 'it has sent no price yet'}",
            network,
        )
    closed = [one for one in prices.markets if not one.open]
    for one in closed:
        since = "" if one.since is None else f" since {iso(one.since)}"
        patient.say("prices", "warn", f"{one.coin} opens no position{since}: {one.reason}", network)
    apart_ms = abs(prices.clock_difference_ms or 0)
    if apart_ms > APART_MS:
        patient.say(
            "prices",
            "warn",
            f"the clocks of {prices.source} and of the service are {duration_ms(apart_ms)} apart",
            "set this machine's clock (timedatectl set-ntp true)",
        )
    if prices.connected and not closed:
        ages = [status.server_time - one.quoted_at for one in prices.markets if one.quoted_at and status.server_time]
        oldest = f", oldest price {duration_ms(max(ages))}" if ages else ""
        refused = sum(sum(one.refused.values()) for one in prices.markets)
        how = f" by {prices.transport}" if prices.transport else ""
        patient.say(
            "prices",
            "ok",
            f"{prices.source} is connected{how}: {many(len(prices.markets), 'market')}{oldest},"
            f" {many(refused, 'quote')} refused",
        )


def _skew(patient: Patient, client: Client) -> None:
    from bot.runtime.liveness.clock_watch import SKEW_STOP_MS, SKEW_WARN_MS

    skew = client.clock.skew_ms
    if skew is None:
        patient.say(
            "clock",
            "warn",
            "the service sends no Date header, so the clock difference cannot be measured",
            "keep this machine's clock correct (NTP)",
        )
        return
    text = f"this machine's clock and the service's are {duration_ms(abs(skew))} apart"
    if abs(skew) > SKEW_STOP_MS:
        patient.say(
            "clock",
            "fail",
            text,
            "set this machine's clock (timedatectl set-ntp true): bars and deadlines follow the service's clock",
        )
    elif abs(skew) > SKEW_WARN_MS:
        patient.say("clock", "warn", text, "set this machine's clock (timedatectl set-ntp true)")
    else:
        patient.say("clock", "ok", text)


async def _key(patient: Patient, client: Client, settings: Settings) -> None:
    limits = await client.limits()
    key = limits.key
    if key is None:
        patient.say(
            "key",
            "warn",
            "this is the token of a person's sign-in, not an API key",
            "create an API key for the daemon: a sign-in expires",
        )
        return
    for check in (_scopes, _caps):
        for level, message, fix in check(key, settings):
            patient.say("key", level, message, fix, int(Exit.REFUSED) if level == "fail" else 0)


def _scopes(key: Any, settings: Settings) -> Iterator[tuple[Level, str, str | None]]:
    has = set(key.scopes)
    events = sorted(coin for one in settings.strategies for coin in one.markets if coin.startswith("event:"))
    missing = [one for one in ("read", "trade") if one not in has]
    if events and "outcomes" not in has:
        missing.append("outcomes")
    if missing:
        yield (
            "fail",
            f"{key.id} lacks {', '.join(missing)} (it has {', '.join(key.scopes) or 'nothing'})",
            "create a key with these scopes",
        )
    else:
        yield "ok", f"{key.id} has the scopes {', '.join(key.scopes)}", None
    if key.expires_at is not None:
        from bot.clock import iso

        yield (
            "warn",
            f"it expires at {iso(key.expires_at)}; the daemon warns from 14 days before it on",
            "replace it before that: without it the daemon can neither open positions nor send heartbeats",
        )


def _caps(key: Any, settings: Settings) -> Iterator[tuple[Level, str, str | None]]:
    allowed = key.allowed_coins
    for one in settings.strategies:
        barred = [coin for coin in one.markets if allowed is not None and coin not in allowed]
        if barred:
            yield (
                "fail",
                f"{one.name} trades {', '.join(barred)}, which the key does not allow",
                "allow these coins on the key, or remove them from the config",
            )
        if key.max_leverage is not None and one.max_leverage > key.max_leverage:
            yield (
                "warn",
                f"{one.name} may use {one.max_leverage}x, the key {key.max_leverage}x",
                "lower max_leverage in the config",
            )
    budget = sum(one.budget_usd for one in settings.strategies)
    if key.max_exposure_usd is not None and budget > key.max_exposure_usd:
        yield (
            "warn",
            f"the strategies' budgets are {budget} USD, the key's exposure at most {key.max_exposure_usd}",
            "lower the budgets, or raise the cap",
        )


async def _keys_proven(patient: Patient, client: Client, settings: Settings) -> None:
    """Check whether past trades show the idempotency key of their order. Sends no order to find out."""
    page = await client.trades(limit=50)
    ours = [one for one in page.trades if one.source is not None]
    if any(one.idempotency_key for one in ours):
        patient.say("idempotency", "ok", "trades show their keys, which settle orders in doubt")
    elif not ours:
        patient.say(
            "idempotency",
            "ok",
            "no trade yet; until one shows its key, the single-use token of a plan settles orders in doubt",
        )
    elif settings.orders.path == "direct":
        patient.say(
            "idempotency",
            "warn",
            "trades show no keys, and orders.path is direct",
            "set orders.path to plan: the single-use token of a plan then settles orders in doubt",
        )
    else:
        patient.say(
            "idempotency",
            "ok",
            "trades show no keys; a plan's single-use token settles orders in doubt. Only the journal knows which"
            " trades are the daemon's: do not delete it",
        )


def _unit(patient: Patient) -> None:
    from bot.cli.operate.systemd_unit import installed, opening, unit_of

    settings, config = patient.settings, patient.place.config
    if settings is None or config is None:
        return
    path, made = installed(settings.name), f"bot systemd {quote(str(config))}"
    if path is None:
        patient.say("unit", "skip", f"no systemd unit is installed; {made} prints one")
        return
    user = "" if path.is_relative_to("/etc") else " --user"
    try:
        unit = unit_of(config, is_user=bool(user))
        same = path.read_text(encoding="utf-8") == unit.text
    except (BotError, OSError) as error:
        patient.say("unit", "warn", f"{path}: {error}", f"{made}{user}")
        return
    if unit.closed:
        named = ", ".join(map(str, unit.closed))
        patient.say("unit", "fail", f"{path}: its user cannot read {named}", opening(unit))
    elif same:
        patient.say("unit", "ok", f"{path} is up to date")
    else:
        patient.say(
            "unit",
            "warn",
            f"{path} differs from the unit that bot systemd would write now",
            f"{made}{user} shows it; --install --force writes it",
        )
