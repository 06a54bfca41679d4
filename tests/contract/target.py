"""The service under test: a process with a real server, reached as any caller reaches it.

Every answer is held to what all answers owe.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.contract import shapes

REPOSITORY = Path(__file__).resolve().parents[2]
CONTROL_TOKEN = "bbc_contract"
API_VERSION = "2026-10-19"

# code -> (statuses, retryable; None where it depends)
CODES: dict[str, tuple[set[int], bool | None]] = {
    "invalid_input": ({400, 405, 413, 415}, False),
    "unauthorized": ({401}, False),
    "session_expired": ({401}, False),
    "forbidden": ({403}, False),
    "key_limit_exceeded": ({403}, False),
    "not_found": ({404, 410}, False),
    "rate_limited": ({429}, True),
    "insufficient_funds": ({422}, False),
    "limit_exceeded": ({422}, False),
    "below_min_notional": ({422}, False),
    "leverage_too_high": ({422}, False),
    "insufficient_depth": ({409}, True),
    "market_closed": ({409}, False),
    "plan_stale": ({409}, False),
    "idempotency_conflict": ({409, 422}, None),
    "trade_failed": ({422, 502}, None),
    "service_unavailable": ({503}, True),
    "internal_error": ({500}, True),
}
ERROR_FIELDS = {"code", "message", "requestId", "details", "retryable", "orderSubmitted", "docsUrl", "fix"}
ORDER_ROUTES = re.compile(r"/v1/(orders(/confirm)?|positions/[^/]+/close|account/kill)")


def is_order_route(method: str, path: str) -> bool:
    return method == "POST" and ORDER_ROUTES.fullmatch(path) is not None


def owed(answer: httpx.Response, base_url: str) -> list[str]:
    """What this answer does not keep of the rules for every answer."""
    missing: list[str] = []
    headers = answer.headers
    if headers.get("x-api-version") != API_VERSION:
        missing.append("X-API-Version")
    request_id = headers.get("x-request-id", "")
    if re.fullmatch(r"req_[0-9A-Za-z]+", request_id) is None:
        missing.append(f"X-Request-Id {request_id!r}")
    missing += [name for name in ("ratelimit", "ratelimit-policy", "x-sandbox-clock") if not headers.get(name)]
    if answer.request.method == "HEAD":
        return missing
    if not headers.get("content-type", "").startswith("application/json"):
        missing.append(f"content type {headers.get('content-type')!r}")
        return missing
    body = json.loads(answer.content)
    missing += shapes.amounts(body)
    if answer.status_code == 200:
        return missing
    if set(body) != {"error"} or not set(body["error"]) <= ERROR_FIELDS:
        return [*missing, f"no error object: {body}"]
    return missing + _error_owes(answer, body["error"], base_url)


def _error_owes(answer: httpx.Response, error: dict[str, Any], base_url: str) -> list[str]:
    missing: list[str] = []
    statuses, retryable = CODES[error["code"]]
    if answer.status_code not in statuses:
        missing.append(f"{error['code']} with status {answer.status_code}")
    if error.get("requestId") != answer.headers.get("x-request-id"):
        missing.append("error.requestId is not X-Request-Id")
    if not error.get("message"):
        missing.append("message")
    if error.get("docsUrl") != f"{base_url}/docs/errors#{error['code']}":
        missing.append(f"docsUrl {error.get('docsUrl')!r}")
    if is_order_route(answer.request.method, answer.request.url.path) and not {"retryable", "orderSubmitted"} <= set(
        error
    ):
        missing.append("retryable and orderSubmitted on an order route")
    if retryable is not None and error.get("retryable", retryable) is not retryable:
        missing.append(f"retryable {error.get('retryable')}")
    fix = error.get("fix")
    if fix is not None and set(fix) - {"neighbours"} != {"field", "value"} and not isinstance(fix.get("action"), str):
        missing.append(f"fix {fix}")
    for one in (error.get("details") or {}).get("fields", ()):
        if (
            set(one) != {"field", "problem", "allowed"}
            or one["field"].partition(".")[0].partition("[")[0] not in error["message"]
        ):
            missing.append(f"details.fields {one} beside {error['message']!r}")
    wanted = {401: "www-authenticate", 405: "allow", 429: "retry-after", 503: "retry-after"}.get(answer.status_code)
    if wanted is not None and wanted not in answer.headers:
        missing.append(wanted)
    return missing


@dataclass
class Target:
    """One running service."""

    process: subprocess.Popen[bytes]
    base_url: str
    http: httpx.Client
    log: Path

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | list[tuple[str, str]] | None = None,
    ) -> httpx.Response:
        """Send, and hold the answer to what every answer owes."""
        content = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        answer = self.http.request(method, path, content=content, headers=headers)
        missing = owed(answer, self.base_url)
        assert missing == [], f"{method} {path} -> {answer.status_code} {answer.text[:600]}: {missing}"
        return answer

    def control(self, path: str, body: Any) -> Any:
        answer = self.http.post(f"/sandbox/v1{path}", json=body, headers={"Authorization": f"Bearer {CONTROL_TOKEN}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def price(self, coin: str, px: str, **more: str) -> Any:
        return self.control(f"/markets/{coin}/price", {"px": px, **more})

    def advance(self, ms: int) -> Any:
        return self.control("/clock/advance", {"ms": ms})

    def now(self) -> int:
        return int(self.http.get("/v1/system/status").json()["serverTime"])

    def caller(self, **body: Any) -> Caller:
        answer = self.send("POST", "/v1/sandbox/accounts", body)
        assert answer.status_code == 200, answer.text
        return Caller(self, answer.json())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.http.close()


@dataclass
class Caller:
    """An account's owner."""

    target: Target
    opened: dict[str, Any]
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.opened['apiKey']}"}

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        raw: bytes | None = None,
        **headers: str,
    ) -> httpx.Response:
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Idempotency-Key"] = key
        return self.target.send(method, path, body, raw=raw, headers=sent)

    def get(self, path: str) -> Any:
        return self._good(self.send("GET", path))

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        return self._good(self.send("POST", path, {} if body is None else body, key=key))

    def delete(self, path: str, body: Any = None) -> Any:
        return self._good(self.send("DELETE", path, body))

    def refused(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, error object) of a request that must fail."""
        answer = self.send(method, path, body, key=key, **headers)
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()["error"]

    def order(self, **fields: Any) -> Any:
        return self.post("/v1/orders", {"market": "BTC", "side": "long"} | fields)

    def _good(self, answer: httpx.Response) -> Any:
        assert answer.status_code == 200, answer.text
        return answer.json()


def start(folder: Path, **options: Any) -> Target:
    """Start a service of its own process and wait until it is ready."""
    reader, writer = os.pipe()
    log = folder / "service.log"
    with log.open("ab") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.serving", json.dumps({"port": 0, **options, "ready_fd": writer})],
            cwd=REPOSITORY,
            pass_fds=(writer,),
            stdout=subprocess.DEVNULL,
            stderr=words,
            env=os.environ | {"BOT_CONTROL_TOKEN": CONTROL_TOKEN},
        )
    os.close(writer)
    with os.fdopen(reader) as ready:
        line = ready.readline()
    assert line, log.read_text()
    base_url = json.loads(line)["baseUrl"]
    # less than the server's five, so that no request meets a connection as it closes
    limits = httpx.Limits(keepalive_expiry=2)
    return Target(process, base_url, httpx.Client(base_url=base_url, timeout=60, limits=limits), log)
