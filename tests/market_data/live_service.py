"""A service of this process with the live prices of the local exchange."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from bot.service.host import HostOptions, Service, build
from tests.service.conftest import CONTROL_TOKEN


@asynccontextmanager
async def running(db: Path | str = ":memory:") -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    service = build(HostOptions(db=db, live=("ccxt:binance",)), control_token=CONTROL_TOKEN)
    await service.start()
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        try:
            yield service, http
        finally:
            await service.stop()
