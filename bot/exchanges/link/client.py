"""The service's end of a link: starts the process, sends operations, and gives each its answers."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from bot.errors import ConfigError
from bot.exchanges.actions import ActionAnswer, ExchangeAction
from bot.exchanges.link.frames import VERSION, Frame, frame_bytes, read_frame
from bot.exchanges.link.values import all_of, packed, unpacked, unpacked_error
from bot.exchanges.protocol import AccountReading, AccountReport, FillCursor, LinkHealth, NoExchangeAnswer, OrderUpdate
from bot.http_limits import NETWORK
from bot.logs import log

MODULE: Final = "bot.exchanges.link.process"
# What the process needs of the environment: how to find programs and certificates, and no secret.
ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "PYTHONHOME",
    "PYTHONPATH",
    "TZ",
    "COVERAGE_PROCESS_START",
    *NETWORK,
)
ENDED: Final = "the link has ended; its log says why"
START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
END_SECONDS: Final = 5.0
# Batches of a stream that nobody has taken. Then the link waits.
BATCHES_MAX: Final = 1_000


class ExchangeLink:
    """A link process for one exchange. Use with `async with`; leaving ends the process."""

    def __init__(
        self, exchange: str, place: str, *, agent_key_file: Path | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        # Only the path: the key is read by the link alone.
        path = None if agent_key_file is None else str(agent_key_file.absolute())
        self._opening = {"version": VERSION, "exchange": exchange, "place": place, "agent_key_file": path}
        self._environment = {name: environ[name] for name in ENVIRONMENT if name in environ}
        self._ids = count(1)
        self._answers: dict[int, asyncio.Queue[Frame]] = {}
        self._ended: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        try:
            # -P keeps files beside the module from hiding modules of the same names.
            arguments = ["-P", "-m", MODULE, str(theirs.fileno()), str(os.getpid())]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=self._environment,
            )
        except OSError as error:
            ours.close()
            raise NoExchangeAnswer(f"the link cannot be started: {error.strerror}; try again") from None
        except BaseException:
            # Cancelled: the service ends while the process starts.
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._shake_hands()
        except TimeoutError:
            await self._end()
            raise NoExchangeAnswer(f"the link has not started within {START_SECONDS:.0f} s; try again") from None
        except BaseException:
            await self._end()
            raise
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._end()

    async def _shake_hands(self) -> None:
        hello = await self._frame()
        if hello.get("version") != VERSION:
            raise ConfigError(
                f"the link speaks version {hello.get('version')} and the service {VERSION}: the program was replaced; "
                "start the service again"
            )
        await self._write(self._opening)
        answer = await self._frame()
        if (error := answer.get("error")) is not None:
            raise unpacked_error(error)

    async def _frame(self) -> Frame:
        frame = await read_frame(self._reader)
        if frame is None:
            raise NoExchangeAnswer(ENDED)
        return frame

    # ── Operations ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def ask(self, op: str, **fields: Any) -> list[Any]:
        """All values of one operation that ends."""
        values: list[Any] = []
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async for batch in self.stream(op, **fields):
                    values += batch
        except TimeoutError:
            raise NoExchangeAnswer(f"the link has not answered {op} for {ANSWER_SECONDS:.0f} s; try again") from None
        return values

    async def stream(self, op: str, **fields: Any) -> AsyncIterator[list[Any]]:
        """Batches of values, until the operation ends. NoAnswer if the process has ended."""
        number = next(self._ids)
        answers = self._answers[number] = asyncio.Queue(BATCHES_MAX)
        is_over = False
        try:
            await self._write({"id": number, "op": op, **fields})
            while not is_over:
                frame = await answers.get()
                is_over = "values" not in frame and "say" not in frame
                if (error := frame.get("error")) is not None:
                    raise unpacked_error(error)
                if (line := frame.get("say")) is not None:
                    log.info("link.says", message=line)
                elif not is_over:
                    yield [unpacked(pair) for pair in frame["values"]]
        finally:
            del self._answers[number]
            if not is_over:
                with suppress(NoExchangeAnswer):
                    self._send({"cancel": number})

    async def account(self, address: str, cursor: FillCursor | None = None) -> AsyncIterator[list[AccountReport]]:
        """Stream the reports of an account, without an end."""
        given = None if cursor is None else asdict(cursor)
        async for reports in self.stream("account", address=address, cursor=given):
            yield reports

    async def act(self, action: ExchangeAction) -> ActionAnswer:
        """Send an action once. NoAnswer if it may have been performed."""
        return all_of(ActionAnswer, await self.ask("act", action=packed(action)))[0]

    async def look(self, address: str, name: str) -> OrderUpdate | None:
        """The newest change of an order, by our id of it or the exchange's; None if the exchange does not know it."""
        updates = all_of(OrderUpdate, await self.ask("look", address=address, name=name))
        return updates[0] if updates else None

    async def read(self, address: str, after_ms: int) -> AccountReading:
        """Read the account anew, with the rows after this instant of the exchange's clock."""
        return all_of(AccountReading, await self.ask("read", address=address, after_ms=after_ms))[0]

    async def health(self) -> LinkHealth:
        return all_of(LinkHealth, await self.ask("health"))[0]

    def _send(self, frame: Frame) -> None:
        # A write to a process that is dead closes the connection before its end is read.
        if self._ended is not None or self._writer.is_closing():
            raise NoExchangeAnswer(self._ended or ENDED)
        self._writer.write(frame_bytes(frame))

    async def _write(self, frame: Frame) -> None:
        self._send(frame)
        try:
            await self._writer.drain()
        except ConnectionError:
            raise NoExchangeAnswer(ENDED) from None

    async def _read(self) -> None:
        """Give each frame to its operation, until the process ends."""
        try:
            while True:
                frame = await self._frame()
                answers = self._answers.get(frame["id"])
                if answers is not None:
                    await answers.put(frame)
        except NoExchangeAnswer as error:
            self._ended = str(error)
            name = f"{NoExchangeAnswer.__module__}.{NoExchangeAnswer.__name__}"
            for answers in list(self._answers.values()):
                await answers.put({"error": [name, self._ended]})

    async def _end(self) -> None:
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
