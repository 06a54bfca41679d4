"""`bot sandbox` runs the trading service alone."""
