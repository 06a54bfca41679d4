"""The report of a run: figures that need only the stored results, the page, and the comparison of two runs.

Start with `page.py`, which puts the sections together. `summary.py`, `derived.py`, `benchmark.py`, `risk_statistics.py`
and `trade_statistics.py` compute; `svg.py`, `price_chart.py` and `tables.py` draw. It imports the results of backtests
and never the engine.
"""
