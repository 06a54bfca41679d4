"""The shell of the venue: everything that a service needs and that rules do not.

Read in this order: `machine` (state, log, prices and clock behind one door; the only caller of `venue.apply`), `operations`
(one method an operation of the interface), `rest` (explicit routes over them), `edge` (what every answer has), `host` (the
composition root). `views` writes venue state for the wire, `log` makes commands durable, `prices` drives the markets.

Nothing here is imported by the daemon: `wire`, `venue` and `service` could be lifted out as they are.
"""
