"""`bot pause`, `resume`, `reload`, `stop`, `reconcile`: commands to a running daemon, over its control socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.daemon_client import where
from bot.cli.common.shared_options import json_option, yes_option

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place

# the daemon ends within five seconds; a busy machine may need more
STOP_WITHIN_S: Final = 15.0
LOOK_S: Final = 0.1
# The last lines of the log: `daemon.stopped` is among them.
LAST_LINES: Final = 50

PAUSE = """\b
Examples:
  bot pause
  bot pause trend
"""
RESUME = """\b
Examples:
  bot resume
  bot resume trend

\b
Exit 4: STRATEGY does not load, or it failed again and is back in quarantine. 5: the service did not answer. 7: the
service refused.
"""
RELOAD = """\b
Examples:
  bot reload
  bot reload --yes

\b
Exit 4: the config cannot be applied. 5: the service did not answer. 7: the service refused a new guardian. In these
cases nothing changed.
Exit 4 also if the config was applied, but a new or changed strategy failed at once and is in quarantine.
"""
STOP = """\b
Example:
  bot stop --config configs/paper.yaml

\b
Exit 0: the daemon ended as asked. Otherwise the exit code of the run: 5, safety.on_exit could not be finished; 6, a
position has no stop.
"""
RECONCILE = """\b
Examples:
  bot reconcile
  bot reconcile --apply
"""


@click.command(epilog=PAUSE)
@click.argument("strategy", required=False)
@where
@json_option("The daemon's answer.")
def pause(strategy: str | None, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Stop new entries of STRATEGY, or of all. Exits, stops and guardians continue. `bot resume` ends the pause."""
    return _switch("/pause", strategy, config, state_dir, as_json=as_json)


