"""The venue as a pure function: `apply(state, command, now_ms) -> (answer, events)`. It reads no clock, does no I/O and
draws no random numbers.

Read in this order: `state` (data), `commands` (requests of callers), `events` (results), `apply` (the entry point),
`quote` (what an order would do), `orders` (its execution), `matching` (orders that a price reaches), `ledger` (money
and margin).

The contract `venue-layers` in pyproject.toml lists all modules in the order in which they may import each other.
"""
