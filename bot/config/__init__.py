"""Config: a YAML file becomes frozen, checked `Settings`, or every problem at once with its line and column.

`document` reads YAML and knows where each value stands, `references` fetches secrets, `settings` is the schema,
`source` joins them, `diff` compares two configs, `param_values` changes params in a config's text. Start with
`settings.py`. Nothing here starts anything, and no message shows a secret. It may import `strategy` and `wire`.
"""

from bot.config.param_values import with_params
from bot.config.settings import (
    Account,
    Dashboard,
    DeadMan,
    Embedded,
    GuardianSpec,
    LogSettings,
    Orders,
    Recording,
    Safety,
    Settings,
    StrategySettings,
    heartbeat_seconds_min,
)
from bot.config.source import Source, json_schema, load, read, read_text, redacted
from bot.errors import ConfigError, Problem

__all__ = [
    "load",
    "read",
    "read_text",
    "redacted",
    "with_params",
    "json_schema",
    "heartbeat_seconds_min",
    "Settings",
    "Account",
    "Dashboard",
    "DeadMan",
    "Embedded",
    "GuardianSpec",
    "LogSettings",
    "Orders",
    "Recording",
    "Safety",
    "StrategySettings",
    "Source",
    "ConfigError",
    "Problem",
]
