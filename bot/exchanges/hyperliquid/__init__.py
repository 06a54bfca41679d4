"""Hyperliquid: its wire form, requests, agents and addresses. Every word of Hyperliquid stands in this folder.

`form`, `money_form` and `order_form` are the wire form, and the `_record` modules keep what was told of an account; all
are pure. `transport` sends requests, and `requests` those of a link by rank and within their weight. `account` reads an
account through them, and `checks` judges what was read. `live` and `actions` run inside the link process.
"""
