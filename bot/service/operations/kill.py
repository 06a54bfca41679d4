"""The kill switch: cancels entries, closes every position with `flatten`, and blocks new positions until the owner
removes it.
"""

from __future__ import annotations

from typing import Any

from bot.service.bodies import account_bodies
from bot.service.bodies.responses import ServiceAnswer
from bot.service.operations.executor import Context, OperationExecutor
from bot.service.security.auth import Principal
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

        def answer_body(killed: KillEffects, now: int) -> Any:
            state = self.machine.state
            account = self.account(principal)
            return {
                "guardian": account_bodies.guardian(account, killed.guardian),
                "flatten": request.flatten,
                "canceledOids": list(killed.canceled),
                "trades": [account_bodies.trade(account, pages.trade_of(account, trade)) for trade in killed.trades],
                "positions": account_bodies.positions(state, account),
                "orderSubmitted": bool(killed.canceled or killed.trades),
                "lastEventId": event_id(account.event_seq),
            }

        return self.decide(
            principal,
            context,
            lambda now: Kill(
                principal.account, request.flatten, context.idempotency_key, context.expires_ms, principal.key
            ),
            answer_body,
        )
