"""The inputs of a backtest, read and checked: config, candles, funding and options in, a backtest ready to run out.

For `bot backtest`, Python and sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TextIO

from bot.backtest.backtest import Backtest, strategies_of
from bot.backtest.data import quality
from bot.backtest.data.candles import Candles, load, market_name
from bot.backtest.data.column_files import judge_file
from bot.backtest.data.conversion import check_in_usd
from bot.backtest.data.findings import KINDS, AuditReport
from bot.backtest.data.funding_rates import FundingRates, read_funding
from bot.backtest.data.origins import Origin, origins
from bot.backtest.data.resampling import chosen
from bot.backtest.engine.options import MarketRules, SessionOptions, chance_outages, start_of, within
from bot.backtest.engine.outside_reads import watching_clock
from bot.backtest.engine.progress import Progress
from bot.backtest.results import run_writer
from bot.backtest.results.assumptions import agent_lines, assumptions_of
from bot.backtest.results.run_writer import Result
from bot.checks.config_check import checked_text
from bot.config import Settings, with_params
from bot.config.source import text_of
from bot.errors import BotError, ConfigError, JournalError
from bot.market_data.source import Instrument
from bot.money import format_decimal
from bot.runtime.journal import queries
from bot.service.market_data.file_names import coin_of
from bot.service.market_data.instruments import CATALOGUE, Listing, added_listings
from bot.service.market_data.session_calendars import StoredCalendar
from bot.service.market_data.trading_hours import calendar
from bot.wire.vocabulary import INTERVAL_MS

# Kinds of findings after which a candle's time need not be its source's: rows that moved, and rows in a doubtful time
# zone.
MOVING: Final = ("off_grid", "hours")
STRATEGY_LOG: Final = "log.jsonl"


class Chance(NamedTuple):
    """Outages at seeded times: how many, and their mean length in ms."""

    outages: int = 0
    mean_ms: int = 1_800_000


class Files(NamedTuple):
    """The files of a backtest: candles and funding as of `bot backtest --data` and `--funding`, the exchange of
    `--fees-of`, the accepted faults.
    """

    candles: Sequence[str]
    funding: Sequence[str] = ()
    fees_of: str | None = None
    accepted: Sequence[str] = ()


class Inputs:
    """A checked config with its candles, funding and options.

    ConfigError if any of them cannot be used: it names the file, the row or the option.
    """

    def __init__(
        self,
        config: Path,
        files: Files,
        options: SessionOptions,
        *,
        params: Mapping[tuple[str, str], str] | None = None,
        chance: Chance | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Read and check the config and its data.

        `params` sets params of strategies: the value, as YAML text, by (strategy, param). `report` gets a line for each
        file that is left out.
        """
        self.config = config
        self.config_text = text_of(config)
        # A backtest needs no API key.
        self.settings = checked_text(self.config_text, config)
        if params:
            self.config_text = with_params(self.config_text, params)
            self.settings = checked_text(self.config_text, config)
        markets = traded(self.settings)
        rules, self._notes = options.rules, list[str]()
        if files.fees_of is not None:
            rules, self._notes = with_fees_of(files.fees_of, files.candles, markets, rules)
        self.accepted = tuple(files.accepted)
        held = load([Path(entry) for entry in files.candles], markets=markets, every=True, report=report)
        read, left_out = chosen(held, options.start_ms, shortest_intervals(self.settings))
        self.candles, reports = quality.checked(read, accept=self.accepted)
        self._notes += left_out
        # Said at once too, because what was left out may be why the rest is too short.
        for line in left_out:
            report(line)
        # Gaps are listed by `assumptions_of`, because only those in the range matter.
        self._notes += [
            f"{audited.market}: {item.text}: {KINDS[item.kind].then}"
            for audited in reports
            for item in audited.findings
            if (item.severity == "fault" and item.kind != "gap") or item.kind == "odds"
        ]
        self.moved = [*moved_of(reports), *moved_before(self.candles, reports)]
        self._notes += moved_before(self.candles, reports)
        self.recorded = fundings_of(files.funding, markets)
        self.rates = {market: funding.rates for market, funding in self.recorded.items()}
        beside = answers_beside(config)
        if options.agents.file is None and (options.agents.answers == "live" or beside.is_file()):
            options = replace(options, agents=replace(options.agents, file=beside))
        self.options = self._completed(replace(options, rules=rules), chance or Chance())
        # the instant from which every market has had a candle in the range
        self.begun_ms = 0

    def _completed(self, given: SessionOptions, chance: Chance) -> SessionOptions:
        start_ms = start_of(given.start_ms, self.candles)
        end_ms = max(series.end_ms for series in self.candles)
        # The backtest ends with the last whole candle.
        if given.end_ms is not None:
            whole = [series.slice(None, given.end_ms - series.step_ms + 1) for series in self.candles]
            end_ms = max((series.end_ms for series in whole if len(series)), default=given.end_ms)
        by_chance = chance_outages(chance.outages, start_ms, end_ms, mean_ms=chance.mean_ms, seed=given.seed)
        # The settlement follows from all candles, so that a repeated run on cut data settles at the same instant.
        ends = {series.market: series.end_ms for series in self.candles}
        settlements = {
            name: settlement
            if settlement.at_ms is not None or name not in ends
            else replace(settlement, at_ms=ends[name])
            for name, settlement in given.settlements.items()
        }
        listings = {market: listing for market, listing in added_listings().items() if market in ends}
        _check_listed(self.candles, listings)
        return replace(given, outages=(*given.outages, *by_chance), settlements=settlements, listings=listings)

    def on(self, candles: Sequence[Candles]) -> Self:
        """These inputs on other candles of the same markets."""
        other = copy(self)
        other.candles, other.options = list(candles), within(self.options, candles)
        return other

    def make(
        self, options: SessionOptions | None = None, cut_ms: int | None = None, *, journal: Path | None = None
    ) -> Backtest:
        """A backtest, ready to run. `cut_ms`: without the candles that open then or later."""
        chosen, candles = options or self.options, self.candles
        if cut_ms is not None:
            candles = [part for series in self.candles if len(part := series.slice(None, cut_ms))]
            chosen = within(chosen, candles)
        is_cut = cut_ms is not None
        return Backtest(self.settings, candles, chosen, rates=self.rates, journal_path=journal, is_cut=is_cut)

    def assumptions(self, backtest: Backtest) -> list[str]:
        """What the result rests on, as sentences."""
        timeline = backtest.session.timeline
        lines = assumptions_of(
            timeline,
            self.options,
            backtest.exchange,
            funded=list(self.rates),
            timers=backtest.session.timers,
            asking=[strategy.name for strategy in self.settings.strategies if strategy.asks_person],
        )
        lines += agent_lines(backtest.session.specs, self.options.agents, timeline.start_ms)
        lines += self._notes
        self.begun_ms = max(reader.ts[reader.first] for reader in timeline.readers)
        for market, funding in self.recorded.items():
            missing = funding.judged(timeline.start_ms, timeline.end_ms, self.accepted)
            lines += [f"{market}: funding: {text}" for text in (missing, funding.parts) if text is not None]
        return lines

    def manifest(self, assumptions: Sequence[str], besides: Sequence[str] = ()) -> dict[str, Any]:
        """The content of manifest.json. Read before the run, because config and strategies may be edited during it."""
        return run_writer.manifest_of(
            name=self.settings.name,
            config_text=self.config_text,
            strategies=strategies_of(self.settings),
            candles=self.candles,
            funding={market: funding.sha256 for market, funding in self.recorded.items()},
            options=self.options,
            accepted=self.accepted,
            notes={"besides": besides, "assumptions": assumptions},
        )

    def run_into(
        self,
        folder: Path,
        backtest: Backtest,
        progress: Progress,
        *,
        with_journal: bool = False,
        outside: list[str] | None = None,
    ) -> tuple[Result, OSError | None]:
        """Run the backtest and write its events and log. It stops if they cannot be written. Returns the result and the
        write error, if any.

        `outside` gets what strategies read of the clock (see outside_reads.py).
        """
        if with_journal:
            backtest.journal.close()
            try:
                backtest = self.make(journal=folder / queries.FILE)
            # The error's message is about a live daemon, so only its cause is shown.
            except JournalError as error:
                why = str(error.__cause__ or error)
                raise BotError(
                    f"{folder}: the journal cannot be written: {why}; choose another place with --out"
                ) from None
        watch: AbstractContextManager[object] = nullcontext() if outside is None else watching_clock(outside)
        with (
            _Lines(folder / "events.jsonl") as lines,
            _Lines(folder / STRATEGY_LOG, is_needed=False) as log_lines,
            watch,
        ):
            result = backtest.run(
                progress=lambda done, of: not (lines.lost or log_lines.lost) and progress(done, of),
                events=lines,
                log_lines=log_lines,
            )
        return result, lines.lost or log_lines.lost


