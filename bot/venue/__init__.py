"""The venue: one pure machine, `apply(state, command, now_ms) -> (answer, events)`. No clock, no I/O, no chance.

Read in this order: state (what is known), commands (what can be said), events (what happened), apply (the door), quote (what an order
would do), orders (what it does), matching (what a price meets), ledger (what it costs), protection, acting, liquidation, funding;
index, calm and book answer "where is the next thing"; codec writes it all down.
"""
