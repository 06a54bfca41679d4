"""The daemon: one loop that trusts only what it has written down. It knows the service by its interface alone."""
