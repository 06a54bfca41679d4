"""The verifier of signatures recovers the signer of every vector, and another address for every wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bot.local_exchange.wire import signatures

SIGNER = "0x14791697260e4c9a71f18484c9f997b308e59325"


@pytest.fixture
def signing(shared: Path) -> Path:
    folder = shared / "data" / "hyperliquid" / "signing"
    if not folder.is_dir():
        pytest.skip("the signing vectors are not here")
    return folder


def recovered(vector: dict[str, Any]) -> str:
    action = vector.get("action") or vector.get("action_on_the_wire") or vector["action_signed"]
    if "type" not in action:
        action = {"type": "usdSend" if "usd_transfer" in vector["sdk_test"] else "withdraw3", **action}
    if vector.get("scheme", "l1").startswith("user"):
        return signatures.signer_of_user_action(action, vector["signature"])
    return signatures.signer_of_l1(
        action,
        vector["nonce"],
        vector.get("vaultAddress"),
        vector.get("expiresAfter"),
        vector["signature"],
        "mainnet" if vector["is_mainnet"] else "testnet",
    )


@pytest.mark.parametrize("name", ["vectors.json", "sdk_test_vectors.json"])
def test_the_signer_of_every_vector_is_recovered(name: str, signing: Path) -> None:
    vectors = json.loads((signing / name).read_text())["vectors"]
    assert len(vectors) in (21, 73)
    for vector in vectors:
        if vector.get("signature") is not None:
            assert recovered(vector) == SIGNER, vector
        if "connection_id" in vector:
            digest = signatures.connection_id(
                vector["action"], vector["nonce"], vector.get("vaultAddress"), vector.get("expiresAfter")
            )
            assert "0x" + digest.hex() == vector["connection_id"]


def test_every_wrong_input_recovers_the_address_that_the_exchange_would_name(signing: Path) -> None:
    rows = json.loads((signing / "wrong_inputs.json").read_text())["vectors"]
    assert len(rows) == 8
    for row in rows:
        assert recovered(row) == row["recovers_to"], row["what_is_wrong"]


@pytest.mark.parametrize(
    "signature",
    [
        {"r": "0x0", "s": "0x1", "v": 27},
        {"r": "0x1", "s": "0x1", "v": 99},
        {"r": "0x1", "s": "zz", "v": 27},
        {"r": "0x" + "f" * 64, "s": "0x1", "v": 27},
        {"s": "0x1", "v": 27},
        # no point of the curve has this x
        {"r": "0x5", "s": "0x1", "v": 27},
    ],
)
def test_a_signature_of_nobody_is_unrecoverable(signature: dict[str, Any]) -> None:
    with pytest.raises(signatures.Unrecoverable):
        signatures.signer_of_l1({"type": "noop"}, 1, None, None, signature, "testnet")
