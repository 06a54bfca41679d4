"""The composition root of the service: opens the log, builds machine, operations and gateway, serves them, keeps
time, stops cleanly.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import uvloop
from starlette.types import ASGIApp

from bot.clock import Clock, SystemClock
from bot.errors import BotError, ConfigError, Exit
from bot.files import replacing
from bot.logs import log
from bot.model.events import Event
from bot.operating_system import SOCKET_NAME_MAX, map_large_blocks
from bot.service.docs.routes import add_documents
from bot.service.http.event_stream import StreamOperations, Streams, add_stream
from bot.service.http.fault_injection import InjectedFaults
from bot.service.http.gateway import Gateway
from bot.service.http.routes_approval import add_approval
from bot.service.http.routes_v1 import Router, add_reads, add_routes, add_webhooks
from bot.service.http.server import Listener, free_port, make_server
from bot.service.market_data.instruments import Listing
from bot.service.mcp.cors import CrossOrigin
from bot.service.mcp.route import McpRoute, add_mcp
from bot.service.operations.operations import Operations
from bot.service.operations.webhooks import WebhookOperations
from bot.service.sandbox.forks import Fork, Forks
from bot.service.sandbox.routes import add_control
from bot.service.security.rate_limits import RateLimits
from bot.service.security.secret_encryption import KEY_FILE_SUFFIX, SecretCipher
from bot.service.state_machine.bootstrap import LiveOptions, PriceOptions, open_machine
from bot.service.state_machine.clock import parse_clock
from bot.service.state_machine.command_log import CommandLog, Statement
from bot.service.state_machine.machine import Machine
from bot.service.state_machine.named_snapshots import NamedSnapshot, Replies
from bot.service.state_machine.restore import StateRestorer
from bot.service.webhooks.dispatcher import WebhookDispatcher
from bot.service.webhooks.outbox import Outbox
from bot.wire.headers import SANDBOX_CLOCK_HEADER, format_sandbox_clock

if TYPE_CHECKING:
    from bot.service.exchange_accounts.account_options import FollowedAccount
    from bot.service.exchange_accounts.action_dispatcher import ActionDispatcher
    from bot.service.exchange_accounts.audit.audit_schedule import BookAuditor
    from bot.service.exchange_accounts.follower import ExchangeFollower
    from bot.service.live_prices.price_sources import PriceSources

CONTROL_TOKEN_ENV: Final = "BOT_CONTROL_TOKEN"  # noqa: S105  the name of a variable, not a secret
MEMORY: Final = ":memory:"
# how often the clock's lease is renewed
TICK_MAX_SECONDS: Final = 1.0
# time between two pieces of a snapshot, so that callers get half of the time
SAVING_PAUSE_SECONDS: Final = 0.004
# time between making the histories of two markets, so that callers do not wait
WARM_PAUSE_SECONDS: Final = 0.05
# the interface's limits for inviteCode
INVITE_CODE_MIN: Final = 6
INVITE_CODE_MAX: Final = 64
# thresholds of the garbage collector's three generations
COLLECTOR: Final = (20_000, 20, 100)
# glibc's first threshold, which it raises by itself up to 32 MB
MAPPED_BYTES_MIN: Final = 128 * 1024
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of a service. `port` 0: any free port. `db` ":memory:": nothing is saved. `clock`: real, manual or Nx."""

    host: str = "127.0.0.1"
    port: int = 8700
    db: str | Path = MEMORY
    clock: str = "real"
    seed: int | None = None
    data: tuple[tuple[str | None, Path], ...] = ()
    markets: tuple[str, ...] = ()
    # markets besides the shipped ones, of a listing file
    listings: Mapping[str, Listing] = field(default_factory=dict)
    start_ms: int | None = None
    # sources of live prices: see `live_prices.listings.live_sources`
    live: tuple[str, ...] = ()
    hold_prices: bool = False
    control_socket: Path | None = None
    rate_limits: bool = True
    # empty: new accounts need none
    invite_codes: tuple[str, ...] = field(default=(), repr=False)
    # other origins whose pages may call /mcp, like https://app.example
    origins: tuple[str, ...] = ()
    # deliver to private addresses too; None: only if `host` is loopback
    webhooks_private: bool | None = None
    ready_fd: int | None = None
    ready_file: Path | None = None
    # the account at an exchange that the service follows; None: that of the database, if it has one
    followed: FollowedAccount | None = None


