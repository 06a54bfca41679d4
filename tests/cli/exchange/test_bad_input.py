"""What is wrong for an account at an exchange: one clear sentence in each way in, nothing is placed, and the position
keeps its stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import eth_account
import httpx
import pytest
from hyperliquid.exchange import Exchange

from bot.cli.app import call
from bot.clock import DAY_MS, SystemClock
from bot.local_exchange.server import http as exchange_http
from bot.testing.hyperliquid import LocalExchange
from bot.venue.model.numbers import E8
from tests.exchanges.agents import AGENT, KEY, approve, key_file
from tests.service.exchange_accounts.followers import ADDRESS, Hand, running, size_of, until
from tests.service.exchange_accounts.traders import can_send, owner, trading_options

OTHER = eth_account.Account.from_key("0x" + "07" * 32)
OTHER_ADDRESS = OTHER.address.lower()
AT_EXCHANGE: Mapping[str, Any] = {"accounts": {ADDRESS: "100000", OTHER_ADDRESS: "100000"}, "clock": "real"}
# Its clock is behind ours for an hour of ours.
BEHIND: Mapping[str, Any] = {**AT_EXCHANGE, "clock": "2x", "start_ms": SystemClock().now_ms() - 3_600_000}
ORDER: Mapping[str, Any] = {"market": "ETH", "side": "long", "size": "0.1", "bracket": {"stopLoss": {"pct": 2}}}
CONFIG = """\
account: {{base_url: embedded}}
state_dir: state
strategies_dir: {folder}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 500}}
"""


def nothing(exchange: LocalExchange) -> None:
    """The agent is approved on another network only."""


def for_another(exchange: LocalExchange) -> None:
    approve(exchange, OTHER)


def for_a_second(exchange: LocalExchange) -> None:
    until_ms = exchange.state()["now"] + 1_000
    approve(exchange, name=f"bot valid_until {until_ms}")
    while exchange.state()["now"] <= until_ms:
        time.sleep(0.05)


def revoke(exchange: LocalExchange) -> None:
    exchange.control("revoke_agent", address=AGENT)


def revoked(exchange: LocalExchange) -> None:
    approve(exchange)
    revoke(exchange)


def take_nonces(exchange: LocalExchange) -> None:
    """Another program with the same agent takes the hundred newest nonces."""
    sdk = Exchange(eth_account.Account.from_key("0x" + KEY), exchange.base_url)
    begin_ms = exchange.state()["now"] + DAY_MS // 2
    for number in range(100):
        assert sdk.noop(begin_ms + number)["status"] == "ok"


def answer_otherwise(patch: pytest.MonkeyPatch, path: str) -> None:
    """Each answer of a path has another form than is documented."""
    usual = exchange_http.Application._answer

    async def answer(self: Any, scope: Any, data: bytes) -> Any:
        reply = await usual(self, scope, data)
        return exchange_http.json_reply({"answer": [7]}) if scope["path"] == path else reply

    patch.setattr(exchange_http.Application, "_answer", answer)


@dataclass(frozen=True)
class Row:
    """`before` the commands and the start of the service, `during` its life. `said`: words of each way in that the
    input concerns. `otherwise`: a path whose answers have another form.
    """

    said: Mapping[str, str]
    before: Callable[[LocalExchange], None] = approve
    during: Callable[[LocalExchange], None] | None = None
    order: Mapping[str, Any] = field(default_factory=dict)
    market: str = "BTC"
    otherwise: str | None = None


NO_AGENT = "is no agent on"
EVERYWHERE = ("check", "connect", "status", "order")
ROWS: Mapping[str, Row] = {
    "a key of another network": Row(dict.fromkeys(EVERYWHERE, NO_AGENT), nothing),
    "an agent of another account": Row(
        dict.fromkeys(EVERYWHERE, f"is an agent of {OTHER_ADDRESS}, not of"), for_another
    ),
    "an agent that has expired": Row(dict.fromkeys(EVERYWHERE, "but expired on"), for_a_second),
    "an agent that was revoked": Row(dict.fromkeys(EVERYWHERE, NO_AGENT), revoked),
    "an agent that is revoked later": Row({"order": "approve a new one and run bot exchange connect"}, during=revoke),
    "an agent that another program uses": Row({"order": "Another program acts with this agent"}, during=take_nonces),
    "a market that is not listed": Row(
        {"check": "SHIBA is not listed", "order": "SHIBA"}, order={"market": "SHIBA"}, market="SHIBA"
    ),
    "a size below the lot": Row({"order": "is not a multiple of 0.0001"}, order={"size": "0.00000001"}),
    "a leverage above the market's": Row({"order": "ETH allows at most"}, order={"leverage": 45}),
    "an answer to an action in an unknown form": Row(
        {"order": "nothing of this answer is used"}, otherwise="/exchange"
    ),
}


def stops(exchange: LocalExchange) -> list[str]:
    rows = exchange.info("frontendOpenOrders", user=ADDRESS)
    return [row["orderType"] for row in rows]


@dataclass
class Ways:
    """The ways in, and what each has said."""

    exchange: LocalExchange
    place: Path
    strategies: Path
    capsys: pytest.CaptureFixture[str]
    said: dict[str, str] = field(default_factory=dict)

    def commands(self, market: str) -> None:
        """`check` and `connect`. A config in which nothing can be used stays as it is."""
        config = self.place / "mine.yaml"
        config.write_text(CONFIG.format(folder=self.strategies))
        before, where = config.read_text(), ["--address", ADDRESS, "--agent-key-file", str(key_file(self.place))]
        network = self.exchange.base_url.rpartition(":")[2]
        ways = {
            "check": ["check", "--url", self.exchange.base_url, "--market", market, *where],
            "connect": ["connect", str(config), "--network", network, "--yes", *where],
        }
        for way, arguments in ways.items():
            code = call(["exchange", *arguments])
            text = self.said[way] = "".join(self.capsys.readouterr())
            assert (code == 0) == ("\nfail " not in text) and "Traceback" not in text, text
            assert way == "check" or (config.read_text() == before) == (code != 0)

    async def order(self, http: httpx.AsyncClient, order: Mapping[str, Any]) -> None:
        """An order over HTTP, asked for until the exchange has decided it."""
        self.said["status"] = (await http.get("/v1/system/status")).text
        async with asyncio.timeout(90):
            while True:
                answer = await http.post("/v1/orders", json={**ORDER, **order}, headers={"Idempotency-Key": "k"})
                if answer.json()["error"]["orderSubmitted"] is False:
                    break
                await asyncio.sleep(0.5)
        self.said["order"] = answer.text


async def prove(row: Row, ways: Ways, patch: pytest.MonkeyPatch) -> None:
    """A position with a stop is there. The wrong input is named, places nothing, and leaves the stop."""
    exchange = ways.exchange
    hand = await asyncio.to_thread(Hand, exchange)
    await asyncio.to_thread(hand.trade, 0.02)
    stop: Any = {"trigger": {"triggerPx": 95_000, "isMarket": True, "tpsl": "sl"}}
    await asyncio.to_thread(hand.sdk.order, "BTC", False, 0.02, 90_000, stop, True)
    await asyncio.to_thread(row.before, exchange)
    await asyncio.to_thread(ways.commands, row.market)
    used = actions_of(exchange)
    async with running(trading_options(exchange, ways.place)) as service:
        await until(lambda: can_send(service))
        async with owner(service) as http:
            if row.during is not None:
                await asyncio.to_thread(row.during, exchange)
            if row.otherwise is not None:
                answer_otherwise(patch, row.otherwise)
            await ways.order(http, row.order)
            assert size_of(service) == 2 * E8 // 100
    patch.undo()
    if row.during is None and row.otherwise is None:
        assert actions_of(exchange) == used, "nothing was sent"
    # Nothing of ours was filled, and nothing of ours waits.
    rows = exchange.info("frontendOpenOrders", user=ADDRESS)
    assert [row["orderType"] for row in rows] == ["Stop Market"]
    assert [fill for fill in exchange.info("userFills", user=ADDRESS) if fill.get("cloid")] == []
    for way, words in row.said.items():
        assert words in ways.said[way], (way, ways.said[way])


def actions_of(exchange: LocalExchange) -> int:
    """How many actions the exchange has counted."""
    return int(exchange.info("userRateLimit", user=ADDRESS)["nRequestsUsed"])


@pytest.fixture
def ways(hyperliquid: LocalExchange, place: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> Ways:
    return Ways(hyperliquid, place, repository / "strategies", capsys)


@pytest.mark.hyperliquid(**AT_EXCHANGE)
@pytest.mark.parametrize("name", ROWS)
async def test_what_is_wrong_is_named_and_nothing_is_placed(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await prove(ROWS[name], ways, monkeypatch)


@pytest.mark.hyperliquid(**BEHIND)
async def test_a_clock_that_is_off_is_named_and_nothing_is_placed(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    safe, needed = (
        "at most 30 s are safe; set this machine's clock by NTP",
        "entries need at most 30 s; nothing was sent",
    )
    await prove(Row({"check": safe, "connect": safe, "order": needed}), ways, monkeypatch)


@pytest.mark.hyperliquid(**AT_EXCHANGE)
def test_an_answer_of_every_read_in_an_unknown_form_fails_the_checks(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_otherwise(monkeypatch, "/info")
    ways.commands("BTC")
    for said in ways.said.values():
        assert said.count("nothing of this answer is used") >= 4, said


def test_the_address_of_the_other_network_fails_before_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--network", "mainnet", "--url", "https://api.hyperliquid-testnet.xyz", "--address", ADDRESS]
    assert call(["exchange", "check", *where]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "fail  network  https://api.hyperliquid-testnet.xyz is testnet, but --network says mainnet; change one of them"
    ]
