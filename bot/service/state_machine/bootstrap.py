"""Opens a machine from options and the database: markets, prices, clock. Also resets and restores a running machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bot.clock import SystemClock
from bot.errors import BotError, ConfigError
from bot.service.market_data.event_series import EventSeries
from bot.service.market_data.file_names import check_converted, coin_of
from bot.service.market_data.instruments import (
    CATALOGUE,
    Listing,
    LiveListing,
    listing_at,
    listing_of_plain,
    plain_listing,
    select,
    starting_at,
)
from bot.service.market_data.live_candles import LiveCandles
from bot.service.market_data.price_feed import MarketSource, PriceFeed, RecordedSource, SimulatedSource
from bot.service.market_data.recorded import interval_of, read_candles
from bot.service.market_data.session_calendars import StoredCalendar
from bot.service.market_data.simulator import SimulatedMarket
from bot.service.market_data.trading_hours import calendar, resting_hours
from bot.service.state_machine.clock import MachineClock
from bot.service.state_machine.command_log import CommandLog, Push, Recovered, SavedClock
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.named_snapshots import NamedSnapshot
from bot.service.state_machine.replay import EMPTY_CHAIN, PricePosition, replay
from bot.service.state_machine.rules_version import META, program
from bot.venue.model.commands import ChangeListing, ListMarket
from bot.venue.model.state import MarketSpec, State, VenueMarket
from bot.venue.prices import index
from bot.venue.storage import codec
from bot.wire.vocabulary import INTERVAL_MS, bare_coin

MINUTE_MS: Final = INTERVAL_MS["1m"]
# name in the database: up to when each closed live market has lived through its prices
CLOSED_META: Final = "live_closed"


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """A source of live prices, such as `ccxt:binance`, and the symbols that were named for coins.

    `ask` lists the source's markets. It is called at the first start of a database only.
    """

    source: str
    symbols: Mapping[str, str]
    ask: Callable[[], dict[str, LiveListing]]


@dataclass(frozen=True, slots=True)
class PriceOptions:
    """Where prices come from.

    `data` holds (coin or None, candle file). Empty `seed` or `markets`: the database's value, else the default.
    """

    seed: int | None = None
    data: tuple[tuple[str | None, Path], ...] = ()
    markets: tuple[str, ...] = ()
    start_ms: int | None = None
    # No coin is in two sources.
    live: tuple[LiveOptions, ...] = ()
    # the history is simulated; from the start on prices are only pushed
    hold: bool = False
    # replacements for rules of the catalogue, for tests
    specs: dict[str, MarketSpec] = field(default_factory=dict)
    # markets besides the shipped ones; those of a database are stored in it
    listings: Mapping[str, Listing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Live:
    """A live source of a database. `listings` is empty except at the first start."""

    source: str
    symbols: dict[str, str]
    listings: dict[str, Listing]


@dataclass(frozen=True, slots=True)
class _Prices:
    sources: dict[str, MarketSource]
    listings: dict[str, Listing]
    start_ms: int
    hold: bool
    # the price options as they are saved in the database, and those that it has
    options: str
    stored: dict[str, Any] | None
    # the markets of a listing file, as JSON values
    added: dict[str, Any]
    series: EventSeries


def open_machine(command_log: CommandLog, *, speed: float, prices: PriceOptions) -> Machine:
    """The machine of this database, or a new machine.

    Raises ConfigError for a lasting fault, another BotError for a passing one.
    """
    recovered = command_log.open()
    name = str(command_log.path)
    try:
        stored = json.loads(recovered.meta["prices"]) if "prices" in recovered.meta else None
        price_setup = _prices(prices, stored, speed, name)
        replayed = replay(recovered, name)
        clock = _clock(
            speed,
            price_setup,
            recovered.clock,
            real_start=not prices.data and prices.start_ms is None and stored is None,
        )
        machine = Machine(
            clock=clock,
            command_log=command_log,
            feed=PriceFeed(price_setup.sources | _later(price_setup, replayed.state), price_setup.options),
            state=replayed.state,
            seq=replayed.seq,
            chain=replayed.chain,
            events=replayed.events,
            stored_seq=0 if recovered.snapshot is None else recovered.snapshot.seq,
        )
        machine.schedule.series = price_setup.series
        if recovered.clock is None:
            _begin(machine, price_setup)
        else:
            _go_on(machine, price_setup, recovered, recovered.clock, replayed.place)
        if recovered.meta.get(META) != program():
            command_log.save_meta(META, program())
    except BotError:
        command_log.close()
        raise
    return machine


def _begin(machine: Machine, price_setup: _Prices) -> None:
    """First start of a database: list the markets at the price just before the start."""
    machine.feed.start(price_setup.start_ms, inclusive=False)
    machine.caught_ms = price_setup.start_ms
    for candles in machine.feed.live().values():
        candles.lived_ms = price_setup.start_ms
    for coin, listing in price_setup.listings.items():
        px = machine.feed.last_px(coin) or listing.px
        machine.run(ListMarket(listing_at(listing, px).spec, px))
        if price_setup.hold:
            machine.feed.hold(coin)
    machine.follow_sessions(price_setup.start_ms)
    machine.log.save_meta("prices", price_setup.options)
    machine.save_clock()


def _go_on(
    machine: Machine, price_setup: _Prices, recovered: Recovered, saved: SavedClock, place: PricePosition | None
) -> None:
    """A later start: prices continue from the last start's position."""
    if place is None or saved.alive_ms >= place.at_ms:
        place = PricePosition(saved.alive_ms)
    _take_up(machine, price_setup, place, recovered.pushes)
    closed: dict[str, int] = {}
    for name, text in recovered.meta.items():
        if name.startswith(CLOSED_META):
            closed |= json.loads(text)
    for coin, candles in machine.feed.live().items():
        candles.lived_ms = min(saved.alive_ms, closed.get(coin, saved.alive_ms))
    _change_listings(machine, price_setup)
    machine.follow_sessions(saved.alive_ms)
    machine.down_since_ms = saved.alive_ms


