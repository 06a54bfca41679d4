"""Attributes fills, fees, funding payments and profits to strategies. Changes an `Attribution`.

- An opening fill belongs to the strategy whose intent has the fill's key. A closing fill takes from that strategy's
share first, and then from
  the other shares in proportion. A stop, target, guardian, liquidation or settlement takes from all shares in
  proportion. Funding and lost margin are split in proportion too.
- A strategy that holds the whole position gets the service's figures. If several share it, the profit of each is
computed from the cost of
  its own fills. The account's profit is computed from one average entry price; NETTING holds the difference until the
  position is closed.

So the sum over all rows equals the account's figures, to the last unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from bot.clock import DAY_MS
from bot.model.events import Event, FillEvent, FundingPaid, Liquidated, Settled
from bot.money import E8, e8_of_decimal
from bot.runtime.account.allocation import Weights, cost_of, gain_of, joined, split, takes_of
from bot.runtime.account.attribution import Attribution
from bot.runtime.model.positions import AccountPosition
from bot.runtime.model.shares import FOREIGN, NETTING, Part, Share

_share: Final = partial(tuple.__new__, Share)
_part: Final = partial(tuple.__new__, Part)


def attribute_event(attribution: Attribution, event: Event) -> Mapping[str, Part]:
    """Attribute one event. Returns the part of each strategy if the event is a fill."""
    if type(event) is FillEvent:
        key = event.idempotency_key
        return attribute_fill(attribution, event, None if key is None else attribution.owner_of(key))
    fold = _RARE.get(type(event))
    if fold is not None:
        attribution.keep()
        attribution.roll(event.ts)
        fold(attribution, event)
    return {}


def attribute_fill(attribution: Attribution, event: FillEvent, owner: str | None) -> Mapping[str, Part]:
    """Attribute a fill of an order of this owner."""
    if attribution.is_in_page:
        attribution.keep()
    if event.ts - attribution.day_ms >= DAY_MS:
        attribution.roll(event.ts)
    market, side, size = event.coin, event.side, event.size
    if event.absorbed:
        _absorbed(attribution, market, event.absorbed * E8)
    fee = event.fee * E8
    gain = 0 if event.realized is None else event.realized * E8
    if event.intent == "open":
        name = owner or FOREIGN
        held = attribution.shares.setdefault(market, {})
        known = held.get(name)
        whole, cost = size, event.px * size
        if known is not None and known.side == side:
            whole, cost = known.size_e8 + whole, known.cost + cost
        held[name] = _share((market, name, side, whole, cost))
        attribution.markets_changed.add(market)
        attribution.add(name, 1, fee, 0, gain)
        parts = {name: _part((size, fee, None if event.realized is None else gain, whole))}
        if whole == event.position_size and len(held) == 1:
            return parts
    else:
        taker = owner
        if owner is None and event.idempotency_key is not None:
            taker = FOREIGN
        elif owner is not None and owner.startswith("@"):
            # A repair by the daemon belongs to no strategy.
            taker = None
        parts = _closed(attribution, market, taker, size=size, px=event.px, fee=fee, realized=gain, fills=1)
        if not event.position_size and not attribution.shares.get(market):
            attribution.drop(market)
            return parts
    _fit(attribution, market, side, event.position_size, event.entry_px, FOREIGN)
    return parts


def name_foreign_entries(attribution: Attribution, events: Iterable[Event], owner: str) -> None:
    """Move entries from FOREIGN to their real owner, as if it had owned them from the start."""
    attribution.keep()
    for event in events:
        if type(event) is not FillEvent or event.intent != "open":
            # A close has already reduced the shares.
            continue
        realized, fee, size = (event.realized or 0) * E8, event.fee * E8, event.size
        attribution.add(FOREIGN, fills=-1, fees=-fee, realized=-realized)
        attribution.add(owner, fills=1, fees=fee, realized=realized)
        held = attribution.shares.get(event.coin or "", {})
        theirs = held.get(FOREIGN)
        if theirs is None or theirs.side != event.side or theirs.size_e8 < size:
            # A part was closed since; `align` gives the rest to its owner.
            continue
        cost = theirs.cost if theirs.size_e8 == size else event.px * size
        left = theirs._replace(size_e8=theirs.size_e8 - size, cost=theirs.cost - cost)
        known, mine = held.get(owner), Share(theirs.market, owner, theirs.side, size, cost)
        held[owner] = mine if known is None else joined(known, mine)
        if left.size_e8:
            held[FOREIGN] = left
        else:
            del held[FOREIGN]
        attribution.markets_changed.add(theirs.market)


def align(attribution: Attribution, positions: Mapping[str, AccountPosition], epoch: int, now_ms: int) -> None:
    """Make the shares fit the positions after missed events, an account reset, or a new owner of a position.

    A change of owner here makes no profit: for the new owner, the size counts from the present mark price.
    """
    attribution.keep()
    if epoch != attribution.epoch:
        attribution.rows, attribution.shares, attribution.netting, attribution.epoch = {}, {}, {}, epoch
        attribution.rows_changed, attribution.markets_changed, attribution.is_wiped = set(), set(), True
        attribution.day_start = ()
    attribution.roll(now_ms)
    for market in [*attribution.shares, *(market for market in positions if market not in attribution.shares)]:
        position = positions.get(market)
        if position is None:
            _fit(attribution, market, "", 0, None, FOREIGN)
            continue
        owner = position.owner or FOREIGN
        _fit(attribution, market, position.side, position.size_e8, position.entry_e8, owner)
        if owner not in attribution.shares[market] and FOREIGN in attribution.shares[market]:
            _give(attribution, attribution.shares[market][FOREIGN], owner)


def give_back(attribution: Attribution, market: str, now_ms: int) -> None:
    """Move every share of a position to FOREIGN, at the present mark price, because no strategy owns it any more."""
    attribution.keep()
    attribution.roll(now_ms)
    for share in list(attribution.shares.get(market, {}).values()):
        if share.strategy != FOREIGN:
            _give(attribution, share, FOREIGN)


def _closed(
    attribution: Attribution, market: str, taker: str | None, *, size: int, px: int, fee: int, realized: int, fills: int
) -> dict[str, Part]:
    held = attribution.shares.get(market, {})
    # The common case: one strategy holds the whole position, so it gets the service's figures.
    if len(held) == 1 and market not in attribution.netting:
        ((name, sole),) = held.items()
        if sole.size_e8 >= size > 0:
            attribution.add(name, fills, fee, 0, realized)
            return {name: _part((size, fee, realized, attribution.reduce(market, name, size, px, realized)))}
    takes = takes_of(held, taker, size, e8_of_decimal(attribution.step_of(market)))
    fees = split(fee, takes)
    if market not in attribution.netting and len(takes) == 1 and [*held] == [takes[0][0]]:
        gains = {takes[0][0]: realized}
    elif all(name in held for name, _ in takes):
        gains = {name: gain_of(held[name], part, px) for name, part in takes}
        rest = realized - sum(gains.values())
        attribution.add(NETTING, realized=rest)
        attribution.netting[market] = attribution.netting.get(market, 0) + rest
    # More was closed than the shares held, so the cost of the rest is not known.
    else:
        gains = split(realized, takes)
    parts = {}
    for name, part in takes:
        attribution.add(name, fills=fills, fees=fees[name], realized=gains[name])
        left = attribution.reduce(market, name, part, px, gains[name])
        parts[name] = Part(part, fees[name], gains[name], left)
    return parts


def _funded(attribution: Attribution, event: FundingPaid) -> None:
    for name, amount in split(event.amount * E8, _weights(attribution, event.coin)).items():
        attribution.add(name, funding=amount)


def _liquidated(attribution: Attribution, event: Liquidated) -> None:
    """Split the lost margin among the strategies.

    Fills are separate events; the rest of the position is closed at the mark price.
    """
    weights = _weights(attribution, event.coin)
    for name, amount in split(event.margin_lost * E8, weights).items():
        attribution.add(name, margin_lost=amount)
    if event.subtype == "backstop" and event.absorbed:
        _absorbed(attribution, event.coin, event.absorbed * E8)
    if event.subtype != "partial" and attribution.shares.get(event.coin):
        _ended(attribution, event, event.px)


def _absorbed(attribution: Attribution, market: str, usd: int) -> None:
    """Split the part of the loss that the service paid."""
    for name, amount in split(usd, _weights(attribution, market)).items():
        attribution.add(name, realized=amount)


def _settled(attribution: Attribution, event: Settled) -> None:
    if event.absorbed:
        _absorbed(attribution, event.coin, event.absorbed * E8)
    _ended(attribution, event, event.outcome_px)


def _ended(attribution: Attribution, event: Liquidated | Settled, px: int) -> None:
    fee, realized = event.fee * E8, event.realized * E8
    _closed(attribution, event.coin, None, size=event.size, px=px, fee=fee, realized=realized, fills=0)
    attribution.drop(event.coin)


def _weights(attribution: Attribution, market: str) -> Weights:
    held = attribution.shares.get(market, {})
    return [(share.strategy, share.size_e8) for share in held.values()] or [(FOREIGN, 1)]


def _fit(attribution: Attribution, market: str, side: str, size: int, entry_px: int | None, owner: str) -> None:
    """Make the shares of a market add up to its position.

    `owner` gets a missing size; an excess is taken from FOREIGN first.
    """
    held = attribution.shares.setdefault(market, {})
    if not held and not size:
        attribution.drop(market)
        return
    if len(held) == 1 and size:
        (sole,) = held.values()
        if sole.side == side and sole.size_e8 == size:
            return
    for name in [name for name, share in held.items() if not size or share.side != side]:
        _rebase(attribution, name, held.pop(name), -1)
        attribution.markets_changed.add(market)
    over = sum(share.size_e8 for share in held.values()) - size
    if over < 0:
        share = Share(market, owner, side, -over, -over * (entry_px or 0))
        _rebase(attribution, owner, share, 1)
        known = held.get(owner)
        held[owner] = share if known is None else joined(known, share)
        attribution.markets_changed.add(market)
    elif over > 0:
        for name, part in takes_of(held, FOREIGN, over, e8_of_decimal(attribution.step_of(market))):
            share = held[name]
            _rebase(attribution, name, share._replace(size_e8=part, cost=cost_of(share, part)), -1)
            _reduce_by(attribution, market, share, part)
    if not held:
        attribution.drop(market)


def _reduce_by(attribution: Attribution, market: str, share: Share, part: int) -> None:
    attribution.markets_changed.add(market)
    if part >= share.size_e8:
        del attribution.shares[market][share.strategy]
    else:
        left = share._replace(size_e8=share.size_e8 - part, cost=share.cost - cost_of(share, part))
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
    """Correct the base of the day for a share that came or went without a fill, so that the day's profit stays the
    same.
    """
    row = attribution.row(name)
    attribution.put(row._replace(base=row.base + sign * attribution.gain_at(share, None)))


# Besides fills, the classes of event that move money or a share.
_RARE: Final[Mapping[type, Callable[[Attribution, Any], None]]] = {
    FundingPaid: _funded,
    Liquidated: _liquidated,
    Settled: _settled,
}
