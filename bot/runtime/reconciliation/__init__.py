"""The service's snapshot against the mirror: named drifts, and one repair for each.

Start with `reconciler.py`. `guardians.py` keeps the configured guardians
armed, `key_recovery.py` and `foreign_activity.py` tell our orders from those of others."""
