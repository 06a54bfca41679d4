"""The summary at the end of `bot demo` and `bot paper`: trades, fees and profit of the account, and the counts of
bars and decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from bot.cli.common.event_lines import Counts
from bot.client import Client
from bot.errors import ApiError
from bot.number_text import cost_usd, duration, pct, signed_usd, usd

PAGE: Final = 200
PAGES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Tally:
    """Figures of the account since it was opened. `complete` is False if there were more trades than were read."""

    trades: int
    fees_usd: Decimal
    realized_usd: Decimal
    unrealized_usd: Decimal
    value_usd: Decimal
    complete: bool = True


async def start_value(client: Client) -> Decimal:
    """The account's starting balance, from its first event. It is the same in a continued run."""
    page = await client.events(None, limit=1)
    for event in page.events:
        begun = getattr(event.data, "balance_usd", None)
        if event.type == "account" and isinstance(begun, Decimal):
            return begun
    return (await client.account()).account_value_usd


async def tally(client: Client) -> Tally | None:
    """Read the figures from the service; None if it does not answer."""
    trades, fees, realized = 0, Decimal(0), Decimal(0)
    before: int | None = None
    try:
        account = await client.account()
        for _ in range(PAGES_MAX):
            page = await client.trades(limit=PAGE, before=before)
            for trade in page.trades:
                trades += 1 if trade.filled_size else 0
                fees += trade.fee_usd or Decimal(0)
                realized += trade.realized_pnl_usd or Decimal(0)
            before = page.next_before
            if before is None:
                break
    except ApiError:
        return None
    return Tally(trades, fees, realized, account.unrealized_pnl_usd, account.account_value_usd, before is None)


def summary_lines(
    *, counts: Counts, start_usd: Decimal, end: Tally | None, real_s: float, speed: float, continued: bool
) -> list[str]:
    faster = "" if speed == 1 else f" at {speed:g}x, which is {duration(real_s * speed)} of the service's time"
    lines = [f"Summary of {duration(real_s)}{faster}"]
    lines.append(f"  bars        {counts.bars:>12,}    decisions   {counts.decisions:>12,}")
    if end is None:
        return [*lines, "  the service did not answer, so the account's figures are missing"]
    change = end.value_usd - start_usd
    gain = change / start_usd * 100 if start_usd else Decimal(0)
    since = " (since the account was opened)" if continued else ""
    lines.append(f"  trades      {end.trades:>12,}    fees        {cost_usd(end.fees_usd):>12} USD{since}")
    lines.append(
        f"  realised    {signed_usd(end.realized_usd):>12}    unrealised  {signed_usd(end.unrealized_usd):>12} USD"
    )
    lines.append(f"  value from  {usd(start_usd):>12}    to          {usd(end.value_usd):>12} USD ({pct(gain)})")
    return lines


def summary_data(
    *, counts: Counts, start_usd: Decimal, end: Tally | None, real_s: float, speed: float, continued: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "realSeconds": round(real_s, 1),
        "speed": speed,
        "continued": continued,
        "bars": counts.bars,
        "decisions": counts.decisions,
        "accepted": counts.accepted,
        "refused": counts.refused,
        "fills": counts.fills,
        "startValueUsd": f"{start_usd:f}",
    }
    if end is not None:
        data |= {
            "trades": end.trades,
            "feesUsd": f"{end.fees_usd:f}",
            "realizedPnlUsd": f"{end.realized_usd:f}",
            "unrealizedPnlUsd": f"{end.unrealized_usd:f}",
            "endValueUsd": f"{end.value_usd:f}",
            "complete": end.complete,
        }
    return data
