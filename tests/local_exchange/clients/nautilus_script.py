"""NautilusTrader's native node on the local exchange, with only its addresses changed: a market order, two resting
orders, and its own shutdown.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from decimal import Decimal

from nautilus_trader.core import nautilus_pyo3 as nautilus

URL = sys.argv[1]
WS = URL.replace("http", "ws") + "/ws"
KEY = "0x" + "01" * 32
SECONDS = 8

network = nautilus.HyperliquidEnvironment.TESTNET
trader, account = nautilus.TraderId("TESTER-001"), nautilus.AccountId("HYPERLIQUID-001")
data = nautilus.HyperliquidDataClientConfig(
    environment=network, private_key=KEY, base_url_ws=WS, base_url_http=f"{URL}/info"
)
execution = nautilus.HyperliquidExecClientConfig(
    private_key=KEY,
    environment=network,
    base_url_ws=WS,
    base_url_http=f"{URL}/info",
    base_url_exchange=f"{URL}/exchange",
    include_builder_attribution=False,
)
builder = nautilus.LiveNode.builder("LOCAL", trader, nautilus.Environment.LIVE)
builder = builder.add_data_client(None, nautilus.HyperliquidDataClientFactory(), data)
factory = nautilus.HyperliquidExecFactoryConfig(trader, account, execution)
builder = builder.add_exec_client(None, nautilus.HyperliquidExecutionClientFactory(), factory)
node = builder.with_delay_post_stop_secs(2).build()
tester = nautilus.ExecTesterConfig(
    strategy_id=nautilus.StrategyId("EXEC-001"),
    instrument_id=nautilus.InstrumentId.from_str("BTC-USD-PERP.HYPERLIQUID"),
    client_id=nautilus.ClientId("HYPERLIQUID"),
    order_qty=nautilus.Quantity.from_str("0.01"),
    open_position_on_start_qty=Decimal("0.02"),
    open_position_on_first_quote=True,
    enable_limit_buys=True,
    enable_limit_sells=True,
    tob_offset_ticks=500,
    use_post_only=True,
    cancel_orders_on_stop=True,
    close_positions_on_stop=True,
)
node.add_builtin_strategy("ExecTester", tester)


def stop() -> None:
    time.sleep(SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=stop, daemon=True).start()
node.run()
