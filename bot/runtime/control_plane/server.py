"""The control socket: HTTP over `control.sock` in the state directory, for its owner only. It knows requests and
answers, no rule of the daemon.

Each connection carries one request; every size and every wait has a limit. The socket runs on the daemon's event loop,
so a route answers from memory or leaves slow work to a thread, and no request can delay an order. The caller must be
the same user (or root); the operating system says who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from bot.clock import SystemClock
from bot.descriptors import reserved
from bot.errors import ApiError, BotError, ConfigError, Exit
from bot.logs import log
from bot.operating_system import peer_uid, socket_name
from bot.runtime.control_plane.acceptor import Acceptor
from bot.runtime.control_plane.control_address import SOCKET, WARMING, answer_s
from bot.runtime.liveness.run_files import KEPT_LOOK_S, kept

# milliseconds or line numbers in a query; JSON carries whole numbers up to here exactly
INSTANT_MAX: Final = 2**53
HEAD_BYTES_MAX: Final = 16_384
BODY_BYTES_MAX: Final = 65_536
CONNECTIONS_MAX: Final = 32
# time for a whole request; the bot commands need milliseconds
READ_S: Final = 5.0
WRITE_S: Final = 10.0
# characters of a number; an order's have far fewer
NUMBER_MAX: Final = 40

JSON: Final = "application/json"

Data = dict[str, Any]


class RequestProblem(Exception):
    """An error answer: status, code and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request: the values of its query or JSON body, and the names that the route has asked for."""

    values: Mapping[str, Any]
    _asked: set[str] = field(default_factory=set)

    def text(self, name: str) -> str | None:
        self._asked.add(name)
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return value or None
        raise RequestProblem(400, "invalid_input", f"{name} is text, not {value!r}")

    def number(self, name: str, default: int, *, at_most: int) -> int:
        """From 0 to `at_most`."""
        self._asked.add(name)
        value = self.values.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= at_most:
            raise RequestProblem(400, "invalid_input", f"{name} is a whole number from 0 to {at_most}")
        return value

    def decimal(self, name: str) -> Decimal | None:
        """A finite number, exactly as it was written."""
        self._asked.add(name)
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, int | float | str) and not isinstance(value, bool) and len(str(value)) <= NUMBER_MAX:
            with contextlib.suppress(InvalidOperation):
                if (number := Decimal(str(value))).is_finite():
                    return number
        raise RequestProblem(400, "invalid_input", f"{name} is a number of at most {NUMBER_MAX} characters")

    def flag(self, name: str) -> bool:
        self._asked.add(name)
        value = self.values.get(name, False)
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return bool(value == "true")
        raise RequestProblem(400, "invalid_input", f"{name} is true or false")

    def nothing_else(self) -> None:
        """Problem for a value that the route does not know.

        A route calls this after it has asked for its values and before it acts.
        """
        for name in self.values:
            if name not in self._asked:
                near = difflib.get_close_matches(name, self._asked, n=1)
                hint = (
                    f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(self._asked)) or 'none'}"
                )
                raise RequestProblem(400, "invalid_input", f"unknown field {name}{hint}")


Route = Callable[[ControlRequest], Awaitable[Data]]
# (method, path)
Routes = Mapping[tuple[str, str], Route]


@contextlib.asynccontextmanager
async def serving(
    folder: Path, routes: Routes, base: Callable[[], Data], *, look_s: float = KEPT_LOOK_S
) -> AsyncIterator[None]:
    """Serve the routes until the block ends. `base` is part of every answer. If no socket can be made, the daemon
    trades on and logs it.

    Every `look_s` a socket that was removed is made again, and one that could not be made is tried again.
    """
    control_socket = _ControlSocket(folder / SOCKET, ControlServer(routes, base, folder=folder))
    await control_socket.open()
    try:
        async with kept(control_socket, look_s=look_s):
            yield
    finally:
        await control_socket.close()


class _ControlSocket:
    """The socket's file, and the server that listens on it."""

    def __init__(self, path: Path, server: ControlServer) -> None:
        self.path = path
        self._server = server
        self._running: Acceptor | None = None
        self._socket_file: tuple[int, int] | None = None
        self._trouble = ""

    async def open(self) -> None:
        """Make a new socket and listen. Accepted connections still get their answers."""
        before, self._running = self._running, None
        # Close it first, because the new socket may replace its file.
        if before is not None:
            before.close()
        try:
            listener = _listener(self.path)
        except OSError as error:
            trouble = error.strerror or str(error)
            # Log it once, however often it is tried.
            if trouble != self._trouble:
                log.error("control.unavailable", path=str(self.path), message=trouble)
            self._trouble = trouble
            return
        if before is not None or self._trouble:
            log.warning("control.restored", path=str(self.path))
        self._socket_file, self._trouble = _file_of(self.path), ""
        self._running = Acceptor(listener, self._server.accept, bytes_max=HEAD_BYTES_MAX)

    async def look(self) -> None:
        """Make a new socket if its file is gone. A file that somebody else has put there is left alone."""
        if _file_of(self.path) is None:
            await self.open()

    async def close(self) -> None:
        if self._running is not None:
            self._running.close()
        await self._server.close()
        if self._socket_file is not None and _file_of(self.path) == self._socket_file:
            # The disk may have become read-only; the next run removes the socket.
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _listener(path: Path) -> socket.socket:
    """This process holds the folder, so a socket file in it is left from a run that was killed."""
    path.unlink(missing_ok=True)
    with reserved():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reserved(), socket_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(CONNECTIONS_MAX)
    except BaseException:
        listener.close()
        raise
    return listener


