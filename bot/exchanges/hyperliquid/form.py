"""Answers of `/info`, from the wire form to neutral values.

Pure. UnknownForm for an answer that is not in a known form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of, unknown
from bot.exchanges.protocol import (
    AccountStanding,
    AddressReport,
    AgentReport,
    ExecutionReport,
    FillKind,
    MarketListing,
    OrderKind,
    OrderReport,
    PositionReport,
    RequestBudget,
    Role,
)

URLS: Final = {"mainnet": "https://api.hyperliquid.xyz", "testnet": "https://api.hyperliquid-testnet.xyz"}
MAIN_DEX: Final = ""
ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
IS_BUY: Final = {"B": True, "A": False}
ROLES: Final[Mapping[str, Role]] = {
    "user": "account",
    "agent": "agent",
    "subAccount": "sub_account",
    "vault": "vault",
    "missing": "unknown",
}
# Field of `data` that names the owner of an address of this role.
OWNER_FIELDS: Final = {"agent": "user", "subAccount": "master"}
ORDER_KINDS: Final[Mapping[str, OrderKind]] = {
    "Limit": "limit",
    "Market": "market",
    "Stop Market": "stop",
    "Stop Limit": "stop",
    "Take Profit Market": "target",
    "Take Profit Limit": "target",
}
LIQUIDATION_KINDS: Final[Mapping[str, FillKind]] = {"market": "liquidation", "backstop": "backstop"}
DELEVERAGED: Final = "Auto-Deleveraging"
# Mode of an account -> what it is called in the sentences of `check`.
ACCOUNT_MODES: Final = {
    "disabled": "standard",
    "default": "default",
    "dexAbstraction": "dex abstraction",
    "unifiedAccount": "unified",
    "portfolioMargin": "portfolio margin",
}


def dex_of(market: str) -> str:
    """The dex of a market: `xyz` of `xyz:TSLA`, and the main dex of `BTC`."""
    return market.rpartition(":")[0]


def listings(answer: Any) -> list[MarketListing]:
    """Markets of `meta`, in the order of their asset numbers."""
    return [
        MarketListing(
            market=row.text("name"),
            size_decimals=row.whole("szDecimals"),
            max_leverage=row.whole("maxLeverage"),
            is_isolated_only=(row.has("onlyIsolated") and row.flag("onlyIsolated")) or row.has("marginMode"),
            is_delisted=row.has("isDelisted") and row.flag("isDelisted"),
        )
        for row in JsonRow(answer, "meta").rows("universe")
    ]


def dex_names(answer: Any) -> list[str]:
    """Names of `perpDexs`; the main dex has none and stands there as null."""
    if not isinstance(answer, list):
        raise unknown("perpDexs", "a list", answer)
    named = [entry for entry in answer if entry is not None]
    return [row.text("name") for row in rows_of(named, "perpDexs")]


def book_time(answer: Any) -> int:
    """The exchange's instant of an `l2Book`."""
    return JsonRow(answer, "l2Book").instant("time")


def standing(answer: Any, dex: str = "") -> AccountStanding:
    """Money and positions of `clearinghouseState` in one dex."""
    row = JsonRow(answer, "clearinghouseState")
    summary = row.row("marginSummary")
    return AccountStanding(
        at_ms=row.instant("time"),
        cash=summary.amount("totalRawUsd"),
        value=summary.amount("accountValue"),
        margin_used=summary.amount("totalMarginUsed"),
        withdrawable=row.amount("withdrawable"),
        positions=tuple(_position(entry) for entry in row.rows("assetPositions")),
        group=dex,
    )


def _position(row: JsonRow) -> PositionReport:
    row.choice("type", {"oneWay": True})
    held = row.row("position")
    leverage = held.row("leverage")
    return PositionReport(
        market=held.text("coin"),
        signed_size=held.amount("szi"),
        entry_px=held.size("entryPx"),
        leverage=leverage.whole("value"),
        is_isolated=leverage.choice("type", {"isolated": True, "cross": False}),
        margin=held.amount("marginUsed"),
        unrealized=held.amount("unrealizedPnl"),
        liquidation_px=held.size("liquidationPx") if held.has("liquidationPx") else None,
    )


