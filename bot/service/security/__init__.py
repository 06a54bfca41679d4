"""Credentials, scopes, rate limits, and secrets at rest.

Start with `auth.py`."""