@click.command(epilog=RESUME)
@click.argument("strategy", required=False)
@where
@json_option("The daemon's answer.")
def resume(strategy: str | None, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    """Allow entries again, of STRATEGY or of all.

    Without STRATEGY it also confirms that you have checked foreign activity on the account and the intents that wait
    for a person. The daemon then closes those intents.
    """
    return _switch("/resume", strategy, config, state_dir, as_json=as_json)


def _switch(path: str, strategy: str | None, config: Path | None, state_dir: Path | None, *, as_json: bool) -> int:
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit

    answer = find(config, state_dir).ask("POST", path, {} if strategy is None else {"strategy": strategy})
    if as_json:
        click.echo(json.dumps(answer))
    else:
        click.echo(f"{answer['state']}{': ' + answer['why'] if answer.get('why') else ''}")
        for row in answer["strategies"]:
            click.echo(f"  {row['name']:<20} {row['state']}{': ' + row['why'] if row['why'] else ''}")
        if answer.get("forgotten"):
            click.echo(f"NOT SAVED: {answer['forgotten']}")
        for checked in answer.get("looked_at", ()):
            click.echo(f"Confirmed as checked by you: {checked}")
        if answer.get("resting"):
            click.echo(f"Resting entries can still fill: {', '.join(answer['resting'])} (bot orders)")
    return int(Exit.DONE)


@click.command("reload", epilog=RELOAD)
@where
@yes_option()
@json_option("The changes as JSON. Never asks; changes nothing without --yes.")
def reload_config(config: Path | None, state_dir: Path | None, *, yes: bool, as_json: bool) -> int:
    """Reload the config and its strategies. Shows the changes first."""
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit
    from bot.logs import redact_text

    place = find(config, state_dir)
    preview = place.ask("GET", "/reload")
    changes = preview["changes"]
    if not as_json:
        click.echo("\n".join(changes) if changes else "nothing has changed")
    if not changes or (as_json and not yes) or not (yes or _agreed()):
        if as_json:
            click.echo(json.dumps(preview | {"applied": [], "refused": []}))
        return int(Exit.DONE)
    done = place.ask("POST", "/reload", {})
    if as_json:
        click.echo(json.dumps(done))
    else:
        for line in done["applied"]:
            click.echo(line)
    if done["refused"]:
        click.echo(f"error: {redact_text('; '.join(done['refused']))}", err=True)
        # A daemon of an older version sends no exit code.
        return int(done.get("exit_code", Exit.CONFIG))
    code = int(done.get("exit_code", Exit.DONE))
    if code:
        click.echo(
            "error: the config was applied, but a strategy is in quarantine and is not called: fix it, then bot reload",
            err=True,
        )
    return code


def _agreed() -> bool:
    try:
        return click.confirm("Apply these changes?")
    except click.Abort:
        click.echo()
        raise click.ClickException("no answer, so nothing was changed; bot reload --yes does not ask") from None


@click.command(epilog=STOP)
@where
@click.option("--force", is_flag=True, help="Stop it even if a service manager runs it and will start it again.")
@json_option("The result as JSON.")
def stop(config: Path | None, state_dir: Path | None, *, force: bool, as_json: bool) -> int:
    """End the daemon as SIGTERM does, and wait until it has ended. safety.on_exit decides what happens to orders and
    positions. An embedded service ends too.
    """
    from bot.cli.common.daemon_client import Denied, NotRunning, Silent, find

    place = find(config, state_dir)
    try:
        status = place.ask("GET", "/status")
    # The dashboard outlives a crash of the daemon; this command ends it.
    except NotRunning as error:
        raise NotRunning(f"{error}{_end_dashboard(place.folder)}") from None
    if status.get("managed_by") == "systemd" and not force:
        from bot.cli.operate.systemd_unit import stopping

        raise Denied(
            f"systemd runs this daemon and would start it again: use {stopping(status['name'])}, or bot stop --force"
        )
    answer = place.ask("POST", "/stop", {})
    if not _ends(place):
        raise Silent(
            f"the daemon (pid {status['pid']}) has not ended within {STOP_WITHIN_S:g} s; its log: bot logs {place.flag}"
        )
    code, message = _end_of(place.folder, answer["at_ms"])
    service = _left_service(place.folder)
    if as_json:
        result = {
            "stopped": True,
            "pid": status["pid"],
            "on_exit": answer["on_exit"],
            "exit_code": code,
            "message": message,
            "service_pid": service,
        }
        click.echo(json.dumps(result))
    else:
        click.echo(
            f"stopped (pid {status['pid']}, safety.on_exit: {answer['on_exit']}); its last log lines list what stays at"
            f" the service: bot logs {place.flag}"
        )
        if service is not None:
            click.echo(
                f"Its embedded service keeps running (pid {service}); to end it: bot services --stop {place.flag}"
            )
    if message:
        click.echo(f"error: {message}" if code else message, err=True)
    return code


def _end_dashboard(folder: Path) -> str:
    """End the dashboard that the dead daemon has left; what was done, as the end of a sentence."""
    from bot.cli.run.dashboard_process import end_left_dashboard
    from bot.dashboard.server import left_by_run

    if left_by_run(folder) is None:
        return ""
    return "; its dashboard was ended" if end_left_dashboard(folder) else "; its dashboard does not end"


def _end_of(folder: Path, since_ms: int) -> tuple[int, str | None]:
    """Exit code and message of the run that was stopped, from its log; 0 if the log has no such line."""
    from bot.runtime.control_plane.log_tail import FILE, last_lines

    for line in reversed(last_lines(folder / FILE, LAST_LINES)):
        if line.get("event") == "daemon.stopped" and line.get("at_ms", 0) >= since_ms:
            return int(line.get("exit_code") or 0), line.get("message")
    return 0, None


def _left_service(folder: Path) -> int | None:
    """The pid of the embedded service, if it still runs."""
    from bot.cli.run.embedded_service import Embedded

    service = Embedded(folder)
    return service.pid if (folder / "sandbox.lock").exists() and service.is_alive() else None


def _ends(place: Place) -> bool:
    import time

    from bot.clock import monotonic_ns

    end_ns = monotonic_ns() + int(STOP_WITHIN_S * 1e9)
    while place.is_running():
        if monotonic_ns() > end_ns:
            return False
        time.sleep(LOOK_S)
    return True


@click.command(epilog=RECONCILE)
@where
@click.option("--apply", "applies", is_flag=True, help="Repair the differences, as the daemon does every few minutes.")
@json_option("The differences as JSON.")
def reconcile(config: Path | None, state_dir: Path | None, *, applies: bool, as_json: bool) -> int:
    """Compare the daemon's record of the account with the service. Shows the differences; --apply repairs them."""
    from bot.cli.common.daemon_client import find
    from bot.errors import Exit

    answer: Any = find(config, state_dir).ask("POST" if applies else "GET", "/reconcile", {} if applies else None)
    if as_json:
        click.echo(json.dumps(answer))
        return int(Exit.DONE)
    for drift in answer["drifts"]:
        click.echo(f"{drift['kind']:<18} {drift['market'] or '':<8} {drift['message']}".rstrip())
    if not answer["drifts"]:
        click.echo("no difference")
    elif not applies:
        click.echo("Nothing was changed; bot reconcile --apply repairs the differences.")
    return int(Exit.DONE)