def open_orders(answer: Any) -> list[OrderReport]:
    """Orders of `frontendOpenOrders`, each of them once.

    Children that wait for their entry stand in its `children`, and on some answers as rows of their own besides.
    """
    rows = list(rows_of(answer, "frontendOpenOrders"))
    children = [child for row in rows for child in row.rows("children")]
    waiting = {child.whole("oid") for child in children}
    orders = {row.whole("oid"): _order(row, is_waiting=row.whole("oid") in waiting) for row in [*children, *rows]}
    return list(orders.values())


def _order(row: JsonRow, *, is_waiting: bool) -> OrderReport:
    return OrderReport(
        order_id=str(row.whole("oid")),
        client_order_id=row.text("cloid") if row.has("cloid") else None,
        market=row.text("coin"),
        is_buy=row.choice("side", IS_BUY),
        kind=row.choice("orderType", ORDER_KINDS),
        size=row.size("sz"),
        px=row.size("limitPx"),
        trigger_px=row.size("triggerPx") if row.flag("isTrigger") else None,
        is_reduce_only=row.flag("reduceOnly"),
        is_for_position=row.flag("isPositionTpsl"),
        is_waiting=is_waiting,
        placed_ms=row.instant("timestamp"),
    )


def is_perpetual(coin: str) -> bool:
    """False for spot pairs (`PURR/USDC`, `@107`) and outcomes (`#5`), which this package does not read."""
    return bool(coin) and "/" not in coin and coin[0] not in "@#+"


def fills(answer: Any, user: str, where: str = "userFillsByTime") -> list[ExecutionReport]:
    """Fills of this user in perpetual markets, in the order of the answer."""
    return [_fill(row, user) for row in rows_of(answer, where) if is_perpetual(row.text("coin"))]


def _fill_kind(row: JsonRow, user: str) -> FillKind:
    """The fills of those who trade against a liquidated account name the liquidation too."""
    if row.has("liquidation"):
        liquidation = row.row("liquidation")
        if liquidation.text("liquidatedUser").lower() == user:
            return liquidation.choice("method", LIQUIDATION_KINDS)
    return "adl" if row.has("dir") and row.text("dir") == DELEVERAGED else "fill"


def _fill(row: JsonRow, user: str) -> ExecutionReport:
    size = row.size("sz")
    if not size:
        raise unknown(f"{row.where}.sz", "a positive size", row.text("sz"))
    return ExecutionReport(
        market=row.text("coin"),
        at_ms=row.instant("time"),
        trade_id=row.whole("tid"),
        order_id=str(row.whole("oid")),
        client_order_id=row.text("cloid") if row.has("cloid") else None,
        is_buy=row.choice("side", IS_BUY),
        size=size,
        px=row.size("px"),
        fee=row.amount("fee"),
        fee_token=row.text("feeToken"),
        position_before=row.amount("startPosition"),
        is_taker=row.flag("crossed"),
        kind=_fill_kind(row, user),
    )


def address_report(answer: Any) -> AddressReport:
    """What `userRole` says about an address."""
    row = JsonRow(answer, "userRole")
    role, owner = row.choice("role", ROLES), OWNER_FIELDS.get(row.text("role"))
    if owner is None:
        return AddressReport(role)
    return AddressReport(role, _address(row.row("data"), owner))


def agents(answer: Any) -> list[AgentReport]:
    """Named agents of `extraAgents`."""
    return [
        AgentReport(
            _address(row, "address"), row.text("name"), row.instant("validUntil") if row.has("validUntil") else None
        )
        for row in rows_of(answer, "extraAgents")
    ]


def _address(row: JsonRow, name: str) -> str:
    text = row.text(name)
    if not ADDRESS.fullmatch(text):
        raise unknown(f"{row.where}.{name}", "an address", text)
    return text.lower()


def account_mode(answer: Any) -> str:
    """The mode of `userAbstraction`, a key of ACCOUNT_MODES."""
    if not isinstance(answer, str) or answer not in ACCOUNT_MODES:
        raise unknown("userAbstraction", f"one of {', '.join(ACCOUNT_MODES)}", answer)
    return answer


def request_budget(answer: Any) -> RequestBudget:
    """Used and allowed actions of `userRateLimit`."""
    row = JsonRow(answer, "userRateLimit")
    return RequestBudget(row.whole("nRequestsUsed"), row.whole("nRequestsCap"))
