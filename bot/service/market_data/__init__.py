"""Markets and their prices: simulated, recorded or pushed; candles, trading hours, event markets.

Start with `price_feed.py`. Nothing here applies a price; the state machine does."""
