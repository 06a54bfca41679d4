"""The rate limiter in virtual time: what it learns from headers, who is let through first, and when a wait ends."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from bot.client import Client
from bot.client.limiter import Admission, Budget, Left, Limiter, Quota, RateHeld, RequestKind, parse_limit, parse_policy
from bot.client.service_clock import ServiceClock
from bot.errors import TryLater
from bot.wire import CloseRequest, OrderRequest

ORDERS = "POST /v1/orders"
READS = "GET /v1/events"


class Time:
    """Milliseconds that pass only when somebody sleeps; sleepers wake in the order of their instants."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.slept = 0

    def now_ms(self) -> float:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.ms += seconds * 1000

    def limiter(self) -> Limiter:
        return Limiter(now_ms=self.now_ms, sleep=self.sleep)


def tell(
    limiter: Limiter,
    left: int,
    *,
    route: str = ORDERS,
    q: int = 100,
    w: int = 10,
    status: int = 200,
    after: int | None = None,
) -> None:
    limiter.learn(route, status=status, limit=f'"p";r={left};t=1', policy=f'"p";q={q};w={w}', retry_after_ms=after)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"default";r=50;t=30', [Left("default", 50, 30)]),
        ('"a";r=1;t=2, "b";r=3;t=4', [Left("a", 1, 2), Left("b", 3, 4)]),
        ('"a";r=0', [Left("a", 0, 0)]),
        ('"a" ; t=9 ; r=7', [Left("a", 7, 9)]),
        ('"a";pk=:cHJvamVjdC0:;r=5;t=1', [Left("a", 5, 1)]),
        ('"a";t=3', []),
        ('"a";r=-1;t=3', []),
        ("default;r=1", []),
        ('"a";r=1;t=2, nonsense', []),
        ('"a";r=1.5', []),
        ("limit=100, remaining=50, reset=5", []),
        ('"' + "x" * 70 + '";r=1', []),
        ("", []),
        (None, []),
        ('"a";r=' + "9" * 40, []),
    ],
)
def test_a_malformed_rate_limit_item_is_ignored(text: str | None, found: list[Left]) -> None:
    assert parse_limit(text) == found


def test_a_policy_needs_a_quota_and_a_window() -> None:
    assert parse_policy('"default";q=100;w=60, "burst";q=5;w=1') == [Quota("default", 100, 60), Quota("burst", 5, 1)]
    assert parse_policy('"default";q=100') == parse_policy('"default";q=0;w=1') == parse_policy("q=1;w=2") == []


def test_a_header_with_many_blanks_is_parsed_fast() -> None:
    """Each parameter's blanks could be read in two ways, and so all of them in a million: this test did not end."""
    blanks = " " * 60
    assert parse_policy('"a"' + f";q=1{blanks};w=1{blanks}" * 20 + "!") == []
    assert parse_policy(f'"a"{blanks};{blanks}q=1{blanks};w=1{blanks}') == [Quota("a", 1, 1)]


def test_noise_in_a_header_never_raises() -> None:
    chance = random.Random(0)
    limiter = Time().limiter()
    for _ in range(3_000):
        text = "".join(chance.choice('"";,=rtqw 019-.a*é') for _ in range(chance.randrange(40)))
        limiter.learn(ORDERS, status=200, limit=text, policy=text, retry_after_ms=None)
    assert limiter.wait_ms(RequestKind.EXIT, "GET /v1/markets") == 0


def test_before_the_first_answer_nothing_waits() -> None:
    limiter = Time().limiter()
    assert [limiter.wait_ms(kind, ORDERS) for kind in RequestKind] == [0, 0, 0]


@pytest.mark.parametrize(
    ("left", "may"),
    [
        (60, "EXIT READ ENTRY"),
        (26, "EXIT READ ENTRY"),
        (25, "EXIT READ"),
        (11, "EXIT READ"),
        (10, "EXIT"),
        (1, "EXIT"),
        (0, ""),
    ],
)
def test_quota_is_reserved_for_requests_that_matter_more(left: int, may: str) -> None:
    limiter = Time().limiter()
    tell(limiter, left)
    assert " ".join(kind.name for kind in RequestKind if limiter.wait_ms(kind, ORDERS) == 0) == may


