"""The assumptions of a backtest: what its figures rest on, as sentences for the manifest, the report and the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from itertools import islice
from operator import attrgetter
from typing import Final

from bot.backtest.engine.candle_readers import CandleReader
from bot.backtest.engine.caps import assumption_lines
from bot.backtest.engine.options import SessionOptions
from bot.backtest.engine.recorded_answers import AgentOptions
from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.timeline import Timeline
from bot.clock import DAY_MS, iso, ms_of
from bot.money import format_e8
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.timers import Spec, instants
from bot.venue.accounting.funding import CLAMP, INTEREST
from bot.venue.accounting.order_sizes import CLOSE_SLIPPAGE_BPS, TRIGGER_SLIPPAGE_BPS
from bot.venue.model.numbers import BPS, E8, E12, digits_of
from bot.venue.model.state import BOOK_LEVELS, CLOSED_DEPTH, MIN_NOTIONAL, VenueMarket
from bot.venue.triggers.liquidation import PARTIAL_FROM

# A tick above this fraction of the price is named among the assumptions.
COARSE: Final = 0.001
# The first instants of a timer show whether it is due between two closes.
INSTANTS: Final = 200
PATHS: Final = {
    "sl_first": (
        "inside a bar the price reaches the extreme nearer to the open first; when a stop and a target lie in one bar,"
        " the stop wins"
    ),
    "adaptive": "inside a bar the price reaches the extreme nearer to the open first",
    "ohlc": "inside a bar the high comes before the low",
    "olhc": "inside a bar the low comes before the high",
}
ALWAYS: Final = (
    (
        "a market order that is decided on a bar's close fills at the next bar's open, plus half the spread and its"
        " walk through the order book"
    ),
    "an entry in USD is sized at the price at which it fills",
    "a stop, a target or a trailing stop fills at its level, or at the open when the bar opens beyond it",
    (
        "MaxHold, schedules and the dead-man switch close at their instant; inside a candle their price lies on the"
        " straight line from its open to its close"
    ),
    "where candles are missing there is no price: what a guardian closes there fills at the next open",
    "a resting limit order fills when the price passes it by one tick, with at most a tenth of the bar's volume",
    "candles hold prices of trades: mark, mid and oracle are the candle's own price",
)
AT_THE_END: Final = (
    "slippage is what takers paid compared with the open, or the level, at which their order was due",
    "slippage is not measured for liquidations and drawdown guardians",
    "positions that are open at the end are valued at the last close; nothing is closed for the report",
    (
        "a year has 365 days; annual figures use returns from 00:00 to 00:00 UTC, which are 0 on a day without prices;"
        " the risk-free rate is 0"
    ),
)


def assumptions_of(
    timeline: Timeline,
    options: SessionOptions,
    exchange: SimulatedExchange,
    *,
    funded: Sequence[str],
    timers: Sequence[tuple[str, str, Spec]] = (),
    asking: Sequence[str] = (),
) -> list[str]:
    """One sentence for each assumption. `funded`: the markets with recorded funding rates. `timers`: strategy, name of
    its timer, when it is due.

    `asking`: the strategies whose entries wait for a person in a live run.
    """
    lines = [f"path {options.path}: {PATHS[options.path]}", *ALWAYS, _latency(options.latency_ms), *AT_THE_END]
    if options.calibration:
        lines.append(options.calibration)
    if options.start_ms is not None and options.start_ms < timeline.start_ms:
        lines.append(
            f"the session begins at {iso(timeline.start_ms)[:16]}, with the first candle there is, and not at"
            f" {iso(options.start_ms)[:16]}"
        )
    for reader in timeline.readers:
        market = exchange.state.markets[reader.coin]
        for line in _of_market(reader, market, timeline, options, is_funded=reader.coin in funded):
            lines.append(f"{reader.coin}: {line}")
    lines += [*timeline.cold, *_between_closes(timers, timeline), *assumption_lines(options.caps)]
    if asking:
        answer = "approved at once" if options.approve == "all" else "refused"
        lines.append(
            f"nobody is asked: each entry of {', '.join(asking)} that needs approval is {answer} (--approve"
            f" {options.approve})"
        )
    if options.outages:
        times = "once" if len(options.outages) == 1 else f"{len(options.outages)} times"
        lines.append(
            f"the daemon was down {times}; until then it sent its heartbeats on time, if it has a dead-man switch"
        )
    return lines


def is_agent(spec: StrategySpec) -> bool:
    """Whether the strategy asks a language model."""
    params = spec.strategy.params
    return getattr(params, "model", None) is not None and hasattr(params, "knowledge_cutoff")


def agent_lines(specs: Sequence[StrategySpec], options: AgentOptions, start_ms: int) -> Iterator[str]:
    """Where the answers of agents come from, and a warning where the model may know the future."""
    for spec in specs:
        if not is_agent(spec):
            continue
        name, params = spec.strategy.name, spec.strategy.params
        model = params.model
        yield f"{name}: the answers of {model} come from {options.file or 'no recording'}" + (
            f", and from the model for at most {options.usd_max:g} USD" if options.answers == "live" else ""
        )
        yield f"{name}: an answer is there on the close of its bar; a live model takes seconds"
        if params.knowledge_cutoff is None:
            yield (
                f"WARNING {name}: knowledge_cutoff is not given: what {model} knows of this period from its training"
                " cannot be judged"
            )
        elif start_ms < ms_of(datetime.combine(params.knowledge_cutoff, time.max, UTC)):
            yield (
                f"WARNING {name}: look-ahead: the period begins at {iso(start_ms)[:10]}, and {model} was trained on"
                f" data up to {params.knowledge_cutoff}: it may know what the prices did, so results before that day"
                " prove nothing"
            )


def _latency(latency_ms: int) -> str:
    if not latency_ms:
        return "latency 0 ms: an order arrives before the next open"
    return (
        f"latency {latency_ms} ms: an order reaches the venue that long after the close, and fills at the next point of"
        " the path (a bar's open, an extreme after a third of the bar, the other after two thirds, its close): up to a"
        " third of a bar later, mostly at a low or a high"
    )


def _of_market(
    reader: CandleReader, market: VenueMarket, timeline: Timeline, options: SessionOptions, *, is_funded: bool
) -> Iterator[str]:
    spec, is_event = market.spec, market.spec.margin_mode == "full"
    if reader.ts[reader.first] < timeline.start_ms:
        yield (
            "the session begins inside a candle: until that candle ends an order fills at the next point of its path,"
            " mostly a low or a high, and not at an open"
        )
    depth = "unlimited depth" if not spec.level_size else f"first level {format_e8(spec.level_size)} {reader.coin}"
    of_what, of = (" of price x (1 - price)", " of the payout") if is_event else ("", "")
    yield (
        f"prices come from {reader.interval} candles; taker {spec.taker_rate / E8 * 100:.4g} %{of_what}, maker"
        f" {'rebate ' if spec.maker_rate < 0 else ''}{abs(spec.maker_rate) / E8 * 100:.4g} %{of_what}, spread"
        f" {2 * spec.half_spread / E8 * 10_000:.4g} bps{of}, {depth}, tick by "
        + (
            f"{spec.sig_figs} figures"
            if spec.sig_figs
            else f"{spec.px_decimals} decimals"
            if spec.tick is None
            else format_e8(spec.tick)
        )
        + ("" if spec.size_step is None else f", sizes by {format_e8(spec.size_step)}")
        + ("" if spec.min_notional == MIN_NOTIONAL else f", orders of at least {format_e8(spec.min_notional)} USD")
    )
    lowest = round(min(reader.low[reader.first : reader.end]) * E8)
    tick = market.ticks[digits_of(lowest)]
    if not is_event and tick > lowest * COARSE:
        yield (
            f"the listing's tick is {format_e8(tick)} at a price of {format_e8(lowest)}: orders and fills are rounded "
            "to it; --tick sets a finer one"
        )
    if not is_event:
        baseline = f"at the baseline of {spec.funding_rate / 10**12 * 100:.6g} % an hour"
        yield f"funding {'as recorded' if is_funded else baseline}, paid on the open of the hour"
    if spec.hours is not None:
        premium = "" if is_funded else "; the distance of the price from it moves the rate off the baseline"
        yield (
            f"outside of its exchange's hours the oracle stands still, and funding is paid on it{premium}; "
            "from the instant the exchange opens the oracle is the price again"
        )
    if is_event:
        yield _settled(options, reader, timeline.end_ms)
    yield from _multipliers(market, is_funded=is_funded)
    begins_ms, ends_ms = reader.ts[reader.first], reader.ts[reader.end - 1] + reader.step_ms
    if not reader.first and begins_ms > timeline.start_ms:
        yield f"closed until its first candle, {iso(begins_ms)[:16]}: earlier orders are refused"
    if begins_ms - timeline.start_ms >= DAY_MS or timeline.end_ms - ends_ms >= DAY_MS:
        yield (
            f"there are candles only from {iso(begins_ms)[:16]} to {iso(ends_ms)[:16]}; outside of that its price"
            " stands still"
        )
    if holes := _holes(reader.ts, reader.step_ms, reader.first, reader.end):
        closed = ", nights and holidays included" if spec.hours is not None else ""
        yield (
            f"{holes} {'candle is' if holes == 1 else 'candles are'} missing inside the range{closed}: no price moves"
            " there, and the next open is a jump"
        )


def _multipliers(market: VenueMarket, *, is_funded: bool) -> Iterator[str]:
    """Sentences on the figures that depend on size, opening hours or price, and on how far from the mid orders fill."""
    spec, of = market.spec, " of the payout" if market.spec.margin_mode == "full" else ""
    if spec.hours is not None:
        wider = f"the spread is {CLOSED_DEPTH} times as wide, {2 * CLOSED_DEPTH * spec.half_spread / E8 * BPS:.4g} bps"
        thinner = f"each level of the book holds 1/{CLOSED_DEPTH} of its size"
        closed = [text for text, applies in ((wider, spec.half_spread), (thinner, spec.level_size)) if applies]
        closed += ["nothing is opened"] if spec.strict_hours else []
        if closed:
            yield f"while its exchange is closed {', and '.join(closed)}"
    if spec.level_size:
        yield (
            f"the book has {BOOK_LEVELS} levels: each is {spec.level_step / E8 * BPS:.4g} bps{of} further from the mid"
            f" than the one before it, and larger by {spec.level_growth / E8 * 100:.4g} % of the first"
        )
    yield (
        f"an entry at market fills at most {spec.slippage_bps} bps{of} from the mid unless it sets another bound, a"
        f" close {CLOSE_SLIPPAGE_BPS} bps, a stop, a target or a guardian {TRIGGER_SLIPPAGE_BPS} bps"
    )
    if spec.margin_mode == "full":
        return
    if spec.hours is not None and not is_funded:
        yield (
            f"the funding rate of a premium P over the oracle is {spec.funding_factor / E8:.4g} x (P +"
            f" clamp({INTEREST / E12 * 100:.4g} % - P, -{CLAMP / E12 * 100:.4g} % to {CLAMP / E12 * 100:.4g} %)) / 8 an"
            " hour"
        )
    tiers = [
        f"{50 / tier.max_leverage:.4g} % of "
        + (f"the part above {tier.lower // E8:,} USD" if tier.lower else "the notional")
        for tier in market.tiers
    ]
    yield (
        f"maintenance margin is {' and '.join(tiers)}; a position below it is liquidated (a position above"
        f" {PARTIAL_FROM // E8:,} USD by a fifth first); below two thirds of it the liquidator takes the position with"
        " its margin"
    )


def _settled(options: SessionOptions, reader: CandleReader, end_ms: int) -> str:
    """How an event market ends."""
    settlement = options.settlements.get(reader.coin)
    at_ms = None if settlement is None else settlement.after(reader.ts[-1] + reader.step_ms)
    if settlement is None or at_ms is None or at_ms > end_ms:
        return "is not settled within the session: a position at the end is valued at the last close"
    pays = "0 or 1, whichever its last price is nearer to" if settlement.outcome is None else f"{settlement.outcome:f}"
    return f"settled at {iso(at_ms)[:19]}: a share of Yes pays {pays}; resting orders are canceled, and trading ends"


def _between_closes(timers: Sequence[tuple[str, str, Spec]], timeline: Timeline) -> Iterator[str]:
    """Timers that are due between two closes, judged by their first instants."""
    finest = min(timeline.readers, key=attrgetter("step_ms"))
    for strategy, name, spec in timers:
        first = islice(instants(spec, timeline.start_ms, timeline.end_ms), INSTANTS)
        if any(at_ms % finest.step_ms for at_ms in first):
            yield (
                f"{strategy}: timer {name}: when it is due several times between two closes of {finest.interval}"
                " candles, it fires once, at the later close"
            )


def _holes(ts: Sequence[int], step_ms: int, first: int, end: int) -> int:
    return (ts[end - 1] - ts[first]) // step_ms + 1 - (end - first) if end > first else 0
