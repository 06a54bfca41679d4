"""The main of the link process: performs the operations that the service asks for, on one exchange.

It has no durable state. It ends when the service closes the connection or ends, also by `kill -9`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from bot import logs
from bot.errors import BotError, ConfigError
from bot.exchanges.link.frames import VERSION, Frame, frame_bytes, read_frame
from bot.exchanges.link.values import packed, packed_error, unpacked
from bot.exchanges.protocol import ExchangePlugin, FillCursor, NoExchangeAnswer
from bot.exchanges.registry import open_exchange
from bot.logs import log
from bot.operating_system import die_with_parent, harden

Say = Callable[[str], None]
Values = AsyncIterator[list[Any]]


def guard(parent_pid: int) -> None:
    """Make the process private, and end it with its parent. The agent's key will be in this memory."""
    harden()
    # Ctrl-C goes to the service, which then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)


async def _instruments(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    yield await exchange.instruments(say)


async def _quotes(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    async for updates in exchange.quotes(fields["symbols"]):
        yield list(updates)


async def _minutes(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    yield [await exchange.minutes(fields["symbol"], fields["since_ms"], say)]


async def _history(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    symbol, interval = fields["symbol"], fields["interval"]
    async for page in exchange.history(symbol, interval, fields["since_ms"], fields["until_ms"], say):
        yield [page]


async def _funding(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    async for rates in exchange.funding(fields["symbol"], fields["since_ms"], fields["until_ms"], say):
        yield list(rates)


async def _account(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    given = fields["cursor"]
    cursor = None if given is None else FillCursor(**given)
    async for reports in exchange.account(fields["address"], cursor):
        yield list(reports)


async def _health(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    yield [exchange.health()]


async def _act(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    yield [await exchange.act(unpacked(fields["action"]))]


async def _look(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    update = await exchange.look(fields["address"], fields["name"])
    yield [] if update is None else [update]


async def _read(exchange: ExchangePlugin, fields: Frame, say: Say) -> Values:
    yield [await exchange.read(fields["address"], fields["after_ms"])]


OPERATIONS: Final[Mapping[str, Callable[[ExchangePlugin, Frame, Say], Values]]] = {
    "instruments": _instruments,
    "quotes": _quotes,
    "minutes": _minutes,
    "history": _history,
    "funding": _funding,
    "account": _account,
    "health": _health,
    "act": _act,
    "look": _look,
    "read": _read,
}


class LinkSession:
    """One connection with the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        await self._send({"version": VERSION})
        opening = await read_frame(self._reader)
        if opening is None:
            return
        try:
            if opening["version"] != VERSION:
                raise ConfigError(version_fault(opening["version"], VERSION))
            exchange = open_exchange(opening["exchange"], opening["place"], opening["agent_key_file"])
            async with exchange:
                await self._send({"ready": True})
                await self._serve(exchange)
        except BotError as error:
            await self._send({"error": packed_error(error)})

    async def _serve(self, exchange: ExchangePlugin) -> None:
        """Perform what is asked, several operations at a time, until the service ends."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                if (canceled := frame.get("cancel")) is not None:
                    if (task := self._running.get(canceled)) is not None:
                        task.cancel()
                    continue
                self._running[frame["id"]] = asyncio.create_task(self._perform(exchange, frame["id"], frame))
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _perform(self, exchange: ExchangePlugin, number: int, frame: Frame) -> None:
        def say(line: str) -> None:
            self._writer.write(frame_bytes({"id": number, "say": line}))

        try:
            async for values in OPERATIONS[frame["op"]](exchange, frame, say):
                await self._send({"id": number, "values": [packed(value) for value in values]})
            await self._send({"id": number, "end": True})
        except BotError as error:
            await self._send({"id": number, "error": packed_error(error)})
        except ConnectionError:
            # The service has ended; the reader sees it too.
            return
        except Exception as error:
            log.exception("link.failed", op=frame.get("op"))
            text = f"the link failed at {frame.get('op')}: {type(error).__name__}; its log has more"
            await self._send({"id": number, "error": packed_error(NoExchangeAnswer(text))})
        finally:
            self._running.pop(number, None)

    async def _send(self, frame: Frame) -> None:
        self._writer.write(frame_bytes(frame))
        await self._writer.drain()


def version_fault(theirs: object, ours: int) -> str:
    """The error for two sides of different versions."""
    return f"the link speaks version {ours} and the service {theirs}: the program was replaced; start the service again"


async def _run(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as sock:
        reader, writer = await asyncio.open_connection(sock=sock)
        with suppress(ConnectionError):
            await LinkSession(reader, writer).run()
        writer.close()


def main() -> None:
    """`python -m bot.exchanges.link.process DESCRIPTOR PARENT_PID`."""
    descriptor, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    guard(parent_pid)
    logs.configure(pretty=False)
    asyncio.run(_run(descriptor))


if __name__ == "__main__":
    main()
