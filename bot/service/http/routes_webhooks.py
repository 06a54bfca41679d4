"""The routes of webhooks: read the request, call the operation, send its answer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bot.service.http.gateway import check_still_valid
from bot.service.http.routes_v1 import EMPTY, Router, call_of, respond
from bot.service.operations.webhooks import WebhookOperations
from bot.service.security.auth import Access
from bot.wire.requests import WebhookRequest


def add_webhooks(router: Router, webhook_operations: WebhookOperations) -> None:
    """The routes of webhooks."""
    route = router.route

    @route("POST", "/v1/webhooks", Access.OWNER, "default", body=WebhookRequest, keyed=True)
    async def create_webhook(http: Request) -> Response:
        call = call_of(http)
        request = call.read(WebhookRequest)
        generation = webhook_operations.machine.generation
        await webhook_operations.check_names(request.url)
        check_still_valid(webhook_operations.machine, generation, call.principal)
        return respond(webhook_operations.create(call.principal, request, call.context))

    @route("GET", "/v1/webhooks", Access.OWNER, "default")
    async def webhooks(http: Request) -> Response:
        return respond(webhook_operations.webhooks(call_of(http).principal))

    @route("DELETE", "/v1/webhooks/{id}", Access.OWNER, "default", body=EMPTY)
    async def remove_webhook(http: Request) -> Response:
        call = call_of(http)
        return respond(webhook_operations.remove(call.principal, http.path_params["id"], call.context))
