"""Attributes fills, fees, funding payments and profits to strategies. Changes an `Attribution`.

- An opening fill belongs to the strategy whose intent has the fill's key. A closing fill takes from that strategy's share first, and then from
  the other shares in proportion. A stop, target, guardian, liquidation or settlement takes from all shares in proportion.
  Funding and lost margin are split in proportion too.
- A strategy that holds the whole position gets the service's figures. If several share it, the profit of each is computed from the cost of
  its own fills. The account's profit is computed from one average entry price; NETTING holds the difference until the position is closed.

So the sum over all rows equals the account's figures, to the last unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, getcontext, localcontext, setcontext
from typing import TYPE_CHECKING, Any, Final

from bot.runtime.account.allocation import Weights, cost_of, gain_of, joined, split, takes_of
from bot.runtime.account.attribution import Attribution
from bot.runtime.model.positions import MirrorPosition
from bot.runtime.model.shares import EXACT, FOREIGN, NETTING, NOUGHT, Part, Share

if TYPE_CHECKING:
    from bot.wire import Event


def attribute_event(attribution: Attribution, event: Event) -> Mapping[str, Part]:
    """Attribute one event. Returns the part of each strategy if the event is a fill."""
    fold = _FOLD.get(event.type)
    if fold is None:
        return {}
    if attribution.is_in_page:
        attribution.keep()
    before = getcontext()
    setcontext(EXACT)  # localcontext would copy the context for each event.
    try:
        attribution.roll(event.ts)
        return fold(attribution, event, event.data) or {}
    finally:
        setcontext(before)


def name_foreign_entries(attribution: Attribution, events: Iterable[Event], owner: str) -> None:
    """Move entries from FOREIGN to their real owner, as if it had owned them from the start."""
    attribution.keep()
    with localcontext(EXACT):
        for event in events:
            data = event.data
            if event.type != "fill" or data.intent != "open":
                continue  # A close has already reduced the shares.
            realized = data.realized_pnl_usd or NOUGHT
            attribution.add(FOREIGN, fills=-1, fees=-data.fee_usd, realized=-realized)
            attribution.add(owner, fills=1, fees=data.fee_usd, realized=realized)
            held = attribution.shares.get(event.coin or "", {})
            theirs = held.get(FOREIGN)
            if theirs is None or theirs.side != data.side or theirs.size < data.size:
                continue  # A part was closed since; `align` gives the rest to its owner.
            cost = theirs.cost_usd if theirs.size == data.size else data.px * data.size
            left = theirs._replace(size=theirs.size - data.size, cost_usd=theirs.cost_usd - cost)
            known, mine = held.get(owner), Share(theirs.market, owner, theirs.side, data.size, cost)
            held[owner] = mine if known is None else joined(known, mine)
            if left.size:
                held[FOREIGN] = left
            else:
                del held[FOREIGN]
            attribution.markets_changed.add(theirs.market)


def align(attribution: Attribution, positions: Mapping[str, MirrorPosition], epoch: int, now_ms: int) -> None:
    """Make the shares fit the positions after missed events, an account reset, or a new owner of a position.

    A change of owner here makes no profit: for the new owner, the size counts from the present mark price.
    """
    attribution.keep()
    if epoch != attribution.epoch:
        attribution.rows, attribution.shares, attribution.netting, attribution.epoch = {}, {}, {}, epoch
        attribution.rows_changed, attribution.markets_changed, attribution.is_wiped = set(), set(), True
        attribution.day_start = ()
    with localcontext(EXACT):
        attribution.roll(now_ms)
        for market in [*attribution.shares, *(market for market in positions if market not in attribution.shares)]:
            position = positions.get(market)
            if position is None:
                _fit(attribution, market, "", NOUGHT, None, FOREIGN)
                continue
            owner = position.owner or FOREIGN
            _fit(attribution, market, position.side, position.size, position.entry_px, owner)
            if owner not in attribution.shares[market] and FOREIGN in attribution.shares[market]:
                _give(attribution, attribution.shares[market][FOREIGN], owner)


def give_back(attribution: Attribution, market: str, now_ms: int) -> None:
    """Move every share of a position to FOREIGN, at the present mark price, because no strategy owns it any more."""
    attribution.keep()
    with localcontext(EXACT):
        attribution.roll(now_ms)
        for share in list(attribution.shares.get(market, {}).values()):
            if share.strategy != FOREIGN:
                _give(attribution, share, FOREIGN)


def _filled(attribution: Attribution, event: Any, data: Any) -> Mapping[str, Part]:
    key = event.idempotency_key
    owner = attribution.owner_of(key) if key is not None else None
    market = event.coin
    if data.absorbed_usd:
        _absorbed(attribution, market, data.absorbed_usd)
    if data.intent == "open":
        parts = {owner or FOREIGN: _opened(attribution, market, owner or FOREIGN, data)}
    else:
        if owner is None:
            taker = None if key is None else FOREIGN
        else:
            taker = None if owner.startswith("@") else owner  # A repair by the daemon belongs to no strategy.
        parts = _closed(
            attribution, market, taker, size=data.size, px=data.px, fee=data.fee_usd, realized=data.realized_pnl_usd or NOUGHT, fills=1
        )  # fmt: skip
    _fit(attribution, market, data.side, abs(data.position_size), data.entry_px, FOREIGN)
    return parts


def _opened(attribution: Attribution, market: str, owner: str, data: Any) -> Part:
    size, fee, realized = data.size, data.fee_usd, data.realized_pnl_usd
    held = attribution.shares.setdefault(market, {})
    known = held.get(owner)
    if known is None or known.side != data.side:
        known = Share(market, owner, data.side, NOUGHT, NOUGHT)
    share = held[owner] = Share(market, owner, known.side, known.size + size, known.cost_usd + data.px * size)
    attribution.markets_changed.add(market)
    attribution.add(owner, fills=1, fees=fee, realized=realized or NOUGHT)
    return Part(size, fee, realized, share.size)


def _closed(
    attribution: Attribution, market: str, taker: str | None, *, size: Decimal, px: Decimal, fee: Decimal, realized: Decimal, fills: int
) -> dict[str, Part]:  # fmt: skip
    held = attribution.shares.get(market, {})
    # The common case: one strategy holds the whole position, so it gets the service's figures.
    if market not in attribution.netting and len(held) == 1 and next(iter(held.values())).size >= size > 0:
        (name,) = held
        attribution.add(name, fills=fills, fees=fee, realized=realized)
        return {name: Part(size, fee, realized, attribution.reduce(market, name, size, px, realized))}
    takes = takes_of(held, taker, size, attribution.step_of(market))
    fees = split(fee, takes)
    if market not in attribution.netting and len(takes) == 1 and [*held] == [takes[0][0]]:
        gains = {takes[0][0]: realized}
    elif all(name in held for name, _ in takes):
        gains = {name: gain_of(held[name], part, px) for name, part in takes}
        rest = realized - sum(gains.values(), NOUGHT)
        attribution.add(NETTING, realized=rest)
        attribution.netting[market] = attribution.netting.get(market, NOUGHT) + rest
    else:  # More was closed than the shares held, so the cost of the rest is not known.
        gains = split(realized, takes)
    parts = {}
    for name, part in takes:
        attribution.add(name, fills=fills, fees=fees[name], realized=gains[name])
        left = attribution.reduce(market, name, part, px, gains[name])
        parts[name] = Part(part, fees[name], gains[name], left)
    return parts


def _funded(attribution: Attribution, event: Any, data: Any) -> None:
    for name, amount in split(data.amount_usd, _weights(attribution, event.coin)).items():
        attribution.add(name, funding=amount)


def _liquidated(attribution: Attribution, event: Any, data: Any) -> None:
    """Split the lost margin among the strategies. Fills are separate events; the rest of the position is closed at the mark price."""
    weights = _weights(attribution, event.coin)
    for name, amount in split(data.margin_lost_usd, weights).items():
        attribution.add(name, margin_lost=amount)
    if event.subtype == "backstop" and data.absorbed_usd:
        _absorbed(attribution, event.coin, data.absorbed_usd)
    if event.subtype != "partial" and attribution.shares.get(event.coin):
        _ended(attribution, event.coin, data, data.px)


def _absorbed(attribution: Attribution, market: str, usd: Decimal) -> None:
    """Split the part of the loss that the service paid."""
    for name, amount in split(usd, _weights(attribution, market)).items():
        attribution.add(name, realized=amount)


def _settled(attribution: Attribution, event: Any, data: Any) -> None:
    if data.absorbed_usd:
        _absorbed(attribution, event.coin, data.absorbed_usd)
    _ended(attribution, event.coin, data, data.outcome_px)


def _ended(attribution: Attribution, market: str, data: Any, px: Decimal) -> None:
    _closed(
        attribution, market, None, size=data.size, px=px, fee=data.fee_usd, realized=data.realized_pnl_usd, fills=0
    )  # fmt: skip
    attribution.drop(market)


def _weights(attribution: Attribution, market: str) -> Weights:
    held = attribution.shares.get(market, {})
    return [(share.strategy, share.size) for share in held.values()] or [(FOREIGN, Decimal(1))]


def _fit(attribution: Attribution, market: str, side: str, size: Decimal, entry_px: Decimal | None, owner: str) -> None:
    """Make the shares of a market add up to its position. `owner` gets a missing size; an excess is taken from FOREIGN first."""
    held = attribution.shares.setdefault(market, {})
    if not held and not size:
        attribution.drop(market)
        return
    if len(held) == 1 and size:
        (sole,) = held.values()
        if sole.side == side and sole.size == size:
            return
    for name in [name for name, share in held.items() if not size or share.side != side]:
        _rebase(attribution, name, held.pop(name), -1)
        attribution.markets_changed.add(market)
    over = sum((share.size for share in held.values()), NOUGHT) - size
    if over < 0:
        share = Share(market, owner, side, -over, -over * (entry_px or NOUGHT))
        _rebase(attribution, owner, share, 1)
        known = held.get(owner)
        held[owner] = share if known is None else joined(known, share)
        attribution.markets_changed.add(market)
    elif over > 0:
        for name, part in takes_of(held, FOREIGN, over, attribution.step_of(market)):
            share = held[name]
            _rebase(attribution, name, share._replace(size=part, cost_usd=cost_of(share, part)), -1)
            _reduce_by(attribution, market, share, part)
    if not held:
        attribution.drop(market)


def _reduce_by(attribution: Attribution, market: str, share: Share, part: Decimal) -> None:
    attribution.markets_changed.add(market)
    if part >= share.size:
        del attribution.shares[market][share.strategy]
    else:
        left = share._replace(size=share.size - part, cost_usd=share.cost_usd - cost_of(share, part))
        attribution.shares[market][share.strategy] = left


def _give(attribution: Attribution, share: Share, owner: str) -> None:
    held = attribution.shares[share.market]
    _rebase(attribution, share.strategy, held.pop(share.strategy), -1)
    _rebase(attribution, owner, share, 1)
    mine = share._replace(strategy=owner)
    known = held.get(owner)
    held[owner] = mine if known is None else joined(known, mine)
    attribution.markets_changed.add(share.market)


def _rebase(attribution: Attribution, name: str, share: Share, sign: int) -> None:
    """Correct the base of the day for a share that came or went without a fill, so that the day's profit stays the same."""
    row = attribution.row(name)
    attribution.put(row._replace(base_usd=row.base_usd + sign * attribution.gain_at(share, None)))


Fold = Callable[[Attribution, Any, Any], Mapping[str, Part] | None]
_FOLD: Final[Mapping[str, Fold]] = {
    "fill": _filled,
    "funding": _funded,
    "liquidation": _liquidated,
    "settlement": _settled,
}


ATTRIBUTED: Final = frozenset(_FOLD)  # types of event that move money or a share
