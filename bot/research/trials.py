"""One trial: a backtest of a config with other params.

What a worker needs for it can be pickled, and so sent to another process or machine.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from bot import __version__
from bot.backtest.backtest import Backtest, strategies_of
from bot.backtest.data.candles import Candles
from bot.backtest.data.funding_rates import Payment
from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Inputs
from bot.backtest.results.run_writer import Result
from bot.backtest.results.statistics import daily_returns
from bot.config import Settings
from bot.config.protections import PREFIX
from bot.errors import BotError, ConfigError
from bot.logs import quiet_log
from bot.research.space import Params, with_protections
from bot.runtime.kernel.assembly import place_strategies
from bot.runtime.strategy_host import loader
from bot.runtime.strategy_host.package_versions import code_sha256
from bot.service.market_data.instruments import add_listings

if TYPE_CHECKING:
    from bot.research.screen.screen import Screened
    from bot.strategy import Strategy

# The bytes of the strategies' files, which go to every worker.
SOURCES_BYTES_MAX: Final = 8_000_000

State = Literal["complete", "pruned", "refused", "failed"]


class Task(NamedTuple):
    """The params of one trial.

    `until_ms`: first run to this instant, and go on only if the figure of `pruned_by` reaches its floor there.
    """

    number: int
    params: Params
    until_ms: int | None = None
    # figure, is highest best, floor
    pruned_by: tuple[str, bool, float | None] | None = None
    # instead of the range of the bundle: from and to (exclusive), ms UTC
    span: tuple[int, int] | None = None
    # True: tried by the compiled screen; a full backtest runs where the screen cannot decide
    is_screened: bool = False


class TrialOutcome(NamedTuple):
    """The end of a trial. `figures` are those of the report, `returns` one for each UTC day with prices. refused: the
    strategy does not accept the params.
    """

    number: int
    state: State
    figures: Mapping[str, Any] = {}
    returns: Sequence[float] = ()
    digest: str = ""
    message: str = ""
    # the figure at `until_ms`
    early: float | None = None


@dataclass(frozen=True)
class Bundle:
    """Everything that a worker needs. `sources` are the files of the strategies' folder."""

    settings: Settings
    candles: tuple[Candles, ...] = field(repr=False)
    options: SessionOptions
    rates: Mapping[str, Sequence[Payment]] = field(repr=False)
    sources: Mapping[str, bytes] = field(repr=False)
    # the version of everything that runs on a worker
    code: str
    _folders: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name in self.__dataclass_fields__} | {
            "_folders": []
        }

    @cached_property
    def at_home(self) -> Settings:
        """The settings with the strategies' folder of this machine; it is made from `sources` where it does not
        exist.
        """
        if not self.sources or self.settings.strategies_dir.is_dir():
            return self.settings
        folder = tempfile.TemporaryDirectory(prefix="bot-strategies-")
        # Removed with this object.
        self._folders.append(folder)
        for name, text in self.sources.items():
            path = Path(folder.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        return self.settings.model_copy(update={"strategies_dir": Path(folder.name)})

    @cached_property
    def classes(self) -> dict[str, type[Strategy]]:
        """The strategies' classes by name, which check params. Each trial runs its own, freshly loaded."""
        home = self.at_home
        return {strategy.name: loader.load(strategy.use, home.strategies_dir).strategy for strategy in home.strategies}

    def with_params(self, params: Params) -> Settings:
        """The settings with other params. ConfigError if a strategy does not accept them."""
        home = self.at_home
        strategies = []
        for strategy in home.strategies:
            mine = {
                name.partition(".")[2]: value
                for name, value in params.items()
                if name.partition(".")[0] == strategy.name
            }
            rules = {name.removeprefix(PREFIX): mine.pop(name) for name in [*mine] if name.startswith(PREFIX)}
            wanted = {**strategy.params, **mine}
            problems = loader.check_params(self.classes[strategy.name], wanted)
            if problems:
                raise ConfigError(
                    "; ".join(f"{'.'.join(map(str, (strategy.name, *p.loc)))}: {p.message}" for p in problems)
                )
            changed = strategy.model_copy(update={"params": wanted})
            strategies.append(with_protections(changed, rules) if rules else changed)
        return home.model_copy(update={"strategies": strategies})

    @cached_property
    def grounds(self) -> dict[Any, Any]:
        """What the screen has made of the candles, by range."""
        return {}

    def run(self, settings: Settings, options: SessionOptions) -> Result:
        with quiet_log():
            return Backtest(settings, self.candles, options, rates=self.rates).run()


def bundle_of(inputs: Inputs) -> Bundle:
    """The bundle of a checked backtest."""
    settings = inputs.settings
    sources: dict[str, bytes] = {}
    if settings.strategies_dir.is_dir():
        for path in sorted(settings.strategies_dir.rglob("*.py")):
            sources[str(path.relative_to(settings.strategies_dir))] = path.read_bytes()
    if sum(map(len, sources.values())) > SOURCES_BYTES_MAX:
        raise ConfigError(
            f"{settings.strategies_dir}: its Python files are larger than {SOURCES_BYTES_MAX:,} bytes; point"
            " strategies_dir at the strategies alone"
        )
    return Bundle(settings, tuple(inputs.candles), inputs.options, inputs.rates, sources, code_of(settings))


def code_of(settings: Settings) -> str:
    """The versions of Python, this package and the strategies, as one text.

    Two workers with the same text give the same result.
    """
    strategies = " ".join(f"{strategy['name']}={str(strategy['sha256'])[:12]}" for strategy in strategies_of(settings))
    return f"Python {platform.python_version()}, bracketbot {__version__} ({code_sha256()[:12]}), {strategies}"


def code_here(bundle: Bundle) -> str:
    """As `code_of`, on the worker that is asked."""
    return code_of(bundle.at_home)


def evaluate(bundle: Bundle, task: Task) -> TrialOutcome:
    """Run one trial. A strategy that fails is an outcome, not an error."""
    # A worker on another machine has read no listing file.
    add_listings(bundle.options.listings)
    try:
        settings = bundle.with_params(task.params)
        options, early = bundle.options, None
        if task.span is not None:
            options = replace(options, start_ms=task.span[0], end_ms=task.span[1])
        message = ""
        if task.is_screened:
            screened = screened_of(bundle, settings, options)
            if screened.why_not is None:
                figures, days = screened.figures()
                return TrialOutcome(task.number, "complete", figures, days)
            message = f"by a full backtest, because the screen stopped at {screened.why_not}"
        if task.until_ms is not None and task.pruned_by is not None:
            figure, is_highest, floor = task.pruned_by
            early = bundle.run(settings, replace(options, end_ms=task.until_ms)).figures.get(figure)
            if floor is not None and (early is None or (early < floor if is_highest else early > floor)):
                return TrialOutcome(task.number, "pruned", early=early)
        result = bundle.run(settings, options)
    except ConfigError as error:
        return TrialOutcome(task.number, "refused", message=str(error))
    except BotError as error:
        return TrialOutcome(task.number, "failed", message=str(error))
    if result.stats.quarantined:
        return TrialOutcome(task.number, "failed", message="; ".join(result.stats.quarantined.values()))
    curve = result.curve
    returns = daily_returns(
        curve.at_ms, curve.equity, start_ms=result.start_ms, start_usd=result.start_usd, only_with_prices=True
    )
    return TrialOutcome(task.number, "complete", dict(result.figures), returns, result.digest, message, early)


def screened_of(bundle: Bundle, settings: Settings, options: SessionOptions) -> Screened:
    """Run the compiled screen for these settings, which `screen.markets.refuse` has let pass."""
    from bot.research.screen.markets import ground_of
    from bot.research.screen.screen import screen

    with quiet_log():
        (spec,) = place_strategies(settings)
    key = (options.start_ms, options.end_ms)
    if key not in bundle.grounds:
        bundle.grounds[key] = ground_of(spec, bundle.candles, options, bundle.rates)
    return screen(bundle.grounds[key], spec)
