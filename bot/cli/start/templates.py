"""The templates of `bot init` and `bot new-strategy`: a strategy and its test as files, copied from the package's
examples.

`write_template("breakout", folder)` writes one into a project.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from bot.errors import BotError, Exit


@dataclass(frozen=True, slots=True)
class StrategyTemplate:
    """A strategy of the package's examples. `source` and `test` are below `bot/examples`.

    `hourly`: the params of a new project, for bars of 1h, where they differ from the defaults of the class.
    """

    name: str
    source: str
    # the name of its class
    kind: str
    summary: str
    markets: tuple[str, ...] = ("BTC",)
    hourly: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return Path(self.source).stem

    @property
    def test(self) -> str:
        return f"templates/test_{self.module}.py"


TEMPLATES: Final[Mapping[str, StrategyTemplate]] = {
    template.name: template
    for template in (
        StrategyTemplate(
            "trend",
            "strategies/trend.py",
            "Trend",
            "follow two moving averages",
            hourly={"fast_bars": 24, "slow_bars": 168, "band_atr": 1, "stop_atr": 5, "target_r": 5},
        ),
        StrategyTemplate(
            "breakout",
            "templates/breakout.py",
            "Breakout",
            "follow a market out of its range",
            hourly={"channel_bars": 120, "stop_atr": 4, "trail_r": 2},
        ),
        StrategyTemplate("mean-reversion", "strategies/reversion.py", "MeanReversion", "trade against a fast move"),
        StrategyTemplate("pairs", "templates/pairs.py", "Pairs", "trade the ratio of two markets", ("BTC", "ETH")),
        StrategyTemplate(
            "rotation", "templates/rotation.py", "Rotation", "hold the market that rises most", ("BTC", "ETH", "SOL")
        ),
        StrategyTemplate("session-open", "templates/session_open.py", "SessionOpen", "follow the first move of a day"),
        StrategyTemplate(
            "volatility-target", "templates/volatility_target.py", "VolatilityTarget", "hold less of what moves more"
        ),
        StrategyTemplate("dca", "templates/dca.py", "Dca", "buy the same amount at fixed times"),
        StrategyTemplate("grid", "templates/grid.py", "GridTrader", "buy a fall in steps with orders that rest"),
        StrategyTemplate("schedule", "templates/schedule.py", "Schedule", "trade by the clock"),
        StrategyTemplate(
            "event-market",
            "templates/event_market.py",
            "EventMarket",
            "trade an event by your own odds",
            ("event:RATE-CUT",),
        ),
    )
}


class FileExists(BotError):
    """A file that would be written exists already."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class Names:
    """What a strategy is called: its module, its class and its name in a config."""

    module: str
    kind: str
    name: str


def names_of_template(template: StrategyTemplate) -> Names:
    return Names(template.module, template.kind, template.module.replace("_", "-"))


def names_of(given: str, template: StrategyTemplate) -> Names:
    """`mean-revert` -> module mean_revert, class MeanRevert, name mean-revert.

    UsageError for a name that makes no module or class.
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower(), re.ASCII)
    module = "_".join(words)
    if (
        not module.isidentifier()
        or keyword.iskeyword(module)
        or len(module) > 40
        or re.search(r"[^\w\- ]", given, re.ASCII)
    ):
        raise click.UsageError(
            f"{given!r} is not a valid strategy name: use at most 40 letters, digits and -, and begin with a letter"
        )
    kind = "".join(word.capitalize() for word in words)
    if kind in imported_names(template):
        raise click.UsageError(
            f"the class of {given!r} would be called {kind}, which is the name of a class that it imports; choose"
            " another name"
        )
    return Names(module, kind, "-".join(words))


def imported_names(template: StrategyTemplate) -> set[str]:
    """The names that the strategy's file imports."""
    lines = re.findall(r"^(?:from \S+ )?import (.+)$", _example(template.source), re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


def files_of(template: StrategyTemplate, names: Names, *, folder: str = "strategies") -> dict[Path, str]:
    """Path in the project -> text, of the strategy and its test. `folder` is the project's folder of strategies."""
    strategy = re.sub(rf"\b{template.kind}\b", names.kind, _example(template.source))
    test = _example(template.test).replace(f'"{template.module}:{template.kind}"', f'"{names.module}:{names.kind}"')
    test = re.sub(rf"\b{template.kind}\b", names.kind, test).replace('.parent / "strategies"', f'.parent / "{folder}"')
    return {Path(folder) / f"{names.module}.py": strategy, Path("tests") / f"test_{names.module}.py": test}


def params_of(template: StrategyTemplate) -> list[tuple[str, Any, str]]:
    """Each param of the strategy: name, value in a new project and description."""
    from bot.cli.common.files import example
    from bot.runtime.strategy_host.loader import load

    strategy = load(f"{template.module}:{template.kind}", example(template.source).parent).strategy
    return [
        (name, template.hourly.get(name, param.default), param.description or "")
        for name, param in strategy.Params.model_fields.items()
    ]


def write_template(name: str, project: Path) -> list[Path]:
    """Write the strategy and the test of a template into a project.

    Returns their paths. FileExists if one is there; then nothing is written.
    """
    template = TEMPLATES[name]
    return write_files(project, files_of(template, names_of_template(template)))


def write_files(home: Path, files: Mapping[Path, str]) -> list[Path]:
    """Write all files, or none if one of them exists. Returns their paths."""
    from bot.cli.common.files import judge_text, write_atomic

    taken = [str(home / name) for name in files if (home / name).exists()]
    if taken:
        raise FileExists(f"{', '.join(taken)} already {'exists' if len(taken) == 1 else 'exist'}; nothing was written")
    for name, text in files.items():
        judge_text(home / name, text)
    for name, text in files.items():
        try:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BotError(
                f"cannot create the folder {(home / name).parent}: {error.strerror}. Name a folder that you may write"
            ) from None
        write_atomic(home / name, text)
    return [home / name for name in files]


def _example(name: str) -> str:
    from bot.cli.common.files import example

    return example(name).read_text(encoding="utf-8")
