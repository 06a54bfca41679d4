"""Hyperliquid inside the link process: sockets, and the feeds of markets and of an account.

`subscriptions`, `market_feed`, `candle_record`, `order_watch` and `account_feed` are pure; `connections` and
`account_reader` do the I/O. Start with `exchange.py`, which puts them together.
"""
