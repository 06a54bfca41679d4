"""Executions: an order meets the book, and each fill is booked in the venue's ledger and in the raw ledger."""

from __future__ import annotations

from bot.local_exchange.engine import candles, fees, lifecycle, margins
from bot.local_exchange.engine.records import ExchangeFill, ExchangeOrder, ExchangeTrade, Execution, Report
from bot.local_exchange.engine.state import (
    MAKER,
    Coin,
    Exchange,
    User,
    account_id,
    account_of,
    block_hash,
    leverage_of,
    position_size,
    take_oid,
    trade_id,
)
from bot.local_exchange.engine.venue_rules import E8, close_part, notional_of, open_part

# (liquidated address, mark price, method)
Liquidation = tuple[str, int, str]


def forced_order(exchange: Exchange, address: str, coin: Coin, *, buy: bool, px: int, size: int) -> ExchangeOrder:
    """An order that the exchange itself sends: of a liquidation, a deleveraging, or another participant."""
    return ExchangeOrder(
        oid=take_oid(exchange),
        user=address,
        coin=coin.name,
        asset=coin.asset,
        buy=buy,
        px=px,
        sz=size,
        orig_sz=size,
        reduce_only=address != MAKER,
        tif="LiquidationMarket",
        cloid=None,
        at_ms=exchange.now_ms,
        told_sz=size,
    )


def match(
    exchange: Exchange, coin: Coin, taker: ExchangeOrder, bound: int | None, liquidation: Liquidation | None = None
) -> None:
    """Fill a taker against the book, at no price beyond `bound`. What is left stays in `taker.sz`."""
    book = coin.book
    while taker.sz:
        orders, others = book.side(buy=not taker.buy), book.ladder[1 if taker.buy else 0]
        resting = orders[0][1] if orders else None
        if resting is not None and (not others or _is_before(resting, others[0][0], buy=taker.buy)):
            if _beyond(resting.px, bound, buy=taker.buy):
                return
            size = _offered(exchange, taker, resting)
            if size:
                trade(exchange, coin, taker, resting, resting.px, min(size, taker.sz), liquidation)
        elif others and not _beyond(others[0][0], bound, buy=taker.buy):
            level = others[0]
            size = min(level[1], taker.sz)
            level[1] -= size
            book.is_taken = True
            if not level[1]:
                others.pop(0)
            trade(exchange, coin, taker, None, level[0], size, liquidation)
        else:
            return


def _is_before(resting: ExchangeOrder, px: int, *, buy: bool) -> bool:
    """True if the resting order comes before the others' level: a better price, or the same."""
    return resting.px <= px if buy else resting.px >= px


def _beyond(px: int, bound: int | None, *, buy: bool) -> bool:
    return bound is not None and (px > bound if buy else px < bound)


def _offered(exchange: Exchange, taker: ExchangeOrder, resting: ExchangeOrder) -> int:
    """How much of a resting order may fill now. If nothing may, the order has been canceled."""
    if resting.user == taker.user:
        lifecycle.end(exchange, resting, "selfTradeCanceled")
        return 0
    size = min(resting.sz, taker.sz)
    if resting.reduce_only:
        held = position_size(exchange, resting.user, resting.coin)
        size = min(size, max(0, -held if resting.buy else held))
        if not size:
            lifecycle.end(exchange, resting, "reduceOnlyCanceled")
    elif not margins.covers_fill(exchange, resting, size):
        lifecycle.end(exchange, resting, "marginCanceled")
        return 0
    return size


def trade(
    exchange: Exchange,
    coin: Coin,
    taker: ExchangeOrder,
    resting: ExchangeOrder | None,
    px: int,
    size: int,
    liquidation: Liquidation | None,
) -> None:
    """Execute a trade between a taker and a resting order, or the other participants."""
    other_oid = take_oid(exchange) if resting is None else resting.oid
    other = MAKER if resting is None else resting.user
    buyer, seller = (taker.user, other) if taker.buy else (other, taker.user)
    tid = trade_id(taker.oid, other_oid) if taker.buy else trade_id(other_oid, taker.oid)
    row = ExchangeTrade(coin.name, taker.buy, px, size, block_hash(exchange), exchange.now_ms, tid, buyer, seller)
    coin.trades.append(row)
    coin.book.last_px = px
    candles.count(exchange, coin, px, size)
    exchange.reports.append(Report("trade", "", row))
    execution = Execution(px, size, tid, liquidation)
    for order, crossed in ((taker, True), (resting, False)):
        if order is not None and order.user == MAKER:
            order.sz -= size
        elif order is not None:
            _settle(exchange, coin, order, execution, crossed=crossed)
    for order in (taker, resting):
        if order is None or order.user == MAKER:
            continue
        if order.sz == 0 and order.status != "filled":
            lifecycle.end(exchange, order, "filled")
        lifecycle.keep_reducing(exchange, exchange.users[order.user], coin.name)


