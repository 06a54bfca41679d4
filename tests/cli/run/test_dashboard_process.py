"""The dashboard beside a daemon: it starts when asked, outlives a crash, ends with a stop, and a fault of it is a
sentence and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.cli.run.dashboard_process import Served, dashboard_process, port_or_free, served_line
from bot.config import DashboardSettings
from bot.dashboard.server import key_of, left_by_run, link, running_in
from bot.errors import Exit
from tests.cli.operate.daemon_process import Ran, made
from tests.dashboard.browsing import WAIT_S, enter


async def told_by(section: DashboardSettings | None, folder: Path) -> tuple[Served | str, str]:
    """What the daemon is told, and the page of backtests while the block lasts."""
    told: asyncio.Queue[Served | str] = asyncio.Queue()
    async with dashboard_process(section, folder, told.put_nowait, lambda: True) as start:
        start()
        start()
        served = await asyncio.wait_for(told.get(), WAIT_S)
        if isinstance(served, str):
            return served, ""

        def visit() -> str:
            with contextlib.closing(enter(served.link)) as client:
                return client.get("/runs").text

        return served, await asyncio.to_thread(visit)


async def test_it_serves_while_the_daemon_runs_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    served, page = await told_by(DashboardSettings(port=0), tmp_path)
    assert isinstance(served, Served)
    assert str(tmp_path / "runs") in page, "the folder of backtests is the one beside the daemon"
    assert "Start a backtest" not in page, "without control it only reads"
    port = int(served.address.rpartition(":")[2])
    assert port_or_free(port) == port, "it has ended"
    assert "#" in served_line(served, is_terminal=True)
    assert "#" not in served_line(served, is_terminal=False), "a log gets no link"


async def test_a_port_in_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said, _ = await told_by(DashboardSettings(port=port), tmp_path)
        assert port_or_free(port) == 0
    assert isinstance(said, str)
    assert f"port {port} on 127.0.0.1 cannot be used" in said
    assert served_line(said, is_terminal=True).startswith("dashboard   not available: the dashboard's port")
    assert port_or_free(port) == port


async def test_a_config_without_the_section_starts_nothing(tmp_path: Path) -> None:
    nothing = lambda _served: pytest.fail("nothing was asked for")  # noqa: E731
    async with dashboard_process(None, tmp_path, nothing, lambda: True) as start:
        start()
    assert list(tmp_path.iterdir()) == []


async def test_after_an_error_of_the_daemon_it_goes_on_and_the_next_run_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: asyncio.Queue[Served | str] = asyncio.Queue()
    async with dashboard_process(DashboardSettings(port=0), tmp_path, told.put_nowait, lambda: False) as start:
        start()
        first = await asyncio.wait_for(told.get(), WAIT_S)
    pid = left_by_run(tmp_path)
    assert pid is not None
    assert isinstance(first, Served)
    with contextlib.closing(enter(first.link)) as client:
        assert (await asyncio.to_thread(client.get, "/")).status_code == 200
    served, _ = await told_by(DashboardSettings(port=0), tmp_path)
    assert isinstance(served, Served)
    assert left_by_run(tmp_path) is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_dashboard_outlives_a_kill_of_the_daemon_and_goes_with_stop(capsys: pytest.CaptureFixture[str]) -> None:
    with made("Holds") as ran:
        ran.config.write_text(ran.config.read_text() + "dashboard: {port: 0}\n")
        ran.start()
        ran.until("the dashboard serves", lambda: is_ready(ran))
        pid = left_by_run(ran.state)
        assert pid is not None
        ran.until("a position is open", lambda: ran.query("SELECT 1 FROM events WHERE type='fill'"))
        address = ran.until("it says its address", lambda: running_in(ran.state)).address

        os.kill(pid, signal.SIGKILL)
        again = ran.until(
            "it is started again", lambda: left_by_run(ran.state) not in (None, pid) and left_by_run(ran.state)
        )
        assert ran.until("it has its port again", lambda: running_in(ran.state)).address == address

        assert ran.process is not None
        ran.process.kill()
        ran.process.wait()
        assert left_by_run(ran.state) == again, "it outlives the daemon"
        ran.process = None
        page = page_of(ran, "/")
        assert "NOT RUNNING" in page
        assert re.search(r"OLD\.</strong> (Size, entry|The daemon)", page)
        assert 'href="/market/BTC"' in page
        assert "No open position" not in page
        assert (
            "not known"
            not in page.partition('id="live-positions"')[2].partition("</tbody>")[0].lower().partition("stop")[0]
        )

        ran.start()
        ran.until(
            "the next run takes its place",
            lambda: left_by_run(ran.state) not in (None, again) and left_by_run(ran.state),
        )
        assert call(["stop", "--force", "--state-dir", str(ran.state)]) == 0
        ran.process.wait(WAIT_S)
        assert left_by_run(ran.state) is None
        capsys.readouterr()


def test_stop_ends_the_dashboard_of_a_daemon_that_is_dead(capsys: pytest.CaptureFixture[str]) -> None:
    with made("Idle") as ran:
        ran.config.write_text(ran.config.read_text() + "dashboard: {port: 0}\n")
        ran.start()
        ran.until("the dashboard serves", lambda: is_ready(ran))
        assert ran.process is not None
        ran.process.kill()
        ran.process.wait()
        assert call(["stop", "--state-dir", str(ran.state)]) == int(Exit.NOT_RUNNING)
        assert "is not running; its dashboard was ended" in capsys.readouterr().err
        assert left_by_run(ran.state) is None


def is_ready(ran: Ran) -> bool:
    """True once the daemon has logged the address of its dashboard."""
    log = ran.state / "daemon.log"
    return log.exists() and "dashboard.ready" in log.read_text()


def page_of(ran: Ran, path: str) -> str:
    """A page of the dashboard that runs, by a new link."""
    running = running_in(ran.state)
    assert running is not None
    with contextlib.closing(enter(link(running, key_of(ran.state)))) as client:
        return client.get(path).text
