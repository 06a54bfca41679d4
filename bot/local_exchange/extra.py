"""The check that the extra `exchange` is installed."""

from __future__ import annotations

from importlib.util import find_spec

from bot.errors import ConfigError
from bot.extras import install

MODULES = ("coincurve", "msgpack", "Crypto", "wsproto")


def need_extra() -> None:
    """ConfigError with the command to install what is missing."""
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the local exchange needs {', '.join(missing)}: {install('exchange')}")
