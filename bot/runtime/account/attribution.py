"""Attribution: fills, fees, funding, profit and shares of positions, by strategy. Exact.

A market has one position; each strategy has its share of it. FOREIGN holds what no strategy of ours did. attribution_fold.py changes
an `Attribution` by events; allocation.py splits sizes and amounts. Nothing here sends or writes; the journal writes `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING

from bot.clock import DAY_MS, utc_day_start_ms
from bot.runtime.model.shares import (
    EXACT,
    NETTING,
    NOUGHT,
    UNIT,
    AttributionChanges,
    Share,
    StrategyTotals,
    TotalsRow,
)

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal


MarkAt = Callable[[str, int | None], Decimal | None]
StepOf = Callable[[str], Decimal]
Amount = str | Decimal  # text in a journal on disk, a Decimal in a journal in memory
Marked = tuple[set[str], set[str], bool]
Saved = tuple[
    dict[str, TotalsRow], dict[str, dict[str, Share]], dict[str, Decimal], int, Sequence[tuple[Share, Decimal]]
]


class Attribution:
    """`owner_of(key)` names the strategy of a key. `mark_at(market, at_ms)` is the mark price at an instant (None: now).

    `step_of(market)` is the market's lot: every size is a whole number of lots.
    """

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
        self.netting: dict[str, Decimal] = {}  # by market, while the position is open: its part of NETTING
        for share in shares:
            if share.strategy == NETTING:
                self.netting[share.market] = share.cost_usd
            else:
                self.shares.setdefault(share.market, {})[share.strategy] = share
        self.day_ms = max((row.day_ms for row in self.rows.values()), default=0)
        # Each share at 00:00 UTC, and its gain by the mark price of 00:00 that was known then.
        self.day_start: Sequence[tuple[Share, Decimal]] = ()
        self.rows_changed: set[str] = set()
        self.markets_changed: set[str] = set()
        self.is_wiped = False
        self.is_in_page = False  # between `begin_page` and `end_page`
        self._before: tuple[Saved, Marked] | None = (
            None  # the state at the start of the page, once the page has changed something
        )

    @classmethod
    def of_journal(
        cls, journal: Journal, *, owner_of: Callable[[str], str | None], mark_at: MarkAt, step_of: StepOf = lambda _market: UNIT
    ) -> Attribution:  # fmt: skip
        """The attribution that the last run wrote."""
        cursor = journal.events.cursor
        epoch = 0 if cursor is None else cursor.epoch
        rows = [_row_of(*row) for row in journal.state.attribution_rows(epoch)]
        shares = [_share_of(*row) for row in journal.state.share_rows(epoch)]
        return cls(epoch=epoch, rows=rows, shares=shares, owner_of=owner_of, mark_at=mark_at, step_of=step_of)

    # -- queries

    def share(self, market: str, strategy: str) -> Share | None:
        return self.shares.get(market, {}).get(strategy)

    def shares_of(self, strategy: str) -> Sequence[Share]:
        """The shares of a strategy in all markets."""
        return [held[strategy] for held in self.shares.values() if strategy in held]

    def of(self, strategy: str) -> StrategyTotals:
        """The totals of a strategy, of FOREIGN or of NETTING; zeros for a name without fills."""
        with localcontext(EXACT):
            row = self.rows.get(strategy, TotalsRow(strategy, day_ms=self.day_ms))
            shares = tuple(self.shares_of(strategy))
            unrealized = self.unrealized(strategy, None)
            return StrategyTotals(
                strategy=strategy, fills=row.fills, fees_usd=row.fees_usd, funding_usd=row.funding_usd, realized_usd=row.realized_usd,
                margin_lost_usd=row.margin_lost_usd, unrealized_usd=unrealized, day_usd=row.net_usd + unrealized - row.base_usd,
                notional_usd=sum((one.notional_usd for one in shares), NOUGHT), is_halted=self.is_halted(strategy), shares=shares,
            )  # fmt: skip

    def names(self) -> list[str]:
        """Strategies, FOREIGN and NETTING, as far as they have totals or shares."""
        return sorted({*self.rows, *(name for held in self.shares.values() for name in held)})

    def day_usd(self, strategy: str) -> Decimal:
        """Profit since 00:00 UTC: realised and unrealised, net of fees, funding and lost margin."""
        row = self.rows.get(strategy)
        if row is None:
            return NOUGHT
        with localcontext(EXACT):
            return row.net_usd + self.unrealized(strategy, None) - row.base_usd

    def is_halted(self, strategy: str) -> bool:
        row = self.rows.get(strategy)
        return row is not None and row.halted_day_ms == self.day_ms and row.halted_day_ms != 0

    def unrealized(self, strategy: str, at_ms: int | None) -> Decimal:
        if strategy == NETTING:  # By the shares' own costs, the account's unrealised profit lacks this amount.
            return -sum(self.netting.values(), NOUGHT)
        shares = self.shares_of(strategy)
        return sum((self.gain_at(share, at_ms) for share in shares), NOUGHT)

    def gain_at(self, share: Share, at_ms: int | None) -> Decimal:
        mark = self.mark_at(share.market, at_ms)
        return NOUGHT if mark is None else share.gain_usd(mark)

    # -- the day

    def roll(self, now_ms: int) -> bool:
        """Begin a new day, if `now_ms` is in one: each strategy's day counts from its value at 00:00 UTC. True if a day began."""
        if now_ms - self.day_ms < DAY_MS:
            return False
        self.keep()
        self.day_ms = day_ms = utc_day_start_ms(now_ms)
        with localcontext(EXACT):
            for name, row in self.rows.items():
                base = row.net_usd + self.unrealized(name, day_ms)
                self.put(row._replace(day_ms=day_ms, base_usd=base))
            shares = [share for held in self.shares.values() for share in held.values()]
            self.day_start = [(share, self.gain_at(share, day_ms)) for share in shares]
        return True

    def mend_day(self) -> None:
        """Correct the values at 00:00 UTC by the mark prices of 00:00 that are known now. An event may come before the bar of its instant."""
        day_start: list[tuple[Share, Decimal]] = []
        with localcontext(EXACT):
            for share, before in self.day_start:
                gain = self.gain_at(share, self.day_ms)
                day_start.append((share, gain))
                if gain != before:
                    row = self.row(share.strategy)
                    self.put(row._replace(base_usd=row.base_usd + gain - before))
        self.day_start = day_start

    def halt(self, strategy: str) -> None:
        """Halt a strategy for the rest of the day, because its daily loss limit is reached."""
        self.keep()
        self.put(self.row(strategy)._replace(halted_day_ms=self.day_ms))

    # -- pages of the feed

    def keep(self) -> None:
        """Save the state at the start of the page, for `end_page`. Call it before each change; most pages change nothing here."""
        if self.is_in_page and self._before is None:
            shares = {market: dict(held) for market, held in self.shares.items()}
            marked = set(self.rows_changed), set(self.markets_changed), self.is_wiped
            self._before = (dict(self.rows), shares, dict(self.netting), self.day_ms, self.day_start), marked

    def begin_page(self) -> None:
        """Begin a page of events. `end_page` undoes its changes if the page was not written, because its events come again."""
        self.is_in_page, self._before = True, None

    def end_page(self, *, is_written: bool) -> None:
        if self._before is not None and not is_written:
            (self.rows, self.shares, self.netting, self.day_ms, self.day_start), marked = self._before
            self.rows_changed, self.markets_changed, self.is_wiped = marked
        self.is_in_page, self._before = False, None

    def changes(self) -> AttributionChanges | None:
        """What has changed since the last call; None if nothing has."""
        if not self.rows_changed and not self.markets_changed and not self.is_wiped:
            return None
        if self.is_in_page:
            self.keep()
        markets = tuple(sorted(self.markets_changed))
        rows = tuple(map(self.rows.__getitem__, sorted(self.rows_changed)))
        shares: list[Share] = []
        for market in markets:
            shares += self.shares.get(market, {}).values()
            if market in self.netting:
                shares.append(Share(market, NETTING, "long", NOUGHT, self.netting[market]))
        changes = AttributionChanges(self.epoch, rows, markets, tuple(shares), self.is_wiped)
        self.rows_changed, self.markets_changed, self.is_wiped = set(), set(), False
        return changes

    # -- changes of rows and shares, by attribution_fold.py

    def reduce(self, market: str, name: str, part: Decimal, px: Decimal, gain: Decimal) -> Decimal:
        """Take a closed part from a share and return the size that is left. The share's cost falls by the part's proceeds less its gain."""
        held = self.shares.get(market, {})
        share = held.get(name)
        if share is None:
            return NOUGHT
        self.markets_changed.add(market)
        size = share.size - part
        if size <= 0:
            del held[name]
            return NOUGHT
        cost = px * part - (gain if share.side == "long" else -gain)
        held[name] = share._replace(size=size, cost_usd=share.cost_usd - cost)
        return size

    def drop(self, market: str) -> None:
        self.netting.pop(market, None)
        if self.shares.pop(market, None) is not None:
            self.markets_changed.add(market)

    def row(self, name: str) -> TotalsRow:
        return self.rows.get(name) or TotalsRow(name, day_ms=self.day_ms)

    def put(self, row: TotalsRow) -> None:
        self.rows[row.strategy] = row
        self.rows_changed.add(row.strategy)

    def add(
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
        self.rows_changed.add(name)


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
