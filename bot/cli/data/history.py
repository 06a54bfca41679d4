"""`bot data pull --from` and `bot data update`: the history of markets from a source into the store.

`bot.backtest.data.history` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.data.output import day_text, print_json, progress
from bot.words import many

if TYPE_CHECKING:
    from bot.backtest.data.history import Pulled, PullProgress, PullTarget, WantedCandles
    from bot.market_data.source import Source

# time between two texts of the progress line
SHOW_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The options of `bot data pull --from`."""

    source: str
    markets: tuple[str, ...]
    interval: str
    since_ms: int | None
    until_ms: int | None
    has_funding: bool


def pull_history(request: PullOptions, target: PullTarget, *, as_json: bool) -> None:
    """Pull the markets of a request and print what the store has then."""
    from bot.client.names import run_unheld

    _finish(run_unheld(_pull(request, target, quiet=as_json)), target, as_json=as_json)


def update(target: PullTarget, *, as_json: bool) -> None:
    """Pull everything that the store has from a source, from the first span that was asked for up to now."""
    from bot.backtest.data.origins import FUNDING, origins
    from bot.client.names import run_unheld
    from bot.errors import BotError

    held = origins(target.store.root)
    with_funding = {origin.market for origin in held if origin.interval == FUNDING}
    requests = [
        PullOptions(
            origin.source.partition("@")[0],
            (f"{origin.market}={origin.symbol}",),
            origin.interval,
            origin.asked[0].from_ms if origin.asked else None,
            None,
            has_funding=origin.market in with_funding,
        )
        for origin in held
        if origin.interval != FUNDING
    ]
    if not requests:
        raise click.UsageError(f"{target.store.root} has no candles of a source; `bot data pull --from` puts some in")
    done = _Done()
    for request in requests:
        try:
            done.add(run_unheld(_pull(request, target, quiet=as_json)))
        except BotError as error:
            done.refused.append(error)
    _finish(done, target, as_json=as_json)


class _Done:
    """What several pulls have done."""

    def __init__(self) -> None:
        # each pulled span with the name of the source
        self.pulled: list[tuple[str, Pulled]] = []
        self.funding: dict[str, tuple[Path, int]] = {}
        self.refused: list[Exception] = []

    def add(self, other: _Done) -> None:
        self.pulled += other.pulled
        self.funding |= other.funding
        self.refused += other.refused


async def _pull(request: PullOptions, target: PullTarget, *, quiet: bool) -> _Done:
    from bot.backtest.data.findings import FaultyData
    from bot.backtest.data.history import Pull, pull_actions, pull_funding
    from bot.backtest.data.store import Conflict
    from bot.market_data.registry import open_source
    from bot.market_data.source import NotOffered

    done = _Done()
    async with open_source(request.source) as source:
        for wanted in await _wanted(request, source, target):
            with progress(is_shown=not quiet) as show:
                try:
                    pulled = await Pull(source, wanted, target).run(_say, _shown(wanted, show))
                    await pull_actions(source, wanted, target)
                except (Conflict, FaultyData) as error:
                    done.refused.append(error)
                    continue
            done.pulled.append((source.name, pulled))
            if not quiet:
                _tell(source, pulled)
            if request.has_funding and _has_funding(wanted):
                try:
                    if (rates := await pull_funding(source, wanted, target, _say)) is not None:
                        done.funding[wanted.market.coin] = rates
                except (Conflict, NotOffered) as error:
                    done.refused.append(error)
    return done


