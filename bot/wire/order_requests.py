"""Requests that place, plan, confirm, suggest, close and cancel orders, with the rules between fields.

Prices and sizes stay the text that was sent.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Self

from pydantic import model_validator

from bot.wire.base import (
    Bps,
    CoinName,
    Digits,
    Flag,
    Integer,
    Leverage,
    MarketName,
    Number,
    Request,
    Text,
    UsdAmount,
    refuse,
)
from bot.wire.guardian_requests import InlineGuardian
from bot.wire.vocabulary import Intent, LeverageMode, OrderType, Side, Source, bare_coin


def _positive(text: str | None, name: str) -> None:
    if text is not None and not text.strip("0."):
        refuse((name,), "must be > 0", "> 0")


class LegRequest(Request):
    """One leg of a bracket: a distance in percent, a price, or a multiple of the risk.

    The venue judges a multiple: a target needs a stop beside it, and a stop itself has nothing that it could multiply.
    """

    pct: Annotated[Decimal, Number()] | None = None
    px: Digits | None = None
    r: Annotated[Decimal, Number(gt=0)] | None = None

    @model_validator(mode="after")
    def _above_zero(self) -> Self:
        if self.pct is not None and self.pct <= 0:
            refuse(("pct",), "must be > 0", "> 0")
        _positive(self.px, "px")
        return self

    def given(self) -> list[str]:
        return [name for name in ("pct", "px", "r") if getattr(self, name) is not None]


class BracketRequest(Request):
    """Stop loss and take profit; at least one of them is required."""

    stop_loss: LegRequest | None = None
    take_profit: LegRequest | None = None

    @model_validator(mode="after")
    def _legs(self) -> Self:
        stop, target = self.stop_loss, self.take_profit
        if stop is None and target is None:
            refuse(("stopLoss",), "is required where takeProfit is not given", ["stopLoss", "takeProfit"])
        for name, leg, ways in (("stopLoss", stop, ["pct", "px"]), ("takeProfit", target, ["pct", "px", "r"])):
            if leg is not None and len(leg.given()) != 1:
                refuse((name,), f"takes exactly one of {', '.join(ways[:-1])} and {ways[-1]}", ways)
        return self


class OrderRequest(Request):
    """Body of POST /v1/orders."""

    market: MarketName
    side: Side
    usd_amount: UsdAmount | None = None
    size: Digits | None = None
    leverage: Leverage | None = None
    leverage_mode: LeverageMode = "error"
    type: OrderType = "market"
    limit_px: Digits | None = None
    max_slippage_bps: Bps | None = None
    allow_partial: Flag = False
    require_protection: Flag = False
    bracket: BracketRequest | None = None
    guardians: tuple[InlineGuardian, ...] = ()
    dry_run: Flag = False
    max_drift_bps: Annotated[int, Integer(1, 5000)] = 50
    acknowledge_leverage_change: Flag = False
    source: Source | None = None

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if self.usd_amount is None and self.size is None:
            refuse(("usdAmount",), "is required, or size: exactly one of the two", ["usdAmount", "size"])
        if self.usd_amount is not None and self.size is not None:
            refuse(("size",), "cannot be combined with usdAmount; give exactly one of the two", ["usdAmount", "size"])
        _positive(self.size, "size")
        _positive(self.limit_px, "limitPx")
        if self.type == "limit":
            if self.limit_px is None:
                refuse(("limitPx",), "is required for type limit")
            if self.max_slippage_bps is not None:
                refuse(("maxSlippageBps",), "belongs to type market only: limitPx bounds a limit order")
            if self.allow_partial:
                refuse(("allowPartial",), "belongs to type market only: the rest of a limit order stays open")
        elif self.limit_px is not None:
            refuse(("limitPx",), "belongs to type limit only")
        for index, guardian in enumerate(self.guardians):
            if guardian.market is not None and bare_coin(guardian.market) != bare_coin(self.market):
                refuse(("guardians", index, "market"), "must be the market of the order, or left out", [self.market])
        return self


class ConfirmRequest(Request):
    """Body of POST /v1/orders/confirm."""

    confirm_token: Annotated[str, Text(8, 128)]

    def __repr__(self) -> str:
        return "ConfirmRequest(...)"

    __str__ = __repr__


class SuggestRequest(Request):
    """Body of POST /v1/orders/suggest."""

    coin: CoinName
    intent: Intent = "open"
    side: Side = "long"
    notional_usd: UsdAmount | None = None
    size: Digits | None = None
    leverage: Leverage | None = None
    slippage_bps: Bps | None = None

    @model_validator(mode="after")
    def _rules(self) -> Self:
        _positive(self.size, "size")
        return self


class CloseRequest(Request):
    """Body of POST /v1/positions/{market}/close. An empty body closes the whole position."""

    fraction: Annotated[Decimal, Number(gt=0, le=1)] | None = None
    usd_amount: UsdAmount | None = None
    size: Digits | None = None
    slippage_bps: Bps | None = None
    source: Source | None = None

    @model_validator(mode="after")
    def _rules(self) -> Self:
        amounts = {"fraction": self.fraction, "usdAmount": self.usd_amount, "size": self.size}
        given = [name for name, value in amounts.items() if value is not None]
        if len(given) > 1:
            refuse((given[1],), "is one too many: at most one of fraction, usdAmount and size", list(amounts))
        _positive(self.size, "size")
        return self


class CancelCoinRequest(Request):
    """Body of DELETE /v1/orders."""

    coin: CoinName
