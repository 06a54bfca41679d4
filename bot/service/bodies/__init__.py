"""Venue state and events in the fields of the interface. Reads only.

Start with `account_bodies.py`."""
