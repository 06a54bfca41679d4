"""What the daemon decides on, and in which order.

Start with `bar_queue.py`: the closed bars that wait for a decision.
"""
