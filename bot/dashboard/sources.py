"""Where the pages get their data: the daemon's control socket, its journal (read-only), and the public data of the service.

Every answer is kept for a moment, so that several open pages cost the daemon no more than one. Nothing is asked while no page is open.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from bot.client import Client
from bot.clock import SystemClock, monotonic_ns
from bot.errors import ApiError, BotError, Exit
from bot.runtime.journal import queries
from bot.wire import Candle
from bot.wire.market import BookResult
from bot.wire.resources import Market
from bot.wire.wallets import WalletNavResult, WalletResult

T = TypeVar("T")
Data = dict[str, Any]

DAEMON_S: Final = 0.8  # how long an answer of the daemon is shown; pages are updated every second
WALLET_S: Final = 0.8
NAV_S: Final = 5.0
MARKETS_S: Final = 2.0
CANDLES_S: Final = 0.8
BOOK_S: Final = 0.8
CANDLES: Final = 500  # of one chart
WITHIN_S: Final = 3.0  # for an answer of the daemon; then the page shows its last answer as old
SERIES_MAX: Final = 100  # charts whose candles are kept


class Control(Protocol):
    """A daemon by its state directory, and its control socket. `bot.cli.operate.daemon_client.Place` is one."""

    @property
    def folder(self) -> Path:
        """The state directory."""

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None, *, within_s: float | None = None
    ) -> Any:  # fmt: skip
        """The daemon's answer. BotError says why there is none; its exit code tells a dead daemon from a silent one."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the daemon last answered. `trouble` is why it does not answer now; then `status` is its last answer, or None."""

    at_ms: int  # the machine's clock
    trouble: str = ""
    is_running: bool = True
    status: Data | None = None
    positions: tuple[Data, ...] = ()
    orders: tuple[Data, ...] = ()
    strategies: tuple[Data, ...] = ()

    @property
    def speed(self) -> float:
        service = (self.status or {}).get("service") or {}
        return float(service.get("speed", 1) or 0)

    @property
    def service_ms(self) -> int | None:
        """The service's clock when the daemon answered."""
        service = (self.status or {}).get("service") or {}
        found: int | None = service.get("now_ms")
        return found


