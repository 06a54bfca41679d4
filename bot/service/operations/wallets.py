"""What everybody may read of a wallet. It contains nothing that is private to the owner."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from bot.money import format_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.read_access import peek, peek_all
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.market_data import nav_series
from bot.service.operations.executor import OperationExecutor
from bot.service.security.rate_limits import RateLimits
from bot.service.state_machine.machine import Machine
from bot.venue.accounting import ledger
from bot.venue.model.state import State, VenueAccount, VenueTrade
from bot.venue.storage import pages
from bot.wire.queries import NavQuery, WalletTradesQuery

_ADDRESS: Final = re.compile(r"0x[0-9a-f]{40}", re.ASCII)

# Fields that the public answers leave out: the plan, and references to requests and credentials.
HIDDEN_OF_POSITION: Final = dict.fromkeys(("stopPx", "takeProfitPx", "riskUsd"))
HIDDEN_OF_TRADE: Final = dict.fromkeys(("requestId", "idempotencyKey", "source", "venueOid", "guardianId"))


@dataclass(slots=True)
class _Count:
    """Counts of filled trades, of closing trades among them, and of closing trades with a gain."""

    filled: int = 0
    closing: int = 0
    won: int = 0

    def add(self, trades: Iterable[VenueTrade]) -> None:
        for trade in trades:
            if trade.filled:
                self.filled += 1
                if trade.realized is not None:
                    self.closing += 1
                    self.won += trade.realized > 0

    def win_rate(self) -> int | float | None:
        """The percentage of closing trades with a gain."""
        if not self.closing:
            return None
        rate = round(100 * self.won / self.closing, 2)
        return int(rate) if rate == int(rate) else rate


@dataclass(slots=True)
class _Tally:
    """An account's counts.

    `over`: trades up to number `upto`, which are final. `total`: all trades as of `event_seq`.
    """

    trade_first: int
    upto: int
    over: _Count = field(default_factory=_Count)
    total: _Count = field(default_factory=_Count)
    event_seq: int = -1


@dataclass(slots=True)
class _Known:
    """Results that are valid for one state of the service; computed again after a restore."""

    state: State
    # address -> account id
    ids: dict[str, str] = field(default_factory=dict)
    # accounts that are in `ids`
    count: int = 0
    # by account id
    tallies: dict[str, _Tally] = field(default_factory=dict)


class WalletOperations(OperationExecutor):
    """What is public of one address. A well-formed address without an account has `registered` false."""

    def __init__(self, machine: Machine, rate_limits: RateLimits, base_url: str) -> None:
        super().__init__(machine, rate_limits, base_url)
        self._known = _Known(machine.state)

    def wallet(self, address: str) -> ServiceAnswer:
        """GET /v1/wallets/{address}."""
        return ServiceAnswer.ok(self.wallet_body(address))

    def wallet_body(self, address: str) -> dict[str, Any]:
        now = self.refresh()
        state = self.machine.state
        name, account = self._wallet(address)
        return {
            "address": name,
            "registered": account is not None,
            "nickname": None if account is None else account.name,
            "environment": "sandbox",
            "accountValueUsd": "0" if account is None else format_e8(ledger.account_value(state, account)),
            "unrealizedPnlUsd": "0" if account is None else format_e8(ledger.unrealized(state, account)),
            "positions": public_positions(state, account),
            "updatedAt": now,
        }

    def wallet_positions(self, address: str) -> ServiceAnswer:
        """GET /v1/wallets/{address}/positions."""
        self.refresh()
        name, account = self._wallet(address)
        positions = public_positions(self.machine.state, account)
        return ServiceAnswer.ok({"address": name, "registered": account is not None, "positions": positions})

    def wallet_pnl(self, address: str) -> ServiceAnswer:
        """GET /v1/wallets/{address}/pnl."""
        return ServiceAnswer.ok(self.wallet_pnl_body(address))

    def wallet_pnl_body(self, address: str) -> dict[str, Any]:
        now = self.refresh()
        state = self.machine.state
        name, account = self._wallet(address)
        unrealized = realized = fees = funding = lost = absorbed = 0
        gains = dict.fromkeys(nav_series.RANGES, 0)
        count = _Count()
        if account is not None:
            unrealized, realized = ledger.unrealized(state, account), account.realized
            fees, funding = account.fees, account.funding
            lost, absorbed = account.margin_lost, account.absorbed
            gains = nav_series.gains(state, account, self.machine.feed, now)
            count = self._tally(account)
        return {
            "address": name,
            "registered": account is not None,
            "realizedPnlUsd": format_e8(realized),
            "unrealizedPnlUsd": format_e8(unrealized),
            "feesUsd": format_e8(fees),
            "fundingUsd": format_e8(funding),
            "marginLostUsd": format_e8(lost),
            "absorbedUsd": format_e8(absorbed),
            "netPnlUsd": format_e8(realized + unrealized - fees + funding - lost + absorbed),
            "ranges": {span: format_e8(gain) for span, gain in gains.items()},
            "trades": count.filled,
            "winRatePct": count.win_rate(),
        }

    def wallet_nav(self, address: str, query: NavQuery) -> ServiceAnswer:
        """GET /v1/wallets/{address}/nav."""
        return ServiceAnswer.ok(self.wallet_nav_body(address, query.range))

    def wallet_nav_body(self, address: str, span: str) -> dict[str, Any]:
        now = self.refresh()
        name, account = self._wallet(address)
        points = (
            None if account is None else nav_series.series(self.machine.state, account, self.machine.feed, span, now)
        )
        return {
            "address": name,
            "registered": account is not None,
            "range": span,
            "navUsd": "0" if points is None else format_e8(points[-1].nav),
            "series": None if points is None else [{"ts": at, "navUsd": format_e8(worth)} for at, worth in points],
        }

    def wallet_trades(self, address: str, query: WalletTradesQuery) -> ServiceAnswer:
        """GET /v1/wallets/{address}/trades: newest first."""
        return ServiceAnswer.ok(self.wallet_trades_body(address, query))

    def wallet_trades_body(self, address: str, query: WalletTradesQuery) -> dict[str, Any]:
        self.refresh()
        _, account = self._wallet(address)
        if account is None:
            return {"trades": [], "nextBefore": None}
        # A trade without a fill is an order, which is private.
        filled = (trade for trade in pages.trades_before(account, query.before) if trade.filled)
        trades = list(islice(filled, query.limit + 1))
        page = [public_trade(account, trade) for trade in trades[: query.limit]]
        return {"trades": page, "nextBefore": page[-1]["seq"] if len(trades) > query.limit else None}

    # ── Addresses ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wallet(self, address: str) -> tuple[str, VenueAccount | None]:
        """The address in lower case, and its account. Refused if it is not an address."""
        name = address.lower()
        if _ADDRESS.fullmatch(name) is None:
            raise OperationRefused(
                invalid("address", "must be 0x and 40 hexadecimal digits", "0x and 40 hexadecimal digits")
            )
        state = self.machine.state
        account_id = self._address_book(state).get(name)
        return name, None if account_id is None else peek(state, account_id)

    def _address_book(self, state: State) -> dict[str, str]:
        """Address -> account id. Accounts are never removed, so only new accounts are added."""
        known = self._known
        if known.state is not state:
            known = self._known = _Known(state)
        if known.count < len(state.accounts):
            for account in islice(peek_all(state), known.count, None):
                known.ids[account.address.lower()] = account.id
            known.count = len(state.accounts)
        return known.ids

    # ── Counting trades
    # ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _tally(self, account: VenueAccount) -> _Count:
        """The account's trade counts. Final trades are counted once; the others are counted again after each event."""
        tallies = self._known.tallies
        known = tallies.get(account.id)
        if known is None or known.trade_first != account.trade_first:
            known = tallies[account.id] = _Tally(account.trade_first, account.trade_first - 1)
        if known.event_seq != account.event_seq:
            newer = list(islice(pages.trades_before(account), account.trade_seq - known.upto))[::-1]
            over = next((at for at, trade in enumerate(newer) if trade.status == "open"), len(newer))
            known.over.add(newer[:over])
            known.upto += over
            known.total = replace(known.over)
            known.total.add(newer[over:])
            known.event_seq = account.event_seq
        return known.total


def public_trade(account: VenueAccount, trade: VenueTrade) -> dict[str, Any]:
    """The public fields of a trade. A partly filled trade is shown as if its filled part were the whole."""
    seen = account_bodies.trade(account, trade) | HIDDEN_OF_TRADE
    if trade.status == "open":
        seen |= {"size": seen["filledSize"], "fillStatus": "filled", "status": "done"}
    return seen


def public_positions(state: State, account: VenueAccount | None) -> list[dict[str, Any]]:
    """The public fields of positions."""
    return [] if account is None else [held | HIDDEN_OF_POSITION for held in account_bodies.positions(state, account)]
