"""`bot data`: candles for backtests."""
