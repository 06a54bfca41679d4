"""The daemon: it learns what happened at the service, lets the strategies decide on closed bars, and sends their
orders.

Start with `kernel/kernel.py`: recover, one pass, one bar. `daemon.py` builds a daemon from a config, `supervisor.py`
runs pass after pass, and `shutdown.py` ends a run. The packages, from top to bottom; each imports only from those
after it (the contract `runtime-layers` in pyproject.toml):

    control_plane      what an operator asks of a running daemon
    kernel             recover, one pass, one bar; how a kernel is built from a config
    decisions          the bars that wait for a decision
    reconciliation     the service's snapshot against the account state; stops and guardians
    execution          intents on their way to the service
    strategy_host      the strategies and their calls
    risk               the check before each order
    account            positions, orders, owners, profit and loss
    alerts             health and notices
    liveness           heartbeat, locks, clocks
    journal            what is written before anything is sent
    model              values only
    passes             the port to the service, bars, the budget of calls, when the next pass begins

The daemon knows the service by its interface alone.
"""
