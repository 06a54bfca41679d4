"""Where the pages get their data: the daemon's control socket, its journal (read-only), and the public data of the
service.

Every answer is kept for a moment, so that several open pages cost the daemon no more than one. Nothing is asked while
no page is open.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from bot.client import Client
from bot.clock import SystemClock, monotonic_ns
from bot.dashboard.journal_account import last_snapshot
from bot.dashboard.pages import trades
from bot.dashboard.values.daemon_control import DaemonControl, FleetMember
from bot.dashboard.values.reading import Reading, old, unknown
from bot.dashboard.values.snapshot import DaemonSnapshot
from bot.errors import ApiError, BotError, Exit
from bot.runtime.journal import queries
from bot.runtime.journal.round_trip_log import every_trip
from bot.wire import Candle
from bot.wire.market import BookResult
from bot.wire.resources import Market
from bot.wire.wallets import WalletNavResult, WalletResult

T = TypeVar("T")
Data = dict[str, Any]

# how long an answer of the daemon is shown; pages are updated every second
DAEMON_S: Final = 0.8
WALLET_S: Final = 0.8
NAV_S: Final = 5.0
MARKETS_S: Final = 2.0
CANDLES_S: Final = 0.8
BOOK_S: Final = 0.8
FLEET_S: Final = 2.0
# so that reading the whole journal takes a tenth of a core at most
RESTS: Final = 10
# The candles of one chart.
CANDLES: Final = 500
# time for an answer of the daemon; then the page shows its last answer as old
WITHIN_S: Final = 3.0
# charts whose candles are kept
SERIES_MAX: Final = 100


@dataclass(slots=True)
class _Kept:
    """An answer, and until when it is used. One request at a time."""

    until_ns: int = 0
    value: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class AnswerCache:
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

    def __init__(self, control: DaemonControl) -> None:
        self.control = control
        self._kept = AnswerCache()
        self._last = DaemonSnapshot(0, "the daemon has not been asked yet", is_running=False)
        self._of_journal: tuple[object, DaemonSnapshot] | None = None
        self._trades: tuple[object, list[trades.ClosedTrade]] | None = None
        self._trades_rest_until_ns = 0
        # a choice of the page Trades, or the overview of a day -> the trades that it was made of, and its values
        self.trades_pages: dict[object, tuple[object, Data]] = {}
        self._clock = SystemClock()

    async def snapshot(self) -> DaemonSnapshot:
        return await self._kept.fresh("snapshot", DAEMON_S, self._snapshot)

    async def fresh_snapshot(self) -> DaemonSnapshot:
        """Asked now, for a change: what a page showed a moment ago may have changed."""
        return await self._snapshot()

    async def _snapshot(self) -> DaemonSnapshot:
        now_ms = self._clock.now_ms()
        try:
            status = await self.ask("GET", "/status")
            if "account" not in status:
                self._last = DaemonSnapshot(now_ms, status=status)
                return self._last
            positions = (await self.ask("GET", "/positions"))["positions"] if status["positions"] else []
            orders = (await self.ask("GET", "/orders"))["orders"] if status["orders"] else []
            strategies = await self._kept.fresh(
                ("strategies", status["pid"], len(status["strategies"])), 10.0, self._strategies
            )
            self._last = DaemonSnapshot(
                now_ms,
                status=status,
                positions=tuple(positions),
                orders=tuple(orders),
                strategies=strategies,
                guardians=await self._guardians(),
            )
        except BotError as error:
            is_running = error.exit_code is not Exit.NOT_RUNNING
            if not self._last.knows_account:
                return await self._from_journal(str(error), is_running=is_running)
            return replace(self._last, trouble=str(error), is_running=is_running)
        return self._last

    async def _from_journal(self, trouble: str, *, is_running: bool) -> DaemonSnapshot:
        """The account as the journal has it, for a daemon that this dashboard has not seen alive.

        It is read again when it was written.
        """

        def read() -> DaemonSnapshot:
            stamps = [
                (path.name, path.stat().st_mtime_ns)
                for path in self.control.folder.glob(f"{queries.FILE}*")
                if path.is_file()
            ]
            if self._of_journal is None or self._of_journal[0] != stamps:
                self._of_journal = stamps, last_snapshot(self.control.folder, trouble)
            return replace(self._of_journal[1], trouble=trouble, is_running=is_running)

        try:
            return await asyncio.to_thread(read)
        except (BotError, OSError) as error:
            status = self._last.status
            return DaemonSnapshot(
                self._last.at_ms, f"{trouble}; its journal cannot be read either: {error}", is_running, status
            )

    async def _strategies(self) -> tuple[Data, ...]:
        return tuple((await self.ask("GET", "/strategies"))["strategies"])

    async def _guardians(self) -> Data | None:
        """The daemon's answer about guardians; None if it gives none."""
        with suppress(BotError):
            answer: Data = await self.ask("GET", "/guardians")
            return answer
        return None

    async def approvals(self) -> Reading[tuple[Data, ...]]:
        """The entries that wait for a person. Only a running daemon knows them."""
        return await self._kept.fresh("approvals", DAEMON_S, self.fresh_approvals)

    async def fresh_approvals(self) -> Reading[tuple[Data, ...]]:
        try:
            return Reading(tuple((await self.ask("GET", "/approvals"))["approvals"]))
        except BotError as error:
            return Reading((), unknown(f"{error}."))

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        within_s = WITHIN_S if method == "GET" else None
        return await asyncio.to_thread(self.control.ask, method, path, body, within_s=within_s)

    async def journal(self, read: Callable[[sqlite3.Connection], T]) -> Reading[T | None]:
        """Read the journal in a thread. None, with the reason, if there is none or it cannot be read."""

        def work() -> T:
            with queries.opened(self.control.folder) as db:
                return read(db)

        try:
            return Reading(await asyncio.to_thread(work))
        except BotError as error:
            return Reading(None, unknown(f"{error}."))

    async def closed_trades(self) -> Reading[list[trades.ClosedTrade] | None]:
        """The closed trades of the journal. The same list until the journal has other events, intents or extremes.

        A large journal is read again after a rest of RESTS times the time of its last reading.
        """

        def of_journal(db: sqlite3.Connection) -> list[trades.ClosedTrade]:
            stamp, began_ns = queries.trades_stamp(db), monotonic_ns()
            is_new = self._trades is None or self._trades[0] != stamp
            if self._trades is None or (is_new and began_ns >= self._trades_rest_until_ns):
                self._trades = stamp, trades.closed(every_trip(db), queries.owners(db))
                took_ns = monotonic_ns() - began_ns
                self._trades_rest_until_ns = monotonic_ns() + RESTS * took_ns
            return self._trades[1]

        return await self._kept.fresh("trades", DAEMON_S, lambda: self.journal(of_journal))


