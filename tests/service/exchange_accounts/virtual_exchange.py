"""The local exchange, its wire and the link without sockets, processes and signatures, in virtual time.

Between the follower of an account and the exchange's engine everything is production code but these: HTTP requests and
sockets are calls, the link's process is a task that can be killed, and the writer of the command log commits at an
instant of virtual time. In worlds, signatures are names. What a killed process had given to the wire still arrives.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pytest

from bot.errors import BotError
from bot.exchanges.actions import ActionAnswer, ExchangeAction
from bot.exchanges.hyperliquid import transport
from bot.exchanges.hyperliquid.actions import sender
from bot.exchanges.hyperliquid.live import connections
from bot.exchanges.hyperliquid.live.exchange import Hyperliquid
from bot.exchanges.link import client
from bot.exchanges.link.values import packed, packed_error, unpacked, unpacked_error
from bot.exchanges.protocol import AccountReading, AccountReport, FillCursor, LinkHealth, NoExchangeAnswer, OrderUpdate
from bot.local_exchange.server.host import TICK_SECONDS
from bot.local_exchange.server.http import ABORT, Application
from bot.local_exchange.server.service import ExchangeService, ExchangeServiceOptions
from bot.local_exchange.wire import signatures
from bot.service import host
from bot.service.exchange_accounts import account_options, follower
from bot.service.state_machine.command_log import CommandLog, Statement
from tests.exchanges.agents import AGENT

URL: Final = "http://127.0.0.1:3001"
HANDSHAKE_SECONDS: Final = 10.0


class VirtualExchange:
    """The exchange, and the wire to it. While `is_away` nothing of it can be reached."""

    def __init__(self, chance: random.Random, switches: dict[str, str], seed: int, block_ms: int = 0) -> None:
        self.chance = chance
        self.is_away = False
        options = ExchangeServiceOptions(seed=seed, prices="held", switches=switches, block_ms=block_ms)
        self.service = ExchangeService(options)
        self.application = Application(self.service)
        # requests that the exchange has not answered; they go on when the caller has been killed
        self.under_way: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Let the exchange's time pass."""
        while True:
            await asyncio.sleep(TICK_SECONDS * 4)
            self.service.pass_time()

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def post(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        """The answer to a request; None: the connection ended without one."""
        await asyncio.sleep(self.chance.uniform(0.002, 0.08))
        if self.is_away:
            raise httpx.ConnectError("no route")
        answered: list[Any] = [0, b""]
        aborted: list[bool] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered[0] = message["status"]
            else:
                answered[1] += message.get("body", b"")

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "extensions": {ABORT: {"abort": lambda: aborted.append(True)}},
        }
        await self.application(scope, receive, send)
        await asyncio.sleep(self.chance.uniform(0.002, 0.08))
        return None if aborted or self.is_away else (answered[0], answered[1])


class CallTransport(httpx.AsyncBaseTransport):
    """HTTP requests as calls. A request goes on when its caller has gone."""

    def __init__(self, exchange: VirtualExchange) -> None:
        self._exchange = exchange

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        seconds = request.extensions["timeout"]["read"]
        task = self._exchange.keep(self._exchange.post(request.url.path, request.content))
        try:
            async with asyncio.timeout(seconds):
                answer = await asyncio.shield(task)
        except TimeoutError:
            raise httpx.ReadTimeout("no answer") from None
        if answer is None:
            raise httpx.RemoteProtocolError("the server has closed the connection")
        return httpx.Response(answer[0], content=answer[1])


class CallSocket:
    """A WebSocket as two queues."""

    def __init__(self, url: str, exchange: VirtualExchange) -> None:
        self.url = url
        self._exchange = exchange
        self._to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.serving: asyncio.Task[Any]

    @classmethod
    def of(cls, exchange: VirtualExchange) -> Callable[[str], Coroutine[Any, Any, CallSocket]]:
        async def opened(url: str) -> CallSocket:
            await asyncio.sleep(exchange.chance.uniform(0.002, 0.08))
            if exchange.is_away:
                raise NoExchangeAnswer(f"{url}: no route; check the network")
            socket = cls(url, exchange)
            scope = {"type": "websocket", "path": "/ws", "client": ("127.0.0.1", 1)}
            socket._to_server.put_nowait({"type": "websocket.connect"})
            serving = exchange.application(scope, socket._to_server.get, socket._send)
            socket.serving = asyncio.get_running_loop().create_task(serving)
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                if not await socket.accepted:
                    raise NoExchangeAnswer(f"{url}: the exchange refuses the connection (HTTP 403)")
            return socket

        return opened

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            # What is told while there is no route is lost.
            if not self._exchange.is_away:
                self._texts.put_nowait(message["text"])
        elif message["type"] == "websocket.accept":
            self.accepted.set_result(True)
        else:
            if not self.accepted.done():
                self.accepted.set_result(False)
            self._texts.put_nowait(None)

    async def send(self, text: str) -> None:
        self._to_server.put_nowait({"type": "websocket.receive", "text": text})

    async def receive(self) -> str:
        text = await self._texts.get()
        if text is None:
            raise NoExchangeAnswer(f"{self.url}: the exchange has closed the connection (code 1000)")
        return text

    async def close(self) -> None:
        self._to_server.put_nowait({"type": "websocket.disconnect"})
        self.serving.cancel()
        with suppress(asyncio.CancelledError):
            await self.serving


