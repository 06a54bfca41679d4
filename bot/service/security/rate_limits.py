"""Rate limits: token buckets in real time, one per policy and caller. The gateway refuses."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bot.clock import monotonic_ns

# buckets kept; the least recently used is dropped first
CALLERS_MAX: Final = 10_000


class Policy(NamedTuple):
    """A token bucket: `per_second` tokens are added, up to `burst`."""

    name: str
    # key | ip
    scope: str
    per_second: float
    burst: int


POLICIES: Final[dict[str, Policy]] = {
    policy.name: policy
    for policy in (
        Policy("default", "key", 100, 400),
        Policy("orders", "key", 50, 200),
        Policy("heartbeat", "key", 10, 40),
        Policy("kill", "key", 5, 20),
        Policy("public", "ip", 100, 400),
        Policy("accounts", "ip", 1, 60),
    )
}


def network_of(address: str) -> str:
    """The caller that an address counts for: who has one address of an IPv6 network of 64 bits, or of a loopback,
    has all of them.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    # A Unix socket, or a name.
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return "local" if ip.is_loopback else str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped
    return "local" if ip.is_loopback else str(ip)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ns: int


class RateVerdict(NamedTuple):
    """The result for one request. `retry_after`: whole seconds, 0 if the request may pass."""

    policy: Policy
    remaining: int
    reset_seconds: int
    retry_after: int


class RateLimits:
    """All buckets of a service. With `enabled=False` every request passes."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def take(self, name: str, caller: str) -> RateVerdict:
        """Take one token of a policy."""
        policy = POLICIES[name]
        if not self.enabled:
            return RateVerdict(policy, policy.burst, 0, 0)
        bucket = self._bucket(policy, caller)
        if bucket.tokens < 1:
            wait = int((1 - bucket.tokens) / policy.per_second) + 1
            return RateVerdict(policy, 0, wait, wait)
        bucket.tokens -= 1
        return RateVerdict(policy, int(bucket.tokens), int((policy.burst - bucket.tokens) / policy.per_second) + 1, 0)

    def _bucket(self, policy: Policy, caller: str) -> _Bucket:
        now = monotonic_ns()
        key = (policy.name, network_of(caller) if policy.scope == "ip" else caller)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(policy.burst, now)
            if len(self._buckets) > CALLERS_MAX:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end(key)
        bucket.tokens = min(policy.burst, bucket.tokens + (now - bucket.at_ns) / 1e9 * policy.per_second)
        bucket.at_ns = now
        return bucket

    def records(self, key: str | None, ip: str | None) -> list[dict[str, Any]]:
        """The Rate records of a caller."""
        records: list[dict[str, Any]] = []
        for policy in POLICIES.values():
            caller = key if policy.scope == "key" else ip
            bucket = self._bucket(policy, caller) if caller is not None else None
            records.append(
                {
                    "policy": policy.name,
                    "scope": policy.scope,
                    "perSecond": policy.per_second,
                    "burst": policy.burst,
                    "remaining": policy.burst if bucket is None or not self.enabled else int(bucket.tokens),
                }
            )
        return records


def headers_of(verdict: RateVerdict, *, enabled: bool) -> list[tuple[bytes, bytes]]:
    """The headers RateLimit-Policy and RateLimit of a response. A service without limits names the policy unlimited."""
    if not enabled:
        return [(b"ratelimit-policy", b'"unlimited";q=1000000;w=1'), (b"ratelimit", b'"unlimited";r=1000000;t=0')]
    policy = verdict.policy
    window = max(1, round(policy.burst / policy.per_second))
    return [
        (b"ratelimit-policy", f'"{policy.name}";q={policy.burst};w={window}'.encode()),
        (b"ratelimit", f'"{policy.name}";r={verdict.remaining};t={verdict.reset_seconds}'.encode()),
    ]
