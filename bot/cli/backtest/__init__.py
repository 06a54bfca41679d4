"""`bot backtest`, `report`, `compare`, `replay`."""
