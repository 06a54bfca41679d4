"""Orders from the preview to the fill: what an order would do, its plan, its execution and its end.

Start with `preview`.
"""
