"""The venue's rules for one position at a time in one market: entry at the next open, bracket, close, fee, spread,
funding, the path inside a bar.

The rules are those of bot.venue (docs/venue-rules.md); tests compare each trade with the full backtest. What the kernel
cannot decide exactly ends the run with the row and a reason: the caller then runs the full backtest. Whole numbers
scaled 1e8 throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.research.screen.arithmetic import (
    AMOUNT_MAX,
    E8,
    TOO_LARGE,
    fee_of,
    funding_of,
    over,
    share_of,
    times,
    times_up,
)
from bot.research.screen.jit import jit
from bot.strategy.signals import CLOSE_LONG, CLOSE_SHORT, LONG

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Codes = np.ndarray[Any, np.dtype[np.int8]]

HOUR_MS: Final = 3_600_000
# a fill this near to the mid lies within every slippage bound
NEAR_BPS: Final = 90
# path policies
OHLC, OLHC, ADAPTIVE, SL_FIRST = range(4)
# how a trade ended; OPEN_END: the trade did not end
OPEN_END, STOP, TARGET, CLOSE = range(4)

# Why a run ended before its last bar.
DONE, TOO_BIG, REFUSED, NO_MARGIN, LIQUIDATION, DEPTH = range(6)
REASONS: Final = {
    TOO_BIG: "an amount is above 900 million USD",
    REFUSED: "the service refuses the order, because of its size or its bracket",
    NO_MARGIN: "the account has too little margin for the order",
    LIQUIDATION: "the price comes near to the position's liquidation",
    DEPTH: "the order is larger than the first level of the book, or the spread is above 90 bps",
}

# The columns of a trade.
COLUMNS: Final = (
    "side",
    "size",
    "entry_row",
    "entry_notional",
    "exit_row",
    "exit_step",
    "exit_notional",
    "exit_kind",
    "fees",
    "funding",
    "stop_px",
    "target_px",
)


class ScreenPrices(NamedTuple):
    """The candles: instants of the opens, and prices."""

    at_ms: Ints
    open: Ints
    high: Ints
    low: Ints
    close: Ints


class ScreenOrders(NamedTuple):
    """What the strategy wants:

    `codes` by the row of the candles, the rest by the number of the entry. 0: not given. Percentages and R are scaled
    1e8.
    """

    codes: Codes
    # the rows of `codes` that open
    entries: Ints
    usd: Ints
    size: Ints
    budget_size: Ints
    stop_pct: Ints
    stop_px: Ints
    target_pct: Ints
    target_px: Ints
    target_r: Ints
    leverage: int


class ScreenRules(NamedTuple):
    """The market's listing and the session's options."""

    step_ms: int
    path: int
    taker_rate: int
    half_spread: int
    # The size of the book's first level; 0: unlimited.
    first_size: int
    lot: int
    min_notional: int
    # the largest maintenance fraction of the market's tiers, with a margin
    maintenance: float
    needs_stop: int
    budget: int
    # ticks by the number of digits of a price
    ticks: Ints
    # recorded funding rates, with the one in force before them first
    rate_ms: Ints
    rates: Ints


class ScreenPosition(NamedTuple):
    """An open position with its bracket. 0: no stop, no target.

    `safe`: at prices beyond, a liquidation may come near; 0 for a long without.
    """

    side: int
    size: int
    notional: int
    stop: int
    target: int
    safe: int


@jit
def tick_of(px: int, ticks: Ints) -> int:
    digits, power = (1, 10) if px < E8 else (9, 10 * E8)
    while px >= power:
        digits += 1
        power *= 10
    return int(ticks[digits])


@jit
def to_grid(px: int, side: int, ticks: Ints) -> int:
    """`px` on the grid: up if `side` is above 0, else down."""
    tick = tick_of(px, ticks)
    return -(-px // tick) * tick if side > 0 else px - px % tick


@jit
def book_px(mid: int, buy: int, rules: ScreenRules) -> int:
    """The price of a taker at the first level of the book."""
    px = mid
    if rules.half_spread:
        px = mid + buy * times_up(mid, rules.half_spread)
    return to_grid(px, buy, rules.ticks)


@jit
def is_near(px: int, mid: int) -> bool:
    return px > 0 and abs(px - mid) <= share_of(mid, NEAR_BPS)


@jit
def size_at(px: int, usd: int, size: int, rules: ScreenRules) -> int:
    """The size of an entry at this price; TOO_LARGE if it is out of range."""
    if not usd:
        return size
    amount = over(usd, px)
    return amount - amount % rules.lot if amount != TOO_LARGE else TOO_LARGE


@jit
def least_size(mid: int, rules: ScreenRules) -> int:
    """The smallest size worth the minimum order."""
    amount = over(rules.min_notional, mid)
    if times(amount, mid) < rules.min_notional:
        amount += 1
    return -(-amount // rules.lot) * rules.lot


@jit
def levels(orders: ScreenOrders, turn: int, side: int, entry_px: int, rules: ScreenRules) -> tuple[int, int]:
    """Stop and target of an entry at this price. 0: not given. TOO_LARGE: not above 0."""
    stop, target = orders.stop_px[turn], orders.target_px[turn]
    if stop:
        stop = to_grid(stop, side, rules.ticks)
    elif orders.stop_pct[turn]:
        stop = entry_px - side * (times(entry_px, orders.stop_pct[turn]) // 100)
        stop = to_grid(stop, side, rules.ticks) if stop > 0 else TOO_LARGE
    if target:
        target = to_grid(target, -side, rules.ticks)
    else:
        away = 0
        if orders.target_pct[turn]:
            away = times(entry_px, orders.target_pct[turn]) // 100
        elif orders.target_r[turn]:
            away = times(abs(entry_px - stop), orders.target_r[turn])
        if away or orders.target_pct[turn] or orders.target_r[turn]:
            target = entry_px + side * away
            target = to_grid(target, -side, rules.ticks) if target > 0 else TOO_LARGE
    return stop, target


@jit
def safe_px(balance: int, side: int, size: int, notional: int, rules: ScreenRules) -> int:
    """Up to this price a long cannot be liquidated, down to the largest price of a short; with a margin for
    rounding. 0: a long cannot be liquidated at all.
    """
    worth = float(size) / E8
    if side > 0:
        px = (notional - balance) / (worth * (1 - rules.maintenance))
        return int(px * 1.001) + 1 if px > 0 else 0
    return int((notional + balance) / (worth * (1 + rules.maintenance)) * 0.999)


@jit
def is_beyond(px: int, level: int, side: int) -> bool:
    """True if a price has fallen to the level of a long, or risen to that of a short. A level of 0 is none."""
    return level > 0 and (px <= level if side > 0 else px >= level)


@jit
def refused(orders: ScreenOrders, turn: int, side: int, mid: int, balance: int, rules: ScreenRules) -> int:
    """DONE if the service accepts the entry at this price; else why the kernel cannot go on."""
    px = book_px(mid, side, rules)
    size = size_at(px, orders.usd[turn], orders.size[turn], rules)
    notional = times(px, size) if size > 0 else 0
    if size == TOO_LARGE or notional == TOO_LARGE:
        return TOO_BIG
    if not is_near(px, mid) or (rules.first_size and size > rules.first_size):
        return DEPTH
    wanted = orders.usd[turn] or times(mid, orders.budget_size[turn]) + 1
    if times(mid, size) < rules.min_notional or size <= 0 or wanted > rules.budget:
        return REFUSED
    if -(-notional // orders.leverage) + fee_of(notional, rules.taker_rate) > balance:
        return NO_MARGIN
    entry_px = over(notional, size)
    stop, target = levels(orders, turn, side, entry_px, rules)
    if (
        stop == TOO_LARGE
        or (stop == 0 and rules.needs_stop)
        or (stop and ((entry_px - stop) * side <= 0 or (mid - stop) * side <= 0))
    ):
        return REFUSED
    if target == TOO_LARGE or (target and ((target - entry_px) * side <= 0 or (target - mid) * side <= 0)):
        return REFUSED
    safe = safe_px(balance, side, size, notional, rules)
    return LIQUIDATION if is_beyond(mid, safe, side) or is_beyond(stop or mid, safe, side) else DONE


@jit
def opened(
    orders: ScreenOrders, turn: int, side: int, mid: int, balance: int, rules: ScreenRules
) -> tuple[int, int, int, ScreenPosition]:
    """The fill at an open: (why not, else DONE; fee; size; position)."""
    none = ScreenPosition(side, 0, 0, 0, 0, 0)
    px = book_px(mid, side, rules)
    size = size_at(px, orders.usd[turn], orders.size[turn], rules)
    if size != TOO_LARGE and orders.usd[turn]:
        size = max(size, least_size(mid, rules))
    notional = times(px, size) if size > 0 else TOO_LARGE
    if notional == TOO_LARGE:
        return TOO_BIG, 0, 0, none
    if not is_near(px, mid) or (rules.first_size and size > rules.first_size):
        return DEPTH, 0, 0, none
    if -(-notional // orders.leverage) > balance:
        return NO_MARGIN, 0, 0, none
    fee = fee_of(notional, rules.taker_rate)
    stop, target = levels(orders, turn, side, over(notional, size), rules)
    if stop == TOO_LARGE or target == TOO_LARGE:
        return REFUSED, 0, 0, none
    safe = safe_px(balance - fee, side, size, notional, rules)
    if is_beyond(mid, safe, side) or is_beyond(stop or mid, safe, side):
        return LIQUIDATION, 0, 0, none
    return DONE, fee, size, ScreenPosition(side, size, notional, stop, target, safe)


@jit
def way(row: int, prices: ScreenPrices, path: int) -> tuple[int, int, int, int]:
    """The four prices of a bar in the order of the path."""
    first, high, low, last = prices.open[row], prices.high[row], prices.low[row], prices.close[row]
    if path == OHLC or (path != OLHC and abs(high - first) < abs(first - low)):
        return first, high, low, last
    return first, low, high, last


@jit
def touched(position: ScreenPosition, path: tuple[int, int, int, int], step: int, policy: int) -> tuple[int, int]:
    """What acts when the price has moved to point `step` of a bar:

    (STOP, TARGET or OPEN_END; the price). At a jump, step 0, it acts at the open.
    """
    px = path[step]
    if is_beyond(px, position.stop, position.side):
        return STOP, px if step == 0 else position.stop
    if is_beyond(px, position.target, -position.side):
        if policy == SL_FIRST and step:
            for later in range(step + 1, 4):
                if is_beyond(path[later], position.stop, position.side):
                    return OPEN_END, 0
        return TARGET, px if step == 0 else position.target
    return OPEN_END, 0


@jit
def rate_at(now_ms: int, rules: ScreenRules) -> int:
    """The hourly funding rate in force."""
    low, high = 0, len(rules.rate_ms)
    while high - low > 1:
        middle = (low + high) // 2
        if rules.rate_ms[middle] <= now_ms:
            low = middle
        else:
            high = middle
    return int(rules.rates[low])


@jit
def paid(position: ScreenPosition, from_ms: int, until_ms: int, px: int, rules: ScreenRules) -> int:
    """What the position gets for the full hours from `from_ms` up to before `until_ms`, at this price.

    AMOUNT_MAX + 1: out of range.
    """
    amount = 0
    hour_ms = from_ms
    while hour_ms < until_ms:
        payment = funding_of(position.size, px, rate_at(hour_ms, rules))
        if payment > AMOUNT_MAX:
            return AMOUNT_MAX + 1
        amount -= position.side * payment
        hour_ms += HOUR_MS
    return amount


@jit
def next_hour(now_ms: int) -> int:
    return now_ms // HOUR_MS * HOUR_MS + HOUR_MS


@jit
def walked(
    position: ScreenPosition,
    row: int,
    prices: ScreenPrices,
    rules: ScreenRules,
    due_ms: int,
    is_closing: bool,
    first_step: int,
) -> tuple[int, int, int, int, int]:
    """One bar point by point from `first_step` on: (OPEN_END or how the position ended; step; mid of the exit; funding;
    next hour due).

    A status of -1 - reason means that the kernel cannot go on.
    """
    path = way(row, prices, rules.path)
    opens_ms = prices.at_ms[row]
    last = path[0] if first_step else prices.close[row - 1]
    funding = 0
    for step in range(first_step, 4):
        point_ms = opens_ms + step * (rules.step_ms // 3) if step < 3 else opens_ms + rules.step_ms - 1
        px = path[step]
        if due_ms <= point_ms:
            # An hour at a bar's open is paid at the open's price.
            hours_end = point_ms if point_ms % HOUR_MS else point_ms + 1
            if step == 0 and point_ms % HOUR_MS == 0:
                before, now = (
                    paid(position, due_ms, point_ms, last, rules),
                    paid(position, point_ms, point_ms + 1, px, rules),
                )
            else:
                before, now = paid(position, due_ms, hours_end, last, rules), 0
            if before > AMOUNT_MAX or now > AMOUNT_MAX:
                return -1 - TOO_BIG, step, 0, 0, due_ms
            funding += before + now
            due_ms = next_hour(point_ms)
        if step == 0 and is_beyond(px, position.safe, position.side):
            return -1 - LIQUIDATION, step, 0, funding, due_ms
        kind, mid = touched(position, path, step, rules.path)
        if kind != OPEN_END:
            return kind, step, mid, funding, due_ms
        if is_beyond(px, position.safe, position.side):
            return -1 - LIQUIDATION, step, 0, funding, due_ms
        if step == 0 and is_closing:
            return CLOSE, step, px, funding, due_ms
        last = px
    return OPEN_END, 3, 0, funding, due_ms


@jit
def nearest_of(position: ScreenPosition) -> int:
    """The nearest price at which something may happen to a losing position."""
    if position.side > 0:
        return max(position.stop, position.safe)
    return min(position.stop, position.safe) if position.stop else position.safe


@jit
def held(
    position: ScreenPosition,
    entry_row: int,
    end: int,
    prices: ScreenPrices,
    codes: Codes,
    rules: ScreenRules,
    balance: int,
) -> tuple[int, int, int, int, int]:
    """The position from its fill at an open to its end:

    (how it ended; row; step; mid of the exit; funding). Row `end`: it did not.
    """
    close_bit = CLOSE_LONG if position.side > 0 else CLOSE_SHORT
    nearest, target, side = nearest_of(position), position.target, position.side
    due_ms, last_ms = next_hour(prices.at_ms[entry_row]), rules.step_ms - 1
    highs, lows, at_ms = prices.high, prices.low, prices.at_ms
    mid = prices.open[entry_row]
    # A stop or target that the fill itself has passed acts at once, at the same price.
    if is_beyond(mid, position.stop, side):
        return STOP, entry_row, 0, mid, 0
    if is_beyond(mid, target, -side):
        return TARGET, entry_row, 0, mid, 0
    funding, is_closing = 0, False
    for row in range(entry_row, end):
        if side > 0:
            is_quiet = lows[row] > nearest and (target == 0 or highs[row] < target)
        else:
            is_quiet = highs[row] < nearest and (target == 0 or lows[row] > target)
        if is_closing or not is_quiet or due_ms <= at_ms[row] + last_ms:
            first = 1 if row == entry_row else 0
            kind, step, mid, got, due_ms = walked(position, row, prices, rules, due_ms, is_closing, first)
            funding += got
            if kind != OPEN_END:
                return kind, row, step, mid, funding
            if got:
                safe = safe_px(balance + funding, side, position.size, position.notional, rules)
                position = ScreenPosition(side, position.size, position.notional, position.stop, target, safe)
                nearest = nearest_of(position)
        is_closing = (codes[row] & close_bit) != 0
    return OPEN_END, end, 0, 0, funding


@jit
def trades_of(
    prices: ScreenPrices, orders: ScreenOrders, rules: ScreenRules, first: int, end: int, balance: int, out: Ints
) -> tuple[int, int, int, int]:
    """Write the trades into the rows of `out`. Returns (number of trades, DONE or the reason of the end, its row,
    balance).

    The first decision falls on the close of row `first`.
    """
    count, free, codes = 0, first, orders.codes
    for turn in range(len(orders.entries)):
        row = orders.entries[turn]
        if row < free or row >= end - 1:
            continue
        side = 1 if codes[row] & LONG else -1
        reason = refused(orders, turn, side, prices.close[row], balance, rules)
        if reason != DONE:
            return count, reason, row, balance
        reason, fee, size, position = opened(orders, turn, side, prices.open[row + 1], balance, rules)
        if reason != DONE:
            return count, reason, row, balance
        entry_row = row + 1
        kind, free, step, mid, funding = held(position, entry_row, end, prices, codes, rules, balance - fee)
        if kind < 0:
            return count, -1 - kind, free, balance
        fees, worth = fee, 0
        balance += funding - fee
        if kind != OPEN_END:
            px = book_px(mid, -side, rules)
            worth = times(px, size)
            exit_fee = fee_of(worth, rules.taker_rate) if worth != TOO_LARGE else TOO_LARGE
            if exit_fee == TOO_LARGE:
                return count, TOO_BIG, free, balance
            if not is_near(px, mid):
                return count, DEPTH, free, balance
            fees += exit_fee
            balance += side * (worth - position.notional) - exit_fee
        if balance < 0:
            return count, LIQUIDATION, free, balance
        trade = (
            side,
            size,
            entry_row,
            position.notional,
            free,
            step,
            worth,
            kind,
            fees,
            funding,
            position.stop,
            position.target,
        )
        for column in range(len(trade)):
            out[count, column] = trade[column]
        count += 1
    return count, DONE, end, balance
