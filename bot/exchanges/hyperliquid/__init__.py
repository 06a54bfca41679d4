"""Hyperliquid: its wire form, requests, agents and addresses. Every word of Hyperliquid stands in this folder.

`form` is pure; `transport` sends requests, and `requests` those of a link by rank and within their weight. `account`
reads an account through them, and `checks` judges what was read. `live` and `actions` run inside the link process.
"""
