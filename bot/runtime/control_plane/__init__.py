"""What an operator asks of a running daemon, and the answers: `bot status`, `pause`, `reload`, metrics.

Start with `routes.py` (the requests of the control socket) and `commands.py` (what changes the daemon). `server.py` is the
socket, `mailbox.py` runs changes between two passes. It reads the kernel; the kernel never imports it."""
