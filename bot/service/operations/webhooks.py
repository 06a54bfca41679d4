"""Operations on webhooks, for owners: register, list, remove.

The dispatcher sends. The signing secret is shown once, at creation.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any, Final

from bot.errors import Refusal
from bot.service.bodies.event_bodies import unknown_type
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid
from bot.service.operations.executor import Context, OperationExecutor, expired
from bot.service.security.auth import Principal
from bot.service.security.rate_limits import RateLimits
from bot.service.security.secret_encryption import SecretCipher
from bot.service.state_machine.machine import Machine
from bot.service.webhooks.address_policy import (
    RESOLVE_SECONDS,
    Resolve,
    TargetRefused,
    addresses_of,
    system_resolve,
    target_of,
)
from bot.service.webhooks.outbox import Outbox
from bot.venue.model.commands import AddWebhook, RemoveWebhook
from bot.venue.model.state import VenueWebhook
from bot.wire import signing
from bot.wire.requests import WebhookRequest
from bot.wire.vocabulary import EVENT_FILTERS

Body = dict[str, Any]

# A secret in another form than the libraries of Standard Webhooks take.
CONVERTED: Final[Body] = {
    "code": "secret_converted",
    "message": (
        "the secret of this answer has the form whsec_ and base64, which the libraries of Standard Webhooks take:"
        " verify with it"
    ),
}
_WEBHOOK_ID: Final = re.compile(r"whk_[0-9]{1,20}", re.ASCII)


class WebhookOperations(OperationExecutor):
    """The webhooks of one account. `private`: the service is on loopback, so receivers on this machine are allowed."""

    def __init__(
        self,
        machine: Machine,
        rate_limits: RateLimits,
        base_url: str,
        *,
        outbox: Outbox,
        cipher: SecretCipher,
        private: bool,
        resolve: Resolve = system_resolve,
    ) -> None:
        super().__init__(machine, rate_limits, base_url)
        self._outbox = outbox
        self._cipher = cipher
        self._private = private
        self._resolve = resolve

    async def check_names(self, url: str) -> None:
        """Refuse an address that the service must not call.

        A name that does not resolve is allowed: every attempt resolves again.
        """
        try:
            target = target_of(url, private=self._private)
            async with asyncio.timeout(RESOLVE_SECONDS):
                await addresses_of(target, self._resolve, private=self._private)
        except TargetRefused as no:
            raise OperationRefused(invalid("url", str(no), self._allowed())) from None
        # TimeoutError is an OSError.
        except (OSError, UnicodeError):
            return

    def _allowed(self) -> str:
        if self._private:
            return "http or https, a public address or one of this machine or network"
        return "https, port 443, a public address"

    def create(self, principal: Principal, request: WebhookRequest, context: Context) -> ServiceAnswer:
        """POST /v1/webhooks. Call `check_names` first."""
        types = None if not request.types else tuple(dict.fromkeys(request.types))
        unknown = [unknown_type(name) for name in types or () if name not in EVENT_FILTERS]
        secret = request.secret or signing.secret_of(secrets.token_bytes(signing.GENERATED_BYTES))
        try:
            key = signing.key_of(secret)
        except ValueError as error:
            raise OperationRefused(invalid("secret", str(error), "8..128 characters, or whsec_ and base64")) from None
        form = signing.secret_of(key)
        notes = unknown if form == secret else [*unknown, CONVERTED]
        warnings = {"warnings": notes} if notes else {}
        encrypted = self._cipher.encrypt(key, principal.account)
        # The fingerprint covers the secret too: a plain digest would let a reader guess short secrets.
        context = context._replace(fingerprint=self._cipher.mark(context.fingerprint))

        def answer_body(hook: VenueWebhook, now: int) -> Body:
            self._outbox.add(hook)
            return {**self._view(hook), "secret": form, **warnings}

        return self.decide(
            principal,
            context,
            lambda now: expired(context, now) or AddWebhook(principal.account, request.url, types, encrypted),
            answer_body,
            replay=lambda hook, now: {**self._view(hook), "secret": None, **warnings},
        )

    def webhooks(self, principal: Principal) -> ServiceAnswer:
        """GET /v1/webhooks: oldest first."""
        self.refresh()
        hooks = self.machine.state.webhooks.values()
        return ServiceAnswer.ok({"webhooks": [self._view(hook) for hook in hooks if hook.account == principal.account]})

    def remove(self, principal: Principal, webhook: str, context: Context) -> ServiceAnswer:
        """DELETE /v1/webhooks/{id}: also deletes its pending deliveries."""
        if not _WEBHOOK_ID.fullmatch(webhook):
            # The text may be the secret, sent by mistake, so it goes into no log and no response.
            return self.refusal(Refusal("not_found", "no webhook has this id; webhook ids begin with whk_"), context)

        def answer_body(hook: VenueWebhook, now: int) -> Body:
            self._outbox.drop(hook.id)
            return {"id": hook.id, "revoked": True}

        return self.decide(principal, context, lambda now: RemoveWebhook(principal.account, webhook), answer_body)

    def _view(self, hook: VenueWebhook) -> Body:
        health = self._outbox.health(hook.id)
        return {
            "id": hook.id,
            "url": hook.url,
            "types": None if hook.types is None else list(hook.types),
            "status": "active" if hook.disabled is None else "disabled",
            "createdAt": hook.created_ms,
            "lastDeliveryAt": None if health is None else health.last_ms,
            "lastStatus": None if health is None else health.last_status,
            "failures": 0 if health is None else health.failures,
            "disabledReason": hook.disabled,
        }
