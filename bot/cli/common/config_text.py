"""A config as YAML text, with secrets left as references."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bot.config import Settings


def as_yaml(settings: Settings) -> str:
    """A config as YAML, with defaults filled in and secrets hidden.

    If the config has no secret, the text is a valid config.
    """
    import io

    from ruamel.yaml import YAML

    from bot.config import redacted

    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # keeps the order of the keys
    yaml.dump(redacted(settings), text)
    return text.getvalue()
