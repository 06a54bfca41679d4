"""What a run reports: notices of its start and end to people, log lines, and the port for metrics. If a part fails, the
run trades on.

The port for metrics is bound to this machine only and answers three GETs. It runs on the event loop's thread, so an
answer proves that the loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from bot.clock import SystemClock, boot_id, boot_ns, iso, monotonic_ns
from bot.errors import BotError, Exit, JournalError
from bot.logs import log
from bot.runtime.alerts import notifier as notify
from bot.runtime.alerts.messages import notice, of_event, owners_in_words
from bot.runtime.control_plane import metrics
from bot.runtime.control_plane.acceptor import HOST, Acceptor, loopback_listener
from bot.runtime.control_plane.server import HEAD_BYTES_MAX, RequestProblem, read_request, send_answer
from bot.runtime.journal import queries
from bot.runtime.journal.journal import Notice
from bot.runtime.journal.opening import open_journal
from bot.runtime.liveness.progress_stamp import ProgressReader

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from bot.config import Settings
    from bot.runtime.account.account_state import AccountState
    from bot.runtime.journal.journal import Journal
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.liveness.heartbeat import HeartbeatProcess
    from bot.runtime.model.shares import Part
    from bot.wire import Event

ASKERS_MAX: Final = 16
PORT_FILE: Final = "metrics.port"
TEXT: Final = "text/plain; charset=utf-8"
EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
# the note of a run that has not ended yet: the boot id of the machine when it began
UNENDED: Final = "unended"
# time for notices after the stop; a run ends within 5 s, and the rest takes time on a busy machine
END_S: Final = 3.5
# file of the state directory with the notice of a start that had no journal
FAILED_START: Final = "failed-start"
# runs that fail in the same way cause one notice in this time
FAILED_AGAIN_MS: Final = 600_000


def notifier_of(settings: Settings, journal: Journal) -> notify.Notifier | None:
    """The notifier for the config's targets; None without any. ConfigError for an address that cannot be used."""
    section = settings.notify
    if section is None:
        return None
    wording = notify.Wording(
        settings.name, level=section.level, mute=frozenset(section.mute), texts=section.texts, per_hour=section.per_hour
    )
    targets = [(notify.key_of(url), notify.AppriseTarget(url, index)) for index, url in enumerate(section.urls)]
    return notify.Notifier(
        notify.deliveries_of(targets, journal=journal, wording=wording, mono_ms=_mono_ms), mono_ms=_mono_ms
    )


def _mono_ms() -> int:
    return monotonic_ns() // 1_000_000


def write_notice(kernel: Kernel, kind: str, message: str) -> None:
    """Write a notice of the run's start or end. A journal that cannot store it is reported elsewhere."""
    now_ms = kernel.now_ms()
    with contextlib.suppress(JournalError):
        kernel.journal.notify([notice(kind, f"{kind}:{now_ms}", at_ms=now_ms, message=message)], now_ms=now_ms)


def notices_of(kernel: Kernel, event: Event, parts: Mapping[str, Part]) -> Iterable[Notice]:
    """The notices of an event of the service. `parts` are the shares of a fill, by owner.

    A service that shows no keys does not say whose fill it is. Then a fill without an owner counts as the market's
    strategy's.
    """
    instance = kernel.strategy_host.instance_for(event.coin or "")
    is_owner_known = kernel.account.account_state.events_named or any(not name.startswith("@") for name in parts)
    owner = owners_in_words(parts) if is_owner_known else None
    return of_event(event, kernel.account.order_owners.owner_of, owner or (None if instance is None else instance.name))


def log_heartbeat(process: HeartbeatProcess | None) -> None:
    if process is None:
        return
    lease = process.lease()
    left_ns = None if lease.deadline_boot_ns is None else lease.deadline_boot_ns - boot_ns()
    log.debug(
        "heartbeat.status",
        armed=lease.armed,
        deadline_s=None if left_ns is None else round(left_ns / 1e9, 1),
        beats=lease.beats,
        next_deadline_ms=lease.next_deadline_ms,
        error=lease.error or None,
    )


def log_account_value(account_state: AccountState) -> None:
    usd, free_usd = round(account_state.equity_usd, 2), round(account_state.free_margin_usd, 2)
    log.debug("account.value", usd=usd, free_usd=free_usd, positions=len(account_state.positions))


