"""Listings in a database: a later start needs no file; a changed file is a command of the log; a change that concerns
an open order or position is refused; the log replays to the same chain; a new market of the file is listed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.checks.listing_file import listings_of
from bot.errors import ConfigError
from bot.service.host import HostOptions, Service, build
from bot.service.market_data.instruments import Listing
from bot.service.state_machine.command_log import CommandLog
from bot.service.state_machine.replay import replay

Listings = dict[str, Listing]
Read = Callable[..., Listings]

# a Wednesday afternoon in Frankfurt
START_MS = 1_764_160_200_000
FILE = """\
markets:
  SHIB: {tick: 0.00000001, lot: 1, price: 0.00001234, %s}
  DAX: {tick: 0.5, lot: 1, price: 23000, kind: stocks, calendar: weekly Mon-Fri 09:00-17:30 Europe/Berlin}
%s"""


@pytest.fixture
def listings(tmp_path: Path) -> Read:
    def read(rules: str = "leverage: 10", more: str = "") -> dict[str, Listing]:
        path = tmp_path / "markets.yaml"
        path.write_text(FILE % (rules, more))
        return listings_of(path)

    return read


@asynccontextmanager
async def running(
    db: Path, listings: dict[str, Listing], **options: Any
) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    given = {"clock": "manual", "start_ms": START_MS, "listings": listings} | options
    service = build(HostOptions(db=db, **given))
    await service.start()
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield service, http
    await service.stop()


async def opened(http: httpx.AsyncClient) -> dict[str, str]:
    answer = await http.post("/v1/sandbox/accounts", json={"name": "me"})
    return {"Authorization": f"Bearer {answer.json()['apiKey']}"}


async def ordered(http: httpx.AsyncClient, headers: dict[str, str], key: str, **order: Any) -> dict[str, Any]:
    body = {"market": "SHIB", "side": "long", "usdAmount": 500, "leverage": 5, **order}
    answer = await http.post("/v1/orders", json=body, headers=headers | {"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def moved(service: Service, hours: int) -> None:
    machine = service.machine
    for _ in range(hours):
        machine.clock.move_to(machine.clock.now_ms() + 3_600_000)
        machine.catch_up()


async def test_a_database_keeps_its_listings_without_the_file(tmp_path: Path, listings: Read) -> None:
    db = tmp_path / "s.db"
    async with running(db, listings(), markets=("SHIB", "DAX")) as (service, http):
        headers = await opened(http)
        await ordered(http, headers, "a")
        moved(service, 30)
        specs = {coin: market.spec for coin, market in service.machine.state.markets.items()}
        assert specs["DAX"].hours is not None and service.machine.state.markets["DAX"].external is not None
    async with running(db, {}) as (service, http):
        assert {coin: market.spec for coin, market in service.machine.state.markets.items()} == specs
        moved(service, 30)
        held = (await http.get("/v1/account", headers=headers)).json()["positions"]
        assert [position["coin"] for position in held] == ["SHIB"]
    # Stopped: the marks of the last minutes are in the log too.
    chain, seq = service.machine.chain, service.machine.seq
    again = CommandLog(db)
    replayed = replay(again.open(), str(db))
    again.close()
    assert (replayed.chain, replayed.seq) == (chain, seq)


async def test_a_changed_file_is_a_command_of_the_log(tmp_path: Path, listings: Read) -> None:
    db = tmp_path / "s.db"
    async with running(db, listings(), markets=("SHIB", "DAX")) as (service, http):
        headers = await opened(http)
        await ordered(http, headers, "a")
        seq = service.machine.seq
    # A fee concerns no position that is open.
    async with running(db, listings("leverage: 10, fees: {taker: 0.002}")) as (service, http):
        assert service.machine.state.markets["SHIB"].spec.taker_rate == 200_000
        assert service.machine.seq > seq
        seq = service.machine.seq
    # The same file again is no change.
    async with running(db, listings("leverage: 10, fees: {taker: 0.002}")) as (service, http):
        assert service.machine.seq == seq
        filled = await ordered(http, headers, "b")
        assert filled
        chain = service.machine.chain
    again = CommandLog(db)
    assert replay(again.open(), str(db)).chain == chain
    again.close()


@pytest.mark.parametrize("rules", ["leverage: 5", "tick: 0.00000005", "lot: 10", "margin: isolated", "minimum: 11"])
async def test_a_rule_that_concerns_a_position_is_refused_until_it_is_closed(
    rules: str, tmp_path: Path, listings: Read
) -> None:
    db = tmp_path / "s.db"
    text = FILE % ("leverage: 10", "")
    path = tmp_path / "changed.yaml"
    name = rules.partition(":")[0]
    line = next(each for each in text.splitlines() if "SHIB" in each)
    before = {"leverage": "leverage: 10", "tick": "tick: 0.00000001", "lot": "lot: 1,"}.get(name)
    changed = (
        line.replace(before, rules + ("," if name == "lot" else "")) if before else line.replace("}", f", {rules}}}")
    )
    path.write_text(text.replace(line, changed))
    async with running(db, listings(), markets=("SHIB", "DAX")) as (service, http):
        headers = await opened(http)
        await ordered(http, headers, "a")
    with pytest.raises(
        ConfigError, match=r"SHIB cannot change while account me has a position there; close and cancel"
    ):
        build(HostOptions(db=db, clock="manual", listings=listings_of(path)))
    # Nothing is half done: with the old listing the service goes on, and after the close the new one is taken.
    async with running(db, listings()) as (service, http):
        await http.post("/v1/positions/SHIB/close", json={}, headers=headers | {"Idempotency-Key": "c"})
    async with running(db, listings_of(path)) as (service, _):
        spec = service.machine.state.markets["SHIB"].spec
        wanted = listings_of(path)["SHIB"].spec
        assert (spec.tick, spec.lot, spec.max_leverage, spec.margin_mode, spec.min_notional) == (
            wanted.tick,
            wanted.lot,
            wanted.max_leverage,
            wanted.margin_mode,
            wanted.min_notional,
        )


async def test_a_new_market_of_the_file_is_listed_at_the_next_start(tmp_path: Path, listings: Read) -> None:
    db = tmp_path / "s.db"
    async with running(db, listings()) as (service, http):
        headers = await opened(http)
        count = len(service.machine.state.markets)
    more = "  EURUSD: {tick: 0.00001, lot: 1000, price: 1.0845, leverage: 30}\n"
    async with running(db, listings(more=more)) as (service, http):
        assert len(service.machine.state.markets) == count + 1
        await ordered(http, headers, "e", market="EURUSD", usdAmount=5000, leverage=10)
        moved(service, 5)
        chain = service.machine.chain
    async with running(db, {}) as (service, http):
        assert service.machine.chain == chain
        held = (await http.get("/v1/account", headers=headers)).json()["positions"]
        assert [position["coin"] for position in held] == ["EURUSD"]
        stored = json.loads(service.machine.feed.options)
        assert "EURUSD" in stored["markets"] and "EURUSD" in stored["listings"]


async def test_a_market_without_a_price_needs_candles_or_is_left_out(tmp_path: Path, listings: Read) -> None:
    given = listings(more="  OIL: {tick: 0.01, lot: 1}\n")
    async with running(tmp_path / "s.db", given) as (service, _):
        assert "OIL" not in service.machine.state.markets
    with pytest.raises(ConfigError, match="OIL has no price to begin with; add `price:` to its listing, or give its"):
        build(HostOptions(listings=given, markets=("OIL",)))
    candles = tmp_path / "oil.csv"
    rows = "".join(f"{START_MS // 60_000 * 60_000 + n * 60_000},70,71,69,70.5,10\n" for n in range(300))
    candles.write_text("ts,open,high,low,close,volume\n" + rows)
    service = build(HostOptions(listings=given, markets=("OIL",), data=(("OIL", candles),), clock="manual"))
    assert service.machine.state.markets["OIL"].mark > 69 * 10**8
    service.machine.log.close()
