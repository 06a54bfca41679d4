"""The gateway: the ASGI application. It routes requests, and gives every response the service's headers and every
failure an error object.

It checks in this order: request id, route (404, or 405 with a complete Allow), version, caller, scope, rate limit, body
(size, type, JSON), schema. Then the operation runs. The gateway sends a response after everything that the response may
show is on disk.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from bot.errors import Refusal
from bot.logs import log
from bot.service.bodies import strict_json
from bot.service.bodies.responses import OperationRefused, ServiceAnswer, invalid, of_validation, refuse
from bot.service.http.fault_injection import INJECTED, InjectedFaults
from bot.service.operations.accounts import BODY_BYTES_MAX
from bot.service.operations.executor import Context
from bot.service.operations.operations import Operations
from bot.service.security import rate_limits
from bot.service.security.auth import Principal, authenticate, end_of, refuse_access
from bot.service.state_machine.machine import Machine
from bot.wire.base import Request
from bot.wire.headers import API_VERSION, format_sandbox_clock, parse_expires_after, parse_idempotency_key
from bot.wire.interface import Access, Operation
from bot.wire.requests import EmptyRequest

R = TypeVar("R", bound=Request)

Endpoint = Callable[[HttpRequest], Awaitable[Response]]

PATH_MAX: Final = 2_048
# JSON-RPC: invalid request
RPC_INVALID: Final = -32600
# the first code that JSON-RPC leaves to servers
RPC_REFUSED: Final = -32000
# request ids drawn together: each draw yields to other threads, which costs more than the draw
IDS_AT_ONCE: Final = 128
ID_BYTES: Final = 12

# Headers that a request may have only once: with two, the meaning would be unclear.
SINGLE_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"x-api-version",
        b"x-confirm-token",
        b"x-expires-after",
    }
)

_NOBODY: Final = Principal("", "", frozenset(), owner=False)


class Call(NamedTuple):
    """A request that passed the checks of the gateway."""

    principal: Principal
    context: Context
    body: Request
    query: Request
    # the values of the names in its path
    places: Mapping[str, str]

    def read(self, model: type[R]) -> R:
        """The request's body, as an instance of the model that its operation declares."""
        assert isinstance(self.body, model)
        return self.body

    def ask(self, model: type[R]) -> R:
        """The request's query, as an instance of the model that its operation declares."""
        assert isinstance(self.query, model)
        return self.query


class Routes:
    """Finds the operation of a path and method."""

    def __init__(self, rules: list[Operation[Any]]) -> None:
        self._literal: dict[str, tuple[dict[str, Operation[Any]], dict[str, str]]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Operation[Any]]]] = []
        by_path: dict[str, dict[str, Operation[Any]]] = {}
        for rule in rules:
            by_path.setdefault(rule.path, {})[rule.method] = rule
        for path, methods in by_path.items():
            if "{" in path:
                self._patterns.append((re.compile(re.sub(r"\{([a-z_]+)\}", r"(?P<\1>[^/]+)", path)), methods))
            else:
                self._literal[path] = methods, {}

    def find(self, path: str) -> tuple[dict[str, Operation[Any]], dict[str, str]] | None:
        """The operations of a path by method, and the values of its path parameters; None if no route has this path."""
        matched = self._literal.get(path)
        if matched is not None or len(path) > PATH_MAX:
            return matched
        for pattern, methods in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return methods, match.groupdict()
        return None


