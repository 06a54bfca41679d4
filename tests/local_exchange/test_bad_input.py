"""Whatever a client, a test or a person sends: one answer in the exchange's form, or one clear error.

Never a traceback, never silence.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import eth_account
import httpx
import pytest
from hyperliquid.utils import signing

from bot.errors import ConfigError
from bot.extras import install
from bot.local_exchange import extra
from bot.local_exchange.engine.venue_rules import MarketSpec
from bot.local_exchange.server.control import BadCommand
from bot.local_exchange.server.service import ExchangeService, ExchangeServiceOptions
from bot.local_exchange.switches import SWITCHES
from bot.testing.hyperliquid import LocalExchange
from tests.local_exchange.contract_access import VALUES
from tests.local_exchange.exchanges import ANN, BTC, START_MS, Venue, limit

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "10000"})
HUGE = 2**70
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    HUGE,
    "",
    "x",
    "1e5",
    "NaN",
    "\ud800",
    [],
    {},
    [[]],
    {"type": []},
    "9" * 60,
)


def signed(action: Any, nonce: int) -> dict[str, Any]:
    signature = signing.sign_l1_action(WALLET, {"type": "noop"}, None, START_MS, None, False)
    return {"action": action, "nonce": nonce, "signature": signature, "vaultAddress": None}


def replaced(value: Any, odd: Any) -> list[Any]:
    """Copies of a JSON value, each with one part replaced."""
    found = [odd]
    if isinstance(value, dict):
        for key in value:
            found += [{**value, key: part} for part in replaced(value[key], odd)]
            found.append({name: part for name, part in value.items() if name != key})
    elif isinstance(value, list):
        for index, one in enumerate(value):
            found += [[*value[:index], part, *value[index + 1 :]] for part in replaced(one, odd)]
    return found


TRIGGER = {
    "a": BTC,
    "b": False,
    "p": "90000",
    "s": "0.01",
    "r": True,
    "t": {"trigger": {"isMarket": True, "triggerPx": "95000", "tpsl": "sl"}},
}
CHAIN = {"hyperliquidChain": "Testnet", "signatureChainId": "0x66eee"}
ACTIONS: tuple[Any, ...] = (
    {"type": "order", "orders": [limit(BTC, "B", "0.01", "99000"), TRIGGER], "grouping": "na"},
    {"type": "cancel", "cancels": [{"a": BTC, "o": 1}]},
    {"type": "cancelByCloid", "cancels": [{"asset": BTC, "cloid": "0x" + "1" * 32}]},
    {"type": "batchModify", "modifies": [{"oid": 1, "order": limit(BTC, "B", "0.01", "99000")}], "a": True},
    {"type": "scheduleCancel", "time": START_MS},
    {"type": "updateLeverage", "asset": BTC, "isCross": True, "leverage": 5},
    {"type": "updateIsolatedMargin", "asset": BTC, "isBuy": True, "ntli": 1},
    {"type": "topUpIsolatedOnlyMargin", "asset": BTC, "leverage": "2"},
    {"type": "reserveRequestWeight", "weight": 1},
    {"type": "subAccountTransfer", "subAccountUser": ANN, "isDeposit": True, "usd": 1},
    {"type": "twapOrder", "twap": {"a": BTC}},
    {"type": "usdSend", **CHAIN, "destination": ANN, "amount": "1", "time": START_MS},
    {"type": "approveAgent", **CHAIN, "agentAddress": ANN, "nonce": START_MS},
)


def test_no_odd_part_of_an_action_is_a_fault_of_the_server() -> None:
    """Performed as if the signature were right, and read as it is: every action is answered, or malformed."""
    from bot.local_exchange.wire.actions import Malformed

    for form in ("canonical", "as_sent"):
        venue = Venue(switches={"signed_form": form})
        for action in ACTIONS:
            for odd in ODD:
                for changed in replaced(action, odd):
                    try:
                        known = venue.service.read(signed(changed, START_MS))
                        answer = venue.act(ANN, known.action)
                    except Malformed:
                        continue
                    assert answer["status"] in ("ok", "err"), changed


QUERIES: tuple[dict[str, Any], ...] = (
    {"type": "l2Book", "coin": "BTC", "nSigFigs": 5, "mantissa": 2},
    {"type": "candleSnapshot", "req": {"coin": "BTC", "interval": "1M", "startTime": 0, "endTime": START_MS}},
    {"type": "clearinghouseState", "user": ANN, "dex": ""},
    {"type": "orderStatus", "user": ANN, "oid": 1},
    {"type": "userFillsByTime", "user": ANN, "startTime": 0, "aggregateByTime": True},
    {"type": "activeAssetData", "user": ANN, "coin": "BTC"},
    {"type": "marginTable", "id": 51},
)


def test_no_odd_part_of_a_query_is_a_fault_of_the_server() -> None:
    from bot.local_exchange.wire.actions import Malformed
    from bot.local_exchange.wire.queries import ServerFault

    venue = Venue()
    venue.place(ANN, limit(BTC, "B", "0.01", "100100", "Ioc"))
    for query in QUERIES:
        for odd in ODD:
            for changed in replaced(query, odd):
                try:
                    json.dumps(venue.service.info(changed))
                except (Malformed, ServerFault):
                    continue


def test_no_odd_subscription_is_more_than_an_error() -> None:
    from bot.local_exchange.wire.channels import CHANNELS, InvalidSubscription, normalised

    venue = Venue()
    for kind, channel in CHANNELS.items():
        whole = {"type": kind, "coin": "BTC", "interval": "1m", "user": ANN, **channel.may}
        for odd in ODD:
            for changed in replaced(whole, odd):
                try:
                    normalised(venue.exchange, changed)
                except InvalidSubscription:
                    continue


COMMANDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deposit", {"address": ANN, "usd": "1", "dex": "xyz"}),
    ("price", {"coin": "BTC", "px": "100000", "mark": "100000", "oracle": "100000", "volume": "1"}),
    ("trade", {"coin": "BTC", "side": "B", "sz": "0.01", "px": "100100"}),
    ("switch", {"name": "trigger_oid", "value": "same"}),
    ("advance", {"ms": 1}),
    ("fault", {"point": "reply_out", "kind": "late", "count": 1, "ms": 1, "path": "/exchange", "user": ANN}),
    ("fault", {"point": "exchange", "kind": "rules", "coin": "BTC", "szDecimals": 4, "minNotional": "10"}),
    ("fault", {"point": "exchange", "kind": "post_only", "ms": 1}),
)


def test_no_odd_part_of_a_control_command_is_a_fault_of_the_server() -> None:
    venue = Venue()
    for name, body in COMMANDS:
        venue.control(name, **body)
        for odd in ODD:
            for changed in replaced(body, odd):
                if not isinstance(changed, dict):
                    continue
                try:
                    venue.service.command(name, changed)
                except BadCommand:
                    continue
        with pytest.raises(BadCommand, match="colour"):
            venue.control(name, **body, colour="red")


@FUNDED
def test_deep_and_broken_bodies_are_answered(hyperliquid: LocalExchange) -> None:
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=hyperliquid.base_url, trust_env=False, headers=headers) as http:
        for path in ("/info", "/exchange"):
            for content in (b"[" * 200_000, b"\xff\xfe", b"", b"nul", b'"' + b"x" * 2_000_000):
                assert http.post(path, content=content).status_code == 400, content[:10]
            assert http.post(path, content=b"[]").status_code == 422
        assert http.get("/info").status_code == 405
        assert http.post("/control/price", content=b"[" * 200_000).status_code == 400


async def test_control_is_for_this_machine_only() -> None:
    from bot.local_exchange.server.http import Application

    application = Application(ExchangeService(ExchangeServiceOptions(speed=0.0, prices="held", start_ms=START_MS)))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/control/state", "headers": [], "client": ("192.0.2.7", 5)}
    await application(scope, receive, send)
    assert sent[0]["status"] == 403 and b"this machine only" in sent[1]["body"]


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    text = tmp_path / "text.db"
    text.write_text("not a database, but a long line of text that SQLite cannot read" * 20)
    for path in (file, text, tmp_path):
        with pytest.raises(ConfigError, match="cannot be used as the database of the local exchange"):
            ExchangeService(ExchangeServiceOptions(speed=0.0, db=path, start_ms=START_MS))
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    db.close()


def test_a_database_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Venue(db=tmp_path / "one.db")
    monkeypatch.setattr(sqlite3, "connect", _impatient(sqlite3.connect))
    with pytest.raises(ConfigError, match="end the process that has it open"):
        ExchangeService(ExchangeServiceOptions(speed=0.0, db=tmp_path / "one.db", start_ms=START_MS))
    first.service.close()


def _impatient(connect: Any) -> Any:
    return lambda *args, **more: connect(*args, **more, timeout=0.05)


def test_prices_stand_still_while_the_exchange_is_stopped(tmp_path: Path) -> None:
    options = ExchangeServiceOptions(speed=0.0, db=tmp_path / "e.db", start_ms=START_MS)
    service = ExchangeService(options)
    service.command("advance", {"ms": 30_000})
    mark = service.exchange.coins["BTC"].market.mark
    service.close()
    again = ExchangeService(options)
    # as if the machine's clock had gone on
    again.clock.advance(3_600_000)
    from bot.local_exchange.engine import timeline

    timeline.hold_prices(again.exchange, again.clock.now_ms())
    again.pass_time()
    assert again.exchange.coins["BTC"].market.mark == mark
    assert again.info({"type": "fundingHistory", "coin": "BTC", "startTime": 0})[0], "funding is paid"
    again.close()


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    extra.need_extra()
    monkeypatch.setattr(extra, "MODULES", ("coincurve", "no_such_module"))
    with pytest.raises(ConfigError, match=re.escape(f"needs no_such_module: {install('exchange')}")):
        extra.need_extra()


# ── The last switches, and facts of the exchange ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("answer", "acts"), [("at_once", False), ("late", True)])
def test_an_agent_after_its_expiry(answer: str, acts: bool) -> None:
    venue = Venue(switches={"agent_expiry": answer})
    agent, nonce = "0x" + "c1" * 20, venue.nonce()
    action = {
        "type": "approveAgent",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "agentAddress": agent,
        "agentName": f"a valid_until {START_MS + 1_000}",
        "nonce": nonce,
    }
    assert venue.act(ANN, action, nonce=nonce)["status"] == "ok"
    venue.control("advance", ms=60_000)
    assert (venue.act(agent, {"type": "noop"})["status"] == "ok") is acts
    venue.control("advance", ms=900_000)
    assert venue.act(agent, {"type": "noop"})["status"] == "err"


@pytest.mark.parametrize(("answer", "status"), [("works", "open"), ("unknown", "unknownOid")])
def test_a_cloid_on_a_hip3_market(answer: str, status: str) -> None:
    venue = Venue(switches={"hip3_cloid": answer})
    venue.control("deposit", address=ANN, usd="1000", dex="xyz")
    cloid = "0x" + "7" * 32
    oid = venue.rest(ANN, limit(110_001, "B", "0.01", "3900", cloid=cloid))[0]
    assert (venue.status(ANN, cloid), venue.status(ANN, oid)) == (status, "open")


@pytest.mark.parametrize(("answer", "used"), [("all", 3), ("orders", 1)])
def test_which_actions_use_the_budget(answer: str, used: int) -> None:
    venue = Venue(switches={"budget_counts": answer})
    venue.act(ANN, {"type": "noop"})
    venue.act(ANN, {"type": "updateLeverage", "asset": BTC, "isCross": True, "leverage": 5})
    venue.place(ANN, limit(BTC, "B", "0.01", "99000"))
    assert venue.info("userRateLimit", user=ANN)["nRequestsUsed"] == used


def test_every_switch_has_a_test_of_its_own() -> None:
    """The contract runs a scenario under each value of a switch that a scenario shows; each other one has a test."""
    texts = "\n".join(file.read_text() for file in Path(__file__).parent.glob("*.py"))
    in_contract = {name for name, _ in VALUES}
    for switch in SWITCHES:
        if switch.name in in_contract:
            continue
        assert f'"{switch.name}"' in texts, switch.name
        assert all(f'"{value}"' in texts for value in switch.values[1:]), switch.name


def test_a_thousand_open_orders_leave_no_room_for_stops() -> None:
    venue = Venue(usd="1000000", network="mainnet")
    venue.place(ANN, limit(BTC, "B", "0.01", "101000", "Ioc"))
    for _ in range(25):
        venue.rest(ANN, *[limit(BTC, "B", "0.00013", "90000")] * 40)
    assert venue.place(ANN, {**TRIGGER, "s": "0.01"})[0] == {"error": "Too many open orders. asset=0"}
    assert venue.place(ANN, limit(BTC, "B", "0.00013", "90000"))[0] == {"error": "Too many open orders. asset=0"}
    assert venue.info("historicalOrders", user=ANN)[0]["status"] == "tooManyOpenOrdersRejected"


def test_ticks_fees_and_funding_are_those_of_the_facts(shared: Path) -> None:
    from bot.local_exchange.engine.venue_rules import E8, E12, VenueMarket, fee_of, rate_of
    from bot.money import format_e8, parse_e8

    facts = json.loads((shared / "oracles" / "hl_facts.json").read_text())
    for decimals, kind in ((0, ""), (1, "szDecimals1_")):
        market = VenueMarket(MarketSpec("X", sz_decimals=decimals), E8, E8, E8)
        for valid in (True, False):
            for text in facts["price_rules"][f"{kind}{'' if valid else 'in'}valid"]:
                px = parse_e8(text)
                assert (px % market.tick(px) == 0) is valid, text
    sample = facts["fee_maker_sample"]
    notional = parse_e8(str(sample["px"])) * parse_e8(str(sample["sz"])) // E8
    assert format_e8(fee_of(notional, 15_000)) == sample["fee"]
    funding = facts["funding_docs"]
    assert rate_of(int(funding["premium"] * E12)) == int(funding["hourly"] * E12)
