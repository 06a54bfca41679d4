"""A local exchange in Hyperliquid's wire form, for tests of trading bots: clients of Hyperliquid use it with only their
address changed.

`engine` holds the rules (no I/O; time is an argument), `wire` translates requests and answers (no I/O), `server` holds
sockets, clock and file. Start with `engine/state.py`, then `wire/requests.py`. Needs the extra `exchange`.

The only packages of bot below it are venue (below its quote, through `engine/venue_rules.py`), clock, errors, files,
logs, money and words. Only `cli` and `testing` import it, so that a client of the exchange can never share its code.
"""
