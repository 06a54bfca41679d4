"""A config as YAML text, with secrets left as references."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bot.config import Settings


def as_yaml(settings: Settings) -> str:
    """A config's text, with every default filled in and every secret hidden; what has no secret is a config again."""
    import io

    from ruamel.yaml import YAML

    from bot.config import redacted

    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel's own way to keep our order
    yaml.dump(redacted(settings), text)
    return text.getvalue()
