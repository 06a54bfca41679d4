"""The rate limiter of one credential. It learns from answers what the service still allows. It sends nothing.

A 429 takes this way: `calls` raises it as TryLater and tells the limiter, which holds the next requests back
(RateHeld). `entry_wait` keeps an entry in the journal until the limit allows it. `order_sender` sends an exit again;
`outcome` keeps the order open, because nothing was executed. `heartbeat_process` waits as long as Retry-After says.

It reads RateLimit, RateLimit-Policy and the Retry-After of a 429, and limits nothing before the first answer. Reads and
entries leave a share of the quota unused, entries the larger one, so that exits, kills and heartbeats need no queue;
the heartbeat process is another process and uses that share too. If the quota is used up, entries wait as long as the
service says. Exits are sent again after 10 s without quota, and reads after a longer time, because a daemon that cannot
read cannot close. When the service accepts such an exit, the other exits follow. A manual clock has no rate limits.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from bot.errors import TryLater


class RequestKind(Enum):
    """What a request is for: the share of the quota that it leaves unused, how long it waits at most (ms), and after
    how many ms without quota it is sent anyway.
    """

    # closes, cancels, guardians, heartbeats, the kill switch
    EXIT = (0.0, 2_000, 10_000.0)
    READ = (0.1, 2_000, 60_000.0)
    # a dry run too, because it is the first half of an entry
    ENTRY = (0.25, 500, math.inf)

    @property
    def reserve(self) -> float:
        return self.value[0]

    @property
    def patience_ms(self) -> int:
        return self.value[1]

    @property
    def asks_ms(self) -> float:
        return self.value[2]


# wait after a 429 without a time
SILENT_MS: Final = 1_000
# if the service says longer, ask again after an hour
BLOCK_MAX_MS: Final = 3_600_000
# policies that are remembered; a service has a few
POLICIES_MAX: Final = 50
# most requests that a share leaves unused; a tenth of a large quota would be a waste
RESERVE_MAX: Final = 50
_NUMBER_MAX: Final = 10**9
# tolerance for a count that is refilled by fractions
_ROUNDING: Final = 1e-9
_ITEM: Final = re.compile(
    r'\s*"([^"\\]{1,64})"((?:\s*;\s*[a-z*][a-z0-9_.*-]{0,15}=(?:"[^"]{0,64}"|[^;,"\s]{1,64}))*)\s*(?:,|$)'
)
_PARAMETER: Final = re.compile(r";\s*([a-z*][a-z0-9_.*-]{0,15})=\s*([0-9]{1,12})\s*(?=;|$)")


class Left(NamedTuple):
    """One item of RateLimit: `r` requests left, `t` seconds until there are more."""

    policy: str
    remaining: int
    seconds: int


class Quota(NamedTuple):
    """One item of RateLimit-Policy: `q` requests per `w` seconds."""

    policy: str
    requests: int
    window_s: int


class Budget(NamedTuple):
    """What is left of one policy: `left` of `requests`."""

    policy: str
    left: int
    requests: int


class RateHeld(TryLater):
    """The request was not sent, because the quota is used up or the rest is reserved for exits.

    `after_ms`: the wait for new quota.
    """


@dataclass(slots=True)
class _Bucket:
    """The known state of one policy. Instants are of the limiter's clock."""

    requests: float
    per_ms: float
    left: float
    at_ms: float
    blocked_ms: float = 0.0
    # since when the quota is used up
    spent_ms: float = math.inf
    # when the newest 429 came, or a request was sent without quota
    asked_ms: float = -math.inf
    # when the newest 429 came
    refused_ms: float = -math.inf
    # the service accepted a request sent without quota, so other exits need not wait
    lets_exits: bool = False
    # sent and not answered, so not counted in what the service says is left
    under_way: int = 0

    def refill(self, now_ms: float) -> None:
        self.left = min(self.requests, self.left + max(0.0, now_ms - self.at_ms) * self.per_ms)
        self.at_ms = now_ms

    def wait_ms(self, kind: RequestKind, now_ms: float) -> int:
        """Milliseconds until a request may be sent; 0 means now."""
        held_ms = self._held_ms(kind, now_ms)
        if held_ms > 0 and (self.spent_ms <= now_ms or self.blocked_ms > now_ms):
            since_ms = self.asked_ms if self.spent_ms == math.inf else max(self.asked_ms, self.spent_ms)
            held_ms = min(held_ms, max(0.0, since_ms + kind.asks_ms - now_ms))
        return math.ceil(min(held_ms, BLOCK_MAX_MS))

    def take(self, kind: RequestKind, now_ms: float) -> None:
        """Count one request."""
        if self._held_ms(kind, now_ms) > 0:
            self.asked_ms = now_ms
        self.left -= 1
        self.under_way += 1

    def _held_ms(self, kind: RequestKind, now_ms: float) -> float:
        self.refill(now_ms)
        self.spent_ms = math.inf if self.left >= 1 - _ROUNDING else min(self.spent_ms, now_ms)
        floor = max(0.0, min(self.requests * kind.reserve, RESERVE_MAX, self.requests - 1))
        missing = floor + 1 - self.left
        quota_ms = 0.0 if missing <= _ROUNDING else missing / self.per_ms if self.per_ms > 0 else math.inf
        blocked_ms = 0.0 if kind is RequestKind.EXIT and self.lets_exits else self.blocked_ms - now_ms
        return max(quota_ms, blocked_ms, 0.0)


