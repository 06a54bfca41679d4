"""The one rule for an address that a secret or a question is sent to.

The config, the client and the webhooks of the service use it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final
from urllib.parse import urlsplit

# characters; a longer text is no address
ADDRESS_MAX: Final = 500
FORM = "an address like https://host[:port]"

IPv4 = ipaddress.IPv4Address
IPv6 = ipaddress.IPv6Address
IpAddress = IPv4 | IPv6

# Where a machine in a cloud asks for its own credentials. Nothing else is there.
METADATA: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
        "fe80::/10",
        "fd00:ec2::/32",
        "fd20:ce::/32",
    )
)
METADATA_NAMES: Final = frozenset(
    ("metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal")
)

_LABEL: Final = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")

_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
TEREDO: Final = ipaddress.IPv6Network("2001::/32")
_SIX_TO_FOUR: Final = ipaddress.IPv6Network("2002::/16")


# Words, not a secret.
def address_problem(text: str, secret: str = "the key goes to api_key") -> str | None:  # noqa: S107
    """What is wrong with a base address;

    None if it is good. Allowed: https, or http to this machine, with nothing after the path.
    """
    if len(text) > ADDRESS_MAX:
        return f"must be {FORM}, of at most {ADDRESS_MAX} characters"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        if "[" in parts.netloc:
            ipaddress.IPv6Address(host or "")
    except ValueError:
        return f"must be {FORM}"
    if "%" in parts.netloc:
        return f"must be {FORM}: a host has no % (no zone of an IPv6 address, and no escaped letters)"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return f"must be {FORM}"
    if not text.isprintable() or any(map(str.isspace, text)) or "\\" in text:
        return f"must be {FORM}, and has a blank, a line break or another character that no address has"
    if "@" in parts.netloc or "?" in text or "#" in text:
        return f"is an address only: no user, password, query or fragment; {secret}"
    if "[" not in parts.netloc and not _NAME.fullmatch(ascii_name(host) or ""):
        return f"must be {FORM}: this host is no name that can be looked up"
    if is_metadata(host):
        return "is where a cloud keeps the credentials of its machines: nothing is sent there"
    if parts.scheme == "http" and not is_loopback(host):
        return "would send the key readable over the network: use https (http is for this machine alone)"
    return None


def is_loopback(host: str) -> bool:
    """True if the name is this machine.

    Decides by the text alone: `localhost` or a loopback address, not a name that resolves to one.
    """
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6) else None
    return (mapped or address).is_loopback


def is_metadata(host: str) -> bool:
    """True if the host, in any spelling, is an address where a cloud keeps the credentials of its machines."""
    if (ascii_name(host) or "").rstrip(".") in METADATA_NAMES:
        return True
    return any(is_metadata_address(ipaddress.ip_address(text.partition("%")[0])) for text in literals(host))


def ascii_name(host: str) -> str | None:
    """The host as a resolver is asked for it: other letters, signs and full stops have their ASCII form.

    None if it has none.
    """
    try:
        return host.lower() if host.isascii() else host.encode("idna").decode().lower()
    except UnicodeError:
        return None


def is_metadata_address(address: IpAddress) -> bool:
    return any(candidate in network for candidate in (address, *carried(address)) for network in METADATA)


def literals(host: str) -> list[str]:
    """The IP address that a host is, in any spelling that a resolver accepts (`127.1`, `0x7f000001`, `2130706433`)."""
    try:
        infos = socket.getaddrinfo(host.rstrip("."), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []
    return [str(info[4][0]) for info in infos]


def carried(address: IpAddress) -> tuple[IPv4, ...]:
    """The IPv4 addresses inside an IPv6 address (mapped, compatible, NAT64, 6to4, Teredo)."""
    if isinstance(address, IPv4):
        return ()
    low = IPv4(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in TEREDO:
        return (IPv4(int(address) >> 64 & 0xFFFFFFFF), IPv4(~int(address) & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        return (IPv4(int(address) >> 80 & 0xFFFFFFFF),)
    if address in _NAT64:
        return (low,)
    if address in _COMPATIBLE and int(address) > 1:
        return (low,)
    return ()
