"""Books: which strategy did what. Fills, fees, funding and profit of the one account, attributed to each strategy, exactly.

Folded from the service's events and written with them. A market has one position; each strategy has its share of it, and
what no strategy of ours did is FOREIGN's. The rules, by the event:

- An opening fill is that of the strategy whose intent's key it carries. A closing fill takes from that strategy's share
  first, then from the others in proportion. A stop, a target, a guardian, a liquidation or a settlement takes from all in
  proportion; so are funding and margin lost split.
- What has one holder books what the service says. Where several share a position, each books against the cost of its own
  fills; the account's one average says otherwise for a while, and NETTING holds the difference.

So the sum over all rows is the account, to the last unit. Nothing here asks, sends or writes; the journal keeps `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_DOWN, Decimal, getcontext, localcontext, setcontext
from typing import TYPE_CHECKING, Any, Final

from bot.clock import DAY_MS, utc_day_start_ms
from bot.runtime.model.positions import MirrorPosition
from bot.runtime.model.shares import (
    EXACT,
    FOREIGN,
    NETTING,
    NOUGHT,
    UNIT,
    AttributionChanges,
    Part,
    Share,
    StrategyTotals,
    TotalsRow,
)

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal
    from bot.wire import Event


MarkAt = Callable[[str, int | None], Decimal | None]
StepOf = Callable[[str], Decimal]
Weights = Sequence[tuple[str, Decimal]]
Amount = str | Decimal  # a row of a file, or of a journal in memory
Marked = tuple[set[str], set[str], bool]


Saved = tuple[
    dict[str, TotalsRow], dict[str, dict[str, Share]], dict[str, Decimal], int, Sequence[tuple[Share, Decimal]]
]


class Attribution:
    """`owner_of` names the strategy of a key; `mark_at(market, at_ms)` is the mark as of an instant, None: as it is now; `step_of(market)` is what
    its sizes are whole numbers of."""

    def __init__(
        self, *, epoch: int, rows: Iterable[TotalsRow], shares: Iterable[Share], owner_of: Callable[[str], str | None], mark_at: MarkAt,
        step_of: StepOf = lambda _market: UNIT,
    ) -> None:  # fmt: skip
        self.epoch = epoch
        self.owner_of = owner_of
        self.mark_at = mark_at
        self.step_of = step_of
        self.rows: dict[str, TotalsRow] = {row.strategy: row for row in rows}
        self.shares: dict[str, dict[str, Share]] = {}
        self.mixed: dict[str, Decimal] = {}  # of an open position that is or was shared: what NETTING holds of it
        for share in shares:
            if share.strategy == NETTING:
                self.mixed[share.market] = share.cost_usd
            else:
                self.shares.setdefault(share.market, {})[share.strategy] = share
        self.day_ms = max((row.day_ms for row in self.rows.values()), default=0)
        # Each share at 00:00, and its gain by the mark of then as far as it is known.
        self._opening: Sequence[tuple[Share, Decimal]] = ()
        self._rows_changed: set[str] = set()
        self._markets_changed: set[str] = set()
        self._wiped = False
        self._is_in_page = False
        self._before: tuple[Saved, Marked] | None = None  # of the page under way, once it has changed something

    @classmethod
    def of_journal(
        cls, journal: Journal, *, owner_of: Callable[[str], str | None], mark_at: MarkAt, step_of: StepOf = lambda _market: UNIT
    ) -> Attribution:  # fmt: skip
        """As the last run left them."""
        cursor = journal.events.cursor
        epoch = 0 if cursor is None else cursor.epoch
        rows = [_row_of(*row) for row in journal.state.attribution_rows(epoch)]
        shares = [_share_of(*row) for row in journal.state.share_rows(epoch)]
        return cls(epoch=epoch, rows=rows, shares=shares, owner_of=owner_of, mark_at=mark_at, step_of=step_of)

    # -- asking

    def share(self, market: str, strategy: str) -> Share | None:
        return self.shares.get(market, {}).get(strategy)

    def shares_of(self, strategy: str) -> Sequence[Share]:
        """All that it holds, in any market."""
        return [held[strategy] for held in self.shares.values() if strategy in held]

    def of(self, strategy: str) -> StrategyTotals:
        """The book of a strategy, FOREIGN or NETTING; an empty one for a name that has done nothing."""
        with localcontext(EXACT):
            row = self.rows.get(strategy, TotalsRow(strategy, day_ms=self.day_ms))
            shares = tuple(self.shares_of(strategy))
            unrealized = self._unrealized(strategy, None)
            return StrategyTotals(
                strategy=strategy, fills=row.fills, fees_usd=row.fees_usd, funding_usd=row.funding_usd, realized_usd=row.realized_usd,
                margin_lost_usd=row.margin_lost_usd, unrealized_usd=unrealized, day_usd=row.net_usd + unrealized - row.base_usd,
                notional_usd=sum((one.notional_usd for one in shares), NOUGHT), is_halted=self.is_halted(strategy), shares=shares,
            )  # fmt: skip

    def names(self) -> list[str]:
        """Everyone who has done something, or holds something."""
        return sorted({*self.rows, *(name for held in self.shares.values() for name in held)})

    def day_usd(self, strategy: str) -> Decimal:
        """Since 00:00 UTC: realised and unrealised, net of fees, funding and lost margin."""
        row = self.rows.get(strategy)
        if row is None:
            return NOUGHT
        with localcontext(EXACT):
            return row.net_usd + self._unrealized(strategy, None) - row.base_usd

    def is_halted(self, strategy: str) -> bool:
        row = self.rows.get(strategy)
        return row is not None and row.halted_day_ms == self.day_ms and row.halted_day_ms != 0

    # -- learning

    def apply(self, event: Event) -> Mapping[str, Part]:
        """Book one event; of a fill, who has which part of it."""
        fold = _FOLD.get(event.type)
        if fold is None:
            return {}
        self._keep()
        before = getcontext()
        setcontext(EXACT)  # As localcontext does, without a copy for each event.
        try:
            self.roll(event.ts)
            return fold(self, event, event.data) or {}
        finally:
            setcontext(before)

    def roll(self, now_ms: int) -> bool:
        """A new day begins for everyone at what it was worth at 00:00 UTC. True when it did just now."""
        if now_ms - self.day_ms < DAY_MS:
            return False
        self._keep()
        self.day_ms = day_ms = utc_day_start_ms(now_ms)
        with localcontext(EXACT):
            for name, row in self.rows.items():
                base = row.net_usd + self._unrealized(name, day_ms)
                self._put(row._replace(day_ms=day_ms, base_usd=base))
            shares = [share for held in self.shares.values() for share in held.values()]
            self._opening = [(share, self._gain_at(share, day_ms)) for share in shares]
        return True

    def mend_day(self) -> None:
        """Events may come before the bars of their instant: a day that has begun counts by the marks of 00:00 as they are known now."""
        opening: list[tuple[Share, Decimal]] = []
        with localcontext(EXACT):
            for share, before in self._opening:
                gain = self._gain_at(share, self.day_ms)
                opening.append((share, gain))
                if gain != before:
                    row = self._row(share.strategy)
                    self._put(row._replace(base_usd=row.base_usd + gain - before))
        self._opening = opening

    def halt(self, strategy: str) -> None:
        """Its daily loss is reached: for the rest of this day it is halted."""
        self._keep()
        self._put(self._row(strategy)._replace(halted_day_ms=self.day_ms))

    def name(self, events: Iterable[Event], owner: str) -> None:
        """Entries that were booked as another hand's have turned out to be this strategy's: as if they had been so from the first."""
        self._keep()
        with localcontext(EXACT):
            for event in events:
                data = event.data
                if event.type != "fill" or data.intent != "open":
                    continue  # What a close took was taken from those who had it.
                realized = data.realized_pnl_usd or NOUGHT
                self._add(FOREIGN, fills=-1, fees=-data.fee_usd, realized=-realized)
                self._add(owner, fills=1, fees=data.fee_usd, realized=realized)
                held = self.shares.get(event.coin or "", {})
                theirs = held.get(FOREIGN)
                if theirs is None or theirs.side != data.side or theirs.size < data.size:
                    continue  # Something was closed meanwhile: `align` gives what is left.
                cost = theirs.cost_usd if theirs.size == data.size else data.px * data.size
                left = theirs._replace(size=theirs.size - data.size, cost_usd=theirs.cost_usd - cost)
                known, mine = held.get(owner), Share(theirs.market, owner, theirs.side, data.size, cost)
                held[owner] = mine if known is None else _joined(known, mine)
                if left.size:
                    held[FOREIGN] = left
                else:
                    del held[FOREIGN]
                self._markets_changed.add(theirs.market)

    def align(self, positions: Mapping[str, MirrorPosition], epoch: int, now_ms: int) -> None:
        """Make the shares fit the positions, where events were missed, an account was reset, or a position was given an owner.

        What changes hands here brings no profit: it counts from its mark of now.
        """
        self._keep()
        if epoch != self.epoch:
            self.rows, self.shares, self.mixed, self.epoch = {}, {}, {}, epoch
            self._rows_changed, self._markets_changed, self._wiped = set(), set(), True
            self._opening = ()
        with localcontext(EXACT):
            self.roll(now_ms)
            for market in [*self.shares, *(market for market in positions if market not in self.shares)]:
                position = positions.get(market)
                if position is None:
                    self._fit(market, "", NOUGHT, None, FOREIGN)
                    continue
                owner = position.owner or FOREIGN
                self._fit(market, position.side, position.size, position.entry_px, owner)
                if owner not in self.shares[market] and FOREIGN in self.shares[market]:
                    self._give(self.shares[market][FOREIGN], owner)

    def _keep(self) -> None:
        """Before anything changes: how it was when the page began. Most pages change nothing here."""
        if self._is_in_page and self._before is None:
            shares = {market: dict(held) for market, held in self.shares.items()}
            marked = set(self._rows_changed), set(self._markets_changed), self._wiped
            self._before = (dict(self.rows), shares, dict(self.mixed), self.day_ms, self._opening), marked

    def begin_page(self) -> None:
        """What is booked up to `end_page` counts only when it is written: events that could not be written come again."""
        self._is_in_page, self._before = True, None

    def end_page(self, *, is_written: bool) -> None:
        if self._before is not None and not is_written:
            (self.rows, self.shares, self.mixed, self.day_ms, self._opening), marked = self._before
            self._rows_changed, self._markets_changed, self._wiped = marked
        self._is_in_page, self._before = False, None

    def changes(self) -> AttributionChanges | None:
        """What has changed since the last call; None when nothing did."""
        if not self._rows_changed and not self._markets_changed and not self._wiped:
            return None
        self._keep()
        markets = tuple(sorted(self._markets_changed))
        rows = tuple([self.rows[name] for name in sorted(self._rows_changed)])
        shares: list[Share] = []
        for market in markets:
            shares += self.shares.get(market, {}).values()
            if market in self.mixed:
                shares.append(Share(market, NETTING, "long", NOUGHT, self.mixed[market]))
        found = AttributionChanges(self.epoch, rows, markets, tuple(shares), self._wiped)
        self._rows_changed, self._markets_changed, self._wiped = set(), set(), False
        return found

    # -- folds

    def _filled(self, event: Any, data: Any) -> Mapping[str, Part]:
        key = event.idempotency_key
        who = self.owner_of(key) if key is not None else None
        market = event.coin
        if data.absorbed_usd:
            self._absorbed(market, data.absorbed_usd)
        if data.intent == "open":
            parts = {who or FOREIGN: self._opened(market, who or FOREIGN, data)}
        else:
            if who is None:
                taker = None if key is None else FOREIGN
            else:
                taker = None if who.startswith("@") else who  # A repair of ours is nobody's own close.
            parts = self._closed(
                market, taker, size=data.size, px=data.px, fee=data.fee_usd, realized=data.realized_pnl_usd or NOUGHT, fills=1
            )  # fmt: skip
        self._fit(market, data.side, abs(data.position_size), data.entry_px, FOREIGN)
        return parts

    def _opened(self, market: str, who: str, data: Any) -> Part:
        size, fee, realized = data.size, data.fee_usd, data.realized_pnl_usd
        held = self.shares.setdefault(market, {})
        known = held.get(who)
        if known is None or known.side != data.side:
            known = Share(market, who, data.side, NOUGHT, NOUGHT)
        share = held[who] = Share(market, who, known.side, known.size + size, known.cost_usd + data.px * size)
        self._markets_changed.add(market)
        self._add(who, fills=1, fees=fee, realized=realized or NOUGHT)
        return Part(size, fee, realized, share.size)

    def _closed(
        self, market: str, taker: str | None, *, size: Decimal, px: Decimal, fee: Decimal, realized: Decimal, fills: int
    ) -> dict[str, Part]:
        held = self.shares.get(market, {})
        # As nearly always: one has it all, so what the service says is its own.
        if market not in self.mixed and len(held) == 1 and next(iter(held.values())).size >= size > 0:
            (name,) = held
            self._add(name, fills=fills, fees=fee, realized=realized)
            return {name: Part(size, fee, realized, self._reduce(market, name, size, px, realized))}
        takes = _takes(held, taker, size, self.step_of(market))
        fees = _split(fee, takes)
        if market not in self.mixed and len(takes) == 1 and [*held] == [takes[0][0]]:
            gains = {takes[0][0]: realized}
        elif all(name in held for name, _ in takes):
            gains = {name: _gain(held[name], part, px) for name, part in takes}
            rest = realized - sum(gains.values(), NOUGHT)
            self._add(NETTING, realized=rest)
            self.mixed[market] = self.mixed.get(market, NOUGHT) + rest
        else:  # More was closed than was known of: nobody's cost tells.
            gains = _split(realized, takes)
        parts = {}
        for name, part in takes:
            self._add(name, fills=fills, fees=fees[name], realized=gains[name])
            left = self._reduce(market, name, part, px, gains[name])
            parts[name] = Part(part, fees[name], gains[name], left)
        return parts

    def _reduce(self, market: str, name: str, part: Decimal, px: Decimal, gain: Decimal) -> Decimal:
        """Cost goes down by what the part had cost: what it brought, less the gain."""
        held = self.shares.get(market, {})
        share = held.get(name)
        if share is None:
            return NOUGHT
        self._markets_changed.add(market)
        size = share.size - part
        if size <= 0:
            del held[name]
            return NOUGHT
        cost = px * part - (gain if share.side == "long" else -gain)
        held[name] = share._replace(size=size, cost_usd=share.cost_usd - cost)
        return size

    def _funded(self, event: Any, data: Any) -> None:
        for name, amount in _split(data.amount_usd, self._weights(event.coin)).items():
            self._add(name, funding=amount)

    def _liquidated(self, event: Any, data: Any) -> None:
        """Its fills have told what went through the book; what still stands at the end of it is taken over at mark."""
        weights = self._weights(event.coin)
        for name, amount in _split(data.margin_lost_usd, weights).items():
            self._add(name, margin_lost=amount)
        if event.subtype == "backstop" and data.absorbed_usd:
            self._absorbed(event.coin, data.absorbed_usd)
        if event.subtype != "partial" and self.shares.get(event.coin):
            self._ended(event.coin, data, data.px)

    def _absorbed(self, market: str, usd: Decimal) -> None:
        """The service paid this much of the loss: those who hold the position have lost so much less."""
        for name, amount in _split(usd, self._weights(market)).items():
            self._add(name, realized=amount)

    def _settled(self, event: Any, data: Any) -> None:
        if data.absorbed_usd:
            self._absorbed(event.coin, data.absorbed_usd)
        self._ended(event.coin, data, data.outcome_px)

    def _ended(self, market: str, data: Any, px: Decimal) -> None:
        self._closed(
            market, None, size=data.size, px=px, fee=data.fee_usd, realized=data.realized_pnl_usd, fills=0
        )  # fmt: skip
        self._drop(market)

    # -- inside

    def _weights(self, market: str) -> Weights:
        held = self.shares.get(market, {})
        return [(share.strategy, share.size) for share in held.values()] or [(FOREIGN, Decimal(1))]

    def _fit(self, market: str, side: str, size: Decimal, entry_px: Decimal | None, owner: str) -> None:
        """What the shares lack is `owner`'s, what they have too much goes, the foreign first."""
        held = self.shares.setdefault(market, {})
        if not held and not size:
            self._drop(market)
            return
        if len(held) == 1 and size:
            (sole,) = held.values()
            if sole.side == side and sole.size == size:
                return
        for name in [name for name, share in held.items() if not size or share.side != side]:
            self._rebase(name, held.pop(name), -1)
            self._markets_changed.add(market)
        over = sum((share.size for share in held.values()), NOUGHT) - size
        if over < 0:
            share = Share(market, owner, side, -over, -over * (entry_px or NOUGHT))
            self._rebase(owner, share, 1)
            known = held.get(owner)
            held[owner] = share if known is None else _joined(known, share)
            self._markets_changed.add(market)
        elif over > 0:
            for name, part in _takes(held, FOREIGN, over, self.step_of(market)):
                share = held[name]
                self._rebase(name, share._replace(size=part, cost_usd=_cost(share, part)), -1)
                self._reduce_by(market, share, part)
        if not held:
            self._drop(market)

    def _reduce_by(self, market: str, share: Share, part: Decimal) -> None:
        self._markets_changed.add(market)
        if part >= share.size:
            del self.shares[market][share.strategy]
        else:
            left = share._replace(size=share.size - part, cost_usd=share.cost_usd - _cost(share, part))
            self.shares[market][share.strategy] = left

    def _give(self, share: Share, owner: str) -> None:
        held = self.shares[share.market]
        self._rebase(share.strategy, held.pop(share.strategy), -1)
        self._rebase(owner, share, 1)
        mine = share._replace(strategy=owner)
        known = held.get(owner)
        held[owner] = mine if known is None else _joined(known, mine)
        self._markets_changed.add(share.market)

    def _rebase(self, name: str, share: Share, sign: int) -> None:
        """A share comes or goes without a fill: the day's result does not move by it."""
        row = self._row(name)
        self._put(row._replace(base_usd=row.base_usd + sign * self._gain_at(share, None)))

    def _drop(self, market: str) -> None:
        self.mixed.pop(market, None)
        if self.shares.pop(market, None) is not None:
            self._markets_changed.add(market)

    def _unrealized(self, strategy: str, at_ms: int | None) -> Decimal:
        if strategy == NETTING:  # Against the shares' own costs the account's unrealised is short by just so much.
            return -sum(self.mixed.values(), NOUGHT)
        shares = self.shares_of(strategy)
        return sum((self._gain_at(share, at_ms) for share in shares), NOUGHT)

    def _gain_at(self, share: Share, at_ms: int | None) -> Decimal:
        mark = self.mark_at(share.market, at_ms)
        return NOUGHT if mark is None else share.gain_usd(mark)

    def _row(self, name: str) -> TotalsRow:
        return self.rows.get(name) or TotalsRow(name, day_ms=self.day_ms)

    def _put(self, row: TotalsRow) -> None:
        self.rows[row.strategy] = row
        self._rows_changed.add(row.strategy)

    def _add(
        self, name: str, *, fills: int = 0, fees: Decimal = NOUGHT, funding: Decimal = NOUGHT, realized: Decimal = NOUGHT,
        margin_lost: Decimal = NOUGHT,
    ) -> None:  # fmt: skip
        if not (fills or fees or funding or realized or margin_lost):
            return
        row = self.rows.get(name) or TotalsRow(name, day_ms=self.day_ms)
        self.rows[name] = TotalsRow(
            name, row.fills + fills, row.fees_usd + fees, row.funding_usd + funding, row.realized_usd + realized,
            row.margin_lost_usd + margin_lost, row.day_ms, row.base_usd, row.halted_day_ms,
        )  # fmt: skip
        self._rows_changed.add(name)