def _check_listed(candles: Iterable[Candles], listings: Mapping[str, Listing]) -> None:
    """ConfigError for candles in another currency, and of a time whose sessions a listing file does not have."""
    for series in candles:
        check_in_usd(series)
        listing = listings.get(series.market)
        sessions = None if listing is None or listing.spec.hours is None else calendar(listing.spec.hours)
        if isinstance(sessions, StoredCalendar):
            text = sessions.beyond(series.at_ms[0], series.at_ms[-1])
            if text is not None:
                raise ConfigError(
                    f"{series.market}: {text}; cut the candles with --from and --to, or write the sessions again with"
                    " `bot markets sessions FILE`"
                )


class _Lines:
    """A file of lines.

    It is made with the first line, or at once if it `is_needed`. After a write error it takes no more lines and keeps
    the error.
    """

    def __init__(self, path: Path, *, is_needed: bool = True) -> None:
        self.lost: OSError | None = None
        self._path = path
        self._file = self._opened() if is_needed else None

    def _opened(self) -> TextIO:
        return self._path.open("w", encoding="utf-8", newline="")

    def write(self, text: str) -> None:
        if self.lost is None:
            try:
                self._file = self._file or self._opened()
                self._file.write(text)
            except OSError as error:
                self.lost = error

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self.lost = self.lost or error