@pytest.mark.parametrize("q", [1, 2, 3, 5])
def test_a_full_small_quota_admits_every_kind_of_request(q: int) -> None:
    limiter = Time().limiter()
    tell(limiter, q, q=q)
    assert [limiter.wait_ms(kind, ORDERS) for kind in RequestKind] == [0, 0, 0]


def test_a_route_counts_in_the_policies_that_its_answers_named() -> None:
    limiter = Time().limiter()
    tell(limiter, 0)
    assert limiter.wait_ms(RequestKind.EXIT, READS) == 0
    limiter.learn(READS, status=200, limit='"p";r=0;t=1', policy=None, retry_after_ms=None)
    assert limiter.wait_ms(RequestKind.EXIT, READS) > 0


def test_the_budgets_are_what_is_left_of_the_named_policies_now() -> None:
    time = Time()
    limiter = time.limiter()
    assert limiter.budgets() == []
    tell(limiter, 40)
    limiter.learn(READS, status=429, limit=None, policy=None, retry_after_ms=None)
    assert limiter.budgets() == [Budget("p", 40, 100)], "a route without a policy has no known budget"
    time.ms += 1_000
    assert limiter.budgets() == [Budget("p", 50, 100)]


async def test_a_wait_ends_when_there_is_quota() -> None:
    time = Time()
    limiter = time.limiter()
    # ten a second
    tell(limiter, 0)
    await limiter.admit(RequestKind.EXIT, ORDERS)
    assert time.ms == pytest.approx(100, abs=2)
    await limiter.admit(RequestKind.READ, ORDERS)
    assert time.ms == pytest.approx(1_200, abs=5), "a tenth is kept, and one more"


async def test_a_wait_that_is_too_long_does_not_start() -> None:
    time = Time()
    limiter = time.limiter()
    tell(limiter, 0, w=1_000)
    with pytest.raises(RateHeld) as caught:
        await limiter.admit(RequestKind.EXIT, ORDERS)
    assert (caught.value.order_submitted, caught.value.after_ms) == (False, 10_000)
    assert (time.slept, limiter.held) == (0, 1)


async def test_a_waiting_entry_ends_with_its_not_after() -> None:
    time = Time()
    limiter = time.limiter()
    tell(limiter, 22)
    with pytest.raises(RateHeld, match="no entry"):
        await limiter.admit(RequestKind.ENTRY, ORDERS, within_ms=300)
    await limiter.admit(RequestKind.ENTRY, ORDERS, within_ms=450)
    assert time.ms == pytest.approx(400, abs=2)


def test_retry_after_of_a_429_applies_to_every_kind_of_request() -> None:
    time = Time()
    limiter = time.limiter()
    tell(limiter, 90, status=429, after=7_000)
    assert [limiter.wait_ms(kind, ORDERS) for kind in RequestKind] == [7_000] * 3
    time.ms = 7_000
    assert [limiter.wait_ms(kind, ORDERS) for kind in RequestKind] == [0] * 3


@pytest.mark.parametrize(("after", "wait"), [(None, 1_000), (3_000, 3_000), (10**12, 3_600_000), (0, 0)])
def test_a_429_without_headers_delays_only_its_own_route(after: int | None, wait: int) -> None:
    limiter = Time().limiter()
    limiter.learn(ORDERS, status=429, limit=None, policy=None, retry_after_ms=after)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) == wait
    assert limiter.wait_ms(RequestKind.EXIT, READS) == 0


def test_a_late_answer_does_not_return_the_quota_of_requests_in_flight() -> None:
    limiter = Time().limiter()
    tell(limiter, 30)

    async def three() -> list[Admission]:
        return [await limiter.admit(RequestKind.EXIT, ORDERS) for _ in range(3)]

    first, second, third = asyncio.run(three())
    limiter.ended(first)
    # The answer to the first one tells this; two are under way.
    tell(limiter, 27)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) > 0
    limiter.ended(second)
    limiter.ended(third)
    tell(limiter, 27)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) == 0