Fold = Callable[[Attribution, Any, Any], Mapping[str, Part] | None]
_FOLD: Final[Mapping[str, Fold]] = {
    "fill": Attribution._filled,  # noqa: SLF001 - the table stands outside of the class that it is of
    "funding": Attribution._funded,  # noqa: SLF001
    "liquidation": Attribution._liquidated,  # noqa: SLF001
    "settlement": Attribution._settled,  # noqa: SLF001
}


BOOKED: Final = frozenset(_FOLD)  # types of event that move money or anybody's share


def _takes(held: Mapping[str, Share], taker: str | None, size: Decimal, step: Decimal) -> list[tuple[str, Decimal]]:
    """Whose share a close of that size takes from: the taker's first, then the others' in proportion; what nobody has is FOREIGN's.

    In whole steps of the market, so that what is left to each can be closed by itself.
    """
    found: dict[str, Decimal] = {}
    own = held.get(taker or "")
    if own is not None:
        found[own.strategy] = min(own.size, size)
        size -= found[own.strategy]
    others = [(one.strategy, one.size) for one in held.values() if one is not own]
    there = sum((weight for _, weight in others), NOUGHT)
    if size >= there:
        found.update(others)
        if size > there:
            found[FOREIGN] = found.get(FOREIGN, NOUGHT) + size - there
    elif size:
        found.update(_split_size(size, others, step))
    return [(name, part) for name, part in found.items() if part]


