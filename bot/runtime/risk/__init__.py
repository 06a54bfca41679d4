"""Risk checks between a strategy and the journal: an approved order, or a refusal with its reason.

Start with `risk_engine.py` and its table `RULES`. The checks are pure: they read the account state, send nothing, write
nothing.
"""
