"""The real heartbeat process against a fake service, each in its own process. Times are short; the rule is the same."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import certifi
import pytest

from bot.client.http import HttpExchange
from bot.clock import boot_ns
from bot.errors import ConfigError
from bot.runtime.liveness import heartbeat, heartbeat_process
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.heartbeat_process import LeaseFile
from bot.runtime.liveness.heartbeat_rule import BOOT_BEATS_MAX, HEDGE_NS, SECOND, BeatTiming
from bot.runtime.liveness.progress_stamp import ProgressWriter
from tests.certificates import certificate

KEY = "bbk_test_abcdefgh_heartbeatcanary"
SHORT = BeatTiming(deadline_ns=20 * SECOND, period_ns=SECOND // 4, stale_ns=3 * SECOND)
# much longer than any step takes, so that a busy machine fails no test
PATIENCE_S = 60.0
STAND_IN = Path(__file__).with_name("heartbeat_service.py")

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs CLOCK_BOOTTIME and prctl")


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "beats").touch()
        self.mode = "ok"
        self.process = self.run(0)
        self.port = int((folder / "port").read_text())

    def run(self, port: int) -> subprocess.Popen[bytes]:
        (self.folder / "port").unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-S", str(STAND_IN), str(self.folder), str(port)])
        wait_for((self.folder / "port").exists)
        return process

    @property
    def mode(self) -> str:
        return (self.folder / "mode").read_text()

    @mode.setter
    def mode(self, mode: str) -> None:
        (self.folder / "mode.new").write_text(mode)
        (self.folder / "mode.new").rename(self.folder / "mode")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self.run(self.port)

    @property
    def beats(self) -> list[int]:
        return [int(line.split()[0]) for line in (self.folder / "beats").read_text().splitlines()]


def wait_for(question: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < end, f"not within {seconds} s: {question}"
        time.sleep(0.02)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path / "service")
    yield one
    one.kill()


def gaps(beats: list[int]) -> list[int]:
    return [b - a for a, b in itertools.pairwise(beats)]


def wait_for_silence(service: Service) -> None:
    """Waits until no heartbeat has come for a second, because a heartbeat sent in time may arrive late."""
    wait_for(lambda: boot_ns() - service.beats[-1] > SECOND)


def wait_for_a_beat_that_is_not_sent(brain: Brain, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Waits until the process has judged twice since its next heartbeat was due, and has sent none."""
    with closing(LeaseFile(str(Path(brain.progress.path).with_name("belief")))) as lease:
        notes: set[int] = set()

        def is_judged_twice() -> bool:
            meanwhile()
            record = lease.read()
            if record is not None and record.fence == brain.fence and record.written_ns > record.heart.next_ns:
                notes.add(record.written_ns)
            # A note is made before each judgment, so that the third one follows two of them.
            return len(notes) >= 3

        wait_for(is_judged_twice)


class Brain:
    """The daemon's side of the heartbeat process."""

    def __init__(self, folder: Path, base_url: str, lengths: BeatTiming = SHORT, fence: int = 7) -> None:
        self.fence = fence
        self.progress = ProgressWriter(str(folder / "progress"), fence=fence)
        self.heartbeat = HeartbeatProcess(
            base_url=base_url,
            api_key=KEY,
            stamp_path=self.progress.path,
            lease_path=str(folder / "belief"),
            lengths=lengths,
            fence=fence,
        )

    def cycle(self) -> None:
        self.progress.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=None)

    def live(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.cycle()
            time.sleep(0.05)

    def live_until(self, question: Callable[[], object]) -> None:
        def asked() -> object:
            self.cycle()
            return question()

        wait_for(asked)

    def close(self) -> None:
        self.heartbeat.close()
        self.progress.close()


@pytest.fixture
def brain(tmp_path: Path, service: Service) -> Iterator[Brain]:
    one = Brain(tmp_path, f"http://127.0.0.1:{service.port}")
    yield one
    one.close()


def test_heartbeats_follow_the_period_and_the_lease_counts_from_sending(brain: Brain, service: Service) -> None:
    brain.cycle()
    before = boot_ns()
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().beats >= 6)
    lease = brain.heartbeat.lease()
    assert lease.armed
    assert lease.may_open
    assert not lease.lapsed
    assert lease.guardians == 1
    assert lease.error == ""
    assert lease.deadline_boot_ns is not None
    assert before + SHORT.deadline_ns < lease.deadline_boot_ns <= service.beats[-1] + SHORT.deadline_ns
    assert 0.15 * SECOND < statistics.median(gaps(service.beats)) < 1.2 * SECOND


