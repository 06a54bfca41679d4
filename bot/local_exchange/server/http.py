"""The application: `/info`, `/exchange` and `/control` by HTTP, `/ws` by WebSocket, all on one port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from bot.local_exchange.faults import HTML_502, ExchangeFault
from bot.local_exchange.server import limits
from bot.local_exchange.server.blocks import Blocks
from bot.local_exchange.server.control import BadCommand
from bot.local_exchange.server.service import ExchangeService
from bot.local_exchange.server.socket import Hub
from bot.local_exchange.wire.actions import Malformed, weight_of
from bot.local_exchange.wire.queries import ServerFault
from bot.local_exchange.wire.requests import Signed
from bot.logs import log

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_MOST: Final = 1_000_000
LOOPBACK: Final = ("127.0.0.1", "::1")
BAD_JSON: Final = "Failed to parse the request body as JSON"
BAD_SHAPE: Final = "Failed to deserialize the JSON body into the target type"
NO_TYPE: Final = "Expected request with `Content-Type: application/json`"
# scope extension: {"abort": closes the connection without an answer}
ABORT: Final = "local_exchange.abort"

# status, content type, body
Reply = tuple[int, str, bytes]


class Lost(Exception):
    """A fault: the connection ends without an answer."""


def json_reply(value: Any, status: int = 200) -> Reply:
    return status, "application/json", json.dumps(value, separators=(",", ":")).encode()


def text_reply(text: str, status: int) -> Reply:
    return status, "text/plain; charset=utf-8", text.encode()


class Application:
    """One ASGI application."""

    def __init__(self, service: ExchangeService) -> None:
        self.service = service
        self.callers: dict[str, limits.CallerUsage] = {}
        self.blocks = Blocks(service, service.options.block_ms)
        self.hub = Hub(service, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self.hub.serve(scope, receive, send)
            return
        assert scope["type"] == "http"
        try:
            status, kind, body = await self._answer(scope, await _body(receive))
        except Lost:
            scope["extensions"][ABORT]["abort"]()
            return
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def caller(self, scope: Scope) -> limits.CallerUsage:
        return self.callers.setdefault((scope.get("client") or ("",))[0], limits.CallerUsage())

    async def _answer(self, scope: Scope, data: bytes) -> Reply:
        path, is_post = scope["path"], scope["method"] == "POST"
        if path.startswith("/control/"):
            return self._control(scope, path.removeprefix("/control/"), data)
        if path not in ("/info", "/exchange"):
            return text_reply("", 404)
        if not is_post:
            return text_reply("", 405)
        kinds = [value for name, value in scope["headers"] if name == b"content-type"]
        if not kinds or not kinds[0].startswith(b"application/json"):
            return text_reply(NO_TYPE, 415)
        try:
            # Bytes after the first value are ignored, as the exchange does.
            body, _ = json.JSONDecoder().raw_decode(data.decode().lstrip())
        except (RecursionError, ValueError) as error:
            return text_reply(f"{BAD_JSON}: {error}", 400)
        if path == "/info":
            return await self.info(scope, body)
        return await self.exchange(scope, body)

    # ── /info ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def info(self, scope: Scope, body: Any) -> Reply:
        kind = body.get("type") if isinstance(body, dict) else None
        caller, now_ms = self.caller(scope), self.service.pass_time()
        reply = await self._meet("request_in", path="/info", action=kind, user=None)
        if reply is not None:
            return reply
        if (limited := self._limited(caller, now_ms)) is not None:
            return limited
        try:
            answer, weight = self.service.info(body)
        except Malformed as error:
            return self._malformed(error)
        except ServerFault:
            return json_reply(None, 500)
        caller.weight.add(now_ms, weight)
        await self._meet("reply_out", path="/info", action=kind, user=None)
        return json_reply(answer)

    def _limited(self, caller: limits.CallerUsage, now_ms: int) -> Reply | None:
        if self.service.exchange.switch("ip_limit") == "on" and not caller.weight.take(now_ms, 0):
            log.info("exchange.limited", explain="1,200 weight a minute for each IP; the switch ip_limit turns it off")
            return json_reply(None, 429)
        return None

    def _malformed(self, error: Malformed) -> Reply:
        log.info("exchange.malformed", explain=str(error))
        return text_reply(f"{BAD_SHAPE}: {error}", 422)

    # ── /exchange ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def exchange(self, scope: Scope, body: Any) -> Reply:
        caller, now_ms = self.caller(scope), self.service.pass_time()
        if (limited := self._limited(caller, now_ms)) is not None:
            return limited
        try:
            signed = self.service.read(body)
        except Malformed as error:
            return self._malformed(error)
        where = {"path": "/exchange", "action": signed.action["type"], "user": signed.signer}
        reply = await self._meet("request_in", **where)
        if reply is not None:
            return reply
        caller.weight.add(now_ms, 1 + weight_of(signed.action) // limits.BATCH_PER_WEIGHT)
        await self._before(signed, where)
        answer = await self.blocks.perform(signed)
        reply = await self._meet("after_execution", **where)
        if reply is not None:
            return reply
        await self._meet("reply_out", **where)
        return json_reply(answer)

    async def _before(self, signed: Signed, where: dict[str, Any]) -> None:
        fault = self.service.faults.take("before_execution", **where)
        if fault is not None and fault.kind == "late":
            await asyncio.sleep(fault.ms / 1000)
        elif fault is not None:
            loop = asyncio.get_running_loop()
            # The exchange gets the same bytes a second time.
            loop.call_later(fault.ms / 1000, self.service.perform, signed)

    async def _meet(self, point: str, **where: Any) -> Reply | None:
        """Act out a fault that waits at this point: an answer in its place, a delay, or no answer."""
        fault = self.service.faults.take(point, **where)
        return None if fault is None else await self._act(fault)

    async def _act(self, fault: ExchangeFault) -> Reply | None:
        log.info("exchange.fault", point=fault.point, kind=fault.kind)
        if fault.kind == "late":
            await asyncio.sleep(fault.ms / 1000)
            return None
        if fault.kind == "silence":
            await asyncio.sleep(fault.ms / 1000)
            raise Lost
        if fault.kind == "lost":
            raise Lost
        if fault.kind == "html_502":
            return 502, "text/html", HTML_502.encode()
        status = int(fault.kind.removeprefix("status_"))
        return text_reply(BAD_JSON, 400) if status == 400 else json_reply(None, status)

    # ── /control ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _control(self, scope: Scope, name: str, data: bytes) -> Reply:
        if (scope.get("client") or ("",))[0] not in LOOPBACK:
            return json_reply({"error": "control is for this machine only: connect to 127.0.0.1"}, 403)
        try:
            body = json.loads(data or b"{}")
        except (RecursionError, ValueError) as error:
            return json_reply({"error": f"the body is not JSON: {error}"}, 400)
        if not isinstance(body, dict):
            return json_reply({"error": "the body must be a JSON object"}, 400)
        try:
            return json_reply(self.service.command(name, body))
        except BadCommand as error:
            return json_reply({"error": str(error)}, 400)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Lost
        part = message.get("body", b"")
        size += len(part)
        if size <= BODY_MOST:
            parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
