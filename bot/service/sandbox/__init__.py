"""The sandbox's own control, /sandbox/v1: clock, prices, faults, snapshots, forks. No hosted service has it.

Start with `routes.py`."""
