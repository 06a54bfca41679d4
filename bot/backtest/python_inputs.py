"""What Python gives to a backtest, as the files that a backtest reads: a strategy class becomes a config, a data frame
becomes a file of candles.

The files lie in `inputs` beside the runs, named by their content, so that `bot replay` and `bot compare` find them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bot.backtest.data.candles import Candles, load, market_name
from bot.backtest.data.importers import ordered, read_foreign
from bot.backtest.data.store import write_file
from bot.backtest.data.table_layout import ColumnMap
from bot.config.source import LISTINGS
from bot.errors import BotError, ConfigError
from bot.files import replacing
from bot.strategy import Strategy

# A class of a notebook has no file; it is found here under its name, in this process only.
CLASSES: Final = "bot.given_in_python"
FOLDER: Final = "inputs"
# the name of a series that has none
SERIES: Final = "SERIES"


def data_files(data: Any, *, markets: Sequence[str] | None, folder: Path) -> list[str]:
    """The candle files of `data`: paths, frames of polars or pandas, or a mapping of market to one of them.

    A frame is read as `bot data import` reads a file, so it knows the same names and forms of time; the time may be the
    index of pandas. Its candles are written to a file in `folder`. ConfigError for anything else, and for a frame whose
    market is not clear.
    """
    if isinstance(data, Mapping):
        if not data:
            raise ConfigError('data: there is no market in it; write {"BTC": frame}')
        return [f"{name}={_file_of(given, name, folder)}" for name, given in data.items()]
    if _is_frame(data):
        if markets is None or len(markets) != 1:
            several = ", ".join(markets or ()) or "none"
            raise ConfigError(
                f'data: a frame is of one market, and {several} are traded: write {{"BTC": frame, "ETH": frame}}'
            )
        return [f"{markets[0]}={_file_of(data, markets[0], folder)}"]
    given = [data] if isinstance(data, str | Path) else data
    if not isinstance(given, list | tuple):
        kind = data.__name__ if isinstance(data, type) else type(data).__name__
        raise ConfigError(
            f"data: {kind} is neither a path nor a frame: write the path of a candle file or folder, a frame of polars"
            ' or pandas, or {"BTC": frame}'
        )
    if not given:
        raise ConfigError("data: there is nothing in the list; write the path of a candle file or folder")
    for entry in given:
        if not isinstance(entry, str | Path):
            kind = type(entry).__name__
            raise ConfigError(
                f'data: {kind} in a list is no path: write {{"BTC": frame}} for frames of several markets'
            )
    return [str(entry) for entry in given]


def series_of(data: Any, *, folder: Path) -> Candles:
    """The candles of one series: a path, a frame, or {"NAME": frame}. A frame may have a time and a close alone."""
    name, given = next(iter(data.items())) if isinstance(data, Mapping) and len(data) == 1 else (SERIES, data)
    if _is_frame(given):
        given = _filled(given.collect() if type(given).__name__ == "LazyFrame" else given)
    return load([Path(f"{name}={_file_of(given, str(name), folder)}")], listed=False)[0]


def config_of_class(
    strategy: type[Strategy],
    files: Sequence[str],
    *,
    markets: Sequence[str] | None,
    interval: str | None,
    params: Mapping[str, Any],
    budget_usd: float,
    max_leverage: int,
    folder: Path,
) -> Path:
    """Write the config of a run of this class over the candles of `files`, and return its path.

    It trades `markets`; None: all that the files have. `interval` is that of its bars; None: the shortest of the
    candles. A class in a file is named by its file, so that another process can repeat the run; one of a notebook lives
    in this process only.
    """
    candles = load([Path(file) for file in files], markets=markets)
    name = re.sub(r"[^a-z0-9]+", "-", strategy.__name__.lower()).strip("-")[:40] or "mine"
    use, strategies_dir = _place_of(strategy, folder)
    entry = {
        "name": name,
        "use": use,
        "markets": sorted({series.market for series in candles}) if markets is None else list(markets),
        "interval": interval or min(candles, key=lambda series: series.step_ms).interval,
        "params": dict(params),
        "budget_usd": budget_usd,
        "max_leverage": max_leverage,
    }
    config = {
        "name": name,
        "account": {"base_url": "embedded"},
        "dead_man": "off",
        # The config lies in a folder of its own.
        **({"listings": str(Path(LISTINGS).absolute())} if Path(LISTINGS).is_file() else {}),
        "strategies_dir": str(strategies_dir.absolute()),
        "strategies": [entry],
    }
    # JSON is YAML.
    text = json.dumps(config, indent=2, default=str) + "\n"
    return _stored(folder, f"{name}.yaml", text.encode())


def _place_of(strategy: type[Strategy], folder: Path) -> tuple[str, Path]:
    """What a config names the class by, and the folder of its strategies. `folder` is that of a class without one."""
    name, home = strategy.__name__, sys.modules.get(strategy.__module__)
    file = getattr(home, "__file__", None)
    if strategy.__module__ == "__main__" or file is None or getattr(home, name, None) is not strategy:
        module = sys.modules.setdefault(CLASSES, types.ModuleType(CLASSES, "Strategy classes that have no file."))
        module.__file__ = None
        # A cell that is run again defines the class anew.
        setattr(module, name, strategy)
        return f"{CLASSES}:{name}", folder
    if "." in strategy.__module__:
        return f"{strategy.__module__}:{name}", folder
    return f"{Path(file).stem}:{name}", Path(file).parent


def markets_of(data: Any, markets: Sequence[str] | str | None) -> list[str] | None:
    """The markets that a class trades: those given, those of a mapping, BTC for one frame; None: those of the files."""
    if markets is not None:
        return [market_name(name) for name in ([markets] if isinstance(markets, str) else markets)]
    if isinstance(data, Mapping):
        return [market_name(str(name)) for name in data]
    return ["BTC"] if _is_frame(data) else None


def _is_frame(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] in ("polars", "pandas") and type(data).__name__.endswith("Frame")


def _file_of(given: Any, market: str, folder: Path) -> str:
    """The path of the candles of one market; a frame is written first."""
    if isinstance(given, str | Path):
        return str(given)
    if not _is_frame(given):
        raise ConfigError(f"data: {market}: {type(given).__name__} is neither a path nor a frame of polars or pandas")
    raw = _stored(folder, f"{market.replace(':', '_')}.frame.csv", _csv_of(given, market))
    path = raw.with_name(f"{market.replace(':', '_')}.csv")
    if not path.is_file():
        try:
            write_file(path, ordered(read_foreign(raw, market, ColumnMap({}))))
        except ConfigError as error:
            hint = "; in a frame, add the column: volume=1.0" if "'volume'" in str(error) else ""
            raise ConfigError(f"data: the frame of {market}: {error}{hint}".replace(f"{raw}: ", "")) from None
    return str(path)


def _filled(frame: Any) -> Any:
    """The frame of a series with the columns of candles: each price that it lacks is its close, each volume is 0."""
    names = {str(name).lower(): str(name) for name in frame.columns}
    if "close" not in names:
        return frame
    close = frame[names["close"]]
    lacking = {name: close for name in ("open", "high", "low") if "open" not in names}
    if not any("vol" in name or name == "v" for name in names):
        lacking["volume"] = 0 * close
    return frame.assign(**lacking) if hasattr(frame, "assign") else frame.with_columns(**lacking)


def _csv_of(frame: Any, market: str) -> bytes:
    """A frame as CSV; its header has the frame's own names, which the reader of CSV files knows or refuses."""
    if type(frame).__name__ == "LazyFrame":
        frame = frame.collect()
    if hasattr(frame, "write_csv"):
        text = frame.write_csv()
    else:
        levels = getattr(frame.columns, "nlevels", 1)
        if levels > 1:
            raise ConfigError(
                f"data: {market}: the frame has {levels} levels of column names; take one market of it first, for"
                " example frame.xs(name, axis=1, level=1)"
            )
        # Rows that are only numbered have no time in their index.
        has_times = type(frame.index).__name__ in ("DatetimeIndex", "PeriodIndex")
        text = frame.to_csv(index=has_times, index_label="time" if has_times else None)
    if not text.strip():
        raise ConfigError(f"data: {market}: the frame has no rows")
    return str(text).encode()


def _stored(folder: Path, name: str, content: bytes) -> Path:
    """Write the content to a file that is named by it, unless it is there already."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    path = folder / digest / name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise BotError(f"{path}: cannot be written: {error.strerror or error}; choose another place with out") from None
    return path
