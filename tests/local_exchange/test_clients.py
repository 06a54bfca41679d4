"""Clients that nobody here wrote, with only their address changed: the official SDK, ccxt, NautilusTrader."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eth_account
import pytest
from hyperliquid.exchange import Exchange
from hyperliquid.info import Info
from hyperliquid.utils.types import Cloid

from bot.testing.hyperliquid import LocalExchange
from tests.documents import ROOT

WALLET = eth_account.Account.from_key("0x" + "01" * 32)
ADDRESS = WALLET.address.lower()
SCRIPTS = Path(__file__).parent / "clients"
GTC: Any = {"limit": {"tif": "Gtc"}}
ON = pytest.mark.hyperliquid(clock="real", accounts={ADDRESS: "10000"})


class Desk:
    """The SDK's two classes on one local exchange."""

    def __init__(self, local: LocalExchange) -> None:
        self.local = local
        self.info = Info(local.base_url, skip_ws=True)
        self.exchange = Exchange(WALLET, local.base_url)

    def statuses(self, answer: Any) -> list[Any]:
        assert answer["status"] == "ok", answer
        found: list[Any] = answer["response"]["data"]["statuses"]
        return found

    def resting(self, answer: Any) -> int:
        return int(self.statuses(answer)[0]["resting"]["oid"])


def order(desk: Desk) -> None:
    oid = desk.resting(desk.exchange.order("ETH", True, 0.2, 2_000, GTC))
    assert desk.info.query_order_by_oid(ADDRESS, oid)["order"]["status"] == "open"
    assert desk.statuses(desk.exchange.cancel("ETH", oid)) == ["success"]


def order_with_cloid(desk: Desk) -> None:
    cloid = Cloid.from_str("0x00000000000000000000000000000001")
    desk.resting(desk.exchange.order("ETH", True, 0.2, 2_000, GTC, cloid=cloid))
    assert desk.info.query_order_by_cloid(ADDRESS, cloid)["order"]["order"]["cloid"] == cloid.to_raw()
    assert desk.statuses(desk.exchange.cancel_by_cloid("ETH", cloid)) == ["success"]


def bulk_orders(desk: Desk) -> None:
    rows = [
        {"coin": "ETH", "is_buy": True, "sz": 0.1, "limit_px": px, "order_type": GTC, "reduce_only": False}
        for px in (2_000, 2_100, 3_300)
    ]
    assert [next(iter(one)) for one in desk.statuses(desk.exchange.bulk_orders(rows))] == [
        "resting",
        "resting",
        "filled",
    ]
    cancels = [{"coin": "ETH", "oid": row["oid"]} for row in desk.info.open_orders(ADDRESS)]
    assert desk.statuses(desk.exchange.bulk_cancel(cancels)) == ["success", "success"]


def modify(desk: Desk) -> None:
    cloid = Cloid.from_int(9)
    oid = desk.resting(desk.exchange.order("ETH", True, 0.2, 2_000, GTC, cloid=cloid))
    new = desk.resting(desk.exchange.modify_order(oid, "ETH", True, 0.1, 2_100, GTC, cloid=cloid))
    last = desk.resting(desk.exchange.modify_order(cloid, "ETH", True, 0.1, 2_105, GTC))
    assert [row["oid"] for row in desk.info.open_orders(ADDRESS)] == [last] and last != new


def market_order(desk: Desk) -> None:
    assert desk.statuses(desk.exchange.market_open("ETH", True, 0.05))[0]["filled"]["totalSz"] == "0.05"
    assert desk.statuses(desk.exchange.market_close("ETH"))[0]["filled"]["totalSz"] == "0.05"
    assert desk.info.user_state(ADDRESS)["assetPositions"] == []
    assert len(desk.info.user_fills(ADDRESS)) == 2


