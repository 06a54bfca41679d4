"""The checks of `bot doctor`: each reads what it needs and yields findings. Start with `findings.py`."""
