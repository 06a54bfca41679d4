"""Changes params and protections of strategies in a config's text, for `bot backtest --param`.

The changed text is a config like any other, with its comments.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from copy import deepcopy
from textwrap import indent
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from bot.config.document import SHOWN_MAX, Document
from bot.config.protections import PREFIX, put
from bot.errors import ConfigError


def with_params(text: str, values: Mapping[tuple[str, str], str]) -> str:
    """The text of a valid config with other values of params, by (strategy, param). A value is YAML, as after `param: `
    in the file. A param that begins with `protections.` is a key of that section.

    ConfigError if no strategy has the name, or if a value is no YAML or has a reference. Whether the strategy has the
    param is for the check of the new text.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    document = yaml.load(text)
    strategies = {entry.get("name"): entry for entry in document["strategies"]}
    for (name, param), value in values.items():
        if name not in strategies:
            raise ConfigError(
                f"--param {name}.{param}={value}: no strategy {name!r}; there are {', '.join(strategies)}"
            )
        strategy, read = strategies[name], _read(value, f"{name}.{param}={value}")
        read = _without_references(read, f"{name}.{param}")
        if param.startswith(PREFIX):
            strategy["protections"] = deepcopy(strategy.get("protections") or {})
            put(strategy["protections"], param.removeprefix(PREFIX).split("."), read)
            continue
        # A copy, because an alias may share the params with another strategy.
        strategy["params"] = deepcopy(strategy.get("params") or {})
        strategy["params"][param] = read
    changed = io.StringIO()
    yaml.dump(document, changed)
    return changed.getvalue()


def _without_references(value: Any, param: str) -> Any:
    """The value.

    ConfigError if a text in it has a reference: only the author of the config may read the environment and secrets.
    """
    if isinstance(value, str) and "${" in value:
        raise ConfigError(
            f"--param {param}: a value of a param takes no reference such as ${{env:NAME}}; write it into the config"
        )
    parts = (
        [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    )
    for part in parts:
        _without_references(part, param)
    return value


def _read(value: str, given: str) -> Any:
    # The document has the bounds of a config: brackets and aliases cost no time before they are refused.
    document = Document("--param", "value:\n" + indent(value, " "))
    document.read(lambda text, _key: text)
    if problem := next((fault.message for fault in document.problems if fault.message.startswith("nested")), None):
        raise ConfigError(f"--param {given[:SHOWN_MAX]}: the value is {problem}")
    try:
        return YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"--param {given[:SHOWN_MAX]}: the value is no YAML: {str(error).splitlines()[0]}") from None
