"""The routes of /v1: each operation of the interface with the method that answers it. No rule, no state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import signature
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bot.service.bodies.responses import ServiceAnswer
from bot.service.http.gateway import Call, Endpoint, check_still_valid, headers_of
from bot.service.operations.operations import Operations
from bot.service.operations.webhooks import WebhookOperations
from bot.wire import interface
from bot.wire.guardian_requests import GuardianRequest
from bot.wire.headers import CONFIRM_HEADER
from bot.wire.interface import Operation
from bot.wire.queries import OrdersQuery
from bot.wire.requests import WebhookRequest

# What a method gets for a parameter of this name; every other parameter is a name in the path.
ARGUMENTS: Final[Mapping[str, Callable[[Call], Any]]] = {
    "principal": lambda call: call.principal,
    "context": lambda call: call.context,
    "request": lambda call: call.body,
    "query": lambda call: call.query,
}


class Router:
    """Every route of the service: the operation that the gateway checks, and the endpoint that it calls."""

    def __init__(self) -> None:
        self.rules: list[Operation[Any]] = []
        self.endpoints: dict[tuple[str, str], Endpoint] = {}

    def route(self, operation: Operation[Any]) -> Callable[[Endpoint], Endpoint]:
        """Declare the endpoint of an operation."""
        self.rules.append(operation)

        def add(endpoint: Endpoint) -> Endpoint:
            self.endpoints[operation.method, operation.path] = endpoint
            return endpoint

        return add

    def serve(self, operation: Operation[Any], method: Callable[..., ServiceAnswer | Awaitable[ServiceAnswer]]) -> None:
        """Answer an operation with a method. Its parameters name what it gets: ARGUMENTS, or the names in the path."""
        places, getters = iter(operation.places), []
        for name, parameter in signature(method).parameters.items():
            model = {"request": operation.body, "query": operation.query}.get(name)
            assert model is None or parameter.annotation in (model, model.__name__), f"{operation.name}: {name}"
            getters.append(ARGUMENTS.get(name) or _place(next(places)))

        @self.route(operation)
        async def endpoint(http: Request) -> Response:
            call = call_of(http)
            answer = method(*[get(call) for get in getters])
            if not isinstance(answer, ServiceAnswer):
                answer = await answer
            return respond(answer if answer.later is None else await answer.later())


def _place(name: str) -> Callable[[Call], Any]:
    return lambda call: call.places[name]


def call_of(http: Request) -> Call:
    """The call that the gateway made from the request."""
    call = http.scope["call"]
    assert isinstance(call, Call)
    return call


class AnswerResponse(Response):
    """A response from an answer whose bytes and headers are complete."""

    def __init__(self, answer: ServiceAnswer) -> None:
        self.status_code = answer.status
        self.body = answer.body
        self.background = None
        self.raw_headers = headers_of(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def respond(answer: ServiceAnswer) -> Response:
    return AnswerResponse(answer)


def add_routes(router: Router, service: Operations) -> None:
    """Add the routes of markets, accounts, orders, guardians, sign-in and keys."""
    serve = router.serve
    serve(interface.START, service.start)
    serve(interface.SYSTEM_STATUS, service.status)
    serve(interface.MARKETS, service.markets)
    serve(interface.CANDLES, service.candles)
    serve(interface.ORDER_BOOK, service.book)
    serve(interface.OPEN_ACCOUNT, service.open_account)
    serve(interface.RESET_ACCOUNT, service.reset)
    serve(interface.ACCOUNT, service.snapshot)
    serve(interface.LIMITS, service.limits)
    serve(interface.EVENTS, service.events)
    serve(interface.TRADES, service.trades)
    serve(interface.PLACE_ORDER, service.place)

    @router.route(interface.OPEN_ORDERS)
    async def open_orders(http: Request) -> Response:
        call = call_of(http)
        return respond(service.open_orders(call.principal, call.ask(OrdersQuery).coin))

    serve(interface.CANCEL_ORDERS, service.cancel_coin)
    serve(interface.CANCEL_ORDER, service.cancel)
    serve(interface.CONFIRM_ORDER, service.confirm)
    serve(interface.SUGGEST_ORDER, service.suggest)
    serve(interface.CLOSE_POSITION, service.close)
    serve(interface.GUARDIANS, service.guardians)

    @router.route(interface.ARM_GUARDIAN)
    async def arm_guardian(http: Request) -> Response:
        call = call_of(http)
        confirmation = http.headers.get(CONFIRM_HEADER)
        return respond(service.arm(call.principal, call.read(GuardianRequest), call.context, confirmation))

    serve(interface.DISARM_GUARDIAN, service.disarm)
    serve(interface.KILL, service.kill)
    serve(interface.HEARTBEAT, service.heartbeat)
    _add_identity(router, service)


def _add_identity(router: Router, service: Operations) -> None:
    """Everything under /v1/auth, /v1/keys, /v1/oauth and /v1/settings."""
    serve = router.serve
    serve(interface.COUNTRIES, service.countries)
    serve(interface.SEND_CODE, service.send_code)
    serve(interface.VERIFY, service.verify)
    serve(interface.END_SESSION, service.end_session)
    serve(interface.CREATE_KEY, service.create_key)
    serve(interface.KEYS, service.keys)
    serve(interface.REVOKE_KEY, service.revoke_key)
    serve(interface.SETTINGS, service.settings)
    serve(interface.CHANGE_SETTINGS, service.change_settings)

    @router.route(interface.START_DEVICE)
    async def start_device(http: Request) -> Response:
        return respond(service.start_device(call_of(http).context, http.headers.get("user-agent", "")))

    serve(interface.DEVICE_TOKEN, service.device_token)


def add_webhooks(router: Router, webhooks: WebhookOperations) -> None:
    """Add the routes of webhooks."""

    @router.route(interface.CREATE_WEBHOOK)
    async def create_webhook(http: Request) -> Response:
        call = call_of(http)
        request = call.read(WebhookRequest)
        generation = webhooks.machine.generation
        await webhooks.check_names(request.url)
        check_still_valid(webhooks.machine, generation, call.principal)
        return respond(webhooks.create(call.principal, request, call.context))

    router.serve(interface.WEBHOOKS, webhooks.webhooks)
    router.serve(interface.REMOVE_WEBHOOK, webhooks.remove)


def add_reads(router: Router, service: Operations) -> None:
    """Add the routes that show an account or a public wallet."""
    serve = router.serve
    serve(interface.CHANGELOG, service.changelog)
    serve(interface.PORTFOLIO, service.portfolio)
    serve(interface.HOME, service.home)
    serve(interface.FUNDING, service.funding)
    serve(interface.WALLET, service.wallet)
    serve(interface.WALLET_POSITIONS, service.wallet_positions)
    serve(interface.WALLET_PNL, service.wallet_pnl)
    serve(interface.WALLET_NAV, service.wallet_nav)
    serve(interface.WALLET_TRADES, service.wallet_trades)
