"""An account from its messages and reads: each report once, and whether anything may be missing. Pure.

Fills are booked by the chain of positions. A read of all fills, payments and transfers repairs what the messages lack:
after each connection, every 5 minutes, when a fill does not fit, when told positions differ, and when no message tells
the fill that an answer has told. The positions of the exchange must then equal the booked ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bot.clock import SECOND_MS
from bot.exchanges.hyperliquid import form, money_form, order_form
from bot.exchanges.hyperliquid.fill_record import FillRecord
from bot.exchanges.hyperliquid.json_rows import JsonRow, unknown
from bot.exchanges.hyperliquid.live.order_watch import OrderWatch
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage, Subscription
from bot.exchanges.hyperliquid.money_form import LedgerReport
from bot.exchanges.hyperliquid.row_record import RowRecord
from bot.exchanges.protocol import (
    AccountReport,
    AccountStanding,
    ExecutionReport,
    FillCursor,
    FundingReport,
    LinkPhase,
    LinkState,
    OpenOrders,
)
from bot.money import format_e8

# The exchange tells the standing every 5 s.
STANDING_MAX_MS: Final = 20 * SECOND_MS
# Answers may be older than messages by about 1.2 s, so a repair that found a difference is done again after this.
AGAIN_MS: Final = 2 * SECOND_MS
# A message of a fill is lost when so many told standings in a row differ: the newest fill may be on its way.
DIFFERING_MAX: Final = 2
# An answer to an order has told a fill. Without a message of it, all fills are read after the first of these times, and
# again until the second; later the regular reads must find it.
FILL_WAIT_MS: Final = 2 * SECOND_MS
FILL_GIVEN_UP_MS: Final = 10 * SECOND_MS
KINDS: Final = ("userFills", "userFundings", "userNonFundingLedgerUpdates", "orderUpdates", "allDexsClearinghouseState")


class AccountRecords:
    """What has been reported of an account after the instants of a cursor, each once."""

    def __init__(self, cursor: FillCursor) -> None:
        self.fills = FillRecord(cursor.at_ms, cursor.positions)
        funding_ms, transfers_ms = (
            cursor.at_ms if at_ms is None else at_ms for at_ms in (cursor.funding_ms, cursor.transfers_ms)
        )
        self.funding: RowRecord[FundingReport] = RowRecord(funding_ms)
        self.ledger: RowRecord[LedgerReport] = RowRecord(transfers_ms)


@dataclass(frozen=True, slots=True)
class AccountRows:
    """All fills, payments and transfers until `read_ms` of the exchange's clock, as a read has them."""

    read_ms: int
    fills: Sequence[ExecutionReport]
    funding: Sequence[FundingReport]
    ledger: Sequence[LedgerReport]


def subscriptions_of(address: str, dexes: Sequence[str]) -> list[Subscription]:
    """What is listened to: fills, money, changes of orders, the standing of all dexes, and the open orders of each."""
    orders = [{"type": "openOrders", "user": address, "dex": dex} for dex in dexes]
    return [*({"type": kind, "user": address} for kind in KINDS), *orders]


