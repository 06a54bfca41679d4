"""The rate limiter of one credential: what the service says is left, who may take of it, and the wait for more. It sends nothing.

It believes the answers (RateLimit, RateLimit-Policy, and Retry-After of a 429) and nothing before the first one. Of what is
left a share is kept back from reads and a larger one from entries, so that an exit, a kill or a beat always finds room: that
order needs no queue, and the heartbeat process, which has no part in this, finds the kept share too. Where nothing is left at
all, entries wait as long as the service says; an exit asks again now and then, and a read less often, since whoever sees
nothing closes nothing. Once such an exit is taken, the other exits follow as there is room. Under a clock that is moved by hand there are no limits.
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


class Kind(Enum):
    """What a request is for: the share of a quota that it leaves to the others, how long it waits (ms), and after how long without
    room it asks all the same (ms)."""

    EXIT = (0.0, 2_000, 10_000.0)  # closes, cancels, guardians, the beat, the kill switch
    READ = (0.1, 2_000, 60_000.0)
    ENTRY = (0.25, 500, math.inf)  # a dry run too: it is the first half of an entry

    @property
    def kept(self) -> float:
        return self.value[0]

    @property
    def patience_ms(self) -> int:
        return self.value[1]

    @property
    def asks_ms(self) -> float:
        return self.value[2]


SILENT_MS: Final = 1_000  # waited after a 429 that names no time
BLOCK_MAX_MS: Final = 3_600_000  # a service that says longer is asked again after an hour
POLICIES_MAX: Final = 50  # names of policies remembered; a service has a handful
KEPT_MAX: Final = 50  # requests that a share keeps back at most: of a large quota a tenth would be a waste
_NUMBER_MAX: Final = 10**9
_ROUNDING: Final = 1e-9  # of a count that is refilled by fractions
_ITEM: Final = re.compile(
    r'\s*"([^"\\]{1,64})"((?:\s*;\s*[a-z*][a-z0-9_.*-]{0,15}=(?:"[^"]{0,64}"|[^;,"\s]{1,64}))*)\s*(?:,|$)'
)
_PARAMETER: Final = re.compile(r";\s*([a-z*][a-z0-9_.*-]{0,15})=\s*([0-9]{1,12})\s*(?=;|$)")


class Left(NamedTuple):
    """One item of RateLimit: `r` requests left, `t` seconds until more."""

    policy: str
    remaining: int
    seconds: int


class Quota(NamedTuple):
    """One item of RateLimit-Policy: `q` requests in `w` seconds."""

    policy: str
    requests: int
    window_s: int


class RateHeld(TryLater):
    """Not sent: the quota is spent, or what is left is kept for exits. `after_ms` says when there is room."""


@dataclass(slots=True)
class _Bucket:
    """What is believed of one policy. Instants are of the limiter's time."""

    requests: float
    per_ms: float
    left: float
    at_ms: float
    blocked_ms: float = 0.0
    spent_ms: float = math.inf  # since when nothing is left
    asked_ms: float = -math.inf  # when the newest 429 came, or a request was let go without room
    refused_ms: float = -math.inf  # when the newest 429 came
    lets_exits: bool = False  # what was let go since then was taken: the others need not wait as long as it said
    under_way: int = 0  # sent and not answered: what an answer says is left does not know of them

    def refill(self, now_ms: float) -> None:
        self.left = min(self.requests, self.left + max(0.0, now_ms - self.at_ms) * self.per_ms)
        self.at_ms = now_ms

    def wait_ms(self, kind: Kind, now_ms: float) -> int:
        """0 when one may go now. The floor is what stays for those that matter more."""
        held_ms = self._held_ms(kind, now_ms)
        if held_ms > 0 and (self.spent_ms <= now_ms or self.blocked_ms > now_ms):
            since_ms = self.asked_ms if self.spent_ms == math.inf else max(self.asked_ms, self.spent_ms)
            held_ms = min(held_ms, max(0.0, since_ms + kind.asks_ms - now_ms))
        return math.ceil(min(held_ms, BLOCK_MAX_MS))

    def take(self, kind: Kind, now_ms: float) -> None:
        """One goes now."""
        if self._held_ms(kind, now_ms) > 0:
            self.asked_ms = now_ms
        self.left -= 1
        self.under_way += 1

    def _held_ms(self, kind: Kind, now_ms: float) -> float:
        self.refill(now_ms)
        self.spent_ms = math.inf if self.left >= 1 - _ROUNDING else min(self.spent_ms, now_ms)
        floor = max(0.0, min(self.requests * kind.kept, KEPT_MAX, self.requests - 1))
        missing = floor + 1 - self.left
        room_ms = 0.0 if missing <= _ROUNDING else missing / self.per_ms if self.per_ms > 0 else math.inf
        blocked_ms = 0.0 if kind is Kind.EXIT and self.lets_exits else self.blocked_ms - now_ms
        return max(room_ms, blocked_ms, 0.0)


