"""Hyperliquid: its wire form, requests, agents and addresses. Every word of Hyperliquid stands in this folder.

`form` and `requests` are pure; `transport` is the only module that opens sockets. `account` reads an account through
them, and `checks` judges what was read.
"""
