"""Compares the service's snapshot with the account state: named drifts, and one repair for each.

Start with `reconciler.py`. `protection.py` keeps a stop under each position and the configured guardians armed (`guardians.py`).
`key_recovery.py` and `foreign_activity.py` tell our orders from those of others. `context.py` says what all of them use of the kernel.
"""
