"""The market data source `hyperliquid`: `hyperliquid:testnet`, `hyperliquid:mainnet`, `hyperliquid:PORT`."""

from __future__ import annotations

from bot.exchanges.hyperliquid.live.exchange import url_of
from bot.exchanges.link.price_source import LinkSource
from bot.market_data.source import NotOffered


def open_source(argument: str) -> LinkSource:
    """The source of `hyperliquid:ARGUMENT`. NotOffered if it names no place."""
    if not argument:
        raise NotOffered("source hyperliquid: write hyperliquid:testnet, hyperliquid:mainnet or hyperliquid:PORT")
    url_of(argument)
    return LinkSource("hyperliquid", argument)
