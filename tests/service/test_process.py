"""The service as a real process on a real port: ready, stopped, refused a port, cut off. kill -9 under load has a
file of its own.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service import serving
from tests.service.conftest import Start

ORDER: dict[str, Any] = {"market": "BTC", "side": "long", "usdAmount": 30, "bracket": {"stopLoss": {"pct": 30}}}


async def test_time_never_goes_back_over_a_kill(start: Start, tmp_path: Path) -> None:
    shown = 0
    for _ in range(2):
        served = start(db=tmp_path / "s.db", clock="60x")
        async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
            for _ in range(5):
                header = (await http.get("/v1/system/status")).headers["x-sandbox-clock"]
                now, speed = header.split("; speed=")
                assert int(now) >= shown
                assert speed == "60"
                shown = int(now)
                await asyncio.sleep(0.05)
        served.kill()


async def test_a_stop_is_clean_and_quick_and_leaves_a_snapshot(start: Start, tmp_path: Path) -> None:
    served = start(db=tmp_path / "s.db", clock="600x", control_socket=tmp_path / "c.sock")
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
        opened = (await http.post("/v1/sandbox/accounts")).json()
        http.headers["Authorization"] = f"Bearer {opened['apiKey']}"
        for _ in range(50):
            assert (await http.post("/v1/orders", json=ORDER)).status_code == 200
        began = time.monotonic()
        code = await asyncio.to_thread(served.stop)
    assert code == 0
    assert time.monotonic() - began < 20
    assert not (tmp_path / "c.sock").exists()
    import sqlite3

    with sqlite3.connect(tmp_path / "s.db") as db:
        (seq,) = db.execute("SELECT max(seq) FROM snapshots").fetchone()
        assert db.execute("SELECT count(*) FROM commands WHERE seq > ?", (seq,)).fetchone() == (0,)


def test_a_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError) as said:
            serving.start(port=port, db=tmp_path / "s.db")
    assert str(said.value).startswith("1: error: port ")
    assert "in use" in str(said.value)
    assert "Traceback" not in str(said.value)
    assert not (tmp_path / "s.db").exists()


def test_a_bad_option_ends_with_the_exit_code_of_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("ts\n1")
    with pytest.raises(RuntimeError) as said:
        serving.start(port=0, data=[["BTC", str(tmp_path / "bad.csv")]])
    assert str(said.value).startswith("4: error: ")
    assert "row 1" in str(said.value)
    assert "Traceback" not in str(said.value)


async def test_only_its_user_can_use_the_control_socket_without_a_token(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    served = start(clock="manual", control_socket=path)
    assert path.stat().st_mode & 0o777 == 0o600
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://embedded"
    ) as control:
        minted = (await control.post("/sandbox/v1/keys", json={"accountId": None})).json()
        assert (await control.post("/sandbox/v1/clock/advance", json={"ms": 5})).status_code == 200
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
        assert (await http.get("/sandbox/v1/clock")).status_code == 401
        forged = {"Authorization": "Bearer None"}
        assert (await http.get("/sandbox/v1/clock", headers=forged)).status_code == 401
        answer = await http.get("/v1/account", headers={"Authorization": f"Bearer {minted['apiKey']}"})
        assert answer.status_code == 200
    with pytest.raises(RuntimeError, match="another service listens on this socket"):
        serving.start(port=0, control_socket=str(path))


async def test_the_control_on_a_port_takes_the_token_of_its_environment(start: Start) -> None:
    served = start(clock="manual", env={"BOT_CONTROL_TOKEN": "bbc_of_the_test"})
    async with httpx.AsyncClient(base_url=served.base_url, timeout=60) as http:
        answer = await http.get("/sandbox/v1/clock", headers={"Authorization": "Bearer bbc_of_the_test"})
        assert answer.json()["mode"] == "manual"


def test_a_request_cut_at_any_byte_has_no_effect(start: Start) -> None:
    served = start(clock="manual")
    with httpx.Client(base_url=served.base_url, timeout=60) as http:
        opened = http.post("/v1/sandbox/accounts").json()
        headers = {"Authorization": f"Bearer {opened['apiKey']}"}
        body = b'{"market":"BTC","side":"long","usdAmount":30}'
        head = (
            f"POST /v1/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {headers['Authorization']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        whole = head + body
        for cut in (*range(0, len(head), 25), *range(len(head), len(whole), 7), len(whole) - 1):
            with socket.create_connection(("127.0.0.1", served.port)) as raw:
                raw.sendall(whole[:cut])
        assert http.get("/v1/trades", headers=headers).json()["trades"] == []
        with socket.create_connection(("127.0.0.1", served.port)) as raw:
            raw.sendall(whole)
            raw.recv(1)
        assert len(http.get("/v1/trades", headers=headers).json()["trades"]) == 1
