"""The text of a config:

YAML 1.2 nodes, plain data from them, and where each value stands. It knows no key of the schema.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scanner import Scanner

from bot.errors import Problem
from bot.logs import SECRET_TEXT, is_secret_name, redact_text

Loc = tuple[str | int, ...]

# levels: more than any config has; stops an alias that contains itself
DEPTH_MAX: Final = 32
# nodes: far more than any config has; stops aliases that multiply
NODES_MAX: Final = 20_000

_TAG: Final = "tag:yaml.org,2002:"
# A word and the separator before its value, for a text that could not be parsed and for keys that swallowed their
# value.
_NAMED: Final = re.compile(r"""([\w-]+)["']?[ \t]*[:=]""")
_GLUED: Final = re.compile(r"([\w-]+)[:=](?=\S)")
_REFERENCE: Final = re.compile(r"\$\{(?:credential|file|env):[^{}\n]*\}")
_OTHER_VERSION: Final = re.compile(r"^%YAML[ \t]+(?!1\.2\b).*", re.MULTILINE)
# a part of the parser's problem or context -> a hint
_SYNTAX_HINTS: Final = {
    "alias": '; a text that begins with * needs quotes: cron: "* * * * *"',
    "'\\t' that cannot start": "; indent with blanks, not with tabs",
}
_DECIMAL: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_TAGS: Final = "tags (a word after an exclamation mark) are not read here"
_RESOLVER: Final = VersionedResolver(version=(1, 2))


class _BoundedScanner(Scanner):
    """A scanner that ends at too many open brackets: each costs time for all that are open, 40 s at 5,000."""

    def fetch_flow_collection_start(self, *args: Any, **named: Any) -> None:
        if len(self.flow_context) > DEPTH_MAX:
            raise RecursionError
        super().fetch_flow_collection_start(*args, **named)


class Rejected(ValueError):
    """A scalar that is not allowed at its place. The message says why and what to write."""


# (a scalar's text, the nearest key above it) -> its replacement; raises Rejected.
Lookup = Callable[[str, str], str]

# characters of a line that an error shows; a longer line is cut around the mistake
SHOWN_MAX: Final = 160
# The characters before the mistake.
SHOWN_BEFORE_MAX: Final = 60
CUT: Final = "..."


