"""The feeder process and its client: what needs no exchange, and what happens when the process is not there or ends."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bot.backtest.data.history import PullProgress, WantedCandles
from bot.cli.data.history import _shown, left_text
from bot.market_data import ccxt_feeder, feeder_client, registry
from bot.market_data.feeder_client import Failure, FeederProcess
from bot.market_data.source import NoAnswer, NotOffered, SourceError
from bot.market_data.symbols import MappedCoin


async def test_an_interval_that_the_exchange_lacks_is_refused_with_those_that_it_has(quick_python: str) -> None:
    async with FeederProcess({"BOT_MARKETS_PYTHON": quick_python}) as feeder:
        with pytest.raises(Failure, match="coinbase has no 4h candles; it has 1m, 5m") as raised:
            await feeder.ask("candles", exchange="coinbase", symbol="BTC/USD", interval="4h", since_ms=0, limit=1)
    assert raised.value.kind == "unsupported"


async def test_requests_are_answered_as_they_finish(quick_python: str) -> None:
    async with FeederProcess({"BOT_MARKETS_PYTHON": quick_python}) as feeder:
        answers = [feeder.ask("instruments", exchange=name) for name in ("nope", "binanc", "")]
        found = await asyncio.gather(*answers, return_exceptions=True)
    assert [one.kind for one in found if isinstance(one, Failure)] == ["unknown_exchange"] * 3


async def test_a_feeder_that_is_killed_answers_the_waiting_request_with_an_error(markets_python: str) -> None:
    async with FeederProcess({"BOT_MARKETS_PYTHON": markets_python}) as feeder:
        os.kill(feeder._process.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(feeder.ask("instruments", exchange="nope"))
        await asyncio.sleep(0.1)
        os.kill(feeder._process.pid, signal.SIGKILL)
        with pytest.raises(NoAnswer, match="has ended"):
            await asked
        with pytest.raises(NoAnswer, match="has ended"):
            await feeder.ask("instruments", exchange="nope")


async def test_a_request_that_is_cancelled_as_its_answer_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that ends waits for its requests. One that went on would keep the service from stopping."""
    feeder = FeederProcess({})

    async def written(_: object) -> None: ...

    monkeypatch.setattr(feeder, "_write", written)
    asked = asyncio.ensure_future(feeder.ask("candles"))
    await asyncio.sleep(0)
    (answer,) = feeder._waiting.values()
    answer.set_result({"result": []})
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_feeder_that_ends_when_it_is_given_up_is_no_error(
    quick_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FeederProcess({"BOT_MARKETS_PYTHON": quick_python}) as feeder:
        process = feeder._process
        monkeypatch.setattr(feeder_client.asyncio, "wait_for", gives_up)
    assert process.returncode is not None


async def gives_up(awaited: Any, _seconds: float) -> None:
    """The time is over just when the awaited thing has happened."""
    await awaited
    raise TimeoutError


@pytest.mark.parametrize(
    ("python", "text"), [("/nowhere/python", "cannot be started"), ("/bin/true", "has ended"), ("/bin/echo", "no JSON")]
)
async def test_an_interpreter_that_is_none_is_named(python: str, text: str) -> None:
    with pytest.raises(SourceError, match=text) as raised:
        async with FeederProcess({"BOT_MARKETS_PYTHON": python}):
            pass
    assert python in str(raised.value)


def test_what_an_exchange_writes_cannot_control_the_terminal() -> None:
    assert ccxt_feeder.plain(ValueError("a\x1b[2Jb\nc" + "d" * 500)) == "a [2Jb c" + "d" * 392


def test_a_source_of_another_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bot.market_data]\nmine = mine_source:opened\nbroken = nowhere:opened\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "mine_source", SimpleNamespace(opened=lambda text: f"opened {text}"))
    assert registry.open_source("mine:x:y") == "opened x:y"
    with pytest.raises(SourceError, match="cannot be loaded"):
        registry.open_source("broken")
    with pytest.raises(NotOffered, match="did you mean mine"):
        registry.open_source("minee:x")


def test_the_progress_line_has_the_time_left() -> None:
    shown: list[str] = []
    wanted = WantedCandles(MappedCoin("BTC", "BTC/USDT", None), "1m", 0, 1)
    show = _shown(wanted, shown.append)
    show(PullProgress(1_746_057_600_000, 0.25, 5_000, 10.0))
    show(PullProgress(1_746_057_660_000, 0.26, 5_001, 10.1))
    assert shown == ["BTC 1m: 2025-05-01, 25%, 5,000 candles, 500 a second, 30 s left"]
    assert [left_text(one) for one in (59.6, 245, 11_520)] == ["1 min 0 s", "4 min 5 s", "3 h 12 min"]


async def test_the_process_gets_no_secret_of_the_environment(tmp_path: Path) -> None:
    seen, script = tmp_path / "seen", tmp_path / "python"
    script.write_text(f'#!/bin/sh\nenv > {seen}\necho \'{{"id": 0, "result": "1"}}\'\nread line\n')
    script.chmod(0o755)
    secrets = dict.fromkeys(
        ("BOT_API_KEY", "BOT_CONTROL_TOKEN", "OPENAI_API_KEY", "CREDENTIALS_DIRECTORY", "AWS_SECRET_ACCESS_KEY"),
        "SECRET",
    )
    reach = {
        "HTTPS_PROXY": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/ssl/cert.pem",
        "PATH": os.environ["PATH"],
    }
    async with FeederProcess({"BOT_MARKETS_PYTHON": str(script), **secrets, **reach}):
        pass
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()} - {"PWD", "SHLVL", "_", "OLDPWD"}
    assert names == set(reach)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_an_answer_of_an_exchange_is_bounded_after_its_decompression(encoding: str, quick_python: str) -> None:
    body = b'{"symbols": "' + b"x" * (ccxt_feeder.BODY_BYTES_MAX + 1) + b'"}'
    body = gzip.compress(body, 1) if encoding == "gzip" else body

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {encoding}\r\nContent-Length:"
                f" {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with FeederProcess({"BOT_MARKETS_PYTHON": quick_python, "BOT_MARKETS_URL": url}) as feeder:
            with pytest.raises(Failure, match="larger than"):
                await feeder.ask("instruments", exchange="coinbase")
