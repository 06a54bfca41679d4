"""Operations on accounts: open, reset, snapshot, limits, events, trades.

Every read uses the mark prices of its instant.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final

from bot.errors import Refusal
from bot.model.events import AccountChanged, Event
from bot.money import format_e8
from bot.service.bodies import account_bodies, event_bodies
from bot.service.bodies.event_bodies import unknown_type
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.operations.executor import Context, OperationExecutor
from bot.service.operations.orders import PLAN_TTL_REAL_MS, exact
from bot.service.security.auth import OWNER_SCOPES, Minted, Principal, mint
from bot.venue.accounting import ledger
from bot.venue.model.commands import OpenAccount, ResetAccount
from bot.venue.model.state import (
    EVENTS_KEPT,
    GUARDIANS_MAX,
    KEYS_MAX,
    MIN_NOTIONAL,
    OPEN_ORDERS_MAX,
    VenueAccount,
    VenueKey,
    event_id,
)
from bot.venue.storage import pages
from bot.wire.errors import FIELDS_SHOWN_MAX
from bot.wire.headers import LIMITS_VERSION
from bot.wire.queries import EventsQuery, TradesQuery
from bot.wire.requests import ResetRequest, SandboxAccountRequest

BODY_BYTES_MAX: Final = 64 * 1024
WEBHOOKS_MAX: Final = 20
IDEMPOTENCY_TTL_MS: Final = 7 * 86_400_000

_EVENT_ID: Final = re.compile(r"evt_([0-9]{1,18})", re.ASCII)


class AccountOperations(OperationExecutor):
    """Opens, resets and reads accounts."""

    def open_account(self, request: SandboxAccountRequest, context: Context) -> ServiceAnswer:
        """POST /v1/sandbox/accounts."""
        now = self.machine.catch_up()
        balance = exact(request.starting_balance_usd, "startingBalanceUsd")
        if balance <= 0:
            raise OperationRefused(invalid("startingBalanceUsd", "must be at least 0.00000001", "> 0"))
        account, minted = self.new_account(request.name, balance, key_name="owner")
        return ServiceAnswer.ok(
            {
                "apiKey": minted.secret,
                "keyId": minted.key_id,
                "accountId": account.id,
                "address": account.address,
                "name": account.name,
                "balanceUsd": format_e8(account.balance),
                "environment": "sandbox",
                "scopes": list(OWNER_SCOPES),
                "lastEventId": event_id(account.event_seq),
                "createdAt": now,
                "apis": self.apis(),
                "docs": self.docs,
            }
        )

    def new_account(self, name: str | None, balance: int, *, key_name: str) -> tuple[VenueAccount, Minted]:
        """Open an account with an owner's key."""
        account_id = f"acc_{self.machine.state.account_seq + 1:08d}"
        key, minted = self.new_key(account_id, key_name)
        command = OpenAccount(account_id, f"0x{secrets.token_hex(20)}", name, balance, key)
        account = self.machine.run(command)
        assert isinstance(account, VenueAccount)
        return account, minted

    def new_key(self, account: str, name: str) -> tuple[VenueKey, Minted]:
        """An owner's key that is not in the state yet."""
        minted = mint(len(self.machine.state.keys) + 1)
        now = self.machine.clock.now_ms()
        return VenueKey(
            minted.key_id, account, name, minted.prefix, minted.digest, OWNER_SCOPES, now, "sandbox", owner=True
        ), minted

    def reset(self, principal: Principal, request: ResetRequest, context: Context) -> ServiceAnswer:
        """POST /v1/sandbox/accounts/reset."""
        balance = None if request.balance_usd is None else exact(request.balance_usd, "balanceUsd")

        def answer_body(account: VenueAccount, now: int) -> Any:
            return {
                "accountId": account.id,
                "address": account.address,
                "balanceUsd": format_e8(account.balance),
                "environment": "sandbox",
                "epoch": account.epoch,
                "lastEventId": event_id(account.event_seq),
                "resetAt": now,
            }

        return self.decide(principal, context, lambda now: ResetAccount(principal.account, balance), answer_body)

    # ── Reads ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self, principal: Principal, context: Context) -> ServiceAnswer:
        """GET /v1/account: everything at one instant."""
        now = self.refresh()
        state, account = self.machine.state, self.account(principal)
        limits = self._limits(principal, context, now)
        exchange = account_bodies.exchange(account)
        return ServiceAnswer.ok(
            {
                "accountId": account.id,
                "address": account.address,
                "epoch": account.epoch,
                "nickname": account.name,
                "environment": account_bodies.environment(account),
                "accountValueUsd": format_e8(ledger.account_value(state, account)),
                "balanceUsd": format_e8(account.balance),
                "freeMarginUsd": format_e8(ledger.free_margin(state, account)),
                "marginUsedUsd": format_e8(ledger.margin_used(state, account)),
                "unrealizedPnlUsd": format_e8(ledger.unrealized(state, account)),
                "positions": account_bodies.positions(state, account),
                "orders": account_bodies.orders(state, account),
                "guardians": account_bodies.guardians(account),
                "limits": limits,
                "budget": limits["account"],
                "credit": account_bodies.credit(state, account),
                "lastEventId": event_id(account.event_seq),
                "health": account_bodies.health(state, account),
                "serverTime": now,
                **({} if exchange is None else {"exchange": exchange}),
            }
        )

    def limits(self, principal: Principal, context: Context) -> ServiceAnswer:
        """GET /v1/limits."""
        return ServiceAnswer.ok(self._limits(principal, context, self.refresh()))

    def _limits(self, principal: Principal, context: Context, now: int) -> dict[str, Any]:
        state, account = self.machine.state, self.account(principal)
        return {
            "limitsVersion": LIMITS_VERSION,
            "platform": self.platform(),
            "account": account_bodies.account_limits(state, account, now),
            "key": None
            if (key := self.key(principal)) is None
            else account_bodies.key_limits(state, account, key, now),
            "rate": self.rate_limits.records(principal.caller, context.ip),
        }

    def _least_notional(self) -> int:
        """The lowest minimum of all markets, scaled USD."""
        return min((market.spec.min_notional for market in self.machine.state.markets.values()), default=MIN_NOTIONAL)

    def platform(self) -> dict[str, Any]:
        """The limits that apply to every account."""
        return {
            "maxNotionalUsd": None,
            "minNotionalUsd": format_e8(self._least_notional()),
            "usdAmountMax": "1000000",
            "leverageMax": 50,
            "slippageBpsMax": 1000,
            "slippageBpsDefault": {"main": 100, "stocks": 200, "events": 500, "close": 500},
            "driftBpsDefault": 50,
            "driftBpsMax": 5000,
            "planTtlMs": int(PLAN_TTL_REAL_MS * (self.machine.clock.speed or 1)),
            "heartbeatSecondsMin": 60,
            "heartbeatSecondsMax": 86_400,
            "guardianSecondsMin": 60,
            "openOrdersMax": OPEN_ORDERS_MAX,
            "guardiansMax": GUARDIANS_MAX,
            "keysMax": KEYS_MAX,
            "webhooksMax": WEBHOOKS_MAX,
            "eventsKept": EVENTS_KEPT,
            "idempotencyTtlMs": IDEMPOTENCY_TTL_MS,
            "bodyBytesMax": BODY_BYTES_MAX,
        }

    def apis(self) -> dict[str, Any]:
        base = self.base_url
        return {
            "rest": {"baseUrl": base, "openapi": f"{base}/openapi.json", "docs": self.docs},
            "mcp": {"url": f"{base}/mcp", "protocolVersions": ["2026-07-28", "2025-11-25"]},
        }

    def events(self, principal: Principal, query: EventsQuery, context: Context) -> ServiceAnswer:
        """GET /v1/events."""
        self.refresh()
        account = self.account(principal)
        first = account.events_first
        start = first - 1 if query.since is None else self.cursor_seq(account, query.since)
        page: list[dict[str, Any]] = []
        examined = start
        wanted = query.filters
        for happened in pages.after(account, start):
            examined = happened.seq
            if wanted is not None:
                kind, subtype = event_bodies.kind_of(happened)
                if kind not in wanted and f"{kind}.{subtype}" not in wanted:
                    continue
            page.append(event_bodies.event(happened))
            if len(page) == query.limit:
                break
        last = event_id(examined) if examined > start or query.since is None else query.since
        unknown = [unknown_type(name) for name in query.unknown_types[:FIELDS_SHOWN_MAX]]
        return ServiceAnswer.ok({"events": page, "lastEventId": last} | ({"warnings": unknown} if unknown else {}))

    def cursor_seq(self, account: VenueAccount, since: str, *, name: str = "since") -> int:
        """The event number of a cursor.

        Refused if the text is not an event id, or with 410 if the feed does not have it.
        """
        form = _EVENT_ID.fullmatch(since)
        if form is None:
            raise OperationRefused(invalid(name, "must be an event id", "evt_ and digits"))
        at = int(form[1])
        lost = cursor_lost(account, at)
        if lost is not None:
            raise OperationRefused(lost, 410)
        return at

    def trades(self, principal: Principal, query: TradesQuery) -> ServiceAnswer:
        """GET /v1/trades: newest first."""
        self.refresh()
        account = self.account(principal)
        coin = None if query.coin is None else self.coin(query.coin)
        rows: list[dict[str, Any]] = []
        more = False
        for trade in pages.trades_before(account, query.before):
            if coin is not None and trade.coin != coin:
                continue
            if len(rows) == query.limit:
                more = True
                break
            rows.append(account_bodies.trade(account, trade))
        return ServiceAnswer.ok({"trades": rows, "nextBefore": rows[-1]["seq"] if rows and more else None})


def cursor_lost(account: VenueAccount, at: int) -> Refusal | None:
    """Why a reader cannot continue after event number `at`, or None."""
    before = account.events_first - 1
    if before < at <= account.event_seq:
        return None
    # A cursor just before the oldest event is valid if older events expired, but not if a reset wiped them.
    if at == before and ((first := pages.oldest(account)) is None or not _is_reset(first)):
        return None
    newest = event_id(account.event_seq)
    text = f"no event {event_id(at)} in this account's feed: it was wiped by a reset, or it never existed"
    fix = {"action": "resync", "lastEventId": newest}
    return Refusal("not_found", text, fix=fix, details={"lastEventId": newest, "epoch": account.epoch})


def feed_replaced(account: VenueAccount) -> Refusal:
    """The refusal for a reader of the feed before the service was restored."""
    newest = event_id(account.event_seq)
    text = "the service was restored to another state: events after the restored state are void"
    fix = {"action": "resync", "lastEventId": newest}
    return Refusal("not_found", text, fix=fix, details={"lastEventId": newest, "epoch": account.epoch})


def _is_reset(happened: Event) -> bool:
    return isinstance(happened, AccountChanged) and happened.subtype == "reset"