@dataclass(slots=True)
class _Kept:
    """An answer, and until when it is used. One request at a time."""

    until_ns: int = 0
    value: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Kept:
    """Answers by name. `fresh` asks again after `seconds`; if the source does not answer, the last answer stays."""

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}

    async def fresh(self, name: object, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        if name not in self._kept and len(self._kept) >= SERIES_MAX:
            del self._kept[next(iter(self._kept))]
        kept = self._kept.setdefault(name, _Kept())
        async with kept.lock:
            if monotonic_ns() >= kept.until_ns:
                kept.value = await ask()
                kept.until_ns = monotonic_ns() + int(seconds * 1e9)
            value: T = kept.value
        return value


class DaemonSource:
    """The daemon's answers, and its journal."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self._kept = Kept()
        self._last = Snapshot(0, "the daemon has not been asked yet", is_running=False)
        self._clock = SystemClock()

    async def snapshot(self) -> Snapshot:
        return await self._kept.fresh("snapshot", DAEMON_S, self._snapshot)

    async def _snapshot(self) -> Snapshot:
        now_ms = self._clock.now_ms()
        try:
            status = await self.ask("GET", "/status")
            if "account" not in status:
                self._last = Snapshot(now_ms, status=status)
                return self._last
            positions = (await self.ask("GET", "/positions"))["positions"] if status["positions"] else []
            orders = (await self.ask("GET", "/orders"))["orders"] if status["orders"] else []
            strategies = await self._kept.fresh(
                ("strategies", status["pid"], len(status["strategies"])), 10.0, self._strategies
            )
            self._last = Snapshot(
                now_ms, status=status, positions=tuple(positions), orders=tuple(orders), strategies=strategies
            )
        except BotError as error:
            last = self._last
            is_running = error.exit_code is not Exit.NOT_RUNNING
            return Snapshot(
                last.at_ms, str(error), is_running, last.status, last.positions, last.orders, last.strategies
            )
        return self._last

    async def _strategies(self) -> tuple[Data, ...]:
        return tuple((await self.ask("GET", "/strategies"))["strategies"])

    async def guardians(self) -> Data | None:
        """The daemon's answer about guardians; None if it gives none."""

        async def ask() -> Data | None:
            with suppress(BotError):
                found: Data = await self.ask("GET", "/guardians")
                return found
            return None

        return await self._kept.fresh("guardians", DAEMON_S, ask)

    async def approvals(self) -> tuple[Data, ...]:
        """The entries that wait for a person; none if the daemon gives no answer."""

        async def ask() -> tuple[Data, ...]:
            with suppress(BotError):
                return tuple((await self.ask("GET", "/approvals"))["approvals"])
            return ()

        return await self._kept.fresh("approvals", DAEMON_S, ask)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        within_s = WITHIN_S if method == "GET" else None
        return await asyncio.to_thread(self.control.ask, method, path, body, within_s=within_s)

    async def journal(self, read: Callable[[sqlite3.Connection], T]) -> T | None:
        """Read the journal in a thread. None if there is none or it cannot be read."""

        def work() -> T:
            with queries.opened(self.control.folder) as db:
                return read(db)

        with suppress(BotError):
            return await asyncio.to_thread(work)
        return None


class ServiceSource:
    """The public data of the service: no key, no account of its own. None or an empty list where the service does not answer."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._base_url = ""
        self._kept = Kept()
        self._candles: dict[tuple[str, str], list[Candle]] = {}

    async def use(self, base_url: str | None) -> None:
        """Follow the daemon to the address of its service."""
        if not base_url or base_url == self._base_url:
            return
        if self._client is not None:
            await self._client.aclose()
        self._client, self._base_url, self._kept, self._candles = Client(base_url), base_url, Kept(), {}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def wallet(self, address: str) -> WalletResult | None:
        return await self._asked(("wallet", address), WALLET_S, lambda client: client.wallet(address))

    async def nav(self, address: str, span: str) -> WalletNavResult | None:
        return await self._asked(("nav", address, span), NAV_S, lambda client: client.wallet_nav(address, span))

    async def markets(self) -> tuple[Market, ...]:
        found = await self._asked("markets", MARKETS_S, lambda client: client.markets(limit=250))
        return () if found is None else found.markets

    async def book(self, coin: str) -> BookResult | None:
        return await self._asked(("book", coin), BOOK_S, lambda client: client.book(coin))

    async def candles(self, coin: str, interval: str) -> list[Candle]:
        """The newest CANDLES; the last one may be running. Later calls ask only for new candles."""

        async def ask(client: Client) -> list[Candle]:
            known = self._candles.get((coin, interval), [])
            wanted = CANDLES
            if known:
                step = max(1, known[-1].ts - known[-2].ts) if len(known) > 1 else 1
                wanted = min(CANDLES, 3 + max(0, client.clock.now_ms() - known[-1].ts) // step)
            fresh = list((await client.candles(coin, interval, wanted)).candles)
            first = fresh[0].ts if fresh else 0
            older = [one for one in known if one.ts < first]
            is_joined = bool(older) and any(one.ts == first for one in known)
            if len(self._candles) >= SERIES_MAX:
                self._candles.clear()
            joined = self._candles[coin, interval] = ((older if is_joined else []) + fresh)[-CANDLES:]
            return joined

        return await self._asked(("candles", coin, interval), CANDLES_S, ask) or []

    async def _asked(self, name: object, seconds: float, ask: Callable[[Client], Awaitable[T]]) -> T | None:
        client = self._client
        if client is None:
            return None

        async def answer() -> T | None:
            try:
                return await ask(client)
            except ApiError:
                return None

        return await self._kept.fresh(name, seconds, answer)
