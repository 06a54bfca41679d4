"""Requests of an operator to a running daemon, and the answers: `bot status`, `pause`, `reload`, metrics.

Start with `routes.py` (the table of the control socket's requests), then `read_routes.py`, `command_routes.py` and
`commands.py` (what changes the daemon). `server.py` is the socket, `mailbox.py` runs changes between two passes. It
reads the kernel; the kernel never imports it.
"""
