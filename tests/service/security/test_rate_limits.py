"""Token buckets: a burst passes, then the rate; each caller and policy by itself; the callers remembered are
bounded.
"""

from __future__ import annotations

import pytest

from bot.errors import ConfigError
from bot.service.security import rate_limits
from bot.service.state_machine.clock import MachineClock, parse_clock


def test_a_burst_passes_and_then_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(rate_limits, "monotonic_ns", lambda: now[0])
    limits = rate_limits.RateLimits()
    policy = rate_limits.POLICIES["orders"]
    verdicts = [limits.take("orders", "k") for _ in range(policy.burst)]
    assert all(v.retry_after == 0 for v in verdicts)
    assert verdicts[-1].remaining == 0
    assert limits.take("orders", "k").retry_after == 1
    assert limits.take("orders", "other").retry_after == 0
    assert limits.take("default", "k").retry_after == 0
    now[0] += 1_000_000_000
    passed = sum(limits.take("orders", "k").retry_after == 0 for _ in range(policy.burst))
    assert passed == policy.per_second


def test_disabled_rate_limits_refuse_nobody() -> None:
    limits = rate_limits.RateLimits(enabled=False)
    assert all(limits.take("accounts", "ip").retry_after == 0 for _ in range(1000))


def test_the_number_of_remembered_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "CALLERS_MAX", 10)
    limits = rate_limits.RateLimits()
    for number in range(100):
        limits.take("public", str(number))
    assert len(limits._buckets) == 10


@pytest.mark.parametrize(("text", "speed"), [("real", 1), ("manual", 0), ("60x", 60), ("3600x", 3600), (" 1.5X ", 1.5)])
def test_a_clock_option_is_a_word_or_a_speed(text: str, speed: float) -> None:
    assert parse_clock(text) == speed


@pytest.mark.parametrize("text", ["", "x", "0.5x", "3601x", "-1", "nan", "infx", "soon"])
def test_other_texts_are_refused_as_clock_options(text: str) -> None:
    with pytest.raises(ConfigError, match="must be real, manual, or a speed"):
        parse_clock(text)


def test_a_clock_continues_from_its_instant_when_its_speed_changes() -> None:
    clock = MachineClock.start(0, 5_000)
    assert (clock.now_ms(), clock.mode, clock.is_real) == (5_000, "manual", False)
    clock.move_to(6_000)
    clock.set_speed(3600)
    assert clock.now_ms() >= 6_000
    assert clock.real_seconds_until(clock.now_ms() + 3_600_000) <= 1.0  # type: ignore[operator]
    clock.set_speed(0)
    assert clock.now_ms() == clock.now_ms()
    assert clock.real_seconds_until(1 << 50) is None
    assert MachineClock.start(1).is_real
    assert not MachineClock.start(1, 5_000).is_real


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("127.0.0.1", "127.0.0.9", True),
        ("127.0.0.1", "::1", True),
        ("::ffff:127.0.0.2", "127.0.0.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:198.51.100.7", "198.51.100.7", True),
        ("198.51.100.7", "198.51.100.8", False),
        ("127.0.0.1", "198.51.100.7", False),
        ("testclient", "other", False),
    ],
)
def test_who_has_many_addresses_is_one_caller(one: str, other: str, is_same: bool) -> None:
    assert (rate_limits.network_of(one) == rate_limits.network_of(other)) is is_same
