"""The strategies of a run: loaded, called with a time limit, quarantined when they fail.

Start with `host.py`; `instance.py` is one strategy with its view and its durable state. It knows nothing of execution.
"""
