"""The rules of the local exchange: orders, triggers, margins, money.

No I/O, no clock; chance comes from the seed. Start with `state`.
"""
