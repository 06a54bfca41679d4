"""The venue as a pure function: `apply(state, command, now_ms) -> (answer, events)`. It reads no clock, does no I/O and
draws no random numbers.

Read in this order: `model.state` (data), `model.commands` (requests of callers), `apply` (the entry point),
`orders.preview` (what an order would do), `orders.orders` (its execution), `triggers.matching` (orders that a price
reaches), `accounting.ledger` (money and margin).

A folder imports only from those after it (the contract `venue-layers` in pyproject.toml):

    apply         one command in, events out
    triggers      what a new price or time sets off: fills, liquidations, settlements, guardians
    exchange      accounts that follow an exchange: its reports are booked, and what it is asked for ends here
    orders        previews, plans, execution and fills
    protection    stops, targets and guardians of a position
    accounting    money, margin, sizes, limits, funding, net asset value
    prices        order book, orders by price, the range in which nothing happens
    storage       state and commands as JSON, packed pages
    identity      sign-ins and webhooks: the service's, kept here for its log
    model         state, commands, numbers, refusals
"""
