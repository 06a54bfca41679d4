"""The text of a listing file, extended without a change of its other lines: comments and numbers stay as written."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from bot.checks.listing_file import LISTINGS_MAX, read_listing_file
from bot.errors import BotError, ConfigError
from bot.files import replacing as written_beside

HEAD = "# Markets besides the shipped ones: bot docs, page Markets. Check with: bot markets check\n"


class _TextResolver(VersionedResolver):
    """Every scalar is the text that stands there, so that 0.00000001 stays as it was written."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        return self.DEFAULT_SCALAR_TAG if kind is ScalarNode else super().resolve(kind, value, implicit)


class ListingText:
    """The content of a file as nested texts."""

    def __init__(self, content: CommentedMap, head: str) -> None:
        self._content, self._head = content, head

    @classmethod
    def of(cls, text: str | None) -> Self:
        """From the text of a file that was checked; None: a new file."""
        if text is None:
            return cls(CommentedMap(markets=CommentedMap()), HEAD)
        return cls(_yaml().load(text), "")

    def put(self, section: str, name: str, values: Mapping[str, Any]) -> None:
        """Set one entry of a section."""
        self._content.setdefault(section, CommentedMap())[name] = CommentedMap(values)

    def add(self, markets: Mapping[str, Mapping[str, Any]], *, replacing: bool, is_asked: bool) -> list[str]:
        """Add markets. One that is there already stays, and is refused if it `is_asked` for without `replacing`."""
        held = self._content["markets"]
        there = [coin for coin in markets if coin in held]
        if there and is_asked and not replacing:
            raise ConfigError(f"the file lists {', '.join(there)} already; --replace replaces it")
        added = [coin for coin in markets if replacing or coin not in held]
        if len(held) + len(set(added) - set(held)) > LISTINGS_MAX:
            raise ConfigError(
                f"a listing file has at most {LISTINGS_MAX} markets, and this would make"
                f" {len(held) + len(set(added) - set(held))}; name the symbols that you need"
            )
        for coin in added:
            self.put("markets", coin, markets[coin])
        return added

    def write(self, path: Path) -> None:
        """Check the new text, and let it take the place of the file."""
        stream = io.StringIO()
        _yaml().dump(self._content, stream)
        text = self._head + stream.getvalue()
        read_listing_file(path, text)
        try:
            with written_beside(path, mode=0o644) as file:
                file.write(text.encode())
        except OSError as error:
            raise BotError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from None


def quoted(text: str) -> Any:
    """A text that might be read as a number, as ruamel.yaml writes it in quotes."""
    return DoubleQuotedScalarString(text)


def _yaml() -> YAML:
    yaml = YAML()
    yaml.Resolver = _TextResolver
    yaml.preserve_quotes = True
    yaml.width = 4_096
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml
