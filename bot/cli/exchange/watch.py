"""`bot exchange watch`: an account at Hyperliquid as it changes, through the link. It cannot send an order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from bot.cli.common.param_types import Duration
from bot.cli.exchange.account import account_options
from bot.errors import Exit

if TYPE_CHECKING:
    from bot.exchanges.protocol import AccountReport, FundingReport, LiquidationReport, OrderUpdate, TransferReport

EPILOG: Final = """\b
Examples:
  bot exchange watch --network testnet --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1
  bot exchange watch --address 0x1a642f0e3c3af545e7acbd38b07251b3990914f1 --url http://localhost:3001 --for 1m --json

\b
Ctrl-C ends it. Needs the extra `exchange`, but no key.
"""


@click.command(epilog=EPILOG)
@account_options
@click.option("--for", "duration", type=Duration(), default=None, metavar="1m", help="End after this time.")
def watch(network: str, address: str, url: str | None, as_json: bool, duration: float | None) -> int:
    """Show fills, positions and open orders of an account at Hyperliquid as they change. Each fill is shown once.

    The first line says when everything until now is known; a gap in the connection is read again.
    """
    import asyncio
    import json
    from contextlib import suppress

    from bot.cli.exchange.link_health import health_line
    from bot.exchanges.link.client import ExchangeLink
    from bot.exchanges.link.values import packed

    async def follow() -> None:
        async with ExchangeLink("hyperliquid", url or network) as link:
            with suppress(TimeoutError):
                async with asyncio.timeout(duration):
                    seen: dict[str, Any] = {}
                    async for reports in link.account(address):
                        for report in reports:
                            if as_json:
                                kind, fields = packed(report)
                                click.echo(json.dumps({"kind": kind, **fields}))
                            else:
                                for line in lines_of(report, seen):
                                    click.echo(line)
            health = await link.health()
            if as_json:
                kind, fields = packed(health)
                click.echo(json.dumps({"kind": kind, **fields}))
            else:
                click.echo(health_line(health))

    with suppress(KeyboardInterrupt):
        asyncio.run(follow())
    return Exit.DONE


def lines_of(report: AccountReport, seen: dict[str, Any]) -> Iterator[str]:
    """A report as text; nothing for positions and orders that are as `seen` has them."""
    from bot.clock import iso
    from bot.exchanges.protocol import AccountStanding, ExecutionReport, LinkState, OpenOrders
    from bot.money import format_e8
    from bot.words import many

    if isinstance(report, LinkState):
        yield f"{iso(report.since_ms)} link {report.phase.replace('_', ' ')}" + (
            f": {report.reason}" if report.reason else ""
        )
    elif isinstance(report, ExecutionReport):
        side = "buys" if report.is_buy else "sells"
        text = f"{side} {format_e8(report.size)} {report.market} at {format_e8(report.px)}"
        fee = f"fee {format_e8(report.fee)} {report.fee_token}"
        yield f"{iso(report.at_ms)} fill {report.trade_id}: {text}, {fee}, position {format_e8(report.position_after)}"
    elif isinstance(report, OpenOrders):
        key, orders = f"orders {report.group}", report.orders
        if seen.get(key, ()) != orders:
            seen[key] = orders
            stops = sum(order.kind == "stop" and not order.is_waiting for order in orders)
            yield f"open orders{_of(report.group)}: {len(orders)}, {many(stops, 'stop')} among them"
    elif not isinstance(report, AccountStanding):
        yield f"{iso(report.at_ms)} {_event_line(report)}"
    else:
        key, sizes = (
            f"standing {report.group}",
            {position.market: position.signed_size for position in report.positions},
        )
        if seen.get(key, {}) != sizes:
            seen[key] = sizes
            held = ", ".join(f"{market} {format_e8(size)}" for market, size in sizes.items()) or "none"
            yield f"{iso(report.at_ms)} positions{_of(report.group)}: {held}; value {format_e8(report.value)} USD"


def _event_line(report: FundingReport | TransferReport | LiquidationReport | OrderUpdate) -> str:
    """A report of money or of an order as text, without its instant."""
    from bot.exchanges.protocol import FundingReport, LiquidationReport, TransferReport
    from bot.money import format_e8

    if isinstance(report, FundingReport):
        return f"funding of {report.market}: {format_e8(report.amount)} USD"
    if isinstance(report, TransferReport):
        amount = "an unknown amount" if report.amount is None else f"{format_e8(report.amount)} USD"
        return f"{report.kind}{_of(report.group)}: {amount}"
    if isinstance(report, LiquidationReport):
        return f"liquidation of {', '.join(f'{market} {format_e8(size)}' for market, size in report.positions)}"
    reason = "" if report.reason is None else f": {report.reason}"
    return f"order {report.order_id} of {report.market} {report.state}{reason}"


def _of(group: str) -> str:
    return f" of {group}" if group else ""
