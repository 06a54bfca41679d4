"""Config: a YAML file becomes frozen, checked `Settings`, or every problem at once with its line and column.

`document` reads YAML and knows where each value stands, `references` fetches secrets, `settings` is the schema,
`source` joins them, `diff` compares two configs, `param_values` changes params in a config's text, `state_folder` knows
a config's name and state directory. A name loads at its first use, because most commands need no schema. Start with
`settings.py`. Nothing here starts anything, and no message shows a secret. It may import `strategy` and `wire`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bot.errors import ConfigError, Problem

if TYPE_CHECKING:
    from bot.config.param_values import with_params
    from bot.config.settings import (
        AccountSettings,
        DashboardSettings,
        DeadManSettings,
        EmbeddedSettings,
        GuardianSettings,
        LogSettings,
        OrdersSettings,
        Recording,
        Safety,
        Settings,
        StrategySettings,
        heartbeat_seconds_min,
    )
    from bot.config.source import ConfigSource, json_schema, load, read, read_text, redacted

__all__ = [
    "load",
    "read",
    "read_text",
    "redacted",
    "with_params",
    "json_schema",
    "heartbeat_seconds_min",
    "Settings",
    "AccountSettings",
    "DashboardSettings",
    "DeadManSettings",
    "EmbeddedSettings",
    "GuardianSettings",
    "LogSettings",
    "OrdersSettings",
    "Recording",
    "Safety",
    "StrategySettings",
    "ConfigSource",
    "ConfigError",
    "Problem",
]

_OF_SOURCE = frozenset({"ConfigSource", "json_schema", "load", "read", "read_text", "redacted"})

# Only at run time, so that a type checker reports a wrong name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'bot.config' has no attribute {name!r}")
        module = "param_values" if name == "with_params" else "source" if name in _OF_SOURCE else "settings"
        value = getattr(import_module(f"bot.config.{module}"), name)
        globals()[name] = value
        return value
