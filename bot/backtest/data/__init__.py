"""Candles: read, checked, generated, stored. Start with `candles.py`, then `quality.py` (what a backtest refuses)."""