@dataclass(slots=True)
class Service:
    """A service without its HTTP server. Call `start` and `stop` on the event loop."""

    machine: Machine
    operations: Operations
    app: Gateway
    streams: Streams
    outbox: Outbox
    dispatcher: WebhookDispatcher
    mcp_route: McpRoute
    restorer: StateRestorer
    forks: Forks
    origins: frozenset[str] = frozenset()
    # freeze the garbage collector's objects after each snapshot; for a process of its own
    freezes: bool = False
    live: PriceSources | None = None
    follower: ExchangeFollower | None = None
    actions: ActionDispatcher | None = None
    auditor: BookAuditor | None = None
    _follower: asyncio.Task[None] | None = field(default=None, repr=False)
    _actions: asyncio.Task[None] | None = field(default=None, repr=False)
    _auditor: asyncio.Task[None] | None = field(default=None, repr=False)
    _ticker: asyncio.Task[None] | None = field(default=None, repr=False)
    _prices: asyncio.Task[None] | None = field(default=None, repr=False)
    _sender: asyncio.Task[None] | None = field(default=None, repr=False)
    _on_fault: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def asgi_app(self) -> ASGIApp:
        """The ASGI application that a server runs."""
        return CrossOrigin(self.app, self.origins) if self.origins else self.app

    def headers(self) -> dict[str, str]:
        """Headers of every response, including responses that the server sends by itself."""
        clock = self.machine.clock
        return {} if clock.is_known else {SANDBOX_CLOCK_HEADER: format_sandbox_clock(clock.now_ms(), clock.speed)}

    async def start(self, on_fault: Callable[[], None] | None = None) -> None:
        """Start the writer, the ticker and the webhook dispatcher.

        Returns when the commands of the start are on disk.
        """
        self._on_fault = on_fault
        self.machine.log.start()
        if self.live is not None:
            self.live.begin()
            self._prices = asyncio.create_task(self._work(self.live.run), name="service-prices")
        if self.follower is not None:
            self.follower.begin()
            self._follower = asyncio.create_task(self._work(self.follower.run), name="service-exchange")
        if self.actions is not None:
            self._actions = asyncio.create_task(self._work(self.actions.run), name="service-actions")
        if self.auditor is not None:
            self._auditor = asyncio.create_task(self._work(self.auditor.run), name="service-audit")
        await self.machine.settle()
        self._ticker = asyncio.create_task(self._tick(), name="service-ticker")
        self._sender = asyncio.create_task(self._work(self.dispatcher.run), name="service-webhooks")

    async def _tick(self) -> None:
        """Sleep until the next price or deadline, then apply it. Renew the clock's lease at least every second."""
        machine = self.machine
        cold, saving = True, False
        try:
            while True:
                machine.catch_up()
                was_saving, saving = saving, machine.snapshot_if_due()
                if self.freezes and was_saving and not saving:
                    gc.collect(1)
                    gc.freeze()
                if machine.clock.speed:
                    machine.save_clock()
                machine.signals.moved.clear()
                cold = cold and machine.feed.warm()
                if cold:
                    await asyncio.sleep(WARM_PAUSE_SECONDS)
                elif saving:
                    await asyncio.sleep(SAVING_PAUSE_SECONDS)
                else:
                    await self._sleep()
                if machine.fault is not None:
                    break
        except Exception as error:
            machine.fault = machine.fault or error
            log.exception("service.faulted")
            raise
        finally:
            if machine.fault is not None and self._on_fault is not None:
                self._on_fault()

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Deliver webhooks, or follow live prices. An unexpected error ends the service."""
        try:
            await work()
        except Exception as error:
            self.machine.fault = self.machine.fault or error
            log.exception("service.faulted")
            if self._on_fault is not None:
                self._on_fault()
            raise

    async def _sleep(self) -> None:
        machine = self.machine
        at = machine.sleeps_until_ms = machine.next_instant_ms()
        seconds = None if at is None else machine.clock.real_seconds_until(at)
        if machine.clock.speed:
            seconds = TICK_MAX_SECONDS if seconds is None else min(seconds, TICK_MAX_SECONDS)
        with contextlib.suppress(TimeoutError):
            # Yield to the event loop even if the next point is due now.
            await asyncio.wait_for(machine.signals.moved.wait(), None if seconds is None else max(seconds, 0.001))

    async def stop(self) -> None:
        """Stop the ticker and the dispatcher, save a snapshot, close the file."""
        self.streams.close()
        await self.forks.stop()
        await self.mcp_route.close()
        for task in (self._auditor, self._actions, self._follower, self._prices, self._sender, self._ticker):
            if task is not None:
                task.cancel()
                # The error of the task is in the log and in `fault`.
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        self._auditor = self._actions = self._follower = self._prices = self._sender = self._ticker = None
        machine = self.machine
        if machine.fault is None:
            machine.catch_up()
            machine.snapshot()
            machine.save_clock(final=True)
        machine.log.close()


def build(
    options: HostOptions,
    *,
    control_token: str | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    real_clock: Clock | None = None,
    cipher: SecretCipher | None = None,
) -> Service:
    """Build a service from options: files are open, the state is ready, nothing is served yet. ConfigError for wrong
    options.

    `real_clock`: the clock of webhooks, by default the system clock. `cipher`: the cipher of the service that this one
    is a fork of.
    """
    db = None if str(options.db) == MEMORY else Path(options.db)
    origins = frozenset(map(_origin_of, options.origins))
    command_log = CommandLog(db) if on_failure is None else CommandLog(db, on_failure)
    prices = _prices_of(options)
    machine = open_machine(command_log, speed=parse_clock(options.clock), prices=prices)
    if machine.feed.live() and not machine.clock.is_real:
        command_log.close()
        raise ConfigError(f"{command_log.path}: this database has live prices, which need --clock real")
    base_url = f"http://{_host_of(options.host)}:{options.port}"
    operations = Operations(machine, RateLimits(enabled=options.rate_limits), base_url)
    operations.invite_codes = options.invite_codes
    router = Router()
    add_routes(router, operations)
    add_approval(router, operations)
    cipher = cipher or SecretCipher(None if db is None else db.with_name(db.name + KEY_FILE_SUFFIX))
    streams, outbox, dispatcher = _add_events_out(router, operations, options, cipher, real_clock or SystemClock())

    def changed() -> None:
        streams.interrupt()
        outbox.begin(machine.state)
        dispatcher.wake()

    restorer = StateRestorer(machine, prices, machine.clock.speed, changed)
    faults = InjectedFaults()
    forks = Forks(lambda snapshot, replies, speed: _fork(options, control_token, cipher, snapshot, replies, speed))
    add_control(router, operations, restorer, faults, forks)
    add_reads(router, operations)
    add_documents(router, operations)
    mcp_route = add_mcp(router, operations, origins)
    hosts = frozenset({"127.0.0.1", "localhost", "[::1]", "embedded"}) if options.host in LOOPBACK else None
    gateway = Gateway(operations, router.rules, router.endpoints, control_token=control_token, hosts=hosts)
    faults.follow(router.rules, gateway.rule_of)
    gateway.faults = faults
    mcp_route.lead_to(gateway)
    service = Service(machine, operations, gateway, streams, outbox, dispatcher, mcp_route, restorer, forks, origins)
    if machine.feed.live():
        service.live = _live_prices(machine)
        operations.live_body = service.live.body
    try:
        service.follower = _follower(machine, options)
    except BotError:
        command_log.close()
        raise
    if service.follower is not None:
        _add_actions(service, service.follower)
    return service


def _add_actions(service: Service, follower: ExchangeFollower) -> None:
    """Send the actions of the account, let requests wait for them, and audit its books."""
    # As below.
    from bot.service.exchange_accounts.action_dispatcher import ActionDispatcher
    from bot.service.exchange_accounts.audit.audit_schedule import BookAuditor

    auditor = service.auditor = BookAuditor(service.machine, follower)
    service.actions = ActionDispatcher(service.machine, follower)
    service.machine.signals.acted = follower.link_changed = service.actions.wake
    service.operations.exchange_body = lambda: follower.body() | auditor.body()
    service.operations.decided = service.actions.decided


def _follower(machine: Machine, options: HostOptions) -> ExchangeFollower | None:
    """What follows the account at an exchange, if the options or the database name one."""
    if options.followed is None and all(account.exchange is None for account in dict.values(machine.state.accounts)):
        return None
    # Only a service with such an account loads this.
    from bot.service.exchange_accounts.account_options import followed_account
    from bot.service.exchange_accounts.follower import ExchangeFollower

    followed = followed_account(machine, options.followed, has_file=str(options.db) != MEMORY)
    return None if followed is None else ExchangeFollower(machine, followed)


def _prices_of(options: HostOptions) -> PriceOptions:
    live: tuple[LiveOptions, ...] = ()
    coins = options.markets
    if options.live:
        # Only a service with live prices loads this.
        from bot.service.live_prices.listings import live_sources

        live = live_sources(options.live, options.markets)
        coins = tuple(market.partition("=")[0] for market in options.markets)
    return PriceOptions(
        options.seed, options.data, coins, options.start_ms, live, options.hold_prices, listings=options.listings
    )


def _live_prices(machine: Machine) -> PriceSources:
    # As above.
    from bot.service.live_prices.price_sources import PriceSources

    return PriceSources(machine)


@dataclass(slots=True)
class _RunningFork:
    base_url: str
    service: Service
    listener: Listener

    async def stop(self) -> None:
        await self.listener.stop()
        await self.service.stop()


async def _fork(
    options: HostOptions,
    control_token: str | None,
    cipher: SecretCipher,
    snapshot: NamedSnapshot,
    replies: Replies,
    speed: float,
) -> Fork:
    """A second service, in memory, on its own port. This service keeps sending the webhooks of the snapshot. The fork
    uses the same cipher, so it recognizes requests that this service has answered.
    """
    sock = free_port(options.host)
    try:
        clock = f"{speed:g}x" if speed else "manual"
        port = sock.getsockname()[1]
        plain = replace(options, port=port, db=MEMORY, clock=clock, control_socket=None, ready_fd=None, ready_file=None)
        service = build(plain, control_token=control_token, cipher=cipher)
        service.restorer.adopt(snapshot, replies)
        service.outbox.begin(service.machine.state, silent=True)
        listener = Listener(service.asgi_app, sock, service.headers)
        listener.server.on_stop = service.streams.close
        await service.start(on_fault=listener.server.stop)
        try:
            await listener.start()
        except BaseException:
            await service.stop()
            raise
    except BaseException:
        sock.close()
        raise
    return _RunningFork(service.operations.base_url, service, listener)


def _add_events_out(
    router: Router, operations: Operations, options: HostOptions, cipher: SecretCipher, clock: Clock
) -> tuple[Streams, Outbox, WebhookDispatcher]:
    """Add the routes of the event stream and of webhooks; build the outbox and its dispatcher."""
    machine = operations.machine
    private = options.host in LOOPBACK if options.webhooks_private is None else options.webhooks_private
    if private and options.host not in LOOPBACK:
        machine.log.close()
        raise ConfigError(
            f"only a service on loopback may send webhooks to private addresses; this one listens on {options.host}"
        )
    streams = Streams()
    add_stream(router, StreamOperations(operations, streams))
    outbox = Outbox(machine.log, clock)
    try:
        if machine.state.webhooks:
            cipher.prepare()
    except ConfigError:
        machine.log.close()
        raise
    outbox.load(machine.state)
    dispatcher = WebhookDispatcher(machine, outbox, cipher, clock, private=private)

    def publish(events: list[Event]) -> list[Statement]:
        streams.wake(events)
        owed = outbox.owe(events)
        if owed or outbox.overfull:
            dispatcher.wake()
        return owed

    machine.publish = publish
    webhook_operations = WebhookOperations(
        machine, operations.rate_limits, operations.base_url, outbox=outbox, cipher=cipher, private=private
    )
    add_webhooks(router, webhook_operations)
    return streams, outbox, dispatcher


def _origin_of(text: str) -> str:
    """An origin as browsers write it."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"{text!r} is not an origin; write scheme://host[:port], like https://app.example")
    return f"{parts.scheme}://{parts.netloc}".lower()


