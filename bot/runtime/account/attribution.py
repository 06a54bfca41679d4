"""Attribution: fills, fees, funding, profit and shares of positions, by strategy. Exact.

A market has one position; each strategy has its share of it. FOREIGN holds what no strategy of ours did.
attribution_fold.py changes an `Attribution` by events; allocation.py splits sizes and amounts. Nothing here sends or
writes; the journal writes `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from bot.clock import DAY_MS, utc_day_start_ms
from bot.money import E8, decimal_of_e16, e8_rounded, e16_of_decimal
from bot.runtime.model.shares import (
    NETTING,
    NOUGHT,
    UNIT,
    AttributionChanges,
    EntryRow,
    Share,
    StrategyTotals,
    TotalsRow,
    TradeRow,
)

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal


MarkAt = Callable[[str, int | None], Decimal | None]
StepOf = Callable[[str], Decimal]
# text in a journal on disk, a scaled number in a journal in memory
Amount = str | int
Marked = tuple[set[str], set[str], bool]
Saved = tuple[dict[str, TotalsRow], dict[str, dict[str, Share]], dict[str, int], int, Sequence[tuple[Share, int]]]


class TradeChanges(Protocol):
    """What follows the attribution event by event (trade_log.py), and is written with it."""

    @property
    def has_changed(self) -> bool: ...
    def begin_page(self) -> None: ...
    def end_page(self, *, is_written: bool) -> None: ...
    def changes(self) -> tuple[tuple[TradeRow, ...], tuple[EntryRow, ...]]: ...


totals_row = partial(tuple.__new__, TotalsRow)


class Attribution:
    """`owner_of(key)` names the strategy of a key. `mark_at(market, at_ms)` is the mark price at an instant (None:
    now).

    `step_of(market)` is the market's lot: every size is a whole number of lots.
    """

    def __init__(
        self,
        *,
        epoch: int,
        rows: Iterable[TotalsRow],
        shares: Iterable[Share],
        owner_of: Callable[[str], str | None],
        mark_at: MarkAt,
        step_of: StepOf = lambda _market: UNIT,
    ) -> None:
        self.epoch = epoch
        self.owner_of = owner_of
        self.mark_at = mark_at
        self.step_of = step_of
        self.rows: dict[str, TotalsRow] = {row.strategy: row for row in rows}
        self.shares: dict[str, dict[str, Share]] = {}
        # market -> its part of NETTING while the position is open
        self.netting: dict[str, int] = {}
        for share in shares:
            if share.strategy == NETTING:
                self.netting[share.market] = share.cost
            else:
                self.shares.setdefault(share.market, {})[share.strategy] = share
        self.day_ms = max((row.day_ms for row in self.rows.values()), default=0)
        # Each share at 00:00 UTC, and its gain by the mark price of 00:00 that was known then.
        self.day_start: Sequence[tuple[Share, int]] = ()
        self.rows_changed: set[str] = set()
        self.markets_changed: set[str] = set()
        self.is_wiped = False
        # None: nobody follows the trades
        self.trade_log: TradeChanges | None = None
        # between `begin_page` and `end_page`
        self.is_in_page = False
        # the state at the start of the page, once the page has changed something
        self._before: tuple[Saved, Marked] | None = None

    def follow_by(self, log: TradeChanges) -> None:
        """Write this log with the attribution from now on."""
        self.trade_log = log

    @classmethod
    def of_journal(
        cls,
        journal: Journal,
        *,
        owner_of: Callable[[str], str | None],
        mark_at: MarkAt,
        step_of: StepOf = lambda _market: UNIT,
    ) -> Attribution:
        """The attribution that the last run wrote."""
        cursor = journal.events.cursor
        epoch = 0 if cursor is None else cursor.epoch
        rows = [_row_of(row) for row in journal.state.attribution_rows(epoch)]
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
        row = self.rows.get(strategy, TotalsRow(strategy, day_ms=self.day_ms))
        shares = tuple(self.shares_of(strategy))
        unrealized = self.unrealized(strategy, None)
        return StrategyTotals(
            strategy=strategy,
            fills=row.fills,
            fees_usd=decimal_of_e16(row.fees),
            funding_usd=decimal_of_e16(row.funding),
            realized_usd=decimal_of_e16(row.realized),
            margin_lost_usd=decimal_of_e16(row.margin_lost),
            unrealized_usd=decimal_of_e16(unrealized),
            day_usd=decimal_of_e16(row.net + unrealized - row.base),
            notional_usd=sum((held.notional_usd for held in shares), NOUGHT),
            is_halted=self.is_halted(strategy),
            shares=shares,
        )

    def names(self) -> list[str]:
        """Strategies, FOREIGN and NETTING, as far as they have totals or shares."""
        return sorted({*self.rows, *(name for held in self.shares.values() for name in held)})

    def day_usd(self, strategy: str) -> Decimal:
        """Profit since 00:00 UTC: realised and unrealised, net of fees, funding and lost margin."""
        row = self.rows.get(strategy)
        if row is None:
            return NOUGHT
        return decimal_of_e16(row.net + self.unrealized(strategy, None) - row.base)

    def is_halted(self, strategy: str) -> bool:
        row = self.rows.get(strategy)
        return row is not None and row.halted_day_ms == self.day_ms and row.halted_day_ms != 0

    def unrealized(self, strategy: str, at_ms: int | None) -> int:
        """Scaled 1e16."""
        # Measured by the shares' own costs, the account's unrealised profit lacks this amount.
        if strategy == NETTING:
            return -sum(self.netting.values())
        shares = self.shares_of(strategy)
        return sum(self.gain_at(share, at_ms) for share in shares)

    def gain_at(self, share: Share, at_ms: int | None) -> int:
        mark = self.mark_at(share.market, at_ms)
        return 0 if mark is None else share.gain(e8_rounded(mark))

    # -- the day

    def roll(self, now_ms: int) -> bool:
        """Begin a new day, if `now_ms` is in one: each strategy's day counts from its value at 00:00 UTC.

        True if a day began.
        """
        if now_ms - self.day_ms < DAY_MS:
            return False
        self.keep()
        self.day_ms = day_ms = utc_day_start_ms(now_ms)
        for name, row in self.rows.items():
            self.put(row._replace(day_ms=day_ms, base=row.net + self.unrealized(name, day_ms)))
        shares = [share for held in self.shares.values() for share in held.values()]
        self.day_start = [(share, self.gain_at(share, day_ms)) for share in shares]
        return True

    def mend_day(self) -> None:
        """Correct the values at 00:00 UTC by the mark prices of 00:00 that are known now.

        An event may come before the bar of its instant.
        """
        day_start: list[tuple[Share, int]] = []
        for share, before in self.day_start:
            gain = self.gain_at(share, self.day_ms)
            day_start.append((share, gain))
            if gain != before:
                row = self.row(share.strategy)
                self.put(row._replace(base=row.base + gain - before))
        self.day_start = day_start

    def halt(self, strategy: str) -> None:
        """Halt a strategy for the rest of the day, because its daily loss limit is reached."""
        self.keep()
        self.put(self.row(strategy)._replace(halted_day_ms=self.day_ms))

    # -- pages of the feed

    def keep(self) -> None:
        """Save the state at the start of the page, for `end_page`.

        Call it before each change; most pages change nothing here.
        """
        if self.is_in_page and self._before is None:
            shares = {market: dict(held) for market, held in self.shares.items()}
            marked = set(self.rows_changed), set(self.markets_changed), self.is_wiped
            self._before = (dict(self.rows), shares, dict(self.netting), self.day_ms, self.day_start), marked

    def begin_page(self) -> None:
        """Begin a page of events.

        `end_page` undoes its changes if the page was not written, because its events come again.
        """
        self.is_in_page, self._before = True, None
        if self.trade_log is not None:
            self.trade_log.begin_page()

    def end_page(self, *, is_written: bool) -> None:
        if self._before is not None and not is_written:
            (self.rows, self.shares, self.netting, self.day_ms, self.day_start), marked = self._before
            self.rows_changed, self.markets_changed, self.is_wiped = marked
        self.is_in_page, self._before = False, None
        if self.trade_log is not None:
            self.trade_log.end_page(is_written=is_written)

    def changes(self) -> AttributionChanges | None:
        """What has changed since the last call; None if nothing has."""
        trades = self.trade_log
        has_trades = trades is not None and trades.has_changed
        if not (self.rows_changed or self.markets_changed or self.is_wiped or has_trades):
            return None
        if self.is_in_page:
            self.keep()
        markets = tuple(sorted(self.markets_changed))
        rows = tuple(map(self.rows.__getitem__, sorted(self.rows_changed)))
        shares: list[Share] = []
        for market in markets:
            shares += self.shares.get(market, {}).values()
            if market in self.netting:
                shares.append(Share(market, NETTING, "long", 0, self.netting[market]))
        logged = () if trades is None else trades.changes()
        changes = AttributionChanges(self.epoch, rows, markets, tuple(shares), self.is_wiped, *logged)
        self.rows_changed, self.markets_changed, self.is_wiped = set(), set(), False
        return changes

    # -- changes of rows and shares, by attribution_fold.py

    def reduce(self, market: str, name: str, part: int, px: int, gain: int) -> int:
        """Take a closed part from a share and return the size that is left.

        The share's cost falls by the part's proceeds less its gain.
        """
        held = self.shares.get(market, {})
        share = held.get(name)
        if share is None:
            return 0
        self.markets_changed.add(market)
        size = share.size_e8 - part
        if size <= 0:
            del held[name]
            return 0
        cost = px * part - (gain if share.side == "long" else -gain)
        held[name] = share._replace(size_e8=size, cost=share.cost - cost)
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
        self, name: str, fills: int = 0, fees: int = 0, funding: int = 0, realized: int = 0, margin_lost: int = 0
    ) -> None:
        """Add to a strategy's sums. Amounts are scaled 1e16."""
        if not (fills or fees or funding or realized or margin_lost):
            return
        row = self.rows.get(name) or TotalsRow(name, day_ms=self.day_ms)
        _, fills_, fees_, funding_, realized_, lost_, day_ms, base, halted_ms = row
        sums = (fills_ + fills, fees_ + fees, funding_ + funding, realized_ + realized, lost_ + margin_lost)
        self.rows[name] = totals_row((name, *sums, day_ms, base, halted_ms))
        self.rows_changed.add(name)


def _row_of(columns: Sequence[Any]) -> TotalsRow:
    """The sums of a strategy from a row of the journal, whose columns stand as in TotalsRow."""
    name, fills, fees, funding, realized, lost, day_ms, base, halted_ms = columns
    return TotalsRow(name, fills, _e16(fees), _e16(funding), _e16(realized), _e16(lost), day_ms, _e16(base), halted_ms)


def _share_of(market: str, strategy: str, side: str, size: Amount, cost: Amount) -> Share:
    return Share(market, strategy, side, size if type(size) is int else _e16(size) // E8, _e16(cost))


def _e16(value: Amount) -> int:
    return value if type(value) is int else e16_of_decimal(Decimal(value))