@dataclass(slots=True)
class Document:
    """A config's text read once: plain data, the place of each path, and the problems so far."""

    file: str
    text: str
    # where to get such a file, for an empty one
    hint: str = "bot init makes a project with a config"
    data: Any = None
    # problems without their lines: `shown` adds the lines once all secrets are known
    problems: list[Problem] = field(default_factory=list)
    _values: dict[Loc, StringMark] = field(default_factory=dict)
    _keys: dict[Loc, StringMark] = field(default_factory=dict)
    _ends: dict[Loc, int] = field(default_factory=dict)
    # start and end in the text: values that no message may show
    _hidden: list[tuple[int, int]] = field(default_factory=list)
    _nodes: int = 0

    def problem(self, loc: Loc, message: str, *, at_key: bool = False) -> Problem:
        """Add a problem at the value of a path, or at the nearest parent in the file.

        `at_key` points at the key instead.
        """
        here = loc
        while here not in self._values and here:
            here = here[:-1]
        mark = self._values.get(here)
        if at_key and here == loc:
            mark = self._keys.get(loc, mark)
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        return self._problem_at(line, column, path(loc), message)

    def is_empty(self, loc: Loc) -> bool:
        """True if the key has nothing after it. A written null is a value."""
        return loc in self._keys and self._values[loc] is self._keys[loc]

    def hide(self, loc: Loc) -> None:
        """Hide the value at a path in all messages, for example below a misspelt key."""
        if loc in self._ends:
            self._hidden.append((self._values[loc].index, self._ends[loc]))

    def shown(self, problem: Problem) -> Problem:
        """The problem with its line, every secret masked, and a caret under the column.

        A long line is cut to the part around the column.
        """
        line, column = problem.line - 1, problem.column - 1
        text = self.text
        for start, end in self._hidden:
            text = text[:start] + re.sub(r"\S", "*", text[start:end]) + text[end:]
        lines = SECRET_TEXT.sub(lambda match: "*" * len(match.group()), text).splitlines()
        shown = lines[line] if line < len(lines) else ""
        if not shown.strip():
            return problem
        before, after = shown[:column], shown[column:]
        # A whole config on one line would be repeated by each of its problems.
        if len(shown) > SHOWN_MAX:
            before = before if len(before) <= SHOWN_BEFORE_MAX else CUT + before[-SHOWN_BEFORE_MAX:]
            left = SHOWN_MAX - len(before)
            after = after if len(after) <= left else after[:left] + CUT
        return replace(problem, shown=f"    {before}{after}\n    {''.join(map(_blank, before))}^")

    def _problem_at(self, line: int, column: int, key: str, message: str) -> Problem:
        return Problem(self.file, line + 1, column + 1, redact_text(key), redact_text(message))

    def read(self, lookup: Lookup) -> None:
        """Fill `data`, or add the problem that prevents it."""
        if not self.text.strip():
            self.problems.append(self._problem_at(0, 0, "", f"the file is empty; {self.hint}"))
            return
        if other := _OTHER_VERSION.search(self.text):
            line = self.text.count("\n", 0, other.start())
            self.problems.append(self._problem_at(line, 0, "", "this is read as YAML 1.2; take the line out"))
            return
        yaml = YAML(typ="safe", pure=True)
        yaml.version = (1, 2)
        yaml.Scanner = _BoundedScanner
        try:
            root = yaml.compose(self.text)
        except MarkedYAMLError as error:
            self._syntax(error)
            return
        except ReaderError as error:
            before = self.text[: error.position]
            self.problems.append(
                self._problem_at(
                    before.count("\n"),
                    len(before) - before.rfind("\n") - 1,
                    "",
                    f"a character that YAML does not allow: U+{error.character:04X}",
                )
            )
            return
        except RecursionError:
            self.problems.append(self._problem_at(0, 0, "", "nested too deeply"))
            return
        except (YAMLError, ValueError) as error:
            self.problems.append(self._problem_at(0, 0, "", f"not YAML: {str(error).splitlines()[0]}"))
            return
        if root is None:
            self.problems.append(self._problem_at(0, 0, "", f"the file has only comments; {self.hint}"))
            return
        self._hide(root, "", 0)
        if not isinstance(root, MappingNode):
            self._values[()] = root.start_mark
            self.problems.append(
                self.problem((), "must be a mapping of sections, like `account: {base_url: embedded}`")
            )
            return
        self._nodes = 0
        self.data = self._value(root, (), "", lookup)

    def _syntax(self, error: MarkedYAMLError) -> None:
        self._hide_unparsed()
        mark = error.problem_mark or error.context_mark
        line, column, index = (mark.line, mark.column, mark.index) if mark is not None else (0, 0, 0)
        message = f"not YAML: {error.problem or error.context}"
        if any(start <= index < end for start, end in self._hidden):
            # The parser's message quotes the text.
            message = re.sub(r" '[^'<]{2,}'", "", message)
        said = f"{error.context} {error.problem}"
        message += next((hint for words, hint in _SYNTAX_HINTS.items() if words in said), "")
        lines = self.text.splitlines()
        if line < len(lines) and "${" in lines[line]:
            message += '; inside braces a ${...} needs quotes: {api_key: "${env:NAME}"}'
        self.problems.append(self._problem_at(line, column, "", message))

    def _hide_unparsed(self) -> None:
        """Hide the possible value of a secret's name: the rest of its line and the lines below it.

        A reference is not hidden.
        """
        for match in _NAMED.finditer(self.text):
            if not is_secret_name(match[1]):
                continue
            start = self.text.rfind("\n", 0, match.start()) + 1
            margin = len(self.text[start:]) - len(self.text[start:].lstrip(" \t"))
            # blank, deeper, or an item of a list
            below = rf"[ \t]*(?=\n)|[ \t]{{{margin}}}(?:[ \t]|- ).*"
            value = re.compile(rf".*(?:\n(?:{below}))*").match(self.text, match.end())
            assert value is not None
            at = match.end()
            for reference in _REFERENCE.finditer(self.text, at, value.end()):
                self._hidden.append((at, reference.start()))
                at = reference.end()
            self._hidden.append((at, value.end()))

    def _hide(self, node: Node, key: str, depth: int) -> None:
        """Find the values of secrets' names before any message is made."""
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            return
        if isinstance(node, MappingNode):
            for name, value in node.value:
                self._hide(value, str(name.value), depth + 1)
        elif isinstance(node, SequenceNode):
            for value in node.value:
                self._hide(value, key, depth + 1)
        elif is_secret_name(key) and "${" not in node.value:
            self._hidden.append((node.start_mark.index, node.end_mark.index))

    def _value(self, node: Node, loc: Loc, key: str, lookup: Lookup) -> Any:
        # A missing value has the place of its key.
        self._values.setdefault(loc, self._keys.get(loc, node.start_mark) if _is_unwritten(node) else node.start_mark)
        self._ends.setdefault(loc, int(node.end_mark.index))
        self._nodes += 1
        if len(loc) > DEPTH_MAX or self._nodes > NODES_MAX:
            if not any(problem.message.startswith("nested") for problem in self.problems):
                self.problems.append(self.problem(loc, "nested too deeply, or too large through aliases"))
            return None
        if isinstance(node, MappingNode | SequenceNode) and str(node.tag) not in (f"{_TAG}map", f"{_TAG}seq"):
            self.problems.append(self.problem(loc, _NO_TAGS))
            return MISSING
        if isinstance(node, MappingNode):
            return self._mapping(node, loc, lookup)
        if isinstance(node, SequenceNode):
            return [self._value(item, (*loc, index), key, lookup) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        try:
            return self._scalar(node, loc, key, lookup)
        except Rejected as error:
            self.problems.append(self.problem(loc, str(error)))
            return MISSING

    def _mapping(self, node: MappingNode, loc: Loc, lookup: Lookup) -> dict[str, Any]:
        parsed: dict[str, Any] = {}
        for name, value in node.value:
            if not isinstance(name, ScalarNode):
                self._values[(*loc, "?")] = name.start_mark
                self.problems.append(self.problem((*loc, "?"), "a key is a single word"))
                continue
            key = str(name.value)
            here = (*loc, key)
            if key == "<<":
                self._values[here] = name.start_mark
                self.problems.append(self.problem(here, "merge keys are not supported; write the keys out"))
                continue
            glued = _GLUED.match(key) if name.style is None else None
            if glued is not None and (is_secret_name(glued[1]) or _is_unwritten(value)):
                if is_secret_name(glued[1]):
                    after = name.start_mark.index + glued.end()
                    self._hidden.append((after, max(name.end_mark.index, value.end_mark.index)))
                self.problems.append(
                    self._problem_at(
                        name.start_mark.line,
                        name.start_mark.column,
                        path((*loc, glued[1])),
                        f"a key ends with a colon and a blank: write `{glued[1]}: ` before its value",
                    )
                )
                parsed.setdefault(glued[1], MISSING)
                continue
            if key in parsed:
                again = self._problem_at(
                    name.start_mark.line,
                    name.start_mark.column,
                    path(here),
                    f"duplicate key; it stands on line {self._keys[here].line + 1} already",
                )
                self.problems.append(again)
                continue
            self._keys[here] = name.start_mark
            parsed[key] = self._value(value, here, key, lookup)
        return parsed

    def _scalar(self, node: ScalarNode, loc: Loc, key: str, lookup: Lookup) -> Any:
        text = str(node.value)
        tag = str(node.tag)
        replaced = lookup(text, key) if "${" in text else text
        if replaced is not text:
            if is_secret_name(key):
                return replaced
            # The replacement of a reference is read as YAML: "8700" becomes a number.
            tag = str(_RESOLVER.resolve(ScalarNode, replaced, (True, False)))
        kind = tag.removeprefix(_TAG)
        if kind == "null":
            return None
        if kind == "bool":
            return replaced.lower() == "true"
        if kind == "int":
            return _integer(replaced)
        if kind == "float":
            return _number(replaced, exact="params" not in loc)
        if kind in ("str", "timestamp", "value"):
            return replaced
        raise Rejected(_NO_TAGS)


def _is_unwritten(node: Node) -> bool:
    """`key:` with nothing after it."""
    return isinstance(node, ScalarNode) and bool(node.start_mark.index == node.end_mark.index)


class _Missing:
    """Takes the place of a rejected value in `data`, so that the schema does not report the same place again."""

    def __repr__(self) -> str:
        return "[rejected]"


MISSING: Final = _Missing()


def path(loc: Loc) -> str:
    """`("strategies", 0, "markets")` -> `"strategies[0].markets"`."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _blank(letter: str) -> str:
    """The width of the character on a screen."""
    if letter == "\t":
        return letter
    if unicodedata.combining(letter):
        return ""
    return "  " if unicodedata.east_asian_width(letter) in "WF" else " "


def _integer(text: str) -> int:
    try:
        return int(text, 0) if text[:2].lower() in ("0x", "0o") else int(text.replace("_", ""))
    except ValueError:
        raise Rejected("this number cannot be read") from None


def _number(text: str, *, exact: bool) -> Decimal | float:
    """A YAML float as an exact Decimal, or as a float in a strategy's own params."""
    if _DECIMAL.fullmatch(text):
        return Decimal(text) if exact else float(text)
    raise Rejected("must be a finite number in digits")
