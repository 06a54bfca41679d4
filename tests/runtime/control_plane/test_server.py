"""The control socket: who may use it, malformed requests, answers, and requests that wait for a pass."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bot.cli.common.daemon_client import Place
from bot.errors import ApiError, BotError, ConfigError, Exit, JournalError
from bot.operating_system import peer_uid, socket_name
from bot.runtime.control_plane import control_address, server
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.control_plane.mailbox import WAITING_MAX, Mailbox
from bot.runtime.control_plane.server import BODY_BYTES_MAX, HEAD_BYTES_MAX, ControlRequest, Data, RequestProblem

NOBODY = 65_534


async def echo(question: ControlRequest) -> Data:
    found = {
        "word": question.text("word"),
        "count": question.number("count", 3, at_most=9),
        "flag": question.flag("flag"),
    }
    question.nothing_else()
    return found


async def refuses(_: ControlRequest) -> Data:
    raise BotError("not now")


async def misreads(_: ControlRequest) -> Data:
    raise ConfigError("line 3: no")


async def waits(_: ControlRequest) -> Data:
    raise CommandTimeout("the service is away")


async def is_declined(_: ControlRequest) -> Data:
    raise ApiError.of("forbidden", "not with this key")


async def is_away(_: ControlRequest) -> Data:
    raise ApiError.of("service_unavailable", "later", reads=True)


async def is_full(_: ControlRequest) -> Data:
    raise JournalError("no space left")


async def breaks(_: ControlRequest) -> Data:
    raise KeyError("a fault of ours")


ROUTES = {
    ("GET", "/echo"): echo,
    ("POST", "/echo"): echo,
    ("GET", "/no"): refuses,
    ("GET", "/config"): misreads,
    ("GET", "/broken"): breaks,
    ("GET", "/late"): waits,
    ("GET", "/declined"): is_declined,
    ("GET", "/away"): is_away,
    ("GET", "/full"): is_full,
}


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    """Serve in a folder whose name alone is too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        deep = Path(name) / ("x" * 120)
        deep.mkdir(mode=0o700)
        # Left by a run that was killed.
        (deep / control_address.SOCKET).touch()
        async with server.serving(deep, ROUTES, lambda: {"at_ms": 1, "pid": 2, "epoch": 3}):
            yield deep
        assert not (deep / control_address.SOCKET).exists()


async def raw(folder: Path, request: bytes) -> tuple[int, Any]:
    with socket_name(folder / control_address.SOCKET) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


