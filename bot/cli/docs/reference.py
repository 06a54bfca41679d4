"""Reference pages about the program as Markdown: commands, config keys, the strategy page, metrics.

Generated from the code, never stored.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

import bot
from bot.config import json_schema
from bot.errors import Exit
from bot.runtime.alerts.messages import LEVELS, TEMPLATES
from bot.runtime.control_plane.metrics import METRICS, PREFIX

Json = dict[str, Any]

EXITS: Final = {
    Exit.DONE: "done",
    Exit.ERROR: "an error, described in one line",
    Exit.USAGE: "wrong usage, or a named thing was not found",
    Exit.NOT_RUNNING: "the daemon is not running",
    Exit.CONFIG: "the config, a strategy or a candle file cannot be used",
    Exit.TIMEOUT: "the daemon, the service or a source of market data has not answered",
    Exit.UNSAFE: "a position without a stop, a missing dead-man switch, or a file that cannot be written",
    Exit.REFUSED: "refused by the service, or by a source of market data",
    Exit.STOPPED: "stopped by Ctrl-C before it was done",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. A cell keeps its Markdown; line breaks and bars are made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """`text` as a span of code, also if it has backticks."""
    shown = str(text)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


def commands_page() -> str:
    """Every command with its usage, arguments, options and examples."""
    from bot.cli.app import FAMILIES
    from bot.cli.app import bot as root

    parts = [
        "# Commands\n",
        (
            "Every command with its usage, options and examples, generated from the code. `bot COMMAND --help` prints"
            " the same.\n"
        ),
        table(["Exit code", "Meaning"], [[str(int(exit_code)), EXITS[exit_code]] for exit_code in Exit]),
    ]
    context = click.Context(root, info_name="bot")
    for family, commands in FAMILIES.items():
        parts.append(f"## {family}\n")
        for name in commands:
            command = root.get_command(context, name)
            assert command is not None
            parts += _command(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"### {context.command_path}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield _plain(command.help or command.short_help or "") + "\n"
    records = [param.get_help_record(context) for param in command.get_params(context)]
    # the usage line shows the arguments
    options = [row for row in records if row is not None and row[1]]
    if options:
        yield table(["Option", "Meaning"], [[code(flags), _escaped(text)] for flags, text in options])
    if command.epilog:
        yield f"```text\n{inspect.cleandoc(command.epilog).replace(chr(8), '').strip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(child, click.Context(child, info_name=name, parent=context))


def _plain(help_text: str) -> str:
    """The text of a help page as Markdown: click's mark for text that keeps its lines becomes a block of code."""
    paragraphs = inspect.cleandoc(help_text).split("\n\n")
    return "\n\n".join(
        f"```text\n{paragraph.lstrip(chr(8)).strip()}\n```" if paragraph.startswith("\b") else _escaped(paragraph)
        for paragraph in paragraphs
    )


