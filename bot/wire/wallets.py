"""Public answers about wallets. They contain nothing that only the owner may see."""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from bot.wire.base import Amount, Num, Resource
from bot.wire.resources import Position


class WalletResult(Resource):
    address: str
    registered: bool
    nickname: str | None = None
    environment: str
    account_value_usd: Amount
    unrealized_pnl_usd: Amount
    positions: tuple[Position, ...] = ()
    updated_at: int


class WalletPositionsResult(Resource):
    address: str
    registered: bool
    positions: tuple[Position, ...] = ()


class PnlRanges(Resource):
    day: Amount = Field(alias="1d")
    week: Amount = Field(alias="7d")
    month: Amount = Field(alias="30d")
    all: Amount


class WalletPnlResult(Resource):
    """netPnlUsd = realised + unrealised - fees + funding - marginLostUsd + absorbedUsd."""

    address: str
    registered: bool
    realized_pnl_usd: Amount
    unrealized_pnl_usd: Amount
    fees_usd: Amount
    funding_usd: Amount
    margin_lost_usd: Amount = Decimal(0)
    absorbed_usd: Amount = Decimal(0)
    net_pnl_usd: Amount
    ranges: PnlRanges
    trades: int
    win_rate_pct: Num | None = None


class NavPoint(Resource):
    ts: int
    nav_usd: Amount


class WalletNavResult(Resource):
    """Answer of GET /v1/wallets/{address}/nav. `series` is None if the address is no account here."""

    address: str
    registered: bool
    range: str
    nav_usd: Amount
    series: tuple[NavPoint, ...] | None = None
