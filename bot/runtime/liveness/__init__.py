"""Proof that the daemon works: heartbeat, watchdog, clocks, and the lock that one account has one daemon.

Start with `heartbeat_rule.py` (pure). `heartbeat_process.py` is the process that sends heartbeats; `progress_stamp.py`
permits them.
"""
