"""A local exchange in a thread of the test's process.

It listens on a real port, so that any client of Hyperliquid can use it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from bot.http_limits import context_for

if TYPE_CHECKING:
    from bot.local_exchange.server.service import ExchangeService

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
# 1 January 2026 UTC
START_MS: Final = 1_767_225_600_000


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """Arguments of the mark `hyperliquid`. `accounts`: address -> USD in the main dex."""

    clock: str = "manual"
    seed: int = 1
    network: str = "testnet"
    prices: str = "held"
    accounts: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    db: str | None = None
    block_ms: int = 0
    start_ms: int | None = START_MS


def exchange_options(args: tuple[Any, ...], given: Mapping[str, Any]) -> ExchangeOptions:
    """The arguments of the mark; TypeError or ValueError says what is wrong with them."""
    from bot.local_exchange.server.clock import speed_of
    from bot.local_exchange.switches import fault_of

    if args:
        raise TypeError(f"takes keyword arguments only, like clock='60x', not {args[0]!r}")
    known = [option.name for option in fields(ExchangeOptions)]
    for name in given:
        if name not in known:
            raise TypeError(f"has no argument {name!r}; it has {', '.join(known)}")
    options = ExchangeOptions(**given)
    for name, value in options.switches.items():
        if (fault := fault_of(name, value)) is not None:
            raise ValueError(fault)
    speed_of(options.clock)
    if options.network not in ("testnet", "mainnet"):
        raise ValueError(f"network is 'testnet' or 'mainnet', not {options.network!r}")
    return options


class LocalExchange:
    """A fresh exchange. Every method may be called from any thread."""

    base_url: str

    def __init__(self, options: ExchangeOptions | None = None) -> None:
        self.options = options or ExchangeOptions()
        self._thread = threading.Thread(target=self._run, name="local-exchange", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def __enter__(self) -> Self:
        from bot.local_exchange.extra import need_extra

        need_extra()
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise TimeoutError(f"the local exchange was not ready within {START_SECONDS:g} s")
        if self._error is not None:
            raise self._error
        verify = context_for(needs_tls=False)
        self._http = httpx.Client(base_url=self.base_url, timeout=60.0, trust_env=False, verify=verify)
        for address, usd in self.options.accounts.items():
            self.deposit(address, usd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the exchange; its port is free afterwards."""
        self._http.close()
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)

    # ── What a test does ────────────────────────────────────────────────────────────────────────────────────────────

    def control(self, command: str, **body: Any) -> Any:
        """Any command of /control, like `control("trade", coin="BTC", side="B", sz="1")`."""
        answer = self._http.post(f"/control/{command}", content=json.dumps(body))
        if answer.status_code != 200:
            raise AssertionError(f"/control/{command}: {answer.status_code} {answer.text}")
        return answer.json()

    def deposit(self, address: str, usd: str | int, *, dex: str = "") -> Any:
        """Give an address money; it exists from then on."""
        return self.control("deposit", address=address, usd=str(usd), dex=dex)

    def price(self, coin: str, px: str | int, **more: str) -> Any:
        """Move a price: resting orders that it passes fill, triggers fire, accounts are liquidated."""
        return self.control("price", coin=coin, px=str(px), **more)

    def trade(self, coin: str, side: str, sz: str, px: str | None = None) -> Any:
        """Another participant buys (B) or sells (A) at the book's prices, at none beyond `px`."""
        return self.control("trade", coin=coin, side=side, sz=sz, **({} if px is None else {"px": px}))

    def advance(self, ms: int) -> int:
        """Advance the manual clock; everything that falls due happens in order."""
        return int(self.control("advance", ms=ms)["now"])

    def fault(self, point: str, kind: str, **more: Any) -> Any:
        """Make a request, an answer or a message fail, as docs/test-your-hyperliquid-bot.md lists."""
        return self.control("fault", point=point, kind=kind, **more)

    def switch(self, name: str, value: str) -> Any:
        """Choose the answer to an open question about the exchange."""
        return self.control("switch", name=name, value=value)

    def state(self) -> Any:
        return self.control("state")

    def info(self, kind: str, **query: Any) -> Any:
        """An info request."""
        answer = self._http.post("/info", json={"type": kind, **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    # ── The exchange's thread ───────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  raised where the test waits for it
            self._error = self._error or error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from pathlib import Path

        from bot.local_exchange.server.clock import speed_of
        from bot.local_exchange.server.host import listen, run
        from bot.local_exchange.server.service import ExchangeServiceOptions

        chosen = self.options
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        sock = listen(HOST, 0)
        self.base_url = f"http://{HOST}:{sock.getsockname()[1]}"
        db = None if chosen.db is None else Path(chosen.db)
        switches = {"ip_limit": "off", **chosen.switches}
        speed = speed_of(chosen.clock)
        start_ms = None if speed == 1 else chosen.start_ms
        options = ExchangeServiceOptions(
            chosen.network, speed, db, chosen.seed, chosen.prices, start_ms, switches, chosen.block_ms
        )

        def ready(service: ExchangeService) -> None:
            self._ready.set()

        await run(options, sock, ready, self._end)
