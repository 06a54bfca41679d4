"""The report of a run: figures that need only the stored results, the page, and the comparison of two runs.

Start with `page.py`. `summary.py`, `risk_statistics.py` and `trade_statistics.py` compute; `charts.py`,
`price_chart.py` and `tables.py` draw what was computed. It imports the results of backtests and never the engine.
"""
