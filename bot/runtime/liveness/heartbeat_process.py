"""The heartbeat process reads the daemon's progress stamp, sends heartbeats and writes the lease.

It is a separate process, so that no strategy can delay a heartbeat and no heartbeat outlives the daemon's progress. It
is small:
standard library only, and a new connection for every attempt. heartbeat_rule.py decides; here are clocks, sockets and
the exit. The credential comes over stdin, never in argv or environment, and is sent in the request only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.clock import boot_ns, monotonic_ns
from bot.operating_system import die_with_parent, hide_memory
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat_rule import SECOND, Heart, HeartbeatAnswer
from bot.runtime.liveness.progress_stamp import ProgressReader, Stamp
from bot.runtime.liveness.shared_record import SharedRecord

if TYPE_CHECKING:
    import ssl

# the lease file's name in the state directory
LEASE: Final = "belief"
LAYOUT: Final = "QQqqqqIIIIQBQ32s"
MAGIC: Final = b"BBHB"
VERSION: Final = 1

# How often stamp, parent and clocks are checked between heartbeats.
TICK_S: Final = 0.25
BODY_BYTES_MAX: Final = 64 * 1024
# as the client's, between tries of a name's addresses: one that swallows packets holds up none
STAGGER_S: Final = 0.25
# Threads that hang in name resolution cannot be stopped, so their number is limited.
ATTEMPTS_AT_ONCE_MAX: Final = 8
NICE: Final = -5
EXIT_ACCESS_LOST: Final = 7


class HeartbeatOrders(NamedTuple):
    """The one line on stdin.

    `lengths` holds the fields of a BeatTiming, in order. `fence` names the run of the daemon to send heartbeats for.
    """

    host: str
    port: int
    tls: bool
    host_header: str
    path: str
    api_key: str
    stamp_path: str
    lease_path: str
    lengths: list[int]
    parent_pid: int
    fence: int
    # False: it sends nothing and only records that the daemon is alive
    may_beat: bool = True
    # trusted certificates, as the client's
    ca_files: Sequence[str] = ()


class LeaseRecord(NamedTuple):
    """The content of the lease file."""

    fence: int
    written_ns: int
    heart: Heart


class LeaseFile:
    """The lease file, for writer and reader."""

    def __init__(self, path: str, *, write: bool = False) -> None:
        self._record = SharedRecord(path, LAYOUT, magic=MAGIC, version=VERSION, write=write)

    def write(self, fence: int, written_ns: int, h: Heart) -> None:
        error = h.error.encode("ascii", "replace")[:32]
        self._record.write(
            fence,
            written_ns,
            h.next_ns,
            h.sent_ns,
            h.deadline_ms,
            h.server_ms,
            h.guardians,
            h.failures,
            h.boot_beats,
            h.lapses,
            h.beats,
            h.stopped,
            0,
            error,
        )

    def read(self) -> LeaseRecord | None:
        values: Any = self._record.read()
        if values is None:
            return None
        fence, written, next_ns, sent, deadline, server, guardians, failures, boot, lapses, beats, stopped, _, error = (
            values
        )
        heart = Heart(
            next_ns,
            sent,
            guardians,
            deadline,
            server,
            failures,
            boot,
            lapses,
            beats,
            error.rstrip(b"\0").decode("ascii", "replace"),
            bool(stopped),
        )
        return LeaseRecord(fence, written, heart)

    def renew(self) -> None:
        """Follow the path when its file was removed or replaced."""
        self._record.renew()

    def close(self) -> None:
        self._record.close()


def first_heart(before: LeaseRecord | None, orders: HeartbeatOrders) -> Heart:
    """The state to start with: the previous one after a restart under the same daemon, else only its boot heartbeats.

    The previous deadline is dropped, because a reload may have set a nearer one, which must not look like one that does
    not move.
    """
    if before is None:
        return Heart()
    if before.fence == orders.fence:
        return before.heart._replace(next_ns=0, stopped=False, deadline_ms=0)
    return Heart(boot_beats=before.heart.boot_beats)


class HeartbeatLoop:
    """The process's loop."""

    def __init__(self, orders: HeartbeatOrders) -> None:
        self.orders = orders
        self.lengths = heartbeat_rule.BeatTiming(*orders.lengths)
        self.progress = ProgressReader(orders.stamp_path)
        self.lease = LeaseFile(orders.lease_path, write=True)
        self.heart = first_heart(self.lease.read(), orders)
        self.stamp: Stamp | None = None
        self.running: list[threading.Thread] = []

    def run(self) -> int:
        """Run until the daemon is gone or the credential is refused; returns the exit code."""
        boot, mono = boot_ns(), monotonic_ns()
        while os.getppid() == self.orders.parent_pid:
            boot_now, mono_now = boot_ns(), monotonic_ns()
            self.heart = heartbeat_rule.suspended(self.heart, boot_ns=boot_now - boot, monotonic_ns=mono_now - mono)
            boot, mono = boot_now, mono_now
            self.progress.renew()
            self.lease.renew()
            self.write()
            # A stamp that cannot be read grows old.
            stamp = self.stamp = self.progress.read() or self.stamp
            now = boot_ns()
            verdict: heartbeat_rule.Verdict = "wait"
            if self.orders.may_beat:
                verdict = heartbeat_rule.judge(
                    self.lengths, self.heart, now_ns=now, stamp=stamp, fence=self.orders.fence
                )
            if verdict == "stopped":
                return EXIT_ACCESS_LOST
            if verdict == "beat":
                self.heart = heartbeat_rule.sending(self.heart, stamp=stamp, fence=self.orders.fence)
                self.write()
                sent, answer = self.attempt()
                self.heart = heartbeat_rule.answered(
                    self.lengths, self.heart, answer, sent_ns=sent, now_ns=boot_ns(), chance=os.urandom(1)[0] / 256
                )
                self.write()
            wait_s = (self.heart.next_ns - boot_ns()) / SECOND
            time.sleep(min(TICK_S, wait_s) if wait_s > 0 else (TICK_S if verdict != "beat" else 0))
        return 0

    def write(self) -> None:
        self.lease.write(self.orders.fence, boot_ns(), self.heart)

    def attempt(self) -> tuple[int, HeartbeatAnswer]:
        """One attempt of at most two seconds; a second connection joins after one, to another address where there is
        one.

        The first good answer counts, with ITS sending.
        """
        answers: queue.SimpleQueue[tuple[int, HeartbeatAnswer]] = queue.SimpleQueue()
        start = boot_ns()
        end = start + heartbeat_rule.ATTEMPT_NS
        self.running = [thread for thread in self.running if thread.is_alive()]
        if len(self.running) >= ATTEMPTS_AT_ONCE_MAX:
            time.sleep(heartbeat_rule.HEDGE_NS / SECOND)
            return start, HeartbeatAnswer("retry", "connections_hang")
        self.connect(answers)
        tried, hedge_at = 1, start + heartbeat_rule.HEDGE_NS
        worst = (start, HeartbeatAnswer("retry", "timeout"))
        failed = 0
        while (now := boot_ns()) < end:
            until = min(hedge_at, end) if tried == 1 else end
            try:
                got = answers.get(timeout=max(0.0, (until - now) / SECOND))
            except queue.Empty:
                # The host was suspended, so check again whether a heartbeat may be sent.
                if tried == 1 and hedge_at <= boot_ns() < end:
                    tried = 2
                    self.connect(answers, from_last=True)
                continue
            if got[1].kind != "retry":
                return got
            worst, failed = got, failed + 1
            if failed == tried:
                # Every connection has failed; a retry is faster than the rest of the wait.
                return worst
        return worst

    def connect(self, answers: queue.SimpleQueue[tuple[int, HeartbeatAnswer]], *, from_last: bool = False) -> None:
        def work() -> None:
            # The instant before connecting counts, because the lease begins at the earliest instant.
            sent = boot_ns()
            answers.put((sent, post(self.orders, from_last=from_last)))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.running.append(thread)


