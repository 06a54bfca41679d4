"""The results of a run: trades, equity, statistics, the folder on disk.

Start with `run_writer.py` (the folder) and `trade_ledger.py` (round trips). `run_reader.py` reads what was written."""