def failure(error: Exception) -> tuple[str, Exit]:
    """The message for people about an error that ends a run, and the exit code."""
    if isinstance(error, BotError):
        return str(error), error.exit_code
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"a bug in Bracketbot: {line}", Exit.ERROR


async def write_failure(settings: Settings, journal: Journal, message: str, code: Exit, *, now_ms: int) -> None:
    """Write the notice of a run that ends in a failure. The notifier sends it at the end of this run, or at the start
    of the next.

    If the journal cannot store it, it is sent now.
    """
    failed = _failed(message, code, now_ms=now_ms)
    try:
        journal.notify([failed], now_ms=now_ms)
    except JournalError:
        await _send_by(open_journal(None, address=journal.address), settings, failed, now_ms=now_ms)


async def send_failure_of_start(settings: Settings, error: BotError, *, now_ms: int) -> None:
    """Send the notice of a start that fails before it has opened its journal, by the journal of an earlier run if one
    can be used.

    Without a journal a file keeps the newest notice, so that a start that is tried again and again is told once in
    FAILED_AGAIN_MS.
    """
    failed = _failed(*failure(error), now_ms=now_ms)
    # The caller raises the error of the start.
    with contextlib.suppress(BotError, OSError):
        journal = _earlier_journal(settings)
        if journal is None:
            told = settings.state_dir / FAILED_START
            if told.exists() and told.read_text(encoding="utf-8") == failed.event_id:
                return
            told.write_text(failed.event_id, encoding="utf-8")
            journal = open_journal(None, address="")
        await _send_by(journal, settings, failed, now_ms=now_ms)


def _earlier_journal(settings: Settings) -> Journal | None:
    try:
        with queries.opened(settings.state_dir) as db:
            address = queries.address_of(db)
        return None if address is None else open_journal(settings.state_dir / queries.FILE, address=address)
    # The folder has no journal, or the journal cannot be used.
    except BotError:
        return None


@contextlib.asynccontextmanager
async def telling_failure(settings: Settings, now_ms: Callable[[], int]) -> AsyncIterator[None]:
    """Send the notice of a start that fails in the block."""
    try:
        yield
    except BotError as error:
        await send_failure_of_start(settings, error, now_ms=now_ms())
        raise


def _failed(message: str, code: Exit, *, now_ms: int) -> Notice:
    digest = hashlib.sha256(message.encode()).hexdigest()[:12]
    ref = f"failed:{now_ms // FAILED_AGAIN_MS}:{digest}"
    return notice("daemon.failed", ref, at_ms=now_ms, message=message, code=int(code))


