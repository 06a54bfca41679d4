"""`bot doctor`: checks everything that a run needs.

Prints one line for each check, and how to fix what fails. Changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from bot.cli.common.shared_options import json_option
from bot.cli.start.doctor_checks.findings import DoctorFinding, Facts
from bot.errors import ConfigError, Exit

EPILOG = """\b
Examples:
  bot doctor configs/paper.yaml
  bot doctor --json configs/paper.yaml

\b
Exit 0: no check failed; warnings are allowed. Otherwise the code of the first failure: 4 config, 5 no answer, 6
journal, 7 key, 1 any other.
"""


@click.command(epilog=EPILOG)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    metavar="DIR",
    help="State directory of the daemon, if there is no config.",
)
@json_option("The findings as one JSON object.")
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
        findings = list(_findings(Facts(place)))
    failed = next((finding for finding in findings if finding.level == "fail"), None)
    code = 0 if failed is None else failed.code or int(Exit.ERROR)
    if as_json:
        click.echo(
            json.dumps({"ok": failed is None, "exit_code": code, "findings": [asdict(finding) for finding in findings]})
        )
        return code
    for finding in findings:
        click.echo(f"{finding.level:<5} {finding.check:<11} {finding.message}")
        if finding.fix is not None:
            click.echo(f"{'':<17} -> {finding.fix}")
    return code


def _findings(facts: Facts) -> Iterator[DoctorFinding]:
    """What each check finds. `check_config` and `check_service` also fill in what later checks read."""
    from bot.cli.start.doctor_checks import config_checks, daemon_checks, service_checks, storage_checks
    from bot.client.names import run_unheld

    async def service_findings() -> list[DoctorFinding]:
        return [finding async for finding in service_checks.check_service(facts)]

    for check in (
        config_checks.check_config,
        config_checks.check_secrets,
        storage_checks.check_state_dir,
        storage_checks.check_disk,
        storage_checks.check_journal,
        storage_checks.check_databases,
        daemon_checks.check_daemon,
        daemon_checks.check_notices,
        daemon_checks.check_metrics,
        daemon_checks.check_dashboard,
    ):
        yield from check(facts)
    yield from run_unheld(service_findings())
    yield from daemon_checks.check_heartbeat(facts)
    yield from daemon_checks.check_unit(facts)