async def test_requests_in_flight_are_counted_in_the_policy_that_admitted_them() -> None:
    """Also when its route was unknown as it left, or draws on another policy by now."""
    limiter = Time().limiter()
    early = await limiter.admit(RequestKind.EXIT, ORDERS)
    tell(limiter, 27)
    late = await limiter.admit(RequestKind.EXIT, ORDERS)
    limiter.ended(early)
    tell(limiter, 26)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) > 0, "the late one is under way still"
    limiter.learn(ORDERS, status=200, limit='"q";r=50;t=1', policy='"q";q=100;w=10', retry_after_ms=None)
    limiter.ended(late)
    tell(limiter, 26)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) == 0, "and is not for ever"


async def test_under_load_exits_go_first_and_the_service_never_has_to_refuse() -> None:
    """A bucket as the service keeps it, four askers at once: no 429, every exit within its wait, entries take what
    is left.
    """
    chance = random.Random(7)
    time = Time()
    limiter = time.limiter()
    # ten a second
    bucket, at_ms, rate, burst = 20.0, 0.0, 0.01, 20
    done = dict.fromkeys(RequestKind, 0)
    refused = held = 0
    for _ in range(2_000):
        kind = chance.choices(list(RequestKind), (1, 3, 20))[0]
        time.ms += chance.random() * 20
        try:
            place = await limiter.admit(kind, ORDERS)
        except RateHeld:
            assert kind is not RequestKind.EXIT
            held += 1
            continue
        bucket, at_ms = min(burst, bucket + (time.ms - at_ms) * rate), time.ms
        limiter.ended(place)
        if bucket < 1:
            refused += 1
            tell(limiter, 0, q=burst, w=2, status=429, after=1_000)
            continue
        bucket -= 1
        done[kind] += 1
        tell(limiter, int(bucket), q=burst, w=2)
    assert refused == 0
    assert held + sum(done.values()) == 2_000
    assert done[RequestKind.EXIT] > 50


def answering(headers: dict[str, str], seen: list[str], status: int = 429) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        code = "rate_limited" if status == 429 else "service_unavailable"
        error = {"code": code, "message": "m", "requestId": "r", "retryable": True, "orderSubmitted": False}
        return httpx.Response(status, json={"error": error}, headers={"X-API-Version": "2026-10-19", **headers})

    return httpx.MockTransport(handle)


async def test_the_client_delays_an_entry_and_sends_a_close() -> None:
    time = Time()
    seen: list[str] = []
    limit = {"RateLimit": '"orders";r=5;t=1', "RateLimit-Policy": '"orders";q=100;w=100'}
    order = OrderRequest.from_wire({"market": "BTC", "side": "long", "usdAmount": 50})
    async with Client("http://localhost", "k", transport=answering(limit, seen, 503), limiter=time.limiter()) as client:
        for _ in range(3):
            with pytest.raises(TryLater):
                await client.close("BTC", CloseRequest(), key="k")
        assert len(seen) == 3
        with pytest.raises(TryLater):
            await client.plan(order)
        assert client.entry_wait_ms() == 21_000
        with pytest.raises(RateHeld):
            await client.plan(order)
        assert len(seen) == 4, "it has not left"
        with pytest.raises(TryLater):
            await client.close("BTC", CloseRequest(), key="k")
        assert (len(seen), time.ms) == (5, 0), "what is left is for it"


async def test_a_manual_clock_has_no_rate_limits() -> None:
    time = Time()
    seen: list[str] = []
    clock = ServiceClock()
    transport = answering({"Retry-After": "60", "X-Sandbox-Clock": "1000; speed=0"}, seen)
    async with Client("http://localhost", "k", transport=transport, clock=clock, limiter=time.limiter()) as client:
        for _ in range(3):
            with pytest.raises(TryLater):
                await client.account()
        assert (len(seen), time.ms, client.entry_wait_ms()) == (3, 0, 0), (
            "the first answer said to wait, and whose clock it is"
        )


