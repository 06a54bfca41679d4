"""The risk checks that an order passes between the strategy and the journal. Each reads the account state.

The answer is the request that may be sent, or a refusal.

The rules are a list and are tried in order. A rule binds exits only if the list for exits names it. Nothing here sends
an order, and nothing else makes the request that is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_UP, Decimal
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pydantic import ValidationError

from bot.errors import Refusal
from bot.money import format_decimal
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.model.intents import FINAL, CancelOrders, Intent, Path
from bot.runtime.model.limits import FRESH_INTERVALS, ApprovedOrder, RiskRequest, StrategyLimits
from bot.runtime.model.order_rules import SIZE_DECIMALS, OrderRules, rules_of, whole_steps
from bot.runtime.model.positions import EVENT, PROTECTIVE, AccountOrder, unit_px
from bot.runtime.risk.exposure import staying_usd
from bot.runtime.risk.order_builder import (
    EVENT_PX_DECIMALS,
    PX_DECIMALS,
    PX_FIGURES,
    Grid,
    exact,
    notional_usd,
    order_request,
    target_plan,
    targets_text,
)
from bot.runtime.risk.protections import AskedEntry, Protections
from bot.strategy import Cancel, Close, Open, TrailingStop
from bot.wire import CloseRequest, bare_coin, fields_of, message_of

# the request that closes all of any position
WHOLE: Final = CloseRequest(fraction=Decimal(1), source="agent")


class LiveIntents(Protocol):
    """The open intents, as the risk rules see it."""

    @property
    def live(self) -> Mapping[str, Intent]:
        """By id: intents that are not final, or that the events have not shown yet."""

    def is_doubtful(self, market: str, besides: str | None = None) -> bool:
        """True if the outcome of an order in the market is unknown, not counting the intent `besides`."""


class Conditions(Protocol):
    """The state of the run, as the risk rules see it."""

    def entries_stopped(self, now_ms: int) -> Refusal | None:
        """Why nothing may be opened now."""

    def strategy_stopped(self, strategy: str, now_ms: int) -> Refusal | None:
        """Why this strategy may open nothing now."""


class VenueTerms(NamedTuple):
    """What a venue accepts as an order.

    `order_rules` by market, as far as the markets are known. `judges_freshness`: a bar can be too old for an entry;
    False under a manual clock and in a session. `is_atomic`: the venue is in this process, and no time passes between a
    plan and its confirm. `grids` of the markets of a session that was given another tick.
    """

    order_rules: Mapping[str, OrderRules]
    judges_freshness: bool = True
    is_atomic: bool = False
    grids: Mapping[str, Grid] = MappingProxyType({})


# a venue whose markets are not known
VENUE: Final = VenueTerms({})


class RiskEngine:
    """Answers a strategy's request with the order to send or with a refusal.

    `judge` runs at the decision, `may_still_open` before sending.
    """

    def __init__(
        self,
        account_state: AccountState,
        strategy_limits: dict[str, StrategyLimits],
        intents: LiveIntents,
        conditions: Conditions,
        attribution: Attribution,
        terms: VenueTerms = VENUE,
        *,
        checks_plans: Callable[[str], bool] = lambda _strategy: False,
        foreign_positions: str = "ignore",
    ) -> None:
        self.account_state = account_state
        self.strategy_limits = strategy_limits
        self.intents = intents
        self.conditions = conditions
        self.attribution = attribution
        # The protections of the config; None: there are none.
        self.protections: Protections | None = None
        # true of a strategy that has a `confirm` of its own
        self.checks_plans = checks_plans
        self.judges_freshness = terms.judges_freshness
        self.foreign_positions = foreign_positions
        # by market
        self.order_rules = terms.order_rules
        self.is_atomic = terms.is_atomic
        self.grids = terms.grids

    def protect_by(self, protections: Protections) -> None:
        """Ask these protections before each entry from now on."""
        self.protections = protections

    def treat_foreign_positions(self, how: str) -> None:
        """From now on treat the positions of others by this setting."""
        self.foreign_positions = how

    def limit(self, strategy_limits: Mapping[str, StrategyLimits]) -> None:
        """From now on these strategies, with these limits."""
        self.strategy_limits.clear()
        self.strategy_limits.update(strategy_limits)

    def judge(self, strategy: str, ask: RiskRequest) -> ApprovedOrder | Refusal:
        """The request to send, or the refusal of the first rule that refuses."""
        limits, signal = self.strategy_limits[strategy], ask.signal
        try:
            for rule in RULES[type(signal)]:
                if (no := rule(self, limits, ask)) is not None:
                    return no
            if isinstance(signal, Open):
                return self._open(limits, signal, ask)
            return self._close(limits, signal, ask) if isinstance(signal, Close) else self._cancel(limits, signal)
        # A valid number that no order can hold.
        except (ValueError, ArithmeticError) as error:
            return Refusal("invalid_input", f"no order can be made of {signal!r:.200}: {_why(error)}")

    def may_still_open(self, intent: Intent, now_ms: int) -> Refusal | None:
        """Why an entry must not be sent now, though it was approved: the account may have changed since."""
        stopped = self.conditions.entries_stopped(now_ms)
        if stopped is not None:
            return stopped
        if self.intents.is_doubtful(intent.market, intent.id):
            return _doubt(intent.market)
        return self.of_its_own(intent, now_ms)

    def of_its_own(self, intent: Intent, now_ms: int) -> Refusal | None:
        """The part of `may_still_open` that concerns this strategy alone."""
        limits = self.strategy_limits.get(intent.strategy)
        if limits is not None and (no := self.over_leverage(limits, intent.market, intent.order().leverage)):
            return no
        stopped = self.conditions.strategy_stopped(intent.strategy, now_ms)
        if stopped is not None or self.protections is None or not self.protections.is_used:
            return stopped
        # A backtest's clock stands one millisecond before the bar.
        return self.protections.refusal(AskedEntry(intent.strategy, intent.market, now_ms + 1, id=intent.id))

    def used_usd(self, strategy: str, closing: frozenset[str] = frozenset()) -> Decimal:
        """The part of its budget that a strategy uses: open positions without what is being closed, resting entries
        and live intents.
        """
        account_state = self.account_state
        used = Decimal(0)
        if (limits := self.strategy_limits.get(strategy)) is not None and limits.nets:
            shares = (
                share
                for share in self.attribution.shares_of(strategy)
                if share.market not in closing and share.market in account_state.positions
            )
            for share in shares:
                used += staying_usd(share.notional_usd, share.size, account_state.leaving(share.market, strategy))
        else:
            for p in account_state.positions.values():
                if p.owner == strategy and p.market not in closing:
                    used += staying_usd(p.notional_usd, p.size, account_state.leaving(p.market))
        for order in account_state.orders.values():
            if order.action == "open" and order.key is not None and account_state.owner_of(order.key) == strategy:
                used += order.resting_usd(account_state.marks.get(order.market))
        return used + sum(
            (intent.notional_usd for intent in self.intents.live.values() if intent.strategy == strategy), Decimal(0)
        )

    def over_leverage(self, limits: StrategyLimits, market: str, leverage: int | None) -> Refusal | None:
        """Refuse leverage above the limit.

        An order without a leverage takes that of the position, which another strategy may have chosen.
        """
        most, position = limits.max_leverage, self.account_state.positions.get(market)
        if leverage is not None:
            if leverage <= most:
                return None
            return Refusal(
                "over_leverage",
                f"leverage {leverage} is above max_leverage {most}",
                {"field": "leverage", "value": most},
            )
        has = position.leverage if position is not None else self._accepted_leverage(market)
        if has <= most:
            return None
        return Refusal(
            "over_leverage",
            f"the {market} position has a leverage of {has:g}, which an entry takes over; max_leverage is {most}",
        )

    def _accepted_leverage(self, market: str) -> float:
        """The leverage of a position that no event has shown yet, by the entries that were accepted."""
        accepted = [
            intent.order().leverage or 1
            for intent in self.intents.live.values()
            if intent.state == "accepted" and intent.market == market and intent.action == "open"
        ]
        return max(accepted, default=1)

    # -- requests

    def _open(self, limits: StrategyLimits, signal: Open, ask: RiskRequest) -> ApprovedOrder | Refusal:
        notional = notional_usd(signal, ask.price)
        if notional is None:
            return Refusal("no_price", f"the size of an order in {signal.market} cannot be judged without a price")
        size = None if signal.size is None else self._size(signal.market, exact(signal.size))
        if size is not None and not size:
            return Refusal("below_min_notional", f"a size of {signal.size} {signal.market} rounds down to nothing")
        sized = None if size is None else format_decimal(size)
        request = order_request(signal, sized, limits.require_protection, self.grid(signal.market))
        # A direct order is safe to repeat only if the service is known to show our keys. Until then, and for a strategy
        # that wants to see the plan, the entry is planned and confirmed. With an atomic venue nothing can be lost
        # between the two.
        is_direct = self.is_atomic or (limits.path == "direct" and self.account_state.keys_proven)
        needs_plan = self.checks_plans(limits.strategy) or limits.approval is not None
        path: Path = "direct" if is_direct and not needs_plan else "plan"
        return ApprovedOrder(request, "open", signal.market, path, notional, targets_text(target_plan(signal)))

    def _close(self, limits: StrategyLimits, signal: Close, ask: RiskRequest) -> ApprovedOrder | Refusal:
        """Close the whole position or an absolute size: both can be sent again without closing more.

        Of a shared position at most the share.
        """
        position = self.account_state.positions[signal.market]
        if not limits.nets:
            whole = position.size - self.account_state.leaving(signal.market)
        else:
            share = self.attribution.share(signal.market, limits.strategy)
            assert share is not None, "has_position has judged this"
            whole = min(position.size, share.size) - self._closing_size(signal.market, limits.strategy)
            if whole <= 0:
                return Refusal(
                    "closing", f"its share of the {signal.market} position is being closed", {"action": "wait"}
                )
            # Shares of an older version may be finer than a step.
            whole = self._size(signal.market, whole)
            if not whole:
                return Refusal("below_min_notional", f"its share of the {signal.market} position is less than a step")
        price = None if ask.price is None else unit_px(signal.market, position.side, ask.price)
        size = self._part(signal, whole, price)
        if isinstance(size, Refusal):
            return size
        if limits.nets:
            if size is None or size >= whole or (price and (whole - size) * price < self.least_usd(signal.market)):
                # A share worth less cannot be closed alone.
                size = whole
        elif size is None or size >= whole:
            return ApprovedOrder(WHOLE, "close", signal.market, "direct")
        return ApprovedOrder(CloseRequest(size=format_decimal(size), source="agent"), "close", signal.market, "direct")

    def _closing_size(self, market: str, strategy: str) -> Decimal:
        """The size that closes of the strategy may still fill, so that two of them never close a share of another
        strategy.
        """
        waiting = self.account_state.closing(market, strategy)
        told = {*self.account_state.closed, *(order.key for order in waiting)}
        return sum((order.size - order.filled for order in waiting), Decimal(0)) + sum(
            (
                Decimal(intent.close().size or 0)
                for intent in self.intents.live.values()
                if (intent.market, intent.strategy, intent.action) == (market, strategy, "close")
                and intent.state not in ("rejected", "expired", "void")
                and intent.id not in told
            ),
            Decimal(0),
        )

    def _part(self, signal: Close, whole: Decimal, price: Decimal | None) -> Decimal | Refusal | None:
        if signal.fraction is not None:
            size = whole * exact(signal.fraction)
        elif signal.size is not None:
            size = exact(signal.size)
        elif signal.usd is not None:
            if not price:
                return Refusal(
                    "no_price", f"usd of a close in {signal.market} cannot be turned into a size without a price"
                )
            size = exact(signal.usd) / price
        else:
            return None
        size = self._size(signal.market, size)
        return size or Refusal(
            "below_min_notional", f"that part of the {signal.market} position rounds down to nothing"
        )

    def _cancel(self, limits: StrategyLimits, signal: Cancel) -> ApprovedOrder | Refusal:
        """Cancel resting entries.

        A position keeps its stop, and a market order that waits for the open is not cancelled.
        """
        if signal.market is not None:
            oids = tuple(
                o.oid
                for o in self.account_state.entries(signal.market)
                if o.kind != "market" and not self._is_left_alone(o) and not self._is_anothers(o, limits)
            )
            if not oids:
                return Refusal("nothing_to_cancel", f"no entry rests in {signal.market}")
            return ApprovedOrder(CancelOrders(oids), "cancel", signal.market, "direct")
        order = self.account_state.orders.get(signal.oid or "")
        if order is None or order.market not in limits.markets:
            return Refusal("not_found", f"no order {signal.oid} in this strategy's markets")
        if self._is_anothers(order, limits):
            return Refusal("anothers_order", f"order {order.oid} is another strategy's of this shared market")
        if self._is_left_alone(order):
            return Refusal("foreign_order", f"order {order.oid} was not placed by us (foreign_positions: ignore)")
        if order.kind == "stop_loss" and limits.require_protection and order.market in self.account_state.positions:
            return Refusal(
                "no_protection",
                f"order {order.oid} is the stop of the {order.market} position; close the position instead",
            )
        return ApprovedOrder(CancelOrders((order.oid,)), "cancel", order.market, "direct")

    def _is_left_alone(self, order: AccountOrder) -> bool:
        """True if the entry is foreign and the config ignores foreign orders."""
        return (
            self.foreign_positions == "ignore"
            and order.kind not in PROTECTIVE
            and self.account_state.is_foreign(order.key)
        )

    def _is_anothers(self, order: AccountOrder, limits: StrategyLimits) -> bool:
        """True if the entry belongs to another strategy that shares this market."""
        if not limits.nets or order.kind in PROTECTIVE or order.key is None:
            return False
        return self.account_state.owner_of(order.key) not in (None, limits.strategy)

    def step(self, market: str) -> Decimal:
        """The smallest size in this market."""
        return rules_of(self.order_rules, market).size_step

    def least_usd(self, market: str) -> Decimal:
        """The value of the smallest order in this market, and of the smallest part of a position that can be closed."""
        return rules_of(self.order_rules, market).least_usd

    def _size(self, market: str, size: Decimal) -> Decimal:
        """The size rounded down to the market's step."""
        return whole_steps(size, self.step(market))

    def grid(self, market: str) -> Grid:
        coin = bare_coin(market)
        if coin in self.grids:
            return self.grids[coin]
        if market.startswith(EVENT):
            return Grid(EVENT_PX_DECIMALS)
        rules = self.order_rules.get(coin)
        if rules is None:
            return Grid(SIZE_DECIMALS)
        if rules.tick is not None:
            return Grid(tick=rules.tick)
        return _grid(rules.size_decimals)


