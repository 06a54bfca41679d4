"""Virtual time: an event loop whose clock jumps to whatever is awaited next, and the machine's clocks that follow it.
Knows nothing of the bot but its clock.

Everything that waits in the production code waits on the loop (asyncio.timeout, sleep, the limiter, backoff), and
everything that reads a clock reads it through bot.clock. So those two seams are all there is to replace.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import selectors
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from types import SimpleNamespace
from typing import Any, TypeVarTuple

import bot.clock

# what the wall shows when the loop's clock shows 0
WALL_NS = 1_795_132_800_000_000_000
# what the machine's monotonic clock shows then
LIFE_S = 1_000.0

Ts = TypeVarTuple("Ts")


class Clocks:
    """Stands in for the module `time` inside bot.clock.

    A suspend moves wall and boot time alone, a jump the wall alone.
    """

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.loop_s = 0.0
        self.slept_ns = 0
        self.jumped_ns = 0

    def monotonic_ns(self) -> int:
        return round((LIFE_S + self.loop_s) * 1e9)

    def clock_gettime_ns(self, _clock: int) -> int:
        return self.monotonic_ns() + self.slept_ns

    def time_ns(self) -> int:
        return WALL_NS + round(self.loop_s * 1e9) + self.slept_ns + self.jumped_ns

    def suspend(self, seconds: float) -> None:
        """The host slept so long, in no time of its own."""
        self.slept_ns += round(seconds * 1e9)


class _Jump(selectors.SelectSelector):
    """Waits for nothing: there are no sockets and no threads, so the time until the next timer simply passes."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self.clocks = clocks

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits and nothing is scheduled")
        if timeout > 0:
            self.clocks.loop_s += timeout
        return []


class _Timer(asyncio.TimerHandle):
    """Of two that are due at one instant the one that was set first comes first. asyncio's heap keeps no order among
    equals: which comes first hangs on what else was ever waited for, and each version of Python waits with other
    timers.
    """

    __slots__ = ("place",)
    place: int

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        return self._when < other._when if self._when != other._when else self.place < other.place


class VirtualLoop(asyncio.SelectorEventLoop):
    # asyncio's own heap
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.timers = 0
        super().__init__(_Jump(clocks))

    def time(self) -> float:
        return self.clocks.loop_s

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self.timers += 1
        timer.place = self.timers
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # so that asyncio counts it once it is cancelled
        return timer


@contextlib.contextmanager
def virtual_time() -> Iterator[tuple[VirtualLoop, Clocks]]:
    """A fresh loop at time 0, and bot.clock on it while the block runs."""
    clocks = Clocks()
    real, bot.clock.time = bot.clock.time, clocks  # type: ignore[assignment]
    loop = VirtualLoop(clocks)
    asyncio.set_event_loop(loop)
    try:
        yield loop, clocks
    finally:
        bot.clock.time = real
        asyncio.set_event_loop(None)
        _end(loop)


def _end(loop: VirtualLoop) -> None:
    """Whatever still waits is ended; a task that will not is a mistake of the test."""
    for _ in range(5):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()


class Headers(dict[str, str]):
    """Of an answer: names in any case."""

    @staticmethod
    def of(raw: list[tuple[bytes, bytes]]) -> Headers:
        return Headers((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())


class Answer:
    """What came back of one request; also what the production exchange reads as an answer that streams."""

    __slots__ = ("content", "headers", "status_code")

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status_code = status
        self.headers = headers if isinstance(headers, Headers) else Headers({k.lower(): v for k, v in headers.items()})
        self.content = content

    async def aiter_bytes(self) -> Any:
        yield self.content


async def served(app: Any, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Answer:
    """One request to an ASGI app, and its whole answer."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode()), *headers],
    }
    seen = SimpleNamespace(status=0, headers=[], parts=[], asked=False)

    async def receive() -> dict[str, Any]:
        if seen.asked:
            return {"type": "http.disconnect"}
        seen.asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.status, seen.headers = message["status"], message.get("headers", [])
        else:
            seen.parts.append(message.get("body", b""))

    await app(scope, receive, send)
    assert seen.status, f"no answer to {method} {target}"
    return Answer(seen.status, Headers.of(seen.headers), b"".join(seen.parts))
