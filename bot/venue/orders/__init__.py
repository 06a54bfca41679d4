"""Orders from the quote to the fill: what an order would do, its plan, its execution and its end.

Start with `quote`.
"""
