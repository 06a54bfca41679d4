"""Generate candles with regimes of days and weeks, busy and quiet hours, fat tails, an exchange's nights, and gaps. The
same arguments give the same candles.

A minute's return is normal. Its deviation is the product of those of the market, the regime and the hour, and of two
mean-reverting factors, one over minutes and one over days. So volatility clusters and tails are fat. High and low are
those of a Brownian bridge between open and close (its maximum has a closed form: Karatzas and Shreve, Brownian Motion
and Stochastic Calculus, 4.3.40). Longer candles are made of the minutes, so that all intervals of a seed agree. Odds of
events come from the embedded service's simulator (a martingale). For trying things out and for tests; these are not
real prices.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from bot.backtest.data.candles import COLUMNS, MS_MAX, MS_MIN, Candles
from bot.backtest.data.resampling import resample
from bot.clock import DAY_MS, MINUTE_MS
from bot.errors import ConfigError
from bot.service.market_data.event_odds import EventOdds
from bot.service.market_data.instruments import CATALOGUE, Listing
from bot.service.market_data.trading_hours import CALENDARS, calendar, is_half_day, is_trading_day
from bot.venue.model.numbers import E8, decimals_of
from bot.wire.vocabulary import INTERVAL_MS
from bot.words import many


class Regime(NamedTuple):
    """A market regime: daily trend in daily standard deviations, volatility relative to the market's own, and its
    number of days in `mixed`.
    """

    trend: float
    liveliness: float
    days: int


REGIMES: Final = {
    "calm": Regime(0.0, 0.5, 10),
    "sideways": Regime(0.0, 0.9, 20),
    "bull": Regime(0.25, 0.9, 25),
    "bear": Regime(-0.25, 1.2, 15),
    "wild": Regime(0.0, 1.8, 6),
    "crash": Regime(-1.8, 2.2, 2),
    "recovery": Regime(0.6, 1.5, 7),
}
MIXED: Final = "mixed"
# ours -> the service's
CLASSES: Final = {"crypto": "crypto", "stock": "stocks", "bond": "bonds", "event": "prediction"}
# figures of markets that the service does not list
TEMPLATES: Final = {"crypto": "SOL", "stock": "AAPL", "bond": "TLT", "event": "event:RATE-CUT"}
# minutes from midnight in New York
HOURS: Final = {"regular": (9 * 60 + 30, 16 * 60), "extended": (4 * 60, 20 * 60)}
# the end of a half day
EARLY: Final = {"regular": 13 * 60, "extended": 17 * 60}
DAYS_MAX: Final = 3_660
HOLES_MAX: Final = 10_000
# average length of a gap
HOLE_BARS: Final = 30.0

DAY_MINUTES: Final = 1_440
# share of a day's variance between the exchange's close and open
NIGHT_SHARE: Final = 0.3
# volatility before 09:30 and after 16:00, relative to regular hours
THIN: Final = 0.3
# volatility factor over minutes; half-life 23 minutes
FAST_KEEP, FAST_NOISE = 0.97, 0.09
# volatility factor over days
SLOW_KEEP, SLOW_NOISE = 0.9, 0.15
# The long-run effect of both factors on the variance, divided out so that the daily deviation is the market's.
LIVELY: Final = math.exp(-(FAST_NOISE**2) / (1 - FAST_KEEP**2) - SLOW_NOISE**2 / (1 - SLOW_KEEP**2))
# probability of a jump in a minute
NEWS_CHANCE: Final = 1 / (7 * DAY_MINUTES)
# size of a jump, in daily deviations
NEWS_SIZE: Final = 0.4
# largest deviation of a minute, relative to the usual one
BUSIEST: Final = 8.0
# largest log return of a minute; an audit would report a larger one
MOVE_MAX: Final = 0.04
# share of the way back to the listing's price that the price goes in a day
PULL: Final = 0.004
DECIMALS_MAX: Final = 6
FIGURES: Final = 5

_NEW_YORK: Final = ZoneInfo("America/New_York")
Minute = tuple[int, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class SyntheticOptions:
    """The arguments of `generate`."""

    market: str
    interval: str
    start_ms: int
    days: int
    seed: int = 1
    asset_class: str | None = None
    regimes: str = MIXED
    gaps: int = 0
    hours: str = "regular"

    def __post_init__(self) -> None:
        if self.interval not in INTERVAL_MS:
            raise ConfigError(f"--interval {self.interval!r} is not known; there are {', '.join(INTERVAL_MS)}")
        if self.hours not in HOURS:
            raise ConfigError(f"--hours {self.hours!r} are not known; there are {', '.join(HOURS)}")
        if not 1 <= self.days <= DAYS_MAX:
            raise ConfigError(f"--days must be 1 to {DAYS_MAX}, not {self.days}")
        if not 0 <= self.gaps <= HOLES_MAX:
            raise ConfigError(f"--gaps must be 0 to {HOLES_MAX}, not {self.gaps}")
        if not MS_MIN <= self.start_ms < MS_MAX - self.days * DAY_MS:
            raise ConfigError(
                "--from must be 1973-03-04 or later, and long before the year 5138: other times could be mistaken for"
                " another unit"
            )
        if self.start_ms % DAY_MS:
            raise ConfigError("--from must be a date: generated candles begin at 00:00 UTC")
        if self.asset_class is not None and self.asset_class not in CLASSES:
            raise ConfigError(f"--class {self.asset_class!r} is not known; there are {', '.join(CLASSES)}")


def generate(wanted: SyntheticOptions, report: Callable[[int], None] = lambda _days: None) -> Candles:
    """Generate the candles. `report` is called with the number of finished days."""
    listing = listing_of(wanted.market, wanted.asset_class)
    if listing.spec.margin_mode == "full":
        if wanted.regimes != MIXED:
            raise ConfigError("--regimes belongs to prices; the odds of an event are a martingale")
        generated = _odds(wanted, listing, report)
    else:
        generated = _prices(wanted, listing, report)
    if not len(generated):
        raise ConfigError(f"{wanted.market}: its exchange is closed on all of these days; ask for more --days")
    return _holed(generated, wanted) if wanted.gaps else generated


def listing_of(market: str, asset_class: str | None) -> Listing:
    """The service's listing of the market, or a typical listing of the class if the service does not list it."""
    listing = CATALOGUE.get(market)
    if listing is None:
        if asset_class is None:
            raise ConfigError(
                f"market {market!r} is not listed by the service; say what it is like with --class {'|'.join(CLASSES)}"
            )
        template = CATALOGUE[TEMPLATES[asset_class]]
        return replace(template, spec=replace(template.spec, coin=market, name=market))
    if not listing.is_priced:
        raise ConfigError(f"{market} has no price to begin with; add `price:` to its listing")
    if asset_class is not None and listing.spec.asset_class != CLASSES[asset_class]:
        raise ConfigError(f"{market} is one of {listing.spec.asset_class}, not of --class {asset_class}")
    return listing


# ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prices(wanted: SyntheticOptions, listing: Listing, report: Callable[[int], None]) -> Candles:
    """Generate the minutes day by day, and make candles of the interval from them."""
    walk = _Walk(wanted, listing)
    # In winter extended hours end on the next UTC day.
    hours = "regular" if wanted.interval == "1d" else wanted.hours
    # A market of a listing file has candles in its own sessions.
    listed = listing.spec.hours
    sessions = None if listed is None or listed in CALENDARS else calendar(listed)
    whole: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
    for day, mood in enumerate(_moods(wanted)):
        at = wanted.start_ms + day * DAY_MS
        minutes: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
        span = _hours(at, hours) if listing.spec.hours in CALENDARS else None
        ends_ms = at + DAY_MS if span is None else _ends(at, hours, span)
        for minute in walk.day(at, mood, span):
            # The walk takes all minutes, so that a half day does not change later days.
            if minute[0] >= ends_ms or (sessions is not None and not sessions.at(minute[0]).is_open):
                continue
            for column, value in zip(minutes, minute, strict=True):
                column.append(value)
        at_ms, opens, highs, lows, closes, volumes = minutes
        resampled = resample(
            Candles(wanted.market, "1m", at_ms, opens, highs, lows, closes, volumes),
            wanted.interval,
            keep_partial=True,
            utc_days=True,
        )
        for column, more in zip(whole, resampled.columns, strict=True):
            column.extend(more)
        report(day + 1)
    at_ms, opens, highs, lows, closes, volumes = whole
    return Candles(wanted.market, wanted.interval, at_ms, opens, highs, lows, closes, volumes)


