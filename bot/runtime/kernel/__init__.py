"""The kernel: recover, one pass, one bar.

Start with `kernel.py`; `assembly.py` builds one from a config, `upkeep.py` keeps the journal small.
"""