class NamedSigner:
    """Signs with the agent's name."""

    def __init__(self, path: Path, *, is_mainnet: bool) -> None:
        self.address = path.read_text(encoding="utf-8").strip()

    def body(self, action: dict[str, Any], nonce: int, expires_ms: int | None) -> dict[str, Any]:
        signed = {"action": action, "nonce": nonce, "signature": {"by": self.address}, "vaultAddress": None}
        return signed if expires_ms is None else {**signed, "expiresAfter": expires_ms}


def signer_named(_action: Any, _nonce: int, _vault: Any, _expires_ms: Any, signature: Any, _network: str) -> str:
    return str(signature["by"])


class TaskLink:
    """The link as a task. `kill` ends it at once, with every operation that runs."""

    alive: Final[list[TaskLink]] = []

    def __init__(self, exchange: str, place: str, *, agent_key_file: Path | None = None) -> None:
        assert exchange == "hyperliquid"
        path = None if agent_key_file is None else str(agent_key_file)
        self._plugin = Hyperliquid(place, path, random=random.Random(place))
        self._running: set[asyncio.Task[Any]] = set()
        self._is_dead = False

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0.5)
        await self._plugin.__aenter__()
        self.alive.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._plugin.__aexit__(None, None, None)

    def kill(self) -> None:
        self._is_dead = True
        if self in self.alive:
            self.alive.remove(self)
        for task in self._running:
            task.cancel()

    async def _performed(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """One operation in the link, with its values as frames carry them."""
        if self._is_dead:
            operation.close()
            raise NoExchangeAnswer("the link has ended")
        task = asyncio.get_running_loop().create_task(operation)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        error = None if task.cancelled() else task.exception()
        # What a dead process would have answered is not heard.
        if task.cancelled() or self._is_dead:
            raise NoExchangeAnswer("the link has ended")
        if isinstance(error, BotError):
            raise unpacked_error(packed_error(error))
        value = task.result()
        return None if value is None else unpacked(json.loads(json.dumps(packed(value))))

    async def account(self, address: str, cursor: FillCursor | None = None) -> AsyncIterator[list[AccountReport]]:
        batches: asyncio.Queue[list[Any] | None] = asyncio.Queue()

        async def stream() -> None:
            try:
                async for reports in self._plugin.account(address, cursor):
                    batches.put_nowait([unpacked(packed(report)) for report in reports])
            finally:
                batches.put_nowait(None)

        streaming = asyncio.get_running_loop().create_task(self._performed(stream()))
        try:
            while (batch := await batches.get()) is not None:
                yield batch
            await streaming
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)

    async def act(self, action: ExchangeAction) -> ActionAnswer:
        answer: ActionAnswer = await self._performed(self._plugin.act(unpacked(packed(action))))
        return answer

    async def look(self, address: str, name: str) -> OrderUpdate | None:
        update: OrderUpdate | None = await self._performed(self._plugin.look(address, name))
        return update

    async def read(self, address: str, after_ms: int) -> AccountReading:
        read: AccountReading = await self._performed(self._plugin.read(address, after_ms))
        return read

    async def health(self) -> LinkHealth:
        if self._is_dead:
            raise NoExchangeAnswer("the link has ended")
        return self._plugin.health()


class VirtualLog(CommandLog):
    """A command log whose commits take virtual time. `kill` loses what is not committed."""

    opened: Final[list[VirtualLog]] = []
    chance = random.Random(0)

    def open(self) -> Any:
        recovered = super().open()
        self._writer.execute("PRAGMA synchronous=OFF")
        self.waiting: list[Statement] = []
        self.is_dead = False
        self.opened.append(self)
        return recovered

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hand_over()

    def _hand_over(self) -> None:
        staged, self._staged = self._staged, []
        if staged and not self.waiting and self._loop is not None:
            self._loop.call_later(self.chance.uniform(0.0005, 0.02), self.write)
        self.waiting += staged

    def write(self) -> None:
        """Commit what waits."""
        batch, self.waiting = self.waiting, []
        if batch and not self.is_dead:
            self._commit(batch)
            self._written += len(batch)
            self._committed(batch)

    def flush(self) -> None:
        self._hand_over()
        self.write()

    def kill(self) -> None:
        self.is_dead = True
        self._loop = None
        self.waiting = []
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._drop_lock()

    def close(self) -> None:
        if not self.is_dead:
            self.flush()
            self.kill()


@contextmanager
def connected_by_calls(exchange: VirtualExchange) -> Iterator[pytest.MonkeyPatch]:
    """Production code over this exchange, with real signatures."""
    TaskLink.alive.clear()
    VirtualLog.opened.clear()
    VirtualLog.chance = random.Random(exchange.chance.random())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "bounded_transport", lambda *_, **__: CallTransport(exchange))
        patch.setattr(connections.WebSocket, "open", CallSocket.of(exchange))
        for module in (client, follower):
            patch.setattr(module, "ExchangeLink", TaskLink)
        # It looks through the metadata of all packages.
        patch.setattr(account_options, "open_exchange", lambda *_: None)
        patch.setattr(host, "CommandLog", VirtualLog)
        yield patch


@contextmanager
def in_one_process(exchange: VirtualExchange, folder: Path) -> Iterator[Path]:
    """Production code over this exchange; signatures are names. Yields the file with the agent's name."""
    agent = folder / "agent"
    agent.write_text(AGENT, encoding="utf-8")
    with connected_by_calls(exchange) as patch:
        patch.setattr(sender, "Signer", NamedSigner)
        patch.setattr(signatures, "signer_of_l1", signer_named)
        yield agent
