"""Backtests from Python: `from bot.backtest import run`. A notebook or a script does what `bot backtest` does, and gets
data frames.

The data frames are of polars, which comes with the extra `research`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot.backtest.engine.options import SessionOptions
from bot.backtest.inputs import Files, Inputs
from bot.backtest.report.page import render_charts, render_html
from bot.backtest.results import run_writer
from bot.backtest.results.run_reader import StoredRun, StoredTrade, read_run
from bot.clock import SystemClock, ms_of
from bot.errors import BotError, ConfigError
from bot.extras import install
from bot.files import replacing
from bot.logs import quiet_log

if TYPE_CHECKING:
    import polars as pl

# height of the charts in a notebook
PLOT_PX: Final = 720
Place = str | Path
Instant = str | date | datetime | int


@dataclass(frozen=True)
class BacktestRun:
    """A finished backtest. Its folder has the files that `bot report`, `bot compare` and `bot replay` read."""

    folder: Path
    figures: Mapping[str, Any] = field(repr=False)

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
        frames = _polars()
        kinds = {"int": frames.Int64, "int | None": frames.Int64, "str": frames.String}
        names = {column.name: kinds.get(str(column.type), frames.Float64) for column in fields(StoredTrade)}
        rows = [[getattr(trade, name) for name in names] for trade in self.stored.trades]
        frame = frames.DataFrame(rows, schema=names, orient="row")
        instants = [frames.col(name).cast(frames.Datetime("ms", "UTC")) for name in ("entry_ms", "exit_ms")]
        renamed: pl.DataFrame = frame.with_columns(instants).rename({"entry_ms": "entry_at", "exit_ms": "exit_at"})
        return renamed

    @cached_property
    def equity(self) -> pl.DataFrame:
        """One row for each close: at (UTC), equity_usd, exposure_usd (the notional of the positions), drawdown_pct
        (0 or below).
        """
        frames = _polars()
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
        frames = _polars()
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
        return _written(Path(path) if path is not None else self.folder / "report.html", render_html(self.stored))


@dataclass(frozen=True)
class Charts:
    """A page with charts."""

    page: str = field(repr=False)

    def save(self, path: Place) -> Path:
        """Write the page, which is whole offline, and return its path."""
        return _written(Path(path), self.page)

    def _repr_html_(self) -> str:
        page = html.escape(self.page)
        return (
            f'<iframe srcdoc="{page}" style="width:100%;height:{PLOT_PX}px;border:0" title="Charts of a'
            ' backtest"></iframe>'
        )


def run(
    config: Place,
    data: Place | Sequence[Place],
    *,
    start: Instant | None = None,
    end: Instant | None = None,
    balance_usd: float | Decimal | None = None,
    params: Mapping[str, Any] | None = None,
    out: Place = "runs",
    options: SessionOptions | None = None,
) -> BacktestRun:
    """Run the daemon of a config over recorded candles in simulated time, as `bot backtest` does.

    `data` are candle files or folders; MARKET=FILE names the market. `start` and `end` (exclusive) are datetimes, ISO
    texts or ms UTC. `params` are values by "strategy.param". `options` sets fees, latency and the rest; the balance is
    10,000 USD if nothing says another. ConfigError if something cannot be used; BotError if a strategy fails, or if the
    folder cannot be written.
    """
    given = [data] if isinstance(data, str | Path) else _places("data", data)
    _places("config", [config])
    chosen: dict[str, Any] = {
        "start_ms": _ms("start", start),
        "end_ms": _ms("end", end),
        "balance_usd": None if balance_usd is None else Decimal(str(balance_usd)),
    }
    options = replace(
        options or SessionOptions(), **{name: option for name, option in chosen.items() if option is not None}
    )
    inputs = Inputs(Path(config), Files([str(place) for place in given]), options, params=param_texts(params or {}))
    with quiet_log():
        prepared = inputs.make()
        manifest = inputs.manifest(inputs.assumptions(prepared))
        folder = run_writer.folder_for(Path(out), inputs.settings.name, SystemClock().now_ms())
        try:
            result, lost = inputs.run_into(folder, prepared, lambda done, of: True)
            if lost is not None:
                raise lost
            run_writer.write(folder, result, manifest)
        except OSError as error:
            why = error.strerror or error
            raise BotError(f"{folder}: cannot be written: {why}; choose another place with out") from None
    if result.stats.quarantined:
        raise BotError(f"{'; '.join(result.stats.quarantined.values())}: quarantined, and not called again ({folder})")
    return BacktestRun(folder, dict(result.figures))


def _places(name: str, given: Any) -> list[Place]:
    """Files and folders. ConfigError for what only looks like some: a frame, a class, a list of bars."""
    places = list(given) if isinstance(given, list | tuple) else [given]
    if not places:
        raise ConfigError(f"{name}: there is nothing in the list; write the path of a candle file or folder")
    for place in places:
        if not isinstance(place, str | Path):
            kind = place.__name__ if isinstance(place, type) else type(place).__name__
            way_out = {
                "config": "write the path of a config; `bot init` makes a project with one",
                "data": (
                    "write the path of a candle file or folder; a frame goes into a file first (df.to_csv), then `bot"
                    " data import`"
                ),
            }[name]
            raise ConfigError(f"{name}: {kind} is no path: {way_out}")
    return places


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
    if given is None or isinstance(given, int):
        return given
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime(given.year, given.month, given.day, tzinfo=UTC)
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (ValueError, TypeError):
        raise ConfigError(f"{name}: {given!r} is not a time; write 2025-05-01 or 2025-05-01T10:30") from None
    return ms_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _polars() -> Any:
    try:
        import polars as pl
    except ImportError:
        raise BotError(f"data frames need the package polars: {install('research')}") from None
    return pl


def _written(path: Path, page: str) -> Path:
    try:
        with replacing(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise BotError(f"{path}: cannot be written: {error.strerror or error}; choose another place") from None
    return path
