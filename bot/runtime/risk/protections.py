"""The protections of the config: whether entries of a strategy wait now, by the trade log and the open intents.

The rules are pure (protection_rules.py). Nothing is kept here that the journal does not have: at a start and after a
reload, the rules read the closed trades again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.clock import iso, next_utc_day_ms, utc_day_start_ms
from bot.errors import Refusal
from bot.runtime.model.intents import FINAL, Intent
from bot.runtime.model.protection_rules import (
    COOLDOWN,
    MAX_ENTRIES,
    MAX_OPEN_POSITIONS,
    EndedTrade,
    ProtectionRule,
    Wait,
    Waits,
    minute,
)

if TYPE_CHECKING:
    from bot.runtime.account.account import DaemonAccount
    from bot.runtime.account.trade_log import TradeLog
    from bot.runtime.model.limits import StrategyLimits

_NOTHING: Final[frozenset[str]] = frozenset()


class AskedEntry(NamedTuple):
    """An entry that a strategy asks for, judged as of `at_ms`.

    `closing`: markets that an earlier signal of the same decision closes. `id`: its intent, if it has one.
    """

    strategy: str
    market: str
    at_ms: int
    closing: frozenset[str] = _NOTHING
    id: str = ""


class ActiveWait(NamedTuple):
    """A wait that is not over. `strategy` None: of the account; `market` None: of all markets of the rule."""

    protection: str
    strategy: str | None
    market: str | None
    until_ms: int
    why: str


class Protections:
    """`live` are the open intents: an entry that may still fill counts as an entry and as a position."""

    def __init__(self, account: DaemonAccount, live: Mapping[str, Intent]) -> None:
        self._account = account
        self._live = live
        self._log: TradeLog | None = None
        self.rules: tuple[ProtectionRule, ...] = ()
        # False: there are no rules, so callers need not ask
        self.is_used = False
        self._waits: tuple[Waits, ...] = ()
        self._counting: tuple[ProtectionRule, ...] = ()

    def configure(self, of_account: Sequence[ProtectionRule], limits: Iterable[StrategyLimits]) -> None:
        """Follow these rules from now on, as if they had stood in the config all the time."""
        rules = (*of_account, *(rule for limit in limits for rule in limit.protections))
        if rules == self.rules:
            return
        self.rules, self.is_used = rules, bool(rules)
        self._counting = tuple(rule for rule in rules if rule.rest is None)
        if self._log is None:
            self._log = self._account.log_trades()
        self._log.follow(self)

    # -- closed trades, as the trade log gives them

    def begin_anew(self, trades: Iterable[EndedTrade]) -> None:
        self._waits = tuple(Waits(rule) for rule in self.rules if rule.rest is not None)
        for trade in trades:
            self.take(trade)

    def take(self, trade: EndedTrade) -> None:
        for waits in self._waits:
            waits.take(trade)

    # -- queries

    def refusal(self, entry: AskedEntry) -> Refusal | None:
        """Why this entry must wait: the protection that waits longest."""
        if not self.rules:
            return None
        now_ms = minute(entry.at_ms)
        refusals = [
            *self._waiting(entry, now_ms),
            *(no for rule in self._counting if (no := self._too_many(rule, entry, now_ms)) is not None),
        ]
        return max(refusals, key=lambda no: (no.details or {}).get("resetsAt", 0), default=None)

    def active(self, now_ms: int) -> list[ActiveWait]:
        """The waits that are not over, for people."""
        waits = [
            ActiveWait(waits.rule.name, waits.rule.strategy, place or None, wait.until_ms, wait.why)
            for waits in self._waits
            for place, wait in waits.ends.items()
            if wait.until_ms > minute(now_ms)
        ]
        return sorted(waits, key=lambda wait: (wait.strategy or "", wait.protection, wait.market or ""))

    def _waiting(self, entry: AskedEntry, now_ms: int) -> Iterator[Refusal]:
        for waits in self._waits:
            rule, wait = waits.rule, waits.of(entry.strategy, entry.market)
            if rule.name == COOLDOWN and entry.closing:
                wait = max(wait, self._after_this_exit(rule, entry, now_ms))
            if now_ms < wait.until_ms:
                yield _wait(rule, wait.why, wait.until_ms)

    def _after_this_exit(self, rule: ProtectionRule, entry: AskedEntry, now_ms: int) -> Wait:
        """The cooldown after the exits that the same decision asks for. Their result is that at the mark price."""
        assert rule.rest is not None
        for market in sorted(entry.closing):
            is_same_place = rule.place(market) == rule.place(entry.market)
            if not is_same_place or not rule.concerns(entry.strategy, market):
                continue
            if not rule.only_losses or self._result(entry.strategy, market) < 0:
                return Wait(rule.rest.end_ms(now_ms), f"{rule.rest.text} of rest after this exit from {market}")
        return Wait(0, "")

    def _result(self, strategy: str, market: str) -> int:
        """The result of an open trade at the mark price, in 1e-16 USD."""
        assert self._log is not None
        trade = self._log.open.get((strategy, market))
        share = self._account.attribution.share(market, strategy)
        gain = 0 if share is None else self._account.attribution.gain_at(share, None)
        return gain + (0 if trade is None else trade.net)

    def _too_many(self, rule: ProtectionRule, entry: AskedEntry, now_ms: int) -> Refusal | None:
        if not rule.concerns(entry.strategy, entry.market):
            return None
        if rule.name == MAX_ENTRIES:
            count = self.entries(rule, entry.market, utc_day_start_ms(now_ms), besides=entry.id)
            if count >= rule.count:
                where = f" in {entry.market}" if rule.scope == "market" else ""
                why = f"{count} of {rule.count} entries{where} of this UTC day are used"
                return _wait(rule, why, next_utc_day_ms(now_ms))
        elif rule.name == MAX_OPEN_POSITIONS:
            markets = self.markets(rule, besides=entry.id) - entry.closing
            if entry.market not in markets and len(markets) >= rule.count:
                return Refusal(
                    rule.name,
                    f"{rule.owner} has {len(markets)} of {rule.count} positions ({', '.join(sorted(markets))}); entries"
                    f" in other markets are refused until one of them is closed ({_key(rule)})",
                    {"action": "close_first"},
                )
        return None

    def entries(self, rule: ProtectionRule, market: str, since_ms: int, *, besides: str = "") -> int:
        """The entries of the rule since an instant: filled ones, and those that may still fill."""
        assert self._log is not None
        rows = self._log.entries.values()
        keys = {row.key for row in rows if row.at_ms >= since_ms and _is_there(rule, row.strategy, row.market, market)}
        earlier = {row.key for row in rows if row.at_ms < since_ms}
        keys |= {key for key, strategy, there in self._waiting_entries() if _is_there(rule, strategy, there, market)}
        return len(keys - earlier - {besides})

    def markets(self, rule: ProtectionRule, *, besides: str = "") -> set[str]:
        """The markets of the rule with a position, or with an entry that may still fill."""
        shares = self._account.attribution.shares
        held = {
            market
            for market, holders in shares.items()
            if any(name[:1] != "@" and rule.concerns(name, market) for name in holders)
        }
        waiting = self._waiting_entries()
        return held | {market for key, name, market in waiting if key != besides and rule.concerns(name, market)}

    def _waiting_entries(self) -> Iterator[tuple[str, str, str]]:
        """Key, strategy and market of each entry that may still fill."""
        state = self._account.account_state
        for intent in self._live.values():
            if intent.action == "open" and (intent.state == "accepted" or intent.state not in FINAL):
                yield intent.id, intent.strategy, intent.market
        for order in state.orders.values():
            if order.key is not None and order.could_open and (owner := state.owner_of(order.key)) is not None:
                yield order.key, owner, order.market


def _is_there(rule: ProtectionRule, strategy: str, there: str, market: str) -> bool:
    """True if an entry of this strategy `there` counts where an entry in `market` is asked for."""
    return rule.concerns(strategy, there) and rule.place(there) == rule.place(market)


def _wait(rule: ProtectionRule, why: str, until_ms: int) -> Refusal:
    return Refusal(
        rule.name,
        f"{why}; entries are refused until {iso(until_ms)} ({_key(rule)})",
        {"action": "wait"},
        {"resetsAt": until_ms},
    )


def _key(rule: ProtectionRule) -> str:
    return f"protections.{rule.name} of {rule.owner}"
