"""The config of a daemon and its secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from bot.cli.start.doctor_checks.findings import DoctorFinding, Facts
from bot.errors import ConfigError, Exit

if TYPE_CHECKING:
    pass


def check_config(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.checks.config_check import checked_without_secrets

    path = facts.place.config
    if path is None:
        yield DoctorFinding(
            "config", "skip", "none given: bot doctor CONFIG also checks the config, its secrets and its service"
        )
        return
    try:
        facts.settings, facts.references = checked_without_secrets(path)
    except ConfigError as error:
        yield DoctorFinding(
            "config", "fail", str(error), f"change it, then bot check {quote(str(path))}", int(Exit.CONFIG)
        )
        return
    names = ", ".join(configured.name for configured in facts.settings.strategies)
    yield DoctorFinding("config", "ok", f"{path}: {names}")
    from bot.runtime.strategy_host import loader

    for strategy in facts.settings.strategies:
        for warning in loader.load(strategy.use, facts.settings.strategies_dir).warnings:
            yield DoctorFinding(
                "strategies",
                "warn",
                f"{strategy.name}: {warning}",
                "other users must not be able to change a strategy: chmod go-w",
            )


def check_secrets(facts: Facts) -> Iterator[DoctorFinding]:
    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References

    if not facts.references:
        return
    assert facts.place.config is not None
    api_key = plain_data(facts.place.config)["account"].get("api_key")
    for kind, name in facts.references:
        what = f"${{{kind}:{name}}}"
        if kind == "credential" and not os.environ.get("CREDENTIALS_DIRECTORY"):
            yield from _credential(facts, name)
            continue
        try:
            look = References(facts.place.config.absolute().parent, os.environ)
            look(what, "api_key" if what == api_key else "secret")
        except Rejected as error:
            yield DoctorFinding(
                "secrets", "fail", str(error), "put the secret there, or correct the reference", int(Exit.CONFIG)
            )
            continue
        if kind == "env":
            yield DoctorFinding(
                "secrets",
                "warn",
                f"{what}: each of your processes can read the environment",
                "use a file that only you can read: ${file:PATH}, or ${credential:NAME}",
            )
        else:
            yield DoctorFinding("secrets", "ok", f"{what} exists, and only its owner can read it")


def _credential(facts: Facts, name: str) -> Iterator[DoctorFinding]:
    """Check the file that the systemd unit reads a credential from. Only the unit gets its content."""
    from bot.cli.operate.systemd_unit import credential_file

    assert facts.place.config is not None
    file = credential_file(facts.place.config, name)
    if file is None:
        yield DoctorFinding(
            "secrets",
            "warn",
            f"a systemd unit provides the credential {name}, and none is installed",
            f"bot systemd {quote(str(facts.place.config))} --install",
        )
        return
    try:
        mode = file.stat().st_mode
    except PermissionError:
        yield DoctorFinding("secrets", "skip", f"the credential {name} comes from {file}, which you may not read")
    except OSError:
        yield DoctorFinding(
            "secrets",
            "fail",
            f"the unit reads the credential {name} from {file}, which does not exist",
            f"install -D -m 600 /dev/stdin {quote(str(file))}",
        )
    else:
        if stat.S_IMODE(mode) & 0o077:
            yield DoctorFinding(
                "secrets",
                "fail",
                f"other users can read {file} (mode {stat.S_IMODE(mode):04o})",
                f"chmod 600 {quote(str(file))}",
            )
        else:
            yield DoctorFinding(
                "secrets", "ok", f"the credential {name} comes from {file}, which only its owner can read"
            )
