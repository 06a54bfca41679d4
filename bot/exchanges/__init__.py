"""Accounts at exchanges, read only: nothing here can send an order.

`protocol` has the values that every exchange is translated to. A folder for each exchange holds its wire form and
everything else that only that exchange knows. Start with `protocol.py`, then `hyperliquid/form.py`. These packages
never import the local exchange: a misreading of the wire form in shared code would pass every test.
"""
