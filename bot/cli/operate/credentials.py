"""Finds the API key of a config without its daemon: for `bot kill` and `bot doctor`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any


def recorded_config(folder: Path) -> str | None:
    """The path of the config that the daemon was last started with, from its journal."""
    from bot.errors import BotError
    from bot.runtime.journal import queries
    from bot.runtime.strategy_host import fingerprints

    with contextlib.suppress(BotError), queries.opened(folder) as db:
        rows = queries.rows(db, "SELECT value FROM meta WHERE name=?", (fingerprints.NOTE,))
        return fingerprints.config_of(fingerprints.marks_in(rows[0]["value"] if rows else None))
    return None


def key_of(config: Path) -> str:
    """The API key that a config refers to. ConfigError if it cannot be read here; its message says what to do."""
    from bot.cli.common.daemon_client import plain_data

    section = plain_data(config).get("account")
    return key_of_reference(config, section.get("api_key") if isinstance(section, dict) else None)


def key_of_reference(config: Path, reference: Any) -> str:
    """The key behind a reference, resolved as `bot run` does.

    A unit's credential is read from the file that its unit names.
    """
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
    raise ConfigError(
        f"api_key: {why}. Name the file that holds the key (--key '${{file:PATH}}'), or run this as root (sudo)"
    )