def read_invite_codes(path: Path) -> tuple[str, ...]:
    """The codes of a file, one per line. A ConfigError names the file but never a code."""
    try:
        codes = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for number, code in enumerate(codes, 1):
        if not INVITE_CODE_MIN <= len(code) <= INVITE_CODE_MAX:
            raise ConfigError(f"{path}: code {number} must have {INVITE_CODE_MIN} to {INVITE_CODE_MAX} characters")
    if not codes:
        raise ConfigError(f"{path}: has no codes; write one code on each line")
    return codes


def serve(options: HostOptions, *, on_ready: Callable[[str], None] | None = None) -> int:
    """Serve until a signal stops it. Returns the exit code; writes an error to standard error."""
    try:
        return uvloop.run(_serve(options, on_ready))
    except BotError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.exit_code)


async def _serve(options: HostOptions, on_ready: Callable[[str], None] | None) -> int:
    sockets = [_bind_tcp(options.host, options.port)]
    options = replace(options, port=sockets[0].getsockname()[1])
    try:
        if options.control_socket is not None:
            sockets.append(_bind_unix(options.control_socket))
        # The freed texts of a snapshot then leave no holes in the heap.
        map_large_blocks(MAPPED_BYTES_MIN)
        with sparing_the_collector():
            service = build(options, control_token=os.environ.get(CONTROL_TOKEN_ENV))
        service.freezes = True
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    server = make_server(service.asgi_app, service.headers)
    server.on_stop = service.streams.close
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    try:
        await service.start(on_fault=server.stop)
        server.on_started = lambda: _say_ready(options, service, on_ready)
        await server.serve(sockets=sockets)
    finally:
        await service.stop()
        if options.control_socket is not None:
            options.control_socket.unlink(missing_ok=True)
    log.info("service.stopped", seq=service.machine.seq, events=service.machine.events)
    return int(Exit.DONE if service.machine.fault is None else Exit.ERROR)