def _settle(exchange: Exchange, coin: Coin, order: ExchangeOrder, execution: Execution, *, crossed: bool) -> None:
    """Book one side of a trade."""
    user, px, size = exchange.users[order.user], execution.px, execution.sz
    notional = notional_of(px, size)
    fee = fees.fee(exchange, user, coin, notional, maker=not crossed)
    builder = fees.builder_fee(notional, order.builder[1]) if order.builder is not None else 0
    start = position_size(exchange, user.address, coin.name)
    realized = book_fill(exchange, user, coin, buy=order.buy, px=px, size=size, fee=fee + builder)
    order.sz -= size
    order.filled_notional += notional
    assert order.sz >= 0, order
    fees.count_volume(exchange, user, coin, notional, maker=not crossed)
    label, paid = _direction(start, size, buy=order.buy), (fee + builder, builder)
    fill = fill_of(exchange, order, execution, start, realized, label, crossed=crossed, fees_paid=paid)
    user.fills.append(fill)
    exchange.reports.append(Report("fill", user.address, fill))


def execute_apart(
    exchange: Exchange,
    user: User,
    coin: Coin,
    order: ExchangeOrder,
    other_oid: int,
    label: str,
    liquidation: Liquidation | None,
) -> None:
    """Execute the whole of an order outside of the book, without a fee."""
    px, size = order.px, order.sz
    start = position_size(exchange, user.address, coin.name)
    realized = book_fill(exchange, user, coin, buy=order.buy, px=px, size=size, fee=0)
    order.sz -= size
    order.filled_notional += notional_of(px, size)
    tid = trade_id(order.oid, other_oid) if order.buy else trade_id(other_oid, order.oid)
    fill = fill_of(exchange, order, Execution(px, size, tid, liquidation), start, realized, label)
    user.fills.append(fill)
    exchange.reports.append(Report("fill", user.address, fill))
    lifecycle.end(exchange, order, "filled")
    lifecycle.keep_reducing(exchange, user, coin.name)


def close_apart(exchange: Exchange, user: User, coin: Coin, px: int, label: str, method: str | None = None) -> None:
    """Close the whole position outside of the book, without a fee. `method` names the kind of a liquidation."""
    held = position_size(exchange, user.address, coin.name)
    order = forced_order(exchange, user.address, coin, buy=held < 0, px=px, size=abs(held))
    liquidation = None if method is None else (user.address, coin.market.mark, method)
    execute_apart(exchange, user, coin, order, take_oid(exchange), label, liquidation)


def fill_of(
    exchange: Exchange,
    order: ExchangeOrder,
    execution: Execution,
    start: int,
    realized: int,
    label: str,
    *,
    crossed: bool = True,
    fees_paid: tuple[int, int] = (0, 0),
) -> ExchangeFill:
    """The row of one side of a trade. `fees_paid`: the whole fee, and the part of it that the builder gets."""
    fee, builder_fee = fees_paid
    return ExchangeFill(
        user=order.user,
        coin=order.coin,
        px=execution.px,
        sz=execution.sz,
        buy=order.buy,
        time=exchange.now_ms,
        start_position=start,
        dir=label,
        closed_pnl=realized,
        hash=block_hash(exchange),
        oid=order.oid,
        crossed=crossed,
        fee=fee,
        tid=execution.tid,
        cloid=order.cloid,
        builder_fee=builder_fee,
        liquidation=execution.liquidation,
    )


def book_fill(exchange: Exchange, user: User, coin: Coin, *, buy: bool, px: int, size: int, fee: int) -> int:
    """Book an execution in both ledgers and return the realised profit before the fee.

    The raw ledger must agree afterwards.
    """
    account = account_of(exchange, user.address, coin.dex)
    raw = exchange.raw[account_id(user.address, coin.dex)]
    side = 1 if buy else -1
    position = account.positions.get(coin.name)
    realized, rest, absorbed = 0, size, account.absorbed
    if position is not None and position.side != side:
        part = min(size, position.size)
        realized = close_part(account, coin.market, position, size=part, px=px, fee=fee)
        rest -= part
        fee_left = 0
    else:
        fee_left = fee
    if rest:
        mode = leverage_of(exchange, user, coin.name)
        open_part(exchange.venue, account, coin.market, buy=side, size=rest, px=px, fee=fee_left, mode=mode)
    raw.fill(coin.name, buy=buy, px=px, size=size, fee=fee)
    if account.absorbed != absorbed:
        raw.add("absorbed", account.absorbed - absorbed)
    raw.check(account)
    return realized


def _direction(start: int, size: int, *, buy: bool) -> str:
    """The display text of a fill."""
    end = start + (size if buy else -size)
    if start > 0 > end:
        return "Long > Short"
    if start < 0 < end:
        return "Short > Long"
    side = "Long" if max(start, end) > 0 else "Short"
    return f"{'Open' if abs(end) > abs(start) else 'Close'} {side}"


def avg_px(coin: Coin, order: ExchangeOrder) -> int:
    """Size-weighted price of an order's fills, cut at the market's price decimals."""
    step: int = 10 ** (2 + coin.market.spec.sz_decimals)
    px = order.filled_notional * E8 // order.filled
    return px - px % step
