"""The daemon's kernel over candles under a manual clock, as fast as it goes.

Start with `driver.py`. `simulated_exchange.py` is the service's state machine without disk; `local_port.py` connects the two."""