def _change_listings(machine: Machine, price_setup: _Prices) -> None:
    """Bring the markets of a listing file to its present rules, and list those that are new."""
    before = {} if price_setup.stored is None else price_setup.stored.get("listings", {})
    changed = {coin: row for coin, row in price_setup.added.items() if before.get(coin) != row}
    live = machine.feed.live()
    for coin in changed:
        if coin in live:
            # The rules of a live market are those of its source.
            continue
        listing, is_new = price_setup.listings[coin], coin not in machine.state.markets
        px = machine.feed.last_px(coin) or listing.px
        refusal = machine.run(ChangeListing(listing_at(listing, px).spec, px))
        if refusal is not None:
            raise ConfigError(f"{machine.log.path}: the listing file: {refusal.message}; or give the old listing back")
        if is_new and price_setup.hold:
            machine.feed.hold(coin)
    if changed:
        machine.log.save_meta("prices", price_setup.options)


def _take_up(machine: Machine, price_setup: _Prices, place: PricePosition, pushes: Sequence[Push]) -> None:
    """Move the feed to the position that the prices had reached."""
    machine.feed.start(place.at_ms, place.upto)
    pushed: set[str] = set()
    coins = list(machine.state.markets)
    if price_setup.hold:
        pushed = set(coins)
        for coin in coins:
            machine.feed.hold(coin)
            listed_ms = (
                price_setup.start_ms
                if coin in price_setup.sources
                else price_setup.series.start_of(machine.state.markets[coin].spec)
            )
            machine.feed.rewind(coin, listed_ms - 1)
    for push in pushes:
        if push.coin not in pushed:
            pushed.add(push.coin)
            machine.feed.rewind(push.coin, push.at_ms)
        machine.feed.push(push.coin, push.at_ms, push.px, push.volume)
    for coin in coins:
        px = machine.feed.last_px(coin)
        if px is not None and coin not in pushed:
            machine.see_price(coin, px)


def _later(price_setup: _Prices, state: State) -> dict[str, MarketSource]:
    """The event markets that were listed after the start."""
    return {
        coin: price_setup.series.source(market.spec)
        for coin, market in state.markets.items()
        if coin not in price_setup.sources
    }


