"""The client against the service's real rate limits: a flood of plans is delayed before the service has to refuse,
and exits find room.
"""

from __future__ import annotations

import httpx
import pytest

from bot.client import Client
from bot.client.limiter import RESERVE_MAX, Limiter, RateHeld, RequestKind
from bot.errors import Refused
from bot.service.host import HostOptions, build
from bot.service.security import rate_limits
from bot.wire import CloseRequest, OrderRequest
from tests.integration.builders import MARKETS


async def test_a_flood_of_entries_is_held_back_and_a_close_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an instant that lasts, so that nothing refills however slow the machine is."""
    monkeypatch.setattr(rate_limits, "monotonic_ns", lambda: 1)
    service = build(HostOptions(clock="real", hold_prices=True, markets=MARKETS), control_token="bbc_test")
    await service.start()
    statuses: list[int] = []
    inner = httpx.ASGITransport(service.app, raise_app_exceptions=False)

    class Watched(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await inner.handle_async_request(request)
            statuses.append(answer.status_code)
            return answer

    try:
        async with httpx.AsyncClient(transport=inner, base_url="http://127.0.0.1") as http:
            account = (await http.post("/v1/sandbox/accounts", json={"name": "flood"})).json()
        limiter = Limiter(now_ms=lambda: 0.0)
        async with Client("http://127.0.0.1", account["apiKey"], transport=Watched(), limiter=limiter) as client:
            order = OrderRequest.from_wire({"market": "BTC", "side": "long", "usdAmount": 50})
            # The service lets 200 through at once.
            for _ in range(300):
                if client.entry_wait_ms():
                    break
                await client.plan(order)
            assert client.entry_wait_ms() > 0
            assert len(statuses) == 200 - RESERVE_MAX
            with pytest.raises(RateHeld):
                await client.place(order, key="held", expires_at_ms=client.clock.now_ms())
            sent = len(statuses)
            for n in range(RESERVE_MAX):
                with pytest.raises(
                    Refused,
                    match="not_found",
                    # There is nothing to close; that it may ask is the point.
                ):
                    await client.close("BTC", CloseRequest(), key=f"close-{n}")
            assert len(statuses) == sent + RESERVE_MAX
            assert 429 not in statuses
            assert limiter.wait_ms(RequestKind.EXIT, "POST /v1/positions") > 0
            await client.heartbeat()
            assert statuses[-1] == 200, "the beat has a bucket of its own"
    finally:
        await service.stop()
