"""Fingerprints of code and config, kept in the journal at each start, reload and resume. A replay compares them with
today's.

They are digests, never values: params may contain secrets, and a param with a secret's name is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot import __version__
from bot.config import Settings, StrategySettings
from bot.errors import ConfigError, StrategyError
from bot.logs import is_secret_name, log
from bot.money import format_decimal
from bot.runtime.strategy_host.loader import load
from bot.runtime.strategy_host.package_versions import code_sha256, versions_in

if TYPE_CHECKING:
    from decimal import Decimal

    from bot.runtime.journal.journal import Journal

# A note of the journal: a list of marks, oldest first.
NOTE: Final = "runs"
# starts and reloads; the first of an account stays, because a replay begins there
MARKS_KEPT: Final = 100
PROTECTIONS: Final = "protections"
# sections of a config that influence decisions
SECTIONS: Final = ("orders", "safety", "dead_man", "guardians", PROTECTIONS)
LIMITS: Final = (
    "use",
    "markets",
    "interval",
    "budget_usd",
    "max_leverage",
    "daily_loss_usd",
    PROTECTIONS,
    "netting",
    "approve",
)
# Params that decide what the model of an agent is told, shown and asked. MODEL is a param of agents alone.
MODEL: Final = "usd_per_million_in"
AGENT_PARAMS: Final = frozenset(
    {
        "model",
        "base_url",
        "instructions",
        "instructions_file",
        "answer_as",
        "tools",
        "max_tokens",
        "temperature",
        "show_bars",
        "ask_every_bars",
        "ask_at",
        "ask_on",
    }
)

_DIGEST: Final = re.compile(r"[0-9a-f]{16}")

Mark = Mapping[str, Any]
Changes = Mapping[str, list[tuple[str, str]]]


def mark_of(
    settings: Settings, sources: Mapping[str, str | None], packages: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The digests of a config and of its strategies' sources;

    `sources` are theirs by name, as they were loaded (StrategySpec.sha256). `packages`: the versions of what the
    sources import; None if they are not known.
    """
    plain = settings.model_dump(mode="json", include=set(SECTIONS))
    return {
        "version": __version__,
        "bot": code_sha256()[:16],
        **({} if packages is None else {"packages": dict(packages)}),
        "config": _digests(plain, SECTIONS),
        "strategies": {
            strategy.name: _strategy(strategy, sources.get(strategy.name)) for strategy in settings.strategies
        },
    }


def note_run(
    journal: Journal,
    mark: Mark,
    *,
    at_ms: int,
    epoch: int,
    balance_usd: Decimal | None = None,
    config: Path | None = None,
) -> None:
    """Keep the mark of a start or reload. `at_ms` is on the service's clock."""
    mark = {**mark, "atMs": at_ms, "epoch": epoch, "file": None if config is None else str(config.absolute())}
    if balance_usd is not None:
        mark["balanceUsd"] = format_decimal(balance_usd)
    text = journal.state.note(NOTE)
    before = marks_in(text)
    if text and not before:
        log.error(
            "runs.damaged",
            kept_as=journal.state.set_aside(NOTE),
            message="the configs of earlier runs cannot be read; a replay needs --config",
        )
    kept = [*before, mark]
    if len(kept) > MARKS_KEPT:
        kept = [kept[0], *kept[1 - MARKS_KEPT :]]
    journal.state.write_note(NOTE, json.dumps(kept, separators=(",", ":")))


def note_source(journal: Journal, settings: StrategySettings, sha256: str | None, *, at_ms: int, epoch: int) -> None:
    """Keep a mark with one strategy's present source, and all else as before."""
    marks = marks_in(journal.state.note(NOTE))
    if marks:
        last = {name: value for name, value in marks[-1].items() if name != "balanceUsd"}
        mark = {**last, "strategies": {**last["strategies"], settings.name: _strategy(settings, sha256)}}
        note_run(journal, mark, at_ms=at_ms, epoch=epoch)


def marks_in(text: str | None) -> list[dict[str, Any]]:
    """The marks in a note; none if it is missing or damaged."""
    try:
        marks = [] if text is None else json.loads(text)
    except ValueError:
        return []
    return marks if isinstance(marks, list) and all(map(_is_mark, marks)) else []


def is_start(mark: Mark) -> bool:
    """True for a mark of a start; a reload or resume has no balance."""
    return "balanceUsd" in mark


def config_of(marks: Sequence[Mark]) -> str | None:
    """Path of the config at the last start."""
    return next((str(mark["file"]) for mark in reversed(marks) if mark.get("file")), None)


def _is_mark(mark: Any) -> bool:
    """True if a mark has the fields that are read here; another version may add more."""
    return (
        isinstance(mark, dict)
        and all(isinstance(mark.get(name), int) for name in ("atMs", "epoch"))
        and isinstance(mark.get("version"), str)
        and _is_digest(mark.get("bot", ""))
        and isinstance(mark.get("packages", {}), dict)
        and isinstance(mark.get("config"), dict)
        and isinstance(mark.get("strategies"), dict)
        and all(map(_is_strategy, mark["strategies"].values()))
    )


