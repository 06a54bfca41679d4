"""The proof of a day: the daemon's journal is replayed on the service's candles, and each difference gets one cause.

Start with `day_proof.py`. `causes.py` has the closed list of causes; `trend.py` sums up many days. The files of the
proofs are bot/runtime/journal/proof_files.py, because the daemon reads them too.
"""
