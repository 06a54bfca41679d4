"""Prices of a real exchange for the embedded service: which markets they feed, and the task that applies them.

Start with `live_prices.py`. It may import the state machine and `bot.market_data`; only the host and the start import
it.
"""
