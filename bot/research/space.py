"""Which params a sweep tries, and what it looks for: the file of `--space`, checked against the strategies of a config.

params:
  trend.fast_bars: {from: 2, to: 20, step: 2}
  trend.slow_bars: [20, 40, 80]
  trend.stop_atr: {from: 1.0, to: 4.0}          # no step: not for a grid
  trend.usd: {from: 10, to: 1000, log: true}
  trend.protections.cooldown: [2 bars, 4 bars]
objectives:
  - Sharpe Ratio                                # the highest
  - {figure: "Volatility (Ann.) [%]", best: lowest}
constraints:
  "# Trades": {min: 30}
  "Max. Drawdown [%]": {min: -20}               # not deeper than 20 %

A param may carry its own range: `Field(10, ge=2, json_schema_extra={"sweep": {"from": 2, "to": 20}})`. It is used if
the file does not name the param.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from math import exp, log, prod
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import ValidationError

from bot.backtest.results.statistics import statistics
from bot.config import Settings, StrategySettings
from bot.config.document import Document, Loc
from bot.config.protections import KINDS, PREFIX, SHORT
from bot.config.settings import INSTRUCTIONS_FILE, instructions_file
from bot.config.source import text_of
from bot.errors import ConfigError
from bot.files import OutsideFolder
from bot.runtime.strategy_host import loader
from bot.wire import INTERVAL_MS
from bot.words import did_you_mean

# After so many cells in a row that were tried before, the next cell is taken in order.
REPEATS_MAX: Final = 50
# cells of a grid, and values of one param
GRID_MAX: Final = 100_000
OBJECTIVE: Final = "Return [%]"
# the names of the report's figures
FIGURES: Final = tuple(statistics((), (), (), start_ms=0, start_usd=1.0))
KEYS: Final = ("params", "objectives", "constraints")
RANGE: Final = ("from", "to", "step", "log")

Scalar = bool | int | float | str
Params = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Dimension:
    """The values of one param, `name` is STRATEGY.PARAM. Either `values`, or a range from `low` to `high`."""

    name: str
    values: tuple[Scalar, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    is_log: bool = False

    def drawn(self, chance: Random) -> Scalar:
        """A value by chance: each of the values alike, a range evenly, or evenly in its logarithm."""
        if self.values:
            return chance.choice(self.values)
        if self.is_whole and not self.is_log:
            return chance.randint(int(self.low), int(self.high))
        if not self.is_log:
            return chance.uniform(self.low, self.high)
        value = min(self.high, max(self.low, exp(chance.uniform(log(self.low), log(self.high)))))
        return round(value) if self.is_whole else value

    @property
    def count(self) -> int | None:
        """How many values there are; None for any number of a range."""
        return len(self.values) or (int(self.high) - int(self.low) + 1 if self.is_whole else None)

    def each(self) -> Sequence[Scalar]:
        """The values, of which there is a `count`."""
        return self.values or range(int(self.low), int(self.high) + 1)


def stepped(low: Decimal, high: Decimal, step: Decimal) -> list[Decimal]:
    """The values from `low` to at most `high`. ConfigError if there are too many."""
    count = int((high - low) / step) + 1
    if count > GRID_MAX:
        raise ConfigError(f"{count:,} values are more than {GRID_MAX:,}; take a larger step")
    return [low + number * step for number in range(count)]


def key_of(params: Params) -> str:
    """A text that is the same for the same cell."""
    return json.dumps(dict(params), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Objective:
    """A figure of the report to be as high or as low as possible."""

    figure: str
    is_highest: bool = True


@dataclass(frozen=True, slots=True)
class Bound:
    """A constraint: a figure must be defined and lie between `least` and `most`."""

    figure: str
    least: float | None = None
    most: float | None = None

    def excess(self, figures: Mapping[str, Any]) -> float:
        """By how much the figure breaks the bound; 0.0 or less if it does not."""
        value = figures.get(self.figure)
        if value is None:
            return float("inf")
        over = [] if self.most is None else [value - self.most]
        under = [] if self.least is None else [self.least - value]
        return float(max(over + under))


@dataclass(frozen=True, slots=True)
class Space:
    """The params that a sweep tries, its objectives and its constraints."""

    dimensions: tuple[Dimension, ...]
    objectives: tuple[Objective, ...] = (Objective(OBJECTIVE),)
    constraints: tuple[Bound, ...] = ()

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """Every cell of the grid, the last param fastest.

        ConfigError if a param is a range without a step, or the grid is too large.
        """
        cells = 1
        for dimension in self.dimensions:
            if not dimension.values:
                raise ConfigError(
                    f"{dimension.name}: a grid needs a step or a list of values; give one, or another"
                    " --method than grid"
                )
            cells *= len(dimension.values)
        if cells > GRID_MAX:
            raise ConfigError(f"the grid has {cells:,} cells, more than {GRID_MAX:,}; take --method random or tpe")
        names = [dimension.name for dimension in self.dimensions]
        return (
            dict(zip(names, cell, strict=True))
            for cell in product(*(dimension.values for dimension in self.dimensions))
        )

    @property
    def size(self) -> int | None:
        """The number of different cells; None if a param takes any number of a range."""
        counts = [dimension.count for dimension in self.dimensions]
        return None if None in counts else prod(count for count in counts if count is not None)

    def sample(self, count: int, seed: int) -> Iterator[dict[str, Scalar]]:
        """`count` different cells chosen at random, or all cells if the space has fewer.

        With one seed, a larger count gives the cells of a smaller count and more.
        """
        chance = Random(f"{seed}:sweep")
        seen: set[str] = set()
        repeats = 0
        while len(seen) < min(count, self.size or count):
            cell = {dimension.name: dimension.drawn(chance) for dimension in self.dimensions}
            repeats = repeats + 1 if key_of(cell) in seen else 0
            # Few are left: take them in their order.
            if repeats == REPEATS_MAX:
                cell, repeats = self.untried(seen) or cell, 0
            if key_of(cell) not in seen:
                seen.add(key_of(cell))
                yield cell

    def untried(self, seen: Collection[str]) -> dict[str, Scalar] | None:
        """The first cell whose key is not in `seen`; None if there is none, or the cells cannot be counted."""
        if self.size is None:
            return None
        names = [dimension.name for dimension in self.dimensions]
        cells = (
            dict(zip(names, cell, strict=True))
            for cell in product(*(dimension.each() for dimension in self.dimensions))
        )
        return next((cell for cell in cells if key_of(cell) not in seen), None)

    def is_feasible(self, figures: Mapping[str, Any]) -> bool:
        return all(bound.excess(figures) <= 0 for bound in self.constraints)

    def values(self, figures: Mapping[str, Any]) -> list[float] | None:
        """The figures of the objectives; None if one is undefined, as the Sharpe ratio without a trade."""
        numbers = [figures.get(objective.figure) for objective in self.objectives]
        return None if None in numbers else [float(value) for value in numbers if value is not None]

    def plain(self) -> dict[str, Any]:
        """The space as JSON, to compare it with that of a stored study."""
        return {
            "params": {
                dimension.name: list(dimension.values)
                or {"from": dimension.low, "to": dimension.high, "log": dimension.is_log}
                for dimension in self.dimensions
            },
            "objectives": [
                [objective.figure, "highest" if objective.is_highest else "lowest"] for objective in self.objectives
            ],
            "constraints": [[constraint.figure, constraint.least, constraint.most] for constraint in self.constraints],
        }


@dataclass(slots=True)
class _Reader:
    """Reads one file and collects its problems, each with its line."""

    document: Document
    settings: Settings
    # The fields of the strategies' params, by STRATEGY.PARAM.
    fields: dict[str, Any] = field(default_factory=dict)
    _params: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _loaded: dict[str, Any] = field(default_factory=dict)
    _placed: dict[str, StrategySettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for placed in self.settings.strategies:
            strategy = loader.load(placed.use, self.settings.strategies_dir).strategy
            self._loaded[placed.name], self._params[placed.name] = strategy, placed.params
            self.fields |= {f"{placed.name}.{name}": info for name, info in strategy.Params.model_fields.items()}
            self._placed[placed.name] = placed

    def refuse(self, loc: Loc, message: str) -> None:
        self.document.problems.append(self.document.problem(loc, message))

    def dimension(self, name: str, given: Any, loc: Loc) -> Dimension | None:
        """One param with its values, or None after a problem."""
        rule = self._protection_field(name)
        if name not in self.fields and rule is None:
            near = did_you_mean(name, self.fields)
            self.refuse(
                loc,
                f"no strategy has this param{near}; there are {', '.join(sorted(self.fields)) or 'none'},"
                " and keys of protections such as STRATEGY.protections.cooldown",
            )
            return None
        is_whole = (rule or self.fields[name]).annotation is int
        if isinstance(given, list):
            if not given or not all(isinstance(value, Scalar) for value in given) or len(set(given)) < len(given):
                self.refuse(loc, "give a list of different values, or a range {from: 1, to: 10, step: 1}")
                return None
            if name.partition(".")[2] == INSTRUCTIONS_FILE:
                try:
                    given = self._files(given)
                except OutsideFolder:
                    self.refuse(
                        loc, "must be files in the folder of the space or below it, and no part of a path a link"
                    )
                    return None
            parsed = Dimension(name, tuple(given))
        elif isinstance(given, dict) and {"from", "to"} <= given.keys() <= set(RANGE):
            ranged = self._range(name, given, loc, is_whole=is_whole)
            if ranged is None:
                return None
            parsed = ranged
        else:
            self.refuse(loc, "give a list of values, or a range: from, to, and if wanted step or log")
            return None
        return parsed if self._is_within(name, parsed, loc) else None

    def _protection_field(self, name: str) -> Any:
        """The field of STRATEGY.protections.KEY or STRATEGY.protections.KEY.KEY; None for another name."""
        strategy, _, keys = name.partition(".")
        if strategy not in self._placed or not keys.startswith(PREFIX):
            return None
        protection, _, inner = keys.removeprefix(PREFIX).partition(".")
        kind = KINDS.get(protection)
        return None if kind is None else kind.model_fields.get(inner or SHORT.get(protection, ""))

    def _files(self, given: Sequence[Any]) -> list[str]:
        """Files of instructions as whole paths.

        A space may come from others, so it names files of its own folder only.
        """
        folder = Path(self.document.file).absolute().parent
        return [str(instructions_file(folder, str(value))) for value in given]

    def _range(self, name: str, given: Mapping[str, Any], loc: Loc, *, is_whole: bool) -> Dimension | None:
        low, high, step = (given.get(key) for key in ("from", "to", "step"))
        numbers = [value for value in (low, high, step) if value is not None]
        if not all(isinstance(value, int if is_whole else int | float) and value is not True for value in numbers):
            self.refuse(loc, f"from, to and step must be {'whole ' if is_whole else ''}numbers")
            return None
        assert low is not None
        assert high is not None
        if low >= high or (step is not None and step <= 0):
            self.refuse(loc, "from must be below to, and step above 0")
            return None
        is_log = given.get("log", False)
        if not isinstance(is_log, bool) or (is_log and (step is not None or low <= 0)):
            self.refuse(loc, "log must be true or false; a range with log has no step and begins above 0")
            return None
        if step is None:
            return Dimension(name, (), low, high, is_whole, is_log)
        try:
            values = stepped(*(Decimal(str(value)) for value in (low, high, step)))
        except ConfigError as error:
            self.refuse(loc, f"{error}, or none")
            return None
        return Dimension(name, tuple(int(value) if is_whole else float(value) for value in values))

    def _is_within(self, name: str, dimension: Dimension, loc: Loc) -> bool:
        """Whether the param itself accepts every value, or both ends of a range."""
        strategy, _, param = name.partition(".")
        if param.startswith(PREFIX):
            return self._is_accepted(strategy, param.removeprefix(PREFIX), dimension, loc)
        for value in dimension.values or (dimension.low, dimension.high):
            problems = loader.check_params(self._loaded[strategy], {**self._params[strategy], param: value})
            mine = [problem.message for problem in problems if problem.loc[:1] == (param,)]
            if mine:
                self.refuse(loc, f"the param does not accept {value!r}: {mine[0]}")
                return False
        return True

    def _is_accepted(self, strategy: str, keys: str, dimension: Dimension, loc: Loc) -> bool:
        """Whether the protections accept every value, or both ends of a range."""
        for value in dimension.values or (dimension.low, dimension.high):
            try:
                with_protections(self._placed[strategy], {keys: value})
            except ConfigError as error:
                self.refuse(loc, f"the protection does not accept {value!r}: {error}")
                return False
        return True

    def figure(self, name: Any, loc: Loc) -> bool:
        if name in FIGURES:
            return True
        near = did_you_mean(str(name), FIGURES)
        self.refuse(loc, f"{name!r} is no figure of the report{near}; there are {', '.join(FIGURES)}")
        return False

    def objective(self, given: Any, loc: Loc) -> Objective | None:
        if isinstance(given, dict):
            best = given.get("best", "highest")
            if not {"figure"} <= given.keys() <= {"figure", "best"} or best not in ("highest", "lowest"):
                self.refuse(loc, 'write a figure\'s name, or {figure: "Return [%]", best: highest or lowest}')
                return None
        else:
            given, best = {"figure": given}, "highest"
        return Objective(given["figure"], best == "highest") if self.figure(given["figure"], loc) else None

    def bound(self, name: Any, given: Any, loc: Loc) -> Bound | None:
        if not self.figure(name, loc):
            return None
        if (
            not isinstance(given, dict)
            or not given
            or not given.keys() <= {"min", "max"}
            or not all(isinstance(value, int | float) and value is not True for value in given.values())
        ):
            self.refuse(loc, "a constraint is {min: NUMBER}, {max: NUMBER} or both")
            return None
        return Bound(name, given.get("min"), given.get("max"))


def with_protections(strategy: StrategySettings, rules: Mapping[str, Any]) -> StrategySettings:
    """The strategy with other values in its protections. ConfigError names what it does not accept."""
    problems: list[tuple[Loc, str]]
    section = strategy.protections
    try:
        section = section.changed(rules)
        problems = section.problems(strategy.markets, INTERVAL_MS[strategy.interval])
    except ValidationError as error:
        problems = [(("protections", *fault["loc"]), fault["msg"]) for fault in error.errors()]
    if problems:
        raise ConfigError("; ".join(f"{'.'.join(map(str, (strategy.name, *loc)))}: {text}" for loc, text in problems))
    return strategy.model_copy(update={"protections": section})


def read_space(given: Path | Mapping[str, Any] | None, settings: Settings) -> Space:
    """The space of a file or of its content, and of the params that carry their own range. ConfigError names the line
    of each problem.
    """
    # JSON is YAML.
    text = text_of(given) if isinstance(given, Path) else json.dumps(given or {}, indent=1)
    document = Document(str(given) if isinstance(given, Path) else "space", text)
    document.read(lambda text, _key: text)
    if document.problems:
        raise _error(document)
    reader = _Reader(document, settings)
    data = _plain(document.data)
    if not isinstance(data, dict) or not data.keys() <= set(KEYS):
        reader.refuse((), f"a space has the keys {', '.join(KEYS)}")
        data = {}
    params, objectives, constraints = (
        data.get(key) or kind() for key, kind in zip(KEYS, (dict, list, dict), strict=True)
    )
    for key, value, kind in zip(KEYS, (params, objectives, constraints), (dict, list, dict), strict=True):
        if not isinstance(value, kind):
            reader.refuse((key,), f"must be a {'list' if kind is list else 'mapping'}")
    if document.problems:
        raise _error(document)
    own = {
        name: extra["sweep"]
        for name, info in reader.fields.items()
        if isinstance(extra := info.json_schema_extra, dict) and "sweep" in extra
    }
    dimensions = [reader.dimension(str(name), given, ("params", name)) for name, given in {**own, **params}.items()]
    sought = [reader.objective(given, ("objectives", number)) for number, given in enumerate(objectives)]
    bounds = [reader.bound(name, given, ("constraints", name)) for name, given in constraints.items()]
    if not dimensions and not document.problems:
        reader.refuse(("params",), "names no param; write for example `params: {trend.fast_bars: [5, 10, 20]}`")
    if document.problems:
        raise _error(document)
    return Space(
        tuple(dimension for dimension in dimensions if dimension is not None),
        tuple(objective for objective in sought if objective is not None) or (Objective(OBJECTIVE),),
        tuple(bound for bound in bounds if bound is not None),
    )


def _plain(value: Any) -> Any:
    """The data of a document with floats for decimals."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value


def _error(document: Document) -> ConfigError:
    problems = tuple(document.shown(problem) for problem in dict.fromkeys(document.problems))
    return ConfigError("\n".join(map(str, problems)), problems)
