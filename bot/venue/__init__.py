"""The venue: one pure machine, `apply(state, command, now_ms) -> (answer, events)`. No clock, no I/O, no chance.

Read in this order: `state` (what the venue knows), `commands` (what a caller may ask), `events` (what happened), `apply` (the one
entry point), `quote` (what an order would do), `orders` (what it does), `matching` (which orders a price meets), `ledger` (money and margin).

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
