"""A running or ended daemon: its state, heartbeat, notices, ports and systemd unit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from bot.cli.start.doctor_checks.findings import ASK, DoctorFinding, Facts
from bot.errors import BotError, ConfigError, Exit
from bot.number_text import ago
from bot.words import many

if TYPE_CHECKING:
    pass


def check_daemon(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.cli.common.daemon_client import NotRunning
    from bot.runtime.journal.queries import Closed

    try:
        status = facts.place.ask("GET", "/status")
    except NotRunning:
        yield from _dead(facts)
        return
    except Closed as error:
        yield DoctorFinding("daemon", "fail", str(error), ASK)
        return
    except BotError as error:
        yield DoctorFinding("daemon", "fail", str(error), f"bot logs {facts.place.flag}", int(error.exit_code))
        return
    text = f"{status['state']} (pid {status['pid']}){': ' + status['why'] if status.get('why') else ''}"
    if not status.get("is_safe", True):
        # A daemon of an older version sends no list of reasons.
        why = status.get("unsafe") or [f"without a stop: {', '.join(status['unprotected'])}"]
        yield DoctorFinding(
            "daemon",
            "fail",
            f"{text}; {'; '.join(why)}",
            "bot reconcile --apply, or bot kill --flatten",
            int(Exit.UNSAFE),
        )
    elif status["state"] == "DEGRADED":
        yield DoctorFinding(
            "daemon", "warn", text, "bot status says why; until then no entries are sent, exits continue"
        )
    elif waiting := status.get("intents", {}).get("quarantined"):
        yield DoctorFinding(
            "daemon",
            "warn",
            f"{text}; {many(waiting, 'intent')} {'waits' if waiting == 1 else 'wait'} for a person",
            "run bot explain for each (bot status lists them), check the account, then bot resume",
        )
    else:
        yield DoctorFinding("daemon", "ok", text)


def _dead(facts: Facts) -> Iterator[DoctorFinding]:
    """A daemon that does not run, with what its journal says that it left open. Without a journal that is not known."""
    from bot.clock import SystemClock
    from bot.errors import JournalError
    from bot.runtime.journal import queries

    try:
        last = queries.last_state(facts.place.folder)
    except queries.NotFound:
        yield DoctorFinding("daemon", "ok", "not running, and it has no journal")
        return
    except JournalError:
        known = "whether it left positions is not known, because its journal cannot be read"
        yield DoctorFinding("daemon", "warn", f"not running; {known}", "look at the account at the service")
        return
    age = ago(SystemClock().now_ms() - last.written_ms)
    held = [f"{position['market']} {position['side']} {position['size']}" for position in last.positions]
    held += [f"{intent['action']} {intent['market']} ({intent['state']})" for intent in last.open_intents]
    if not held:
        yield DoctorFinding("daemon", "ok", f"not running; its journal, written last {age}, has no open position")
        return
    text = f"not running; its journal, written last {age}, has {', '.join(held)}"
    yield DoctorFinding("daemon", "warn", text, "start it: bot run, or close everything without it: bot kill --flatten")


def check_heartbeat(facts: Facts) -> Iterator[DoctorFinding]:
    settings = facts.settings
    if settings is None:
        return
    dead_man = settings.dead_man
    if dead_man is None:
        yield DoctorFinding(
            "dead-man",
            "warn",
            "off: if the daemon dies, nothing closes its positions",
            "dead_man: {heartbeat_seconds: 300, on_miss: flatten}",
        )
        return
    speed = facts.speed
    # The service did not answer. A hosted service's clock runs in real time.
    if speed is None:
        speed = settings.embedded.speed if settings.account.embedded else 1.0
    from bot.runtime.liveness.heartbeat_supervision import beat_timing_of

    try:
        lengths = beat_timing_of(settings, speed)
    except ConfigError as error:
        yield DoctorFinding("dead-man", "fail", str(error), "set a larger dead_man.heartbeat_seconds", int(Exit.CONFIG))
        return
    if lengths is None:
        yield DoctorFinding("dead-man", "ok", "sends heartbeats when the clock is advanced by hand")
        return
    yield DoctorFinding(
        "dead-man",
        "ok",
        f"acts ({dead_man.on_miss}) after {lengths.deadline_ns / 1e9:g} s of real time without a heartbeat; the daemon"
        f" sends one every {lengths.period_ns / 1e9:g} s while it makes progress",
    )


def check_notices(facts: Facts) -> Iterator[DoctorFinding]:
    """Check that apprise accepts each address for notices. Prints no address and sends nothing."""
    from pydantic import SecretStr

    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References
    from bot.runtime.alerts.notifier import AppriseTarget

    settings, config = facts.settings, facts.place.config
    if settings is None or settings.notify is None:
        return
    missing = _missing_package(facts, "notify")
    if missing is not None:
        yield missing
        return
    assert config is not None
    look = References(config.absolute().parent, os.environ)
    for index, reference in enumerate(plain_data(config)["notify"]["urls"]):
        try:
            target = AppriseTarget(SecretStr(look(reference, "urls")), index)
        except Rejected:
            yield DoctorFinding("notify", "skip", f"{reference} cannot be read here, so its address was not checked")
        except ConfigError as error:
            fix = f"correct the address behind {reference}"
            yield DoctorFinding("notify", "fail", str(error), fix, int(Exit.CONFIG))
        else:
            yield DoctorFinding("notify", "ok", f"{reference} is a valid address ({target.name}); nothing was sent")


def check_metrics(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.runtime.control_plane.reporting import PORT_FILE

    section = None if facts.settings is None else facts.settings.metrics
    if section is None:
        return
    taken = None
    with contextlib.suppress(OSError, ValueError):
        taken = int((facts.place.folder / PORT_FILE).read_text(encoding="utf-8"))
    yield from _port(facts, "metrics", section.port, taken if facts.place.is_running() else None, "/metrics")


def check_dashboard(facts: Facts) -> Iterator[DoctorFinding]:
    section = None if facts.settings is None else facts.settings.dashboard
    if section is None:
        return
    from bot.dashboard.server import running_in

    running = running_in(facts.place.folder)
    yield from _port(facts, "dashboard", section.port, None if running is None else running.port)


def _port(facts: Facts, section: str, port: int, taken: int | None, path: str = "") -> Iterator[DoctorFinding]:
    """Check that the port of a section is free, or is `taken`, the port that the daemon itself uses."""
    from bot.runtime.control_plane.acceptor import HOST, loopback_listener

    assert facts.settings is not None
    missing = _missing_package(facts, section)
    if missing is not None:
        yield missing
        return
    if taken is not None and port in {0, taken}:
        yield DoctorFinding(
            section, "ok", f"http://{HOST}:{taken}{path}, served by the running daemon to this machine only"
        )
        return
    try:
        loopback_listener(port, f"{section}.port:").close()
    except ConfigError as error:
        yield DoctorFinding(section, "fail", str(error), "set another port, or 0 for a free one", int(Exit.CONFIG))
        return
    yield DoctorFinding(
        section, "ok", f"{f'port {port} is free' if port else 'a free port'} on {HOST}, for this machine only"
    )


def _missing_package(facts: Facts, section: str) -> DoctorFinding | None:
    """The failure of a section whose optional package is not installed."""
    from bot.checks.config_check import extra_of, missing_packages, needs_package
    from bot.extras import install

    assert facts.settings is not None
    name = dict(missing_packages(facts.settings)).get(section)
    if name is None:
        return None
    message = f"{section}: {needs_package(section, name)}"
    return DoctorFinding(section, "fail", message, install(extra_of(section)), int(Exit.CONFIG))


def check_unit(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.cli.operate.systemd_unit import installed, opening, unit_of
    from bot.operating_system import IS_LINUX

    settings, config = facts.settings, facts.place.config
    if settings is None or config is None:
        return
    path, command = installed(settings.name), f"bot systemd {quote(str(config))}"
    if path is None:
        manager = "systemd" if IS_LINUX else "launchd"
        command = f"bot {manager} {quote(str(config))} prints one"
        yield DoctorFinding("unit", "skip", f"no {manager} unit is installed; {command}" if IS_LINUX else command)
        return
    user = "" if path.is_relative_to("/etc") else " --user"
    try:
        unit = unit_of(config, is_user=bool(user))
        same = path.read_text(encoding="utf-8") == unit.text
    except (BotError, OSError) as error:
        yield DoctorFinding("unit", "warn", f"{path}: {error}", f"{command}{user}")
        return
    if unit.closed:
        named = ", ".join(map(str, unit.closed))
        yield DoctorFinding("unit", "fail", f"{path}: its user cannot read {named}", opening(unit))
    elif same:
        yield DoctorFinding("unit", "ok", f"{path} is up to date")
    else:
        yield DoctorFinding(
            "unit",
            "warn",
            f"{path} differs from the unit that bot systemd would write now",
            f"{command}{user} shows it; --install --force writes it",
        )