@contextlib.contextmanager
def sparing_the_collector() -> Iterator[None]:
    """Keep the loaded state out of the garbage collector, and let the collector run rarely: the state has no
    reference cycles.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*COLLECTOR)
        gc.enable()


def _say_ready(options: HostOptions, service: Service, on_ready: Callable[[str], None] | None) -> None:
    base_url = service.operations.base_url
    line: dict[str, Any] = {"baseUrl": base_url, "port": options.port, "pid": os.getpid()}
    log.info(
        "service.ready",
        base_url=base_url,
        db=str(options.db),
        clock=options.clock,
        at_ms=service.machine.clock.now_ms(),
    )
    text = (json.dumps(line) + "\n").encode()
    if options.ready_file is not None:
        with replacing(options.ready_file) as file:
            file.write(text)
    if options.ready_fd is not None:
        # The reader has gone; the ready file tells the next one.
        with contextlib.suppress(BrokenPipeError):
            os.write(options.ready_fd, text)
        os.close(options.ready_fd)
    if on_ready is not None:
        on_ready(base_url)


# ── Sockets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class CannotListen(BotError):
    """The service cannot listen on its address."""


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} on {host} is in use; stop the program that uses it, or choose another port with --port"
            ) from None
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    sock.set_inheritable(False)
    return sock


def _bind_unix(path: Path) -> socket.socket:
    """A socket that only this user may open. The file permission is the credential of the sandbox control."""
    if len(os.fsencode(path)) > SOCKET_NAME_MAX:
        raise ConfigError(
            f"{path}: a socket's path may have at most {SOCKET_NAME_MAX} bytes; choose a shorter state directory"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            if not stat.S_ISSOCK(path.stat().st_mode):
                raise CannotListen(f"{path}: this file exists and is not a socket; move it away")
            if _answers(path):
                raise CannotListen(f"{path}: another service listens on this socket; stop it first")
            path.unlink()
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        sock.close()
        raise CannotListen(f"{path}: {error.strerror or error}") from None
    except CannotListen:
        sock.close()
        raise
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _host_of(host: str) -> str:
    return f"[{host}]" if ":" in host else host
