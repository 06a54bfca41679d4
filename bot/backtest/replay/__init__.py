"""Runs a recorded stretch again and names one cause for each difference. Start with `comparison.py`."""
