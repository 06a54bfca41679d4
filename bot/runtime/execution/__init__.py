"""One intent on its way: plan, confirm, and what each answer means. An intent is on disk before its request leaves.

Start with `order_sender.py`. It asks `entry_wait.py` whether an entry must wait, `outcome.py` what a reply means,
`order_search.py` for an order without a reply, and `outcome_writer.py` to write the end. `execution_engine.py` gives it
the intents: `dispatch.py` chooses them, `in_flight.py` holds those with a request on its way, and `replan.py` asks for
a new plan. `outcome.py`, `dispatch.py` and `replan.py` are pure. Nothing here imports strategies.
"""
