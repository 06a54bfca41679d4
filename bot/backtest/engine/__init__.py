"""The daemon's kernel over candles under a manual clock, as fast as it goes.

Start with `driver.py`: `BacktestSession` runs a backtest. `slot_path.py` moves through the bars, `fast_path.py` does so
for one market, `stepper.py` runs the kernel's passes. `simulated_exchange.py` is the service's state machine without
disk; `local_port.py` connects it to the kernel. It may import `data`, not `results`.
"""
