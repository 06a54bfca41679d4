"""Nonces, noop, expiry and agents: which requests act, which are refused, and which refusals use the nonce."""

from __future__ import annotations

from typing import Any

import pytest

from bot.local_exchange.engine.state import account_id
from tests.local_exchange.exchanges import ANN, BOB, BTC, START_MS, Venue, limit

DAY_MS = 86_400_000
NOOP = {"type": "noop"}
AGENT, SECOND, THIRD = ("0x" + pair * 20 for pair in ("c1", "c2", "c3"))
ORDER = {"type": "order", "orders": [limit(BTC, "B", "0.01", "99000")], "grouping": "na"}
OK = {"status": "ok", "response": {"type": "default"}}


def refused(answer: Any) -> str:
    assert answer["status"] == "err", answer
    return str(answer["response"])


def approve(venue: Venue, agent: str, name: str = "") -> Any:
    nonce = venue.nonce()
    action = {
        "type": "approveAgent",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "agentAddress": agent,
        "nonce": nonce,
        **({"agentName": name} if name else {}),
    }
    return venue.act(ANN, action, nonce=nonce)


def test_the_window_is_two_days_back_and_one_day_ahead() -> None:
    venue = Venue()
    for nonce in (START_MS - 2 * DAY_MS + 1, START_MS + DAY_MS - 1):
        assert venue.act(ANN, NOOP, nonce=nonce) == OK
    low, high = START_MS - 2 * DAY_MS, START_MS + DAY_MS
    assert refused(venue.act(ANN, NOOP, nonce=low)) == f"Invalid nonce: nonce too low {low} < {low}"
    assert refused(venue.act(ANN, NOOP, nonce=high)) == f"Invalid nonce: nonce too high {high} > {high}"
    assert "too high" in refused(venue.act("0x" + "9" * 40, NOOP, nonce=high)), "the window comes before the signer"


def test_an_unseen_nonce_below_the_hundred_highest_is_too_low_and_a_seen_one_stays_a_duplicate() -> None:
    venue = Venue()
    nonces = list(range(START_MS, START_MS + 202, 2))
    for nonce in nonces:
        assert venue.act(ANN, NOOP, nonce=nonce) == OK
    assert refused(venue.act(ANN, NOOP, nonce=nonces[0])) == f"Invalid nonce: duplicate nonce {nonces[0]}"
    below = nonces[1] - 1
    assert refused(venue.act(ANN, NOOP, nonce=below)) == f"Invalid nonce: nonce too low {below} < {nonces[1]}"
    assert venue.act(ANN, NOOP, nonce=nonces[1] + 1) == OK


def test_nonces_are_kept_for_each_signer() -> None:
    venue = Venue()
    assert approve(venue, AGENT) == OK
    assert venue.act(ANN, NOOP, nonce=START_MS + 500) == OK
    assert venue.act(AGENT, NOOP, nonce=START_MS + 500) == OK
    assert "duplicate" in refused(venue.act(AGENT, NOOP, nonce=START_MS + 500))


@pytest.mark.parametrize(
    ("action", "more"),
    [
        ({**ORDER, "orders": [limit(BTC, "B", "0.01", "99000.123")]}, {}),
        ({**ORDER, "orders": [limit(BTC, "B", "100", "99000")]}, {}),
        (ORDER, {"expires": START_MS - 1}),
        ({"type": "scheduleCancel", "time": START_MS + 60_000}, {}),
    ],
    ids=["tick", "margin", "expired", "gate"],
)
def test_a_refusal_by_the_rules_uses_the_nonce(action: Any, more: Any) -> None:
    venue = Venue()
    venue.act(ANN, action, nonce=START_MS, **more)
    assert "duplicate" in refused(venue.act(ANN, NOOP, nonce=START_MS))


def test_an_unknown_vault_and_an_unknown_signer_do_not_use_the_nonce() -> None:
    venue = Venue()
    other = "0x" + "7" * 40
    assert refused(venue.act(ANN, ORDER, nonce=START_MS, vault=other)) == f"Vault not registered: {other}"
    assert refused(venue.act(ANN, ORDER, nonce=START_MS, vault=BOB)) == f"Vault not registered: {BOB}"
    assert refused(venue.act(other, ORDER, nonce=START_MS)) == f"User or API Wallet {other} does not exist."
    assert venue.act(ANN, ORDER, nonce=START_MS)["status"] == "ok"


def test_an_expired_action_is_refused_and_costs_five_times_the_budget() -> None:
    venue = Venue()
    assert refused(venue.act(ANN, ORDER, expires=START_MS - 1)) == "Action already expired"
    assert venue.info("userRateLimit", user=ANN)["nRequestsUsed"] == 5
    assert venue.act(ANN, ORDER, expires=START_MS)["status"] == "ok"