# ── Another state in a running machine ──────────────────────────────────────────────────────────────────────────────


def begin_again(
    machine: Machine,
    options: PriceOptions,
    *,
    speed: float,
    seed: int | None,
    start_ms: int | None,
    real: bool,
    rewind_log: Callable[[], None],
) -> None:
    """Reset to the first start, with another seed or start time if given. A ConfigError changes nothing."""
    stored = json.loads(machine.feed.options)
    if seed is not None:
        stored |= {"seed": seed, "seeded": True}
    if start_ms is not None:
        stored["start"] = start_ms
    price_setup = _stored_prices(options, stored, str(machine.log.path))
    rewind_log()
    clock = MachineClock.start(speed, None if real else price_setup.start_ms)
    machine.become(
        clock=clock,
        feed=PriceFeed(price_setup.sources, price_setup.options),
        state=State(),
        seq=0,
        chain=EMPTY_CHAIN,
        events=0,
    )
    machine.schedule.series = price_setup.series
    _begin(machine, price_setup)


def go_back(
    machine: Machine, options: PriceOptions, snapshot: NamedSnapshot, *, rewind_log: Callable[[], None]
) -> None:
    """Restore the snapshot `snapshot` at its instant and at the present speed. A ConfigError changes nothing."""
    price_setup = _stored_prices(options, json.loads(snapshot.price_options), str(machine.log.path))
    state = codec.loads(snapshot.state)
    index.rebuild(state)
    rewind_log()
    machine.become(
        clock=MachineClock.start(machine.clock.speed, snapshot.at_ms),
        feed=PriceFeed(price_setup.sources | _later(price_setup, state), price_setup.options),
        state=state,
        seq=snapshot.seq,
        chain=snapshot.chain,
        events=snapshot.events,
    )
    machine.schedule.series = price_setup.series
    _take_up(machine, price_setup, PricePosition(snapshot.at_ms), snapshot.pushes)
    machine.caught_ms = snapshot.at_ms
    machine.follow_sessions(snapshot.at_ms)
    machine.log.save_meta("prices", price_setup.options)
    machine.save_clock()


def _stored_prices(options: PriceOptions, stored: dict[str, Any], name: str) -> _Prices:
    return _prices(replace(options, seed=None, data=(), markets=(), listings={}), stored, 1, name)


def _clock(speed: float, price_setup: _Prices, saved: SavedClock | None, *, real_start: bool) -> MachineClock:
    """Service time continues from the latest time that callers saw.

    A real clock without an offset follows the system clock.
    """
    if saved is None:
        return MachineClock.start(speed, None if real_start and speed == 1 else price_setup.start_ms)
    if speed == 1 and saved.offset_ms == 0:
        wall = SystemClock().now_ms()
        clock = MachineClock.start(1)
        if saved.ceiling_ms > wall + MINUTE_MS:
            # A BotError: the system clock may be set only after boot, so a later start may succeed.
            raise BotError(
                f"the machine's clock is {(saved.ceiling_ms - wall) // 1000} s behind the latest time in the database;"
                " correct the clock first"
            )
        return clock
    return MachineClock.start(speed, saved.ceiling_ms)


# ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prices(options: PriceOptions, stored: dict[str, Any] | None, speed: float, name: str) -> _Prices:
    data = options.data
    if not data and stored is not None:
        data = tuple((coin, Path(path)) for coin, path, _ in stored["data"])
    added = dict(options.listings)
    if stored is not None:
        added = {coin: listing_of_plain(coin, row) for coin, row in stored.get("listings", {}).items()} | added
    catalogue = CATALOGUE | added
    files = [_file(coin, path, catalogue) for coin, path in data]
    coins = [coin for coin, _, _ in files]
    for coin in coins:
        if coins.count(coin) > 1:
            raise ConfigError(f"two candle files are given for {coin}")
    live = _live(options.live, stored, name)
    symbols = {coin: symbol for source in live for coin, symbol in source.symbols.items()}
    markets = options.markets or (tuple(coins) if coins else ())
    if not options.markets and stored is not None:
        markets = (*stored["markets"], *_later_listings(options, stored, symbols))
    elif not markets and live:
        markets = tuple(
            coin for coin, listing in catalogue.items() if coin in symbols or listing.spec.asset_class != "crypto"
        )
    listings = _chosen(catalogue, markets, {*coins, *symbols})
    recorded = {coin: _recorded(path, listings[coin]) for coin, path, _ in files}
    # a seed set through the sandbox control wins over the command line
    seeded = stored is not None and bool(stored.get("seeded"))
    seed = options.seed if options.seed is not None and not seeded else stored["seed"] if stored is not None else 1
    start = int(stored["start"]) if stored is not None else _start_of(options, recorded, speed)
    hold = options.hold if stored is None else bool(stored["hold"])
    known: dict[str, Any] = {
        "seed": seed,
        "markets": sorted(listings),
        "data": [[coin, str(path.resolve()), digest] for coin, path, digest in files],
        "start": start,
        "hold": hold,
    }
    if seeded:
        known["seeded"] = True
    if kept := {coin: plain_listing(added[coin]) for coin in sorted(listings) if coin in added}:
        known["listings"] = kept
    if live:
        known["live"] = [{"source": source.source, "symbols": source.symbols} for source in live]
    if stored is not None:
        _check_same(known, stored, name, later=_later_listings(options, stored, symbols))
    if stored is None:
        _check_hours(listings, start)
    listings = {coin: starting_at(listing, start) for coin, listing in listings.items()}
    for source in live:
        listings |= source.listings
    for coin, spec in options.specs.items():
        listings[coin] = replace(listings[coin], spec=spec)
    series = EventSeries(listings, seed=seed, start_ms=start, is_held=hold)
    sources = _sources(listings, recorded, symbols, series, seed=seed, start_ms=start)
    return _Prices(sources, listings, start, hold, json.dumps(known), stored, known.get("listings", {}), series)


def _sources(
    listings: Mapping[str, Listing],
    recorded: Mapping[str, RecordedSource],
    symbols: Mapping[str, str],
    series: EventSeries,
    *,
    seed: int,
    start_ms: int,
) -> dict[str, MarketSource]:
    """Where the prices of each market come from."""
    sources: dict[str, MarketSource] = {}
    for coin, listing in listings.items():
        if coin in recorded:
            sources[coin] = recorded[coin]
            continue
        if coin in symbols:
            sources[coin] = LiveCandles(listing.spec.lot)
            continue
        if listing.spec.expires_ms is not None:
            sources[coin] = series.source(listing.spec)
            continue
        grid = VenueMarket(listing.spec, listing.px, listing.px, listing.px)
        market = SimulatedMarket(
            grid, seed=seed, px=listing.px, start_ms=start_ms, daily_vol=listing.daily_vol, day_usd=listing.day_usd
        )
        sources[coin] = SimulatedSource(market, start_ms)
    return sources


def _chosen(catalogue: Mapping[str, Listing], markets: tuple[str, ...], priced: Set[str]) -> dict[str, Listing]:
    """The listings of these markets and of the `priced` ones, which have candles or live prices; all without any.

    ConfigError for an unknown market, and for one without any price.
    """
    try:
        chosen = select((*markets, *priced) if markets else None, catalogue)
    except KeyError as unknown:
        raise ConfigError(f"no market {unknown.args[0]!r}; the markets are {', '.join(catalogue)}") from None
    listings = {listing.spec.coin: listing for listing in chosen}
    for coin, listing in list(listings.items()):
        if not listing.is_priced and coin not in priced:
            if markets:
                raise ConfigError(
                    f"{coin} has no price to begin with; add `price:` to its listing, or give its candles: --data"
                    f" {coin}=FILE"
                )
            del listings[coin]
    return listings