class Gateway:
    """The ASGI application: runs every request through its checks to its operation."""

    def __init__(
        self,
        operations: Operations,
        rules: list[Operation[Any]],
        endpoints: Mapping[tuple[str, str], Endpoint],
        *,
        control_token: str | None,
        hosts: frozenset[str] | None,
    ) -> None:
        """`endpoints`: by (method, path of the operation)."""
        self.endpoints = endpoints
        self._operations = operations
        # every route there is
        self.rules = tuple(rules)
        self._routes = Routes(rules)
        self._control_token = control_token or None
        self.faults: InjectedFaults | None = None
        # host names that a service on loopback accepts; None: any
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The server is started without lifespan and without WebSockets.
        assert scope["type"] == "http"
        if self.faults is None or self.faults.is_idle(scope):
            await _Exchange(self, scope, receive, send).run()
        else:
            await self.faults.around(scope, receive, send, self._exchange)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _Exchange(self, scope, receive, send).run()

    def find(self, scope: Scope) -> tuple[dict[str, Operation[Any]], dict[str, str]] | None:
        """As `Routes.find`, for a request.

        An encoded slash (%2F) belongs to a name, and no name of the service has a slash.
        """
        raw = scope.get("raw_path") or b""
        return None if b"%2F" in raw or b"%2f" in raw else self._routes.find(scope["path"])

    def rule_of(self, scope: Scope) -> Operation[Any] | None:
        """The operation of a request, or None."""
        matched = self.find(scope)
        return None if matched is None else matched[0].get(scope["method"])

    @property
    def operations(self) -> Operations:
        return self._operations