class _Walk:
    """A random walk of a price with its two volatility factors."""

    def __init__(self, wanted: SyntheticOptions, listing: Listing) -> None:
        # The seed is a text: the same on every machine.
        self._chance = Random(f"{wanted.seed}:{wanted.market}:walk")
        self._listed = listing.px / E8
        self._px = self._listed
        self._vol = listing.daily_vol
        self._day_usd = listing.day_usd
        self._lot_decimals = listing.spec.sz_decimals
        tick = listing.spec.tick
        self._decimals_max = DECIMALS_MAX - listing.spec.sz_decimals if tick is None else decimals_of(tick)
        self._slow = self._fast = 0.0
        self._begun = False

    def day(self, at_ms: int, mood: Regime, hours: tuple[int, int] | None) -> Iterator[Minute]:
        """The minutes of a UTC day. For a share: the move of the night, then the minutes in the exchange's hours."""
        chance, gauss = self._chance, self._chance.gauss
        self._slow = SLOW_KEEP * self._slow + gauss(0, SLOW_NOISE)
        sigma = self._vol * mood.liveliness
        trend = mood.trend * self._vol - PULL * math.log(self._px / self._listed)
        if hours is None:
            first, last, weights = 0, DAY_MINUTES, _AROUND
        else:
            first, last = hours
            weights = _exchange(last - first)
            if first == last:
                return
            if self._begun:
                self._px *= math.exp(math.sqrt(NIGHT_SHARE) * sigma * max(-3.0, min(3.0, gauss(0, 1))))
            sigma *= math.sqrt(1 - NIGHT_SHARE)
        self._begun = True
        # Deviation of a minute, so that the daily deviation is sigma.
        usual = LIVELY * sigma / math.sqrt(sum(weight * weight for weight in weights))
        mean = trend / (last - first)
        usd = self._day_usd / sum(weights) * (0.6 + 0.4 * mood.liveliness)
        decimals = max(0, min(self._decimals_max, FIGURES - 1 - math.floor(math.log10(self._px))))
        tick = 10.0**-decimals
        exp, log, sqrt, draw, lots = math.exp, math.log, math.sqrt, chance.random, self._lot_decimals
        fast, slow, px = self._fast, self._slow, self._px
        opened = round(px, decimals)
        for minute in range(first, last):
            fast = FAST_KEEP * fast + gauss(0, FAST_NOISE)
            weight = weights[minute - first]
            busy = min(BUSIEST, exp(fast + slow)) * weight
            deviation = usual * busy
            move = mean + deviation * gauss(0, 1)
            if draw() < NEWS_CHANCE:
                move += NEWS_SIZE * sigma * gauss(0, 1)
            move = max(-MOVE_MAX, min(MOVE_MAX, move))
            variance = 2 * deviation * deviation
            up = min((move + sqrt(move * move - variance * log(1 - draw()))) / 2, MOVE_MAX)
            down = max((move - sqrt(move * move - variance * log(1 - draw()))) / 2, -MOVE_MAX)
            start = px
            px *= exp(move)
            close = max(round(px, decimals), tick)
            high = max(round(start * exp(up), decimals), opened, close)
            low = max(min(round(start * exp(down), decimals), opened, close), tick)
            size = round(usd * busy * (0.4 + 1.2 * draw()) / px, lots)
            yield at_ms + minute * MINUTE_MS, opened, high, low, close, max(size, 10.0**-lots)
            opened = close
        self._fast, self._px = fast, px


# Relative volatility of each minute of a day: higher in the UTC afternoon, or at open and close of an exchange.
_AROUND: Final = tuple(
    1.0 - 0.3 * math.cos((minute - 180) / DAY_MINUTES * 2 * math.pi) for minute in range(DAY_MINUTES)
)


@lru_cache(maxsize=4)
def _exchange(minutes: int) -> tuple[float, ...]:
    opens, closes = HOURS["regular"]
    regular = closes - opens
    u_shape = tuple(0.75 + 1.6 * (2 * (minute / regular - 0.5)) ** 4 for minute in range(regular))
    if minutes == regular:
        return u_shape
    before, after = (abs(a - b) for a, b in zip(HOURS["extended"], HOURS["regular"], strict=True))
    return (THIN,) * before + u_shape + (THIN,) * after


