"""A separate service for each test, with a manual clock and pushed prices, over ASGI.

Only tests that need real processes start them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.service.host import HostOptions, Service, build
from tests.service import serving

# a full minute in June 2025
START_MS = 1_750_000_020_000
CONTROL_TOKEN = "bbc_test"


@dataclass
class Caller:
    """An account's owner."""

    http: httpx.AsyncClient
    opened: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.opened['apiKey']}"}

    async def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> httpx.Response:
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Idempotency-Key"] = key
        return (
            await self.http.request(method, path, json=body, headers=sent)
            if body is not None
            else await self.http.request(method, path, headers=sent)
        )

    async def get(self, path: str) -> Any:
        answer = await self.send("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        answer = await self.send("POST", path, body if body is not None else {}, key=key)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def delete(self, path: str, body: Any = None) -> Any:
        answer = await self.send("DELETE", path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@dataclass
class Box:
    """A running service and the ways to reach it."""

    service: Service
    http: httpx.AsyncClient

    @property
    def control(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {CONTROL_TOKEN}"}

    async def caller(self, **body: Any) -> Caller:
        answer = await self.http.post("/v1/sandbox/accounts", json=body)
        assert answer.status_code == 200, answer.text
        return Caller(self.http, answer.json())

    async def price(self, coin: str, px: str, **more: str) -> Any:
        answer = await self.http.post(
            f"/sandbox/v1/markets/{coin}/price", json={"px": px, **more}, headers=self.control
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def advance(self, ms: int) -> Any:
        answer = await self.http.post("/sandbox/v1/clock/advance", json={"ms": ms}, headers=self.control)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post_slowly(
        self, caller: Caller, path: str, body: Any, meanwhile: Callable[[], Awaitable[object]]
    ) -> httpx.Response:
        """A request whose head arrives before `meanwhile` runs and whose body arrives afterwards."""

        async def parts() -> AsyncIterator[bytes]:
            await meanwhile()
            yield json.dumps(body).encode()

        return await self.http.post(path, content=parts(), headers=caller.headers)

    async def digest(self) -> Any:
        return (await self.http.get("/sandbox/v1/digest", headers=self.control)).json()


OpenBox = Callable[..., Any]
Start = Callable[..., serving.Served]


@pytest.fixture
async def open_box(tmp_path: Path) -> AsyncIterator[OpenBox]:
    """Open services with other options; they are stopped at the end of the test."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> Box:
            defaults: dict[str, Any] = {
                "clock": "manual",
                "start_ms": START_MS,
                "hold_prices": True,
                "markets": ("BTC", "ETH"),
            }
            service = build(HostOptions(**(defaults | options)), control_token=CONTROL_TOKEN)
            await service.start()
            stack.push_async_callback(service.stop)
            transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
            http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))
            return Box(service, http)

        yield make


@pytest.fixture
async def box(open_box: OpenBox) -> Box:
    """A service with a manual clock and pushed prices. BTC is at 100,000."""
    made: Box = await open_box()
    await made.price("BTC", "100000")
    return made


@pytest.fixture
async def caller(box: Box) -> Caller:
    """An account with 10,000 USD."""
    return await box.caller(name="test")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services as separate processes, which end with the test."""
    running: list[serving.Served] = []

    def make(**options: Any) -> serving.Served:
        made = serving.start(**({"port": 0, "markets": ["BTC", "ETH"], "rate_limits": False} | options))
        running.append(made)
        return made

    yield make
    for served in running:
        serving.end(served)
