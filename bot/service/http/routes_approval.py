"""The page at verificationUri, where the owner approves or denies a device. A visit is kept in memory for ten minutes
of real time.

Every form must come from this origin, with the visit's token (a cookie of this path only) and a CSRF token. Sign-in
gives the visit a new token, so that a token planted by an attacker is useless.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from bot.clock import monotonic_ns
from bot.errors import Refusal
from bot.money import format_e8
from bot.service.bodies.responses import OperationRefused, invalid, of_validation
from bot.service.http import approval_page
from bot.service.http.routes_v1 import Router, call_of
from bot.service.operations import phone_numbers
from bot.service.operations.executor import Context
from bot.service.operations.keys import covers
from bot.service.operations.operations import Operations
from bot.service.security.auth import OWNER_SCOPES, Principal, authenticate
from bot.wire.base import Request, Text
from bot.wire.interface import Access, Operation
from bot.wire.requests import OtpRequest, VerifyRequest

VISIT_SECONDS: Final = 600
# the oldest goes first
VISITS_MAX: Final = 1_000
FORM_BYTES_MAX: Final = 8 * 1024
FIELDS_MAX: Final = 20
COOKIE: Final = "bb_device"
NAME_DEFAULT: Final = "device"


class DevicePageQuery(Request):
    """GET /device."""

    user_code: Annotated[str, Text(0, 32)] = ""


@dataclass(slots=True)
class Visit:
    """One person at the page: the device, the phone number, and the owner who signed in."""

    csrf: str
    until_ns: int
    user_code: str = ""
    device: str | None = None
    phone: str | None = None
    owner: Principal | None = None


class _Denied(Exception):
    """The form did not come from this page; the person must start again."""


Form = dict[str, list[str]]


class ApprovalPage:
    """The steps: code, sign-in, decision. Each step returns the next page."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        self._steps: dict[str, Callable[[Visit, Form, Context], str]] = {
            "code": self._code,
            "phone": self._phone,
            "otp": self._otp,
            "key": self._key,
            "approve": self._approve,
            "deny": self._deny,
        }

    def show(self, query: DevicePageQuery) -> Response:
        """GET: start a visit and show the first form. A code in the URL only fills in the field."""
        name, visit = self._begin()
        return self._answer(approval_page.enter_code(visit.csrf, query.user_code), cookie=name)

    async def take(self, http: HttpRequest, context: Context) -> Response:
        """Take one step of a person: the answer to POST /device."""
        try:
            self._check_origin(http)
            name = http.cookies.get(COOKIE, "")
            visit = self._visit(name)
            form = await _form(http)
            if not hmac.compare_digest(visit.csrf.encode(), _field(form, "csrf").encode()):
                raise _Denied("This form has expired.")
            step = self._steps.get(_field(form, "step"))
            if step is None:
                raise _Denied("This form has no such button.")
        except _Denied as denied:
            return self._answer(
                approval_page.done("Start again", f"{denied} Open the address that your device shows again."), 403
            )
        was_known = visit.owner is not None
        page, status = self._run(step, visit, form, context)
        if visit.owner is not None and not was_known:
            # A parallel request may have ended the visit, or newer visits may have displaced it.
            self._visits.pop(name, None)
            name = secrets.token_urlsafe(32)
            self._visits[name] = visit
        # The owner has decided, so the visit ends.
        if visit.device is None and visit.owner is not None:
            self._visits.pop(name, None)
        return self._answer(page, status, cookie=name)

    def _run(
        self, step: Callable[[Visit, Form, Context], str], visit: Visit, form: Form, context: Context
    ) -> tuple[str, int]:
        try:
            return step(visit, form, context), 200
        except ValidationError as error:
            return self._again(visit, of_validation(error).message, form), 400
        except OperationRefused as no:
            status = 429 if no.refusal.code == "rate_limited" else 400
            return self._again(visit, no.refusal.message, form), status

    # ── Steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _code(self, visit: Visit, form: Form, context: Context) -> str:
        visit.device, visit.phone, visit.owner = None, None, None
        typed = _field(form, "userCode")
        grant = self._operations.find_device(typed, context.ip)
        letters = "".join(letter for letter in typed.upper() if letter.isalpha())
        visit.device, visit.user_code = grant.device, f"{letters[:4]}-{letters[4:8]}"
        return approval_page.sign_in(visit.csrf)

    def _phone(self, visit: Visit, form: Form, context: Context) -> str:
        self._waiting(visit)
        body = {"phoneNumber": _field(form, "phoneNumber")}
        if country := _field(form, "country").strip():
            body["country"] = country
        request = OtpRequest.from_wire(body)
        code = self._operations.new_code(request, context)
        visit.phone = phone_numbers.parse_phone(request.phone_number, request.country).e164
        return approval_page.enter_otp(visit.csrf, visit.phone, code)

    def _otp(self, visit: Visit, form: Form, context: Context) -> str:
        self._waiting(visit)
        if visit.phone is None:
            raise OperationRefused(invalid("phoneNumber", "must be given first"))
        request = VerifyRequest.from_wire({"phoneNumber": visit.phone, "code": _field(form, "otp").strip()})
        signed = self._operations.judge_code(request, context, None)
        visit.owner = Principal(signed.account.id, None, frozenset(OWNER_SCOPES), owner=True)
        return self._decision(visit)

    def _key(self, visit: Visit, form: Form, context: Context) -> str:
        self._waiting(visit)
        machine = self._operations.machine
        principal = authenticate(machine.state, f"Bearer {_field(form, 'apiKey').strip()}", machine.catch_up())
        if isinstance(principal, Refusal):
            raise OperationRefused(principal)
        if not principal.owner:
            raise OperationRefused(
                Refusal("forbidden", "only the owner's key, the first key of an account, may approve a device")
            )
        visit.owner = principal
        return self._decision(visit)

    def _approve(self, visit: Visit, form: Form, context: Context) -> str:
        owner, device = self._owner(visit), self._waiting(visit)
        scopes = tuple(scope for scope, _ in approval_page.SCOPES if scope in form.get("scope", []))
        if not scopes or len(scopes) != len(form.get("scope", [])):
            raise OperationRefused(invalid("scope", "must be one or more of the offered scopes"))
        name = "".join(letter for letter in _field(form, "name").strip() if letter.isprintable())[:64] or NAME_DEFAULT
        self._operations.decide_device(owner, device, name, scopes, yes=True)
        visit.device = None
        return approval_page.done(
            "Approved", f"The device gets a key named “{name}” with {', '.join(scopes)}. You may close this page."
        )

    def _deny(self, visit: Visit, form: Form, context: Context) -> str:
        self._operations.decide_device(self._owner(visit), self._waiting(visit), "", (), yes=False)
        visit.device = None
        return approval_page.done("Denied", "The device gets no key. You may close this page.")

    def _decision(self, visit: Visit, problem: str | None = None, form: Form | None = None) -> str:
        owner, grant = self._owner(visit), self._operations.waiting_device(visit.device or "")
        if grant is None:
            return approval_page.done("Too late", "This request has expired, or somebody has already decided it.")
        account = self._operations.account(owner)
        key = self._operations.key(owner)
        caps: list[tuple[str, str]] = []
        if key is not None:
            caps = [
                (label, value)
                for label, value in (
                    ("Most exposure", key.max_exposure and f"{format_e8(key.max_exposure)} USD"),
                    ("Most a day", key.max_daily_notional and f"{format_e8(key.max_daily_notional)} USD"),
                    ("Most leverage", key.max_leverage and f"{key.max_leverage}x"),
                    ("Markets", key.allowed_coins is not None and (", ".join(key.allowed_coins) or "none")),
                    ("Most positions", key.max_open_positions and str(key.max_open_positions)),
                )
                if isinstance(value, str)
            ]
        facts = [
            ("Account", f"{account.name or 'account'} · {account.address}"),
            ("Code", visit.user_code),
            ("Asked from", grant.origin),
            ("Program", grant.agent or "unknown"),
            *caps,
        ]
        return approval_page.decide(
            visit.csrf,
            facts,
            name=NAME_DEFAULT if form is None else _field(form, "name")[:64],
            offered=[scope for scope, _ in approval_page.SCOPES if covers(tuple(owner.scopes), scope)],
            chosen=["read"] if form is None else form.get("scope", []),
            problem=problem,
        )

    def _again(self, visit: Visit, problem: str, form: Form) -> str:
        """This form again, with the reason for the refusal."""
        if visit.device is None:
            return approval_page.enter_code(visit.csrf, _field(form, "userCode"), problem)
        if visit.owner is not None:
            return self._decision(visit, problem, form)
        if visit.phone is not None and _field(form, "step") == "otp":
            return approval_page.enter_otp(visit.csrf, visit.phone, None, problem)
        return approval_page.sign_in(visit.csrf, problem)

    def _owner(self, visit: Visit) -> Principal:
        """The owner who signed in. Refused if the credential is no longer valid."""
        owner = visit.owner
        if owner is None:
            raise OperationRefused(Refusal("unauthorized", "sign in first"))
        state = self._operations.machine.state
        if owner.account not in state.accounts or (owner.key is not None and owner.key not in state.keys):
            # the sandbox was reset or restored to a state without this account
            visit.owner = None
            raise OperationRefused(Refusal("unauthorized", "the account no longer exists"))
        key = self._operations.key(owner)
        now = self._operations.machine.catch_up()
        if key is not None and (key.revoked or (key.expires_ms is not None and now >= key.expires_ms)):
            visit.owner = None
            raise OperationRefused(Refusal("unauthorized", "the key has been revoked or has expired"))
        return owner

    def _waiting(self, visit: Visit) -> str:
        if visit.device is None or self._operations.waiting_device(visit.device) is None:
            # the person starts again with another code
            visit.device, visit.owner = None, None
            raise OperationRefused(Refusal("not_found", "this request has expired, or somebody has already decided it"))
        return visit.device

    # ── Visits and forms ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> tuple[str, Visit]:
        name = secrets.token_urlsafe(32)
        visit = Visit(secrets.token_urlsafe(32), monotonic_ns() + VISIT_SECONDS * 1_000_000_000)
        self._visits[name] = visit
        while len(self._visits) > VISITS_MAX:
            self._visits.popitem(last=False)
        return name, visit

    def _visit(self, name: str) -> Visit:
        visit = self._visits.get(name)
        if visit is None or monotonic_ns() >= visit.until_ns:
            self._visits.pop(name, None)
            raise _Denied("This page was open for too long, or its cookie is missing.")
        return visit

    def _check_origin(self, http: HttpRequest) -> None:
        """Refuse a form from another site. Browsers send the site in Origin or in Sec-Fetch-Site."""
        origin, site = http.headers.get("origin"), http.headers.get("sec-fetch-site")
        host = http.headers.get("host", "")
        own = origin is not None and urlsplit(origin).netloc == host and host != ""
        if origin is None:
            own = site == "same-origin"
        if not own or (site is not None and site != "same-origin"):
            raise _Denied("This form came from another site.")

    def _answer(self, page: str, status: int = 200, *, cookie: str | None = None) -> Response:
        answer = Response(page, status, headers=dict(approval_page.HEADERS), media_type="text/html")
        if cookie is not None:
            secure = self._operations.base_url.startswith("https:")
            answer.set_cookie(
                COOKIE, cookie, max_age=VISIT_SECONDS, path="/device", httponly=True, samesite="strict", secure=secure
            )
        return answer


def _field(form: Form, name: str) -> str:
    values = form.get(name, [])
    return values[0] if len(values) == 1 else ""


async def _form(http: HttpRequest) -> Form:
    """The fields of a form as a browser sends it; _Denied for anything else."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise _Denied("This request is not a form.")
    parts: list[bytes] = []
    size = 0
    async for part in http.stream():
        size += len(part)
        if size > FORM_BYTES_MAX:
            raise _Denied("The form is too large.")
        parts.append(part)
    try:
        return parse_qs(
            b"".join(parts).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise _Denied("The form cannot be read.") from None


def add_approval(router: Router, operations: Operations) -> None:
    """GET and POST /device."""
    page = ApprovalPage(operations)

    @router.route(Operation("GET", "/device", Access.NONE, "public", query=DevicePageQuery))
    async def device_page(http: HttpRequest) -> Response:
        return page.show(call_of(http).ask(DevicePageQuery))

    @router.route(Operation("POST", "/device", Access.NONE, "public"))
    async def decide_device(http: HttpRequest) -> Response:
        return await page.take(http, call_of(http).context)
