"""The port of the service's own operations in this process: every request has a stored answer under its key, as over
HTTP, and every event page is the service's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from bot.backtest.engine.local_port import LocalPort
from bot.service.operations.executor import Context
from bot.wire import CloseRequest, EventsPage, OrderRequest, OrderResult, PlanResult
from bot.wire.order_requests import ConfirmRequest
from bot.wire.queries import EventsQuery


class ServicePort(LocalPort):
    """Like LocalPort, but the requests of every order go through the service's operations too."""

    # requests of orders, which number the request ids
    _requests = 0

    # -- orders, by the service's operations

    async def plan(self, request: OrderRequest, *, key: str) -> PlanResult:
        return self._ask(
            PlanResult,
            lambda: self.operations.place(self.principal, request, self._context(request.body())),
            reads=True,
        )

    async def confirm(self, token: str, *, key: str, expires_at_ms: int | None = None) -> OrderResult:
        request = ConfirmRequest(confirm_token=token)
        context = self._context(request.body(), key, expires_at_ms)
        return self._ask(OrderResult, lambda: self.operations.confirm(self.principal, request, context))

    async def place(self, request: OrderRequest, *, key: str | None, expires_at_ms: int | None = None) -> OrderResult:
        context = self._context(request.body(), key, expires_at_ms)
        return self._ask(OrderResult, lambda: self.operations.place(self.principal, request, context))

    async def close(
        self, market: str, request: CloseRequest, *, key: str | None, expires_at_ms: int | None = None
    ) -> OrderResult:
        context = self._context(market.encode() + request.body(), key, expires_at_ms)
        return self._ask(OrderResult, lambda: self.operations.close(self.principal, market, request, context))

    def _context(self, body: bytes, key: str | None = None, expires_ms: int | None = None) -> Context:
        self._requests += 1
        return Context(f"req_{self._requests:012d}", key, expires_ms, hashlib.sha256(body).hexdigest(), is_order=True)

    # -- reads

    async def events(self, since: str | None, *, limit: int = 200, types: Sequence[str] = ()) -> EventsPage:
        given = {"limit": str(limit), "since": since, "types": ",".join(types) or None}
        query = EventsQuery.from_wire({name: value for name, value in given.items() if value is not None})
        context = Context("req_events")
        return self._ask(EventsPage, lambda: self.operations.events(self.principal, query, context), reads=True)
