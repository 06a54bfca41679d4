"""The daemon's side of the heartbeat: starts the heartbeat process, reads its lease, stops it. Run as a module it IS
that process.

heartbeat_rule.py holds the rule, heartbeat_process.py the process's loop, progress_stamp.py the proof of progress. The
process imports this module, so it imports the standard library and those three only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.clock import boot_ns, monotonic_ns
from bot.runtime.liveness import heartbeat_rule
from bot.runtime.liveness.heartbeat_process import HeartbeatOrders, LeaseFile, main
from bot.runtime.liveness.heartbeat_rule import BeatTiming, Heart

if TYPE_CHECKING:
    import subprocess

# the process gets this long to end; it has nothing to save, so it is killed afterwards
END_S: Final = 0.5


class Lease(NamedTuple):
    """The dead-man switch as the daemon knows it now. Instants ending in _boot_ns are CLOCK_BOOTTIME."""

    # when the newest good heartbeat was sent + D; None if no switch is known to be armed
    deadline_boot_ns: int | None
    armed: bool
    # the switch may have fired unnoticed: read account, guardians and events again, then call acknowledge()
    lapsed: bool
    # the deadline less the margin has passed without a heartbeat; the next good one makes it a lapse
    past: bool
    # armed, not lapsed, not within the margin of the deadline
    may_open: bool
    lapses: int
    guardians: int
    # in a row
    failures: int
    # attempts
    beats: int
    # heartbeats of starts that are not complete, of any run
    boot_beats: int
    # The error of the newest attempt: "timeout", "http_503", "nothing_armed", "unauthorized" ...; "" after a good one.
    error: str
    # the deadline of the service's last answer, on the service's clock
    next_deadline_ms: int | None
    # the process runs
    alive: bool
    # two periods have passed without a good heartbeat; nothing is opened until the next one
    overdue: bool = False


class HeartbeatProcess:
    """Start it on the main thread: the kernel ends the child together with the thread that started it."""

    def __init__(
        self, *, base_url: str, api_key: str, stamp_path: str, lease_path: str, lengths: BeatTiming, fence: int
    ) -> None:
        """`lengths` is heartbeat_rule.beat_timing(heartbeat_seconds / speed); `fence` is the ProgressWriter's."""
        self.lengths = lengths
        self._base_url = base_url
        self._orders = _orders(base_url, api_key)._replace(
            stamp_path=stamp_path, lease_path=lease_path, lengths=list(lengths), parent_pid=os.getpid(), fence=fence
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._file = LeaseFile(lease_path)
        # False: the running process only watches the daemon and sends nothing
        self.may_beat = False
        # lapses after which the daemon has read everything again
        self.acknowledged = 0
        # the process's last note, and since when, in monotonic time
        self._noted = 0, 0

    def __repr__(self) -> str:
        return f"HeartbeatProcess(pid={self.pid}, base_url={self._base_url!r})"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 7 after the service refused the credential."""
        return None if self._process is None else self._process.poll()

    def start(self, *, may_beat: bool = True) -> None:
        """Start the process, also again after it has ended. It sends heartbeats as soon as the progress stamp allows.

        With `may_beat=False` it sends none and only records what blocks the daemon's interpreter (call_record.py).
        """
        assert threading.current_thread() is threading.main_thread(), (
            "the kernel ends the child with the thread that started it"
        )
        assert not self.alive
        self.may_beat = may_beat
        self._noted = 0, monotonic_ns()
        # Imported here, because the child imports this module and starts no process.
        import subprocess

        from bot.descriptors import reserved

        with reserved():
            self._process = subprocess.Popen(
                # -S: it needs no site-packages.
                [sys.executable, "-S", "-m", "bot.runtime.liveness.heartbeat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                close_fds=True,
            )
        assert self._process.stdin is not None
        # `alive` reports a process that ends at once.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(self._orders._replace(may_beat=may_beat)._asdict()).encode() + b"\n")

    def lease(self, now_boot_ns: int | None = None) -> Lease:
        """The lease as of now. Reads a file of the page cache: no wait for the disk."""
        now = boot_ns() if now_boot_ns is None else now_boot_ns
        record = self._file.read()
        # A record of another run does not count: that run had read the account at another time.
        heart = record.heart if record is not None and record.fence == self._orders.fence else Heart()
        return Lease(
            deadline_boot_ns=heartbeat_rule.believed_deadline_ns(self.lengths, heart),
            armed=heart.guardians > 0,
            lapsed=heart.lapses > self.acknowledged,
            past=heartbeat_rule.is_past(self.lengths, heart, now_ns=now),
            may_open=heartbeat_rule.may_open(self.lengths, heart, now_ns=now, acknowledged=self.acknowledged),
            lapses=heart.lapses,
            guardians=heart.guardians,
            failures=heart.failures,
            beats=heart.beats,
            boot_beats=heart.boot_beats,
            error=heart.error,
            next_deadline_ms=heart.deadline_ms or None,
            alive=self.alive,
            overdue=heartbeat_rule.is_overdue(self.lengths, heart, now_ns=now),
        )

    def is_stuck(self) -> bool:
        """True if the process runs but does nothing: no note for STUCK_NS, or no attempt although a heartbeat is
        overdue. Call it in every pass.

        A suspend of the host does not count, because monotonic time stops in it.
        """
        self._file.renew()
        record = self._file.read()
        noted = 0 if record is None else record.written_ns
        now = monotonic_ns()
        if noted != self._noted[0]:
            self._noted = noted, now
        if not self.alive:
            return False
        if now - self._noted[1] >= heartbeat_rule.STUCK_NS:
            return True
        if record is None or record.fence != self._orders.fence or not self.may_beat:
            return False
        return heartbeat_rule.does_not_try(self.lengths, record.heart, now_ns=boot_ns())

    def kill(self) -> None:
        """Kill a process that does not answer.

        Call `start` next, unless it is still `alive` because the kernel cannot end it yet.
        """
        import subprocess

        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)

    def acknowledge(self, lapses: int) -> None:
        """Mark lapses as handled after a resync.

        `lapses` is the count from BEFORE it began, so that a later lapse counts.
        """
        self.acknowledged = max(self.acknowledged, lapses)

    def stop(self, timeout_s: float = END_S) -> None:
        """End the heartbeats. The switch stays armed at the service; on_exit decides whether to disarm it."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        import subprocess

        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        self.stop()
        self._file.close()


def _orders(base_url: str, api_key: str) -> HeartbeatOrders:
    """The address, path and headers of the heartbeat request.

    It checks the host and its certificate as the client does.
    """
    # The import takes megabytes, and the child process imports this module.
    import httpx

    from bot.client.http import checked_base_url
    from bot.errors import ConfigError
    from bot.http_limits import certificate_files

    url = httpx.URL(checked_base_url(base_url))
    if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ConfigError("api_key: has characters that no header may carry")
    tls = url.scheme == "https"
    path = f"{url.raw_path.decode('ascii').rstrip('/')}/v1/heartbeat"
    return HeartbeatOrders(
        url.raw_host.decode("ascii"),
        url.port or (443 if tls else 80),
        tls,
        url.netloc.decode("ascii"),
        path,
        api_key,
        "",
        "",
        [],
        0,
        0,
        ca_files=certificate_files() if tls else (),
    )


def _environment() -> dict[str, str]:
    """The variables that the process needs. It must not get secrets from the daemon's environment."""
    from pathlib import Path

    kept = ("PATH", "PYTHONHOME", "LANG", "LC_ALL")
    # The heartbeat process imports the package that the daemon runs.
    code = str(Path(__file__).resolve().parents[3])
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": code, "PYTHONSAFEPATH": "1"}


if __name__ == "__main__":
    sys.exit(main())
