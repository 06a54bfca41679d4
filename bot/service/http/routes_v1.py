"""The routes of the interface, one function each: read the request, call the operation, send its answer.

No rule, no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bot.service.http.gateway import Call, Endpoint, Rule, headers_of
from bot.service.operations.operations import Operations
from bot.service.security.auth import Access
from bot.service.views.responses import Answer
from bot.wire import base as wire
from bot.wire import guardian_requests, order_requests, queries, requests
from bot.wire.headers import CONFIRM_HEADER


class Router:
    """Every route of the service: the rule that the gateway applies, and the endpoint that it calls."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.endpoints: dict[tuple[str, str], Endpoint] = {}

    def route(
        self,
        method: str,
        path: str,
        access: Access,
        policy: str | None,
        *,
        body: type[wire.Request] | None = None,
        query: type[wire.Request] = queries.EmptyQuery,
        is_order: bool = False,
        keyed: bool = False,
        origins: frozenset[str] | None = None,
        metadata: str = "",
        is_rpc: bool = False,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare one route."""
        self.rules.append(Rule(method, path, access, policy, body, query, is_order, keyed, origins, metadata, is_rpc))

        def add(endpoint: Endpoint) -> Endpoint:
            self.endpoints[method, path] = endpoint
            return endpoint

        return add


def call_of(http: Request) -> Call:
    """The call that the gateway made from the request."""
    call = http.scope["call"]
    assert isinstance(call, Call)
    return call


class AnswerResponse(Response):
    """A response from an answer whose bytes and headers are complete."""

    def __init__(self, answer: Answer) -> None:
        self.status_code = answer.status
        self.body = answer.body
        self.background = None
        self.raw_headers = headers_of(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def respond(answer: Answer) -> Response:
    return AnswerResponse(answer)


EMPTY: Final = requests.EmptyRequest


def add_routes(router: Router, operations: Operations) -> None:
    """Add the routes of markets, accounts, orders and guardians."""
    _add_public(router, operations)
    _add_account(router, operations)
    _add_orders(router, operations)
    _add_guardians(router, operations)


def _add_public(router: Router, operations: Operations) -> None:
    route = router.route

    @route("GET", "/v1/start", Access.NONE, "public")
    async def start(http: Request) -> Response:
        return respond(operations.start())

    @route("GET", "/v1/system/status", Access.NONE, "public")
    async def system_status(http: Request) -> Response:
        return respond(operations.status(call_of(http).context))

    @route("GET", "/v1/markets", Access.NONE, "public", query=queries.MarketsQuery)
    async def markets(http: Request) -> Response:
        return respond(operations.markets(call_of(http).ask(queries.MarketsQuery)))

    @route("GET", "/v1/markets/{coin}/candles", Access.NONE, "public", query=queries.CandlesQuery)
    async def candles(http: Request) -> Response:
        return respond(operations.candles(http.path_params["coin"], call_of(http).ask(queries.CandlesQuery)))

    @route("GET", "/v1/markets/{coin}/book", Access.NONE, "public")
    async def order_book(http: Request) -> Response:
        return respond(operations.book(http.path_params["coin"]))

    @route("POST", "/v1/sandbox/accounts", Access.NONE, "accounts", body=requests.SandboxAccountRequest)
    async def open_account(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.open_account(call.read(requests.SandboxAccountRequest), call.context))


def _add_account(router: Router, operations: Operations) -> None:
    route = router.route

    @route("POST", "/v1/sandbox/accounts/reset", Access.OWNER, "default", body=requests.ResetRequest)
    async def reset_account(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.reset(call.principal, call.read(requests.ResetRequest), call.context))

    @route("GET", "/v1/account", Access.READ, "default")
    async def account(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.snapshot(call.principal, call.context))

    @route("GET", "/v1/limits", Access.READ, "default")
    async def limits(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.limits(call.principal, call.context))

    @route("GET", "/v1/events", Access.READ, "default", query=queries.EventsQuery)
    async def events(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.events(call.principal, call.ask(queries.EventsQuery), call.context))

    @route("GET", "/v1/trades", Access.READ, "default", query=queries.TradesQuery)
    async def trades(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.trades(call.principal, call.ask(queries.TradesQuery)))


def _add_orders(router: Router, operations: Operations) -> None:
    route = router.route
    order: dict[str, Any] = {"is_order": True, "keyed": True}

    @route("POST", "/v1/orders", Access.SHRINK, "orders", body=order_requests.OrderRequest, **order)
    async def place_order(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.place(call.principal, call.read(order_requests.OrderRequest), call.context))

    @route("GET", "/v1/orders", Access.READ, "default", query=queries.OrdersQuery)
    async def open_orders(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.open_orders(call.principal, call.ask(queries.OrdersQuery).coin))

    @route("DELETE", "/v1/orders", Access.SHRINK, "orders", body=order_requests.CancelCoinRequest)
    async def cancel_orders(http: Request) -> Response:
        call = call_of(http)
        return respond(
            operations.cancel_coin(call.principal, call.read(order_requests.CancelCoinRequest), call.context)
        )

    @route("DELETE", "/v1/orders/{oid}", Access.SHRINK, "orders", body=EMPTY)
    async def cancel_order(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.cancel(call.principal, http.path_params["oid"], call.context))

    @route("POST", "/v1/orders/confirm", Access.SHRINK, "orders", body=order_requests.ConfirmRequest, **order)
    async def confirm_order(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.confirm(call.principal, call.read(order_requests.ConfirmRequest), call.context))

    @route("POST", "/v1/orders/suggest", Access.READ, "default", body=order_requests.SuggestRequest)
    async def suggest_order(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.suggest(call.principal, call.read(order_requests.SuggestRequest), call.context))

    @route("POST", "/v1/positions/{market}/close", Access.SHRINK, "orders", body=order_requests.CloseRequest, **order)
    async def close_position(http: Request) -> Response:
        call = call_of(http)
        market = http.path_params["market"]
        return respond(operations.close(call.principal, market, call.read(order_requests.CloseRequest), call.context))


def _add_guardians(router: Router, operations: Operations) -> None:
    route = router.route

    @route("GET", "/v1/guardians", Access.READ, "default")
    async def guardians(http: Request) -> Response:
        return respond(operations.guardians(call_of(http).principal))

    @route("POST", "/v1/guardians", Access.SHRINK, "default", body=guardian_requests.GuardianRequest, keyed=True)
    async def arm_guardian(http: Request) -> Response:
        call = call_of(http)
        request = call.read(guardian_requests.GuardianRequest)
        return respond(operations.arm(call.principal, request, call.context, http.headers.get(CONFIRM_HEADER)))

    @route("DELETE", "/v1/guardians/{id}", Access.TRADE, "default", body=EMPTY)
    async def disarm_guardian(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.disarm(call.principal, http.path_params["id"], call.context))

    @route("POST", "/v1/account/kill", Access.TRADE, "kill", body=requests.KillRequest, is_order=True, keyed=True)
    async def kill(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.kill(call.principal, call.read(requests.KillRequest), call.context))

    @route("POST", "/v1/heartbeat", Access.SHRINK, "heartbeat", body=requests.HeartbeatRequest)
    async def heartbeat(http: Request) -> Response:
        return respond(operations.heartbeat(call_of(http).principal))
