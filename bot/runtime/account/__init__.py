"""What the daemon believes the account to be, folded from events, and which strategy owns which part of it.

Start with `account_state.py` (the mirror) and `attribution.py` (fills, fees and profit by strategy). Nothing here sends or writes."""