def post(orders: HeartbeatOrders, *, from_last: bool = False) -> HeartbeatAnswer:
    """One heartbeat over one connection; `from_last`: the last of the service's addresses is tried first.

    Never raises: every fault of the world is a row of `HeartbeatAnswer`.
    """
    request = (
        f"POST {orders.path} HTTP/1.1\r\nHost: {orders.host_header}\r\nAuthorization: Bearer {orders.api_key}\r\n"
        "User-Agent: bracketbot-heartbeat\r\nAccept-Encoding: identity\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    try:
        status, headers, body = exchange(
            orders, request.encode("ascii"), boot_ns() + heartbeat_rule.ATTEMPT_NS, from_last=from_last
        )
    except TimeoutError:
        return HeartbeatAnswer("retry", "timeout")
    except (OSError, ValueError) as error:
        return HeartbeatAnswer("retry", type(error).__name__)
    return classify(status, headers.get("retry-after"), body)


def exchange(
    orders: HeartbeatOrders, request: bytes, end_ns: int, *, from_last: bool = False
) -> tuple[int, dict[str, str], bytes]:
    """One request and its answer on a new connection, all of it by `end_ns`. TimeoutError, OSError, ValueError (no
    HTTP).

    A dozen lines instead of http.client: that one costs more memory than the rest of this process, and has no deadline
    for the whole of an answer.
    """
    with _connected(orders, end_ns, from_last=from_last) as plain, _secured(orders, plain, end_ns) as connection:
        connection.sendall(request)
        raw = bytearray()
        while b"\r\n\r\n" not in raw:
            if not _more(connection, raw, end_ns):
                raise ValueError("the answer ended within its head")
        head, _, body = bytes(raw).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError("not an HTTP answer")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = bytearray(body)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while not raw.endswith(b"0\r\n\r\n") and _more(connection, raw, end_ns):
                pass
            return int(rest[:3]), headers, _unchunked(bytes(raw))
        size = int(headers.get("content-length", BODY_BYTES_MAX))
        while len(raw) < size and _more(connection, raw, end_ns):
            pass
        return int(rest[:3]), headers, bytes(raw)


def _connected(orders: HeartbeatOrders, end_ns: int, *, from_last: bool) -> socket.socket:
    """The first of the name's addresses that connects; the next begins when one before has failed, or STAGGER_S
    after it.
    """
    waiting = socket.getaddrinfo(orders.host, orders.port, type=socket.SOCK_STREAM)
    if from_last:
        waiting.reverse()
    tries: list[socket.socket] = []
    winner: socket.socket | None = None
    failed = OSError("the name has no address")
    try:
        with selectors.DefaultSelector() as under_way:
            while waiting or under_way.get_map():
                if waiting:
                    family, kind, protocol, _, address = waiting.pop(0)
                    try:
                        tries.append(socket.socket(family, kind, protocol))
                        tries[-1].settimeout(0)
                        # The connection is in progress.
                        with contextlib.suppress(BlockingIOError):
                            tries[-1].connect(address)
                        under_way.register(tries[-1], selectors.EVENT_WRITE, tries[-1])
                    # The error also comes for an address family that this host lacks.
                    except OSError as error:
                        failed = error
                        continue
                left_s = _left_s(end_ns)
                for key, _ in under_way.select(min(STAGGER_S, left_s) if waiting else left_s):
                    number = key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not number:
                        key.data.settimeout(_left_s(end_ns))
                        winner = key.data
                        return winner
                    failed = OSError(number, os.strerror(number))
                    under_way.unregister(key.data)
        raise failed
    finally:
        for attempt in tries:
            if attempt is not winner:
                attempt.close()


def _secured(orders: HeartbeatOrders, plain: socket.socket, end_ns: int) -> socket.socket:
    if not orders.tls:
        return plain
    plain.settimeout(_left_s(end_ns))
    return _trust(*orders.ca_files).wrap_socket(plain, server_hostname=orders.host)


@functools.cache
def _trust(*ca_files: str) -> ssl.SSLContext:
    """Read the certificates once, as the client does, so that a later change of the file stops no heartbeat."""
    # The module ssl takes megabytes, so only https imports it.
    import ssl

    context = ssl.create_default_context(cafile=ca_files[0])
    for file in ca_files[1:]:
        context.load_verify_locations(cafile=file)
    return context


def _more(connection: socket.socket, raw: bytearray, end_ns: int) -> bool:
    connection.settimeout(_left_s(end_ns))
    part = connection.recv(4096)
    raw += part
    if len(raw) > BODY_BYTES_MAX:
        raise ValueError("the answer is too long")
    return bool(part)


def _left_s(end_ns: int) -> float:
    left_s = (end_ns - boot_ns()) / SECOND
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _unchunked(raw: bytes) -> bytes:
    body = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        body += raw[:length]
        raw = raw[length + 2 :] if length else b""
    return body


def classify(status: int, retry_after: str | None, body: bytes) -> HeartbeatAnswer:
    """The next step after an HTTP answer."""
    if status == 200:
        return _armed(body)
    if status == 401 and _is_of_service(body):
        return HeartbeatAnswer("lost", "unauthorized")
    if status == 429 or status >= 500:
        seconds = int(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else 0
        return HeartbeatAnswer(
            "retry", "rate_limited" if status == 429 else f"http_{status}", after_ns=min(seconds, 86_400) * SECOND
        )
    return HeartbeatAnswer("refused", f"http_{status}")


def _is_of_service(body: bytes) -> bool:
    """True if an error came from the service itself. An error page of a proxy says nothing about the credential."""
    try:
        error = json.loads(body)["error"]
        return bool(error["code"] and error["requestId"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _armed(body: bytes) -> HeartbeatAnswer:
    """The result of a 200 with its switches. An unreadable switch counts as a failure."""
    try:
        data = json.loads(body)
        deadlines = [guardian["nextDeadline"] for guardian in data["guardians"]]
        server_ms = data.get("serverTime", 0)
        if not all(type(value) is int for value in [*deadlines, server_ms]):
            raise TypeError("not whole milliseconds")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return HeartbeatAnswer("retry", "bad_answer")
    return HeartbeatAnswer("ok", "", len(deadlines), min(deadlines, default=0), server_ms)


def main() -> int:
    """What `python -m bot.runtime.liveness.heartbeat` runs."""
    orders = HeartbeatOrders(**json.loads(sys.stdin.readline()))
    # The credential is in this memory.
    hide_memory()
    die_with_parent(orders.parent_pid)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    # Ctrl-C is for the daemon, which stops this process at its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return HeartbeatLoop(orders).run()
