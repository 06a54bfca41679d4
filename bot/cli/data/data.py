"""`bot data`: import, audit, generate, list and pull candles for backtests.

Parses options and prints results; `bot.backtest.data` does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.formatting import say_left_out
from bot.cli.common.param_types import Group, Instant
from bot.cli.common.shared_options import INTERVAL, json_option
from bot.cli.data.accept_flags import accepted, accepting
from bot.cli.data.candle_source import _newest_or_why, client_of
from bot.cli.data.file_importer import ImportedSeries, ImportTarget, import_files_of
from bot.cli.data.file_reading import show_table
from bot.cli.data.history import PullOptions, pull_history, update
from bot.cli.data.output import day_text, print_json, progress, written_data, written_line
from bot.number_text import duration_ms
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles
    from bot.backtest.data.findings import AuditReport
    from bot.backtest.data.history import PullTarget
    from bot.backtest.data.origins import Origin
    from bot.backtest.data.store import Store, Written
    from bot.errors import BotError, ConfigError

STORE: Final = Path("data")
# Faults that do not stop an import. `bot backtest` decides about them.
LEFT_TO_SESSIONS: Final = ("gaps", "jumps", "zero-volume")

DATA = """\b
Examples:
  bot data gen BTC --from 2025-01-01 --days 365
  bot data import binance_BTCUSDT_1m.csv.gz
  bot data audit data
  bot data list
  bot data pull BTC ETH --interval 1m --config configs/paper.yaml
  bot data pull --from ccxt:binance BTC ETH --interval 1m --since 2024-01-01
  bot data update

