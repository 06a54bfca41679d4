"""What a service manager is told, over the socket that it names: READY, STATUS, STOPPING. Nothing happens where there is none."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> bool:
    """Send one state to $NOTIFY_SOCKET ("READY=1", "STATUS=...", "STOPPING=1"); False when nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.sendall(message.encode())
        except OSError:
            return False
    return True