def stop_and_target(desk: Desk) -> None:
    desk.exchange.market_open("ETH", True, 0.05)
    stop: Any = {"trigger": {"triggerPx": 2_800, "isMarket": True, "tpsl": "sl"}}
    target: Any = {"trigger": {"triggerPx": 3_200, "isMarket": True, "tpsl": "tp"}}
    desk.resting(desk.exchange.order("ETH", False, 0.05, 2_600, stop, reduce_only=True))
    desk.resting(desk.exchange.order("ETH", False, 0.05, 3_000, target, reduce_only=True))
    desk.local.price("ETH", 3_210)
    assert desk.info.user_state(ADDRESS)["assetPositions"] == []
    assert desk.info.frontend_open_orders(ADDRESS) == [], "the stop no longer reduces"


def leverage(desk: Desk) -> None:
    assert desk.exchange.update_leverage(21, "ETH")["status"] == "ok"
    assert desk.exchange.update_leverage(10, "ETH", is_cross=False)["status"] == "ok"
    desk.exchange.market_open("ETH", True, 0.05)
    assert desk.exchange.update_isolated_margin(10, "ETH")["status"] == "ok"
    used = desk.info.user_state(ADDRESS)["assetPositions"][0]["position"]
    assert used["leverage"]["type"] == "isolated" and float(used["marginUsed"]) > 24


def agent(desk: Desk) -> None:
    answer, key = desk.exchange.approve_agent("second")
    assert answer["status"] == "ok"
    other = Exchange(eth_account.Account.from_key(key), desk.local.base_url, account_address=WALLET.address)
    oid = desk.resting(other.order("ETH", True, 0.2, 2_000, GTC))
    assert desk.statuses(desk.exchange.cancel("ETH", oid)) == ["success"]
    assert desk.info.extra_agents(ADDRESS)[0]["name"] == "second"


def builder_fee(desk: Desk) -> None:
    builder = "0x" + "8c" * 20
    assert desk.exchange.approve_builder_fee(builder, "0.001%")["status"] == "ok"
    filled = desk.exchange.market_open("ETH", True, 0.05, builder={"b": builder, "f": 1})
    assert "filled" in desk.statuses(filled)[0]
    assert float(desk.info.user_fills(ADDRESS)[0]["builderFee"]) > 0


def transfers(desk: Desk) -> None:
    other = "0x" + "77" * 20
    assert desk.exchange.usd_transfer(5, other)["status"] == "ok"
    assert desk.exchange.usd_class_transfer(7, False)["status"] == "ok"
    assert desk.exchange.withdraw_from_bridge(2, ADDRESS)["status"] == "ok"
    assert desk.info.user_state(other)["marginSummary"]["accountValue"] == "5.0"
    assert desk.info.spot_user_state(ADDRESS)["balances"][0]["total"] == "7.0"
    updates = desk.info.user_non_funding_ledger_updates(ADDRESS, 0)
    assert [row["delta"]["type"] for row in updates] == [
        "deposit",
        "internalTransfer",
        "accountClassTransfer",
        "withdraw",
    ]


def sub_account(desk: Desk) -> None:
    sub = desk.exchange.create_sub_account("second")["response"]["data"]
    assert desk.exchange.sub_account_transfer(sub, True, 100_000_000)["status"] == "ok"
    trading = Exchange(WALLET, desk.local.base_url, vault_address=sub)
    desk.resting(trading.order("ETH", True, 0.02, 2_000, GTC))
    assert len(desk.info.open_orders(sub)) == 1


def scheduled_cancel(desk: Desk) -> None:
    answer = desk.exchange.schedule_cancel(desk.local.state()["now"] + 10_000)
    assert answer["response"].startswith("Cannot set scheduled cancel time until enough volume traded.")


def referrer(desk: Desk) -> None:
    assert desk.exchange.set_referrer("CODE")["status"] == "ok"
    assert desk.info.query_referral_state(ADDRESS)["referredBy"] is None