def test_a_watching_process_records_that_the_daemon_lives_and_sends_no_heartbeat(
    brain: Brain, service: Service
) -> None:
    brain.cycle()
    lease = LeaseFile(str(Path(brain.progress.path).with_name("belief")))
    brain.heartbeat.start(may_beat=False)

    def seen_until() -> int:
        record = lease.read()
        return 0 if record is None else record.written_ns

    wait_for(seen_until)
    first = seen_until()
    brain.live_until(lambda: seen_until() - first > 2 * SHORT.period_ns)
    assert service.beats == []
    brain.heartbeat.stop()
    brain.heartbeat.start()
    brain.live_until(lambda: service.beats)
    lease.close()


def test_heartbeats_go_on_while_the_daemon_holds_the_gil(tmp_path: Path, service: Service) -> None:
    patient = Brain(tmp_path, f"http://127.0.0.1:{service.port}", SHORT._replace(stale_ns=60 * SECOND))
    patient.cycle()
    patient.heartbeat.start()
    patient.live_until(lambda: len(service.beats) >= 2)
    start = boot_ns()
    number = 7**400_000
    stalled: list[int] = []
    while len(stalled) < 6 and boot_ns() < start + PATIENCE_S * SECOND:
        looks_at = boot_ns() + SECOND // 2
        # Each product is one C call that lets no other thread of this process run.
        while boot_ns() < looks_at:
            _ = number * number
        stalled = [at for at in service.beats if at > start]
    patient.close()
    assert len(stalled) >= 6
    assert statistics.median(gaps(stalled)) < SECOND


@pytest.mark.soak(worlds=2, full=10)
def test_a_plug_in_that_holds_the_gil_delays_no_heartbeat(tmp_path: Path, service: Service, worlds: int) -> None:
    """Each world takes one second, ten in `make soak`.

    No heartbeat may be more than one second late; a busy machine gets more time.
    """
    seconds = min(worlds, 10)
    late_ns = SECOND if seconds == 10 else 5 * SECOND
    patient = Brain(tmp_path, f"http://127.0.0.1:{service.port}", SHORT._replace(stale_ns=30 * SECOND))
    patient.cycle()
    patient.heartbeat.start()
    patient.live_until(lambda: len(service.beats) >= 2)
    number = 7**400_000
    began = boot_ns()
    while boot_ns() < began + seconds * SECOND:
        # One C call that lets no other thread of this process run.
        _ = number * number
    during = [at for at in service.beats if at >= began - SHORT.period_ns]
    patient.close()
    assert max(gaps([*during, boot_ns()])) < SHORT.period_ns * 11 // 10 + late_ns


@pytest.mark.parametrize(("wakes_ns", "connections"), [(HEDGE_NS, 2), (60 * SECOND, 1)])
def test_no_second_connection_begins_after_the_end_of_the_attempt(
    wakes_ns: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host may be suspended while it waits for the first heartbeat."""
    instants = itertools.chain([0, HEDGE_NS - 1_000_000, wakes_ns], itertools.repeat(60 * SECOND))
    monkeypatch.setattr(heartbeat_process, "boot_ns", lambda: next(instants))
    sent: list[object] = []
    monkeypatch.setattr(
        heartbeat_process.HeartbeatLoop, "connect", lambda _self, answers, **_which: sent.append(answers)
    )
    one = object.__new__(heartbeat_process.HeartbeatLoop)
    one.running = []
    assert one.attempt()[1].kind == "retry"
    assert len(sent) == connections


def attempts(
    service: Service, monkeypatch: pytest.MonkeyPatch, first: socket.socket
) -> heartbeat_process.HeartbeatLoop:
    """A resolver that gives two addresses for the service's name: `first` and the service's own."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", one) for one in (first.getsockname(), ("127.0.0.1", service.port))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_address, **_hints: list(found))
    one = object.__new__(heartbeat_process.HeartbeatLoop)
    one.running = []
    one.orders = heartbeat._orders(f"http://127.0.0.1:{service.port}", KEY)
    return one