def _split_size(size: Decimal, weights: Weights, step: Decimal) -> dict[str, Decimal]:
    """Less than all of it, in proportion: down to whole steps, and what is left of the size to those that lost most by it, up to their own."""
    if len(weights) == 1:
        return {weights[0][0]: size}
    whole = sum((weight for _, weight in weights), NOUGHT)
    exact = {name: size * weight / whole for name, weight in weights}
    found = {name: part // step * step for name, part in exact.items()}
    left = size - sum(found.values(), NOUGHT)
    room = sorted(weights, key=lambda one: found[one[0]] - exact[one[0]])
    for most in (step, size):  # A second time where a share of an older version is no whole number of steps.
        for name, weight in room:
            more = min(most, left, weight - found[name])
            found[name] += more
            left -= more
    return found


def _split(amount: Decimal, weights: Weights) -> dict[str, Decimal]:
    """In proportion, to UNIT toward zero; the last has the rest, so that the sum is the amount."""
    whole = sum((weight for _, weight in weights), NOUGHT)
    found: dict[str, Decimal] = {}
    left = amount
    for name, weight in weights[:-1]:
        found[name] = (amount * weight / whole).quantize(UNIT, ROUND_DOWN)
        left -= found[name]
    if weights:
        found[weights[-1][0]] = left
    return found


def _cost(share: Share, part: Decimal) -> Decimal:
    return share.cost_usd if part >= share.size else (share.cost_usd * part / share.size).quantize(UNIT, ROUND_DOWN)


def _gain(share: Share, part: Decimal, px: Decimal) -> Decimal:
    gain = px * min(part, share.size) - _cost(share, part)
    return gain if share.side == "long" else -gain


def _joined(one: Share, other: Share) -> Share:
    return one._replace(size=one.size + other.size, cost_usd=one.cost_usd + other.cost_usd)


def _row_of(
    name: str,
    fills: int,
    fees: Amount,
    funding: Amount,
    realized: Amount,
    lost: Amount,
    day_ms: int,
    base: Amount,
    halted_ms: int,
) -> TotalsRow:
    return TotalsRow(
        name, fills, Decimal(fees), Decimal(funding), Decimal(realized), Decimal(lost), day_ms, Decimal(base), halted_ms
    )


def _share_of(market: str, strategy: str, side: str, size: Amount, cost: Amount) -> Share:
    return Share(market, strategy, side, Decimal(size), Decimal(cost))