class FleetSource:
    """The daemons of this machine, asked at the same time. `ask` may take seconds, so it runs in a thread."""

    def __init__(self, ask: Callable[[], Sequence[FleetMember]]) -> None:
        self._ask = ask
        self._kept = AnswerCache()

    async def members(self) -> Sequence[FleetMember]:
        return await self._kept.fresh("members", FLEET_S, lambda: asyncio.to_thread(self._ask))

    async def daemon(self, folder: str) -> tuple[str, DaemonSource] | None:
        """The name of the daemon in this state directory, and its answers; None if there is none here."""
        for member in await self.members():
            if str(member.place.folder) == folder:
                return member.name, DaemonSource(member.place)
        return None


class ServiceSource:
    """The public data of the service: no key, no account of its own.

    Where the service does not answer, its last answer is given as old.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._base_url = ""
        self._kept = AnswerCache()
        # part -> when it was read, on the machine's clock, and what was read
        self._last: dict[object, tuple[int, Any]] = {}
        self._candles: dict[tuple[str, str], list[Candle]] = {}
        self._clock = SystemClock()

    async def use(self, base_url: str | None) -> None:
        """Follow the daemon to the address of its service."""
        if not base_url or base_url == self._base_url:
            return
        if self._client is not None:
            await self._client.aclose()
        self._client, self._base_url = Client(base_url), base_url
        self._kept, self._candles, self._last = AnswerCache(), {}, {}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def wallet(self, address: str | None) -> Reading[WalletResult | None]:
        if not address:
            return Reading(None, unknown("the address of the account is not known."))
        reading = await self._asked(("wallet", address), WALLET_S, lambda client: client.wallet(address))
        if reading.value is not None and not reading.value.registered:
            return Reading(None, unknown(f"the service at {self._base_url} has no account {address}."))
        return reading

    async def nav(self, address: str, span: str) -> Reading[WalletNavResult | None]:
        return await self._asked(("nav", address, span), NAV_S, lambda client: client.wallet_nav(address, span))

    async def markets(self) -> Reading[tuple[Market, ...]]:
        reading = await self._asked("markets", MARKETS_S, lambda client: client.markets(limit=250))
        return Reading(() if reading.value is None else reading.value.markets, reading.known)

    async def book(self, coin: str) -> Reading[BookResult | None]:
        return await self._asked(("book", coin), BOOK_S, lambda client: client.book(coin))

    async def candles(self, coin: str, interval: str) -> Reading[list[Candle]]:
        """The newest CANDLES; the last one may be running. Later calls ask only for new candles."""

        async def ask(client: Client) -> list[Candle]:
            known = self._candles.get((coin, interval), [])
            wanted = CANDLES
            if known:
                step = max(1, known[-1].ts - known[-2].ts) if len(known) > 1 else 1
                wanted = min(CANDLES, 3 + max(0, client.clock.now_ms() - known[-1].ts) // step)
            fresh = list((await client.candles(coin, interval, wanted)).candles)
            first = fresh[0].ts if fresh else 0
            older = [candle for candle in known if candle.ts < first]
            is_joined = bool(older) and any(candle.ts == first for candle in known)
            if len(self._candles) >= SERIES_MAX:
                self._candles.clear()
            joined = self._candles[coin, interval] = ((older if is_joined else []) + fresh)[-CANDLES:]
            return joined

        reading = await self._asked(("candles", coin, interval), CANDLES_S, ask)
        return Reading(reading.value or [], reading.known)

    async def _asked(self, name: object, seconds: float, ask: Callable[[Client], Awaitable[T]]) -> Reading[T | None]:
        client = self._client
        if client is None:
            return Reading(None, unknown("the address of the service is not known."))

        async def answer() -> Reading[T | None]:
            try:
                value = await ask(client)
            except ApiError as error:
                at_ms, last = self._last.get(name, (None, None))
                if at_ms is None:
                    return Reading(None, unknown(f"the service at {self._base_url} does not answer: {error.message}."))
                return Reading(last, old(at_ms, self._clock.now_ms(), "The service answered last"))
            if len(self._last) >= SERIES_MAX:
                self._last.clear()
            self._last[name] = self._clock.now_ms(), value
            return Reading(value)

        return await self._kept.fresh(name, seconds, answer)
