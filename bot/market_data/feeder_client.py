"""The client of the feeder process: starts it, sends requests, and matches the answers by their id."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from bot.errors import ConfigError
from bot.extras import install, own_environment
from bot.http_limits import NETWORK, check_proxies
from bot.market_data.source import NoAnswer, SourceError

FEEDER: Final = Path(__file__).with_name("ccxt_feeder.py")
# an interpreter that has ccxt; by default this one
PYTHON: Final = "BOT_MARKETS_PYTHON"
# a server on this machine in place of every exchange, for tests
URL: Final = "BOT_MARKETS_URL"
# The bytes of an answer: the markets of a large exchange take about 2 MB.
LINE_BYTES_MAX: Final = 1 << 26
START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
END_SECONDS: Final = 5.0
# What the process needs of the environment: how to find programs and servers, and no secret.
ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONHOME", "TZ", "COVERAGE_PROCESS_START", *NETWORK)
# The batches of a stream that nobody has taken. Then the feeder waits.
BATCHES_MAX: Final = 1_000
_LOOPBACK: Final = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")


class Failure(SourceError):
    """The feeder's no to one request. `kind` is one of ccxt_feeder.KINDS."""

    def __init__(self, kind: str, message: str, after_ms: int | None) -> None:
        super().__init__(message)
        self.kind = kind
        self.after_ms = after_ms


class FeederProcess:
    """One feeder process. Use with `async with`; leaving ends the process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.base_url = environ.get(URL) or None
        if self.base_url is not None and not _LOOPBACK.fullmatch(self.base_url):
            raise ConfigError(
                f"{URL}={self.base_url}: it must be http://127.0.0.1:PORT, a server on this machine for tests"
            )
        check_proxies(environ)
        self._environment = {name: environ[name] for name in ENVIRONMENT if name in environ}
        self._python = environ.get(PYTHON) or sys.executable
        self._ids = count(1)
        self._ended: SourceError | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._streams: dict[int, asyncio.Queue[dict[str, Any]]] = {}

    async def __aenter__(self) -> Self:
        url = [] if self.base_url is None else ["--base-url", self.base_url]
        try:
            # -P keeps the files beside the feeder from hiding modules of the same names.
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-P",
                str(FEEDER),
                *url,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                env=self._environment,
            )
        except OSError as error:
            raise SourceError(f"{PYTHON}={self._python}: cannot be started: {error.strerror}") from None
        try:
            first = await asyncio.wait_for(self._line(), START_SECONDS)
            if "error" in first:
                raise SourceError(
                    f"ccxt is not installed for {self._python} ({first['error']['message']}): {install('markets')}. Or"
                    f" give it an environment of its own: {own_environment('markets', 'markets')}, and set"
                    f" {PYTHON}=markets/bin/python"
                )
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

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request, with `result` and `now_ms`.

        Failure if the feeder refuses it; NoAnswer if the process is gone or silent.
        """
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write({"id": number, "op": op, **fields})
            # wait_for loses a cancellation that comes with the answer
            async with asyncio.timeout(ANSWER_SECONDS):
                body: dict[str, Any] = await answer
        except TimeoutError:
            raise NoAnswer(f"the ccxt process has not answered for {ANSWER_SECONDS:.0f} s") from None
        except OSError:
            raise NoAnswer("the ccxt process has ended") from None
        finally:
            del self._waiting[number]
        if (error := body.get("error")) is not None:
            raise Failure(error["kind"], error["message"], error["after_ms"])
        return body

    async def stream(self, op: str, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """The answers to a request that has many. It ends with a Failure, or with NoAnswer if the process is gone."""
        number = next(self._ids)
        answers = self._streams[number] = asyncio.Queue(BATCHES_MAX)
        try:
            await self._write({"id": number, "op": op, **fields})
            while True:
                body = await answers.get()
                if (error := body.get("error")) is not None:
                    raise Failure(error["kind"], error["message"], error["after_ms"])
                yield body
        except OSError:
            raise NoAnswer("the ccxt process has ended") from None
        finally:
            del self._streams[number]

    async def _write(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._ended is not None:
            raise self._ended
        # A write to a process that is dead closes the connection before its end is read.
        if self._process.stdin.is_closing():
            raise BrokenPipeError
        self._process.stdin.write((json.dumps(request) + "\n").encode())
        await self._process.stdin.drain()

    async def _read(self) -> None:
        try:
            while True:
                body = await self._line()
                if (stream := self._streams.get(body["id"])) is not None:
                    await stream.put(body)
                waiting = self._waiting.get(body["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(body)
        except SourceError as error:
            self._ended = error
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
            for stream in self._streams.values():
                await stream.put({"error": {"kind": "unreachable", "message": str(error), "after_ms": None}})

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:
            raise NoAnswer(
                f"the ccxt process ({self._python}) wrote a line of more than {LINE_BYTES_MAX:,} bytes"
            ) from None
        if not line:
            raise NoAnswer(f"the ccxt process ({self._python}) has ended")
        try:
            body: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError):
            raise NoAnswer(f"the ccxt process ({self._python}) wrote no JSON: {line[:200]!r}") from None
        return body

    async def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            # The process may have just ended.
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
