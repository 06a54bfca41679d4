"""Routes of the views: changelog, portfolio, home, funding and the public wallets. Reads only."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bot.service.http.routes_v1 import Router, call_of, respond
from bot.service.operations.operations import Operations
from bot.service.security.auth import Access
from bot.wire import queries


def add_views(router: Router, operations: Operations) -> None:
    """The routes that show an account or a public wallet."""
    route = router.route

    @route("GET", "/v1/changelog", Access.NONE, "public")
    async def changelog(http: Request) -> Response:
        return respond(operations.changelog())

    @route("GET", "/v1/portfolio", Access.READ, "default")
    async def portfolio(http: Request) -> Response:
        return respond(operations.portfolio(call_of(http).principal))

    @route("GET", "/v1/home", Access.READ, "default")
    async def home(http: Request) -> Response:
        return respond(operations.home(call_of(http).principal))

    @route("GET", "/v1/funding", Access.READ, "default")
    async def funding(http: Request) -> Response:
        return respond(operations.funding(call_of(http).principal))

    @route("GET", "/v1/wallets/{address}", Access.NONE, "public")
    async def wallet(http: Request) -> Response:
        return respond(operations.wallet(http.path_params["address"]))

    @route("GET", "/v1/wallets/{address}/positions", Access.NONE, "public")
    async def wallet_positions(http: Request) -> Response:
        return respond(operations.wallet_positions(http.path_params["address"]))

    @route("GET", "/v1/wallets/{address}/pnl", Access.NONE, "public")
    async def wallet_pnl(http: Request) -> Response:
        return respond(operations.wallet_pnl(http.path_params["address"]))

    @route("GET", "/v1/wallets/{address}/nav", Access.NONE, "public", query=queries.NavQuery)
    async def wallet_nav(http: Request) -> Response:
        return respond(operations.wallet_nav(http.path_params["address"], call_of(http).ask(queries.NavQuery)))

    @route("GET", "/v1/wallets/{address}/trades", Access.NONE, "public", query=queries.WalletTradesQuery)
    async def wallet_trades(http: Request) -> Response:
        query = call_of(http).ask(queries.WalletTradesQuery)
        return respond(operations.wallet_trades(http.path_params["address"], query))
