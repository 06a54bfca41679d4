"""The wire form: signatures, typed actions, answers, info requests and channels.

No I/O; time is an argument. Start with `requests`.
"""