class ControlServer:
    """Serves one request per connection. `folder`: where its socket is."""

    def __init__(
        self, routes: Routes, base: Callable[[], Data], user: int | None = None, folder: Path | None = None
    ) -> None:
        self._routes = routes
        self._base = base
        self._folder = folder
        self._user = os.geteuid() if user is None else user
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= CONNECTIONS_MAX:
            await _answer(writer, 503, _error("busy", "too many connections; ask again"))
            return
        self._tasks.add(task)
        try:
            status, data = await self._serve(reader, writer.get_extra_info("socket"))
            await _answer(writer, status, data)
        except asyncio.CancelledError:
            # The run ends.
            writer.close()
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """Cancel the requests under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, peer: Any) -> tuple[int, Data]:
        try:
            method, path, values = await read_request(reader)
        except RequestProblem as problem:
            return problem.status, _error(problem.code, problem.message)
        # The answer follows the reading, because a caller that still writes would not read it.
        if not self._admits(peer_uid(peer)):
            return 403, _error("forbidden", "this socket is for the user who runs the daemon")
        return await self._routed(method, path, values)

    def _admits(self, uid: int | None) -> bool:
        if uid is not None:
            return uid in (self._user, 0)
        # The system does not say who calls. Then only the owner of a private folder can have reached the socket.
        try:
            status = None if self._folder is None else self._folder.stat()
        except OSError:
            return False
        return status is not None and status.st_uid == self._user and not status.st_mode & 0o077

    async def _routed(self, method: str, path: str, values: Mapping[str, Any]) -> tuple[int, Data]:
        route = self._routes.get((method, path))
        if route is None:
            methods = sorted(known for known, at in self._routes if at == path)
            if methods:
                return 405, _error("invalid_input", f"{path} takes {', '.join(methods)}")
            return 404, _error("not_found", f"no {path}; there are {', '.join(sorted({at for _, at in self._routes}))}")
        try:
            async with asyncio.timeout(answer_s(path)):
                data = await route(ControlRequest(values))
        except RequestProblem as problem:
            return problem.status, _error(problem.code, problem.message)
        except TimeoutError:
            goes_on = " with it, and bot status says what comes of it" if path in WARMING else ""
            return 504, _error("timeout", f"no answer within {answer_s(path):g} s; the daemon goes on{goes_on}")
        except BotError as error:
            status = 400 if isinstance(error, ConfigError) else 504 if error.exit_code is Exit.TIMEOUT else 409
            code = error.code if isinstance(error, ApiError) else type(error).__name__
            return status, _error(code, str(error), exit_code=int(error.exit_code))
        # A fault of ours: the caller gets an error, and the run goes on.
        except Exception:
            log.exception("control.failed", path=path)
            return 500, _error("internal_error", f"{path} failed; the daemon's log says why, and it goes on")
        return 200, self._base() | data


async def _answer(writer: asyncio.StreamWriter, status: int, data: Data) -> None:
    body = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str).encode() + b"\n"
    await send_answer(writer, status, JSON, body)


async def send_answer(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    """Send the answer and close the connection. A caller that does not read within WRITE_S is dropped."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    try:
        async with asyncio.timeout(WRITE_S):
            writer.write(head.encode() + body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, Mapping[str, Any]]:
    """Method, path and values (of query and body) of one request.

    Problem if it is malformed or does not come within READ_S.
    """
    try:
        async with asyncio.timeout(READ_S):
            return await _read(reader)
    except TimeoutError:
        raise RequestProblem(400, "invalid_input", f"the request was not there within {READ_S:g} s") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        raise RequestProblem(400, "invalid_input", "the request is not whole") from None


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, Mapping[str, Any]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise RequestProblem(413, "invalid_input", f"a request's head has at most {HEAD_BYTES_MAX} bytes") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise RequestProblem(400, "invalid_input", "this is no HTTP/1.1 request")
    try:
        target = urlsplit(words[1])
    except ValueError:
        raise RequestProblem(400, "invalid_input", "the request's target is no path") from None
    values: dict[str, Any] = dict(parse_qsl(target.query))
    length = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("content-length:")), "0")
    if not (length.isascii() and length.isdigit()) or len(length) > 9:
        raise RequestProblem(400, "invalid_input", "Content-Length is no number")
    if int(length) > BODY_BYTES_MAX:
        raise RequestProblem(413, "invalid_input", f"a body has at most {BODY_BYTES_MAX} bytes")
    body = await reader.readexactly(int(length))
    if body.strip():
        values |= _body(body)
    return words[0], target.path.rstrip("/") or "/", values


def _body(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestProblem(400, "invalid_input", "the body is no JSON") from None
    if not isinstance(data, dict):
        raise RequestProblem(400, "invalid_input", "the body is a JSON object")
    return data


def _error(code: str, message: str, **more: Any) -> Data:
    return {"at_ms": SystemClock().now_ms(), "pid": os.getpid(), "error": {"code": code, "message": message, **more}}