async def test_an_answer_has_what_every_answer_has(folder: Path) -> None:
    status, data = await raw(folder, b"GET /echo?word=hello&count=7&flag=true HTTP/1.1\r\n\r\n")
    assert (status, data) == (200, {"at_ms": 1, "pid": 2, "epoch": 3, "word": "hello", "count": 7, "flag": True})
    body = json.dumps({"word": "there", "flag": False}).encode()
    status, data = await raw(folder, b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert (status, data["word"], data["count"], data["flag"]) == (200, "there", 3, False)


async def test_the_socket_is_for_its_owner(folder: Path) -> None:
    assert stat.S_IMODE((folder / control_address.SOCKET).stat().st_mode) == 0o600


async def answered(folder: Path) -> None:
    """Wait until a server listens on the socket."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                assert (await raw(folder, b"GET /echo HTTP/1.1\r\n\r\n"))[0] == 200
                return
            await asyncio.sleep(0.001)


async def test_a_removed_socket_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / control_address.SOCKET
    async with server.serving(tmp_path, ROUTES, dict, look_s=0.001):
        for _ in range(3):
            path.unlink()
            await answered(tmp_path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_disk_that_has_become_read_only_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with server.serving(tmp_path, ROUTES, dict):
        monkeypatch.setattr(Path, "unlink", fails)
    monkeypatch.undo()
    async with server.serving(tmp_path, ROUTES, dict):
        await answered(tmp_path)


async def test_a_file_that_somebody_else_put_at_the_sockets_path_stays(tmp_path: Path) -> None:
    path = tmp_path / control_address.SOCKET
    async with server.serving(tmp_path, ROUTES, dict, look_s=0.001):
        path.unlink()
        path.write_text("another's")
        await asyncio.sleep(0.05)
        assert path.read_text() == "another's"
    assert path.read_text() == "another's"


async def test_a_socket_that_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    """A run without a socket goes on."""
    folder = tmp_path / "later"
    async with server.serving(folder, ROUTES, dict, look_s=0.001):
        folder.mkdir()
        await answered(folder)


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (b"", 400, "not whole"),
        (b"GET /echo HTTP/1.1\r\n", 400, "not whole"),
        (b"hello there\r\n\r\n", 400, "no HTTP"),
        (b"GET /echo SPDY/3\r\n\r\n", 400, "no HTTP"),
        (b"GET //[ HTTP/1.1\r\n\r\n", 400, "no path"),
        (
            b"GET /nothing HTTP/1.1\r\n\r\n",
            404,
            "there are /away, /broken, /config, /declined, /echo, /full, /late, /no",
        ),
        (b"DELETE /echo HTTP/1.1\r\n\r\n", 405, "takes GET, POST"),
        (b"GET /echo?count=ten HTTP/1.1\r\n\r\n", 400, "count is a whole number from 0 to 9"),
        (b"GET /echo?count=10 HTTP/1.1\r\n\r\n", 400, "from 0 to 9"),
        (b"GET /echo?flag=maybe HTTP/1.1\r\n\r\n", 400, "flag is true or false"),
        (b"GET /echo?wrod=x HTTP/1.1\r\n\r\n", 400, "did you mean word?"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]", 400, "a JSON object"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 4\r\n\r\n{{{{", 400, "no JSON"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}", 400, "not whole"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "no number"),
        (b'POST /echo HTTP/1.1\r\nContent-Length: 12\r\n\r\n{"word": [1]}', 400, "JSON"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413, str(BODY_BYTES_MAX)),
        (b"GET /echo HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX, 413, str(HEAD_BYTES_MAX)),
        (b"GET /no HTTP/1.1\r\n\r\n", 409, "not now"),
        (b"GET /config HTTP/1.1\r\n\r\n", 400, "line 3: no"),
        (b"GET /late HTTP/1.1\r\n\r\n", 504, "the service is away"),
        (b"GET /declined HTTP/1.1\r\n\r\n", 409, "forbidden: not with this key"),
        (b"GET /away HTTP/1.1\r\n\r\n", 504, "service_unavailable: later"),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500, "/broken failed"),
    ],
)
async def test_a_malformed_request_gets_an_error(folder: Path, request_: bytes, status: int, words: str) -> None:
    answered, data = await raw(folder, request_)
    assert (answered, words in data["error"]["message"]) == (status, True), data
    assert (await raw(folder, b"GET /echo HTTP/1.1\r\n\r\n"))[0] == 200, "and the next one is answered"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/no", Exit.ERROR),
        ("/config", Exit.CONFIG),
        ("/late", Exit.TIMEOUT),
        ("/away", Exit.TIMEOUT),
        ("/declined", Exit.REFUSED),
        ("/full", Exit.UNSAFE),
    ],
)
async def test_a_command_exits_with_the_code_of_its_answer(folder: Path, path: str, code: Exit) -> None:
    with pytest.raises(BotError) as found:
        await asyncio.to_thread(Place(folder).ask, "GET", path)
    assert found.value.exit_code is code


async def test_a_silent_caller_delays_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_S", 0.2)
    with socket_name(folder / control_address.SOCKET) as name:
        silent = [await asyncio.open_unix_connection(name) for _ in range(5)]
    assert (await raw(folder, b"GET /echo HTTP/1.1\r\n\r\n"))[0] == 200
    for reader, writer in silent:
        assert b"400 Bad Request" in await reader.read()
        writer.close()


async def test_a_request_that_warms_up_strategies_has_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_address, "ANSWER_S", 0.05)
    is_warm = asyncio.Event()

    async def warms(_question: ControlRequest) -> dict[str, Any]:
        await is_warm.wait()
        return {"applied": ["one"]}

    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        async with server.serving(Path(name), {("POST", "/reload"): warms, ("POST", "/pause"): warms}, dict):
            reload = asyncio.create_task(raw(Path(name), b"POST /reload HTTP/1.1\r\n\r\n"))
            status, data = await raw(Path(name), b"POST /pause HTTP/1.1\r\n\r\n")
            assert (status, "no answer within 0.05 s; the daemon goes on" in data["error"]["message"]) == (504, True)
            is_warm.set()
            assert await reload == (200, {"applied": ["one"]})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_by_the_operating_systems_word() -> None:
    """Also if the file's permissions would allow it."""
    with tempfile.TemporaryDirectory(prefix="bot-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        code = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'GET /echo"
            " HTTP/1.1\\r\\n\\r\\n'); print(s.recv(9999))"
        )
        async with server.serving(folder, ROUTES, dict):
            (folder / control_address.SOCKET).chmod(0o666)
            done = await asyncio.to_thread(
                subprocess.run,
                ["/usr/bin/env", "python3", "-c", code, str(folder / control_address.SOCKET)],
                user=NOBODY,
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
            )
        if done.returncode == 127 or "python3" in done.stderr:
            pytest.skip("no python3 that another user may run")
    assert "403 Forbidden" in done.stdout, done.stderr


def test_the_peer_of_a_socket_pair_is_this_user() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()


# -- operator commands


async def test_requests_are_done_in_order_between_passes_and_answered() -> None:
    mailbox, done, rung = Mailbox(), [], []
    mailbox.wake = lambda: rung.append(1)

    async def work(n: int) -> int:
        done.append(n)
        return n * 10

    asked = [asyncio.create_task(mailbox.ask(lambda n=n: work(n))) for n in range(3)]
    await asyncio.sleep(0)
    assert (done, len(rung)) == ([], 3), "nothing is done before a pass has ended"
    for n in range(3):
        await mailbox.do_next()
        assert (done[-1], len(done)) == (n, n + 1), "each may wait for the service, and a pass comes between"
    assert len(rung) == 5, "which begins at once while others wait"
    assert await asyncio.gather(*asked) == [0, 10, 20]
    assert done == [0, 1, 2]


async def test_a_request_whose_caller_has_gone_is_not_done() -> None:
    mailbox, done = Mailbox(), []

    async def work() -> None:
        done.append(1)

    asked = asyncio.create_task(mailbox.ask(work))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await mailbox.do_next()
    assert done == []
    asked, behind = (asyncio.create_task(mailbox.ask(work)) for _ in range(2))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await mailbox.do_next()
    assert done == [1], "and takes no turn of another"
    await behind


async def test_an_error_goes_to_the_caller_and_a_bad_journal_also_ends_the_run() -> None:
    mailbox = Mailbox()

    async def refused() -> None:
        raise BotError("no")

    async def broken() -> None:
        raise JournalError("disk")

    first, second = asyncio.create_task(mailbox.ask(refused)), asyncio.create_task(mailbox.ask(broken))
    await asyncio.sleep(0)
    await mailbox.do_next()
    with pytest.raises(JournalError):
        await mailbox.do_next()
    with pytest.raises(BotError, match="no"):
        await first
    with pytest.raises(JournalError):
        await second


async def test_urgent_requests_are_done_within_longer_work_and_overtake_no_earlier_one() -> None:
    mailbox, done = Mailbox(), list[str]()

    async def long() -> None:
        await mailbox.do_urgent()
        done.append("long")

    async def work(name: str) -> None:
        done.append(name)

    asked = [asyncio.create_task(mailbox.ask(long))]
    for name, is_urgent in (("pause", True), ("resume", False), ("pause again", True)):
        asked.append(asyncio.create_task(mailbox.ask(partial(work, name), is_urgent=is_urgent)))
    await asyncio.sleep(0)
    for _ in range(3):
        await mailbox.do_next()
    await asyncio.gather(*asked)
    assert done == ["pause", "long", "resume", "pause again"]


async def test_the_number_of_waiting_requests_is_limited() -> None:
    mailbox = Mailbox()

    async def work() -> None:
        return None

    asked = [asyncio.create_task(mailbox.ask(work)) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(RequestProblem, match="ask again"):
        await mailbox.ask(work)
    mailbox.refuse_all()
    for one in asked:
        with pytest.raises(RequestProblem, match="stopping"):
            await one


def test_the_module_needs_no_web_framework() -> None:
    code = "import bot.runtime.control_plane.server, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"uvicorn", "starlette", "httpx"} & set(loaded)
