"""Two runs side by side: their names, their figures, and the differences between their manifests as text. No hash is
shown: it says only that something differs, and that is said in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any, Final, NamedTuple

from bot.backtest.report.summary import COSTS, figure_of
from bot.backtest.results.run_reader import StoredRun
from bot.clock import iso
from bot.config.document import Document
from bot.figures import Tone
from bot.logs import HIDDEN, is_secret_name, redact_text
from bot.number_text import number

# durations; every other name that ends in _ms is an instant
LENGTHS: Final = ("latency_ms", "for_ms")
# The characters of a value in a list of differences.
SHOWN_CHARS: Final = 60
# most params in the name of a run
PARAMS_NAMED: Final = 6
DIGEST: Final = "sha256"
# the group of a difference, by the first word of its path
DIGEST_TEXTS: Final = {
    "code": "the source of bot differs",
    "data": "the candles differ",
    "strategies": "the source of the strategy differs",
}


class ComparedFigure(NamedTuple):
    """A figure or a cost of two runs, as texts, with its change from the first to the second and the tone of that."""

    name: str
    unit: str
    first: str
    second: str
    change: str
    tone: Tone


def compared(run: StoredRun, other: StoredRun) -> list[ComparedFigure]:
    """Each figure and cost of two runs, in the form of a terminal."""
    return compared_figures(
        side_by_side(run.summary["figures"], other.summary["figures"]),
        side_by_side(run.summary["costs"], other.summary["costs"]),
    )


def side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of two mappings by key; None where one has none."""
    return {name: [first.get(name), second.get(name)] for name in dict.fromkeys([*first, *second])}


def compared_figures(figures: Mapping[str, Sequence[Any]], costs: Mapping[str, Sequence[Any]]) -> list[ComparedFigure]:
    """Each figure, and each cost that one of both has. A run without such a cost has 0."""
    pairs = {name: list(values) for name, values in figures.items()}
    for name in COSTS:
        if name in costs and (name != "backstopUsd" or any(number(usd) for usd in costs[name])):
            pairs[name] = ["0" if usd is None else usd for usd in costs[name]]
    rows = []
    for name, (before, after) in pairs.items():
        first, second = figure_of(name, before), figure_of(name, after)
        if before is None:
            first = second.of(None)
        change, tone = first.change(before, after)
        rows.append(ComparedFigure(first.name, first.unit, first.text, first.of(after).text, change, tone))
    return rows


def names_of(run: StoredRun, other: StoredRun) -> tuple[str, str]:
    """A name for each of two runs: its config and the params that differ, like `paper: trend.fast_bars=6`.

    The folder, if nothing else tells them apart.
    """
    mine, theirs = _params_of(run), _params_of(other)
    names = []
    for params, others in ((mine, theirs), (theirs, mine)):
        differing = [f"{key}={_value_text(value)}" for key, value in params.items() if others.get(key) != value]
        more = [f"and {len(differing) - PARAMS_NAMED} more"] if len(differing) > PARAMS_NAMED else []
        names.append(", ".join([*differing[:PARAMS_NAMED], *more]))
    configs = [str(each.manifest["config"]["name"]) for each in (run, other)]
    first, second = (": ".join(filter(None, both)) for both in zip(configs, names, strict=True))
    return (first, second) if first != second else (f"{first} ({run.name})", f"{second} ({other.name})")


def _params_of(run: StoredRun) -> dict[str, Any]:
    return {
        f"{strategy['name']}.{name}": value
        for strategy in run.manifest["strategies"]
        for name, value in strategy.get("params", {}).items()
    }


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def differences(run: StoredRun, other: StoredRun) -> list[str]:
    """The differences between two manifests, each with its path; empty when both ran the same."""
    lines: list[str] = []
    _differ("", run.manifest, other.manifest, lines)
    return lines


class ChangedKey(NamedTuple):
    """A key of the config with its value in two runs, as texts; None where a run does not have it."""

    key: str
    first: str | None
    second: str | None


def config_changes(run: StoredRun, other: StoredRun) -> list[ChangedKey]:
    """The keys of two configs that differ, in the order of the first; strategies by name. Comments do not count.

    Empty if one of the texts is no config.
    """
    first, second = (_keys_of(str(each.manifest["config"].get("text", ""))) for each in (run, other))
    if first is None or second is None:
        return []
    keys = [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]
    return [ChangedKey(key, *(_shown(key, values.get(key)) for values in (first, second))) for key in keys]


def other_differences(run: StoredRun, other: StoredRun) -> list[str]:
    """What differs besides the keys of the config."""
    changed = {change.key for change in config_changes(run, other)}

    def is_said(line: str) -> bool:
        return bool(changed) and (line.startswith("config: ") or line.partition(": ")[0] in changed)

    # The manifest repeats the params of the config.
    return [line for line in differences(run, other) if not is_said(line)]


