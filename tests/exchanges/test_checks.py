"""What `bot exchange check` says about an account: one clear sentence for each fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bot.clock import DAY_MS, ManualClock
from bot.exchanges.hyperliquid.checks import CheckRequest, judge_clock, judge_network, read_checks
from bot.exchanges.hyperliquid.form import URLS
from tests.exchanges.sources import AGENT, InProcess, account_of, approve
from tests.local_exchange.exchanges import ANN, BOB, EVE, START_MS, Venue

URL = "http://localhost:3001"


async def checked(
    venue: Venue,
    address: str = ANN,
    *,
    agent: str | None = AGENT,
    markets: tuple[str, ...] = ("BTC", "xyz:TSLA"),
    network: str = "testnet",
    clock_ms: int | None = None,
    change: Callable[[InProcess], Any] = lambda source: None,
) -> dict[str, tuple[str, str]]:
    """Level and sentence of each check."""
    source, account = account_of(venue, address)
    change(source)
    clock = ManualClock(venue.exchange.now_ms if clock_ms is None else clock_ms)
    found = await read_checks(account, CheckRequest(network, URL, agent, markets), clock)
    return {one.check: (one.level, one.message) for one in found}


async def test_an_account_that_is_ready_has_no_warning() -> None:
    venue = Venue()
    approve(venue, ANN, AGENT)
    found = await checked(venue)
    assert {name: level for name, (level, _) in found.items()} == dict.fromkeys(
        ("network", "clock", "address", "agent", "mode", "markets"), "ok"
    )
    assert "'bot' until 2026-06-30" in found["agent"][1]


def test_the_address_of_the_other_network_is_refused() -> None:
    for network, other in (("mainnet", "testnet"), ("testnet", "mainnet")):
        check = judge_network(network, URLS[other])
        assert check.level == "fail"
        assert check.message == f"{URLS[other]} is {other}, but --network says {network}; change one of them"
        assert judge_network(network, URLS[network]).level == "ok"


async def test_a_wrong_network_sends_no_request() -> None:
    source, account = account_of(Venue())
    request = CheckRequest("testnet", URLS["mainnet"], AGENT, ())
    assert [one.check for one in await read_checks(account, request, ManualClock(START_MS))] == ["network"]
    assert source.asked == []


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "exchange_ms", "level", "words"),
    [
        (10_000, 10_400, 10_200, "ok", "less than 2 s"),
        # The answer may have been made at any instant between the two, so only what lies outside is a difference.
        (10_000, 20_000, 19_000, "ok", "less than 2 s"),
        (10_000, 10_400, 12_401, "warn", "2.0 s ahead of"),
        (10_000, 10_400, 7_999, "warn", "2.0 s behind"),
        (100_000, 100_400, 130_401, "fail", "30.0 s ahead of"),
        (100_000, 100_400, 69_999, "fail", "30.0 s behind"),
    ],
)
def test_a_clock_is_judged_by_what_the_duration_of_the_request_cannot_explain(
    before_ms: int, after_ms: int, exchange_ms: int, level: str, words: str
) -> None:
    check = judge_clock(before_ms, after_ms, exchange_ms)
    assert (check.level, words in check.message) == (level, True), check


FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "clock off": ({"clock_ms": START_MS - 60_000}, "clock", "fail", "at most 30 s are safe"),
    "unknown address": ({"address": EVE}, "address", "fail", "is not known on testnet"),
    "mode of an unknown address": ({"address": EVE}, "mode", "warn", "not known, because the address is no account"),
    "mode of an agent": ({"address": AGENT}, "mode", "warn", "not known, because the address is no account"),
    "address of an agent": ({"address": AGENT}, "address", "fail", f"give the address of its account, {ANN}"),
    "agent of another": ({"address": BOB}, "agent", "fail", f"is an agent of {ANN}, not of {BOB}"),
    "unknown agent": ({"agent": EVE}, "agent", "fail", "is no agent on testnet: it has expired, was revoked"),
    "key of the account": ({"agent": ANN}, "agent", "fail", "its key can withdraw"),
    "key of another account": ({"agent": BOB}, "agent", "fail", "its key can withdraw"),
    "no key": ({"agent": None}, "agent", "warn", "no key was checked"),
    "unlisted market": ({"markets": ("BTCC",)}, "markets", "fail", "BTCC is not listed; did you mean BTC?"),
    "unlisted dex": ({"markets": ("zzz:TSLA",)}, "markets", "fail", "zzz:TSLA is not listed"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_one_sentence_that_says_what_to_do(fault: str) -> None:
    given, name, level, words = FAULTS[fault]
    venue = Venue()
    approve(venue, ANN, AGENT)
    found = await checked(venue, **given)
    assert found[name][0] == level
    assert words in found[name][1]


async def test_an_agent_that_was_revoked_has_expired_or_has_no_name_is_named() -> None:
    venue = Venue()
    approve(venue, ANN, AGENT, f"bot valid_until {START_MS + 20 * DAY_MS}")
    assert (await checked(venue))["agent"][0] == "ok"
    venue.control("advance", ms=7 * DAY_MS)
    level, words = (await checked(venue))["agent"]
    assert (level, "expires on 2026-01-21 00:00 UTC" in words) == ("warn", True), words
    venue.control("advance", ms=13 * DAY_MS)
    level, words = (await checked(venue))["agent"]
    assert level == "fail"
    assert "expired on 2026-01-21" in words or "is no agent" in words
    venue.control("revoke_agent", address=AGENT)
    assert "is no agent on testnet" in (await checked(venue))["agent"][1]
    unnamed = "0x" + "c2" * 20
    approve(venue, ANN, unnamed, "")
    level, words = (await checked(venue, agent=unnamed))["agent"]
    assert (level, "does not list" in words) == ("warn", True), words


async def test_a_delisted_market_is_named() -> None:
    venue = Venue()
    venue.control("delist", coin="BTC")
    level, words = (await checked(venue))["markets"]
    assert (level, words) == ("fail", "BTC is delisted; choose another market")


@pytest.mark.parametrize(
    ("mode", "testnet", "mainnet"),
    [
        ("disabled", "ok", "ok"),
        ("default", "warn", "warn"),
        ("dexAbstraction", "warn", "fail"),
        ("unifiedAccount", "warn", "fail"),
        ("portfolioMargin", "warn", "fail"),
        ("somethingNew", "fail", "fail"),
        (None, "fail", "fail"),
    ],
)
async def test_a_mode_whose_totals_cannot_be_proved_is_refused_on_mainnet(
    mode: str | None, testnet: str, mainnet: str
) -> None:
    for network, level in (("testnet", testnet), ("mainnet", mainnet)):
        found = await checked(
            Venue(), network=network, change=lambda source: source.changes.update(userAbstraction=mode)
        )
        assert found["mode"][0] == level


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("meta", "markets"),
        ("l2Book", "clock"),
        ("userRole", "address"),
        ("extraAgents", "agent"),
        ("perpDexs", "markets"),
    ],
)
@pytest.mark.parametrize("answer", [None, 7, "text", [7], [{}], {"universe": [{}]}, {"role": "king"}, {"time": 10**30}])
async def test_an_answer_in_an_unknown_form_fails_its_check_alone_and_names_the_field(
    kind: str, name: str, answer: Any
) -> None:
    venue = Venue()
    approve(venue, ANN, AGENT)
    found = await checked(venue, change=lambda source: source.changes.update({kind: answer}))
    level, words = found[name]
    assert level == "fail"
    assert kind in words and "nothing of this answer is used" in words
    assert found["mode"][0] == ("fail" if kind == "userRole" else "ok")