def _is_digest(digest: Any) -> bool:
    return isinstance(digest, str) and (not digest or _DIGEST.fullmatch(digest) is not None)


def _is_strategy(strategy: Any) -> bool:
    return (
        isinstance(strategy, dict)
        and "source" in strategy
        and all(isinstance(strategy.get(name), dict) for name in ("limits", "params"))
    )


def changes_since(marks: Sequence[Mark], now: Mark, *, known_ms: int) -> list[tuple[int, Changes]]:
    """(instant, what differs between the mark that is in force from then on and `now`), oldest first.

    Times before `known_ms` are left out.
    """
    since: list[tuple[int, Changes]] = [
        (mark["atMs"], changes(mark, now)) for mark in marks if mark["atMs"] >= known_ms
    ]
    return [(0, {}), *since] if known_ms else since


def known_since(marks: Sequence[Mark]) -> int:
    """From when on a journal has every mark. Newer marks replace the oldest, except the first."""
    return int(marks[1]["atMs"]) if len(marks) >= MARKS_KEPT else 0


def changes(then: Mark, now: Mark) -> dict[str, list[tuple[str, str]]]:
    """Strategy -> [(`code`, `agent` or `config`, sentence)], the differences between two marks; those of all
    strategies are under "".
    """
    sentences: dict[str, list[tuple[str, str]]] = {}
    for name in SECTIONS:
        if then["config"].get(name) != now["config"].get(name):
            sentences.setdefault("", []).append(("config", f"the config's {name} has changed"))
    if then["version"] != now["version"]:
        sentences.setdefault("", []).append(("code", f"bot was version {then['version']}, this is {now['version']}"))
    elif then.get("bot", now.get("bot")) != now.get("bot"):
        sentences.setdefault("", []).append(("code", "the source of bot has changed"))
    if "packages" in then and "packages" in now:
        for name in sorted({*then["packages"], *now["packages"]}):
            versions = [mark["packages"].get(name, "not imported") for mark in (then, now)]
            if versions[0] != versions[1]:
                text = f"package {name}: {versions[0]} then, {versions[1]} now"
                sentences.setdefault("", []).append(("code", text))
    for name in sorted({*then["strategies"], *now["strategies"]}):
        old, new = then["strategies"].get(name), now["strategies"].get(name)
        if old is None or new is None:
            said = (
                "is in this config and was not in that of the run"
                if old is None
                else "was in the config of the run and is not in this one"
            )
            sentences.setdefault(name, []).append(("config", f"strategy {name} {said}"))
            continue
        if old["source"] != new["source"]:
            sentences.setdefault(name, []).append(("code", f"the source of strategy {name} has changed"))
        params = [
            key for key in sorted({*old["params"], *new["params"]}) if old["params"].get(key) != new["params"].get(key)
        ]
        kinds = {key: "agent" if MODEL in new["params"] and key in AGENT_PARAMS else "config" for key in params}
        texts = ((kinds[key], f"strategy {name}: params.{key} has changed") for key in params)
        sentences.setdefault(name, []).extend(sorted(texts))
        limits = [key for key in LIMITS if old["limits"].get(key) != new["limits"].get(key)]
        sentences[name].extend(("config", f"strategy {name}: {key} has changed") for key in limits)
    return {name: said for name, said in sentences.items() if said}


def sources_of(settings: Settings) -> dict[str, str | None]:
    """Digests of the strategies' present sources; None for one that cannot be loaded. This runs their code."""
    digests: dict[str, str | None] = {}
    for strategy in settings.strategies:
        digests[strategy.name] = None
        with contextlib.suppress(ConfigError, StrategyError):
            digests[strategy.name] = load(strategy.use, settings.strategies_dir).sha256
    return digests


def packages_of(settings: Settings) -> dict[str, str]:
    """The present versions of what the strategies' sources import. This runs the strategies' code."""
    paths = []
    for strategy in settings.strategies:
        with contextlib.suppress(ConfigError, StrategyError):
            paths.append(load(strategy.use, settings.strategies_dir).path)
    return versions_in(paths)


def _strategy(settings: StrategySettings, sha256: str | None) -> dict[str, Any]:
    plain = settings.model_dump(mode="json", include=set(LIMITS))
    return {
        "source": (sha256 or "")[:16],
        "limits": _digests(plain, LIMITS),
        "params": {name: _digest(value) for name, value in settings.params.items() if not is_secret_name(name)},
    }


def _digests(plain: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The digests of these keys; none for PROTECTIONS without a rule, as in a mark of an older version."""
    return {name: _digest(plain[name]) for name in names if name != PROTECTIONS or any(plain[name].values())}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:16]