def _keys_of(text: str) -> dict[str, str] | None:
    """Each value of a config by its path. References stay as they are written."""
    document = Document("config", text)
    document.read(lambda reference, _key: reference)
    if not isinstance(document.data, Mapping):
        return None
    return dict(_flat("", document.data))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    value = _by_name(value)
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, default=float)


def _shown(key: str, text: str | None) -> str | None:
    """A value of a config. A secret is compared and never shown."""
    return text if text is None else HIDDEN if is_secret_name(key.rpartition(".")[2]) else redact_text(text)


def unexplained(run: StoredRun, other: StoredRun) -> str | None:
    """A note when two runs with equal manifests have different events."""
    if differences(run, other) or run.summary["eventDigest"] == other.summary["eventDigest"]:
        return None
    return (
        "the manifests are equal, but the events differ. A manifest does not record: that a run was stopped early, the"
        " requirements of packages that a strategy imports, files that a strategy reads, and random numbers in it"
    )


def _differ(path: str, first: Any, second: Any, lines: list[str]) -> None:
    first, second = _by_name(first), _by_name(second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            _differ(f"{path}.{key}" if path else str(key), first.get(key), second.get(key), lines)
    elif _are_sentences(first) and _are_sentences(second):
        lines += [f"{path}: {line!r} / not there" for line in first if line not in second]
        lines += [f"{path}: not there / {line!r}" for line in second if line not in first]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (mine, theirs) in enumerate(zip(first, second, strict=True)):
            _differ(f"{path}[{index}]", mine, theirs, lines)
    elif first == second:
        return
    elif path == "config.text":
        lines += _config_lines(str(first), str(second))
    elif _is_digest(path, first, second):
        lines += _digest_lines(path, first, second)
    else:
        if path.endswith("_ms") and path.rpartition(".")[2] not in LENGTHS:
            first, second = (iso(at) if isinstance(at, int) else at for at in (first, second))
        shown = [
            value if isinstance(value, str) and len(value) < 40 else json.dumps(_without_digest(value))
            for value in (first, second)
        ]
        alike = next((n for n, (mine, its) in enumerate(zip(*shown, strict=False)) if mine != its), 0)
        # Show the part that differs, with a little text before it.
        cut = max(0, alike - SHOWN_CHARS // 4) if max(map(len, shown)) > SHOWN_CHARS else 0
        start, until = "..." if cut else "", cut + SHOWN_CHARS
        lines.append(
            f"{path}: " + " / ".join(start + text[cut:until] + ("..." if text[until:] else "") for text in shown)
        )


def _config_lines(first: str, second: str) -> Iterator[str]:
    """The lines of two configs that differ: `-` stands in the first only, `+` in the second only."""
    for line in unified_diff(first.splitlines(), second.splitlines(), n=0, lineterm=""):
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++")):
            yield f"config: {line[0]} {line[1:].rstrip()}"


def _is_digest(path: str, first: Any, second: Any) -> bool:
    texts = [value for value in (first, second) if isinstance(value, str)]
    return path.endswith(f".{DIGEST}") or path.startswith("funding.") or any(DIGEST in text for text in texts)


def _digest_lines(path: str, first: Any, second: Any) -> Iterator[str]:
    """What a differing digest means. `path` is of a digest, of recorded funding rates, or of an imported package."""
    owner, _, _ = path.rpartition(".")
    # The lines of the config show this difference.
    if path == f"config.{DIGEST}":
        return
    if path.startswith("funding."):
        states = [("the baseline" if value is None else "recorded rates") for value in (first, second)]
        yield f"{path}: " + ("the recorded rates differ" if states[0] == states[1] else " / ".join(states))
    elif path.endswith(f".{DIGEST}"):
        yield f"{owner}: {DIGEST_TEXTS.get(path.partition('.')[0], 'the content differs')}"
    else:
        states = [
            "not imported" if value is None else "a source folder" if DIGEST in value else value
            for value in (first, second)
        ]
        yield f"{path}: " + ("the source differs" if states[0] == states[1] else " / ".join(states))


def _without_digest(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != DIGEST} if isinstance(value, Mapping) else value


def _by_name(value: Any) -> Any:
    """A list of named items, or of markets with intervals, as a mapping."""
    if not (isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value)):
        return value
    keys = ("name",) if all("name" in item for item in value) else ("market", "interval")
    named = {" ".join(str(item[key]) for key in keys if key in item): item for item in value}
    return named if len(named) == len(value) and "" not in named else value


def _are_sentences(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
