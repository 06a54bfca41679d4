"""Where a webhook may be sent: the allowed URLs and IP addresses. It only decides; http_delivery.py connects.

Every address that a name resolves to is checked against this list of the IANA special-purpose registries. An IPv4
address inside an IPv6 address (mapped, compatible, NAT64, 6to4, Teredo) is checked too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from bot.wire.addresses import TEREDO, IpAddress, IPv4, carried, is_metadata, is_metadata_address, literals

RESOLVE_SECONDS: Final = 5.0

Resolve = Callable[[str, int], Awaitable[list[str]]]

_DENIED4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# the only global unicast space; everything else is denied
_UNICAST6: Final = ipaddress.IPv6Network("2000::/3")
_DENIED6: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_PRIVATE4: Final = tuple(
    ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
_PRIVATE6: Final = tuple(ipaddress.IPv6Network(text) for text in ("::1/128", "fc00::/7"))


class TargetRefused(Exception):
    """The service does not send to this address. The text tells the webhook's owner why."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The parts of a webhook's URL."""

    scheme: str
    # as written, without brackets
    host: str
    port: int
    # with its query
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"


def target_of(url: str, *, private: bool) -> WebhookTarget:
    """The target of a valid URL. `private`: the service is on loopback, so http and any port are allowed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise TargetRefused("is not a well-formed URI") from None
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise TargetRefused("must not carry a user name or password")
    if not host or "%" in host or "\\" in url:
        raise TargetRefused("has no valid host name")
    if parts.scheme not in ("https", "http") or (parts.scheme == "http" and not private):
        raise TargetRefused("must be https")
    port = (443 if parts.scheme == "https" else 80) if port is None else port
    if port != 443 and not private:
        raise TargetRefused("must use port 443")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if is_metadata(host):
        raise TargetRefused("is where a cloud keeps the credentials of its machines")
    target = WebhookTarget(parts.scheme, host, port, path)
    for address in literals(host):
        judge(address, private=private)
    if not private and (host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")):
        raise TargetRefused("must not name the service's own machine")
    return target


def judge(text: str, *, private: bool) -> None:
    """Raise TargetRefused if this address, or an IPv4 address inside it, is not allowed."""
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = carried(address)
    if not all(_is_allowed(candidate, private=private) for candidate in (inner or (address,))):
        raise TargetRefused(f"resolves to {text}, which is not a public address")
    if inner and address in TEREDO:
        raise TargetRefused(f"resolves to {text}, which is a tunnel address")


def _is_allowed(address: IpAddress, *, private: bool) -> bool:
    if is_metadata_address(address):
        return False
    if isinstance(address, IPv4):
        if private and any(address in net for net in _PRIVATE4):
            return True
        return not any(address in net for net in _DENIED4)
    if private and any(address in net for net in _PRIVATE6):
        return True
    return address in _UNICAST6 and not any(address in net for net in _DENIED6)


async def system_resolve(host: str, port: int) -> list[str]:
    """Every A and AAAA record of the system's resolver. OSError if there is none."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def addresses_of(target: WebhookTarget, resolve: Resolve, *, private: bool) -> list[str]:
    """The addresses to connect to, resolved on each call.

    TargetRefused if any address is not allowed; OSError if there is none.
    """
    addresses = await resolve(target.host, target.port)
    if not addresses:
        raise OSError(f"{target.host} has no address")
    for address in addresses:
        judge(address, private=private)
    return addresses