def moved_of(reports: Sequence[AuditReport]) -> list[str]:
    """A sentence for each market whose times are not those of its source, or not surely UTC.

    Cutting such candles proves nothing.
    """
    return [
        f"{report.market}: {fault.text} (accepted by --accept-{fault.accept})"
        for report in reports
        for fault in report.faults
        if fault.kind in MOVING
    ]


def moved_before(candles: Sequence[Candles], reports: Sequence[AuditReport]) -> list[str]:
    """A sentence for each market whose candles were moved when they came into the store. What they say is then known
    later than at their source, and a fill may be at a price that another market has left behind.
    """
    by_rows = {report.market for report in reports if any(fault.kind == "off_grid" for fault in report.faults)}
    return [
        f"{series.market}: some of its {series.interval} candles were moved forward to the grid when they were stored: "
        "their times are not their source's"
        for series in candles
        if series.is_moved and series.market not in by_rows
    ]


def answers_beside(config: Path) -> Path:
    """Where the answers of a config's agents are recorded: `my.answers.jsonl` beside `my.yaml`."""
    return config.with_name(f"{config.stem}.answers.jsonl")


def traded(settings: Settings) -> list[str]:
    """Every market of a config's strategies, those that they only read included."""
    return sorted({market for strategy in settings.strategies for market in (*strategy.markets, *strategy.informative)})


