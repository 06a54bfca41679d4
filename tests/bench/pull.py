"""`bot data pull` of a simulated year of minutes for several markets from a local exchange: candles a second, and
memory after each market.

    python -m tests.bench.pull [MARKETS [DAYS]]

ccxt's rate limit is off at a local exchange: a real pull is as fast as the exchange allows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from bot.backtest.data.history import Pull, PullTarget, WantedCandles
from bot.backtest.data.store import Store
from bot.client.names import run_unheld
from bot.clock import DAY_MS, SystemClock
from bot.market_data.ccxt_source import CcxtSource
from bot.market_data.symbols import mapped
from tests.market_data.exchange import Exchange, Series, minutes, served

# 2024-01-01
START_MS = 1_704_067_200_000


def rss_mb() -> float:
    """The memory of this process, without the exchange's, which is another."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def pulled(coins: list[str], until_ms: int, store: Path) -> None:
    begun, rows = time.monotonic(), 0
    async with CcxtSource("binance") as source:
        instruments = await source.instruments(print)
        print(f"   start  memory {rss_mb():6.1f} MB")
        for coin in coins:
            since = time.monotonic()
            wanted = WantedCandles(mapped(coin, instruments, source.name), "1m", START_MS, until_ms)
            peak = 0.0

            def show(_progress: object) -> None:
                nonlocal peak
                peak = max(peak, rss_mb())

            done = await Pull(source, wanted, PullTarget(Store(store), SystemClock())).run(print, show)
            assert done.rows == (until_ms - START_MS) // 60_000, done
            rows += done.rows
            pace = done.rows / (time.monotonic() - since)
            print(
                f"{coin:>8}  {done.rows:>9,} candles  {pace:>8,.0f} a second  highest memory {peak:6.1f} MB", flush=True
            )
    print(
        f"   total  {rows:>9,} candles  {rows / (time.monotonic() - begun):>8,.0f} a second  memory now"
        f" {rss_mb():6.1f} MB"
    )


def serve(coins: list[str], days: int) -> tuple[int, str]:
    """The process of the exchange and its address."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        exchange = Exchange(START_MS + days * DAY_MS + 3_600_000)
        one = Series(minutes(days * 1_440, START_MS))
        exchange.futures |= {f"{coin}USDT": one for coin in coins}
        with served(exchange) as url:
            os.write(writer, url.encode())
            os.close(writer)
            while True:
                time.sleep(60)
    os.close(writer)
    with os.fdopen(reader) as ready:
        return child, ready.read()


def main() -> None:
    markets, days = (int(text) for text in (*sys.argv[1:], *("10", "365")[len(sys.argv) - 1 :]))
    # made by `make test`
    markets_python = Path(sys.prefix) / "markets" / "bin" / "python"
    if markets_python.exists():
        os.environ.setdefault("BOT_MARKETS_PYTHON", str(markets_python))
    coins = [f"COIN{n}" for n in range(markets)]
    child, os.environ["BOT_MARKETS_URL"] = serve(coins, days)
    try:
        with tempfile.TemporaryDirectory() as store:
            run_unheld(pulled(coins, START_MS + days * DAY_MS, Path(store)))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
