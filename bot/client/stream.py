"""The event stream: parses server-sent events and reconnects after the last id. Use it only as a wake-up; the cursor
feed is the truth.

`Client.stream` uses it. A client that keeps state reads `Client.events` at each wake-up, which returns missed events
too.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from pydantic import ValidationError

from bot.client.faults import FailureKind, TransportFault
from bot.client.http import HttpExchange, HttpReply, Listening
from bot.client.retry import Backoff
from bot.errors import ApiError, OutcomeUnknown, Refused, TryLater
from bot.plain_text import plain_json
from bot.wire.errors import fields_of, message_of
from bot.wire.events import Event

PATH: Final = "/v1/events/stream"
# three pings of the service: after so long without data the connection is dead
SILENCE_SECONDS: Final = 45.0
# characters; an event has less than 2 kB
LINE_MAX: Final = 1_048_576
ERROR_BYTES_MAX: Final = 65_536
LAST_EVENT_ID: Final = "Last-Event-ID"
BACKOFF: Final = Backoff()


class StreamMessage(NamedTuple):
    """One server-sent event. `id` is the last id seen, "" without one."""

    id: str
    event: str
    data: str


@dataclass(slots=True)
class Parser:
    """Parses server-sent events from bytes in any pieces, by the WHATWG rules. ValueError if a line is too long."""

    last_id: str = ""
    retry_ms: int | None = None
    _decode: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8-sig")("replace"), repr=False
    )
    _rest: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0
    _event: str = ""
    _id: str | None = None

    def feed(self, part: bytes) -> list[StreamMessage]:
        """The events that are complete now."""
        text = self._rest + self._decode.decode(part)
        # A CR at the end may be the first half of a CRLF.
        held = "\r" if text.endswith("\r") else ""
        text = text[: len(text) - len(held)].replace("\r\n", "\n").replace("\r", "\n")
        *lines, last = text.split("\n")
        self._rest = last + held
        messages = [message for line in lines if (message := self._line(line)) is not None]
        if len(self._rest) + self._size > LINE_MAX:
            raise ValueError(f"an event of more than {LINE_MAX} characters")
        return messages

    def _line(self, line: str) -> StreamMessage | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value[:9])
        return None

    def _dispatch(self) -> StreamMessage | None:
        if self._id is not None:
            self.last_id = self._id
        data, event = self._data, self._event or "message"
        self._data, self._event, self._id, self._size = [], "", None, 0
        return StreamMessage(self.last_id, event, "\n".join(data)) if data else None


async def follow(
    exchange: HttpExchange,
    *,
    headers: Mapping[str, str],
    failure: Callable[[HttpReply], ApiError],
    query: Mapping[str, str],
    since: str | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    chance: Random | None = None,
) -> AsyncGenerator[Event, None]:
    """Events after `since`, without end.

    Reconnects when a connection ends. Raises Refused (410: the cursor is lost, resync) and AccessLost.
    """
    draw = Random() if chance is None else chance
    attempt = 0
    last = since
    while True:
        parser = Parser(last_id=last or "")
        after_ms = 0
        try:
            asked = dict(query) if last is None else {**query, "since": last}
            # Continue after the last event. The header has priority over the query.
            extra = {} if last is None else {LAST_EVENT_ID: last}
            sent = {**headers, "Accept": "text/event-stream", **extra}
            async with exchange.listen(PATH, query=asked, headers=sent, silence=SILENCE_SECONDS) as answer:
                if answer.status != 200:
                    raise failure(await _whole(answer))
                async with aclosing(_messages(answer, parser)) as messages:
                    async for message in messages:
                        if message.event == "error":
                            raise failure(HttpReply(_status_of(message.data), {}, message.data.encode(), 0, 0))
                        event = _event(message)
                        attempt, last = 0, message.id or last
                        yield event
        except TransportFault:
            pass
        except (TryLater, OutcomeUnknown) as error:
            after_ms = error.after_ms if isinstance(error, TryLater) else 0
        attempt += 1
        await sleep(BACKOFF.wait_ms(attempt, draw.random(), max(after_ms, parser.retry_ms or 0)) / 1000)


async def _messages(answer: Listening, parser: Parser) -> AsyncGenerator[StreamMessage, None]:
    async for part in answer.parts:
        try:
            messages = parser.feed(part)
        except ValueError as error:
            raise TransportFault(FailureKind.TOO_LARGE, str(error)) from error
        for message in messages:
            yield message


async def _whole(answer: Listening) -> HttpReply:
    body = b""
    async for part in answer.parts:
        body += part
        if len(body) > ERROR_BYTES_MAX:
            raise TransportFault(FailureKind.TOO_LARGE, "the error is too long")
    return HttpReply(answer.status, answer.headers, plain_json(body), 0, 0)


# The body of an `event: error` is that of a failed request; its status follows from the code.
_STATUS: Final = {"unauthorized": 401, "session_expired": 401, "forbidden": 403, "not_found": 410}


def _status_of(data: str) -> int:
    return next((status for code, status in _STATUS.items() if f'"code":"{code}"' in data.replace(" ", "")), 503)


def _event(message: StreamMessage) -> Event:
    try:
        return Event.model_validate_json(plain_json(message.data.encode()))
    except ValidationError as error:
        # Complete, but not in the interface's form: a repeat would give the same.
        problem = message_of(fields_of(error))
        raise Refused("invalid_body", f"the stream's event cannot be read: {problem}", retryable=False) from error
