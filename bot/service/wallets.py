"""Public wallet views: what anybody may read of an address. Nothing here carries what belongs to the owner alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from bot.money import format_e8
from bot.service import nav, views
from bot.service.answers import Answer, Refused, invalid
from bot.service.desk import Desk
from bot.service.keeping import peek, peek_all
from bot.service.machine import Machine
from bot.service.quota import Quota
from bot.venue import ledger, pages
from bot.venue.state import Account, State, Trade
from bot.wire.queries import NavQuery, WalletTradesQuery

_ADDRESS: Final = re.compile(r"0x[0-9a-f]{40}", re.ASCII)

# What a stranger may not see of a position or a trade: the plan behind it, and what ties it to requests and credentials.
HIDDEN_OF_POSITION: Final = dict.fromkeys(("stopPx", "takeProfitPx", "riskUsd"))
HIDDEN_OF_TRADE: Final = dict.fromkeys(("requestId", "idempotencyKey", "source", "venueOid", "guardianId"))


TALLIES_MAX: Final = 1_000  # accounts whose counts are remembered


@dataclass(slots=True)
class _Known:
    """What was found out about one state; a restored one is found out anew."""

    state: State
    ids: dict[str, str] = field(default_factory=dict)  # address -> account id
    count: int = 0  # accounts that are in `ids`
    tallies: dict[str, tuple[int, int, int | float | None]] = field(default_factory=dict)


class WalletDesk(Desk):
    """The views of one address. Any well-formed address answers; one that is no account here is not registered."""

    def __init__(self, machine: Machine, quota: Quota, base_url: str) -> None:
        super().__init__(machine, quota, base_url)
        self._known = _Known(machine.state)

    def wallet(self, address: str) -> Answer:
        """GET /v1/wallets/{address}."""
        return Answer.ok(self.wallet_body(address))

    def wallet_body(self, address: str) -> dict[str, Any]:
        now = self.look()
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

    def wallet_positions(self, address: str) -> Answer:
        """GET /v1/wallets/{address}/positions."""
        self.look()
        name, account = self._wallet(address)
        positions = public_positions(self.machine.state, account)
        return Answer.ok({"address": name, "registered": account is not None, "positions": positions})

    def wallet_pnl(self, address: str) -> Answer:
        """GET /v1/wallets/{address}/pnl."""
        return Answer.ok(self.wallet_pnl_body(address))

    def wallet_pnl_body(self, address: str) -> dict[str, Any]:
        now = self.look()
        state = self.machine.state
        name, account = self._wallet(address)
        unrealized = realized = fees = funding = 0
        gains = dict.fromkeys(nav.RANGES, 0)
        trades, win_rate = 0, None
        if account is not None:
            unrealized, realized = ledger.unrealized(state, account), account.realized
            fees, funding = account.fees, account.funding
            gains = nav.gains(state, account, self.machine.feed, now)
            trades, win_rate = self._tally(account)
        return {
            "address": name,
            "registered": account is not None,
            "realizedPnlUsd": format_e8(realized),
            "unrealizedPnlUsd": format_e8(unrealized),
            "feesUsd": format_e8(fees),
            "fundingUsd": format_e8(funding),
            "netPnlUsd": format_e8(realized + unrealized - fees + funding),
            "ranges": {span: format_e8(gain) for span, gain in gains.items()},
            "trades": trades,
            "winRatePct": win_rate,
        }

    def wallet_nav(self, address: str, query: NavQuery) -> Answer:
        """GET /v1/wallets/{address}/nav."""
        return Answer.ok(self.wallet_nav_body(address, query.range))

    def wallet_nav_body(self, address: str, span: str) -> dict[str, Any]:
        now = self.look()
        name, account = self._wallet(address)
        points = None if account is None else nav.series(self.machine.state, account, self.machine.feed, span, now)
        return {
            "address": name,
            "registered": account is not None,
            "range": span,
            "navUsd": "0" if points is None else format_e8(points[-1].nav),
            "series": None if points is None else [{"ts": at, "navUsd": format_e8(worth)} for at, worth in points],
        }

    def wallet_trades(self, address: str, query: WalletTradesQuery) -> Answer:
        """GET /v1/wallets/{address}/trades: newest first."""
        return Answer.ok(self.wallet_trades_body(address, query))

    def wallet_trades_body(self, address: str, query: WalletTradesQuery) -> dict[str, Any]:
        self.look()
        _, account = self._wallet(address)
        if account is None:
            return {"trades": [], "nextBefore": None}
        # What has not filled is an order, which is the owner's alone.
        filled = (trade for trade in pages.trades_before(account, query.before) if trade.filled)
        made = list(islice(filled, query.limit + 1))
        page = [public_trade(account, trade) for trade in made[: query.limit]]
        return {"trades": page, "nextBefore": page[-1]["seq"] if len(made) > query.limit else None}

    # ── Addresses ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wallet(self, address: str) -> tuple[str, Account | None]:
        """The address in its one spelling, and whose it is; Refused when it is none."""
        name = address.lower()
        if _ADDRESS.fullmatch(name) is None:
            raise Refused(invalid("address", "must be 0x and 40 hexadecimal digits", "0x and 40 hexadecimal digits"))
        state = self.machine.state
        account_id = self._address_book(state).get(name)
        return name, None if account_id is None else peek(state, account_id)

    def _address_book(self, state: State) -> dict[str, str]:
        """Address -> account id; accounts only ever come, so only the new ones are added."""
        known = self._known
        if known.state is not state:
            known = self._known = _Known(state)
        if known.count < len(state.accounts):
            for account in islice(peek_all(state), known.count, None):
                known.ids[account.address.lower()] = account.id
            known.count = len(state.accounts)
        return known.ids

    # ── Trades counted ──────────────────────────────────────────────────────────────────────────────────────────────

    def _tally(self, account: Account) -> tuple[int, int | float | None]:
        """(trades that filled, percent of the closing ones that gained); counted again only after the account has moved."""
        tallies = self._known.tallies
        kept = tallies.get(account.id)
        if kept is not None and kept[0] == account.event_seq:
            return kept[1], kept[2]
        filled = [trade for trade in pages.trades_before(account) if trade.filled]
        closing = [trade.realized for trade in filled if trade.realized is not None]
        won = sum(realized > 0 for realized in closing)
        rate: int | float | None = None
        if closing:
            rate = round(100 * won / len(closing), 2)
            rate = int(rate) if rate == int(rate) else rate
        if len(tallies) >= TALLIES_MAX:
            tallies.clear()
        tallies[account.id] = (account.event_seq, len(filled), rate)
        return len(filled), rate


def public_trade(account: Account, made: Trade) -> dict[str, Any]:
    """A trade as a stranger sees it: of one whose rest still waits, what has filled of it, as if that were all."""
    seen = views.trade(account, made) | HIDDEN_OF_TRADE
    return (
        seen if made.status != "open" else seen | {"size": seen["filledSize"], "fillStatus": "filled", "status": "done"}
    )


def public_positions(state: State, account: Account | None) -> list[dict[str, Any]]:
    """Positions as a stranger sees them."""
    return [] if account is None else [held | HIDDEN_OF_POSITION for held in views.positions(state, account)]
