"""Research over many backtests: sweeps of params, on one machine or a cluster, and what their results say.

It may import backtests and everything below them; of the daemon and the service it knows nothing besides. Start with
`sweep.py`:

- `space.py` reads which params to try; `trials.py` runs one backtest of them; `runners.py` runs many, in processes here
or on a Dask cluster.
- `study.py` keeps the trials in Optuna's storage; `ranking.py` reads them; `sweep_page.py` draws them.
- `holdout.py` keeps the last part of the data from the trials and counts the looks at it.
- `what_if/` plays the real history of an account again under other guardians; it has no trials of a study.
- `walk_forward.py` sweeps one window after another; `overfitting.py` says how sure one can be of the best.
"""
