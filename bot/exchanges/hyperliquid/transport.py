"""Sends info requests and signed actions over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx

from bot.exchanges.hyperliquid.json_rows import unknown
from bot.exchanges.protocol import ActionMalformed, BudgetUsedUp, NoExchangeAnswer
from bot.http_limits import bounded_transport
from bot.plain_text import one_line

# 2,000 fills take about 1 MB.
BYTES_MAX: Final = 16 * 1024 * 1024
VALUES_MAX: Final = 400_000
# Only these prove that an action was not performed.
NOT_READ: Final = (400, 415, 422)
TIMEOUT_S: Final = 10.0
# Reads change nothing, so they may be sent again after a fault that may pass.
PAUSES_S: Final = (0.2, 1.0)


class Transport:
    """Requests to one server."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self.url = url.rstrip("/")
        self._pauses_s = pauses_s
        transport = bounded_transport(BYTES_MAX, values_max=VALUES_MAX)
        self._http = httpx.AsyncClient(transport=transport, timeout=timeout_s, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def info(self, query: Mapping[str, Any]) -> Any:
        """The answer to an info request. NoAnswer after the last try, UnknownForm for an answer that is no JSON."""
        for pause_s in self._pauses_s:
            try:
                return await self._once(query)
            except NoExchangeAnswer:
                await asyncio.sleep(pause_s)
        return await self._once(query)

    async def exchange(self, body: Mapping[str, Any]) -> Any:
        """Post a signed action once. NoAnswer if it may have been performed, ActionMalformed if it surely was not."""
        name = f"{self.url}/exchange"
        answer = await self._post(name, body)
        if answer.status_code in NOT_READ:
            raise ActionMalformed(
                f"{name}: HTTP {answer.status_code} {one_line(answer.text[:200])}; the exchange did not read it"
            )
        return self._read(name, answer)

    async def _once(self, query: Mapping[str, Any]) -> Any:
        name = f"{self.url}/info {query['type']}"
        return self._read(name, await self._post(f"{self.url}/info", query, name))

    async def _post(self, url: str, body: Mapping[str, Any], name: str | None = None) -> httpx.Response:
        name = name or url
        try:
            return await self._http.post(url, json=dict(body))
        except httpx.HTTPError as error:
            why = "no answer in time" if isinstance(error, httpx.TimeoutException) else str(error) or "no answer"
            raise NoExchangeAnswer(f"{name}: {why}; check the network and --url, then try again") from error

    def _read(self, name: str, answer: httpx.Response) -> Any:
        """The JSON of an answer, or the error that its status means."""
        if answer.status_code == 429:
            raise BudgetUsedUp(f"{name}: the limit of requests of this IP address is used up; try again in a minute")
        if answer.status_code >= 500:
            raise NoExchangeAnswer(f"{name}: the exchange answers HTTP {answer.status_code}; try again later")
        if answer.status_code != 200:
            raise unknown(f"{name}", "HTTP 200", f"{answer.status_code} {one_line(answer.text[:200])}")
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError):
            raise unknown(name, "JSON", answer.text[:200]) from None