# the buckets that an admitted request was counted in
Admission = tuple[_Bucket, ...]


def loop_ms() -> float:
    """The event loop's time: real, or virtual in a loop with virtual time."""
    return asyncio.get_running_loop().time() * 1000


class Limiter:
    """The limiter of one credential. `route` names an operation; answers tell which policies it is counted in."""

    def __init__(
        self, *, now_ms: Callable[[], float] = loop_ms, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._now_ms = now_ms
        self._sleep = sleep
        self._buckets: dict[str, _Bucket] = {}
        self._policy_of: dict[str, tuple[str, ...]] = {}
        # requests that were not sent because of the limit
        self.held = 0
        self.waited_ms = 0

    def wait_ms(self, kind: RequestKind, route: str) -> int:
        """Milliseconds until such a request may be sent; 0 means now."""
        now_ms = self._now_ms()
        return max((bucket.wait_ms(kind, now_ms) for bucket in self._drawn(route)), default=0)

    async def admit(self, kind: RequestKind, route: str, *, within_ms: float = math.inf) -> Admission:
        """Wait until the request may be sent, and count it. Pass the result to `ended`. Raises RateHeld at once if the
        wait would be too long.

        `within_ms`: the request is useless after that time (an entry's not_after).
        """
        began_ms = self._now_ms()
        end_ms = began_ms + min(kind.patience_ms, within_ms)
        while (wait_ms := self.wait_ms(kind, route)) > 0:
            now_ms = self._now_ms()
            if now_ms + wait_ms > end_ms:
                self.held += 1
                raise RateHeld(
                    "rate_limited",
                    "not sent: the service's rate limit allows no"
                    f" {'entry' if kind is RequestKind.ENTRY else 'such request'} for {wait_ms} ms",
                    order_submitted=False,
                    retryable=True,
                    after_ms=wait_ms,
                )
            await self._sleep(wait_ms / 1000)
        now_ms = self._now_ms()
        self.waited_ms += round(now_ms - began_ms)
        admission = tuple(self._drawn(route))
        # No await since the check, so no other request took this quota.
        for bucket in admission:
            bucket.take(kind, now_ms)
        return admission

    def ended(self, admission: Admission) -> None:
        """An admitted request has its answer or failed.

        Releases the buckets that it was counted in, even if its route has other policies now.
        """
        for bucket in admission:
            assert bucket.under_way > 0
            bucket.under_way -= 1

    def learn(
        self, route: str, *, status: int, limit: str | None, policy: str | None, retry_after_ms: int | None
    ) -> None:
        """Learn from the headers of one answer.

        Unreadable headers are ignored. Retry-After of a 429 overrides the others.
        """
        now_ms = self._now_ms()
        quotas = _quotas(policy)
        lefts = parse_limit(limit)
        for left in lefts:
            self._believe(left, quotas.get(left.policy), now_ms)
        names = tuple(left.policy for left in lefts if left.policy in self._buckets)
        if names:
            self._policy_of[route] = names
        if status == 429:
            self._refused(route, SILENT_MS if retry_after_ms is None else retry_after_ms, now_ms)
        elif status < 500:
            for bucket in self._drawn(route):
                bucket.lets_exits = bucket.lets_exits or bucket.asked_ms > bucket.refused_ms

    def budgets(self) -> list[Budget]:
        """What is left of each policy that the service has named."""
        now_ms = self._now_ms()
        for bucket in self._buckets.values():
            bucket.refill(now_ms)
        return [
            Budget(name, int(token_bucket.left), int(token_bucket.requests))
            for name, token_bucket in self._buckets.items()
            if token_bucket.requests < _NUMBER_MAX
        ]

    def _believe(self, left: Left, quota: Quota | None, now_ms: float) -> None:
        known = self._buckets.get(left.policy)
        if quota is None and known is None:
            if left.seconds <= 0:
                return
            quota = Quota(left.policy, max(left.remaining, 1), left.seconds)
        if known is None:
            if len(self._buckets) >= POLICIES_MAX:
                return
            known = self._buckets[left.policy] = _Bucket(0, 0, 0, now_ms)
        if quota is not None:
            known.requests, known.per_ms = quota.requests, quota.requests / (quota.window_s * 1000)
        known.refill(now_ms)
        known.left = float(left.remaining - known.under_way)

    def _refused(self, route: str, wait_ms: int, now_ms: float) -> None:
        drawn = self._drawn(route)
        # The service names no policy: only this route must wait.
        if not drawn:
            drawn = [self._buckets.setdefault(route, _Bucket(_NUMBER_MAX, _NUMBER_MAX, _NUMBER_MAX, now_ms))]
            self._policy_of[route] = (route,)
        for bucket in drawn:
            bucket.blocked_ms = max(bucket.blocked_ms, now_ms + min(wait_ms, BLOCK_MAX_MS))
            bucket.asked_ms = bucket.refused_ms = now_ms
            bucket.lets_exits = False

    def _drawn(self, route: str) -> list[_Bucket]:
        return [self._buckets[name] for name in self._policy_of.get(route, ())]


def parse_limit(text: str | None) -> list[Left]:
    """The items of RateLimit, such as `"default";r=50;t=30`."""
    items = []
    for name, given in _items(text):
        if "r" in given:
            items.append(Left(name, min(given["r"], _NUMBER_MAX), min(given.get("t", 0), _NUMBER_MAX)))
    return items


def parse_policy(text: str | None) -> list[Quota]:
    """The items of RateLimit-Policy, such as `"default";q=100;w=60`. Items without a window are ignored."""
    return [
        Quota(name, min(given["q"], _NUMBER_MAX), min(given["w"], _NUMBER_MAX))
        for name, given in _items(text)
        if given.get("q", 0) > 0 and given.get("w", 0) > 0
    ]


@lru_cache(maxsize=64)
def _quotas(text: str | None) -> Mapping[str, Quota]:
    """Quotas by policy. Cached, because every answer repeats them."""
    return {quota.policy: quota for quota in parse_policy(text)}


def _items(text: str | None) -> list[tuple[str, dict[str, int]]]:
    """The items of a structured list. One malformed item makes the whole field malformed, and it is ignored."""
    items: list[tuple[str, dict[str, int]]] = []
    at = 0
    text = text or ""
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            return []
        items.append((match[1], {name: int(value) for name, value in _PARAMETER.findall(match[2])}))
        at = match.end()
    return items
