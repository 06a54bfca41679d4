"""Sources of real prices: what a source offers, how it is found, and the sources ccxt and yfinance. Start with
`source.py`.

A source is a plug-in of the entry point group `bot.market_data`. ccxt runs in a process of its own (`ccxt_feeder.py`).
This package imports neither the service nor the daemon, and it loads no exchange library into them.
"""
