"""An account from its messages and reads: each fill once, and whether anything may be missing. Pure.

Messages are booked by the chain of positions. A read of all fills repairs what they lack: after each connection, every
5 minutes, and when a fill does not fit. The positions of the exchange must then equal the booked ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bot.clock import SECOND_MS
from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.fill_record import FillRecord
from bot.exchanges.hyperliquid.json_rows import JsonRow, unknown
from bot.exchanges.hyperliquid.live.subscriptions import ChannelMessage, Subscription
from bot.exchanges.protocol import (
    AccountReport,
    AccountStanding,
    ExecutionReport,
    FillCursor,
    LinkPhase,
    LinkState,
    OpenOrders,
)
from bot.money import format_e8

# The exchange tells the standing every 5 s.
STANDING_MAX_MS: Final = 20 * SECOND_MS
# Answers may be older than messages by about 1.2 s, so a repair that found a difference is done again after this.
AGAIN_MS: Final = 2 * SECOND_MS


def subscriptions_of(address: str, dexes: Sequence[str]) -> list[Subscription]:
    """What is listened to: fills, the standing of all dexes, and the open orders of each."""
    orders = [{"type": "openOrders", "user": address, "dex": dex} for dex in dexes]
    kinds = ("userFills", "allDexsClearinghouseState")
    return [*({"type": kind, "user": address} for kind in kinds), *orders]


class AccountFeed:
    """What is known of one account."""

    def __init__(self, address: str, cursor: FillCursor | None, now_ms: int) -> None:
        self.address = address
        self.record = None if cursor is None else FillRecord(cursor.at_ms, cursor.positions)
        self.state = LinkState("away", now_ms, "not connected yet")
        # Fills that came before the record could begin.
        self._early: list[ExecutionReport] = []
        self._newest_standing_ms = 0
        self._difference_ms: int | None = None
        # The earliest instant of the next repair.
        self._repair_ms: int | None = None
        self._has_differed = False
        self._standing_ms = now_ms

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
        is_behind = self.state.phase == "behind" or self._has_differed
        return is_behind or self.record is None or self.record.is_read_due(self.exchange_ms(now_ms))

    def is_silent(self, now_ms: int) -> bool:
        """True if a connection tells no standing, although it lives."""
        return self.state.phase != "away" and now_ms - self._standing_ms > STANDING_MAX_MS

    # ── Connection ──────────────────────────────────────────────────────────────────────────────────────────────────

    def up(self, now_ms: int) -> list[AccountReport]:
        """A socket tells everything from now on; what was before it may be missing."""
        self._standing_ms, self._repair_ms, self._has_differed = now_ms, None, False
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
        """Take a message of a channel. UnknownForm if it is in no known form, or tells a fill with two contents."""
        if message.channel == "userFills":
            row = JsonRow(message.data, "userFills")
            self._check_user(row)
            return self._fills(form.fills(row.items("fills"), self.address, "userFills.fills"), now_ms)
        if message.channel == "allDexsClearinghouseState":
            row = JsonRow(message.data, "allDexsClearinghouseState")
            self._check_user(row)
            return list(self._standings(row, now_ms).values())
        if message.channel == "openOrders":
            row = JsonRow(message.data, "openOrders")
            self._check_user(row)
            return [OpenOrders(row.text("dex"), tuple(form.open_orders(row.items("orders"))))]
        return []

    def _check_user(self, row: JsonRow) -> None:
        if row.text("user").lower() != self.address:
            raise unknown(f"{row.where}.user", self.address, row.text("user"))

    def _fills(self, fills: Sequence[ExecutionReport], now_ms: int) -> list[AccountReport]:
        if self.record is None:
            self._early += fills
            return []
        at_ms = self.exchange_ms(now_ms)
        return [booked for fill in fills for booked in self.record.hear(fill, at_ms)]

    def _standings(self, row: JsonRow, now_ms: int) -> dict[str, AccountStanding]:
        standings = {}
        for pair in row.items("clearinghouseStates"):
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise unknown(f"{row.where}.clearinghouseStates", "pairs of a dex and its state", pair)
            standings[pair[0]] = form.standing(pair[1], pair[0])
        self.hear_standings(standings, now_ms)
        return standings

    def hear_standings(self, standings: Mapping[str, AccountStanding], now_ms: int) -> None:
        """Take standings. Those of a late message say nothing about the exchange's clock."""
        self._standing_ms = now_ms
        at_ms = max(standing.at_ms for standing in standings.values())
        if at_ms >= self._newest_standing_ms:
            self._newest_standing_ms, self._difference_ms = at_ms, at_ms - now_ms

    # ── Repair ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, standings: Mapping[str, AccountStanding], now_ms: int) -> list[AccountReport]:
        """Begin the record at these standings, if it has not begun. The early messages are heard then."""
        self.hear_standings(standings, now_ms)
        if self.record is not None:
            return []
        positions = {
            position.market: position.signed_size for standing in standings.values() for position in standing.positions
        }
        self.record = FillRecord(min(standing.at_ms for standing in standings.values()), positions)
        early, self._early = self._early, []
        return self._fills(early, now_ms)

    def repaired(
        self, fills: Sequence[ExecutionReport], read_ms: int, standings: Mapping[str, AccountStanding], now_ms: int
    ) -> list[AccountReport]:
        """Take all fills until `read_ms` of the exchange's clock, and the standings that were read after them."""
        assert self.record is not None
        reports: list[AccountReport] = [*self.record.read(fills, read_ms, self.exchange_ms(now_ms))]
        difference = self._difference(standings)
        if difference is None:
            self._has_differed, self._repair_ms = False, None
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
        assert self.record is not None
        told = {
            position.market: position.signed_size for standing in standings.values() for position in standing.positions
        }
        for market in sorted({*told, *self.record.markets}):
            ours, theirs = self.record.position(market), told.get(market, 0)
            if ours != theirs:
                return (
                    f"{market}: the exchange has a position of {format_e8(theirs)}, and its fills give"
                    f" {format_e8(ours)}; they are read again"
                )
        return None