async def test_an_accelerated_clock_shortens_an_entrys_patience() -> None:
    """`expires_at_ms` is of the service's clock: at 60x a minute of it is a second."""
    time = Time()
    seen: list[str] = []
    clock = ServiceClock(elapsed_ns=lambda: 0)
    clock.observe(sandbox="1000000; speed=60", date=None, is_service=True, sent_ns=0, received_ns=0)
    limiter = time.limiter()
    # room for an entry in 100 ms
    tell(limiter, 25)
    order = OrderRequest.from_wire({"market": "BTC", "side": "long", "usdAmount": 50})
    async with Client("http://localhost", "k", transport=answering({}, seen), clock=clock, limiter=limiter) as client:
        with pytest.raises(RateHeld):
            await client.place(order, key="k", expires_at_ms=1_000_000 + 60 * 50)
        assert seen == []
        with pytest.raises(TryLater):
            await client.place(order, key="k", expires_at_ms=1_000_000 + 60 * 200)
        assert len(seen) == 1
        assert time.ms == pytest.approx(100, abs=2)


@pytest.mark.parametrize("status", [200, 429])
async def test_without_quota_for_an_hour_exits_are_sent_soon_reads_later_and_entries_never(status: int) -> None:
    time = Time()
    limiter = time.limiter()

    def nothing_is_left() -> None:
        after = 3_600_000 if status == 429 else None
        limiter.learn(ORDERS, status=status, limit='"p";r=0;t=3600', policy='"p";q=1;w=3600', retry_after_ms=after)

    def waits() -> list[int]:
        return [limiter.wait_ms(kind, ORDERS) for kind in RequestKind]

    nothing_is_left()
    assert waits() == [10_000, 60_000, 3_600_000]
    time.ms += 9_000
    with pytest.raises(RateHeld):
        await limiter.admit(RequestKind.READ, ORDERS)
    place = await limiter.admit(RequestKind.EXIT, ORDERS)
    assert time.ms == 10_000
    assert waits()[:2] == [10_000, 60_000], "one asks, the others wait for what it hears"
    limiter.ended(place)
    nothing_is_left()
    time.ms += 10_000
    assert waits()[0] == 0
    time.ms += 50_000
    assert waits()[1] == 0
    tell(limiter, 50)
    time.ms += 3_600_000
    assert waits() == [0, 0, 0]


def test_a_wait_is_at_most_an_hour_whatever_the_service_says() -> None:
    limiter = Time().limiter()
    limiter.learn(ORDERS, status=200, limit='"p";r=0;t=999999999', policy='"p";q=1;w=999999999', retry_after_ms=None)
    assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) == 3_600_000


async def test_after_an_exit_was_accepted_early_other_exits_follow_and_entries_do_not() -> None:
    time = Time()
    limiter = time.limiter()
    tell(limiter, 90)
    tell(limiter, 0, status=429, after=3_600_000)
    tell(limiter, 90)
    assert limiter.wait_ms(RequestKind.EXIT, ORDERS) == 10_000, "an answer to what left before the refusal"
    time.ms += 10_000
    limiter.ended(await limiter.admit(RequestKind.EXIT, ORDERS))
    tell(limiter, 90)
    assert [limiter.wait_ms(kind, ORDERS) for kind in RequestKind] == [0, 60_000, 3_590_000]
    tell(limiter, 90, status=429, after=3_600_000)
    assert limiter.wait_ms(RequestKind.EXIT, ORDERS) == 10_000


def test_an_exit_is_sent_again_soon_even_if_the_service_says_an_hour() -> None:
    time = Time()
    limiter = time.limiter()
    for _ in range(2):
        limiter.learn(ORDERS, status=429, limit=None, policy=None, retry_after_ms=3_600_000)
        assert limiter.wait_ms(RequestKind.ENTRY, ORDERS) == 3_600_000
        assert limiter.wait_ms(RequestKind.EXIT, ORDERS) == 10_000
        time.ms += 10_000
        assert limiter.wait_ms(RequestKind.EXIT, ORDERS) == 0