\b
The store is the folder `data`: <MARKET>/<interval>.parquet with the extra `research`, .csv.gz without.
The candles are the same either way. `bot backtest CONFIG --data data` reads it.
"""

IMPORT = """\b
Examples:
  bot data import binance_BTCUSDT_1m_2025.csv.gz
  bot data import user_data/data/binance
  bot data import SPY=spy.txt --columns ts=Date+Time,open=O,high=H,low=L,close=C,volume=Vol --tz America/New_York
  bot data import eur.csv --market QQQ --unit '%d/%m/%Y %H:%M' --decimal , --stamp close
  bot data import frames/*.parquet --columns ts=open_time --store candles
  bot data import daily_60markets.csv.gz --market 'event:{id}' --columns price=yes --interval 1d --accept-off-grid

\b
Delimiter and header are detected, and so are the forms of known programs: docs/data.md has the table. A table says what
each file was read as. Where a file can be read in two ways, a person at a terminal is asked; elsewhere the import ends
with the option that decides. A file without a header has the columns time, open, high, low, close, volume, or
--columns by number (ts=1).
The first row decides whether times are ms, s, us, ns or ISO text; a file has one unit. A date without a time is a day
of UTC.
For a file with many markets, --market gives the pattern of their names: {id} stands for the value in column `id`. If
rows are samples of one price instead of candles, --columns price=NAME names that column. Rows that are only about an
interval apart need --interval and --accept-off-grid.
Gaps, jumps and missing volume are imported and reported. `bot backtest` has flags to accept them. The newest candle is
left out and reported if it is not closed yet.
Exit codes: 0 imported, 1 the data have other faults or the store has different values, 4 a file cannot be read.
"""

AUDIT = """\b
Examples:
  bot data audit data
  bot data audit BTC=btc_1m.csv.gz --json
  bot data audit lean_SPY_1m.csv.gz --accept-gaps

\b
Exit codes: 0 a backtest accepts the data (with the same --accept flags), 1 it refuses them, 4 a file cannot be read.
"""

GEN = """\b
Examples:
  bot data gen BTC --from 2025-01-01 --days 365 --seed 7
  bot data gen AAPL --interval 5m --from 2025-01-01 --days 90 --regimes bull:30,crash:3,recovery:10
  bot data gen MYCOIN --class crypto --from 2025-01-01 --days 30 --gaps 5 --out mycoin_1m.csv

\b
Regimes: calm, sideways, bull, bear, wild, crash, recovery, each with its number of days; `mixed` puts them in a random
order.
The same arguments give the same candles. The candles are artificial: use them to try things out, not to judge a
strategy.
"""

LIST = """\b
Example:
  bot data list

\b
Exit codes: 0 listed, 4 a file cannot be read (the others are listed).
"""

PULL = """\b
Examples:
  bot data pull BTC ETH --interval 1m --config configs/paper.yaml
  bot data pull BTC --interval 1h --base-url http://127.0.0.1:8700
  bot data pull --from ccxt:binance BTC ETH --interval 1m --since 2024-01-01 --funding
  bot data pull --from ccxt:kraken SOL=SOL/USD --interval 1d --since 2020-01-01 --until 2024-01-01
  bot data pull --from yfinance SPY TLT --interval 1d --since 2000-01-01

\b
A service keeps its newest 5,000 candles of each interval (for 1m: three and a half days). Pull again before they are
deleted, by cron or a timer.
Candles that the store already has are compared, and different values are refused. Candles with faults are refused, as
in `import`.
A refused market does not stop the others.

\b
--from asks an exchange through ccxt (the extra `markets`), or Yahoo through yfinance (the extra `yfinance`), which is
unofficial and may change or be blocked. No account and no key are used. A coin is the exchange's perpetual in USDT,
USDC or USD, else its spot market; COIN=SYMBOL names another. Only missing candles are asked for, so the same command
goes on after an interruption and fills holes.
Exit codes: 0 pulled, 1 the candles have faults, or the store has different values or cannot be written, 2 the source
has no such exchange, market, interval or span, 4 the store has another source or symbol under this name, 5 the source
does not answer, 7 it refuses this country or wants a key.
What was pulled is kept.
"""

UPDATE = """\b
Example:
  bot data update

\b
Candles and funding rates of each source that `bot data pull --from` recorded are pulled up to now, and holes are
filled. Exit codes as of `pull`.
"""

_JSON = json_option("Print JSON instead of text.")
_STORE = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=STORE,
    show_default=True,
    metavar="DIR",
    help="The store.",
)
_REPLACE = click.option("--replace", "replacing", is_flag=True, help="Replace candles that have different values.")
_HOURS = click.option(
    "--hours",
    metavar="HOURS",
    default=None,
    help="Trading hours: continuous, equity or index.  [default: by market, or detected from the rows]",
)


@click.group(cls=Group, epilog=DATA)
def data() -> None:
    """Candles for backtests: import, audit, generate, list and pull them."""
    from bot.checks.listing_file import use_listings_here

    use_listings_here()


# ── import ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("import", epilog=IMPORT)
@click.argument("files", nargs=-1, required=True, metavar="[MARKET=]FILE|FOLDER...")
@click.option(
    "--market",
    metavar="MARKET",
    default=None,
    help="The market of all files, or {COLUMN}.  [default: by the file's name]",
)
@click.option(
    "--interval", metavar="1m", default=None, help="1m, 5m, 15m, 1h, 4h or 1d.  [default: detected from the rows]"
)
@click.option(
    "--columns",
    metavar="ts=Time,open=O,...",
    default="",
    help="The meaning of columns that do not have the usual names.",
)
@click.option(
    "--tz", default="UTC", show_default=True, metavar="ZONE", help="The time zone of times in text without one."
)
@click.option(
    "--unit",
    default="auto",
    show_default=True,
    metavar="UNIT",
    help="Of times: s, ms, us, ns, iso, or a format like '%d/%m/%Y %H:%M'.",
)
@click.option(
    "--stamp",
    default="open",
    show_default=True,
    metavar="open|close",
    help=(
        "Whether a candle's time is its open or its close. A close just before the grid (00:00:59.999) is the close"
        " on it."
    ),
)
@click.option("--decimal", default="auto", show_default=True, metavar="CHAR", help="The decimal point (. or ,).")
@click.option(
    "--skip-rows", "skip", default=0, type=click.IntRange(0, 1_000), metavar="N", help="Lines before the header."
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="[EURUSD=]FILE",
    help="Candles of the rate that converts a market in another currency into USD; repeatable.",
)
@_HOURS
@_STORE
@_REPLACE
@accepting
@_JSON
def import_(
    files: tuple[str, ...],
    market: str | None,
    interval: str | None,
    columns: str,
    hours: str | None,
    store: Path,
    replacing: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Import FILES of candles from any source into the store, all of them or none: CSV, JSON, Excel, Feather, Parquet,
    also by gzip or in a zip archive, and folders of these.
    """
    from bot.backtest.data.table_layout import ColumnMap, columns_of
    from bot.errors import ConfigError, Exit
    from bot.wire import INTERVAL_MS

    accept, rates = accepted(given), given.pop("rates")
    if interval is not None and interval not in INTERVAL_MS:
        raise ConfigError(f"--interval {interval!r} is not known; there are {', '.join(INTERVAL_MS)}")
    pattern = market if market is not None and "{" in market else None
    # All other options have the names of the fields of ColumnMap.
    mapped = ColumnMap(columns_of(columns), interval=interval, market=pattern, **given)
    done = import_files_of(
        [Path(file) for file in files],
        mapped,
        market,
        ImportTarget(store, (*LEFT_TO_SESSIONS, *accept), hours, replacing, rates),
        show_progress=not as_json,
    )
    if as_json:
        print_json(
            {
                "store": str(store),
                "files": [file.data() for file in done.shown],
                "written": [written_data(item.market, item.interval, item.written) for item in done.series],
                "audit": [report.data() for item in done.series for report in item.reports],
            }
        )
        return int(Exit.DONE)
    show_table(done.shown)
    for item in done.series:
        click.echo(written_line(item.market, item.interval, item.written))
        for report in item.reports:
            if report.findings:
                click.echo("\n".join(report.lines(accept)))
    _say_unlisted([item.market for item in done.series])
    click.echo(f"Next: bot backtest CONFIG --data {_source(store, done.series)}")
    return int(Exit.DONE)


def _source(store: Path, imported: Sequence[ImportedSeries]) -> str:
    """The value for `bot backtest --data`, with the accept flags that the stored candles need."""
    from bot.backtest.data.findings import ACCEPTS
    from bot.service.market_data.instruments import CATALOGUE

    listed = any(series.market in CATALOGUE for series in imported)
    needed = {fault.accept for series in imported for fault in series.faults(store)}
    flags = "".join(f" --accept-{name}" for name in ACCEPTS if name in needed)
    source = str(store) if listed else f"LISTED={imported[0].written.path}"
    return f"{quote(source)}{flags}"


def _say_unlisted(markets: Sequence[str]) -> None:
    from bot.service.market_data.instruments import CATALOGUE

    unlisted = [market for market in markets if market not in CATALOGUE]
    if not unlisted:
        return
    who = f"{unlisted[0]} is" if len(unlisted) == 1 else f"{unlisted[0]} and {len(unlisted) - 1:,} more are"
    click.echo(
        f"{who} not listed by the embedded service: a backtest can trade such candles only under a listed name (--data"
        f" LISTED=FILE), or after {unlisted[0]} is listed in markets.yaml (docs/markets.md).",
        err=True,
    )


# ── audit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("audit", epilog=AUDIT)
@click.argument("files", nargs=-1, metavar="[[MARKET=]FILE | FOLDER]...")
@click.option(
    "--market", metavar="MARKET", default=None, help="The market of all files; of a store, the one to look at."
)
@click.option("--from", "start_ms", type=Instant(), default=None, metavar="TIME", help="Look at candles from then on.")
@click.option("--to", "end_ms", type=Instant(), default=None, metavar="TIME", help="Look at candles before then.")
@_HOURS
@accepting
@_JSON
def audit_(
    files: tuple[str, ...],
    market: str | None,
    start_ms: int | None,
    end_ms: int | None,
    hours: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Look for gaps, doubles, wrong prices, jumps, wrong units and the like in FILES or a store (by default the
    folder `data`).
    """
    from bot.backtest.data.candles import join, read_file, sources
    from bot.backtest.data.quality import audit
    from bot.errors import ConfigError, Exit

    accept = accepted(flags)
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise ConfigError("the span is empty: --from must lie before --to")
    groups: dict[tuple[str, str], list[Candles]] = {}
    unread: list[ConfigError] = []
    with progress(is_shown=not as_json) as show:
        for name, path, interval in sources(
            [Path(file) for file in files] or [_store_here()],
            market=market,
            listed=False,
            every=True,
            report=say_left_out,
        ):
            show(path.name)
            try:
                candles = read_file(path, market=name, interval=interval, start_ms=start_ms, end_ms=end_ms)
            except ConfigError as error:
                unread.append(error)
                continue
            if len(candles):
                groups.setdefault((name, candles.interval), []).append(candles)
    if not groups:
        _refuse(unread)
        raise ConfigError("no candle in this span" if files or start_ms or end_ms else "no candles")
    reports = [audit(join(parts), hours=hours) for parts in groups.values()]
    refused = [report for report in reports if report.refused(accept)]
    if as_json:
        print_json(
            {
                "sound": not refused and not unread,
                "accepted": list(accept),
                "reports": [report.data() for report in reports],
            }
        )
    else:
        for report in reports:
            click.echo("\n".join(report.lines(accept)))
        click.echo(_verdict(reports, refused, accept))
    _refuse(unread)
    return int(Exit.ERROR if refused else Exit.DONE)


def _verdict(reports: Sequence[AuditReport], refused: Sequence[AuditReport], accept: tuple[str, ...]) -> str:
    if not refused:
        return "A backtest accepts them" + (
            f" with {' '.join(f'--accept-{name}' for name in accept)}." if accept else " as they are."
        )
    faults = [fault for report in refused for fault in report.refused(accept)]
    flags = sorted({f"--accept-{fault.accept}" for fault in faults if fault.accept is not None})
    shut = [fault for fault in faults if fault.accept is None]
    what = f"A backtest refuses {len(refused)} of {len(reports)}."
    return f"{what} {'Correct the data first' if shut else 'It accepts them with ' + ' '.join(flags)}."


def _store_here() -> Path:
    if not STORE.is_dir():
        raise click.UsageError(f"there is no store {STORE} here; name files or a folder")
    return STORE


# ── gen ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("gen", epilog=GEN)
@click.argument("market")
@INTERVAL
@click.option("--from", "start_ms", type=Instant(), required=True, metavar="DATE", help="The first day, UTC.")
@click.option("--days", type=int, required=True, metavar="N", help="How many days.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other candles.")
@click.option(
    "--class",
    "asset_class",
    default=None,
    metavar="CLASS",
    help="crypto, stock, bond or event: of a market that the service does not list.",
)
@click.option(
    "--regimes", default="mixed", show_default=True, metavar="bull:30,crash:2", help="Moods and their days, in turn."
)
@click.option("--gaps", type=int, default=0, metavar="N", help="Leave out N holes of random lengths.")
@click.option(
    "--hours", default="regular", show_default=True, metavar="HOURS", help="Of a stock or bond: regular or extended."
)
@_STORE
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="A file (.csv, .csv.gz, .parquet) instead of the store.",
)
@_REPLACE
@_JSON
def gen(
    market: str,
    *,
    seed: int,
    asset_class: str | None,
    store: Path,
    out: Path | None,
    replacing: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Generate candles of MARKET from a seed, with market regimes, busy and quiet hours, fat tails and an exchange's
    closing hours.
    """
    from bot.backtest.data.candles import market_name
    from bot.backtest.data.store import Store
    from bot.backtest.data.synthetic import SyntheticOptions, generate
    from bot.errors import ConfigError, Exit

    try:
        name = market_name(market, listed=asset_class is None)
    except ConfigError as error:
        if asset_class is not None:
            raise
        raise ConfigError(f"{error} (for an unlisted market, give its class with --class)") from None
    # All other options have the names of the fields of SyntheticOptions.
    wanted = SyntheticOptions(name, seed=seed, asset_class=asset_class, **given)
    with progress(is_shown=not as_json) as show:
        candles = generate(wanted, lambda day: show(f"{day:,} of {many(wanted.days, 'day')}"))
    done = (
        _put_file(out, candles, replacing=replacing)
        if out is not None
        else Store(store).put(candles, replacing=replacing)
    )
    if as_json:
        print_json({**written_data(candles.market, candles.interval, done), "digest": candles.digest(), "seed": seed})
        return int(Exit.DONE)
    click.echo(written_line(candles.market, candles.interval, done))
    click.echo(f"digest {candles.digest()}")
    return int(Exit.DONE)


def _put_file(path: Path, candles: Candles, *, replacing: bool) -> Written:
    from bot.backtest.data.column_files import PARQUET_SUFFIXES
    from bot.backtest.data.store import Conflict, Written, write_file
    from bot.errors import BotError

    if not path.name.endswith((".csv", ".csv.gz", *PARQUET_SUFFIXES)):
        raise click.UsageError(f"--out {path}: the name must end with .csv, .csv.gz or .parquet")
    if path.exists() and not replacing:
        raise Conflict(f"{path} is there already; nothing was changed. Overwrite it with --replace")
    try:
        write_file(path, candles)
    except OSError as error:
        raise BotError(f"{path}: cannot be written: {error.strerror or error}") from None
    return Written(path, len(candles), len(candles), 0, 0, candles.at_ms[0], candles.at_ms[-1])


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("list", epilog=LIST)
@click.argument("store", type=click.Path(path_type=Path, file_okay=False), default=STORE)
@_JSON
def list_(store: Path, as_json: bool) -> int:
    """List what STORE holds (by default the folder `data`)."""
    from bot.backtest.data.origins import origins
    from bot.backtest.data.store import Store
    from bot.errors import Exit

    if not store.is_dir():
        raise click.UsageError(f"there is no store {store} here; `bot data import` and `bot data gen` make one")
    unread: list[ConfigError] = []
    held = Store(store).held(unread)
    sources = {(origin.market, origin.interval): origin for origin in origins(store)}
    if as_json:
        rows = [
            {
                "market": entry.market,
                "interval": entry.interval,
                "file": str(entry.path),
                "rows": entry.rows,
                "firstTs": entry.first_ms,
                "lastTs": entry.last_ms,
                "bytes": entry.size_bytes,
                **_source_data(sources.get((entry.market, entry.interval))),
            }
            for entry in held
        ]
        print_json({"store": str(store), "candles": rows})
        _refuse(unread)
        return int(Exit.DONE)
    if not held and not unread:
        click.echo(f"{store} holds no candles; add some with `bot data import` or `bot data gen`.")
    for entry in held:
        click.echo(
            f"{entry.market:<24} {entry.interval:>3}  {entry.rows:>12,} {'candle ' if entry.rows == 1 else 'candles'} "
            f" {day_text(entry.first_ms)} to {day_text(entry.last_ms)}  {entry.size_bytes / 1e6:>8.2f} MB "
            f" {entry.path.name}" + _source_text(sources.get((entry.market, entry.interval)))
        )
    _refuse(unread)
    return int(Exit.DONE)


def _source_text(origin: Origin | None) -> str:
    return "" if origin is None else f"  {origin.symbol} of {origin.source}, {day_text(origin.retrieved_ms)[:10]}"


def _source_data(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {"source": None}
    return {"source": origin.source, "symbol": origin.symbol, "retrievedTs": origin.retrieved_ms}


def _refuse(unread: Sequence[ConfigError]) -> None:
    """ConfigError with all files that cannot be read. Called after the other files have been printed."""
    if unread:
        from bot.errors import ConfigError

        raise ConfigError("\n".join(map(str, unread)))


# ── pull ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("pull", epilog=PULL)
@click.argument("markets", nargs=-1, required=True, metavar="MARKET...")
@INTERVAL
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    default=None,
    metavar="CONFIG",
    help="Use the service of this config.",
)
@click.option(
    "--base-url", default=None, metavar="URL", help="Use the service at this address.  [default: http://127.0.0.1:8700]"
)
@click.option(
    "--from",
    "source",
    default=None,
    metavar="SOURCE",
    help="Pull history from ccxt:EXCHANGE, yfinance or yfinance:adjusted (unofficial) in place of a service.",
)
@click.option(
    "--since",
    "since_ms",
    type=Instant(),
    default=None,
    metavar="DATE",
    help="With --from: candles from then on.  [default: the first in the store]",
)
@click.option(
    "--until",
    "until_ms",
    type=Instant(),
    default=None,
    metavar="DATE",
    help="With --from: candles before then.  [default: now]",
)
@click.option("--funding", "has_funding", is_flag=True, help="With --from: pull the funding rates too.")
@_STORE
@_REPLACE
@accepting
@_JSON
def pull(
    markets: tuple[str, ...],
    interval: str,
    config_file: Path | None,
    base_url: str | None,
    source: str | None,
    store: Path,
    replacing: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Fetch closed candles of MARKETS into the store: the newest of a running service, or the history of a source
    (--from).
    """
    from bot.backtest.data.candles import market_name
    from bot.backtest.data.findings import FaultyData
    from bot.backtest.data.store import Conflict, Store
    from bot.client.names import run_unheld
    from bot.errors import BotError, ConfigError, Exit
    from bot.wire import INTERVAL_MS

    accept = accepted(given)
    if config_file is not None and base_url is not None:
        raise click.UsageError("--config and --base-url both name the service; give one of them")
    if interval not in INTERVAL_MS:
        raise ConfigError(f"--interval {interval!r} is not known; there are {', '.join(INTERVAL_MS)}")
    if source is not None:
        if config_file is not None or base_url is not None:
            raise click.UsageError("--from names a source, --config and --base-url a service; give one of them")
        request = PullOptions(source, markets, interval, **given)
        pull_history(request, _target(store, accept, replacing=replacing), as_json=as_json)
        return int(Exit.DONE)
    if given["since_ms"] is not None or given["until_ms"] is not None or given["has_funding"]:
        raise click.UsageError("--since, --until and --funding need --from: a service gives its newest candles only")
    names = list(dict.fromkeys(market_name(market, listed=False) for market in markets))
    pulled = run_unheld(_pull(names, interval, config_file, base_url))
    written: list[dict[str, Any]] = []
    refused: list[str] = []
    for candles in pulled:
        if isinstance(candles, BotError):
            refused.append(str(candles))
            continue
        try:
            written.append(_take(candles, Store(store), accept, replacing=replacing, quiet=as_json))
        except (Conflict, FaultyData) as error:
            refused.append(str(error))
    if as_json:
        print_json({"store": str(store), "written": written})
    if refused:
        raise BotError("\n".join(refused))
    return int(Exit.DONE)


def _target(store: Path, accept: tuple[str, ...], *, replacing: bool) -> PullTarget:
    from bot.backtest.data.history import PullTarget
    from bot.backtest.data.store import Store
    from bot.clock import SystemClock

    return PullTarget(Store(store), SystemClock(), (*LEFT_TO_SESSIONS, *accept), replacing)


def _take(pulled: Candles, store: Store, accept: tuple[str, ...], *, replacing: bool, quiet: bool) -> dict[str, Any]:
    """Check the pulled candles of one market and add them to the store.

    Prints a report unless `quiet`, and returns it as data.
    """
    from bot.backtest.data.quality import checked

    (candles,), (report,) = checked([pulled], accept=(*LEFT_TO_SESSIONS, *accept))
    before = store.read(candles.market, candles.interval)
    done = store.write(candles, replacing=replacing)
    hole = 0 if before is None else max(0, (candles.at_ms[0] - before.end_ms) // candles.step_ms)
    beyond = 0 if before is None else len(before.slice(candles.end_ms))
    who = f"{candles.market} {candles.interval}"
    if not quiet:
        click.echo(written_line(candles.market, candles.interval, done))
        if report.findings:
            click.echo("\n".join(report.lines(accept)))
    if hole:
        from bot.wire import CANDLES_MAX

        every = duration_ms(CANDLES_MAX * candles.step_ms)
        lost = (
            f"{many(hole, 'candle')} between the store and the service's oldest candle {'is' if hole == 1 else 'are'}"
            " lost"
        )
        click.echo(f"{who}: {lost}; pull at least every {every}", err=True)
    if beyond:
        click.echo(
            f"{who}: the store has {many(beyond, 'candle')} after the service's newest candle, from another service or"
            " from before a reset; use another --store for this service",
            err=True,
        )
    return {
        **written_data(candles.market, candles.interval, done),
        "missingBefore": hole,
        "beyond": beyond,
        "audit": report.data(),
    }


async def _pull(
    names: Sequence[str], interval: str, config_file: Path | None, base_url: str | None
) -> list[Candles | BotError]:
    """The closed candles of each market that the service has, or the error of a market without any."""
    otherwise = "--base-url URL names another service"
    if config_file is None:
        otherwise = "start one with `bot sandbox`, or name it with --base-url URL or --config CONFIG"
    async with client_of(config_file, base_url, otherwise=otherwise) as client:
        return [await _newest_or_why(client, name, interval) for name in names]


# ── update ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@data.command("update", epilog=UPDATE)
@_STORE
@_REPLACE
@accepting
@_JSON
def update_(store: Path, replacing: bool, as_json: bool, **flags: Any) -> int:
    """Bring all that the store has from sources up to now."""
    from bot.errors import Exit

    accept = accepted(flags)
    if not store.is_dir():
        raise click.UsageError(f"there is no store {store} here; `bot data pull --from` makes one")
    update(_target(store, accept, replacing=replacing), as_json=as_json)
    return int(Exit.DONE)
