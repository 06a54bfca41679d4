"""A wire that fails: an httpx transport between the production client and the real service, which refuses, loses,
delays, doubles and spoils.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from tests.fakes import Crash

# What may become of one request. "unsent", "busy*", "down*" and "html_before" have no effect at the service; the others
# have, or may yet.
FAULTS = (
    "refuse",
    "unsent",
    "lose",
    "late",
    "double",
    "html_before",
    "html_after",
    "truncate",
    "busy",
    "busy_silent",
    "down",
    "down_html",
    "denied",
    "stale",
    "slow",
)
CRASHES = ("crash_before", "crash_after")
REPLY_HEADERS = {"X-API-Version": "2026-10-19", "X-Request-Id": "req_wire", "Content-Type": "application/json"}

Fate = Callable[[httpx.Request], str | None]


@dataclass
class Sent:
    """A request that was sent and has not arrived; it does before the `after`-th request from now."""

    request: httpx.Request
    after: int


class FaultyWire(httpx.AsyncBaseTransport):
    """`fate` names what becomes of each request; None: it arrives and is answered."""

    def __init__(self, inner: httpx.AsyncBaseTransport, fate: Fate) -> None:
        self.inner = inner
        self.fate = fate
        self.under_way: list[Sent] = []
        # X-Request-Id of those that arrived late
        self.late_ids: set[str] = set()
        self.seen: list[tuple[str, str]] = []
        self.met: dict[str, int] = {}
        # requests that come between; None: some
        self.late_by: int | None = None
        # time passes while an answer is on its way
        self.on_slow: Callable[[], None] = lambda: None
        # a page of events, as a cache in between would keep it
        self.old_page: httpx.Response | None = None
        # a long history is another test's; it costs
        self.candles_max = 30

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        request = httpx.Request(request.method, self._shortened(request.url), headers=request.headers, content=content)
        await self.arrivals()
        self.seen.append((request.method, request.url.path))
        fate = self.fate(request)
        if fate is not None:
            self.met[fate] = self.met.get(fate, 0) + 1
        match fate:
            case None:
                return await self.deliver(request)
            case "refuse":
                raise httpx.ConnectError("refused", request=request)
            case "unsent":
                raise httpx.ReadError("reset", request=request)
            case "lose":
                await self.deliver(request)
                raise httpx.ReadError("reset", request=request)
            case "late":
                # Most come soon, some minutes later, when nobody waits for them any more.
                some = 1 + len(self.seen) % 7 * (12 if len(self.seen) % 3 == 0 else 1)
                self.under_way.append(Sent(request, after=self.late_by or some))
                raise httpx.ReadTimeout("no answer", request=request)
            case "double":
                await self.deliver(request)
                return await self.deliver(request)
            case "slow":
                answer = await self.deliver(request)
                self.on_slow()
                return answer
            case "html_before":
                return _html(502)
            case "html_after":
                await self.deliver(request)
                return _html(502)
            case "truncate":
                answer = await self.deliver(request)
                return httpx.Response(
                    answer.status_code, headers=answer.headers, content=answer.content[: len(answer.content) // 2]
                )
            case "busy":
                return _error(429, "rate_limited", {"Retry-After": "1"})
            case "busy_silent":
                return _error(429, "rate_limited", {})
            case "down":
                return _error(503, "service_unavailable", {"Retry-After": "1"})
            case "down_html":
                return _html(503)
            case "denied":
                return _error(403, "forbidden", {}) if _is_order(request) else await self.deliver(request)
            case "stale":
                return (
                    self.old_page
                    if self._has_old(request) and self.old_page is not None
                    else await self.deliver(request)
                )
            case "crash_before":
                raise Crash(request.url.path)
            case "crash_after":
                await self.deliver(request)
                raise Crash(request.url.path)
        raise AssertionError(fate)

    async def deliver(self, request: httpx.Request) -> httpx.Response:
        """The request reaches the service, whoever hears the answer."""
        again = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
        answer = await self.inner.handle_async_request(again)
        if self._has_old(request) and self.old_page is None and answer.status_code == 200:
            self.old_page = httpx.Response(200, headers=REPLY_HEADERS, content=await answer.aread())
        headers = [(name, value) for name, value in answer.headers.items() if name.lower() != "content-length"]
        return httpx.Response(answer.status_code, headers=headers, content=await answer.aread())

    async def arrivals(self, *, everything: bool = False) -> None:
        """What was under way arrives now, when its time has come."""
        waiting, self.under_way = self.under_way, []
        for sent in waiting:
            sent.after -= 1
            if sent.after > 0 and not everything:
                self.under_way.append(sent)
            else:
                answer = await self.deliver(sent.request)
                self.late_ids.add(answer.headers["X-Request-Id"])

    def _has_old(self, request: httpx.Request) -> bool:
        return request.url.path == "/v1/events"

    def _shortened(self, url: httpx.URL) -> httpx.URL:
        if not url.path.endswith("/candles"):
            return url
        return url.copy_set_param("limit", str(min(int(url.params["limit"]), self.candles_max)))


def _html(status: int) -> httpx.Response:
    return httpx.Response(status, headers={"Content-Type": "text/html"}, content=b"<html><h1>Bad gateway</h1></html>")


def _is_order(request: httpx.Request) -> bool:
    path = request.url.path
    return request.method == "POST" and (path.startswith("/v1/orders") or path.endswith("/close"))


def _error(status: int, code: str, headers: dict[str, str]) -> httpx.Response:
    error = {
        "code": code,
        "message": "not now",
        "requestId": "req_wire",
        "retryable": status != 403,
        "orderSubmitted": False,
    }
    body = json.dumps({"error": error}).encode()
    return httpx.Response(status, headers=REPLY_HEADERS | headers, content=body)
