"""The fixed values of the interface. Requests accept only these; answers accept any text."""

from __future__ import annotations

from typing import Literal, get_args

from bot.clock import INTERVALS

Side = Literal["long", "short"]
Intent = Literal["open", "close"]
OrderType = Literal["market", "limit"]
LeverageMode = Literal["error", "clamp"]
Source = Literal["dashboard", "agent", "api"]
Scope = Literal["read", "trade", "trade:close_only", "outcomes"]
GuardianType = Literal["trailing_stop", "max_hold", "account_drawdown", "dead_man_switch", "schedule", "kill_switch"]
GuardianScope = Literal["account", "position"]
GuardianAction = Literal["flatten", "block_opens", "cancel_orders"]
AssetClass = Literal["stocks", "bonds", "crypto", "prediction", "all"]
MarketsView = Literal["trending", "opportunities", "all"]
Interval = Literal["1m", "5m", "15m", "1h", "4h", "1d"]
NavRange = Literal["1d", "7d", "30d", "all"]
FaultKind = Literal["delay", "drop", "status_429", "status_500", "lose_reply", "duplicate_event"]

# The largest pages of answers.
EVENTS_PAGE_MAX = 200
TRADES_PAGE_MAX = 200
CANDLES_MAX = 5_000

INTERVAL_MS: dict[str, int] = {name: INTERVALS[name] for name in get_args(Interval)}

EVENT_SUBTYPES: dict[str, tuple[str, ...]] = {
    "fill": ("entry", "exit"),
    "order": ("open", "armed", "changed", "canceled"),
    "trigger": ("stop_loss", "take_profit"),
    "guardian": ("armed", "activated", "fired", "released", "disarmed"),
    "funding": ("payment",),
    "liquidation": ("partial", "full", "backstop"),
    "settlement": ("settled",),
    "account": (
        "created",
        "reset",
        "settings",
        "leverage",
        "key_created",
        "key_revoked",
        "transfer",
        "margin",
        "link",
        "audit",
    ),
}
EVENT_FILTERS: frozenset[str] = frozenset(EVENT_SUBTYPES) | {
    f"{kind}.{sub}" for kind, subs in EVENT_SUBTYPES.items() for sub in subs
}


def bare_coin(market: str) -> str:
    """The name for comparisons:

    `perp:BTC`, `btc` and `BTC` are the same, and so are `event:SLUG` and `EVENT:slug`. The market may not exist.
    """
    if not market.isascii():
        # Only ASCII letters change case: the capital of the long s would be S.
        return market
    name = market.strip()
    if name[:6].lower() == "event:":
        return f"event:{name[6:].upper()}"
    return name[5:].upper() if name[:5].lower() == "perp:" else name.upper()
