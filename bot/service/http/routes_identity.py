"""The routes of sign-in, keys, devices and settings: read the request, call the operation, send its answer.

No rule, no state.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from bot.service.http.routes_v1 import EMPTY, Router, call_of, respond
from bot.service.operations.operations import Operations
from bot.service.security.auth import Access
from bot.wire import requests


def add_identity(router: Router, operations: Operations) -> None:
    """Everything under /v1/auth, /v1/keys, /v1/oauth and /v1/settings."""
    _add_sign_in(router, operations)
    _add_keys(router, operations)
    _add_devices(router, operations)


def _add_sign_in(router: Router, operations: Operations) -> None:
    route = router.route

    @route("GET", "/v1/auth/countries", Access.NONE, "public")
    async def countries(http: Request) -> Response:
        return respond(operations.countries())

    @route("POST", "/v1/auth/otp", Access.NONE, "public", body=requests.OtpRequest)
    async def send_code(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.send_code(call.read(requests.OtpRequest), call.context))

    @route("POST", "/v1/auth/verify", Access.NONE, "public", body=requests.VerifyRequest)
    async def verify(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.verify(call.read(requests.VerifyRequest), call.context))

    @route("DELETE", "/v1/auth/session", Access.ANY, "default", body=EMPTY)
    async def end_session(http: Request) -> Response:
        return respond(operations.end_session(call_of(http).principal))


def _add_keys(router: Router, operations: Operations) -> None:
    route = router.route

    @route("POST", "/v1/keys", Access.OWNER, "default", body=requests.KeyRequest, keyed=True)
    async def create_key(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.create_key(call.principal, call.read(requests.KeyRequest), call.context))

    @route("GET", "/v1/keys", Access.OWNER, "default")
    async def keys(http: Request) -> Response:
        return respond(operations.keys(call_of(http).principal))

    @route("DELETE", "/v1/keys/{id}", Access.OWNER, "default", body=EMPTY)
    async def revoke_key(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.revoke_key(call.principal, http.path_params["id"], call.context))

    @route("GET", "/v1/settings", Access.READ, "default")
    async def settings(http: Request) -> Response:
        return respond(operations.settings(call_of(http).principal))

    @route("PATCH", "/v1/settings", Access.OWNER, "default", body=requests.SettingsRequest)
    async def change_settings(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.change_settings(call.principal, call.read(requests.SettingsRequest), call.context))


def _add_devices(router: Router, operations: Operations) -> None:
    route = router.route

    @route("POST", "/v1/oauth/device", Access.NONE, "accounts", body=requests.DeviceRequest)
    async def start_device(http: Request) -> Response:
        return respond(operations.start_device(call_of(http).context, http.headers.get("user-agent", "")))

    @route("POST", "/v1/oauth/device/token", Access.NONE, "public", body=requests.DeviceTokenRequest)
    async def device_token(http: Request) -> Response:
        call = call_of(http)
        return respond(operations.device_token(call.read(requests.DeviceTokenRequest), call.context))
