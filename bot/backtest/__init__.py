"""Backtests: the daemon's kernel over candles in simulated time, with their data, results, reports and replay.

It may import the daemon (`runtime`) and the service; it holds no rule of trading. Start with `backtest.py`, then `engine/driver.py`."""
