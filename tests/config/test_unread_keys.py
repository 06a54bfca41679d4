"""A value that nobody reads is an error: every key of the config is read by the program, and a value that could not
count is refused.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from bot.checks.config_check import checked_config
from bot.config import protections
from bot.config import settings as module
from bot.errors import ConfigError

ROOT = Path(module.__file__).resolve().parents[2]
HEAD = "account: {base_url: embedded}\nstate_dir: state\n"
ONE = "strategies: [{name: s, use: 'trend:Trend', markets: [BTC], budget_usd: 500%s}]\n"


def sections(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Each key of a section and of the sections in it."""
    for name, field in model.model_fields.items():
        yield model, name
        for inner in models_in(field.annotation):
            yield from sections(inner)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, list, dict) or get_origin(annotation) is not None:
        for one in get_args(annotation):
            yield from models_in(one)


@cache
def reads() -> frozenset[str]:
    """Every attribute that the program reads anywhere."""
    found: set[str] = set()
    for file in sorted((ROOT / "bot").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return frozenset(found)


KEYS = sorted({(model.__name__, name) for model, name in sections(module.Settings)})


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_of_the_config_is_read(section: str, key: str) -> None:
    assert key in reads(), f"nobody reads {section}.{key}"


def test_the_walk_meets_every_section() -> None:
    known = {
        name
        for part in (module, protections)
        for name, one in vars(part).items()
        if isinstance(one, type) and issubclass(one, module.Section) and not one.__subclasses__()
    }
    assert {section for section, _ in KEYS} == known
    assert len(KEYS) > 60


NOTIFY = "notify: {urls: ['${env:NOTIFY}'], %s}\n"
UNREAD = {
    "a key of the embedded service": (
        "account: {base_url: embedded, api_key: '${env:NOTIFY}'}\nstate_dir: state\n" + ONE % "",
        "account.api_key: is read by nobody",
    ),
    "an approval above the budget": (
        HEAD + ONE % ", approve: {above_usd: 500}",
        "approve.above_usd: asks nobody: no entry is above budget_usd 500",
    ),
    "a text of a muted notice": (
        HEAD + ONE % "" + NOTIFY % "mute: [fill.exit], texts: {fill.exit: closed}",
        "notify.texts.fill.exit: is never sent, because mute",
    ),
    "a text below the level": (
        HEAD + ONE % "" + NOTIFY % "level: error, texts: {fill.exit: closed}",
        "notify.texts.fill.exit: is never sent: its level is info",
    ),
    "the embedded section at another service": (
        "account: {base_url: 'http://127.0.0.1:1', api_key: '${env:NOTIFY}'}\nstate_dir: state\nembedded: {seed: 2}\n"
        + ONE % "",
        "embedded: needs `base_url: embedded`",
    ),
    "prices at another service": (
        "account: {base_url: 'http://127.0.0.1:1', api_key: '${env:NOTIFY}', prices: {exchange: binance}}\nstate_dir:"
        " state\n" + ONE % "",
        "account.prices: needs `base_url: embedded`",
    ),
    "a param that the strategy does not have": (HEAD + ONE % ", params: {fast: 3}", "params.fast: unknown param"),
    "a field of another guardian": (
        HEAD
        + ONE % ""
        + "guardians: [{type: schedule, cron: '0 9 * * 1', action: flatten, max_loss_pct_from_day_start: 5}]\n",
        "max_loss_pct_from_day_start: does not belong to schedule",
    ),
    "a key twice": (HEAD + "state_dir: other\n" + ONE % "", "state_dir"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_value_that_could_not_count_is_refused(
    case: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY", "json://localhost/x")
    text, says = UNREAD[case]
    (tmp_path / "bot.yaml").write_text(f"strategies_dir: {repository / 'strategies'}\n{text}")
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        checked_config(tmp_path / "bot.yaml")
