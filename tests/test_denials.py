"""The documentation denies nothing that the program offers: each "there is no" is held against every command, option
and strategy word.

A denial is a sentence of docs or README that says that something is not there, a cell "none" of a table of
counterparts, or a sentence of a section "What is not there". It may not name a command, an option, or the word that
other frameworks use for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

import bot.strategy as authors_names
from bot.cli.app import bot as program
from tests.documents import DOCS, README, ROOT

FILES = [README, ROOT / "AGENTS.md", *sorted(DOCS.rglob("*.md"))]
# What something is called elsewhere, and the command or option that offers it here.
CALLED: dict[str, str] = {
    "optimizer": "bot sweep",
    "optimiser": "bot sweep",
    "optimize": "bot sweep",
    "optimization": "bot sweep",
    "hyperopt": "bot sweep",
    "parameter search": "bot sweep",
    "grid search": "bot sweep run --method",
    "vectorized": "bot sweep run --screen",
    "walk-forward": "bot sweep run --walk-forward",
    "walk forward": "bot sweep run --walk-forward",
    "monte carlo": "bot backtest --monte-carlo",
    "bootstrap": "bot backtest --bootstrap",
    "lookahead": "bot backtest --prove-causal",
    "look-ahead": "bot backtest --prove-causal",
    "telegram": "bot telegram",
    "dashboard": "bot dashboard",
    "web interface": "bot dashboard",
    "user interface": "bot dashboard",
    "paper trading": "bot paper",
    "dry run": "bot paper",
    "live prices": "bot sandbox --prices",
    "kill switch": "bot kill",
    "report": "bot report",
    "download": "bot data pull",
    "importer": "bot data import",
    "synthetic": "bot data gen",
    "audit": "bot data audit",
    "approval": "bot approvals",
    "backup": "bot backup",
    "restore": "bot restore",
    "mcp": "bot mcp",
    "replay": "bot replay",
    "fault injection": "bot drill",
    "templates": "bot init",
    "hot reload": "bot reload",
    "holdout": "bot sweep run --holdout",
    "cluster": "bot sweep run --on",
    "metrics": "bot sandbox",
    "comparison of runs": "bot compare",
    "systemd": "bot systemd",
}
# Commands and options that are everyday words: a denial with one of them is about a thing, such as "no position".
EVERYDAY = frozenset(
    [
        "accept",
        "local",
        "switch",
        "band",
        "daemon",
        "exchange",
        "account",
        "address",
        "all",
        "allow",
        "at",
        "balance",
        "caps",
        "check",
        "clock",
        "close",
        "config",
        "coin",
        "config-file",
        "count",
        "csv",
        "data",
        "date",
        "days",
        "dir",
        "docs",
        "end",
        "event",
        "events",
        "exact",
        "file",
        "files",
        "fill",
        "fills",
        "folder",
        "force",
        "for",
        "from",
        "host",
        "id",
        "input",
        "interval",
        "json",
        "keep",
        "key",
        "kill",
        "label",
        "level",
        "limit",
        "lines",
        "lines",
        "list",
        "log",
        "logs",
        "lot",
        "market",
        "markets",
        "name",
        "new",
        "note",
        "on",
        "open",
        "order",
        "orders",
        "out",
        "output",
        "path",
        "pause",
        "port",
        "position",
        "positions",
        "price",
        "prices",
        "quiet",
        "read",
        "rate",
        "reason",
        "report",
        "restart",
        "restore",
        "resume",
        "rows",
        "run",
        "runs",
        "seed",
        "seconds",
        "service",
        "services",
        "show",
        "since",
        "size",
        "speed",
        "spread",
        "start",
        "state",
        "status",
        "stop",
        "stops",
        "storage",
        "strategies",
        "strategy",
        "symbol",
        "text",
        "tick",
        "time",
        "to",
        "trades",
        "type",
        "types",
        "url",
        "user",
        "version",
        "where",
        "with",
        "write",
        "yes",
    ]
)
STATES = (
    r"position|order|stop|price|candle|bar|event|account|key|journal|trade|fill|"
    r"entry|entries|person|clock|client|network|answer|way|reason"
)
DENIAL = re.compile(
    r"\b(?:there (?:is|are)|bracketbot (?:has|offers)|it (?:has|offers)|(?:,|and|or)) no (?P<what>[^,.;:|]+)"
    r"|\bbracketbot (?:cannot|does not|is not for) (?P<cannot>[^,.;:|]+)|(?P<not>[^.|\n]+?) (?:is|are) not"
    r" (?:there|supported|available|possible)\b",
    re.IGNORECASE,
)


def prose(text: str) -> str:
    """The text without code and with the lines of a paragraph joined."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"(?<=[^\n|])\n(?=[^\n|#*\-])", " ", text)


def denials(text: str) -> Iterator[str]:
    """What the text says is not there."""
    body = prose(text)
    for found in DENIAL.finditer(body):
        yield next(group for group in found.groups() if group)
    yield from re.findall(r"^\|(.+)\|\s*none[^|]*\|$", body, re.MULTILINE)
    for part in re.findall(r"^## What is not there\n(.+?)(?=^## |\Z)", body, re.MULTILINE | re.DOTALL):
        for sentence in re.split(r"(?<=[.;])\s", part):
            if re.search(r"\b(no|not|without|none|lacks?)\b", sentence):
                yield from re.split(r",| and ", sentence.split(" but ")[0])


def offered() -> dict[str, str]:
    """Each command and each option of the whole tree of `bot --help`: its words, and how it is called."""
    found: dict[str, str] = {}

    def walk(command: click.Command, path: str) -> None:
        for param in command.params:
            for name in (*param.opts, *param.secondary_opts):
                if name.startswith("--"):
                    found.setdefault(name.removeprefix("--").removeprefix("no-"), f"{path} {name}")
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                found.setdefault(name, f"{path} {name}")
                walk(child, f"{path} {name}")

    walk(program, "bot")
    return found


OFFERED = offered()


def words() -> dict[str, str]:
    """Every word that a denial may not contain, and what offers it."""
    named = {name: how for name, how in OFFERED.items() if name not in EVERYDAY}
    named |= {name.replace("-", " "): how for name, how in named.items()}
    indicators = {name: f"bot.{name}" for name in authors_names.__all__ if name.islower() and name not in EVERYDAY}
    return {**named, **CALLED, **indicators}


def refuted(text: str) -> list[str]:
    known = words()
    found = []
    for denied in denials(text):
        said = re.sub(r"[`*_\[\]()]", " ", denied).lower()
        ends = re.findall(r"[\w-]+", said)
        for word, how in known.items():
            # A name that is one plain word is denied only as the thing itself: "no screen", not "no order on
            # the screen of a local machine".
            if word in OFFERED and word.isalpha() and word not in CALLED and word not in (*ends[:1], *ends[-1:]):
                continue
            if re.search(rf"(?<![\w-]){re.escape(word)}s?(?![\w-])", said) and not re.match(
                rf"\s*({STATES})s?\b", said
            ):
                found.append(f"{denied.strip()!r}, but there is {how}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_page_denies_what_bot_offers(path) -> None:  # type: ignore[no-untyped-def]
    assert refuted(path.read_text()) == []


def test_each_word_of_other_frameworks_names_a_command_or_option_that_exists() -> None:
    for word, how in CALLED.items():
        _, *steps = how.split()
        command: click.Command = program
        for step in steps:
            if step.startswith("--"):
                assert any(step in param.opts for param in command.params), (word, how)
            else:
                assert isinstance(command, click.Group)
                child = command.get_command(click.Context(command), step)
                assert child is not None, (word, how)
                command = child
    assert set(EVERYDAY) & {"sweep", "telegram", "screen", "monte-carlo", "dashboard"} == set()
    assert len(OFFERED) > 150


@pytest.mark.parametrize(
    "text",
    [
        "Bracketbot has no spot markets, no optimizer, and no pair lists.",
        "| `IntParameter` and hyperopt | `Params` with bounds; there is no optimizer |",
        "There is no\nvectorized run: each bar passes through the daemon's own code.",
        "Bracketbot has no several timeframes, no Monte Carlo tools and no indicators.",
        "| `bt.optimize(...)` | none |",
        "Control from Telegram is not there.",
        "## What is not there\n\nA dashboard and fault injection are missing; it is not a user interface.",
        "There is no walk-forward here.",
        "There is no supertrend.",
    ],
)
def test_a_denial_of_what_exists_is_found(text: str) -> None:
    assert refuted(text)


@pytest.mark.parametrize(
    "text",
    [
        "There is no position.",
        "There is no journal to restore.",
        "Bracketbot has no spot markets.",
        "`bot sweep` is there.",
    ],
)
def test_a_denial_of_a_state_is_none(text: str) -> None:
    assert refuted(text) == []
