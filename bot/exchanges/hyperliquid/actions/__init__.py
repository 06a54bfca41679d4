"""Actions at Hyperliquid: their wire form, signatures and budget, and the sender that puts them together.

`form` and `budget` are pure. `signing` alone imports the official SDK, of which it uses the signing functions. All of
it runs inside the link process, for the actions that the service commits.
"""
