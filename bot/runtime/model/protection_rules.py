"""The pure rules of the config's protections: when closed trades make entries wait, and until when.

The same rules judge in the daemon, in a sandbox, in a backtest and in a replay. They read no clock: an instant counts
as the start of its minute (UTC), so that the delay of a fill does not move the end of a wait past the close of a bar.
Amounts are integers of 1e-16 USD.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from bot.clock import MINUTE_MS, iso
from bot.money import decimal_of_e16, format_decimal

Scope = Literal["market", "strategy", "account"]
# Refusals of these codes are those of protections. Each is also the key of the config.
COOLDOWN: Final = "cooldown"
STOP_GUARD: Final = "stop_guard"
MAX_ENTRIES: Final = "max_entries"
MAX_OPEN_POSITIONS: Final = "max_open_positions"
LOW_PROFIT_MARKET: Final = "low_profit_market"
MAX_DRAWDOWN: Final = "max_drawdown"
PROTECTIONS: Final = (COOLDOWN, STOP_GUARD, MAX_ENTRIES, MAX_OPEN_POSITIONS, LOW_PROFIT_MARKET, MAX_DRAWDOWN)


class EndedTrade(NamedTuple):
    """A trade of a strategy in one market, from its first entry until it held nothing there.

    `net` is its result with fees and funding, in 1e-16 USD. `is_stop`: a stop, a trailing stop or a liquidation ended
    it.
    """

    strategy: str
    market: str
    closed_ms: int
    net: int
    is_stop: bool


class Length(NamedTuple):
    """A length of time. `text` is how the config writes it; `bar_ms` is the interval if it counts bars, else 0."""

    ms: int
    text: str
    bar_ms: int = 0

    def end_ms(self, from_ms: int) -> int:
        """When a wait of this length ends that begins at this instant. At that instant, entries are allowed.

        A wait of n bars covers the next n closes of the bars.
        """
        if self.bar_ms:
            return from_ms // self.bar_ms * self.bar_ms + self.bar_ms + self.ms
        return minute(from_ms) + self.ms


@dataclass(frozen=True, slots=True)
class ProtectionRule:
    """One protection of the config. `strategy` None: it counts the trades of all strategies.

    `markets`: only those; empty: all. `count` is the number of trades, stops, entries or positions. `usd` is the amount
    of a loss or fall, in 1e-16 USD. `within` and `rest` are None where the rule has none.
    """

    name: str
    strategy: str | None
    scope: Scope
    markets: frozenset[str] = frozenset()
    within: Length | None = None
    rest: Length | None = None
    count: int = 1
    usd: int = 0
    only_losses: bool = False

    def concerns(self, strategy: str, market: str) -> bool:
        """True if trades and entries of this strategy in this market are under the rule."""
        return self.strategy in (None, strategy) and (not self.markets or market in self.markets)

    def place(self, market: str) -> str:
        """What waits together: the market, or "" for all that the rule concerns."""
        return market if self.scope == "market" else ""

    @property
    def owner(self) -> str:
        return "the account" if self.strategy is None else self.strategy


def minute(at_ms: int) -> int:
    """The start of the minute of an instant."""
    return at_ms - at_ms % MINUTE_MS


# -- rules that closed trades complete


def completes(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> bool:
    """True if these trades of the rule's window, oldest first, complete it at the close of the newest."""
    return _COMPLETES[rule.name](rule, trades)


def counts(rule: ProtectionRule, trade: EndedTrade) -> bool:
    """True if the rule counts the trade."""
    if rule.only_losses and trade.net >= 0:
        return False
    return trade.is_stop or rule.name != STOP_GUARD


def fall_of(trades: Iterable[EndedTrade]) -> int:
    """The largest fall of the running sum of results from its highest value, which is at least 0. In 1e-16 USD."""
    total = highest = fall = 0
    for trade in trades:
        total += trade.net
        highest = max(highest, total)
        fall = max(fall, highest - total)
    return fall


def _always(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> bool:
    return True


def _enough(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> bool:
    return len(trades) >= rule.count


def _has_lost(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> bool:
    return len(trades) >= rule.count and sum(trade.net for trade in trades) < rule.usd


def _has_fallen(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> bool:
    return len(trades) >= rule.count and fall_of(trades) >= rule.usd


_COMPLETES: Final[Mapping[str, Callable[[ProtectionRule, Sequence[EndedTrade]], bool]]] = {
    COOLDOWN: _always,
    STOP_GUARD: _enough,
    LOW_PROFIT_MARKET: _has_lost,
    MAX_DRAWDOWN: _has_fallen,
}


class Wait(NamedTuple):
    """Entries wait until `until_ms`; `why` is a part of a sentence."""

    until_ms: int
    why: str


NO_WAIT: Final = Wait(0, "")


@dataclass(slots=True)
class Waits:
    """The waits of one rule, from the trades that were given to `take`, oldest first."""

    rule: ProtectionRule
    # place -> the counted trades of the window
    _trades: dict[str, deque[EndedTrade]] = field(default_factory=dict)
    # place -> its newest wait
    ends: dict[str, Wait] = field(default_factory=dict)

    def take(self, trade: EndedTrade) -> None:
        rule = self.rule
        if not rule.concerns(trade.strategy, trade.market) or not counts(rule, trade):
            return
        place = rule.place(trade.market)
        trades = self._trades.setdefault(place, deque())
        if rule.within is None:
            trades.clear()
        else:
            since_ms = minute(trade.closed_ms) - rule.within.ms
            while trades and minute(trades[0].closed_ms) <= since_ms:
                trades.popleft()
        trades.append(trade)
        if completes(rule, trades):
            assert rule.rest is not None
            until_ms = rule.rest.end_ms(trade.closed_ms)
            if until_ms >= self.ends.get(place, NO_WAIT).until_ms:
                self.ends[place] = Wait(until_ms, _why(rule, trades))

    def of(self, strategy: str, market: str) -> Wait:
        """The newest wait for entries of this strategy in this market. Its end may be past."""
        rule = self.rule
        return self.ends.get(rule.place(market), NO_WAIT) if rule.concerns(strategy, market) else NO_WAIT


def _why(rule: ProtectionRule, trades: Sequence[EndedTrade]) -> str:
    newest = trades[-1]
    within = "" if rule.within is None else rule.within.text
    where = f" in {newest.market}" if rule.scope == "market" else ""
    if rule.name == COOLDOWN:
        assert rule.rest is not None
        return f"{rule.rest.text} of rest after the exit from {newest.market} at {iso(newest.closed_ms)}"
    if rule.name == STOP_GUARD:
        return f"{len(trades)} stops{where} within {within}"
    if rule.name == LOW_PROFIT_MARKET:
        return f"{newest.market} made {_usd(sum(trade.net for trade in trades))} USD within {within}"
    return f"closed trades fell by {_usd(fall_of(trades))} USD within {within}"


def _usd(amount: int) -> str:
    return format_decimal(decimal_of_e16(amount))
