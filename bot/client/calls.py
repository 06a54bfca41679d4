"""Sends one request and turns the reply into a wire model or an exception.

The exception's class names what the caller does next.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from importlib import metadata
from typing import Final, TypeVar
from urllib.parse import quote

from pydantic import SecretStr, ValidationError

from bot.client.faults import MOVES, Observation, TransportFault, carry, classify
from bot.client.http import TIMEOUTS, HttpExchange, HttpReply, Timeouts, Transport
from bot.client.limiter import Admission, Limiter, RequestKind
from bot.client.retry import FIRST_MS, RETRY_AFTER_MAX_MS
from bot.client.service_clock import ServiceClock
from bot.client.stream import follow
from bot.clock import SystemClock
from bot.errors import CODES, NO_ERROR_OBJECT, RETRY_AFTER_MS, ApiError, Refused, TryLater
from bot.wire.base import Request, Resource
from bot.wire.dates import parse_date
from bot.wire.errors import ErrorBody, ErrorEnvelope, fields_of, message_of
from bot.wire.events import Event
from bot.wire.headers import (
    API_VERSION,
    API_VERSION_HEADER,
    EXPIRES_AFTER_HEADER,
    IDEMPOTENCY_KEY_HEADER,
    REQUEST_ID_HEADER,
    SANDBOX_CLOCK_HEADER,
    parse_idempotency_key,
)
from bot.wire.interface import Operation

R = TypeVar("R", bound=Resource)

# our own code for an answer that is not in the interface's form
INVALID_BODY: Final = "invalid_body"


@cache
def user_agent() -> str:
    try:
        return f"bracketbot/{metadata.version('bracketbot')}"
    except metadata.PackageNotFoundError:
        return "bracketbot"


class Caller:
    """Sends the requests of one credential. Base class of `Client` and `ControlClient`."""

    def __init__(
        self,
        base_url: str,
        secret: str | SecretStr | None,
        *,
        transport: Transport | None = None,
        timeouts: Timeouts = TIMEOUTS,
        clock: ServiceClock | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self._limiter = limiter
        self._secret = SecretStr(secret) if isinstance(secret, str) else secret
        self._clock = ServiceClock() if clock is None else clock
        # True once the service has sent its version header; a later answer without it comes from a proxy
        self._sends_version = False
        headers = {"User-Agent": user_agent(), API_VERSION_HEADER: API_VERSION}
        self._exchange = HttpExchange(base_url, headers=headers, transport=transport, timeouts=timeouts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._exchange.base_url!r})"

    @property
    def base_url(self) -> str:
        return self._exchange.base_url

    async def aclose(self) -> None:
        """Close the connections. The outcome of requests in flight is then unknown."""
        await self._exchange.aclose()

    async def _call(
        self,
        operation: Operation[R],
        *names: str,
        query: Mapping[str, str] | None = None,
        body: Request | None = None,
        key: str | None = None,
        expires_at_ms: int | None = None,
        reads: bool = False,
        kind: RequestKind = RequestKind.READ,
    ) -> R:
        """One attempt. `names`: those in the operation's path. `kind`: the share of the rate limit that it uses.

        `reads`: the request changes nothing although it is no GET, so its outcome is never in doubt.
        """
        method, path = operation.method, operation.path_to(*map(segment, names))
        reads = reads or method == "GET"
        headers: dict[str, str] = {}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret.get_secret_value()}"
        if key is not None:
            headers[IDEMPOTENCY_KEY_HEADER] = parse_idempotency_key(key)
        if expires_at_ms is not None:
            headers[EXPIRES_AFTER_HEADER] = str(expires_at_ms)
        # A manual clock has no rate limits.
        limiter = None if self._clock.speed <= 0 else self._limiter
        route = route_of(method, path)
        admission: Admission = ()
        if limiter is not None:
            admission = await limiter.admit(kind, route, within_ms=self._within_ms(expires_at_ms))
        try:
            reply = await self._exchange.send(
                method, path, query=query, body=None if body is None else body.body(), headers=headers
            )
        except TransportFault as fault:
            raise fault_error(fault, reads=reads) from fault
        finally:
            if limiter is not None:
                limiter.ended(admission)
        has_version = API_VERSION_HEADER in reply.headers
        self._sends_version = self._sends_version or has_version
        self._clock.observe(
            sandbox=reply.headers.get(SANDBOX_CLOCK_HEADER),
            date=reply.headers.get("Date"),
            # A gateway's refusal may carry the version header too, but not the sandbox clock.
            is_service=has_version and 200 <= reply.status < 300,
            sent_ns=reply.sent_ns,
            received_ns=reply.received_ns,
            age=reply.headers.get("Age"),
            may_be_kept=method == "GET",
        )
        if limiter is not None and (has_version or reply.status == 429):
            limiter.learn(
                route,
                status=reply.status,
                limit=reply.headers.get("RateLimit"),
                policy=reply.headers.get("RateLimit-Policy"),
                retry_after_ms=retry_after_ms(reply.headers.get("Retry-After"), reply.headers.get("Date")),
            )
        if self._sends_version and not has_version:
            # Whatever its status is, even 200 or 401.
            raise _failure(reply, reads=reads, is_proxy=True)
        if 200 <= reply.status < 300:
            assert operation.answer is not None
            return _read(operation.answer, reply, reads=reads)
        raise _failure(reply, reads=reads)

    def _within_ms(self, expires_at_ms: int | None) -> float:
        """Milliseconds of real time until the request is too late."""
        if expires_at_ms is None:
            return math.inf
        return max(0.0, (expires_at_ms - self._clock.now_ms()) / self._clock.speed)

    def _stream(self, query: Mapping[str, str], since: str | None) -> AsyncGenerator[Event, None]:
        """The event stream. Reconnects whenever the connection ends."""
        secret = self._secret
        headers = {} if secret is None else {"Authorization": f"Bearer {secret.get_secret_value()}"}
        return follow(
            self._exchange, headers=headers, failure=lambda reply: _failure(reply, reads=True), query=query, since=since
        )


def _read(model: type[R], reply: HttpReply, *, reads: bool) -> R:
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        problem = message_of(fields_of(error))
        request_id = reply.headers.get(REQUEST_ID_HEADER)
        text = f"the answer cannot be read as {model.__name__}: {problem}"
        # Half an answer may be whole at the next try; an answer in another form will not change.
        if reads:
            kind: type[ApiError] = Refused if _is_json(reply.body) else TryLater
        else:
            kind = MOVES[classify(Observation(status=reply.status))]
        failure = kind(INVALID_BODY, text, request_id, None if reads else "unknown", not reads, status=reply.status)
        raise carry(failure, Observation(status=reply.status)) from error


def _failure(reply: HttpReply, *, reads: bool, is_proxy: bool = False) -> ApiError:
    """The exception for a failed reply.

    `is_proxy`: a proxy answered, not the service; a retry may reach the service.
    """
    body = None if is_proxy else _error_object(reply.body)
    after_ms = retry_after_ms(reply.headers.get("Retry-After"), reply.headers.get("Date"))
    if body is None:
        seen = Observation(status=reply.status)
        passes = is_proxy or reply.status in (408, 425, 429) or reply.status >= 500
        failure = _build(
            (TryLater if passes else Refused) if reads else MOVES[classify(seen)],
            ErrorBody(
                code=NO_ERROR_OBJECT,
                message=f"HTTP {reply.status} without an error object",
                request_id=reply.headers.get(REQUEST_ID_HEADER, ""),
                retryable=passes or not reads,
                order_submitted=None if reads else "unknown",
            ),
            reply.status,
            after_ms,
        )
        return carry(failure, seen)
    seen = Observation.of_error(reply.status, body)
    if reads:
        failure = read_error(body, reply.status, after_ms=after_ms, reads=True)
    else:
        failure = _build(MOVES[classify(seen)], body, reply.status, after_ms)
    return carry(failure, seen)


def read_error(body: ErrorBody, status: int, *, reads: bool, after_ms: int | None = None) -> ApiError:
    """The exception for an error object of the service. `reads`: the request could change nothing."""
    return ApiError.of(
        body.code,
        body.message,
        request_id=body.request_id,
        order_submitted=body.order_submitted,
        retryable=body.retryable,
        details=body.details,
        fix=body.fix,
        status=status,
        after_ms=after_ms,
        reads=reads,
    )


def _build(kind: type[ApiError], body: ErrorBody, status: int, after_ms: int | None) -> ApiError:
    row = CODES.get(body.code)
    retryable = body.retryable if body.retryable is not None else row is not None and row.retryable
    fields = (
        body.code,
        body.message,
        body.request_id or None,
        body.order_submitted,
        retryable,
        body.details,
        body.fix,
        status,
    )
    if issubclass(kind, TryLater):
        return kind(*fields, after_ms=RETRY_AFTER_MS if after_ms is None else after_ms)
    return kind(*fields)


def fault_error(fault: TransportFault, *, reads: bool) -> ApiError:
    """The error of a request without an answer. `reads`: the request could change nothing."""
    seen = Observation(fault=fault.fault)
    kind = TryLater if reads else MOVES[classify(seen)]
    message = fault.message or "no answer"
    if issubclass(kind, TryLater):
        return carry(kind(str(fault.fault), message, order_submitted=False, retryable=True, after_ms=FIRST_MS), seen)
    return carry(kind(str(fault.fault), message, order_submitted="unknown", retryable=True), seen)


def _error_object(body: bytes) -> ErrorBody | None:
    """The interface's error object, or None. It must have code, message and requestId."""
    try:
        parsed = ErrorEnvelope.model_validate_json(body).error
    except ValidationError:
        return None
    return parsed if parsed.code and parsed.request_id else None


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def retry_after_ms(text: str | None, date: str | None) -> int | None:
    """Retry-After in milliseconds. A date counts from the answer's own Date. None if absent or unreadable."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return min(int(text.strip()[:9]) * 1000, RETRY_AFTER_MAX_MS)
    moment = parse_date(text)
    if moment is None:
        return None
    sent = parse_date(date) if date is not None else None
    wait = moment - (SystemClock().now_ms() if sent is None else sent)
    return min(max(wait, 0), RETRY_AFTER_MAX_MS)


def route_of(method: str, path: str) -> str:
    """The operation without names and ids: `DELETE /v1/orders/7` becomes `DELETE /v1/orders`."""
    return f"{method} {'/'.join(path.split('/', 3)[:3])}"


def segment(name: str) -> str:
    """A name as one segment of a path. Raises Refused, before anything is sent, if it would change the path."""
    if name in ("", ".", ".."):
        raise Refused("invalid_input", f"{name!r} names nothing", order_submitted=False)
    return quote(name, safe=":")


def present(pairs: Mapping[str, object]) -> dict[str, str]:
    """The query without its None values."""
    return {name: str(value) for name, value in pairs.items() if value is not None}