def last_sign(journal: Journal, folder: Path) -> str | None:
    """The last sign of life of an earlier run that did not end in order;

    None if it did. Call it before this run's first progress stamp.
    """
    boot = journal.state.note(UNENDED)
    if boot is None:
        return None
    with contextlib.suppress(OSError):
        path = folder / "progress"
        reader = ProgressReader(str(path))
        try:
            stamp = reader.read()
        finally:
            reader.close()
        if stamp is not None and stamp.boot_ns and boot == boot_id() != "":
            return iso(SystemClock().now_ms() - (boot_ns() - stamp.boot_ns) // 1_000_000)
        # Boot time of another boot cannot be compared.
        return iso(path.stat().st_mtime_ns // 1_000_000)
    return "an unknown instant"


def note_begin(journal: Journal, last_sign: str | None, *, now_ms: int) -> None:
    """Note that this run has begun.

    If `last_sign` says that the run before did not end in order, write a notice of it.
    """
    with contextlib.suppress(JournalError), journal.together():
        if last_sign is not None:
            message = (
                f"its last sign of life was at {last_sign}: it was killed (kill -9, out of memory, a loop that hung),"
                " or the machine stopped. This run continues from its journal"
            )
            log.warning("daemon.killed", last_sign=last_sign, message=message)
            ref = f"killed:{SystemClock().now_ms() // FAILED_AGAIN_MS}"
            journal.notify([notice("daemon.killed", ref, at_ms=now_ms, message=message)], now_ms=now_ms)
        journal.state.write_note(UNENDED, boot_id())


def note_end(journal: Journal) -> None:
    """Note that the run has ended in order, or that its failure has a notice."""
    with contextlib.suppress(JournalError):
        journal.state.forget_note(UNENDED)


async def _send_by(journal: Journal, settings: Settings, failed: Notice, *, now_ms: int) -> None:
    with contextlib.closing(journal):
        # First, because a new target gets only later notices.
        notifier = notifier_of(settings, journal)
        journal.notify([failed], now_ms=now_ms)
        if notifier is not None:
            await notifier.flush()


@contextlib.asynccontextmanager
async def notifying(notifier: notify.Notifier | None, stop: asyncio.Event) -> AsyncIterator[None]:
    """Send notices while the block runs.

    When the block ends, the waiting notices are sent until END_S after `stop` was set, but for at least FLUSH_S.
    Notices that are not sent by then stay in the outbox.
    """
    if notifier is None:
        yield
        return
    now_s = asyncio.get_running_loop().time
    task = asyncio.create_task(notifier.run(), name="notifier")
    stopping = asyncio.create_task(stop.wait(), name="notifier-stop")
    stopped_s: list[float] = []
    stopping.add_done_callback(lambda _: stopped_s.append(now_s()))
    try:
        yield
    finally:
        used_s = now_s() - stopped_s[0] if stopped_s else 0.0
        stopping.cancel()
        notifier.end()
        await asyncio.wait({task}, timeout=max(notify.FLUSH_S, END_S - used_s))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def exposing(port: int | None, folder: Path, sources: metrics.MetricSources) -> AsyncIterator[None]:
    """Answer /metrics, /livez and /readyz while the block runs. The file PORT_FILE in the state directory contains the
    port.

    ConfigError if the port is in use or the package is missing, because somebody relies on the metrics.
    """
    if port is None:
        yield
        return
    registry = metrics.registry_of(sources)
    listener = loopback_listener(port, "metrics.port:")
    scraped = Scraped(registry, sources)
    path = folder / PORT_FILE
    taken = listener.getsockname()[1]
    listener.listen(ASKERS_MAX)
    server = Acceptor(listener, scraped.accept, bytes_max=HEAD_BYTES_MAX)
    try:
        path.write_text(f"{taken}\n")
    # A full disk. The port works all the same, and the log names it.
    except OSError as error:
        log.warning("metrics.port_not_noted", path=str(path), message=error.strerror or str(error))
    log.info("metrics.exposed", url=f"http://{HOST}:{taken}/metrics")
    try:
        yield
    finally:
        server.close()
        await scraped.close()
        with contextlib.suppress(OSError):
            path.unlink()


class Scraped:
    """Serves one request per connection."""

    def __init__(self, registry: CollectorRegistry, sources: metrics.MetricSources) -> None:
        self._registry = registry
        self._sources = sources
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) > ASKERS_MAX:
                await send_answer(writer, 503, TEXT, b"too many at once\n")
                return
            await send_answer(writer, *await self._asked(reader))
        except asyncio.CancelledError:
            writer.close()
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _asked(self, reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
        try:
            method, path, _ = await read_request(reader)
        except RequestProblem as problem:
            return problem.status, TEXT, f"{problem.message}\n".encode()
        answer = self.ANSWERS.get(path)
        if answer is None:
            return 404, TEXT, f"there are {', '.join(self.ANSWERS)}\n".encode()
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"only GET\n"
        return answer(self)

    def _metrics(self) -> tuple[int, str, bytes]:
        return 200, EXPOSITION, metrics.exposition(self._registry)

    def _livez(self) -> tuple[int, str, bytes]:
        return _verdict(metrics.is_live(self._sources, boot_ns()), "live", f"no pass for {metrics.STUCK_S:g} s")

    def _readyz(self) -> tuple[int, str, bytes]:
        """A degraded daemon is ready too: it closes and protects. A 503 might make a supervisor stop it."""
        state = self._sources.state()
        is_more = state not in ("RUNNING", "STARTING", "STOPPING")
        return _verdict(metrics.is_ready(self._sources, boot_ns()), f"ready, {state}" if is_more else "ready", state)

    ANSWERS: Final[dict[str, Callable[[Scraped], tuple[int, str, bytes]]]] = {
        "/metrics": _metrics,
        "/livez": _livez,
        "/readyz": _readyz,
    }


def _verdict(is_so: bool, yes: str, no: str) -> tuple[int, str, bytes]:
    return (200, TEXT, f"{yes}\n".encode()) if is_so else (503, TEXT, f"{no}\n".encode())