def _escaped(text: str) -> str:
    """Text whose angle brackets and asterisks, outside code, do not become markup."""
    parts = text.split("`")
    return "`".join(re.sub(r"([<>*\[\]])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts))


# ── Config ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def config_page() -> str:
    """Every table of the config with its keys, as the JSON Schema has them."""
    schema = json_schema()
    parts = [
        "# Config keys\n",
        (
            "Every key with its type, default and bounds, generated from the schema that checks a config. `bot config"
            " schema` prints it for your editor. [Configuration](../configuration.md) says how the keys work"
            " together.\n"
        ),
        f"## Top level\n\n{_keys(schema, schema['$defs'])}",
    ]
    for name, part in schema["$defs"].items():
        parts.append(f"## {name}\n\n{_escaped(part.get('description', ''))}\n\n{_keys(part, schema['$defs'])}")
    return "\n".join(parts)


def _keys(schema: Json, tables: Json) -> str:
    required = schema.get("required", ())
    rows = [
        [
            code(name),
            kind_of(part),
            "required" if name in required else _default(part),
            limits_of(part),
            _meaning(part, tables),
        ]
        for name, part in schema["properties"].items()
    ]
    return table(["Key", "Type", "Default", "Bounds", "Meaning"], rows)


def _meaning(part: Json, tables: Json) -> str:
    """The key's own description, or that of the table that it holds."""
    names = re.findall(r"#/\$defs/(\w+)", json.dumps(part))
    texts = [part.get("description"), *(tables[name].get("description") for name in names)]
    return _escaped(next((text for text in texts if text), ""))


def _default(part: Json) -> str:
    value = part.get("default")
    if isinstance(value, dict) and value:
        return "its defaults"
    return "none" if value is None else code(json.dumps(value))


def kind_of(schema: Json, link: str = "#") -> str:
    """The type of a JSON Schema in words. A body is a link: `link` and its name in lower case."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1].rstrip("_")
        return f"[{name}]({link}{name.lower()})"
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(kind_of(option, link) for option in schema[many]))
    if "enum" in schema:
        return " ".join(code(word if isinstance(word, str) else json.dumps(word)) for word in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"list of {kind_of(schema['items'], link)}"
    return str(kind)


def limits_of(schema: Json) -> str:
    """The bounds of a JSON Schema in words."""
    limits: list[str] = []
    for part in [schema, *schema.get("anyOf", ())]:
        for key, words in (
            ("minimum", "at least {}"),
            ("exclusiveMinimum", "above {}"),
            ("maximum", "at most {}"),
            ("exclusiveMaximum", "below {}"),
            ("minLength", "at least {} characters"),
            ("maxLength", "at most {} characters"),
            ("minItems", "at least {} entries"),
            ("maxItems", "at most {} entries"),
            ("maxProperties", "at most {} entries"),
        ):
            if key in part:
                limits.append(words.format(f"{part[key]:,}" if isinstance(part[key], int) else part[key]))
        if "pattern" in part:
            limits.append(code(part["pattern"]))
    return "; ".join(limits)


# ── The strategy page ───────────────────────────────────────────────────────────────────────────────────────────────


def strategy_page() -> str:
    """Every name that `from bot import ...` offers, with its signature, fields, methods and docstrings."""
    parts = [
        "# The strategy page\n",
        (
            "Every name that an author of strategies may import, generated from the docstrings. `from bot import"
            " Strategy, Open, Bracket` imports any of these names. [Strategies](../strategies.md) explains the rules.\n"
        ),
    ]
    for name in bot.__all__:
        parts += _name(name, getattr(bot, name))
    return "\n".join(parts)


def _name(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if name == "Intent":
        yield "What a hook yields: " + ", ".join(code(intent.__name__) for intent in value.__args__) + ".\n"
        return
    if name == "Field":
        yield "Pydantic's `Field`: the default of a param and its bounds, such as `Field(20, ge=2, le=500)`.\n"
        return
    if inspect.isfunction(value):
        yield f"```text\n{name}{_signature(value)}\n```\n\n{_doc(value)}\n"
        return
    yield _doc(value) + "\n"
    fields = inspect.get_annotations(value)
    if fields and not issubclass(value, bot.Strategy):
        defaults = {key: parameter.default for key, parameter in inspect.signature(value).parameters.items()}
        rows = [
            [code(key), code(kind), _shown(defaults.get(key))] for key, kind in fields.items() if key != "model_config"
        ]
        yield table(["Field", "Type", "Default"], rows) if rows else ""
    for key, member in vars(value).items():
        if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield from _member(name, key, member)


def _member(owner: str, name: str, member: Any) -> Iterator[str]:
    # The others are values: their fields are all that an author uses.
    if owner not in ("Strategy", "View"):
        return
    yield f"### {owner}.{name}\n"
    if isinstance(member, property):
        # Our properties have a getter.
        yield f"```text\n{name}: {inspect.get_annotations(member.fget)['return']}\n```\n"  # type: ignore[arg-type]
    else:
        yield f"```text\n{name}{_signature(member)}\n```\n"
    yield _doc(member) + "\n"


def _signature(function: Any) -> str:
    return re.sub(r"\(self,? ?", "(", str(inspect.signature(function)).replace("'", ""))


def _shown(default: Any) -> str:
    return "required" if default is inspect.Parameter.empty else code(default)


def _doc(value: Any) -> str:
    """A docstring as Markdown. Paragraphs that are indented or in columns keep their lines."""
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    is_code = any(line.startswith("    ") for line in text.splitlines()) or re.search(
        r"^\S+(, \S+)* {3,}\S", text, re.MULTILINE
    )
    starts = re.match(r"(class \w+|\w+ = \{)", text)
    return f"```text\n{textwrap.dedent(text)}\n```" if is_code or starts else _escaped(text)


# ── Metrics and notices ─────────────────────────────────────────────────────────────────────────────────────────────


def metrics_page() -> str:
    """Every metric of the port for Prometheus."""
    rows = [
        [
            code(f"{PREFIX}_{name}{'_total' if metric.kind == 'counter' else ''}"),
            metric.kind,
            ", ".join(map(code, metric.labels)),
            metric.text,
        ]
        for name, metric in METRICS.items()
    ]
    return (
        "# Metrics\n\nEvery metric of the port for Prometheus, generated from the code. The section"
        " [`metrics`](../configuration.md#metrics) of a config opens the port. The daemon reads its figures at each"
        " scrape. Beside these metrics the port has those of the process: `process_*` and `python_gc_*`.\n\n"
        + table(["Name", "Type", "Labels", "Meaning"], rows)
    )


def notices_page() -> str:
    """Every kind of notice with its level and words."""
    rows = [
        [code(kind), template.level, code(template.title), code(template.text)] for kind, template in TEMPLATES.items()
    ]
    return (
        "# Notices\n\nEvery kind of notice with its level and text, generated from the code. `notify.mute` takes these"
        " kinds, `notify.texts` your own text for a kind, and `notify.level` the lowest level: "
        + ", ".join(map(code, LEVELS))
        + ". [Get notices](../guides/notifications.md) says how to set them up.\n\n"
        + table(["Kind", "Level", "Title", "Text"], rows)
    )
