"""`bot convert freqtrade`: writes a strategy of this project from a file of another program, which is never executed.

Start with `strategy_reader.py`, which reads the class. `frame_reader.py` translates its methods, `library_calls.py` has
the indicators, `strategy_text.py` writes the files.
"""
