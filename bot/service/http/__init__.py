"""HTTP: from bytes to a call of an operation, and back. No rule of trading.

Start with `gateway.py` (headers, credentials, limits, error objects), then `routes_v1.py`."""
