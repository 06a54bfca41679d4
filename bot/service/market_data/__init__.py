"""Markets and their prices: simulated, recorded, pushed or live; candles, trading hours, event markets.

Start with `price_feed.py`. Nothing here applies a price; the state machine does."""
