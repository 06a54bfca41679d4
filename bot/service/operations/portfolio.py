"""The account in words for people: portfolio, home, funding, and the changelog of the interface."""

from __future__ import annotations

from typing import Any, Final

from bot.money import format_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import ServiceAnswer
from bot.service.operations.executor import OperationExecutor
from bot.service.security.auth import Principal
from bot.venue.accounting import ledger, limits
from bot.venue.model.state import DAY_MS, VenueAccount
from bot.wire.headers import API_VERSION, DESCRIPTION_VERSION, LIMITS_VERSION

# the interface's "portfolio slice"
HOME_POSITIONS: Final = 5
# the bound on a reset's balanceUsd
RESET_MAX_USD: Final = "100000"

# Newest first.
CHANGES: Final = (
    {
        "version": API_VERSION,
        "date": API_VERSION,
        "limitsVersion": LIMITS_VERSION,
        "changes": [
            (
                f"Interface description {DESCRIPTION_VERSION}: stocks, bonds, crypto and event markets through one"
                " order route."
            ),
            "Limits version 2: no notional cap by default; self-limits in /v1/settings, caps on each key.",
            "Orders: brackets, inline guardians, dry run with a single-use confirmToken, Idempotency-Key.",
            "Guardians: trailing_stop, max_hold, account_drawdown, dead_man_switch, schedule, kill_switch.",
            "Events: cursor feed, stream and signed webhooks in one gapless order.",
        ],
    },
)


class PortfolioOperations(OperationExecutor):
    """The answers for portfolio, home and funding of an account."""

    def changelog(self) -> ServiceAnswer:
        """GET /v1/changelog."""
        return ServiceAnswer.ok(
            {"currentVersion": API_VERSION, "limitsVersion": LIMITS_VERSION, "entries": [dict(e) for e in CHANGES]}
        )

    def portfolio(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/portfolio."""
        now = self.refresh()
        state, account = self.machine.state, self.account(principal)
        today = account.day_realized if account.day == now // DAY_MS else 0
        return ServiceAnswer.ok(
            {
                "address": account.address,
                "accountValueUsd": format_e8(ledger.account_value(state, account)),
                "balanceUsd": format_e8(account.balance),
                "freeMarginUsd": format_e8(ledger.free_margin(state, account)),
                "marginUsedUsd": format_e8(ledger.margin_used(state, account)),
                "unrealizedPnlUsd": format_e8(ledger.unrealized(state, account)),
                "realizedPnlTodayUsd": format_e8(today),
                "positions": account_bodies.positions(state, account),
                "funding": self._funding(account),
                "guidance": self._guidance(account),
                "webWatch": self.web_watch(account),
            }
        )

    def home(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/home."""
        self.refresh()
        state, account = self.machine.state, self.account(principal)
        largest = sorted(account.positions.values(), key=lambda held: (-limits.worth(state, held), held.coin))
        return ServiceAnswer.ok(
            {
                "nickname": account.name,
                "wallet": {"address": account.address, "environment": "sandbox"},
                "portfolio": {
                    "accountValueUsd": format_e8(ledger.account_value(state, account)),
                    "unrealizedPnlUsd": format_e8(ledger.unrealized(state, account)),
                    "openPositions": len(account.positions),
                    "positions": [account_bodies.position(state, account, held) for held in largest[:HOME_POSITIONS]],
                },
                "guidance": self._guidance(account),
                "webWatch": self.web_watch(account),
            }
        )

    def funding(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/funding."""
        self.refresh()
        return ServiceAnswer.ok(self._funding(self.account(principal)))

    def web_watch(self, account: VenueAccount) -> str:
        """The URL of this account's public page."""
        return f"{self.base_url}/watch/{account.address}"

    def _funding(self, account: VenueAccount) -> dict[str, Any]:
        return {
            "environment": "sandbox",
            "playMoney": True,
            "address": account.address,
            "instructions": [
                "This is a sandbox: the balance is play money and cannot be withdrawn.",
                (
                    "To set the balance anew, send POST /v1/sandbox/accounts/reset with balanceUsd; trades, events and"
                    " guardians are wiped."
                ),
            ],
            "methods": [
                {
                    "kind": "sandbox_reset",
                    "method": "POST",
                    "path": "/v1/sandbox/accounts/reset",
                    "maxUsd": RESET_MAX_USD,
                }
            ],
            "withdrawals": False,
        }

    def _guidance(self, account: VenueAccount) -> list[str]:
        """Suggestions for the account's owner, the most urgent first."""
        state = self.machine.state
        health = account_bodies.health(state, account)
        advice: list[str] = []
        if health["status"] == "liquidating":
            advice.append("A liquidation is under way: add margin or reduce positions.")
        elif health["marginRatio"] is not None and health["marginRatio"] > 0.5:
            advice.append("More than half of the margin above liquidation is used: reduce positions or leverage.")
        if health["blockedBy"]:
            advice.append(f"Opening is blocked by {', '.join(health['blockedBy'])}; see GET /v1/guardians.")
        if health["unprotected"]:
            coins = ", ".join(health["unprotected"])
            advice.append(f"The service has no stop for {coins}: arm a trailing_stop guardian, or close.")
        if not any(guardian.spec.type == "dead_man_switch" for guardian in account.guardians.values()):
            advice.append("No dead-man switch is armed: POST /v1/guardians with type dead_man_switch, then heartbeats.")
        if not account.positions:
            advice.append(
                "No open positions: GET /v1/markets shows what trades; POST /v1/orders/suggest sizes an order."
            )
        return advice
