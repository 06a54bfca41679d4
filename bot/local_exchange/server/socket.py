"""WebSockets: subscriptions, posts, and what the channels tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bot.local_exchange.engine.records import Report
from bot.local_exchange.server import limits
from bot.local_exchange.server.service import ExchangeService
from bot.local_exchange.wire.channels import CHANNELS, InvalidSubscription, normalised
from bot.logs import log

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Reply = tuple[int, str, bytes]

IDLE_SECONDS: Final = 60.0
QUEUE_MOST: Final = 10_000
GREETING: Final = "Websocket connection established."
# The order in which one block is told, unless it is drawn.
ORDER: Final = ("userFills", "userEvents", "userFundings", "orderUpdates", "userHistoricalOrders", "trades")


class Poster(Protocol):
    """What posts over a socket need from the HTTP application."""

    def caller(self, scope: Scope) -> limits.CallerUsage: ...
    async def info(self, scope: Scope, body: Any) -> Reply: ...
    async def exchange(self, scope: Scope, body: Any) -> Reply: ...


@dataclass(slots=True)
class Subscribed:
    """One subscription: when its state was last told, and which."""

    subscription: dict[str, Any]
    told_ms: int = -1
    told: str = ""


@dataclass(slots=True, eq=False)
class SocketConnection:
    caller: limits.CallerUsage
    subscribed: dict[str, Subscribed] = field(default_factory=dict)
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_MOST))
    # a message that a fault has put behind the next one
    held: str | None = None
    is_silent: bool = False
    told_at: float = 0.0

    def tell(self, message: str | None) -> None:
        with suppress(asyncio.QueueFull):
            self.queue.put_nowait(message)


class Hub:
    """All connections. The service calls `publish` after each change."""

    def __init__(self, service: ExchangeService, poster: Poster) -> None:
        self._service = service
        self._poster = poster
        self._connections: dict[SocketConnection, None] = {}
        service.listeners.append(self.publish)

    # ── One connection ──────────────────────────────────────────────────────────────────────────────────────────────

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, now_ms = self._poster.caller(scope), self._service.pass_time()
        await receive()
        limited = self._service.exchange.switch("ip_limit") == "on" and (
            caller.connections >= limits.CONNECTIONS or not caller.opened.take(now_ms)
        )
        refused = self._service.faults.take("socket", kind="refuse") is not None
        if scope["path"] != "/ws" or limited or refused:
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        connection = SocketConnection(caller)
        self._connections[connection] = None
        caller.connections += 1
        connection.tell(GREETING)
        writing = asyncio.create_task(self._write(connection, send))
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await self._hear(scope, connection, message.get("text") or message.get("bytes") or "")
        finally:
            writing.cancel()
            self._forget(connection)

    def _forget(self, connection: SocketConnection) -> None:
        caller = connection.caller
        self._connections.pop(connection, None)
        caller.connections -= 1
        for key in list(connection.subscribed):
            self._drop(connection, key)

    async def _write(self, connection: SocketConnection, send: Send) -> None:
        """Send what waits. A connection to which nothing was sent for a minute is closed."""
        while True:
            timeout = None if self._service.clock.is_manual else IDLE_SECONDS
            try:
                message = await asyncio.wait_for(connection.queue.get(), timeout)
            except TimeoutError:
                message = None
            if message is None:
                with suppress(Exception):
                    await send({"type": "websocket.close", "code": 1000})
                return
            if not connection.is_silent:
                await send({"type": "websocket.send", "text": message})

    # ── Messages of the client ──────────────────────────────────────────────────────────────────────────────────────

    async def _hear(self, scope: Scope, connection: SocketConnection, data: str | bytes) -> None:
        if not connection.caller.messages.take(self._service.exchange.now_ms) and self._is_limited():
            return self._error(connection, "Too many messages.")
        try:
            message = json.loads(data)
            method = message["method"]
        except (KeyError, RecursionError, TypeError, ValueError):
            return self._error(connection, f"Error parsing JSON into valid websocket request: {str(data)[:200]}")
        if method == "ping":
            return connection.tell(json.dumps({"channel": "pong"}))
        if method in ("subscribe", "unsubscribe"):
            return self._subscription(connection, method, message.get("subscription"))
        if method == "post" and isinstance(message.get("id"), int) and isinstance(message.get("request"), dict):
            return await self._post(scope, connection, message["id"], message["request"])
        return self._error(connection, f"Error parsing JSON into valid websocket request: {str(data)[:200]}")

    def _is_limited(self) -> bool:
        return self._service.exchange.switch("ip_limit") == "on"

    def _error(self, connection: SocketConnection, text: str) -> None:
        log.info("exchange.socket_error", explain=text)
        connection.tell(json.dumps({"channel": "error", "data": text}))

    def _subscription(self, connection: SocketConnection, method: str, given: Any) -> None:
        exchange = self._service.exchange
        try:
            subscription = normalised(exchange, given)
        except InvalidSubscription:
            return self._error(connection, f"Invalid subscription {json.dumps(given)}")
        key = json.dumps(subscription, sort_keys=True)
        if (method == "subscribe") == (key in connection.subscribed):
            return self._error(connection, f"Already {method}d: {json.dumps(subscription)}")
        caller, user = connection.caller, subscription.get("user")
        if method == "subscribe":
            if (
                self._is_limited()
                and user not in caller.users
                and user is not None
                and len(caller.users) >= limits.USERS
            ):
                return self._error(connection, f"Cannot track more than {limits.USERS} total users.")
            if self._is_limited() and caller.subscriptions >= limits.SUBSCRIPTIONS:
                return self._error(connection, f"Cannot have more than {limits.SUBSCRIPTIONS} subscriptions.")
        data = {"method": method, "subscription": subscription}
        connection.tell(json.dumps({"channel": "subscriptionResponse", "data": data}))
        if method == "unsubscribe":
            return self._drop(connection, key)
        entry = connection.subscribed[key] = Subscribed(subscription)
        caller.subscriptions += 1
        if user is not None:
            caller.users[user] = caller.users.get(user, 0) + 1
        channel = CHANNELS[subscription["type"]]
        for first in channel.snapshot(exchange, subscription) if channel.snapshot is not None else ():
            self._send(connection, entry, first)
        self._tell_state(connection, entry)
        return None

    def _drop(self, connection: SocketConnection, key: str) -> None:
        user = connection.subscribed.pop(key).subscription.get("user")
        caller = connection.caller
        caller.subscriptions -= 1
        if user is not None:
            caller.users[user] -= 1
            if not caller.users[user]:
                del caller.users[user]

    async def _post(self, scope: Scope, connection: SocketConnection, number: int, request: dict[str, Any]) -> None:
        """A request of /info or /exchange over the socket."""
        kind, payload = request.get("type"), request.get("payload")
        if kind == "info":
            status, _, body = await self._poster.info(scope, payload)
            told: Any = {"type": (payload or {}).get("type"), "data": json.loads(body)} if status == 200 else None
        elif kind == "action":
            status, _, body = await self._poster.exchange(scope, payload)
            told = json.loads(body) if status == 200 else None
        else:
            status, body, told = 422, b"unknown type of request", None
        if status != 200:
            kind, told = "error", f"{status} {body.decode()}"
        response = {"type": kind, "payload": told}
        connection.tell(json.dumps({"channel": "post", "data": {"id": number, "response": response}}))

    # ── What the channels tell ──────────────────────────────────────────────────────────────────────────────────────

    def publish(self, reports: list[Report]) -> None:
        """Tell every connection the reports of a block, then the states that have changed."""
        for connection in list(self._connections):
            if self._closed_by_fault(connection):
                continue
            entries = list(connection.subscribed.values())
            if reports:
                if self._service.exchange.switch("channel_order") == "drawn":
                    self._service.chance.shuffle(entries)
                else:
                    entries.sort(key=_rank)
                for entry in entries:
                    of_reports = CHANNELS[entry.subscription["type"]].of_reports
                    for data in of_reports(self._service.exchange, entry.subscription, reports) if of_reports else ():
                        self._send(connection, entry, data)
            for entry in entries:
                self._tell_state(connection, entry)

    def _closed_by_fault(self, connection: SocketConnection) -> bool:
        fault = self._service.faults.take("socket", kind="close")
        if fault is not None:
            connection.tell(None)
            return True
        if self._service.faults.take("socket", kind="silence") is not None:
            connection.is_silent = True
        return False

    def _tell_state(self, connection: SocketConnection, entry: Subscribed) -> None:
        channel, exchange = CHANNELS[entry.subscription["type"]], self._service.exchange
        due_ms = entry.told_ms + channel.every_ms
        if channel.state is None or (entry.told_ms >= 0 and exchange.now_ms < due_ms):
            return
        data = channel.state(exchange, entry.subscription)
        told = json.dumps(_without_time(data))
        if entry.told_ms >= 0 and told == entry.told and not channel.is_slow:
            return
        entry.told_ms, entry.told = exchange.now_ms, told
        self._send(connection, entry, data)

    def _send(self, connection: SocketConnection, entry: Subscribed, data: Any) -> None:
        name = CHANNELS[entry.subscription["type"]].name
        message = json.dumps({"channel": name, "data": data}, separators=(",", ":"))
        fault = self._service.faults.take(
            "socket_message", channel=entry.subscription["type"], user=entry.subscription.get("user")
        )
        kind = None if fault is None else fault.kind
        if kind == "late" and fault is not None:
            asyncio.get_running_loop().call_later(fault.ms / 1000, connection.tell, message)
        elif kind == "reorder":
            connection.held = message
            return
        elif kind != "lost":
            connection.tell(message)
            if kind == "double":
                connection.tell(message)
        if connection.held is not None:
            connection.tell(connection.held)
            connection.held = None


def _rank(entry: Subscribed) -> int:
    kind = entry.subscription["type"]
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _without_time(data: Any) -> Any:
    """A state without its own time, so that the same state is told once."""
    return {name: value for name, value in data.items() if name != "time"} if isinstance(data, dict) else data
