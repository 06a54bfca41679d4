"""Which key `bot kill` uses: the config's, or the one that the daemon noted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any


def _noted(folder: Path) -> str | None:
    """The config of the last start, as the journal has it."""
    from bot.errors import BotError
    from bot.runtime.journal import queries
    from bot.runtime.strategy_host import fingerprints

    with contextlib.suppress(BotError), queries.opened(folder) as db:
        found = queries.rows(db, "SELECT value FROM meta WHERE name=?", (fingerprints.NOTE,))
        return fingerprints.config_of(fingerprints.marks_in(found[0]["value"] if found else None))
    return None


def key_of(config: Path) -> str:
    """The key of a config, found as well as it can be from outside its daemon. ConfigError with the way out."""
    from bot.cli.operate.daemon_client import plain_data

    section = plain_data(config).get("account")
    return _key(config, section.get("api_key") if isinstance(section, dict) else None)


def _key(config: Path, reference: Any) -> str:
    """The key that a reference stands for, looked up as `bot run` does; a unit's credential is looked for where its unit file says."""
    from bot.cli.operate.systemd_unit import credential_file
    from bot.config.document import Rejected
    from bot.config.references import FORMS, References
    from bot.errors import ConfigError

    if not isinstance(reference, str):
        raise ConfigError(f"{config}: account.api_key is required; write {FORMS}")
    look = References(config.absolute().parent, os.environ)
    try:
        return look(reference, "api_key")
    except Rejected as error:
        why = str(error)
    name = reference.removeprefix("${credential:").removesuffix("}")
    file = credential_file(config, name) if reference == f"${{credential:{name}}}" else None
    if file is not None:
        try:
            return look(f"${{file:{file}}}", "api_key")
        except Rejected as error:
            why = str(error)
    raise ConfigError(f"api_key: {why}. Say where the key is: --key '${{file:PATH}}', or ask as root (sudo)")