# An equal grid that is the same object is found faster among the requests that are kept.
@cache
def _grid(size_decimals: int) -> Grid:
    return Grid(max(0, PX_DECIMALS - size_decimals), PX_FIGURES)


def _why(error: ValueError | ArithmeticError) -> str:
    if isinstance(error, ValidationError):
        return message_of(fields_of(error))
    return "a number in it has too many digits" if isinstance(error, ArithmeticError) else str(error)


# -- rules: each returns a refusal, or None


def own_market(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    market = ask.signal.market
    if market is None or market in limits.markets:
        return None
    return Refusal(
        "market_not_yours", f"{market} is not one of this strategy's markets ({', '.join(sorted(limits.markets))})"
    )


def fresh(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    if not risk.judges_freshness or ask.now_ms - ask.at_ms <= FRESH_INTERVALS * limits.interval_ms:
        return None
    return Refusal(
        "stale_bar",
        f"the bar or event is {(ask.now_ms - ask.at_ms) / 1000:.1f} s old, older than {FRESH_INTERVALS} intervals",
    )


def not_stopped(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    conditions = risk.conditions
    return conditions.entries_stopped(ask.now_ms) or conditions.strategy_stopped(limits.strategy, ask.now_ms)


def not_waiting(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    """Refuse an entry that a protection of the config makes wait. The cause of the entry tells its instant, so that a
    late decision is judged as in a backtest.
    """
    assert isinstance(ask.signal, Open)
    if risk.protections is None or not risk.protections.is_used:
        return None
    return risk.protections.refusal(AskedEntry(limits.strategy, ask.signal.market, ask.at_ms, ask.closing))


def not_in_doubt(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    market = ask.signal.market
    return _doubt(market) if market is not None and risk.intents.is_doubtful(market) else None


def not_anothers(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    """Refuse a signal on a foreign position, and on one whose owner no longer runs or trades here."""
    position = risk.account_state.positions.get(ask.signal.market or "")
    if position is None or position.owner == limits.strategy:
        return None
    if position.owner is None:
        return Refusal(
            "foreign_position",
            f"the {position.market} position was not opened by us (foreign_positions: {risk.foreign_positions})",
        )
    if limits.nets:
        return None
    return Refusal(
        "anothers_position",
        f"the {position.market} position is that of {position.owner}; let that run again, or close it by hand",
        {"action": "close_first"},
    )


def not_against_others(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    """In a shared market, refuse an entry against the side of the others, because it would close their shares."""
    signal = ask.signal
    assert isinstance(signal, Open)
    if not limits.nets:
        return None
    account_state, name = risk.account_state, limits.strategy
    position = account_state.positions.get(signal.market)
    if position is not None and position.side != signal.side:
        share = risk.attribution.share(signal.market, name)
        own = Decimal(0) if share is None else share.size - account_state.leaving(signal.market, name)
        if own < position.size - account_state.leaving(signal.market):
            return Refusal(
                "against_others",
                f"the {signal.market} position is {position.side}, and others have a share of it; an entry"
                f" {signal.side} would close theirs",
            )
    waiting = {
        o.side
        for o in account_state.entries(signal.market)
        if o.key is not None and account_state.owner_of(o.key) != name
    }
    waiting |= {
        str(intent.order().side)
        for intent in risk.intents.live.values()
        if intent.market == signal.market
        and intent.action == "open"
        and intent.strategy != name
        and intent.state not in FINAL
    }
    if waiting - {signal.side}:
        return Refusal(
            "against_others", f"another strategy's entry waits on the other side in {signal.market}", {"action": "wait"}
        )
    return None


def protected(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    signal = ask.signal
    assert isinstance(signal, Open)
    if not limits.require_protection or (signal.bracket is not None and signal.bracket.has_stop):
        return None
    if any(isinstance(guardian, TrailingStop) for guardian in signal.guardians):
        return None
    if signal.market in risk.account_state.positions and risk.account_state.is_protected(signal.market):
        return None
    return Refusal(
        "no_protection", "an entry needs a stop: bracket=Bracket(stop_pct=...) or guardians=(TrailingStop(...),)"
    )


def fits_targets(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    """Refuse targets in a shared market, on the wrong side of the entry, or of a part that the service does not
    close.
    """
    signal = ask.signal
    assert isinstance(signal, Open)
    plan = target_plan(signal)
    if plan is None:
        return None
    if limits.nets:
        message = (
            "targets need a market of their own (netting: refuse): an order at a target could close the share of"
            " another strategy"
        )
        return Refusal("targets_shared", message)
    entry_px = ask.price if signal.limit_px is None else exact(signal.limit_px)
    notional = notional_usd(signal, ask.price)
    if entry_px is None or notional is None:
        return None
    away = 1 if signal.side == "long" else -1
    for target in (*plan.orders, *filter(None, [plan.last])):
        level = target.level
        if level.unit == "px" and (level.value - entry_px) * away <= 0:
            message = f"the target {level.value} is on the wrong side of the entry of a {signal.side} at {entry_px}"
            return Refusal("invalid_input", message, {"field": "targets"})
    smallest = min((target.fraction for target in plan.orders), default=None)
    least = risk.least_usd(signal.market)
    if smallest is not None and notional * smallest < least:
        return Refusal(
            "below_min_notional",
            f"a target of {smallest} closes {notional * smallest:.2f} USD of {notional:.2f}; the service closes no part"
            f" below {format_decimal(least)} USD",
            {"field": "usd", "value": format_decimal((least / smallest).quantize(Decimal("0.01"), ROUND_UP))},
        )
    return None


def leverage_bound(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    signal = ask.signal
    assert isinstance(signal, Open)
    return risk.over_leverage(limits, signal.market, signal.leverage)


def within_budget(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    signal = ask.signal
    assert isinstance(signal, Open)
    notional = notional_usd(signal, ask.price)
    if notional is None:
        return None
    left = limits.budget_usd - risk.used_usd(limits.strategy, ask.closing)
    if notional <= left:
        return None
    return Refusal(
        "over_budget",
        f"{notional:.2f} USD is more than the {max(left, Decimal(0)):.2f} USD left of budget_usd {limits.budget_usd}",
        {"field": "usd", "value": format_decimal(max(left, Decimal(0)))},
    )


def has_position(risk: RiskEngine, limits: StrategyLimits, ask: RiskRequest) -> Refusal | None:
    market = ask.signal.market or ""
    position = risk.account_state.positions.get(market)
    if position is None or risk.account_state.leaving(market) >= position.size:
        return Refusal("no_position", f"there is no position in {market} to close")
    if limits.nets and risk.attribution.share(market, limits.strategy) is None:
        return Refusal("no_position", f"this strategy has no share of the {market} position")
    return None


Rule = Callable[[RiskEngine, StrategyLimits, RiskRequest], Refusal | None]
RULES: Final[Mapping[type, tuple[Rule, ...]]] = {
    Open: (
        own_market,
        fresh,
        not_stopped,
        not_waiting,
        not_in_doubt,
        not_anothers,
        not_against_others,
        protected,
        leverage_bound,
        within_budget,
        fits_targets,
    ),
    Close: (own_market, fresh, has_position, not_anothers),
    Cancel: (own_market,),
}


def _doubt(market: str) -> Refusal:
    return Refusal(
        "market_in_doubt",
        f"an earlier order in {market} is not settled yet; no new entry before that",
        {"action": "wait"},
    )
