"""What was decided, sent and learned, on disk before the next step. SQLite, one writer.

Start with `journal.py` and `schema.py`. `failover.py` goes on in memory when the disk fails; `queries.py` reads for people."""