@pytest.mark.parametrize("first", ["refuses", "swallows"])
def test_an_unreachable_address_delays_no_heartbeat(
    service: Service, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    with socket.socket() as bad, socket.socket() as fills:
        bad.bind(("127.0.0.1", 0))
        if first == "swallows":
            bad.listen(0)
            # The backlog is full.
            fills.connect(bad.getsockname())
        one = attempts(service, monkeypatch, bad)
        for from_last in (False, True):
            with heartbeat_process._connected(one.orders, boot_ns() + 60 * SECOND, from_last=from_last) as connected:
                assert connected.getpeername()[1] == service.port
        wait_for(lambda: one.attempt()[1].kind == "ok")


def test_the_second_connection_goes_to_another_address_than_one_that_hangs(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Accepts, never answers.
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        one = attempts(service, monkeypatch, deaf)
        wait_for(lambda: one.attempt()[1].kind == "ok")


def test_a_host_without_a_reachable_address_is_a_failure_with_a_reason(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as bad:
        bad.bind(("127.0.0.1", 0))
        one = attempts(service, monkeypatch, bad)
        service.kill()
        assert one.attempt()[1][:2] == ("retry", "ConnectionRefusedError")


def test_heartbeats_stop_and_go_on_with_the_daemons_progress(tmp_path: Path, service: Service) -> None:
    lengths = SHORT._replace(stale_ns=SECOND)
    brain = Brain(tmp_path, f"http://127.0.0.1:{service.port}", lengths)
    brain.cycle()
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= 3)
    brain.cycle()
    last_cycle = boot_ns()
    wait_for_silence(service)
    assert boot_ns() > last_cycle + lengths.stale_ns
    # A heartbeat sent in time may arrive late.
    assert service.beats[-1] <= last_cycle + lengths.stale_ns + 2 * SECOND
    silent = len(service.beats)
    assert brain.heartbeat.alive
    brain.live_until(lambda: len(service.beats) > silent)
    brain.close()


def test_the_stamp_of_another_run_is_no_proof_of_progress(brain: Brain, service: Service) -> None:
    other = ProgressWriter(brain.progress.path, fence=8)
    brain.heartbeat.start()

    def lives() -> int:
        other.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=None)
        return len(service.beats)

    wait_for(lambda: lives() >= 3)
    wait_for_a_beat_that_is_not_sent(brain, lives)
    other.close()
    # The heartbeats of the start.
    assert len(service.beats) == 3


def test_at_most_three_boot_heartbeats_across_restarts_until_a_pass_is_complete(
    tmp_path: Path, service: Service
) -> None:
    url = f"http://127.0.0.1:{service.port}"
    for run, spent in enumerate((1, 3, 3)):
        crashing = Brain(tmp_path, url, fence=100 + run)
        crashing.heartbeat.start()
        wait_for(lambda crashing=crashing, spent=spent: crashing.heartbeat.lease().boot_beats >= spent)
        if spent == BOOT_BEATS_MAX:
            wait_for_a_beat_that_is_not_sent(crashing)
        crashing.close()
    # A heartbeat in flight when its process ended did not arrive.
    assert 1 <= len(service.beats) <= 3
    well = Brain(tmp_path, url, fence=200)
    well.heartbeat.start()
    before = len(service.beats)
    well.live_until(lambda: len(service.beats) >= before + 2)
    assert well.heartbeat.lease().boot_beats == 0
    well.close()


BRAIN_PROGRAM = """
import sys, time
from bot.clock import boot_ns
from bot.runtime.liveness.heartbeat_rule import BeatTiming
from bot.runtime.liveness.heartbeat import HeartbeatProcess
from bot.runtime.liveness.progress_stamp import ProgressWriter
folder, url = sys.argv[1:]
progress = ProgressWriter(folder + "/progress", fence=9)
heartbeat = HeartbeatProcess(base_url=url, api_key="bbk_test_k", stamp_path=progress.path, lease_path=folder + \
"/belief",
                             lengths=BeatTiming(20 * 10**9, 10**9 // 4, 3 * 10**9), fence=9)
heartbeat.start()
print(heartbeat.pid, flush=True)
while True:
    progress.cycle_done(boot_ns=boot_ns(), last_bar_at_ms=None)
    time.sleep(0.05)
"""


def test_the_process_ends_with_a_killed_daemon(tmp_path: Path, service: Service, repository: Path) -> None:
    command = [sys.executable, "-c", BRAIN_PROGRAM, str(tmp_path), f"http://127.0.0.1:{service.port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=repository) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        wait_for(lambda: len(service.beats) >= 3)
        program.send_signal(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}/exe").exists())
    wait_for_silence(service)


def test_a_refused_credential_ends_the_heartbeats_for_good(brain: Brain, service: Service) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= 2)
    service.mode = "401"
    brain.live_until(lambda: not brain.heartbeat.alive)
    assert brain.heartbeat.exit_code == 7
    assert brain.heartbeat.lease().error == "unauthorized"
    count = len(service.beats)
    brain.live(0.8)
    assert len(service.beats) == count


@pytest.mark.parametrize("mode", ["500", "503", "garbage"])
def test_a_failing_service_is_retried_fast(brain: Brain, service: Service, mode: str) -> None:
    service.mode = mode
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= 4)
    # 0.25 + 0.5 + 1; to the digit in test_heartbeat_rule.
    assert 1 < sum(gaps(service.beats)[:3]) / SECOND < 20
    lease = brain.heartbeat.lease()
    assert lease.failures >= 3
    assert not lease.may_open
    service.mode = "ok"
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    assert brain.heartbeat.lease().failures == 0


