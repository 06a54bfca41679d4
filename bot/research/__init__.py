"""Research: many backtests of one config with other params, and what their results say.

    trial      one backtest with other params: its figures and its equity

It may import `backtest`, whose trials it runs; `cli` and `dashboard` may import it. Start with `trial.py`.
"""
