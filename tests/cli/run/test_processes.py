"""`bot sandbox` and `bot run` as processes: ports, sockets, locks, the embedded service's life, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.cli.app import call
from bot.cli.run import embedded_service as embedded_module
from bot.cli.run.embedded_service import Embedded, ServiceFailed
from bot.client import Client
from bot.service.security.auth import SECRET_LETTERS

WAIT_S = 120

CONFIG = """\
account: {base_url: embedded}
embedded: {clock: 60x, markets: [BTC]}
dead_man: {heartbeat_seconds: 1800}
state_dir: state
strategies_dir: %s
strategies:
  - {name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500}
log: {format: json}
"""


@pytest.fixture
def embedded(place: Path) -> Iterator[Callable[..., Embedded]]:
    """Makes one on the folder; each is asked to end, which takes notice of a child that has."""
    made: list[Embedded] = []

    def make(**options: Any) -> Embedded:
        made.append(Embedded(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def bot(*arguments: str, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bot", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )


def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = bot("sandbox", "--port", str(port))
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert out == ""
    assert (
        err == f"error: port {port} on 127.0.0.1 is in use; stop the program that uses it, or choose another port with"
        " --port\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("", "the file is empty"),
        ("a,b\n1,2\n", "row 1: the columns are"),
        (
            "ts,open,high,low,close,volume\n1746057600000,1,2,0.5,1,0\n1746057660000,1,2,3,1,0\n",
            "row 3: high 2 is below low 3",
        ),
    ],
)
def test_a_candle_file_that_cannot_be_used_is_named_with_its_row(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "candles.csv"
    if text is not None:
        file.write_text(text)
    process = bot("sandbox", "--port", "0", "--data", f"BTC={file}", "--db", str(tmp_path / "s.db"))
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 4, err
    assert words in err
    assert err.count("\n") == 1
    assert out == ""


def test_the_sandbox_says_where_it_listens_and_serves_and_stops() -> None:
    reader, writer = os.pipe()
    # Whoever has started it has been killed since.
    os.close(reader)
    arguments = ("--json", "--clock", "60x", "--markets", "btc", "--ready-fd", str(writer))
    process = bot("sandbox", "--port", "0", *arguments, pass_fds=(writer,))
    os.close(writer)
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    with httpx.Client(base_url=said["baseUrl"], timeout=60, trust_env=False) as http:
        assert [one["coin"] for one in http.get("/v1/markets").json()["markets"]] == ["BTC"]
        assert http.get("/v1/system/status").json()["clock"] == {"mode": "accelerated", "speed": 60}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


@pytest.mark.usefixtures("cold_starts")
async def test_the_embedded_service_is_started_once_found_again_and_mints_a_fresh_key(
    place: Path, embedded: Callable[..., Embedded]
) -> None:
    first = embedded(clock="60x", speed=60, seed=3, markets=("BTC",))
    running = first.ensure()
    assert running.is_new
    again = embedded(clock="60x", speed=60, seed=3, markets=("BTC",)).ensure()
    assert again == running._replace(is_new=False)
    one, two = await first.mint(), await first.mint()
    assert one.account_id == two.account_id
    assert one.api_key != two.api_key
    async with Client(running.base_url, two.api_key) as client:
        assert (await client.account()).address == two.address
    for path in place.iterdir():
        if path.is_file():
            assert two.api_key.get_secret_value().encode() not in path.read_bytes(), path
    assert place.stat().st_mode & 0o077 == 0
    assert (place / "sandbox.sock").stat().st_mode & 0o077 == 0
    command = Path(f"/proc/{running.pid}/cmdline").read_bytes() + Path(f"/proc/{running.pid}/environ").read_bytes()
    assert b"bbk_" not in command
    first.stop()
    assert not first.is_alive()


def test_is_alive_keeps_the_ready_file_of_a_start_and_removes_that_of_a_dead_service(tmp_path: Path) -> None:
    service, ended = Embedded(tmp_path), threading.Event()
    (tmp_path / "sandbox.ready").write_text('{"pid": 1, "port": 1, "baseUrl": "http://127.0.0.1:1"}')
    assert not service.is_alive()
    assert (service.pid, service.base_url) == (None, None)

    def look() -> None:
        while not ended.is_set():
            service.is_alive()

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for one in lookers:
        one.start()
    try:
        for _ in range(20):
            with service._locked() as lock:
                assert lock is not None, "a look is no service"
                assert service.is_alive()
    finally:
        ended.set()
        for one in lookers:
            one.join()


def test_a_running_service_is_found_on_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, real = Embedded(tmp_path), Path.open

    def reads(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if set(mode) & set("aw+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, mode, *rest, **named)

    with service._locked() as lock:
        assert lock is not None
        monkeypatch.setattr(Path, "open", reads)
        assert service.is_alive()
    assert not service.is_alive()


def test_other_options_restart_the_service_with_the_same_database(embedded: Callable[..., Embedded]) -> None:
    before = embedded(clock="60x", speed=60, seed=3, markets=("BTC",)).ensure()
    after = embedded(clock="120x", speed=120, seed=3, markets=("BTC",)).ensure()
    assert after.is_new
    assert after.pid != before.pid


def test_a_database_that_was_begun_with_another_seed_is_refused_in_the_services_own_words(
    embedded: Callable[..., Embedded],
) -> None:
    first = embedded(clock="60x", speed=60, seed=3, markets=("BTC",))
    first.ensure()
    first.stop()
    with pytest.raises(ServiceFailed, match="was created with seed 3, not 4") as failed:
        embedded(clock="60x", speed=60, seed=4, markets=("BTC",)).ensure()
    assert failed.value.exit_code == 4


def test_a_service_that_cannot_start_says_why_and_what_to_do(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = embedded(port=taken.getsockname()[1])
        with pytest.raises(
            ServiceFailed,
            match=r"is in use; stop the program that uses it, or choose another port: embedded\.port in the config$",
        ):
            service.ensure()
    service.log.unlink()
    # A disk without room keeps no word of it.
    monkeypatch.setattr(Embedded, "_error_in_log", lambda *_: "")
    monkeypatch.setattr(embedded_module, "FREE_BYTES_MIN", 1 << 60)
    monkeypatch.setattr(Embedded, "_arguments", lambda *_: ["--nonsense"])
    with pytest.raises(ServiceFailed, match=r"ended with code 2: the disk of .* is full .* free some space"):
        service.ensure()


async def test_a_service_that_does_not_start_is_retried_with_growing_waits_of_at_most_thirty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def passes(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 30:
            raise asyncio.CancelledError

    def fails(_self: Embedded) -> None:
        raise ServiceFailed("its disk is full", 1)

    monkeypatch.setattr(asyncio, "sleep", passes)
    monkeypatch.setattr(Embedded, "ensure", fails)
    service = Embedded(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await service.keep_alive(lambda _running: None)
    assert waits == sorted(waits)
    assert (waits[0] < 1, waits[-1]) == (True, 30)
    assert service.trouble == "the embedded service died and cannot be started again: its disk is full"


def test_a_stop_does_not_wait_for_a_service_that_starts_slowly(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = embedded()
    service.folder.mkdir(exist_ok=True)
    slow = """if True:
        import os, sys, time
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        os.write(int(sys.argv[sys.argv.index('--ready-fd') + 1]), b'x')
    """
    told = service.folder / "told"
    monkeypatch.setattr(embedded_module, "_python", lambda: [sys.executable, "-c", slow, str(told)])
    given_up_amid_a_start(service)
    assert service._child is not None
    assert service._child.poll() is None, "it starts on by itself"
    told.touch()
    assert service._child.wait() != 0, "this one minds that nobody listens"


def test_a_service_that_is_still_starting_can_be_stopped(
    embedded: Callable[..., Embedded], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = embedded()
    service.folder.mkdir(exist_ok=True)
    monkeypatch.setattr(embedded_module, "_python", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    given_up_amid_a_start(service)
    assert service.is_alive()
    assert (service._child is not None, service.pid) == (True, getattr(service._child, "pid", 0))
    service.stop()
    assert not service.is_alive()


def given_up_amid_a_start(service: Embedded) -> None:
    """Who keeps it alive has begun a start, and is told to end before there is a service."""

    async def stopped_meanwhile() -> None:
        keeper = asyncio.create_task(service.keep_alive(lambda _running: None))
        while service._child is None:
            await asyncio.sleep(0.01)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)

    # Which waits for its threads.
    asyncio.run(stopped_meanwhile())


def test_a_state_directory_with_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match="choose a shorter one"):
        Embedded(tmp_path / ("x" * 100)).ensure()


def started(process: subprocess.Popen[str], *events: str) -> dict[str, object]:
    """The next of these in the log."""
    assert process.stderr is not None
    for line in process.stderr:
        found = json.loads(line) if line.startswith("{") else {}
        if found.get("event") in events:
            return dict(found)
    raise AssertionError(f"no {events}")


def test_a_stopped_run_ends_its_service_unless_asked_to_keep_it_and_services_lists_and_stops_what_is_left(
    place: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = place / "mine.yaml"
    config.write_text(CONFIG % (repository / "strategies"))
    service = Embedded(place / "state")

    def stopped(*options: str, breaks: bool = False) -> str:
        process = bot("run", str(config), *options)
        started(process, "bar.closed")
        if breaks:
            broken_for_a_while(process, service.folder)
        listed = services(capsys)
        assert [(one["pid"], one["has_daemon"]) for one in listed] == [(service.pid, True)]
        assert [one["running"] for one in services(capsys, "--stop")] == [True], "its daemon needs it"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "Left at the service:" in out
        return out

    out = stopped("--keep-service")
    pid = service.pid
    assert f"The embedded service keeps running at {service.base_url} (pid {pid})" in out
    assert [(one["pid"], one["has_daemon"]) for one in services(capsys)] == [(pid, False)]
    assert [one["running"] for one in services(capsys, "--stop")] == [False]
    assert not service.is_alive()
    assert services(capsys) == []

    stopped("--keep-service")
    # The next run finds the service of the last one, and ends it.
    out = stopped(breaks=True)
    assert "The embedded service ended with the daemon." in out
    assert not service.is_alive()

    # A unit ends as a whole, whatever the option says.
    monkeypatch.setenv("NOTIFY_SOCKET", str(place / "manager"))
    assert "The embedded service ended with the daemon." in stopped("--keep-service")


def test_a_run_prints_text_lines_on_a_terminal_and_json_lines_elsewhere(place: Path, repository: Path) -> None:
    config = place / "mine.yaml"
    config.write_text((CONFIG % (repository / "strategies")).replace("log: {format: json}", ""))
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "bot", "run", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=its_end,
        env=os.environ | {"NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"},
        text=True,
    ) as process:
        os.close(its_end)
        text, is_stopping = "", False
        # The terminal's end.
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 65_536).decode():
                text = re.sub(r"\x1b\[[0-9;]*m", "", text + part).replace("\r", "")
                if not is_stopping and re.search(r"bar +BTC .* closed at", text):
                    process.send_signal(signal.SIGTERM)
                    is_stopping = True
        process.communicate(timeout=WAIT_S)
    os.close(terminal)
    assert process.returncode == 0
    first = text.splitlines()
    assert first[0] == "service     embedded, play money, clock 60x"
    assert first[1] == "strategy    trend on BTC, 1m bars, at most 500 USD"
    assert first[2] == "dead-man    1800 s without a heartbeat, then flatten"
    assert re.search(r"^[0-9:]{8}  daemon +ready: 0 positions, 0 orders$", text, re.MULTILINE)
    assert not re.search(r"heartbeat\.|account\.value|market=", text), "no raw keys, and no figures every few seconds"
    logged = [json.loads(line)["event"] for line in (place / "state" / "daemon.log").read_text().splitlines()]
    assert {"daemon.started", "daemon.ready", "bar.closed"} <= set(logged)
    assert {"heartbeat.status", "account.value"}.isdisjoint(logged), "they are for the debug level"


def services(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """What `bot services` lists."""
    capsys.readouterr()
    assert call(["services", "--json", *options]) == 0
    listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["services"]
    return listed


def test_a_killed_daemon_leaves_its_service_running_with_its_stops_until_services_stops_it(
    place: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = place / "mine.yaml"
    config.write_text(CONFIG % (repository / "strategies"))
    process = bot("run", str(config))
    started(process, "bar.closed")
    process.kill()
    process.communicate(timeout=WAIT_S)
    service = Embedded(place / "state")
    assert service.is_alive()
    assert [(one["pid"], one["has_daemon"]) for one in services(capsys)] == [(service.pid, False)]
    assert [one["running"] for one in services(capsys, "--stop", "--config", str(config))] == [False]
    assert not service.is_alive()


def broken_for_a_while(process: subprocess.Popen[str], state: Path) -> None:
    """Its service dies, and cannot be started again for a while: the daemon is degraded, and no longer than that."""
    service, away, db = Embedded(state), state / "away", state / "sandbox.db"
    base_url, pid = service.base_url, service.pid
    assert pid is not None
    away.mkdir()
    for path in state.glob("sandbox.db*"):
        path.rename(away / path.name)
    # Nothing can be begun there.
    db.mkdir()
    os.kill(pid, signal.SIGKILL)
    failed = degraded = 0
    while not failed or not degraded:
        said = started(process, "service.not_restarted", "daemon.degraded")
        failed += said["event"] == "service.not_restarted" and "cannot be used" in str(said["message"])
        degraded += said.get("code") == "embedded"
    db.rmdir()
    for path in away.iterdir():
        path.rename(state / path.name)
    assert started(process, "service.restarted")["base_url"] == base_url
    assert started(process, "daemon.recovered")["code"] == "embedded"
    started(process, "bar.closed")


def test_a_second_daemon_ends_at_once_and_takes_nothing_from_the_first_and_an_abort_says_where_that_was(
    place: Path, repository: Path
) -> None:
    config = place / "mine.yaml"
    config.write_text(CONFIG % (repository / "strategies"))
    first = bot("run", str(config))
    started(first, "bar.closed")
    second = bot("run", str(config))
    _, err = second.communicate(timeout=WAIT_S)
    assert second.returncode == 1
    assert f"another daemon runs on {place / 'state'} (pid {first.pid})" in err
    started(first, "bar.closed")
    # As a service manager does when the loop has hung.
    first.send_signal(signal.SIGABRT)
    _, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in err
    assert re.search(r'File ".*/bot/cli/run/run\.py", line \d+ in run$', err, re.MULTILINE)
    key = re.compile(rf"bbk_[a-z]+_[A-Za-z0-9]+_[A-Za-z0-9]{{{SECRET_LETTERS}}}".encode())
    left = {path.name: path.read_bytes() for path in (place / "state").iterdir() if path.is_file()}
    assert {"journal.db", "sandbox.db", "daemon.log"} <= left.keys()
    assert [name for name, told in {"standard error": err.encode(), **left}.items() if key.search(told)] == []


def test_a_key_that_the_service_refuses_ends_the_run_with_exit_7(place: Path, repository: Path) -> None:
    sandbox = bot("sandbox", "--port", "0", "--json", "--clock", "60x", "--markets", "BTC")
    assert sandbox.stdout is not None
    base_url = json.loads(sandbox.stdout.readline())["baseUrl"]
    key = place / "key"
    key.touch(0o600)
    key.write_text("bbk_test_abcdefgh_" + "A" * 43 + "_x")
    text = (CONFIG % (repository / "strategies")).replace(
        "base_url: embedded", f'base_url: "{base_url}", api_key: "${{file:key}}"'
    )
    config = place / "mine.yaml"
    config.write_text("\n".join(line for line in text.splitlines() if not line.startswith("embedded:")))
    process = bot("run", str(config))
    _, err = process.communicate(timeout=WAIT_S)
    sandbox.send_signal(signal.SIGTERM)
    sandbox.communicate(timeout=WAIT_S)
    assert process.returncode == 7, err
    assert "Traceback" not in err
    assert "AAAA" not in err
