"""The venue as a pure function: `apply(state, command, now_ms) -> (answer, events)`. It reads no clock, does no I/O and draws no random numbers.

Read in this order: `state` (data), `commands` (requests of callers), `events` (results), `apply` (the entry point), `quote` (what an order
would do), `orders` (its execution), `matching` (orders that a price reaches), `ledger` (money and margin).

Each line imports only from the lines below it:

    apply
    guardian_commands guardian_deadlines
    matching plans settlement
    orders guardian_actions liquidation
    exits, then order_fills, then open_orders guardian_lifecycle, then protection
    quote suggestion, then quote_protection, quote_draft, order_margin brackets, order_sizes, then limits ledger guardians
    drawdown_floors funding index book quiet_band cron nav outcome
    pages, codec, then commands state events text_set
"""
