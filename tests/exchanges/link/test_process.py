"""The link is a process of its own: it ends with the service, and its end is a missing answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bot.errors import ConfigError
from bot.exchanges.link import client
from bot.exchanges.link.client import ExchangeLink
from bot.exchanges.link.frames import BYTES_MAX, VERSION, frame_bytes, read_frame
from bot.exchanges.protocol import NoExchangeAnswer
from bot.exchanges.registry import open_exchange
from bot.market_data.source import NotOffered, Quote
from bot.testing.hyperliquid import LocalExchange

ADDRESS = "0x" + "a1" * 20


def link_to(hyperliquid: LocalExchange) -> ExchangeLink:
    return ExchangeLink("hyperliquid", hyperliquid.base_url.rpartition(":")[2])


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z":
            await asyncio.sleep(0.02)


async def first_quote(stream: Any) -> Quote:
    async for updates in stream:
        for update in updates:
            if isinstance(update, Quote):
                return update
    raise AssertionError("the stream ended")


async def drain(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_prices_and_an_account_stream_from_one_process(hyperliquid: LocalExchange) -> None:
    async with link_to(hyperliquid) as link:
        quote = await first_quote(link.stream("quotes", symbols=["BTC"]))
        assert (quote.symbol, quote.bid, quote.ask) == ("BTC", 99_999.0, 100_001.0)
        instruments = await link.ask("instruments")
        assert [one.symbol for one in instruments if one.symbol == "BTC"] == ["BTC"]
        assert (await link.health()).weight_most == 1_200
        pid = link.pid
        assert Path(f"/proc/{pid}").exists()
    await gone(pid)


async def test_a_killed_link_ends_every_operation_with_one_sentence(hyperliquid: LocalExchange) -> None:
    async with link_to(hyperliquid) as link:
        stream = link.stream("quotes", symbols=["BTC"])
        await first_quote(stream)
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(NoExchangeAnswer, match="the link has ended; its log says why"):
            await drain(link.stream("quotes", symbols=["BTC"]))
        with pytest.raises(NoExchangeAnswer, match="the link has ended"):
            await link.ask("health")


def test_a_link_whose_death_shows_at_a_write_first_is_a_missing_answer(hyperliquid: LocalExchange) -> None:
    """On the event loop of the service, which refuses a write to a connection that it has closed."""

    async def killed() -> None:
        async with link_to(hyperliquid) as link:
            link._reading.cancel()
            os.kill(link.pid, signal.SIGKILL)
            await link._process.wait()
            for _ in range(3):
                with pytest.raises(NoExchangeAnswer, match="the link has ended; its log says why"):
                    await link.ask("health")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(killed())


async def test_a_killed_service_ends_its_link(hyperliquid: LocalExchange) -> None:
    port = hyperliquid.base_url.rpartition(":")[2]
    text = (
        "import asyncio\n"
        "from bot.exchanges.link.client import ExchangeLink\n"
        "async def main():\n"
        f"    async with ExchangeLink('hyperliquid', '{port}') as link:\n"
        "        print(link.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
    assert service.stdout is not None
    pid = int(await service.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    service.kill()
    await service.wait()
    await gone(pid)


async def test_a_link_that_is_left_early_cancels_its_streams(hyperliquid: LocalExchange) -> None:
    async with link_to(hyperliquid) as link:
        stream = link.stream("quotes", symbols=["BTC"])
        await first_quote(stream)
        await stream.aclose()
        async with asyncio.timeout(20):
            while (await link.health()).connections:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("exchange", "place", "message"),
    [
        ("hyperliqid", "testnet", "exchange 'hyperliqid' is not known; did you mean hyperliquid?"),
        (
            "hyperliquid",
            "moon",
            "hyperliquid:moon: write hyperliquid:testnet, hyperliquid:mainnet, or hyperliquid:PORT",
        ),
        ("hyperliquid", "99999", "hyperliquid:99999: write hyperliquid:testnet"),
    ],
)
async def test_an_exchange_that_is_not_known_is_refused_by_the_link(exchange: str, place: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        await ExchangeLink(exchange, place).__aenter__()
    assert str(raised.value).startswith(message)
    with pytest.raises(ConfigError):
        open_exchange(exchange, place)


async def test_a_service_of_another_version_is_told_to_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "VERSION", VERSION + 1)
    with pytest.raises(ConfigError, match="the program was replaced; start the service again"):
        await ExchangeLink("hyperliquid", "testnet").__aenter__()
    monkeypatch.undo()
    link = ExchangeLink("hyperliquid", "testnet")
    link._opening["version"] = VERSION + 1
    with pytest.raises(ConfigError, match="the program was replaced; start the service again"):
        await link.__aenter__()


@pytest.mark.usefixtures("cold_starts")
async def test_the_link_gets_no_secret_of_the_environment(hyperliquid: LocalExchange) -> None:
    port = hyperliquid.base_url.rpartition(":")[2]
    environ = {**os.environ, "BOT_API_KEY": "secret-of-the-service"}
    async with ExchangeLink("hyperliquid", port, environ=environ) as link:
        # Another program of the same user cannot read the memory of the process; root can.
        assert Path(f"/proc/{link.pid}").stat().st_uid == 0
        with suppress(PermissionError):
            assert b"secret-of-the-service" not in Path(f"/proc/{link.pid}/environ").read_bytes()


async def test_an_operation_that_is_not_known_is_refused_and_the_link_lives_on(hyperliquid: LocalExchange) -> None:
    async with link_to(hyperliquid) as link:
        with pytest.raises(NoExchangeAnswer, match="the link failed at fly: KeyError; its log has more"):
            await link.ask("fly")
        with pytest.raises(NotOffered, match="has no candles of 7m; it has 1m, 5m"):
            await link.ask("history", symbol="BTC", interval="7m", since_ms=0, until_ms=1)
        assert (await link.health()).connections == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((BYTES_MAX + 1).to_bytes(4, "big"), "a frame of 33,554,433 bytes; at most 33,554,432 are allowed"),
        (b"\0\0\0\4[1]x", "a frame that is no JSON object"),
        (b"\0\0\0\3[1]", "a frame that is no JSON object"),
    ],
)
async def test_bytes_that_are_no_frame_are_refused(data: bytes, message: str) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    with pytest.raises(NoExchangeAnswer, match=message):
        await read_frame(reader)


@pytest.mark.parametrize("cut", [0, 1, 4, 10])
async def test_a_cut_frame_is_the_end_of_the_other_side(cut: int) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frame_bytes({"id": 1, "op": "health"})[:cut])
    reader.feed_eof()
    assert await read_frame(reader) is None


def test_a_frame_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="at most 33,554,432 are allowed"):
        frame_bytes({"text": "x" * BYTES_MAX})
