"""Short ways to write a fill."""

from __future__ import annotations

from bot.exchanges.protocol import ExecutionReport


def report(before: int, size: int, trade_id: int, at_ms: int = 1_000, market: str = "BTC") -> ExecutionReport:
    return ExecutionReport(
        market, at_ms, trade_id, str(trade_id), None, size > 0, abs(size), 10**13, 0, "USDC", before, True
    )
