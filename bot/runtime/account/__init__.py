"""The account as the daemon sees it: positions, orders and guardians, and which strategy owns which part of them.

Start with `account_state.py`; `fold.py` changes it by events, `diff.py` compares it with a snapshot. `attribution.py`
has fills, fees and profit by strategy, which `attribution_fold.py` changes by events. `ownership.py` finds owners.
Nothing here sends orders.
"""
