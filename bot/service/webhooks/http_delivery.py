"""Sends one webhook delivery over HTTP to a checked address, with timeouts.

Knows no schedule. The service's only HTTP client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx

from bot.clock import Clock
from bot.http_limits import tls_context
from bot.service.webhooks.address_policy import (
    Resolve,
    TargetRefused,
    WebhookTarget,
    addresses_of,
    system_resolve,
    target_of,
)
from bot.wire.dates import parse_date

# time for one delivery: name, connection, TLS, request, answer
TOTAL_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
# the response body is not used; a longer one ends the attempt
REPLY_BYTES_MAX: Final = 64 * 1024
RETRY_AFTER_MAX_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The result of an attempt. `status` None: no response came. `problem` is for the log; empty after a success."""

    status: int | None
    problem: str = ""
    retry_after_ms: int = 0

    @property
    def is_done(self) -> bool:
        return not self.problem


class HttpDelivery:
    """Posts without redirects, proxies, cookies or kept connections, so that every attempt resolves and checks the
    address again.
    """

    def __init__(
        self,
        *,
        private: bool,
        clock: Clock,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        self.private = private
        self._clock = clock
        self._resolve = resolve
        self._total = total_seconds
        # No kept connections: httpx would reuse them by address, without the TLS check of the name.
        limits = httpx.Limits(max_keepalive_connections=0)
        # Refuse cookies, which would only fill memory.
        nobodys = DefaultCookiePolicy(allowed_domains=())
        self._http = httpx.AsyncClient(
            cookies=CookieJar(nobodys),
            transport=httpx.AsyncHTTPTransport(
                verify=tls_context() if tls is None else tls, retries=0, trust_env=False, limits=limits
            ),
            timeout=httpx.Timeout(total_seconds, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryOutcome:
        """Make one attempt. Every failure is an Outcome."""
        try:
            async with asyncio.timeout(self._total):
                target = target_of(url, private=self.private)
                addresses = await addresses_of(target, self._resolve, private=self.private)
                return await self._first(target, addresses, headers, body)
        except TimeoutError:
            return DeliveryOutcome(None, "timeout")
        except TargetRefused as no:
            return DeliveryOutcome(None, f"refused: {no}")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            return DeliveryOutcome(None, f"{type(error).__name__}: {error}"[:200])

    async def _first(
        self, target: WebhookTarget, addresses: list[str], headers: Mapping[str, str], body: bytes
    ) -> DeliveryOutcome:
        """Send to the first address that accepts a connection."""
        for address in addresses[:-1]:
            try:
                return await self._to(target, address, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._to(target, addresses[-1], headers, body)

    async def _to(
        self, target: WebhookTarget, address: str, headers: Mapping[str, str], body: bytes
    ) -> DeliveryOutcome:
        host = f"[{address}]" if ":" in address else address
        sent = {"Host": target.authority, "Accept-Encoding": "identity", **headers}
        request = httpx.Request(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers=sent,
            content=body,
            extensions={
                "sni_hostname": target.host.rstrip("."),
                "timeout": httpx.Timeout(self._total, connect=CONNECT_SECONDS).as_dict(),
            },
        )
        answer = await self._http.send(request, stream=True)
        try:
            size = 0
            async for part in answer.aiter_raw():
                size += len(part)
                if size > REPLY_BYTES_MAX:
                    return DeliveryOutcome(answer.status_code, "the answer is too long")
            return self._judge(answer)
        finally:
            await answer.aclose()

    def _judge(self, answer: httpx.Response) -> DeliveryOutcome:
        status = answer.status_code
        if 200 <= status < 300:
            return DeliveryOutcome(status)
        return DeliveryOutcome(status, f"HTTP {status}", _retry_after_ms(answer.headers, self._clock.now_ms()))

    async def aclose(self) -> None:
        await self._http.aclose()


def _retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int:
    """The receiver's Retry-After in milliseconds, from seconds or a date; 0 without a valid one."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]) * 1000, RETRY_AFTER_MAX_MS)
    until_ms = parse_date(text)
    return 0 if until_ms is None else min(max(until_ms - now_ms, 0), RETRY_AFTER_MAX_MS)