Place = tuple[_Bucket, ...]  # what an admitted request has taken one of


def loop_ms() -> float:
    """The event loop's time: real, and virtual in a loop whose time is."""
    return asyncio.get_running_loop().time() * 1000


class Limiter:
    """One for a credential. `route` names an operation; which policy it draws on is learnt from its answers."""

    def __init__(
        self, *, now_ms: Callable[[], float] = loop_ms, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._now_ms = now_ms
        self._sleep = sleep
        self._buckets: dict[str, _Bucket] = {}
        self._policy_of: dict[str, tuple[str, ...]] = {}
        self.held = 0  # requests that were not sent for want of room
        self.waited_ms = 0

    def wait_ms(self, kind: Kind, route: str) -> int:
        """How long until such a request may go; 0: now."""
        now_ms = self._now_ms()
        return max((bucket.wait_ms(kind, now_ms) for bucket in self._drawn(route)), default=0)

    async def admit(self, kind: Kind, route: str, *, within_ms: float = math.inf) -> Place:
        """Return when the request may go, with its place taken: for `ended`. RateHeld at once when that is later than it can wait.

        `within_ms`: after so long it is no longer wanted (an entry's not_after).
        """
        began_ms = self._now_ms()
        end_ms = began_ms + min(kind.patience_ms, within_ms)
        while (wait_ms := self.wait_ms(kind, route)) > 0:
            now_ms = self._now_ms()
            if now_ms + wait_ms > end_ms:
                self.held += 1
                raise RateHeld(
                    "rate_limited",
                    f"held back here: the service's limit leaves no room for {'an entry' if kind is Kind.ENTRY else 'it'} for {wait_ms} ms",
                    order_submitted=False,
                    retryable=True,
                    after_ms=wait_ms,
                )
            await self._sleep(wait_ms / 1000)
        now_ms = self._now_ms()
        self.waited_ms += round(now_ms - began_ms)
        place = tuple(self._drawn(route))
        for bucket in place:  # No await since it was found free: the place is this request's alone.
            bucket.take(kind, now_ms)
        return place

    def ended(self, place: Place) -> None:
        """An admitted request has its answer, or will have none. What it drew on is what it was then, whatever was learnt of its route since."""
        for bucket in place:
            assert bucket.under_way > 0
            bucket.under_way -= 1

    def learn(
        self, route: str, *, status: int, limit: str | None, policy: str | None, retry_after_ms: int | None
    ) -> None:
        """Take the headers of one answer. What cannot be read says nothing; Retry-After of a 429 wins over the rest."""
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
        if not drawn:  # A service that names no policy: nothing is known but that this route must wait.
            drawn = [self._buckets.setdefault(route, _Bucket(_NUMBER_MAX, _NUMBER_MAX, _NUMBER_MAX, now_ms))]
            self._policy_of[route] = (route,)
        for bucket in drawn:
            bucket.blocked_ms = max(bucket.blocked_ms, now_ms + min(wait_ms, BLOCK_MAX_MS))
            bucket.asked_ms = bucket.refused_ms = now_ms
            bucket.lets_exits = False

    def _drawn(self, route: str) -> list[_Bucket]:
        return [self._buckets[name] for name in self._policy_of.get(route, ())]


def parse_limit(text: str | None) -> list[Left]:
    """`"default";r=50;t=30`: what can be read of it."""
    found = []
    for name, given in _items(text):
        if "r" in given:
            found.append(Left(name, min(given["r"], _NUMBER_MAX), min(given.get("t", 0), _NUMBER_MAX)))
    return found


def parse_policy(text: str | None) -> list[Quota]:
    """`"default";q=100;w=60`: what can be read of it. One without a window says nothing about time."""
    return [
        Quota(name, min(given["q"], _NUMBER_MAX), min(given["w"], _NUMBER_MAX))
        for name, given in _items(text)
        if given.get("q", 0) > 0 and given.get("w", 0) > 0
    ]


@lru_cache(maxsize=64)
def _quotas(text: str | None) -> Mapping[str, Quota]:
    """By policy. A service says the same with every answer."""
    return {one.policy: one for one in parse_policy(text)}


def _items(text: str | None) -> list[tuple[str, dict[str, int]]]:
    """The items of a structured list. One that is malformed makes the whole field malformed, and that is ignored."""
    found: list[tuple[str, dict[str, int]]] = []
    at = 0
    text = text or ""
    while at < len(text):
        match = _ITEM.match(text, at)
        if match is None:
            return []
        found.append((match[1], {name: int(value) for name, value in _PARAMETER.findall(match[2])}))
        at = match.end()
    return found
