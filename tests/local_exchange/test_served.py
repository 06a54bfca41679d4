"""The exchange on a port: codes of HTTP, the official SDK with only the address changed, control, and state that
outlives a kill.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import eth_account
import httpx
import pytest
from hyperliquid.exchange import Exchange
from hyperliquid.info import Info
from hyperliquid.utils import signing
from hyperliquid.utils.types import Cloid

from bot.testing.hyperliquid import LocalExchange

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "10000"})


def post(exchange: LocalExchange, path: str, content: str, kind: str | None = "application/json") -> httpx.Response:
    headers = {} if kind is None else {"Content-Type": kind}
    return httpx.post(exchange.base_url + path, content=content, headers=headers, trust_env=False)


def signed(action: Any, nonce: int, *, mainnet: bool = False) -> dict[str, Any]:
    signature = signing.sign_l1_action(WALLET, action, None, nonce, None, mainnet)
    return {"action": action, "nonce": nonce, "signature": signature, "vaultAddress": None}


NOOP = {"type": "noop"}


def test_an_idle_connection_can_be_used_again(hyperliquid: LocalExchange) -> None:
    """The SDK does not send an order again whose connection was closed under it."""
    connection = http.client.HTTPConnection(hyperliquid.base_url.removeprefix("http://"), timeout=10)
    for idle_s in (0, 6):
        # The wall clock of the server is under test: without a bound of its own it closes after five seconds.
        time.sleep(idle_s)
        before = connection.sock
        connection.request("POST", "/info", '{"type": "meta"}', {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, b"universe" in answer.read()) == (200, True)
        assert before in (None, connection.sock)
    connection.close()


@FUNDED
def test_the_codes_of_http_are_those_of_the_exchange(hyperliquid: LocalExchange) -> None:
    now = hyperliquid.state()["now"]
    good = json.dumps(signed(NOOP, now))
    order = {"a": 0, "b": True, "p": 99000, "s": "0.01", "r": False, "t": {"limit": {"tif": "Gtc"}}}
    json_kind = "application/json"

    def acted(action: Any, ahead_ms: int) -> str:
        return json.dumps(signed(action, now + ahead_ms))

    numeric = {"type": "order", "orders": [order], "grouping": "na"}
    rows = [
        ("/info", '{"type": "meta"}', None, 415, "Content-Type"),
        ("/info", '{"type": "meta"', json_kind, 400, "Failed to parse the request body as JSON"),
        ("/info", '{"type": "nothing"}', json_kind, 422, "Failed to deserialize the JSON body"),
        ("/info", '{"type": "meta", "more": 1} rest', json_kind, 200, "universe"),
        ("/info", '{"type": "l2Book", "coin": "NONE"}', json_kind, 200, "null"),
        ("/info", '{"type": "l2Book", "coin": "BTC", "nSigFigs": 6}', json_kind, 500, "null"),
        ("/info", '{"type": "openOrders", "user": 7}', json_kind, 422, "user"),
        ("/exchange", good + "trailing", json_kind, 200, '"ok"'),
        ("/exchange", good.replace('"nonce"', '"nunce"'), json_kind, 422, "unknown field `nunce`"),
        ("/exchange", acted({"type": "unheard"}, 1), json_kind, 422, "unknown variant"),
        ("/exchange", acted({**NOOP, "extra": 1}, 2), json_kind, 422, "unknown field `extra`"),
        ("/exchange", acted(numeric, 3), json_kind, 422, "orders[0].p"),
        ("/nowhere", "{}", json_kind, 404, ""),
    ]
    for path, content, kind, status, text in rows:
        answer = post(hyperliquid, path, content, kind)
        assert (answer.status_code, text in answer.text) == (status, True), (content, answer.text)
    assert post(hyperliquid, "/exchange", good).json()["response"].startswith("Invalid nonce: duplicate")


@FUNDED
def test_a_signature_for_the_other_network_is_told_apart_from_an_unknown_one(
    hyperliquid: LocalExchange, capsys: pytest.CaptureFixture[str]
) -> None:
    now = hyperliquid.state()["now"]
    answer = post(hyperliquid, "/exchange", json.dumps(signed(NOOP, now, mainnet=True))).json()
    assert answer == {"status": "err", "response": "Mainnet and testnet require different signature."}
    body = signed(NOOP, now) | {"nonce": now + 1}
    text = post(hyperliquid, "/exchange", json.dumps(body)).json()["response"]
    assert text.startswith("User or API Wallet 0x") and text.endswith(" does not exist.")
    broken = signed(NOOP, now) | {"signature": {"r": "0x0", "s": "0x0", "v": 27}}
    assert post(hyperliquid, "/exchange", json.dumps(broken)).json()["response"] == "Unable to recover signer."
    said = capsys.readouterr()
    assert "start the exchange with --network mainnet" in said.out + said.err


@pytest.mark.parametrize("form", ["canonical", "as_sent"])
def test_a_body_in_another_form_is_accepted_when_the_signature_covers_the_canonical_form(
    form: str, shared: Path
) -> None:
    """Each row of the wrong inputs, as a request: with `as_sent` the exchange names the address that the row gives."""
    from tests.local_exchange.exchanges import Venue

    file = shared / "data" / "hyperliquid" / "signing" / "wrong_inputs.json"
    if not file.exists():
        pytest.skip("the signing vectors are not here")
    for row in json.loads(file.read_text())["vectors"]:
        network = "mainnet" if row["is_mainnet"] else "testnet"
        venue = Venue(network=network, switches={"signed_form": form}, users=())
        known = venue.service.read(
            {
                "action": row["action"],
                "nonce": row["nonce"],
                "signature": row["signature"],
                "vaultAddress": row["vaultAddress"],
                "expiresAfter": row["expiresAfter"],
            }
        )
        same = row["what_is_wrong"] in (
            "trailing zero in price",
            "keys of the order in another order",
            "grouping before orders",
        )
        expected = "0x14791697260e4c9a71f18484c9f997b308e59325" if same and form == "canonical" else row["recovers_to"]
        assert known.signer == expected, row["what_is_wrong"]


@FUNDED
def test_the_sdk_trades_with_only_its_address_changed(hyperliquid: LocalExchange) -> None:
    hyperliquid.control("advance", ms=0)
    info = Info(hyperliquid.base_url, skip_ws=True)
    assert info.user_state(ADDRESS)["marginSummary"]["accountValue"] == "10000.0"
    exchange = RealClock(WALLET, hyperliquid.base_url)
    exchange.now = hyperliquid.state()["now"]
    with exchange:
        status = exchange.order("BTC", True, 0.01, 99_000, {"limit": {"tif": "Gtc"}}, cloid=Cloid.from_int(7))
        oid = status["response"]["data"]["statuses"][0]["resting"]["oid"]
        assert info.query_order_by_oid(ADDRESS, oid)["order"]["status"] == "open"
        assert info.query_order_by_cloid(ADDRESS, Cloid.from_int(7))["order"]["order"]["oid"] == oid
        modified = exchange.modify_order(oid, "BTC", True, 0.02, 98_000, {"limit": {"tif": "Gtc"}})
        new = modified["response"]["data"]["statuses"][0]["resting"]["oid"]
        assert new != oid and info.open_orders(ADDRESS)[0]["oid"] == new
        assert exchange.cancel("BTC", new)["response"]["data"]["statuses"] == ["success"]
        assert exchange.update_leverage(10, "BTC", is_cross=True)["status"] == "ok"
        filled = exchange.market_open("BTC", True, 0.02)["response"]["data"]["statuses"][0]["filled"]
        assert filled["totalSz"] == "0.02"
        stop = {"trigger": {"triggerPx": 95_000, "isMarket": True, "tpsl": "sl"}}
        exchange.order("BTC", False, 0.02, 90_000, stop, reduce_only=True)
        hyperliquid.price("BTC", 94_900)
        assert info.user_state(ADDRESS)["assetPositions"] == []
        agent_answer, key = exchange.approve_agent("bot")
        assert agent_answer["status"] == "ok"
        agent = RealClock(eth_account.Account.from_key(key), hyperliquid.base_url, account_address=WALLET.address)
        agent.now = exchange.now + 1_000
        with agent:
            assert agent.order("ETH", True, 0.1, 2_900, {"limit": {"tif": "Alo"}})["status"] == "ok"
    assert [row["coin"] for row in info.open_orders(ADDRESS)] == ["ETH"]


class RealClock(Exchange):  # type: ignore[misc]
    """The SDK's class, whose nonces follow the exchange's manual clock."""

    now = 0

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("hyperliquid.exchange.get_timestamp_ms", self.tick)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def tick(self) -> int:
        self.now += 1
        return self.now


@FUNDED
def test_control_says_what_is_wrong_with_a_command(hyperliquid: LocalExchange) -> None:
    for path, content, text in (
        ("deposit", '{"address": "me", "usd": "1"}', "address is 0x and 40 hexadecimal digits, not 'me'"),
        ("deposit", f'{{"address": "{ADDRESS}", "usd": "-1"}}', "usd is at least 0.000001"),
        ("price", '{"coin": "NONE", "px": "1"}', "coin is one of BTC, ETH"),
        ("price", '{"coin": "BTC", "px": "1.55"}', "px of BTC has at most 1 decimals"),
        ("price", '{"coin": "BTC", "px": 1.5}', "px is a positive decimal as text"),
        ("trade", '{"coin": "BTC", "side": "buy"}', "side is B (buys) or A (sells)"),
        ("advance", '{"ms": -1}', "ms is a whole number of milliseconds"),
        ("switch", '{"name": "trigger_oid", "value": "other"}', "switch trigger_oid is same or new, not 'other'"),
        ("switch", '{"name": "none", "value": "x"}', "there is no switch 'none'; there are agent_replaced"),
        ("fault", '{"point": "reply_out", "kind": "explode"}', "kind at reply_out is one of late"),
        ("fault", '{"point": "reply_out", "kin": "late"}', "a fault has the fields point, kind"),
        ("nothing", "{}", "there is no command 'nothing'; there are deposit"),
        ("advance", "[]", "must be a JSON object"),
        ("advance", "{", "not JSON"),
    ):
        answer = post(hyperliquid, f"/control/{path}", content)
        assert answer.status_code == 400
        assert text in answer.json()["error"], answer.text


LOCAL = ("exchange", "local", "--port", "0")


def start(db: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bot",
            *LOCAL,
            "--clock",
            "manual",
            "--prices",
            "held",
            "--json",
            "--db",
            str(db),
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)["baseUrl"]


def test_kill_9_keeps_what_a_client_was_told(tmp_path: Path) -> None:
    db = tmp_path / "exchange.db"
    process, url = start(db)
    try:
        httpx.post(f"{url}/control/deposit", json={"address": ADDRESS, "usd": "10000"}, trust_env=False)
        now = httpx.post(f"{url}/control/advance", json={"ms": 5_000}, trust_env=False).json()["now"]
        order = {"a": 0, "b": True, "p": "100100", "s": "0.01", "r": False, "t": {"limit": {"tif": "Ioc"}}}
        body = signed({"type": "order", "orders": [order], "grouping": "na"}, now)
        first = httpx.post(f"{url}/exchange", json=body, trust_env=False).json()
        assert "filled" in first["response"]["data"]["statuses"][0]
        query = {"type": "userFills", "user": ADDRESS}
        fills = httpx.post(f"{url}/info", json=query, trust_env=False).json()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process, url = start(db)
        assert httpx.post(f"{url}/info", json=query, trust_env=False).json() == fills
        again = httpx.post(f"{url}/exchange", json=body, trust_env=False).json()
        assert again["response"] == f"Invalid nonce: duplicate nonce {now}"
    finally:
        process.kill()
        process.communicate()
    other = subprocess.run(
        [sys.executable, "-m", "bot", *LOCAL, "--db", str(db), "--seed", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 4
    assert "the database was made with" in other.stderr and "use the same, or another file" in other.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--switch", "trigger_oid=other"], "switch trigger_oid is same or new"),
        (["--prices", "nothing"], "must be simulated, held, or COIN=FILE"),
        (["--prices", "BTC=/nowhere.csv"], "cannot be read"),
        (["--clock", "0.1x"], "is not a clock"),
        (["--db", "/nowhere/x.db"], "cannot be used as the database"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_a_wrong_option_is_one_clear_error(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    from bot.cli.app import call

    assert call(["exchange", "local", "--port", "0", *options]) != 0
    said = capsys.readouterr().err
    assert text in " ".join(said.split()) and "Traceback" not in said


def test_a_candle_file_names_the_line_of_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bot.cli.app import call

    file = tmp_path / "candles.csv"
    for content, text in (
        ("ts,open,high,low\n", "the first line lacks the columns close"),
        ("ts,open,high,low,close\n1,1,2,1,x\n", f"{file}:2: not a plain decimal number"),
        ("ts,open,high,low,close\n1,1,2,1.5,1\n", f"{file}:2: low <= open"),
        ("ts,open,high,low,close\n", "has no candle"),
    ):
        file.write_text(content)
        assert call(["exchange", "local", "--port", "0", "--prices", f"BTC={file}"]) == 4
        assert text in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"clock": "never"}, "clock is 'real', 'manual'"),
        ({"colour": 1}, "has no argument 'colour'"),
        ({"network": "moon"}, "network is 'testnet' or 'mainnet'"),
        ({"switches": {"a": "b"}}, "there is no switch 'a'"),
    ],
)
def test_a_wrong_argument_of_the_mark_is_named(given: dict[str, Any], text: str) -> None:
    from bot.testing.hyperliquid import exchange_options

    with pytest.raises((TypeError, ValueError), match=text):
        exchange_options((), given)
