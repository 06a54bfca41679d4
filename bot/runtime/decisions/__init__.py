"""What the daemon decides on: closed bars, timers and events become intents.

Start with `event_consumer.py` (reads the events, one transaction a page) and `intent_builder.py` (signals become
intents, after the risk check). `bar_queue.py` holds the closed bars that wait, `warm_up.py` shows strategies the past,
and `entry_conditions.py` and `pre_send_check.py` say why nothing may be opened now. Imports from reconciliation and
from the packages below it.
"""
