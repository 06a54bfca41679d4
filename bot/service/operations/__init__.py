"""Every operation of the interface as one synchronous method, the same for REST, MCP and backtests.

Start with `operations.py`; `executor.py` is the one way in which a command becomes an answer, idempotency included."""
