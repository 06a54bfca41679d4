"""Accounts that follow an account at an exchange: the exchange executes, and its reports are booked here.

Every report is a command. It may come late, twice or out of order, and is booked once. The books then equal the
exchange's: `nav.stand_of(account).cash` is its cash at cost, to the last unit.

What an account with an agent wants done there is an action, made by the command that wants it
(`bot/venue/orders/exchange_actions.py`). `action_lifecycle` says when an action is resent, made void and decided;
`action_reports` ends it, and `action_answers` says what the client is told.

Start with `reports` (which reports are new), then `fills`, `money`, `order_reports`, `link_state`.
"""
