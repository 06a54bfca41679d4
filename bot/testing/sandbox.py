"""A service in a thread of the test's process, with helpers for tests.

It listens on a real port, so any client can use it.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from bot.client.client import Client
from bot.client.control import ControlClient
from bot.errors import BotError
from bot.http_limits import context_for
from bot.service.host import HostOptions, Service, build
from bot.service.http.server import Listener, free_port
from bot.service.state_machine.clock import parse_clock

if TYPE_CHECKING:
    from bot.testing.daemon import Daemon

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
# 1 January 2026 UTC: with the same seed every run has the same prices
START_MS: Final = 1_767_225_600_000
TIMEOUT_SECONDS: Final = (
    # The time of a request: an advance over days processes every price, and a busy machine builds /openapi.json slowly.
    60.0
)


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of the mark `sandbox`.

    `markets` None: all. `prices`: "pushed" (only the test moves them) or "simulated".
    """

    clock: str = "manual"
    seed: int = 1
    markets: Sequence[str] | None = None
    balance: str = "10000"
    prices: str = "simulated"
    start_ms: int = START_MS


def options_of(args: tuple[Any, ...], given: Mapping[str, Any]) -> Options:
    """The arguments of the mark; TypeError or ValueError says what is wrong with them."""
    if args:
        raise TypeError(f"takes keyword arguments only, like clock='60x', not {args[0]!r}")
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise TypeError(f"has no argument {name!r}; it has {', '.join(known)}")
    options = Options(**given)
    if isinstance(options.markets, str):
        raise TypeError(f"markets is a list, like [{options.markets!r}]")
    if options.prices not in ("simulated", "pushed"):
        raise ValueError(f"prices is 'simulated' or 'pushed', not {options.prices!r}")
    try:
        parse_clock(options.clock)
    except BotError as error:
        raise ValueError(str(error)) from None
    return replace(options, balance=str(options.balance))


class Sandbox:
    """A fresh service with one account. Every method may be called from any thread, also from a coroutine test."""

    base_url: str
    api_key: str
    account_id: str
    control_token: str

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.control_token = f"bbc_{secrets.token_hex(16)}"
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._clients: list[httpx.Client] = []

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            if not self._ready.wait(START_SECONDS):
                raise TimeoutError(f"the sandbox was not ready within {START_SECONDS:g} s")
            if self._error is not None:
                raise self._error
            self._control = httpx.Client(
                base_url=f"{self.base_url}/sandbox/v1",
                headers={"Authorization": f"Bearer {self.control_token}"},
                timeout=TIMEOUT_SECONDS,
                trust_env=False,
                verify=context_for(needs_tls=False),
            )
            self._clients.append(self._control)
            self._open_account()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the service; its port is free afterwards."""
        for client in self._clients:
            client.close()
        self._clients = []
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            # The event loop has just closed; its thread is ending.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)

    def _open_account(self) -> None:
        with httpx.Client(base_url=self.base_url, trust_env=False, verify=context_for(needs_tls=False)) as http:
            answer = http.post(
                "/v1/sandbox/accounts",
                content=f'{{"name":"test","startingBalanceUsd":{self.options.balance}}}',
                headers={"Content-Type": "application/json"},
            )
        opened = _checked(answer)
        self.api_key, self.account_id = opened["apiKey"], opened["accountId"]

    # ── What a test does ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def headers(self) -> dict[str, str]:
        """The account's credential, for a client of your own."""
        return {"Authorization": f"Bearer {self.api_key}"}

    def client(self) -> httpx.Client:
        """A plain HTTP client with base URL and credential; closed at the end of the test."""
        http_client = httpx.Client(
            base_url=self.base_url,
            headers=self.headers,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            verify=context_for(needs_tls=False),
        )
        self._clients.append(http_client)
        return http_client

    def async_client(self) -> Client:
        """The package's own client: `async with sandbox.async_client() as client`."""
        return Client(self.base_url, self.api_key)

    def control_client(self) -> ControlClient:
        """The package's own client of the control API: `async with sandbox.control_client() as control`."""
        return ControlClient(base_url=self.base_url, token=self.control_token)

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """Any operation of /sandbox/v1, like `control("POST", "/faults", {"op": "*", "kind": "drop"})`."""
        return _checked(self._control.request(method, path, json=body))

    def advance(self, ms: int) -> Any:
        """Advance a manual clock; everything that falls due happens in order."""
        return self.control("POST", "/clock/advance", {"ms": ms})

    def price(self, coin: str, px: str | int, **more: str) -> Any:
        """Push a price; from then on only pushed prices move the market. Returns the market."""
        return self.control("POST", f"/markets/{coin}/price", {"px": str(px), **more})

    def fault(self, op: str, kind: str, *, count: int = 1, ms: int | None = None) -> None:
        """Make an operation fail: delay, drop, status_429, status_500, lose_reply or duplicate_event."""
        self.control("POST", "/faults", {"op": op, "kind": kind, "count": count, **({} if ms is None else {"ms": ms})})

    def run(
        self,
        use: str,
        *,
        markets: Sequence[str] = ("BTC",),
        interval: str = "1m",
        params: Mapping[str, Any] | None = None,
        strategies_dir: str | Path = "strategies",
        budget_usd: float = 1_000,
        max_leverage: int = 1,
        informative: Sequence[str] = (),
    ) -> Daemon:
        """The daemon's kernel with one strategy on this account:

        `with sandbox.run("mine:Mine") as daemon: daemon.minutes(5)`.
        """
        from bot.testing.daemon import Daemon
        from bot.testing.settings import strategy_entry

        entry = strategy_entry(
            use,
            markets=markets,
            interval=interval,
            params=params or {},
            budget_usd=budget_usd,
            max_leverage=max_leverage,
            informative=informative,
        )
        return Daemon(self, entry, strategies_dir=strategies_dir)

    def digest(self) -> str:
        """SHA-256 of all events so far: equal for equal histories."""
        return str(self.control("GET", "/digest")["digest"])

    def snapshot(self, name: str = "test") -> None:
        self.control("POST", "/snapshot", {"name": name})

    def restore(self, name: str = "test") -> None:
        self.control("POST", "/restore", {"name": name})

    # ── The service's thread ────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  raised where the test waits for it
            self._error = self._error or error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        sock = free_port(HOST)
        try:
            service = self._build(sock.getsockname()[1])
            listener = Listener(service.app, sock, service.headers)
        except BaseException:
            sock.close()
            raise
        listener.server.on_stop = service.streams.close
        await service.start(on_fault=self._end.set)
        try:
            await listener.start()
            self.base_url = service.operations.base_url
            self._ready.set()
            await self._end.wait()
        finally:
            await listener.stop()
            await service.stop()

    def _build(self, port: int) -> Service:
        options = self.options
        host = HostOptions(
            host=HOST,
            port=port,
            clock=options.clock,
            seed=options.seed,
            markets=tuple(options.markets or ()),
            start_ms=options.start_ms,
            hold_prices=options.prices == "pushed",
            rate_limits=False,
        )
        return build(host, control_token=self.control_token)


def _checked(answer: httpx.Response) -> Any:
    """The body of a response with status 200; AssertionError with the response's text otherwise."""
    if answer.status_code != 200:
        raise AssertionError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
    return answer.json()
