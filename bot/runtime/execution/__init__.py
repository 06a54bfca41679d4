"""One intent on its way: plan, confirm, and what each answer means. An intent is on disk before its request leaves.

Start with `order_sender.py`. `outcome.py` and `replan.py` are pure; `dispatch.py` decides which orders may leave now and
`in_flight.py` holds those that have. Nothing here imports strategies."""
