"""The journal: what the daemon decided, sent and learned, on disk before the next step. SQLite, one writer. Imports
values of `model` and nothing else of the daemon.

Start with `journal.py`: its parts are `intent_log.py`, `event_log.py` and `state_store.py`. `opening.py` checks and
rebuilds a file; `database.py` writes it, and `failover.py` goes on in memory while the disk fails. `queries.py`,
`order_trace.py` and `round_trips.py` read for people.
"""
