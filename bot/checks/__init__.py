"""Checks of a whole config before anything starts: its strategies and their params, its markets, its candle files, its
guardians.

It may import the daemon (`runtime`) and the service, because a config is for both. Start with `config_check.py`.
`strategy_check.py` calls a strategy on generated bars.
"""
