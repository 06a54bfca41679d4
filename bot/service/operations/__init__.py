"""Every operation of the interface as one synchronous method, the same for REST, MCP and backtests.

Start with `operations.py`; `executor.py` runs every command once, with idempotency."""
