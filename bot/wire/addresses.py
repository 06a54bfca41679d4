"""Checks the base address of a service. The config and the client use the same check."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

FORM = "an address like https://host[:port]"


def address_problem(text: str) -> str | None:
    """What is wrong with a base address; None if it is good. Allowed: https, or http to this machine, with nothing after the path."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        if "[" in parts.netloc:
            ipaddress.IPv6Address(host or "")
    except ValueError:
        return f"must be {FORM}"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return f"must be {FORM}"
    if not text.isprintable() or any(map(str.isspace, text)) or "\\" in text:
        return f"must be {FORM}, and has a blank, a line break or another character that no address has"
    if parts.username is not None or "?" in text or "#" in text:
        return "is an address only: no user, password, query or fragment; the key goes to api_key"
    if parts.scheme == "http" and not is_loopback(host):
        return "would send the key readable over the network: use https (http is for this machine alone)"
    return None


def is_loopback(host: str) -> bool:
    """True if the name is this machine. Decides by the text alone: `localhost` or a loopback address, not a name that resolves to one."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
