"""What `bot exchange status` shows: an account as the exchange says it, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bot.cli.common.text_table import screen_width, table_lines
from bot.clock import Clock, iso
from bot.errors import ConfigError
from bot.exchanges.hyperliquid.account import Fills, HyperliquidAccount
from bot.exchanges.hyperliquid.checks import clock_difference_ms
from bot.exchanges.hyperliquid.fill_order import gaps
from bot.exchanges.hyperliquid.form import MAIN_DEX, dex_of
from bot.exchanges.protocol import (
    AccountStanding,
    AgentReport,
    ExecutionReport,
    OrderReport,
    PositionReport,
    RequestBudget,
)
from bot.money import format_e8
from bot.words import did_you_mean, many


@dataclass(frozen=True, slots=True)
class ExchangeReading:
    """Answers of the exchange, read one after the other: they need not be of one instant."""

    standing: AccountStanding
    orders: tuple[OrderReport, ...]
    fills: Fills
    since_ms: int
    budget: RequestBudget
    agents: tuple[AgentReport, ...]
    # the exchange's clock less ours
    clock_difference_ms: int

    def as_json(self) -> dict[str, Any]:
        standing = self.standing
        return {
            "asOf": standing.at_ms,
            "cashUsd": format_e8(standing.cash),
            "valueUsd": format_e8(standing.value),
            "marginUsedUsd": format_e8(standing.margin_used),
            "withdrawableUsd": format_e8(standing.withdrawable),
            "positions": [
                position_json(position) | {"stopIds": [stop.order_id for stop in self._stops_of(position)]}
                for position in standing.positions
            ],
            "orders": [order_json(order) for order in self.orders],
            "fillsSince": self.since_ms,
            "fills": [fill_json(fill) for fill in self.fills.reports],
            "olderFillsMayBeMissing": self.fills.is_cut,
            "missingBeforeTradeIds": [gap.trade_id for gap in gaps(self.fills.reports)],
            "budget": {"used": self.budget.used, "most": self.budget.most},
        }

    def _stops_of(self, position: PositionReport) -> list[OrderReport]:
        """Orders that stop a loss of this position. A stop that waits for its entry protects nothing yet."""
        is_long = position.signed_size > 0
        return [
            order
            for order in self.orders
            if order.kind == "stop" and order.market == position.market and order.is_buy != is_long
            if order.is_reduce_only and not order.is_waiting
        ]

    def lines(self) -> list[str]:
        standing, width = self.standing, screen_width()
        money = f"value {format_e8(standing.value)} USD, withdrawable {format_e8(standing.withdrawable)} USD"
        text_lines = [f"{money}, as of {iso(standing.at_ms)}", ""]
        positions = [
            [
                position.market,
                format_e8(position.signed_size),
                format_e8(position.entry_px),
                format_e8(position.unrealized),
                ", ".join(stop_text(stop, position) for stop in self._stops_of(position)) or "NO STOP",
            ]
            for position in standing.positions
        ]
        text_lines += part("positions", ["market", "size", "entry", "unrealized", "stop"], positions, width)
        orders = [
            [
                order.market,
                f"{order.kind}, waits for its entry" if order.is_waiting else order.kind,
                "buy" if order.is_buy else "sell",
                size_text(order),
                format_e8(order.px),
                "" if order.trigger_px is None else format_e8(order.trigger_px),
                order.order_id,
            ]
            for order in self.orders
        ]
        text_lines += part("open orders", ["market", "kind", "side", "size", "price", "trigger", "id"], orders, width)
        fills = [
            [
                iso(fill.at_ms),
                fill.market,
                "buy" if fill.is_buy else "sell",
                format_e8(fill.size),
                format_e8(fill.px),
                f"{format_e8(fill.fee)} {fill.fee_token}",
                format_e8(fill.position_after),
            ]
            for fill in self.fills.reports
        ]
        heads = ["time", "market", "side", "size", "price", "fee", "position after"]
        text_lines += part(f"fills since {iso(self.since_ms)}", heads, fills, width)
        text_lines += [
            f"before fill {gap.trade_id} of {gap.market} at {iso(gap.at_ms)}: the exchange left out at least one fill"
            for gap in gaps(self.fills.reports)
        ]
        if self.fills.is_cut:
            text_lines.append(
                "older fills may be missing: the exchange keeps only the newest 10,000; choose a later --since"
            )
        return [*text_lines, f"request budget: {self.budget.used:,} of {self.budget.most:,} used"]


def part(title: str, heads: list[str], rows: list[list[str]], width: int | None) -> list[str]:
    """A titled table, or a line that says that there is nothing."""
    if not rows:
        return [f"{title}: none", ""]
    return [f"{title}: {many(len(rows), 'row')}", *table_lines(heads, rows, width=width), ""]


def size_text(order: OrderReport) -> str:
    return "whole position" if order.is_for_position and not order.size else format_e8(order.size)


def stop_text(stop: OrderReport, position: PositionReport) -> str:
    """The trigger of a stop, and the size of one that is smaller than its position."""
    text = format_e8(stop.trigger_px or 0)
    is_whole = (stop.is_for_position and not stop.size) or stop.size >= abs(position.signed_size)
    return text if is_whole else f"{text} for {format_e8(stop.size)} only"


def position_json(position: PositionReport) -> dict[str, Any]:
    return {
        "market": position.market,
        "size": format_e8(position.signed_size),
        "entryPx": format_e8(position.entry_px),
        "leverage": position.leverage,
        "isIsolated": position.is_isolated,
        "marginUsd": format_e8(position.margin),
        "unrealizedUsd": format_e8(position.unrealized),
        "liquidationPx": None if position.liquidation_px is None else format_e8(position.liquidation_px),
    }


def order_json(order: OrderReport) -> dict[str, Any]:
    return {
        "id": order.order_id,
        "clientOrderId": order.client_order_id,
        "market": order.market,
        "side": "buy" if order.is_buy else "sell",
        "kind": order.kind,
        "size": format_e8(order.size),
        "px": format_e8(order.px),
        "triggerPx": None if order.trigger_px is None else format_e8(order.trigger_px),
        "isReduceOnly": order.is_reduce_only,
        "isForPosition": order.is_for_position,
        "isWaiting": order.is_waiting,
        "placedMs": order.placed_ms,
    }


def fill_json(fill: ExecutionReport) -> dict[str, Any]:
    return {
        "time": fill.at_ms,
        "market": fill.market,
        "tradeId": fill.trade_id,
        "orderId": fill.order_id,
        "clientOrderId": fill.client_order_id,
        "side": "buy" if fill.is_buy else "sell",
        "size": format_e8(fill.size),
        "px": format_e8(fill.px),
        "fee": format_e8(fill.fee),
        "feeToken": fill.fee_token,
        "positionBefore": format_e8(fill.position_before),
        "isTaker": fill.is_taker,
        "isLiquidation": fill.is_liquidation,
    }


async def read_status(account: HyperliquidAccount, dex: str, span_ms: int, clock: Clock) -> ExchangeReading:
    """Read the account in one dex. The span of the fills ends at the exchange's instant of the positions.

    ConfigError if there is no such dex: the exchange answers requests for it as if the exchange itself had failed.
    """
    if dex != MAIN_DEX:
        names = await account.dex_names()
        if dex not in names:
            raise ConfigError(
                f"--dex {dex}: is not listed{did_you_mean(dex, names) or '; `perpDexs` of the exchange names all'}"
            )
    before_ms = clock.now_ms()
    standing = await account.standing(dex)
    difference_ms = clock_difference_ms(before_ms, clock.now_ms(), standing.at_ms)
    orders = await account.open_orders(dex)
    since_ms = max(0, standing.at_ms - span_ms)
    fills = await account.fills(since_ms, standing.at_ms)
    own = tuple(fill for fill in fills.reports if dex_of(fill.market) == dex)
    budget, agents = await account.budget(), tuple(await account.agents())
    known = Fills(own, fills.is_cut)
    return ExchangeReading(standing, tuple(orders), known, since_ms, budget, agents, difference_ms)
