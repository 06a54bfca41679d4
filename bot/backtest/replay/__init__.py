"""A recorded stretch run again, and one cause for everything that differs. Start with `comparison.py`."""
