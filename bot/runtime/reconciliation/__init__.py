"""Compares the service's snapshot with the account state: named drifts, and one repair for each.

Start with `comparison.py` (one comparison) and `reconciler.py` (drifts and repairs). `protection.py` keeps a stop under
each position and the configured guardians armed (`guardians.py`). `target_orders.py` places the orders of a bracket's
targets. `key_recovery.py` and `foreign_review.py` tell our orders from those of others. `context.py` holds the parts
that all of them work on.
"""