async def _wanted(request: PullOptions, source: Source, target: PullTarget) -> list[WantedCandles]:
    """What to pull, once every market is known to the source."""
    from bot.backtest.data.candles import market_name
    from bot.backtest.data.history import WantedCandles
    from bot.market_data.symbols import mapped
    from bot.wire.vocabulary import INTERVAL_MS

    step, now_ms = INTERVAL_MS[request.interval], target.clock.now_ms()
    until_ms = min(now_ms, request.until_ms if request.until_ms is not None else now_ms)
    instruments = await source.instruments(_say)
    wanted = []
    for text in dict.fromkeys(request.markets):
        coin, given, symbol = text.partition("=")
        market = mapped(market_name(coin, listed=False) + given + symbol, instruments, source.name)
        since_ms = request.since_ms if request.since_ms is not None else _first(market.coin, request.interval, target)
        if since_ms >= until_ms:
            raise click.UsageError(
                f"the span is empty: it begins at {day_text(since_ms)} and ends at {day_text(until_ms)}"
            )
        wanted.append(WantedCandles(market, request.interval, -(-since_ms // step) * step, until_ms - until_ms % step))
    return wanted


def _has_funding(wanted: WantedCandles) -> bool:
    market = wanted.market
    if market.instrument is None or market.instrument.kind != "spot":
        return True
    _say(f"{market.coin}: {market.symbol} is a spot market, which has no funding")
    return False


def _first(coin: str, interval: str, target: PullTarget) -> int:
    held = target.store.read(coin, interval)
    if held is None:
        raise click.UsageError(f"the store has no {interval} candles of {coin} yet; say from when with --since")
    return held.at_ms[0]


def _shown(wanted: WantedCandles, show: Callable[[str], None]) -> Callable[[PullProgress], None]:
    """A function that shows the progress of a pull, at most five times a second."""
    shown = -SHOW_SECONDS

    def show_progress(now: PullProgress) -> None:
        nonlocal shown
        if now.seconds - shown < SHOW_SECONDS:
            return
        shown = now.seconds
        pace = now.rows / max(now.seconds, 1e-3)
        show(
            f"{wanted}: {day_text(now.at_ms)}, {now.share:.0%}, {now.rows:,} candles, {pace:,.0f} a second,"
            f" {left_text(now.seconds_left)} left"
        )

    return show_progress


def left_text(seconds: float) -> str:
    """How long something takes, to two units: 3 h 12 min, 4 min 5 s, 9 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _say(line: str) -> None:
    click.echo(line, err=True)


def _tell(source: Source, pulled: Pulled) -> None:
    """Print what the store has of one market now."""
    wanted, report = pulled.wanted, pulled.report
    if report is None:
        where = wanted.market.instrument
        listed = f"; listed since {day_text(where.listed_ms)}" if where is not None and where.listed_ms else ""
        _say(f"{wanted}: {source.name} has no candle of {wanted.market.symbol} in this span{listed}")
        return
    click.echo(
        f"{wanted}: {many(pulled.rows, 'candle')} in {pulled.path} ({pulled.added:,} new), {day_text(report.first_ms)}"
        f" to {day_text(report.last_ms)}, {wanted.market.symbol} of {source.name}"
    )
    if report.first_ms > wanted.since_ms:
        _say(f"{wanted}: {source.name} has nothing from {day_text(wanted.since_ms)} to {day_text(report.first_ms)}")
    if report.findings:
        click.echo("\n".join(report.lines()))


def _finish(done: _Done, target: PullTarget, *, as_json: bool) -> None:
    """Print the rest; BotError with all refusals, NotOffered if nothing is in the store."""
    from bot.errors import BotError
    from bot.market_data.source import NotOffered

    if as_json:
        print_json(
            {
                "store": str(target.store.root),
                "pulled": [_data(name, pull) for name, pull in done.pulled],
                "funding": {coin: {"file": str(path), "rates": rates} for coin, (path, rates) in done.funding.items()},
            }
        )
    else:
        for coin, (path, rates) in done.funding.items():
            click.echo(f"{coin}: {many(rates, 'funding rate')} in {path}")
        if any(pull.path for _, pull in done.pulled):
            click.echo(f"Next: bot backtest CONFIG --data {_next(done, target)}")
    if len(done.refused) == 1:
        raise done.refused[0]
    if done.refused:
        raise BotError("\n".join(map(str, done.refused)))
    if done.pulled and not any(pull.path for _, pull in done.pulled):
        raise NotOffered("the store has no candle in the span; choose another with --since and --until")


def _next(done: _Done, target: PullTarget) -> str:
    """The value for `bot backtest --data`, with the flags that the candles need."""
    from bot.backtest.data.findings import ACCEPTS

    faults = {fault.accept for _, pull in done.pulled if pull.report is not None for fault in pull.report.faults}
    flags = "".join(f" --accept-{name}" for name in ACCEPTS if name in faults)
    funding = "".join(f" --funding {quote(f'{coin}={path}')}" for coin, (path, _) in done.funding.items())
    return f"{quote(str(target.store.root))}{flags}{funding}"


def _data(source: str, pulled: Pulled) -> dict[str, Any]:
    report = pulled.report
    return {
        "market": pulled.wanted.market.coin,
        "interval": pulled.wanted.interval,
        "source": source,
        "symbol": pulled.wanted.market.symbol,
        "file": None if pulled.path is None else str(pulled.path),
        "rows": pulled.rows,
        "added": pulled.added,
        "audit": None if report is None else report.data(),
    }
