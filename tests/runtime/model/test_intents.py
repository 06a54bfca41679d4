"""The id of a decision: the same on every host, and different for every other decision. And the moves of an intent."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.runtime.model.intents import FINAL, INTENT_MOVES, intent_key

DECISION: dict[str, Any] = {
    "address": "0x" + "ab" * 20,
    "epoch": 0,
    "strategy": "btc-trend",
    "market": "BTC",
    "trigger": "bar:BTC:1748736060000",
    "ordinal": 0,
    "leg": "order",
}

GOLDEN = [
    ({}, "YPAZFBYUNFQ63HMQIXVRMKZBESLUO5PB"),
    ({"epoch": 1}, "344JWFLX5ZTSR5CB265SCNCUXTZTXQOJ"),
    ({"ordinal": 1}, "DYTNYPYGIETVNMBKQRPNQX4VSD32PV7C"),
    ({"market": "event:RAIN-2026", "trigger": "event:evt_0000000042"}, "6F5EASVCI27PNVD7R72HX57PU2HAAC2E"),
    ({"strategy": "größer"}, "HVLELT22674GY7L6WZ6JLRIYTUGYHMPV"),
]


@pytest.mark.parametrize(("change", "key"), GOLDEN)
def test_a_decision_has_the_same_key_in_every_release(change: dict[str, Any], key: str) -> None:
    assert intent_key(**{**DECISION, **change}) == key


def test_the_key_is_the_hash_of_its_parts() -> None:
    parts = "\x1f".join(
        str(DECISION[name]) for name in ("address", "epoch", "strategy", "market", "trigger", "ordinal", "leg")
    )
    assert intent_key(**DECISION) == b32encode(hashlib.sha256(parts.encode()).digest())[:32].decode()


TEXT = st.text(st.characters(exclude_characters="\x1f", codec="utf-8"), max_size=12)
PARTS = st.fixed_dictionaries(
    {
        "address": TEXT,
        "epoch": st.integers(0, 9),
        "strategy": TEXT,
        "market": TEXT,
        "trigger": TEXT,
        "ordinal": st.integers(0, 9),
        "leg": TEXT,
    }
)


@given(PARTS, PARTS)
def test_two_different_decisions_never_share_a_key(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (intent_key(**a) == intent_key(**b)) == (a == b)
    assert len(intent_key(**a)) == 32
    assert intent_key(**a).isascii()


def test_only_the_four_final_states_have_no_move() -> None:
    assert {"accepted", "rejected", "expired", "void"} == FINAL
    assert all(moves <= INTENT_MOVES.keys() for moves in INTENT_MOVES.values())
    assert "quarantined" in INTENT_MOVES["sending"]
    assert not any("opened" in moves for moves in INTENT_MOVES.values()), "nothing goes back"
