"""A wire that fails: an httpx transport between the production client and the real service, which refuses, loses,
delays, doubles and spoils.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tests.fakes import Crash
from tests.integration.virtual import Answer

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
            case "late":
                # Most come soon, some minutes later, when nobody waits for them any more.
                some = 1 + len(self.seen) % 7 * (12 if len(self.seen) % 3 == 0 else 1)
                self.under_way.append(Sent(request, after=self.late_by or some))
                raise httpx.ReadTimeout("no answer", request=request)
            case "slow":
                answer = await self.deliver(request)
                self.on_slow()
                return answer
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
        is_an_order = is_order(request.method, request.url.path)
        answer = await spoiled(fate, lambda: self.deliver(request), is_order=is_an_order)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

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


async def spoiled(fate: str, deliver: Callable[[], Awaitable[Any]], *, is_order: bool) -> Any:
    """The answer of a request with this fate, or the error that its sender gets; `deliver` lets it arrive."""
    match fate:
        case "refuse":
            raise httpx.ConnectError("refused")
        case "unsent":
            raise httpx.ReadError("reset")
        case "lose":
            await deliver()
            raise httpx.ReadError("reset")
        case "double":
            await deliver()
            return await deliver()
        case "html_after":
            await deliver()
            return _html(502)
        case "truncate":
            answer = await deliver()
            return Answer(answer.status_code, answer.headers, answer.content[: len(answer.content) // 2])
        case "denied" if not is_order:
            return await deliver()
    return UNDELIVERED[fate]


def _html(status: int) -> Answer:
    return Answer(status, {"Content-Type": "text/html"}, b"<html><h1>Bad gateway</h1></html>")


def _error(status: int, code: str, headers: dict[str, str]) -> Answer:
    error = {
        "code": code,
        "message": "not now",
        "requestId": "req_wire",
        "retryable": status not in (400, 403),
        "orderSubmitted": False,
    }
    return Answer(status, REPLY_HEADERS | headers, json.dumps({"error": error}).encode())


# What is answered before the service.
UNDELIVERED: Final = {
    "html_before": _html(502),
    "busy": _error(429, "rate_limited", {"Retry-After": "1"}),
    "busy_silent": _error(429, "rate_limited", {}),
    "down": _error(503, "service_unavailable", {"Retry-After": "1"}),
    "down_html": _html(503),
    "denied": _error(403, "forbidden", {}),
    "declined": _error(400, "invalid_input", {}),
}


def is_order(method: str, target: str) -> bool:
    path = target.partition("?")[0]
    return method == "POST" and (path.startswith("/v1/orders") or path.endswith("/close"))