def test_agents_act_for_their_master_until_they_are_replaced_or_expire() -> None:
    venue = Venue()
    assert approve(venue, AGENT, "bot") == OK
    assert venue.act(AGENT, ORDER)["status"] == "ok"
    assert len(venue.info("openOrders", user=ANN)) == 1
    assert venue.info("openOrders", user=AGENT) == [], "an agent owns nothing"
    assert venue.info("userRole", user=AGENT) == {"role": "agent", "data": {"user": ANN}}
    assert approve(venue, SECOND, f"bot valid_until {START_MS + 60_000}") == OK
    assert refused(venue.act(AGENT, ORDER)) == f"User or API Wallet {AGENT} does not exist."
    assert venue.info("extraAgents", user=ANN) == [{"name": "bot", "address": SECOND, "validUntil": START_MS + 60_000}]
    assert venue.act(SECOND, ORDER)["status"] == "ok"
    venue.control("advance", ms=60_000)
    assert "does not exist" in refused(venue.act(SECOND, ORDER))
    assert refused(approve(venue, AGENT, "bot")) == "Extra agent already used."


def test_an_address_has_one_unnamed_and_three_named_agents() -> None:
    venue = Venue()
    for number in range(3):
        assert approve(venue, f"0x{number:040x}1"[:2] + f"{number + 1:040x}", f"agent {number}") == OK
    assert refused(approve(venue, AGENT, "fourth")).startswith("Too many extra agents for cumulative volume traded.")
    assert approve(venue, AGENT) == OK
    assert refused(approve(venue, SECOND, "a name that is too long")).startswith(
        "Extra agent name must be between 1 and 16"
    )
    assert approve(venue, SECOND) == OK, "a new unnamed agent replaces the old one"
    assert "does not exist" in refused(venue.act(AGENT, NOOP))
    assert approve(venue, "0x" + "0" * 40, "agent 0") == OK, "the zero address removes an agent"
    assert [row["name"] for row in venue.info("extraAgents", user=ANN)] == ["agent 1", "agent 2"]


def test_a_replaced_agent_loses_its_nonces_if_the_switch_says_so() -> None:
    venue = Venue(switches={"agent_replaced": "pruned"})
    approve(venue, AGENT)
    venue.act(AGENT, NOOP, nonce=START_MS + 7)
    approve(venue, SECOND)
    assert approve(venue, AGENT) == OK
    assert venue.act(AGENT, NOOP, nonce=START_MS + 7) == OK, "the old action can be replayed"


def test_a_user_signed_action_needs_the_own_key_of_a_funded_account() -> None:
    venue = Venue()
    approve(venue, AGENT)
    nonce = venue.nonce()
    action = {
        "type": "usdClassTransfer",
        "hyperliquidChain": "Testnet",
        "signatureChainId": "0x66eee",
        "amount": "1",
        "toPerp": False,
    }
    answer = venue.act(AGENT, {**action, "nonce": nonce}, nonce=nonce)
    assert refused(answer) == f"Must deposit before performing actions. User: {AGENT}"
    assert venue.act(ANN, {**action, "nonce": nonce}, nonce=nonce) == OK
    assert venue.info("spotClearinghouseState", user=ANN)["balances"][0]["total"] == "1.0"


def test_the_address_budget_ends_with_one_action_in_ten_seconds() -> None:
    venue = Venue()
    venue.control("empty_budget", address=ANN)
    assert refused(venue.act(ANN, ORDER)).startswith("Too many cumulative requests sent (")
    venue.control("advance", ms=10_000)
    assert venue.act(ANN, ORDER)["status"] == "ok"
    assert "Too many cumulative requests" in refused(venue.act(ANN, ORDER))
    fresh = Venue()
    fresh.exchange.users[ANN].requests = 10_000
    fresh.exchange.users[ANN].next_spare_ms = START_MS + 1
    assert "Too many" in refused(fresh.act(ANN, ORDER))
    assert fresh.act(ANN, NOOP) == OK, "cancels and noop have a larger budget"


def test_a_sub_account_acts_through_the_vault_address_of_its_master() -> None:
    venue = Venue()
    sub = venue.act(ANN, {"type": "createSubAccount", "name": "second"})["response"]["data"]
    assert (
        venue.act(ANN, {"type": "subAccountTransfer", "subAccountUser": sub, "isDeposit": True, "usd": 500_000_000})
        == OK
    )
    assert venue.act(ANN, ORDER, vault=sub)["status"] == "ok"
    assert len(venue.info("openOrders", user=sub)) == 1
    assert venue.info("userRole", user=sub) == {"role": "subAccount", "data": {"master": ANN}}
    assert venue.exchange.raw[account_id(sub, "")].usd == 500 * 10**8
    assert venue.info("subAccounts", user=ANN)[0]["name"] == "second"
