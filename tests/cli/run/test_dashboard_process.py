"""The dashboard beside a daemon: it starts when asked, ends with the daemon, and a fault of it is a sentence and no more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from bot.cli.run.dashboard_process import Served, dashboard_process, port_or_free, served_line
from bot.config import Dashboard
from tests.dashboard.browsing import WAIT_S, enter


async def told_by(section: Dashboard | None, folder: Path) -> tuple[Served | str, str]:
    """What the daemon is told, and the page of backtests while the block lasts."""
    told: asyncio.Queue[Served | str] = asyncio.Queue()
    async with dashboard_process(section, folder, told.put_nowait) as start:
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
    served, page = await told_by(Dashboard(port=0), tmp_path)
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
        said, _ = await told_by(Dashboard(port=port), tmp_path)
        assert port_or_free(port) == 0
    assert isinstance(said, str)
    assert f"port {port} on 127.0.0.1 cannot be used" in said
    assert served_line(said, is_terminal=True).startswith("dashboard   not available: the dashboard's port")
    assert port_or_free(port) == port


async def test_a_config_without_the_section_starts_nothing(tmp_path: Path) -> None:
    async with dashboard_process(None, tmp_path, lambda _served: pytest.fail("nothing was asked for")) as start:
        start()
    assert list(tmp_path.iterdir()) == []
