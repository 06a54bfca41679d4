"""What was decided, sent and learned, on disk before the next step. SQLite, one writer. Knows values of `model` and nothing else of the daemon.

Start with `journal.py`: its parts are `intent_log.py` and `event_log.py`. `opening.py` checks and rebuilds a file; `database.py` writes it, and
`failover.py` goes on in memory while the disk fails. `queries.py`, `order_trace.py` and `round_trips.py` read for people.
"""
