"""Each source of live prices names its exchange or its network, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bot.config.settings import LivePricesSettings


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"exchange": "kraken"}, "kraken"),
        ({"source": "ccxt", "exchange": "kraken"}, "kraken"),
        ({"source": "hyperliquid", "network": "testnet"}, "testnet"),
        ({"source": "hyperliquid", "network": "mainnet"}, "mainnet"),
        ({"source": "hyperliquid", "network": "3001"}, "3001"),
    ],
)
def test_a_source_has_its_place(given: dict[str, Any], place: str) -> None:
    assert LivePricesSettings.model_validate(given).place == place


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({}, "exchange", "is required with `source: ccxt`"),
        ({"network": "testnet"}, "network", "does not belong to `source: ccxt`; write `exchange`"),
        ({"source": "hyperliquid"}, "network", "is required with `source: hyperliquid`"),
        ({"source": "hyperliquid", "exchange": "testnet"}, "exchange", "does not belong to `source: hyperliquid`"),
        ({"source": "hyperliquid", "network": "moon"}, "network", "match pattern"),
        ({"source": "hyperliquid", "network": "0"}, "network", "match pattern"),
        ({"source": "kraken", "exchange": "kraken"}, "source", "'ccxt' or 'hyperliquid'"),
    ],
)
def test_a_source_with_a_wrong_place_is_refused_by_its_field(given: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        LivePricesSettings.model_validate(given)
    assert [(error["loc"][-1], message in error["msg"]) for error in raised.value.errors()] == [(where, True)]