def test_an_answer_in_chunks_is_read_like_any_other(brain: Brain, service: Service) -> None:
    service.mode = "chunked"
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)


def test_a_slow_answer_does_not_extend_an_attempt(brain: Brain, service: Service) -> None:
    service.mode = "drip"
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().failures >= 1)
    # The whole answer takes half a minute.
    assert boot_ns() - service.beats[0] < 20 * SECOND
    assert brain.heartbeat.lease().error == "timeout"


def test_an_invalid_address_is_a_config_error(tmp_path: Path) -> None:
    for url in ("embedded", "ftp://x", "http://"):
        with pytest.raises(ConfigError, match="base_url"):
            Brain(tmp_path, url)


@pytest.mark.parametrize("by_variable", [False, True], ids=["the installed list", "SSL_CERT_FILE"])
def test_over_https_it_trusts_the_same_certificates_as_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool
) -> None:
    """If the process trusted the machine's certificates instead, the daemon's requests would succeed and its
    heartbeats would fail.
    """
    folder = tmp_path / "service"
    folder.mkdir()
    made = certificate(folder, "localhost")
    (folder / "service.pem").write_bytes(made.cert.read_bytes() + made.key.read_bytes())
    service = Service(folder)
    url = f"https://localhost:{service.port}"
    assert heartbeat_process.post(heartbeat._orders(url, KEY)).error == "SSLCertVerificationError", (
        "in no list of certificates"
    )
    if by_variable:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.cert))
    else:
        monkeypatch.setattr(certifi, "where", lambda: str(made.cert))
    trusting = Brain(tmp_path, url)
    trusting.heartbeat.start()
    trusting.live_until(lambda: trusting.heartbeat.lease().armed)
    # An update of the installed certificates.
    made.cert.unlink()
    count = len(service.beats)
    trusting.live_until(lambda: len(service.beats) > count + 2)
    trusting.close()
    service.kill()


