"""Drills: the daemon's kernel with its real journal on the service's venue, in simulated time, while requests, prices
and the daemon itself fail.

Start with `world.py`: a `World` runs the daemon under the faults of one seed. `faults.py` draws the faults,
`drill_port.py` applies those of requests, over the operations of `service_port.py`, and `market_faults.py` those of
prices. `judgment.py` compares the venue's own events with the journal afterwards. `drill.py` runs many worlds. It may
import what `backtest` may.
"""