def noop_and_expiry(desk: Desk) -> None:
    now = desk.local.state()["now"]
    assert desk.exchange.noop(now)["status"] == "ok"
    assert "duplicate" in desk.exchange.noop(now)["response"]
    desk.exchange.set_expires_after(now - 60_000)
    assert desk.exchange.order("ETH", True, 0.2, 2_000, GTC)["response"] == "Action already expired"


def hip3(desk: Desk) -> None:
    desk.local.deposit(ADDRESS, 500, dex="xyz")
    dexs = ["", "xyz"]
    trading = Exchange(WALLET, desk.local.base_url, perp_dexs=dexs)
    info = Info(desk.local.base_url, skip_ws=True, perp_dexs=dexs)
    desk.resting(trading.order("xyz:GOLD", True, 0.01, 3_900, GTC))
    assert info.open_orders(ADDRESS, dex="xyz")[0]["coin"] == "xyz:GOLD"


EXAMPLES: tuple[Callable[[Desk], None], ...] = (
    order,
    order_with_cloid,
    bulk_orders,
    modify,
    market_order,
    stop_and_target,
    leverage,
    agent,
    builder_fee,
    transfers,
    sub_account,
    scheduled_cancel,
    referrer,
    noop_and_expiry,
    hip3,
)


@ON
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_the_sdk_does_what_its_examples_do(example: Callable[[Desk], None], hyperliquid: LocalExchange) -> None:
    example(Desk(hyperliquid))


@ON
def test_the_sdk_follows_the_streams(hyperliquid: LocalExchange) -> None:
    from queue import Queue

    told: Queue[Any] = Queue()
    info = Info(hyperliquid.base_url)
    try:
        for subscription in (
            {"type": "userFills", "user": ADDRESS},
            {"type": "trades", "coin": "ETH"},
            {"type": "bbo", "coin": "ETH"},
        ):
            info.subscribe(subscription, told.put)
        first = {told.get(timeout=10)["channel"] for _ in range(2)}
        assert first == {"userFills", "bbo"}
        Exchange(WALLET, hyperliquid.base_url).market_open("ETH", True, 0.05)
        channels = {told.get(timeout=10)["channel"] for _ in range(2)}
        assert {"userFills", "trades"} <= channels | {told.get(timeout=10)["channel"]}
    finally:
        info.disconnect_websocket()


def run(python: Path, script: str, local: LocalExchange) -> subprocess.CompletedProcess[str]:
    command = [str(python), str(SCRIPTS / script), local.base_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@ON
def test_ccxt_trades_and_streams(hyperliquid: LocalExchange) -> None:
    python = ROOT / ".venv" / "markets" / "bin" / "python"
    if not python.exists():
        pytest.skip("ccxt is not installed: run `make .venv/markets.stamp`")
    # begins a candle
    hyperliquid.price("BTC", 100_000)
    done = run(python, "ccxt_script.py", hyperliquid)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert done.stdout.startswith("done 4.")


@ON
def test_nautilus_trades(hyperliquid: LocalExchange) -> None:
    """NautilusTrader's native node takes its addresses since 1.230, whose wheels need Python 3.12."""
    python = os.environ.get("BOT_NAUTILUS_PYTHON")
    if python is None:
        pytest.skip("set BOT_NAUTILUS_PYTHON to a Python 3.12 with nautilus_trader>=1.230")
    run(Path(python), "nautilus_script.py", hyperliquid)
    history = [row["status"] for row in hyperliquid.info("historicalOrders", user=ADDRESS)]
    assert history.count("canceled") == 2, "the two resting orders, at its shutdown"
    fills = hyperliquid.info("userFills", user=ADDRESS)
    assert {fill["dir"] for fill in fills} == {"Open Long", "Close Long"}
    assert hyperliquid.info("clearinghouseState", user=ADDRESS)["assetPositions"] == []


def test_the_versions_of_the_clients_are_pinned() -> None:
    pins = (ROOT / "requirements-dev.txt").read_text() + (ROOT / "requirements-markets.txt").read_text()
    assert "hyperliquid-python-sdk==0.24." in pins and "\nccxt==4." in pins
