"""The kill switch: cancels entries, closes every position with `flatten`, and blocks new positions until the owner
removes it.
"""

from __future__ import annotations

from typing import Any

from bot.service.operations.executor import Context, OperationExecutor
from bot.service.security.auth import Principal
from bot.service.views import account_views
from bot.service.views.responses import ServiceAnswer
from bot.venue.model.commands import Kill
from bot.venue.model.state import event_id
from bot.venue.storage import pages
from bot.venue.triggers.guardian_actions import KillEffects
from bot.wire.requests import KillRequest


class KillOperations(OperationExecutor):
    """POST /v1/account/kill."""

    def kill(self, principal: Principal, request: KillRequest, context: Context) -> ServiceAnswer:
        """Stop now, as a kill_switch guardian does.

        The account's state is never a reason to refuse. orderSubmitted says whether anything was closed or canceled.
        """

        def view(killed: KillEffects, now: int) -> Any:
            state = self.machine.state
            account = self.account(principal)
            return {
                "guardian": account_views.guardian(account, killed.guardian),
                "flatten": request.flatten,
                "canceledOids": list(killed.canceled),
                "trades": [account_views.trade(account, pages.trade_of(account, trade)) for trade in killed.trades],
                "positions": account_views.positions(state, account),
                "orderSubmitted": bool(killed.canceled or killed.trades),
                "lastEventId": event_id(account.event_seq),
            }

        return self.decide(
            principal,
            context,
            lambda now: Kill(
                principal.account, request.flatten, context.idempotency_key, context.expires_ms, principal.key
            ),
            view,
        )
