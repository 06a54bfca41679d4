"""The evidence that `bot ready` weighs: what backtests, sweeps, drills and test notices of a config came to.

One file in the state directory, `readiness.json`. Each piece has the digests of the config and of its strategies'
sources, so that the evidence of another version is known as old.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from bot.clock import SystemClock
from bot.config import Settings
from bot.config.protections import PREFIX
from bot.errors import BotError
from bot.files import write_private
from bot.runtime.liveness.instance_lock import private_dir
from bot.runtime.strategy_host import fingerprints, loader

FILE: Final = "readiness.json"
FORMAT: Final = 1
# newest pieces of a kind; more runs of one config say nothing more
KEPT: Final = 40
# far above KEPT pieces of every kind; a larger file is not one
BYTES_MAX: Final = 16_000_000

Kind = Literal["backtest", "sweep", "walk_forward", "drill", "test_notice", "paper", "answer"]
# The fields of each kind of evidence and their types. A piece that lacks one is damaged, and is left out.
_NUMBER: Final = (int, float)
FACTS: Final[Mapping[Kind, Mapping[str, type | tuple[type, ...]]]] = {
    "backtest": {"folder": str, "data": list, "trades": int}
    | dict.fromkeys(("days", "netUsd", "costsUsd", "worstDayUsd", "startUsd"), _NUMBER),
    # trials: the versions of some trials, each with its deflated Sharpe ratio
    "sweep": {"study": str, "data": list, "count": int, "trials": list},
    # chosen: the params that each window chose, which are no part of the version
    "walk_forward": {"data": list, "chosen": list, "windows": int, "probability": _NUMBER, "returnPct": _NUMBER},
    # ground: a digest of the candles and of the length of a world; silenced: passed worlds with lost heartbeats
    "drill": {"data": list, "ground": str, "seed": int, "worlds": int, "failed": list, "silenced": int},
    # targets: key_of(address) -> whether the target has accepted the notice
    "test_notice": {"targets": dict},
    "paper": {"folder": str},
    "answer": {"grade": str},
}

# The digests of a config and its strategies, in the form of a mark of fingerprints.py.
Version = Mapping[str, Any]


class Evidence(NamedTuple):
    """One piece: what a command came to, for this version, at this time of the machine's clock."""

    kind: Kind
    at_ms: int
    version: Version
    facts: Mapping[str, Any]


def version_of(settings: Settings, *, is_filled: bool = True) -> Version:
    """The version of a checked config: of its sections that influence decisions and of its strategies' sources.

    `is_filled`: params that the config does not name have their defaults, so that naming one changes nothing.
    """
    filled = settings
    if is_filled:
        strategies = []
        for strategy in settings.strategies:
            model = loader.load(strategy.use, settings.strategies_dir).strategy.Params
            plain = model.model_validate(dict(strategy.params)).model_dump(mode="json")
            strategies.append(strategy.model_copy(update={"params": plain}))
        filled = settings.model_copy(update={"strategies": tuple(strategies)})
    return without_code(fingerprints.mark_of(filled, fingerprints.sources_of(settings)))


def without_code(mark: fingerprints.Mark) -> Version:
    """A mark as a version: another version of bot, or of a package, makes no evidence old."""
    return {"version": "", "config": mark["config"], "strategies": mark["strategies"]}


def changes(then: Version, now: Version, free: Collection[str] = ()) -> list[str]:
    """What differs between two versions, as sentences. `free`: params that may differ, as `trend.fast_bars`."""
    differing = fingerprints.changes(_without(then, free), _without(now, free))
    return [text for texts in differing.values() for _, text in texts]


def _without(version: Version, free: Collection[str]) -> Version:
    if not free:
        return version
    strategies = {}
    for name, strategy in version["strategies"].items():
        mine = {full.partition(".")[2] for full in free if full.partition(".")[0] == name}
        has_rules = any(param.startswith(PREFIX) for param in mine)
        strategies[name] = {
            **strategy,
            "params": {param: digest for param, digest in strategy["params"].items() if param not in mine},
            "limits": {
                key: digest
                for key, digest in strategy["limits"].items()
                if not (has_rules and key == fingerprints.PROTECTIONS)
            },
        }
    return {**version, "strategies": strategies}


# ── The file ────────────────────────────────────────────────────────────────────────────────────────────────────────


class EvidenceDamaged(BotError):
    """The file of the evidence cannot be read; the message says what becomes of it."""


def read_evidence(state_dir: Path) -> list[Evidence]:
    """All pieces, oldest first; none if there is no file. EvidenceDamaged if it cannot be read."""
    path = state_dir / FILE
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ValueError(f"it is larger than {BYTES_MAX:,} bytes")
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, and this version reads {FORMAT}")
        items = list(document["evidence"])
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise EvidenceDamaged(f"{path} cannot be read ({why}); the next evidence sets it aside") from None
    return [Evidence(item["kind"], item["atMs"], item["version"], item["facts"]) for item in items if _is_whole(item)]


def _is_whole(item: Any) -> bool:
    """True if a piece has what is read of it; a person or another version may have written it."""
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or item["kind"] not in FACTS:
        return False
    facts, needed = item.get("facts"), FACTS[item["kind"]]
    return (
        isinstance(item.get("atMs"), int)
        and isinstance(facts, dict)
        and all(isinstance(facts.get(name), type_) for name, type_ in needed.items())
        and _is_version(item.get("version"))
        and all(
            isinstance(trial, dict)
            and isinstance(trial.get("deflated"), int | float)
            and _is_version(trial.get("version"))
            for trial in facts.get("trials", ())
        )
    )


def _is_version(version: Any) -> bool:
    return isinstance(version, dict) and fingerprints.marks_in(json.dumps([{**version, "atMs": 0, "epoch": 0}])) != []


def keep_evidence(state_dir: Path, kind: Kind, version: Version, facts: Mapping[str, Any]) -> None:
    """Add a piece. BotError or OSError if the state directory cannot be used."""
    with _held(private_dir(state_dir)):
        path = state_dir / FILE
        try:
            pieces = read_evidence(state_dir)
        except EvidenceDamaged:
            path.replace(path.with_name(f"{FILE}.damaged"))
            pieces = []
        pieces.append(Evidence(kind, SystemClock().now_ms(), version, facts))
        counts: dict[str, int] = {}
        kept = []
        for piece in reversed(pieces):
            counts[piece.kind] = counts.get(piece.kind, 0) + 1
            if counts[piece.kind] <= KEPT:
                kept.append(piece)
        items = [
            {"kind": piece.kind, "atMs": piece.at_ms, "version": piece.version, "facts": piece.facts}
            for piece in reversed(kept)
        ]
        text = json.dumps({"format": FORMAT, "evidence": items}, separators=(",", ":"))
        write_private(path, text.encode())


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Wait until no other process adds evidence here."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            os.close(number)
