"""`bot exchange check` and `bot exchange status` against a local exchange on a port, under its faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import eth_account
import pytest
from hyperliquid.exchange import Exchange

from bot.cli.app import call
from bot.errors import Exit
from bot.testing.hyperliquid import LocalExchange

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
KEY = "02" * 32
FUNDED = pytest.mark.hyperliquid(accounts={ADDRESS: "10000"}, clock="real")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "agent"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = call(["exchange", *arguments])
    out, err = capsys.readouterr()
    assert KEY not in out + err and "Traceback" not in out + err
    return code, out, err


@FUNDED
def test_an_account_with_its_agent_passes_the_check(
    hyperliquid: LocalExchange, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--url", hyperliquid.base_url, "--address", WALLET.address)
    code, out, _ = run(capsys, "check", *where, "--agent-key-file", str(key_file), "--json")
    found = json.loads(out)
    assert (code, found["hasFailed"]) == (Exit.ERROR, True)
    assert {one["check"] for one in found["checks"] if one["level"] == "fail"} == {"agent"}

    exchange = Exchange(WALLET, hyperliquid.base_url)
    agent = eth_account.Account.from_key("0x" + KEY).address
    action = {"type": "approveAgent", "agentAddress": agent, "agentName": "bot", "nonce": hyperliquid.state()["now"]}
    from hyperliquid.utils.signing import sign_agent

    signature = sign_agent(WALLET, action, False)
    assert exchange._post_action(action, signature, action["nonce"])["status"] == "ok"

    code, out, _ = run(capsys, "check", *where, "--agent-key-file", str(key_file), "--market", "BTC")
    assert code == Exit.DONE, out
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["ok", name] for name in ("network", "clock", "address", "agent", "mode", "markets")
    ]
    code, out, _ = run(capsys, "check", *where, "--agent-key-file", str(key_file), "--market", "BTTC")
    assert (code, "BTTC is not listed; did you mean BTC?" in out) == (Exit.ERROR, True)


@FUNDED
def test_status_shows_whether_the_link_knows_everything(
    hyperliquid: LocalExchange, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("status", "--url", hyperliquid.base_url, "--address", WALLET.address)
    code, out, _ = run(capsys, *where, "--link")
    lines = out.splitlines()
    assert code == Exit.DONE
    assert lines[-2].startswith("link: in step after ")
    assert lines[-1].startswith("link: ") and " of 1,200 in the last minute, clock difference " in lines[-1]
    code, out, _ = run(capsys, *where, "--link", "--json")
    link = json.loads(out)["link"]
    assert (code, link["state"]["phase"], link["health"]["weight_most"]) == (Exit.DONE, "in_step", 1_200)
    code, out, _ = run(capsys, *where, "--json")
    assert "link" not in json.loads(out)


@FUNDED
def test_status_shows_positions_stops_orders_fills_and_budget(
    hyperliquid: LocalExchange, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--url", hyperliquid.base_url, "--address", ADDRESS)
    exchange = Exchange(WALLET, hyperliquid.base_url)
    code, out, _ = run(capsys, "status", *where)
    assert code == Exit.DONE
    assert "positions: none" in out and "open orders: none" in out

    exchange.order("BTC", True, 0.02, 110_000, {"limit": {"tif": "Ioc"}})
    assert "NO STOP" in run(capsys, "status", *where)[1]
    stop = {"trigger": {"isMarket": True, "triggerPx": 90_000, "tpsl": "sl"}}
    exchange.order("BTC", False, 0.01, 85_000, stop, reduce_only=True)
    assert "90000 for 0.01 only" in run(capsys, "status", *where)[1]
    exchange.order("BTC", False, 0.02, 85_000, stop, reduce_only=True)
    code, out, _ = run(capsys, "status", *where, "--json")
    found = json.loads(out)
    (position,) = found["positions"]
    assert (position["market"], position["size"], len(position["stopIds"])) == ("BTC", "0.02", 2)
    assert set(position["stopIds"]) == {one["id"] for one in found["orders"]}
    assert sum(float(one["size"]) for one in found["fills"]) == pytest.approx(0.02)
    assert found["missingBeforeTradeIds"] == [] and not found["olderFillsMayBeMissing"]
    assert found["budget"]["used"] == 3


@FUNDED
@pytest.mark.parametrize("kind", ["lost", "status_500", "html_502", "status_429"])
def test_a_read_is_repeated_after_a_fault_that_may_pass(
    hyperliquid: LocalExchange, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--url", hyperliquid.base_url, "--address", ADDRESS)
    hyperliquid.fault("request_in", kind, path="/info", count=2)
    assert run(capsys, "status", *where)[0] == Exit.DONE
    hyperliquid.fault("request_in", kind, path="/info", count=3)
    code, out, err = run(capsys, "status", *where)
    assert (code, "as of" in out) == (Exit.TIMEOUT, False)
    assert f"{hyperliquid.base_url}/info clearinghouseState" in err and "try again" in err


@FUNDED
def test_a_dex_of_its_own_is_read_and_an_unknown_one_is_named(
    hyperliquid: LocalExchange, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--url", hyperliquid.base_url, "--address", ADDRESS)
    hyperliquid.deposit(ADDRESS, "77", dex="xyz")
    code, out, _ = run(capsys, "status", *where, "--dex", "xyz", "--json")
    assert (code, json.loads(out)["valueUsd"]) == (Exit.DONE, "77")
    code, _, err = run(capsys, "status", *where, "--dex", "xzy")
    assert (code, "--dex xzy: is not listed; did you mean xyz?" in err) == (Exit.CONFIG, True)


class Answer(BaseHTTPRequestHandler):
    """A server that is no exchange."""

    body = b""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[" * 100_000, b"\xff\xfe", b"NaN", b"{}", b"[1]"])
def test_a_server_that_is_no_exchange_is_an_answer_in_an_unknown_form(
    other_server: str, body: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Answer, "body", body)
    code, out, err = run(capsys, "status", "--url", other_server, "--address", ADDRESS)
    assert (code, out) == (Exit.ERROR, "")
    assert "clearinghouseState" in err and "nothing of this answer is used" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--address", "0x12"), Exit.USAGE, "write 0x and 40 hexadecimal digits"),
        ((), Exit.USAGE, "--address"),
        (("--address", ADDRESS, "--url", "localhost:3001"), Exit.USAGE, "write http://localhost:3001"),
        (("--address", ADDRESS, "--url", "http://me:secret@localhost"), Exit.USAGE, "write http://localhost:3001"),
        (("--address", ADDRESS, "--url", "http://localhost:99999"), Exit.USAGE, "write http://localhost:3001"),
        (("--address", ADDRESS, "--url", "http://localhost/info"), Exit.USAGE, "write http://localhost:3001"),
        (("--address", ADDRESS, "--network", "devnet"), Exit.USAGE, "'testnet', 'mainnet'"),
        (("--address", ADDRESS, "--agent-key-file", "no-such-file"), Exit.CONFIG, "agent key no-such-file"),
        (("--address", ADDRESS, "--url", "https://api.hyperliquid.xyz"), Exit.ERROR, "is mainnet, but --network"),
        (("--address", ADDRESS, "--url", "http://127.0.0.1:9"), Exit.TIMEOUT, "check the network and --url"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, "check", *arguments)
    assert (found, words in out + err) == (code, True), out + err