@pytest.mark.parametrize(
    "base_url",
    [
        "https://api.example.com",
        "https://fa\xdf.example/under/",
        "https://API.Example.com:8443",
        "https://x.example:443/\xe9",
        "http://[::1]:8700",
    ],
)
async def test_it_uses_the_same_address_and_path_as_the_client(base_url: str) -> None:
    orders, exchange = heartbeat._orders(base_url, KEY), HttpExchange(base_url)
    assert exchange._connections is not None
    host, port, context = exchange._connections._address
    assert (orders.host, orders.port, orders.tls) == (host, port, context is not None)
    request = exchange._request("POST", "/v1/heartbeat", None, {}, b"{}").decode("ascii")
    assert request.startswith(f"POST {orders.path} HTTP/1.1\r\n")
    assert f"\r\nHost: {orders.host_header}\r\n" in request
    if context is not None:
        trusted = [heartbeat_process._trust(*orders.ca_files).get_ca_certs(), context.get_ca_certs()]
        assert sorted(map(str, trusted[0])) == sorted(map(str, trusted[1]))
    await exchange.aclose()


def test_a_refused_connection_is_retried_until_the_service_is_back(brain: Brain, service: Service) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    service.kill()
    brain.live_until(lambda: brain.heartbeat.lease().failures >= 4)
    assert brain.heartbeat.lease().error == "ConnectionRefusedError"
    service.restart()
    back = time.monotonic()
    brain.live_until(lambda: brain.heartbeat.lease().failures == 0)
    assert time.monotonic() - back < 30


def test_a_connection_that_hangs_is_overtaken_by_a_second_one(brain: Brain, service: Service) -> None:
    service.mode = "hang_first"
    brain.heartbeat.start()
    start = time.monotonic()
    brain.live_until(lambda: brain.heartbeat.lease().armed)
    # The first attempt hangs for twenty seconds.
    assert 0.9 < time.monotonic() - start < 15
    lease = brain.heartbeat.lease()
    assert lease.failures == 0
    assert lease.deadline_boot_ns is not None
    # Counted from the sending of the second attempt.
    assert lease.deadline_boot_ns - SHORT.deadline_ns > service.beats[0]


def test_after_429_it_waits_for_the_time_of_retry_after(tmp_path: Path, service: Service) -> None:
    service.mode = "429"
    brain = Brain(tmp_path, f"http://127.0.0.1:{service.port}", SHORT._replace(period_ns=5 * SECOND))
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= 3)
    brain.close()
    assert all(0.9 * SECOND < gap < 10 * SECOND for gap in gaps(service.beats))


def test_a_success_with_nothing_armed_is_a_lapse_until_the_daemon_acknowledges_it(
    brain: Brain, service: Service
) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    service.mode = "empty"
    brain.live_until(lambda: brain.heartbeat.lease().lapsed)
    lease = brain.heartbeat.lease()
    assert not lease.armed
    assert not lease.may_open
    assert lease.error == "nothing_armed"
    service.mode = "ok"
    brain.live_until(lambda: brain.heartbeat.lease().armed)
    # The switch is armed again, but the events in between have not been read.
    assert not brain.heartbeat.lease().may_open
    brain.heartbeat.acknowledge(brain.heartbeat.lease().lapses)
    assert brain.heartbeat.lease().may_open


def test_a_heartbeat_that_does_not_move_the_deadline_does_not_count(brain: Brain, service: Service) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    service.mode = "still"
    brain.live_until(lambda: brain.heartbeat.lease().error == "deadline_stands_still")
    assert brain.heartbeat.lease().failures >= 1


