"""The compiled screen: the trades of a strategy with `signals`, by one function that numba compiles. No daemon and no
venue run.

It may import backtests and everything below them. `markets.py` says what the screen cannot do. Start with `screen.py`:

- `arithmetic.py` has exact products in 64 bits; `kernel.py` applies the venue's rules to one market; both are compiled
where numba is installed.
- `markets.py` makes the kernel's input from candles, the listing and the signals; `screen.py` runs it and makes trades
and figures of its output.
"""
