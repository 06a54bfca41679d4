"""The venue made durable: a command log, snapshots, replay at the start.

Start with `machine.py`, the only caller of `venue.apply`. `command_log.py` makes acknowledged commands durable."""
