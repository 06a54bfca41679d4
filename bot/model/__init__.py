"""Plain values that the venue, the service and the daemon share. It does no I/O and imports nothing of the package."""