def test_a_suspended_process_lapses_without_any_event(tmp_path: Path, service: Service) -> None:
    # The margin leaves two seconds.
    lengths = BeatTiming(deadline_ns=7 * SECOND, period_ns=SECOND // 4, stale_ns=3 * SECOND)
    one = Brain(tmp_path, f"http://127.0.0.1:{service.port}", lengths)
    one.heartbeat.start()
    one.live_until(lambda: one.heartbeat.lease().may_open)
    assert one.heartbeat.pid is not None
    os.kill(one.heartbeat.pid, signal.SIGSTOP)
    wait_for(lambda: one.heartbeat.lease().past)
    assert not one.heartbeat.lease().may_open
    os.kill(one.heartbeat.pid, signal.SIGCONT)
    one.live_until(lambda: not one.heartbeat.lease().past)
    # The late heartbeat does not end the lapse.
    assert one.heartbeat.lease().lapsed
    assert not one.heartbeat.lease().may_open
    one.close()


def test_a_stopped_process_counts_as_stuck_and_its_replacement_sends_in_time(brain: Brain, service: Service) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    assert not brain.heartbeat.is_stuck()
    stopped = brain.heartbeat.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    brain.live_until(lambda: brain.heartbeat.lease().overdue)
    assert not brain.heartbeat.lease().may_open
    brain.live_until(brain.heartbeat.is_stuck)
    assert not brain.heartbeat.lease().past, "in time"
    brain.heartbeat.kill()
    assert brain.heartbeat.exit_code == -signal.SIGKILL
    beats = len(service.beats)
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) > beats and brain.heartbeat.lease().may_open)
    assert not brain.heartbeat.lease().lapsed
    assert not brain.heartbeat.is_stuck()


@pytest.mark.parametrize("name", ["progress", "belief"])
def test_a_restarted_process_sends_heartbeats_although_its_files_were_removed(
    brain: Brain, service: Service, tmp_path: Path, name: str
) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= 2)
    (tmp_path / name).unlink()
    assert brain.heartbeat.pid is not None
    os.kill(brain.heartbeat.pid, signal.SIGKILL)
    brain.live_until(lambda: not brain.heartbeat.alive)
    beats = len(service.beats)
    brain.heartbeat.start()
    brain.live_until(lambda: len(service.beats) >= beats + 5 or brain.heartbeat.is_stuck())
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    assert not brain.heartbeat.is_stuck()


def test_a_restart_under_the_same_daemon_keeps_the_lease(brain: Brain) -> None:
    brain.heartbeat.start()
    brain.live_until(lambda: brain.heartbeat.lease().may_open)
    deadline = brain.heartbeat.lease().deadline_boot_ns
    assert brain.heartbeat.pid is not None
    os.kill(brain.heartbeat.pid, signal.SIGKILL)
    brain.live_until(lambda: not brain.heartbeat.alive)
    # The deadline outlives the killed process.
    assert not brain.heartbeat.lease().past
    brain.heartbeat.start()
    brain.live_until(lambda: (brain.heartbeat.lease().deadline_boot_ns or 0) > (deadline or 0))
    assert not brain.heartbeat.lease().lapsed


def test_the_credential_is_in_neither_arguments_nor_environment_nor_files(
    brain: Brain, tmp_path: Path, service: Service
) -> None:
    brain.heartbeat.start()
    pid = brain.heartbeat.pid
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    brain.live_until(lambda: len(service.beats) >= 1)
    assert KEY.encode() not in command
    assert KEY not in repr(brain.heartbeat)
    for name in ("belief", "progress"):
        assert KEY.encode() not in (tmp_path / name).read_bytes()
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert all(
        line.endswith(f"/v1/heartbeat Bearer {KEY}") for line in (service.folder / "beats").read_text().splitlines()
    )


def test_the_process_is_small_and_imports_nothing_heavy() -> None:
    program = "import sys; import bot.runtime.liveness.heartbeat; print(*sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(STAND_IN.parents[3])},
    )
    loaded = set(out.stdout.split())
    assert not loaded & {
        "pydantic",
        "httpx",
        "certifi",
        "ssl",
        "bot.client",
        "bot.wire",
        "bot.strategy",
        "asyncio",
        "sqlite3",
        "structlog",
    }


def test_stop_ends_the_process_at_once_even_while_an_attempt_hangs(brain: Brain) -> None:
    # Accepts, never answers.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        deaf = HeartbeatProcess(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}",
            api_key=KEY,
            stamp_path=brain.progress.path,
            lease_path=f"{brain.progress.path}.deaf",
            lengths=SHORT,
            fence=7,
        )
        deaf.start()
        wait_for(lambda: deaf.lease().beats >= 1)
        process = deaf._process
        assert process is not None
        # The process ends by itself; other tests check how long it may take.
        deaf.stop(PATIENCE_S)
        deaf.close()
        assert process.returncode == -signal.SIGTERM, "ended on request, not killed"