def _live(options: Sequence[LiveOptions], stored: dict[str, Any] | None, name: str) -> list[_Live]:
    """The live sources of a new or an existing database.

    ConfigError if the database began with other sources or symbols.
    """
    if stored is None:
        return [_asked(option) for option in options]
    held = [_Live(row["source"], row["symbols"], {}) for row in stored.get("live", ())]
    if not options:
        return held
    wanted = [option.source for option in options]
    if sorted(source.source for source in held) != sorted(wanted):
        began = (
            "with the prices of " + " and ".join(source.source for source in held) if held else "without live prices"
        )
        raise ConfigError(
            f"{name}: this database was created {began}, not with those of {' and '.join(wanted)}; omit the option, or"
            " use a new database"
        )
    symbols = {source.source: source.symbols for source in held}
    for option in options:
        for coin, symbol in option.symbols.items():
            if (has := symbols[option.source].get(coin)) != symbol:
                raise ConfigError(
                    f"{name}: this database has {has} as {coin}, not {symbol}; name the same market, or use a new"
                    " database"
                )
    return held


def _asked(options: LiveOptions) -> _Live:
    listings = options.ask()
    return _Live(
        options.source,
        {coin: listing.symbol for coin, listing in listings.items()},
        {coin: listing.listing for coin, listing in listings.items()},
    )


def _later_listings(options: PriceOptions, stored: dict[str, Any], symbols: Mapping[str, str]) -> list[str]:
    """The markets of the listing file that this database does not have yet and that can be simulated."""
    return [
        coin
        for coin, listing in options.listings.items()
        if coin not in stored["markets"] and coin not in symbols and listing.is_priced
        if not options.markets or coin in options.markets
    ]


def _check_same(known: dict[str, Any], stored: dict[str, Any], name: str, *, later: Sequence[str]) -> None:
    """Refuse prices that differ from the prices that the database began with. `later`: markets that are listed now."""
    wanted = known | {"markets": [coin for coin in known["markets"] if coin not in later]}
    for what in ("seed", "markets"):
        if wanted[what] != stored[what]:
            raise ConfigError(
                f"{name}: this database was created with {what} {stored[what]}, not {wanted[what]}; omit the option, or"
                " use a new database"
            )
    if [(c, d) for c, _, d in known["data"]] != [(c, d) for c, _, d in stored["data"]]:
        raise ConfigError(
            f"{name}: this database was created with other candle files; give the same files, or use a new database"
        )


def _check_hours(listings: Mapping[str, Listing], start_ms: int) -> None:
    """ConfigError for a market whose sessions are not known when the service begins."""
    for coin, listing in listings.items():
        sessions = None if listing.spec.hours is None else calendar(listing.spec.hours)
        if isinstance(sessions, StoredCalendar) and (text := sessions.beyond(start_ms, start_ms)) is not None:
            raise ConfigError(f"{coin}: {text}; run `bot markets sessions FILE` again, or give later candles")


def _file(coin: str | None, path: Path, catalogue: Mapping[str, Listing]) -> tuple[str, Path, str]:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    named = coin_of(path, tuple(catalogue)) if coin is None else bare_coin(coin)
    if named not in catalogue:
        raise ConfigError(f"no market {coin!r} for {path}; the markets are {', '.join(catalogue)}")
    return named, path, digest


def _recorded(path: Path, listing: Listing) -> RecordedSource:
    spec = listing.spec
    check_converted(path, listing)
    candles = read_candles(path, sz_decimals=spec.sz_decimals, are_odds=spec.margin_mode == "full")
    sessions = resting_hours(spec.hours, (candle.ts for candle in candles))
    return RecordedSource(candles, interval_of(path, candles), spec.lot, sessions)


def recorded_start(recorded: Mapping[str, RecordedSource]) -> int:
    """When trading begins on recorded data. ConfigError if the files have no common instant."""
    start = max(source.candles[source.history].ts for source in recorded.values())
    for coin, source in recorded.items():
        if source.next_bar(start - 1) is None:
            raise ConfigError(
                f"the candle files do not overlap in time: the candles of {coin} end before the others begin"
            )
    return start


def _start_of(options: PriceOptions, recorded: dict[str, RecordedSource], speed: float) -> int:
    """When trading begins: with recorded data when every file has its history, otherwise now."""
    if recorded:
        return recorded_start(recorded)
    if options.start_ms is not None:
        return options.start_ms
    now = SystemClock().now_ms()
    return now if speed == 1 else now - now % MINUTE_MS
