"""`bot telegram`: a process that answers Telegram chats about a running daemon, through its control socket."""

from __future__ import annotations

from pathlib import Path

import click

from bot.cli.operate.telegram_commands import NAMES

EPILOG = f"""\b
Example:
  bot telegram configs/live.yaml

\b
The config needs the section telegram, with a reference to the token and the ids of the chats that may control the
daemon:
  telegram: {{token: "${{credential:telegram-token}}", chats: [123456789]}}
A group needs `users` too: the ids of the persons whose commands count. Nobody else gets an answer; the log shows the
ids. Commands: {NAMES}. A kill must be confirmed by a code
within a minute, and works while the daemon is dead, as bot kill does. A message that is edited, forwarded, or older
than two minutes does nothing, and messages that were sent while this process did not run are dropped. Ctrl-C or SIGTERM
ends it; the daemon goes on.
Exit codes: 4, the config has no such section, or Telegram refuses the token; 5, Telegram cannot be reached, or
something else answers in its place; 7, Telegram refuses the bot, or gives its messages to another process or a webhook.
"""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
def telegram(config: Path) -> int:
    """Answer the Telegram chats of CONFIG: status, positions, pause, resume, approvals, and kill after a
    confirmation.
    """
    from importlib.util import find_spec

    from bot.checks.config_check import checked_without_secrets
    from bot.errors import ConfigError
    from bot.extras import install

    if find_spec("telegram") is None:
        raise ConfigError(f"bot telegram needs the package python-telegram-bot: {install('telegram')}")
    settings, _ = checked_without_secrets(config)
    if settings.telegram is None:
        raise ConfigError(f"{config}: telegram: is required; `bot telegram --help` shows the section")

    from bot import logs
    from bot.cli.common.daemon_client import find
    from bot.cli.operate.telegram_chats import serve

    logs.configure(pretty=None, level="info")
    serve(find(config, None, dead_too=True), _token(config), settings.telegram)
    return 0


def _token(config: Path) -> str:
    """The token behind the reference of the config. ConfigError if it cannot be read here."""
    import os

    from bot.cli.common.daemon_client import plain_data
    from bot.config.document import Rejected
    from bot.config.references import References
    from bot.errors import ConfigError

    reference = plain_data(config)["telegram"]["token"]
    try:
        return References(config.absolute().parent, os.environ)(reference, "token")
    except Rejected as error:
        raise ConfigError(f"{config}: telegram.token: {error}") from None