def shortest_intervals(settings: Settings) -> dict[str, int]:
    """The shortest interval, in ms, that strategies of a config need of each market."""
    shortest: dict[str, int] = {}
    for strategy in settings.strategies:
        for market in (*strategy.markets, *strategy.informative):
            step_ms = INTERVAL_MS[strategy.interval]
            shortest[market] = min(step_ms, shortest.get(market, step_ms))
    return shortest


def fundings_of(texts: Sequence[str], markets: Sequence[str]) -> dict[str, FundingRates]:
    """The files of --funding by market. ConfigError for a market outside `markets`, which the strategies trade."""
    rates: dict[str, FundingRates] = {}
    for text in texts:
        name, _, file = text.rpartition("=")
        path = Path(file)
        if not path.exists() or path.is_dir():
            raise ConfigError(f"--funding {path}: there is no such file")
        judge_file(path)
        market = market_name(name) if name else coin_of(path, tuple(markets), of_prices=False)
        if market not in markets:
            raise ConfigError(f"--funding {text}: no strategy trades {market}; they trade {', '.join(markets)}")
        if market in rates:
            raise ConfigError(
                f"--funding {text}: {rates[market].path} has the rates of {market} already; give one of them"
            )
        rates[market] = read_funding(path)
    return rates


def with_fees_of(
    exchange: str, data: Sequence[str], markets: Collection[str], given: Mapping[str, MarketRules]
) -> tuple[dict[str, MarketRules], list[str]]:
    """The rules of --fees-of: fees, ticks, lots and smallest orders of an exchange from the stores of --data, below
    those that were given. Returns the assumptions too.
    """
    origins = [origin for origin in _origins(data) if origin.market in markets and origin.instrument is not None]
    by_market = {origin.market: origin for origin in origins if _exchange_of(origin) == exchange.removeprefix("ccxt:")}
    if missing := sorted(set(markets) - set(by_market)):
        known = sorted({_exchange_of(origin) for origin in origins})
        there = f"; it has those of {', '.join(known)}" if known else ""
        raise ConfigError(
            f"--fees-of {exchange}: the data have no fees and sizes of {', '.join(missing)} there{there}; "
            f"`bot data pull --from ccxt:{exchange.removeprefix('ccxt:')} {' '.join(missing)} --since DATE` stores them"
        )
    rules, notes, none = dict(given), [], MarketRules()
    for market, origin in sorted(by_market.items()):
        assert origin.instrument is not None
        listed = _rules_of(origin.instrument)
        by_class = given.get(CATALOGUE[market].spec.asset_class, none) if market in CATALOGUE else none
        rules[market] = given.get(market, none).over(by_class).over(given.get("", none)).over(listed)
        notes.append(
            f"{market}: fees, tick, lot and smallest order of {origin.symbol} of {origin.source}, without discounts"
        )
    return rules, notes


def _origins(data: Sequence[str]) -> Iterator[Origin]:
    """The origins of the stores that --data names, by their folder or one of their files."""
    for entry in data:
        path = Path(entry)
        path = path if path.exists() else Path(entry.partition("=")[2])
        yield from origins(path if path.is_dir() else path.parent.parent)


def _exchange_of(origin: Origin) -> str:
    return origin.source.partition("@")[0].removeprefix("ccxt:")


def _rules_of(instrument: Instrument) -> MarketRules:
    """The rules of a source's market. None where the source does not say."""
    taker, maker = (None if text is None else Decimal(text) for text in (instrument.taker, instrument.maker))
    tick, lot, least = (
        None if text is None else Decimal(format_decimal(Decimal(text).quantize(Decimal("1e-8"), ROUND_CEILING)))
        for text in (instrument.tick, instrument.size_step, instrument.min_notional)
    )
    return MarketRules(taker=taker, maker=maker, tick=tick or None, lot=lot or None, min_notional=least or None)
