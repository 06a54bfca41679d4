"""Accounts that follow an account at an exchange: the exchange executes, and its reports are booked here.

Every report is a command. It may come late, twice or out of order, and is booked once. The books then equal the
exchange's: `nav.stand_of(account).cash` is its cash at cost, to the last unit.

`action_lifecycle` says when an action that is sent to an exchange is resent, made void and decided; no command sends
one yet.

Start with `reports` (which reports are new), then `fills`, `money`, `order_reports`, `link_state`.
"""
