"""What every request must pass before a page sees it: the host, the origin, the cookie. And the headers of every
answer.

- Host: a name of this machine. A foreign name means that a site points its own name at this machine (DNS rebinding).
- Origin and Sec-Fetch-Site: requests from pages of other sites are refused. A change needs the Origin of this
dashboard.
- Cookie: set by a one-time link. Only the style sheet, the scripts and the sign-in page do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bot.chart_library import STYLE_SHA256
from bot.dashboard.sign_in import DashboardSignIn

LOCAL: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
READS: Final = frozenset({"GET", "HEAD"})
FORM_BYTES_MAX: Final = 8_192
SIGN_IN: Final = "/sign-in"
STATIC: Final = "/static/"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-"
    + STYLE_SHA256
    + "'; img-src 'self' data:; connect-src 'self';"
    " frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers then send `Origin: null` with a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class RequestChecks:
    """Wraps the application. `sign_in` knows the cookies; `files` are the names below /static/, which need none."""

    def __init__(self, app: ASGIApp, *, sign_in: DashboardSignIn, files: Iterable[str]) -> None:
        self._app = app
        self._sign_in = sign_in
        self._files = frozenset(STATIC + name for name in files)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _is_open(self, path: str, scope: Scope) -> bool:
        """True for the paths that need no cookie, spelled exactly so: no other spelling reaches a page that shows
        data.
        """
        is_exact = scope.get("raw_path", path.encode()) == path.encode()
        return is_exact and (path == SIGN_IN or path in self._files)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_local(hosts[0]):
            return refused(
                403, "this dashboard answers only under the name of this machine: open it as http://127.0.0.1"
            )
        if is_from_elsewhere(headers, hosts[0], changes=method not in READS):
            return refused(403, "this request comes from another site, and the dashboard refuses it")
        cookie = cookie_of(headers, self._sign_in.cookie_name)
        scope["state"] = {**scope.get("state", {}), "cookie": cookie}
        if self._is_open(path, scope) or self._sign_in.knows(cookie):
            return None
        if (
            method == "GET"
            and headers.get("sec-fetch-mode", "navigate") == "navigate"
            and "text/html" in headers.get("accept", "")
        ):
            return RedirectResponse(SIGN_IN, 303)
        return refused(401, "sign in first: `bot dashboard` on the machine of the daemon prints a link")


def refused(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


def is_local(host: str) -> bool:
    """True for a name of this machine, with any port: a tunnel of ssh may use another port than the dashboard."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon:
        name = host
    return name.lower() in LOCAL and (not colon or (port.isascii() and port.isdigit()))


def is_from_elsewhere(headers: Headers, host: str, *, changes: bool) -> bool:
    """True for a request that a page of another site makes, or a change that does not prove its origin.

    A link to the dashboard is no such request.
    """
    origins = headers.getlist("origin")
    if any(origin != f"http://{host}" for origin in origins) or (changes and len(origins) != 1):
        return True
    is_link = headers.get("sec-fetch-mode") == "navigate" and not changes
    return not is_link and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def cookie_of(headers: Headers, name: str) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if cookie is None else cookie.value


async def form_of(request: Request) -> dict[str, str] | None:
    """The fields of a form; None for a body that is no form or too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return None
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                return None
        return dict(parse_qsl(body.decode(), max_num_fields=50))
    except (UnicodeDecodeError, ValueError, ClientDisconnect):
        return None