class _Exchange:
    """One request and its response."""

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway = gateway
        self._operations = gateway.operations
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = {}
        self._twice: bytes | None = None
        for name, value in scope["headers"]:
            if name in self._headers and name in SINGLE_HEADERS:
                self._twice = name
            self._headers.setdefault(name, value)
        self._request_id = _new_id()
        self._rate: list[tuple[bytes, bytes]] = []
        self._is_order = False
        self._is_rpc = False
        self._started = False
        self._principal: Principal | None = None
        self._route = ("", "")

    async def run(self) -> None:
        try:
            call = await self._admit()
            self._scope["call"] = call
            self._scope["refuse"] = self.answer_of
            endpoint = self._gateway.endpoints[self._route]
            response = await endpoint(HttpRequest(self._scope, self._receive, self._respond))
            await response(self._scope, self._receive, self._respond)
        except OperationRefused as no:
            await self._refuse(no.refusal, no.status, no.headers)
        except Exception as error:
            # A bug: the caller gets the request id, the log gets the details. If the state is in doubt the machine
            # stops the service.
            log.exception(
                "request.failed", request_id=self._request_id, path=self._scope["path"], error=type(error).__name__
            )
            if not self._started:
                await self._refuse(Refusal("internal_error", "the service failed; you may send the same request again"))
        finally:
            # Break the reference cycle, so that the garbage collector need not.
            self._scope.pop("refuse", None)

    # ── Checks of a request
    # ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _admit(self) -> Call:
        gateway, scope = self._gateway, self._scope
        matched = gateway.find(scope)
        if matched is None:
            self._take("public")
            raise OperationRefused(
                Refusal("not_found", f"no such route: {scope['path'][:200]!r}", fix={"action": "read_docs"})
            )
        methods, places = matched
        rule = methods.get(scope["method"])
        if rule is None:
            self._is_order = any(method.is_order for method in methods.values())
            self._take("public")
            allow = ", ".join(sorted(methods))
            text = f"{scope['method'][:20]} is not allowed here; allowed: {allow}"
            raise OperationRefused(
                Refusal("invalid_input", text, details={"allow": sorted(methods)}), 405, {"Allow": allow}
            )
        self._is_order = rule.is_order
        self._is_rpc = rule.is_rpc
        self._route = rule.method, rule.path
        self._check_headers()
        self._check_origin(rule)
        injected = scope.get(INJECTED)
        if injected is not None:
            raise injected
        _check_sound(self._operations.machine)
        generation = self._operations.machine.generation
        principal = self._caller(rule)
        context = self._context(rule)
        raw = await self._body() if rule.body is not None else b""
        check_still_valid(self._operations.machine, generation, principal)
        value = self._parse(raw)
        try:
            query = self._read(rule.query, self._query())
            body = self._read(rule.body or EmptyRequest, value)
        except ValidationError as error:
            raise OperationRefused(of_validation(error)) from None
        if context.idempotency_key is not None:
            fingerprint = strict_json.fingerprint(scope["method"], scope["path"], value)
            context = Context(
                context.request_id,
                context.idempotency_key,
                context.expires_ms,
                fingerprint,
                context.is_order,
                context.ip,
            )
        return Call(principal, context, body, query, places)

    def _read(self, model: type[Request], value: Any) -> Request:
        """A body or query as its model. Models are frozen, so an empty one is made once and shared."""
        if value != {}:
            return model.from_wire(value)
        empty = _EMPTY.get(model)
        if empty is None:
            empty = _EMPTY[model] = model.from_wire(value)
        return empty

    def _check_headers(self) -> None:
        if self._twice is not None:
            raise OperationRefused(invalid(self._twice.decode(), "is given twice"))
        hosts = self._gateway._hosts  # noqa: SLF001
        if hosts is not None:
            host = self._headers.get(b"host", b"").decode("latin-1").lower()
            name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
            if name not in hosts:
                raise OperationRefused(invalid("Host", f"must name this service, not {name[:80]!r}"))
        version = self._headers.get(b"x-api-version")
        if version is not None and version.strip() != _VERSION:
            text = f"must be {API_VERSION}"
            raise OperationRefused(
                invalid("X-API-Version", text, [API_VERSION], fix={"field": "X-API-Version", "value": API_VERSION})
            )

    def _check_origin(self, rule: Operation[Any]) -> None:
        origin = self._headers.get(b"origin")
        if rule.origins is None or origin is None:
            return
        name = origin.decode("latin-1").strip().lower()
        if name not in rule.origins:
            self._take("public")
            raise OperationRefused(
                Refusal("forbidden", f"pages of {name[:80]!r} may not call this address", details={"field": "Origin"})
            )

    def _ip(self) -> str:
        client = self._scope.get("client")
        return client[0] if client and client[0] else "local"

    def _caller(self, rule: Operation[Any]) -> Principal:
        operations = self._operations
        if rule.access is Access.NONE:
            self._take(rule.policy)
            return _NOBODY
        header = self._headers.get(b"authorization")
        text = None if header is None else header.decode("latin-1")
        if rule.access is Access.CONTROL:
            self._take(None)
            self._check_control(text)
            return _NOBODY
        principal = authenticate(operations.machine.state, text, operations.machine.clock.now_ms())
        if isinstance(principal, Refusal):
            self._take("public")
            challenge = "Bearer" if text is None else 'Bearer error="invalid_token"'
            if rule.metadata:
                challenge += f'{"" if text is None else ","} resource_metadata="{rule.metadata}"'
            raise OperationRefused(principal, None, {"WWW-Authenticate": challenge})
        self._principal = principal
        if principal.key is not None:
            operations.key_used(principal.key)
        # The MCP request has already taken a token of the rate limit for a tool call inside it.
        self._take(None if rule.policy == self._scope.get("paid") else rule.policy)
        refused = refuse_access(principal, rule.access)
        if refused is not None:
            scope = (refused.details or {}).get("requiredScope", "")
            raise OperationRefused(
                refused, None, {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'}
            )
        return principal

    def _check_control(self, header: str | None) -> None:
        """Over the control socket the file permission is the credential; over TCP the control token is."""
        if is_local_socket(self._scope):
            return
        token = self._gateway._control_token  # noqa: SLF001
        given = (header or "").strip().partition(" ")[2].strip()
        if token is None or not hmac.compare_digest(token.encode(), given.encode("utf-8", "replace")):
            text = (
                "the sandbox control requires the control token"
                if token is not None
                else "the sandbox control is disabled on this address"
            )
            raise OperationRefused(Refusal("unauthorized", text), None, {"WWW-Authenticate": "Bearer"})

    def _take(self, policy: str | None) -> None:
        limits = self._operations.rate_limits
        enabled = limits.enabled and self._operations.machine.clock.speed != 0 and policy is not None
        if not enabled:
            self._rate = _UNLIMITED
            return
        assert policy is not None
        scope = rate_limits.POLICIES[policy].scope
        caller = self._principal.caller if scope == "key" and self._principal is not None else self._ip()
        verdict = limits.take(policy, caller)
        self._rate = rate_limits.headers_of(verdict, enabled=True)
        if verdict.retry_after:
            refusal = Refusal(
                "rate_limited",
                f"more than {verdict.policy.per_second:g} requests a second ({verdict.policy.name}); wait"
                f" {verdict.retry_after} s",
                fix={"action": "wait", "seconds": verdict.retry_after},
                details={"policy": verdict.policy.name},
            )
            raise OperationRefused(refusal, None, {"Retry-After": str(verdict.retry_after)})

    def _context(self, rule: Operation[Any]) -> Context:
        key: str | None = None
        expires: int | None = None
        if rule.keyed and (header := self._headers.get(b"idempotency-key")) is not None:
            try:
                key = parse_idempotency_key(header.decode("latin-1"))
            except ValueError:
                raise OperationRefused(
                    invalid("Idempotency-Key", "must be 1..255 visible ASCII characters", "1..255 characters")
                ) from None
        if rule.keyed and (header := self._headers.get(b"x-expires-after")) is not None:
            try:
                expires = parse_expires_after(header.decode("latin-1"))
            except ValueError:
                raise OperationRefused(invalid("X-Expires-After", "must be unix milliseconds, digits only")) from None
        return Context(self._request_id, key, expires, is_order=rule.is_order, ip=self._ip())

    def _query(self) -> dict[str, str]:
        raw = self._scope["query_string"]
        if not raw:
            return {}
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
        except ValueError:
            raise OperationRefused(invalid("query", "is not well-formed")) from None
        values = dict(pairs)
        if len(values) != len(pairs):
            raise OperationRefused(invalid("query", "names a parameter twice"))
        return values

    async def _body(self) -> bytes:
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:12]) > BODY_BYTES_MAX:
            raise OperationRefused(_too_large(), 413)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                # An incomplete body could be any request, so it is refused.
                raise OperationRefused(invalid("body", "ended before its Content-Length"))
            part = message.get("body", b"")
            size += len(part)
            if size > BODY_BYTES_MAX:
                raise OperationRefused(_too_large(), 413)
            parts.append(part)
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    def _parse(self, raw: bytes) -> Any:
        if not raw:
            return {}
        check_content_type(self._headers.get(b"content-type"), self._headers.get(b"content-encoding"))
        try:
            return strict_json.parse(raw)
        except strict_json.BadJson as error:
            raise OperationRefused(invalid("body", str(error))) from None

    # ── The answer
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer_of(
        self, refusal: Refusal, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> ServiceAnswer:
        """A refusal as this request's error object."""
        answer = refuse(
            refusal,
            request_id=self._request_id,
            docs=self._operations.docs,
            is_order=self._is_order,
            status=status,
            headers=headers,
        )
        if self._is_rpc:
            answer = answer._replace(body=strict_json.dumps(_as_rpc(answer)))
        if answer.status == 401 and "WWW-Authenticate" not in answer.headers:
            answer = ServiceAnswer(answer.status, answer.body, {**answer.headers, "WWW-Authenticate": "Bearer"})
        if answer.status == 503 and "Retry-After" not in answer.headers:
            answer = ServiceAnswer(answer.status, answer.body, {**answer.headers, "Retry-After": "1"})
        return answer

    async def _refuse(
        self, refusal: Refusal, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await send_answer(self.answer_of(refusal, status, headers), self._respond)

    async def _respond(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._operations.machine.settle()
            self._started = True
            self._finish_headers(message)
        await self._send(message)

    def _finish_headers(self, message: Message) -> None:
        headers: list[tuple[bytes, bytes]] = list(message.get("headers", []))
        names = {name.lower() for name, _ in headers}
        headers.append((b"x-api-version", _VERSION))
        if b"x-request-id" not in names:
            headers.append((b"x-request-id", self._request_id.encode()))
        headers.extend(self._rate or _UNLIMITED)
        if b"cache-control" not in names:
            headers.append((b"cache-control", b"no-store"))
        headers.append((b"x-content-type-options", b"nosniff"))
        clock = self._operations.machine.clock
        if not clock.is_known:
            headers.append((b"x-sandbox-clock", format_sandbox_clock(clock.now_ms(), clock.speed).encode()))
        message["headers"] = headers


limits_off: Final = rate_limits.RateVerdict(rate_limits.POLICIES["default"], 0, 0, 0)
_UNLIMITED: Final = rate_limits.headers_of(limits_off, enabled=False)
_VERSION: Final = API_VERSION.encode()
_EMPTY: Final[dict[type[Request], Request]] = {}
_ids: Final[list[str]] = []


def _new_id() -> str:
    """A request id that nobody can guess."""
    if not _ids:
        drawn = os.urandom(ID_BYTES * IDS_AT_ONCE).hex()
        _ids.extend(drawn[at : at + 2 * ID_BYTES] for at in range(0, len(drawn), 2 * ID_BYTES))
    return f"req_{_ids.pop()}"


def _as_rpc(answer: ServiceAnswer) -> dict[str, Any]:
    """An error object as a JSON-RPC error, so that an agent's library shows the reason.

    The id is null because the body has not been read.
    """
    error = json.loads(answer.body)["error"]
    code = RPC_INVALID if error["code"] == "invalid_input" else RPC_REFUSED
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": error["message"], "data": error}}


async def send_answer(answer: ServiceAnswer, send: Send) -> None:
    """Send an answer as ASGI messages."""
    await send({"type": "http.response.start", "status": answer.status, "headers": headers_of(answer)})
    await send({"type": "http.response.body", "body": answer.body})


def headers_of(answer: ServiceAnswer) -> list[tuple[bytes, bytes]]:
    """The headers of this answer, without the headers that every response has."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer.body)).encode())]
    for name, value in answer.headers.items():
        headers.append((name.lower().encode(), value.encode("latin-1")))
    return headers


def check_content_type(kind: bytes | None, coding: bytes | None) -> None:
    """Refuse a body whose Content-Type or Content-Encoding is not plain JSON. A missing header counts as plain JSON."""
    if kind is not None and kind != b"application/json" and not _is_json(kind.decode("latin-1")):
        fix = {"field": "Content-Type", "value": "application/json"}
        raise OperationRefused(invalid("Content-Type", "must be application/json", ["application/json"], fix=fix), 415)
    if coding is not None and coding.strip().lower() != b"identity":
        fix = {"field": "Content-Encoding", "value": "identity"}
        raise OperationRefused(
            invalid("Content-Encoding", "must be identity: compressed bodies are not supported", ["identity"], fix=fix),
            415,
            {"Accept-Encoding": "identity"},
        )


def is_local_socket(scope: Scope) -> bool:
    """True if the request came over a Unix socket. Such a server has no port, and such a client has no address."""
    server, client = scope.get("server"), scope.get("client")
    return server is not None and server[1] is None and client is None and str(server[0]).startswith("/")


def _is_json(kind: str) -> bool:
    return kind.partition(";")[0].strip().lower() == "application/json"


def _check_sound(machine: Machine) -> None:
    if machine.fault is not None:
        text = "the service is stopping after an internal error"
        raise OperationRefused(Refusal("service_unavailable", text), None, {"Retry-After": "1"})


def check_still_valid(machine: Machine, generation: int, principal: Principal) -> None:
    """Check a request again after a wait. Refused if the service was restored to another state, if the credential is no
    longer valid, or if the service has failed.
    """
    _check_sound(machine)
    if generation != machine.generation:
        text = "the service was restored during this request; nothing was done, send the request again"
        raise OperationRefused(Refusal("service_unavailable", text), None, {"Retry-After": "1"})
    ended = None if principal is _NOBODY else end_of(machine.state, principal, machine.clock.now_ms())
    if ended is not None:
        raise OperationRefused(ended, None, {"WWW-Authenticate": 'Bearer error="invalid_token"'})


def _too_large() -> Refusal:
    text = f"the body is larger than {BODY_BYTES_MAX} bytes"
    problem = {"field": "body", "problem": text, "allowed": f"{BODY_BYTES_MAX} bytes"}
    return Refusal("invalid_input", text, details={"fields": [problem]})
