"""What ccxt's class does with the local exchange, with only its addresses changed.

Runs under the interpreter that has ccxt: `URL` is the argument.
"""

from __future__ import annotations

import asyncio
import sys

import ccxt.pro

URL = sys.argv[1]
KEY, ADDRESS = "0x" + "01" * 32, "0x1a642f0e3c3af545e7acbd38b07251b3990914f1"
BTC = "BTC/USDC:USDC"


def check(condition: object, *shown: object) -> None:
    if not condition:
        raise SystemExit(f"ccxt {ccxt.__version__}: {shown}")


async def main() -> None:
    options = {"sandboxMode": True, "builderFee": False, "refSet": True}
    exchange = ccxt.pro.hyperliquid({"walletAddress": ADDRESS, "privateKey": KEY, "options": options})
    exchange.urls["api"] = {"public": URL, "private": URL, "ws": {"public": URL.replace("http", "ws") + "/ws"}}
    try:
        await trade(exchange)
        await stream(exchange)
    finally:
        await exchange.close()
    print("done", ccxt.__version__)


async def trade(exchange: ccxt.pro.hyperliquid) -> None:
    markets = await exchange.load_markets()
    check({BTC, "ETH/USDC:USDC"} <= set(markets), list(markets))
    book = await exchange.fetch_order_book(BTC)
    check(book["bids"][0][0] < book["asks"][0][0], book)
    check((await exchange.fetch_ticker(BTC))["last"], "ticker")
    check(len(await exchange.fetch_ohlcv(BTC, "1m")) >= 1, "candles")
    balance = await exchange.fetch_balance()
    check(balance["USDC"]["total"] == 10_000, balance)
    order = await exchange.create_order(BTC, "limit", "buy", 0.01, 90_000, {"clientOrderId": "0x" + "5" * 32})
    found = await exchange.fetch_open_orders(BTC)
    check([one["id"] for one in found] == [order["id"]], found)
    check((await exchange.fetch_order(order["id"], BTC))["status"] == "open", "order")
    edited = await exchange.edit_order(order["id"], BTC, "limit", "buy", 0.02, 89_000)
    await exchange.cancel_order(edited["id"], BTC)
    check(await exchange.fetch_open_orders(BTC) == [], "canceled")
    await exchange.set_leverage(10, BTC, {"marginMode": "cross"})
    await exchange.create_order(BTC, "market", "buy", 0.02, 100_000)
    position = (await exchange.fetch_positions([BTC]))[0]
    check((position["side"], position["contracts"], position["leverage"]) == ("long", 0.02, 10), position)
    stop = {"stopLossPrice": 95_000, "reduceOnly": True}
    await exchange.create_order(BTC, "market", "sell", 0.02, 95_000, stop)
    check(len(await exchange.fetch_open_orders(BTC)) == 1, "the stop")
    trades = await exchange.fetch_my_trades(BTC)
    check((trades[0]["amount"], trades[0]["takerOrMaker"]) == (0.02, "taker"), trades)
    check(len(await exchange.fetch_funding_history(BTC, since=1)) == 0, "funding")


async def stream(exchange: ccxt.pro.hyperliquid) -> None:
    book = await exchange.watch_order_book(BTC)
    check(book["bids"][0][0] < book["asks"][0][0], book)
    orders = asyncio.ensure_future(exchange.watch_orders(BTC))
    trades = asyncio.ensure_future(exchange.watch_my_trades(BTC))
    # nothing says when the subscription is there
    while not orders.done():
        order = await exchange.create_order(BTC, "limit", "buy", 0.01, 90_000)
        await exchange.cancel_order(order["id"], BTC)
    placed = await exchange.create_order_ws(
        BTC, "limit", "sell", 0.02, 99_000, {"timeInForce": "Ioc", "reduceOnly": True}
    )
    check(placed["id"], placed)
    check((await asyncio.wait_for(orders, 10))[-1]["symbol"] == BTC, "watched orders")
    check((await asyncio.wait_for(trades, 10))[-1]["amount"] == 0.02, "watched trades")
    check(await exchange.fetch_positions([BTC]) == [], "closed")


asyncio.run(main())