class AccountFeed:
    """What is known of one account."""

    def __init__(self, address: str, cursor: FillCursor | None, now_ms: int) -> None:
        self.address = address
        self.records = None if cursor is None else AccountRecords(cursor)
        self.orders = OrderWatch()
        self.state = LinkState("away", now_ms, "not connected yet")
        # False from each connection until the first read after it. A message that came meanwhile may fit although
        # others before it are missing.
        self._has_read = False
        # Reports of messages that wait for that read.
        self._early: list[ExecutionReport | FundingReport | LedgerReport] = []
        self._newest_standing_ms = 0
        self._difference_ms: int | None = None
        # The earliest instant of the next repair.
        self._repair_ms: int | None = None
        self._has_differed = False
        # told standings in a row that differ from the booked fills
        self._differing = 0
        self._standing_ms = now_ms
        # Orders that an answer has called filled, and of which no fill is known; when that answer came.
        self._answered: dict[str, int] = {}

    # ── Time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def clock_difference_ms(self) -> int | None:
        """The exchange's clock less ours, of the newest standing."""
        return self._difference_ms

    def exchange_ms(self, now_ms: int) -> int:
        return now_ms + (self._difference_ms or 0)

    def is_repair_due(self, now_ms: int) -> bool:
        """True if all fills must be read."""
        if self.state.phase == "away" or (self._repair_ms is not None and now_ms < self._repair_ms):
            return False
        is_lost = any(now_ms - answered_ms >= FILL_WAIT_MS for answered_ms in self._answered.values())
        is_behind = self.state.phase == "behind" or self._has_differed or is_lost
        return is_behind or self.records is None or self.records.fills.is_read_due(self.exchange_ms(now_ms))

    def is_silent(self, now_ms: int) -> bool:
        """True if a connection tells no standing, although it lives."""
        return self.state.phase != "away" and now_ms - self._standing_ms > STANDING_MAX_MS

    # ── Connection ──────────────────────────────────────────────────────────────────────────────────────────────────

    def up(self, now_ms: int) -> list[AccountReport]:
        """A socket is connected: no change of the account is missed from now on, but earlier changes may be missing."""
        self._standing_ms, self._repair_ms, self._has_differed = now_ms, None, False
        self._has_read = False
        return self._enter("behind", now_ms, "connected; fills since the last read are being read")

    def down(self, reason: str, now_ms: int) -> list[AccountReport]:
        return self._enter("away", now_ms, reason)

    def _enter(self, phase: LinkPhase, now_ms: int, reason: str | None) -> list[AccountReport]:
        if (self.state.phase, self.state.reason) == (phase, reason):
            return []
        since_ms = self.state.since_ms if phase == self.state.phase else now_ms
        self.state = LinkState(phase, since_ms, reason)
        return [self.state]

    # ── Messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, message: ChannelMessage, now_ms: int) -> list[AccountReport]:
        """Take a message of a channel. UnknownForm if it is in no known form, or tells a report with two contents."""
        if message.channel == "orderUpdates":
            updates = order_form.order_updates(message.data)
            return [fresh for update in updates for fresh in self.orders.hear(update)]
        if message.channel not in (*KINDS, "openOrders"):
            return []
        row = JsonRow(message.data, message.channel)
        if row.text("user").lower() != self.address:
            raise unknown(f"{row.where}.user", self.address, row.text("user"))
        if message.channel == "userFills":
            return self._hear(form.fills(row.items("fills"), self.address, "userFills.fills"), now_ms)
        if message.channel == "userFundings":
            return self._hear(money_form.fundings(row.items("fundings"), "userFundings.fundings"), now_ms)
        if message.channel == "userNonFundingLedgerUpdates":
            rows = row.items("nonFundingLedgerUpdates")
            return self._hear(money_form.ledger(rows, self.address, row.where), now_ms)
        if message.channel == "openOrders":
            state = OpenOrders(row.text("dex"), tuple(form.open_orders(row.items("orders"))))
            self.orders.see(state, now_ms)
            return [state]
        return list(self._standings(row, now_ms).values())

    def expect_fill(self, order_id: str, now_ms: int) -> None:
        """An answer has called this order filled. If no message tells its fill soon, all fills must be read."""
        if self.records is None or not self.records.fills.has_fill_of(order_id):
            self._answered[order_id] = now_ms

    def _hear(
        self, reports: Sequence[ExecutionReport | FundingReport | LedgerReport], now_ms: int
    ) -> list[AccountReport]:
        """Take reports of messages. Those from before the first read of a connection wait for it."""
        if self.records is None or not self._has_read:
            self._early += reports
            return []
        heard: list[AccountReport] = []
        for report in reports:
            if isinstance(report, ExecutionReport):
                self._answered.pop(report.order_id, None)
                heard += self.records.fills.hear(report, self.exchange_ms(now_ms))
            elif isinstance(report, FundingReport):
                heard += self.records.funding.hear(report)
            else:
                heard += self.records.ledger.hear(report)
        return heard

    def _standings(self, row: JsonRow, now_ms: int) -> dict[str, AccountStanding]:
        standings = {}
        for pair in row.items("clearinghouseStates"):
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise unknown(f"{row.where}.clearinghouseStates", "pairs of a dex and its state", pair)
            standings[pair[0]] = form.standing(pair[1], pair[0])
        self.hear_standings(standings, now_ms)
        if self.state.phase == "in_step":
            self._differing = 0 if self._difference(standings) is None else self._differing + 1
            if self._differing >= DIFFERING_MAX:
                self._has_differed, self._repair_ms, self._differing = True, None, 0
        return standings

    def hear_standings(self, standings: Mapping[str, AccountStanding], now_ms: int) -> None:
        """Take standings. Those of a late message say nothing about the exchange's clock."""
        self._standing_ms = now_ms
        at_ms = max(standing.at_ms for standing in standings.values())
        if at_ms >= self._newest_standing_ms:
            self._newest_standing_ms, self._difference_ms = at_ms, at_ms - now_ms

    # ── Repair ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, standings: Mapping[str, AccountStanding], now_ms: int) -> None:
        """Begin the records at these standings, if they have not begun."""
        self.hear_standings(standings, now_ms)
        if self.records is not None:
            return
        positions = {held.market: held.signed_size for standing in standings.values() for held in standing.positions}
        self.records = AccountRecords(FillCursor(min(standing.at_ms for standing in standings.values()), positions))

    def repaired(self, rows: AccountRows, standings: Mapping[str, AccountStanding], now_ms: int) -> list[AccountReport]:
        """Take all rows until an instant, and the standings that were read after them. Transfers come first."""
        records = self.records
        assert records is not None
        reports: list[AccountReport] = [
            *records.ledger.read(rows.ledger, rows.read_ms),
            *records.funding.read(rows.funding, rows.read_ms),
            *records.fills.read(rows.fills, rows.read_ms, self.exchange_ms(now_ms)),
        ]
        self._has_read, early, self._early = True, self._early, []
        told = {report.order_id for report in rows.fills}
        for order_id, answered_ms in list(self._answered.items()):
            if order_id in told or now_ms - answered_ms >= FILL_GIVEN_UP_MS:
                del self._answered[order_id]
        reports += self._hear(early, now_ms)
        difference = self._difference(standings)
        if difference is None:
            # A read may be older than the answer to an order.
            self._has_differed, self._repair_ms = False, now_ms + AGAIN_MS if self._answered else None
            return [*reports, *standings.values(), *self._enter("in_step", now_ms, None)]
        # The standings are newer than the fills, so a fill between the two reads is a difference once.
        if self.state.phase != "in_step" or self._has_differed:
            reports += self._enter("behind", now_ms, difference)
        self._has_differed, self._repair_ms = True, now_ms + AGAIN_MS
        return reports

    def failed(self, reason: str, now_ms: int) -> list[AccountReport]:
        """A read had no answer."""
        self._repair_ms = now_ms + AGAIN_MS
        return self._enter("behind", now_ms, reason)

    def _difference(self, standings: Mapping[str, AccountStanding]) -> str | None:
        """What the exchange's positions have otherwise than the booked fills; None if nothing."""
        assert self.records is not None
        record = self.records.fills
        told = {
            position.market: position.signed_size for standing in standings.values() for position in standing.positions
        }
        for market in sorted({*told, *record.markets}):
            ours, theirs = record.position(market), told.get(market, 0)
            if ours != theirs:
                return (
                    f"{market}: the exchange has a position of {format_e8(theirs)}, and its fills give"
                    f" {format_e8(ours)}; they are read again"
                )
        return None