@lru_cache(maxsize=8)
def _hours(at_ms: int, hours: str) -> tuple[int, int]:
    """Open and close of the exchange on a UTC date, in minutes from midnight UTC; both 0 on a closed day."""
    day = datetime.fromtimestamp(at_ms / 1000, UTC).date()
    if not is_trading_day(day):
        return 0, 0
    # Daylight saving time changes on Sundays, when the exchange is closed.
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=_NEW_YORK).timestamp()) * 1000
    opens, closes = HOURS[hours]
    shift = (midnight - at_ms) // MINUTE_MS
    return opens + shift, closes + shift


def _ends(at_ms: int, hours: str, span: tuple[int, int]) -> int:
    """The end of the last candle of an exchange's day; earlier on a half day."""
    is_half = is_half_day(datetime.fromtimestamp(at_ms / 1000, UTC).date())
    return at_ms + (span[1] - (HOURS[hours][1] - EARLY[hours] if is_half else 0)) * MINUTE_MS


def _moods(wanted: SyntheticOptions) -> list[Regime]:
    """The regime of each day."""
    if wanted.regimes.strip() == MIXED:
        return _mixed(wanted)
    stretches: list[Regime] = []
    for part in wanted.regimes.split(","):
        name, _, days = part.strip().partition(":")
        if name not in REGIMES or not (days.isascii() and days.isdigit() and 1 <= int(days) <= DAYS_MAX):
            raise ConfigError(
                f"--regimes {part.strip()!r} is not known; write {MIXED}, or stretches of days like"
                f" bull:30,crash:2,calm:10 out of {', '.join(REGIMES)}"
            )
        stretches += [REGIMES[name]] * int(days)
    return [stretches[day % len(stretches)] for day in range(wanted.days)]


def _mixed(wanted: SyntheticOptions) -> list[Regime]:
    """Regimes in random order and of random lengths. A recovery follows each crash."""
    chance = Random(f"{wanted.seed}:{wanted.market}:regimes")
    moods: list[Regime] = []
    name = "sideways"
    while len(moods) < wanted.days:
        mood = REGIMES[name]
        moods += [mood] * max(1, round(mood.days * chance.uniform(0.5, 1.5)))
        others = [other for other in REGIMES if other not in (name, "recovery")]
        name = "recovery" if name == "crash" else chance.choice(others)
    return moods[: wanted.days]


# ── Odds and holes ──────────────────────────────────────────────────────────────────────────────────────────────────


def _odds(wanted: SyntheticOptions, listing: Listing, report: Callable[[int], None]) -> Candles:
    """Candles of an event market, which is settled at the end of the last day."""
    start, end = wanted.start_ms, wanted.start_ms + wanted.days * DAY_MS
    source = EventOdds(
        coin=listing.spec.coin,
        seed=wanted.seed,
        prior=listing.px,
        start_ms=start,
        expires_ms=end,
        pace=listing.daily_vol,
        day_usd=listing.day_usd,
    )
    columns: tuple[array[Any], ...] = (array("q"), *(array("d") for _ in COLUMNS[1:]))
    for day in range(wanted.days):
        for candle in source.candles(wanted.interval, start + day * DAY_MS, start + (day + 1) * DAY_MS):
            columns[0].append(candle.ts)
            for column, amount in zip(columns[1:], candle[1:], strict=True):
                column.append(amount / E8)
        report(day + 1)
    at_ms, opens, highs, lows, closes, volumes = columns
    return Candles(wanted.market, wanted.interval, at_ms, opens, highs, lows, closes, volumes)


def _holed(candles: Candles, wanted: SyntheticOptions) -> Candles:
    """Remove `--gaps` gaps of random lengths. The first and the last candle stay."""
    chance = Random(f"{wanted.seed}:{wanted.market}:holes")
    longest = (len(candles) - 2) // (2 * wanted.gaps)
    if longest < 1:
        raise ConfigError(f"--gaps {wanted.gaps} are too many for {many(len(candles), 'candle')}")
    gone: set[int] = set()
    for _ in range(wanted.gaps):
        length = min(1 + int(chance.expovariate(1 / HOLE_BARS)), longest)
        first = chance.randrange(1, len(candles) - length)
        gone.update(range(first, first + length))
    return candles.pick([index for index in range(len(candles)) if index not in gone])
