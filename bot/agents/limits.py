"""The limits of an agent, outside of the model: which decision is refused, and how much may be asked and spent.

The limits of every strategy (budget, leverage, markets, daily loss, protection) hold besides; the risk checks of the
daemon keep them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from bot.agents.answers import Decision, OpenDecision
from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS
from bot.strategy import Answered, OrderView, State, View

if TYPE_CHECKING:
    from bot.agents.params import AgentParams

# an entry may wait for approval or its plan for two bars; until then it counts as open
SENT_BARS = 3


def refusal(
    params: AgentParams, markets: Collection[str], view: View, at_ms: int, decision: Decision, decided: Collection[str]
) -> str | None:
    """Which limit refuses a decision;

    None if none does. `decided`: the markets of earlier decisions of the same answer.
    """
    if decision.action == "hold":
        return None
    if decision.action not in params.may:
        return f"may: {decision.action} is not in it"
    if decision.market not in markets:
        return "markets: it is not one of this strategy's"
    if decision.market in decided:
        return "one decision for each market in an answer"
    return _entry_refusal(params, view, at_ms, decision) if isinstance(decision, OpenDecision) else None


def _entry_refusal(params: AgentParams, view: View, at_ms: int, entry: OpenDecision) -> str | None:
    market = entry.market
    if entry.confidence < params.min_confidence:
        return f"min_confidence: {entry.confidence:g} is below {params.min_confidence:g}"
    if entry.usd > params.max_order_usd:
        return f"max_order_usd: {entry.usd:.2f} is above {params.max_order_usd:g}"
    position = view.position(market)
    held_usd = (0.0 if position is None else position.notional_usd) + _waiting_usd(view, market)
    if held_usd + entry.usd > params.max_equity_share * view.equity_usd:
        return f"max_equity_share: {held_usd + entry.usd:.2f} USD are above {params.max_equity_share:g} of the equity"
    waiting = {order.side for order in _resting(view, market)} | set(view.state.get("sent", {}).get(market, ())[2:])
    if waiting - {entry.side}:
        return "an entry on the other side waits: cancel it first"
    loss_ms = view.state.get("loss_ms")
    if loss_ms is not None and at_ms < loss_ms + params.cooldown_minutes * MINUTE_MS:
        return f"cooldown_minutes: less than {params.cooldown_minutes} minutes since a loss"
    if position is None:
        return None
    if position.side != entry.side:
        return "the position is on the other side: close it first"
    if position.unrealized_usd < 0 and not params.allow_averaging_down:
        return "allow_averaging_down: the position has a loss"
    px = entry.limit_px or position.mark_px
    stop_px = px * (1 - entry.stop_pct / 100 if entry.side == "long" else 1 + entry.stop_pct / 100)
    if position.stop_px is not None and (stop_px < position.stop_px) == (entry.side == "long"):
        return f"the stop at {position.stop_px:g} is not widened to {stop_px:.6g}"
    return None


def _waiting_usd(view: View, market: str) -> float:
    """Notional of entries that rest, or that were proposed and are not filled yet."""
    resting = sum(order.size * (order.limit_px or 0.0) for order in _resting(view, market))
    sent: Any = view.state.get("sent", {}).get(market)
    return max(resting, 0.0 if sent is None else float(sent[0]))


def _resting(view: View, market: str) -> list[OrderView]:
    return [order for order in view.orders(market) if order.kind == "limit"]


def entry_sent(state: State, market: str, side: str, usd: float) -> None:
    """Count an entry as open until it is filled, or for SENT_BARS."""
    before = state.get("sent", {}).get(market, [0.0])[0]
    state["sent"] = {**state.get("sent", {}), market: [before + usd, SENT_BARS, side]}


def bar_passed(state: State, market: str) -> None:
    """Count one bar of the market. An entry that is not filled after SENT_BARS is not counted any more."""
    if market in (sent := state.get("sent", {})):
        usd, bars, side = sent[market]
        state["sent"] = {**sent, market: [usd, bars - 1, side]}
        if bars <= 1:
            filled(state, market)


def filled(state: State, market: str) -> None:
    """An entry was filled, so its position counts instead."""
    state["sent"] = {name: sent for name, sent in state.get("sent", {}).items() if name != market}


# -- asks, tokens and USD


def begin_periods(state: State, at_ms: int) -> None:
    """Start the counters of a new hour or day (UTC)."""
    if at_ms // DAY_MS > state.get("day", -1):
        state.update(day=at_ms // DAY_MS, asks=0, tokens=0, usd=0.0)
    if at_ms // HOUR_MS > state.get("hour", -1):
        state.update(hour=at_ms // HOUR_MS, hour_asks=0)


# limits after which no question is asked before 00:00 UTC
OF_A_DAY: Final = ("asks_per_day", "tokens_per_day", "usd_per_day")


def spent(params: AgentParams, state: State, tokens: int, usd: float) -> str | None:
    """Which limit another question would exceed that takes at most so much; None if none."""
    for name, is_over in (
        ("asks_per_hour", state["hour_asks"] >= params.asks_per_hour),
        ("asks_per_day", state["asks"] >= params.asks_per_day),
        ("tokens_per_day", state["tokens"] + tokens > params.tokens_per_day),
        ("usd_per_day", state["usd"] + usd > params.usd_per_day),
    ):
        if is_over:
            return name
    return None


def reserve(state: State, tokens: int, usd: float) -> None:
    """Count a question at the most that it can take. After a crash this stays counted."""
    state.update(asks=state["asks"] + 1, hour_asks=state["hour_asks"] + 1)
    state.update(tokens=state["tokens"] + tokens, usd=state["usd"] + usd, reserved=[state["day"], tokens, usd])


def settle(state: State, answered: Answered) -> None:
    """Replace what was reserved by what was used. Without a known usage, what was reserved stays counted."""
    day, tokens, usd = state.pop("reserved", [None, 0, 0.0])
    if answered.usd is not None and day == state.get("day"):
        state["tokens"] = max(0, state["tokens"] - tokens + answered.tokens_in + answered.tokens_out)
        state["usd"] = max(0.0, round(state["usd"] - usd + answered.usd, 9))
