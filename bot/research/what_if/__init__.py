"""What another setting of a guardian would have changed in the real history of an account.

Start with `history.py`: the requests that reached the service (`recorded_requests.py`), with the prices of that time.
`setting.py` reads and applies the settings, `account_replay.py` gives the requests to the venue once for each,
`comparison.py` says what changed.
"""
