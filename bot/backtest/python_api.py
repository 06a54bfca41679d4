"""Backtests from Python: `from bot.backtest import run`. A notebook or a script does what `bot backtest` does, and gets
data frames.

The data frames are of polars, which comes with the extra `research`.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from bot.backtest.data.candles import Candles
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.progress import Progress
from bot.backtest.inputs import Files, Inputs, traded
from bot.backtest.python_inputs import FOLDER, config_of_class, data_files, markets_of, series_of
from bot.backtest.report.benchmark import ClosePrices, relation_of
from bot.backtest.report.derived import relation_figures
from bot.backtest.report.page import render_charts, render_html
from bot.backtest.report.summary import costs_of, figure_lines, line_of, nothing_traded, ran_text, risk_of
from bot.backtest.results import run_writer
from bot.backtest.results.run_reader import StoredRun, StoredTrade, read_run
from bot.checks.config_check import checked_text
from bot.checks.listing_file import use_listings_here
from bot.clock import SystemClock, ms_of
from bot.config.source import text_of
from bot.errors import BotError, ConfigError
from bot.extras import install
from bot.files import replacing
from bot.logs import quiet_log
from bot.strategy import Strategy
from bot.words import did_you_mean

if TYPE_CHECKING:
    import polars as pl

# height of the charts in a notebook
PLOT_PX: Final = 720
# budget in USD of a class, if nothing else is given
BUDGET_USD: Final = 1_000.0
# letters of the bar that shows the progress
BAR_WIDTH: Final = 40
Place = str | Path
Instant = str | date | datetime | int


@dataclass(frozen=True)
class BacktestRun:
    """A finished backtest. Its folder has the files that `bot report`, `bot compare` and `bot replay` read."""

    folder: Path
    figures: Mapping[str, Any] = field(repr=False)
    # what alpha and beta are against; None: the markets of the run
    benchmark: Candles | None = field(default=None, repr=False)

    def against(self, data: Any) -> BacktestRun:
        """The same run with alpha, beta and correlation to another series: a path, a frame with a time and a close, or
        {"SPX": frame}. They are of daily returns, over the days that both have.
        """
        return replace(self, benchmark=series_of(data, folder=self.folder.parent / FOLDER))

    def __str__(self) -> str:
        """The statistics in full, as `bot backtest` shows them; alpha and beta to the markets, or to `benchmark`."""
        stored = self.stored
        course = stored.summary["course"]
        figures = {**stored.summary["figures"], **risk_of(stored)}
        lines = [f"  {ran_text(stored)}"]
        lines += figure_lines(figures, stored.summary.get("band"), course["toMs"] - course["fromMs"])
        lines += [line_of(figure) for figure in costs_of(stored)]
        other = self.benchmark
        related = relation_of(stored, None if other is None else ClosePrices.of(other))
        lines.append(f"  Against {'its markets' if other is None else other.market}, by daily returns")
        lines += [line_of(figure) for figure in relation_figures(related)]
        if (nothing := nothing_traded(stored.summary)) is not None:
            lines.append(f"  {nothing}")
        return "\n".join([f"{stored.name}", *lines])

    @cached_property
    def stored(self) -> StoredRun:
        """The files of the folder as Python objects."""
        return read_run(self.folder)

    @cached_property
    def trades(self) -> pl.DataFrame:
        """One row for each round trip, in the order of their exits; an open trade has no exit.

        Columns: number, strategy, market, side, size, entry_at, entry_px, entry_kind, exit_at, exit_px, exit_kind,
        fees_usd, funding_usd, pnl_usd (after fees and funding), r_multiple, stop_px, target_px, slippage_usd, low_px,
        high_px. Instants are UTC.
        """
        return trades_frame(self.stored.trades)

    @cached_property
    def equity(self) -> pl.DataFrame:
        """One row for each close: at (UTC), equity_usd, exposure_usd (the notional of the positions), drawdown_pct
        (0 or below).
        """
        frames = polars()
        stored = self.stored
        frame = frames.DataFrame({"at": stored.at_ms, "equity_usd": stored.equity, "exposure_usd": stored.exposure})
        peak = frames.max_horizontal(frames.col("equity_usd").cum_max(), float(stored.summary["startUsd"]))
        table: pl.DataFrame = frame.with_columns(
            frames.col("at").cast(frames.Datetime("ms", "UTC")),
            drawdown_pct=(frames.col("equity_usd") / peak - 1) * 100,
        )
        return table

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """The figures of the report: figure, value. A figure that the trades do not define is null."""
        frames = polars()
        rows = {name: value for name, value in self.figures.items() if value is None or isinstance(value, int | float)}
        schema = {"figure": frames.String, "value": frames.Float64}
        table: pl.DataFrame = frames.DataFrame(list(rows.items()), schema=schema, orient="row", strict=False)
        return table

    def plot(self) -> Charts:
        """The charts of the report: equity, drawdown, price with trades.

        A notebook shows them; `save` writes a page.
        """
        return Charts(render_charts(self.stored))

    def report(self, path: Place | None = None) -> Path:
        """Write the report, a page that is whole offline, and return its path.

        Default: report.html in the folder of the run.
        """
        return written(Path(path) if path is not None else self.folder / "report.html", render_html(self.stored))


@dataclass(frozen=True)
class Charts:
    """A page with charts."""

    page: str = field(repr=False)

    def save(self, path: Place) -> Path:
        """Write the page, which is whole offline, and return its path."""
        return written(Path(path), self.page)

    def _repr_html_(self) -> str:
        page = html.escape(self.page)
        return (
            f'<iframe srcdoc="{page}" style="width:100%;height:{PLOT_PX}px;border:0" title="Charts of a'
            ' backtest"></iframe>'
        )


def trades_frame(trades: Iterable[StoredTrade]) -> pl.DataFrame:
    """Trades as `BacktestRun.trades` has them."""
    frames = polars()
    kinds = {"int": frames.Int64, "int | None": frames.Int64, "str": frames.String}
    names = {column.name: kinds.get(str(column.type), frames.Float64) for column in fields(StoredTrade)}
    rows = [[getattr(trade, name) for name in names] for trade in trades]
    frame = frames.DataFrame(rows, schema=names, orient="row")
    instants = [frames.col(name).cast(frames.Datetime("ms", "UTC")) for name in ("entry_ms", "exit_ms")]
    renamed: pl.DataFrame = frame.with_columns(instants).rename({"entry_ms": "entry_at", "exit_ms": "exit_at"})
    return renamed


def run(
    strategy: Place | type[Strategy],
    data: Any,
    *,
    markets: Sequence[str] | str | None = None,
    interval: str | None = None,
    budget_usd: float = BUDGET_USD,
    max_leverage: int = 1,
    start: Instant | None = None,
    end: Instant | None = None,
    balance_usd: float | Decimal | None = None,
    params: Mapping[str, Any] | None = None,
    out: Place = "runs",
    options: SessionOptions | None = None,
    progress: bool | None = None,
) -> BacktestRun:
    """Run a strategy over candles in simulated time, as `bot backtest` does.

    `strategy` is the path of a config, or a class. `data` are paths of candle files or folders (MARKET=FILE names the
    market), a frame of polars or pandas with a time and open, high, low, close and volume, or a mapping of
    market to path or frame. `start` and `end` (exclusive) are dates, datetimes, ISO texts or ms UTC. `params` are
    values by "strategy.param", of a class by "param". `options` sets fees, latency and the rest; the balance is 10,000
    USD if nothing says another. `progress` shows a bar; None: on a terminal and in a notebook.

    Of a class only: `markets` (default: those of the mapping or of the files; BTC for one frame), `interval` of its
    bars (that of the candles), `budget_usd` and `max_leverage`.

    ConfigError if something cannot be used; BotError if a strategy fails, or if the folder cannot be written.
    """
    inputs = checked_inputs(
        strategy,
        data,
        markets=markets,
        interval=interval,
        budget_usd=budget_usd,
        max_leverage=max_leverage,
        start=start,
        end=end,
        balance_usd=balance_usd,
        params=params,
        out=out,
        options=options,
    )
    with quiet_log(), progress_bar(is_shown=progress) as going:
        prepared = inputs.make()
        manifest = inputs.manifest(inputs.assumptions(prepared))
        folder = run_writer.folder_for(Path(out), inputs.settings.name, SystemClock().now_ms())
        try:
            result, lost = inputs.run_into(folder, prepared, going)
            if lost is not None:
                raise lost
            run_writer.write(folder, result, manifest)
        except OSError as error:
            why = error.strerror or error
            raise BotError(f"{folder}: cannot be written: {why}; choose another place with out") from None
    if result.stats.quarantined:
        raise BotError(f"{'; '.join(result.stats.quarantined.values())}: quarantined, and not called again ({folder})")
    return BacktestRun(folder, dict(result.figures))


def _options(
    given: SessionOptions | None, *, start: Instant | None, end: Instant | None, balance_usd: float | Decimal | None
) -> SessionOptions:
    chosen: dict[str, Any] = {
        "start_ms": _ms("start", start),
        "end_ms": _ms("end", end),
        "balance_usd": None if balance_usd is None else Decimal(str(balance_usd)),
    }
    return replace(given or SessionOptions(), **{name: value for name, value in chosen.items() if value is not None})


class RunInputs(TypedDict, total=False):
    """What `run`, `sweep` and `screen` take besides a strategy and data; see `run`."""

    markets: Sequence[str] | str | None
    interval: str | None
    budget_usd: float
    max_leverage: int
    start: Instant | None
    end: Instant | None
    balance_usd: float | Decimal | None
    params: Mapping[str, Any] | None
    out: Place
    options: SessionOptions | None


def checked_inputs(strategy: Any, data: Any, **given: Unpack[RunInputs]) -> Inputs:
    """The checked inputs of a run. ConfigError if something cannot be used."""
    if unknown := sorted(given.keys() - RunInputs.__annotations__.keys()):
        known = [*RunInputs.__annotations__]
        raise ConfigError(
            f"{unknown[0]}: no such argument{did_you_mean(unknown[0], known)}; there are {', '.join(known)}"
        )
    markets, interval = given.get("markets"), given.get("interval")
    folder = Path(given.get("out", "runs")) / FOLDER
    params = given.get("params") or {}
    options = _options(
        given.get("options"), start=given.get("start"), end=given.get("end"), balance_usd=given.get("balance_usd")
    )
    if isinstance(strategy, str | Path):
        if markets is not None or interval is not None:
            raise ConfigError("markets and interval are those of the config; only a class takes them here")
        config = Path(strategy)
        traded_markets = traded(checked_text(text_of(config), config)) if not isinstance(data, str | Path) else []
        files = data_files(data, markets=traded_markets, folder=folder)
        return Inputs(config, Files(files), options, params=param_texts(params))
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        kind = strategy.__name__ if isinstance(strategy, type) else type(strategy).__name__
        raise ConfigError(
            f"strategy: {kind} is neither the path of a config nor a class that extends Strategy; `bot init` makes a"
            " project with both"
        )
    use_listings_here()
    names = markets_of(data, markets)
    files = data_files(data, markets=names, folder=folder)
    config = config_of_class(
        strategy,
        files,
        markets=names,
        interval=interval,
        params=params,
        budget_usd=given.get("budget_usd", BUDGET_USD),
        max_leverage=given.get("max_leverage", 1),
        folder=folder,
    )
    return Inputs(config, Files(files), options)


@contextmanager
def progress_bar(*, is_shown: bool | None, what: str = "bars") -> Iterator[Progress]:
    """A bar on standard error: how many are done of how many in all. None: shown on a terminal and in a notebook."""
    if is_shown is None:
        is_shown = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    if not is_shown:
        yield lambda done, of: True
        return
    shown = -1

    def going(done: int, of: int) -> bool:
        nonlocal shown
        percent = 100 * done // of if of else 100
        if percent != shown:
            shown = percent
            filled = percent * BAR_WIDTH // 100
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            sys.stderr.write(f"\r{bar} {percent:>3} %  {done:,} of {of:,} {what}")
            sys.stderr.flush()
        return True

    try:
        yield going
    finally:
        sys.stderr.write("\n")


def param_texts(params: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Values by "strategy.param" as YAML texts by (strategy, param). ConfigError for a name without a point."""
    texts = {}
    for name, value in params.items():
        strategy, point, param = name.partition(".")
        if not (strategy and point and param):
            raise ConfigError(f"params: {name!r}: write STRATEGY.PARAM, for example trend.fast_bars")
        # JSON is YAML.
        texts[strategy, param] = json.dumps(value, default=str)
    return texts


def _ms(name: str, given: Instant | None) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day, tzinfo=UTC)
    try:
        # The text of a numpy.datetime64 is an ISO time.
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise ConfigError(f"{name}: {given!r} is not a time; write 2025-05-01 or 2025-05-01T10:30") from None
    return ms_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def polars() -> Any:
    try:
        import polars as pl
    except ImportError:
        raise BotError(f"data frames need the package polars: {install('research')}") from None
    return pl


def written(path: Path, page: str) -> Path:
    try:
        with replacing(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise BotError(f"{path}: cannot be written: {error.strerror or error}; choose another place") from None
    return path
