"""The generated reference pages have a line for everything that the code offers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

import bot
from bot.cli.app import bot as root
from bot.cli.docs import builder
from bot.config import json_schema
from bot.errors import CODES
from bot.runtime.alerts.messages import TEMPLATES
from bot.runtime.control_plane import metrics
from bot.testing.sandbox import Sandbox
from bot.wire.vocabulary import EVENT_SUBTYPES


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return builder.generated()


def part(page: str, title: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    assert f"# {title}\n" in page, title
    return re.split(r"^#+ ", page.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def every_command(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        child = click.Context(command, info_name=name, parent=context)
        yield child.command_path, command
        if isinstance(command, click.Group):
            yield from every_command(command, child)


def test_every_command_has_a_section_with_its_options(pages: dict[str, str]) -> None:
    commands = dict(every_command(root, click.Context(root, info_name="bot")))
    assert len(commands) > 30
    for path, command in commands.items():
        section = part(pages["commands"], path)
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                assert f"`{param.opts[-1]}" in section or f", {param.opts[-1]}" in section, f"{path} {param.opts}"


def test_every_config_key_has_a_row_with_its_default(pages: dict[str, str]) -> None:
    schema = json_schema()
    for title, table in {"Top level": schema, **schema["$defs"]}.items():
        rows = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.+?) \|", part(pages["config"], title), re.MULTILINE))
        assert list(rows) == list(table["properties"]), title
        for name in table.get("required", ()):
            assert rows[name] == "required", name


def test_every_name_of_the_strategy_page_has_its_text(pages: dict[str, str]) -> None:
    for name in bot.__all__:
        assert part(pages["strategy"], name).strip(), name
    for owner in (bot.Strategy, bot.View):
        for name, member in vars(owner).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert f"\n{name}" in part(pages["strategy"], f"{owner.__name__}.{name}"), name
    assert "`limit_px`" in part(pages["strategy"], "Open")


def test_every_route_of_a_running_service_has_a_section_and_every_body_its_fields(
    pages: dict[str, str], sandbox: Sandbox
) -> None:
    document: dict[str, Any] = sandbox.client().get("/openapi.json").json()
    headings = re.findall(r"^### `(.+)`$", pages["http-api"], re.MULTILINE)
    operations = {
        f"{method.upper()} {path}": one
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }
    assert sorted(headings) == sorted(operations)
    for heading, operation in operations.items():
        section = part(pages["http-api"], f"`{heading}`")
        assert operation["summary"] in section
        assert "- Response: " in section
    for name, schema in document["components"]["schemas"].items():
        rows = re.findall(r"^\| `(\w+)` \|", part(pages["http-bodies"], name.rstrip("_")), re.MULTILINE)
        assert rows == list(schema.get("properties", {})), name


def test_every_event_error_code_metric_and_notice_has_its_line(pages: dict[str, str]) -> None:
    for kind, subtypes in EVENT_SUBTYPES.items():
        section = part(pages["events"], kind)
        assert [one for one in subtypes if f"`{one}`" not in section] == []
    for code, row in CODES.items():
        assert row.status >= 400
        assert f"| {'yes' if row.retryable else 'no'} |" in part(pages["error-codes"], code)
    for name in metrics.METRICS:
        assert re.search(rf"^\| `bracketbot_{name}(_total)?` \|", pages["metrics"], re.MULTILINE), name
    for kind in TEMPLATES:
        assert f"\n| `{kind}` |" in pages["notices"], kind


def test_every_described_metric_is_one_that_the_port_offers() -> None:
    """A scrape looks its metrics up in METRICS, so it has no other; this is the other direction."""
    used = set(re.findall(r'_family\(\s*"?(\w+)"?[,)]', inspect.getsource(metrics)))
    made = {f"strategy_{name}" for name in metrics.PROFIT} | {"pass_seconds", metrics.ALARM_METRIC}
    made |= set(metrics.FIGURES)
    assert set(metrics.METRICS) == used - {"ALARM_METRIC", "name"} | made
