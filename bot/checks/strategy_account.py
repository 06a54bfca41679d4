"""The account that a check shows a strategy: every order that the risk checks let through is filled at once, nothing
else happens.

The account state, the attribution and the risk engine are the daemon's own, so that a check refuses what a run would
refuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from bot.errors import Refusal
from bot.money import e8_rounded
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.model.intents import Intent
from bot.runtime.model.limits import RiskRequest, StrategyLimits
from bot.runtime.model.positions import AccountOrder, AccountPosition
from bot.runtime.model.shares import Share
from bot.runtime.passes.bar_feed import BarFeed
from bot.runtime.risk.order_builder import exact, notional_usd
from bot.runtime.risk.risk_engine import RiskEngine
from bot.runtime.strategy_host.instance import StrategyInstance
from bot.strategy import Cancel, Close, Fill, Open, Question, Reply, Strategy
from bot.strategy.intents import Side

# refusals that do not depend on prices or the account
NEVER_RIGHT: Final = ("market_not_yours",)
# refusals that real prices may not give
BY_PRICE: Final = ("invalid_input", "no_price")
# refusals that only another order can avoid
BY_ORDER: Final = ("no_protection", "over_leverage", "below_min_notional")
EIGHT: Final = Decimal("0.00000001")


class NobodyAnswers:
    """An asker that answers no question and counts the questions."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self, strategy: str, question: Question) -> str | None:
        self.asked += 1
        return "a check asks nobody"

    def answered(self) -> list[str]:
        return []

    def take(self, strategy: str) -> Reply:
        raise AssertionError("nothing is answered")


class NothingElse:
    """No other order and nothing that stops entries, for the risk checks."""

    live: Mapping[str, Intent] = {}

    def is_doubtful(self, market: str, besides: str | None = None) -> bool:
        return False

    def entries_stopped(self, now_ms: int) -> Refusal | None:
        return None

    def strategy_stopped(self, strategy: str, now_ms: int) -> Refusal | None:
        return None


class CheckedAccount:
    """One strategy with the account's money for itself.

    `decided` counts its signals, `entries` those that open, `refusals` the refused ones by code.
    """

    def __init__(
        self, strategy: Strategy, interval: str, limits: StrategyLimits, feed: BarFeed, equity_usd: Decimal
    ) -> None:
        self.account_state = AccountState(owner_of=lambda _key: strategy.name)
        self.account_state.balance_e8 = e8_rounded(equity_usd)
        self.attribution = Attribution(
            epoch=0, rows=(), shares=(), owner_of=self.account_state.owner_of, mark_at=lambda _market, _at_ms: None
        )
        self.asker = NobodyAnswers()
        self.instance = StrategyInstance(
            strategy,
            interval=interval,
            account_state=self.account_state,
            feed=feed,
            attribution=self.attribution if limits.nets else None,
        )
        self.instance.source.asker = self.asker
        self.instance.source.log_sink = lambda *_: None
        self.decided = self.entries = self.fills = 0
        self.refusals: Counter[str] = Counter()
        # by code
        self.first_refusal: dict[str, str] = {}
        # by market
        self.entries_in: Counter[str] = Counter()
        # entries by market that are refused whatever else the account holds
        self.hopeless_in: Counter[str] = Counter()
        self._limits = limits
        nothing = NothingElse()
        self._risk = RiskEngine(self.account_state, {strategy.name: limits}, nothing, nothing, self.attribution)

    def act(self, signals: Iterable[Any], *, hook: str, now_ms: int) -> list[Fill]:
        """Put the signals of one hook call through the risk checks, in order, and fill those that pass."""
        fills = []
        for signal in signals:
            self.decided += 1
            fill = self._answer(signal, hook=hook, now_ms=now_ms)
            if fill is not None:
                fills.append(fill)
        return fills

    def _answer(self, signal: Open | Close | Cancel, *, hook: str, now_ms: int) -> Fill | None:
        mark = self.account_state.marks.get(signal.market or "")
        price = None if mark is None else exact(mark)
        answer = self._risk.judge(self.instance.name, RiskRequest(signal, now_ms, now_ms, price))
        if isinstance(signal, Open):
            self.entries += 1
            self.entries_in[signal.market] += 1
        if isinstance(answer, Refusal) and (isinstance(signal, Open) or answer.code in NEVER_RIGHT):
            self.refusals[answer.code] += 1
            self.first_refusal.setdefault(answer.code, f"{hook}: {answer.message}")
            self.hopeless_in[signal.market or ""] += self._is_hopeless(answer.code, signal, price)
        if isinstance(answer, Refusal) or isinstance(signal, Cancel) or price is None:
            return None
        return self._open(signal, price, now_ms) if isinstance(signal, Open) else self._close(signal, price, now_ms)

    def _is_hopeless(self, code: str, signal: Open | Close | Cancel, price: Decimal | None) -> bool:
        if code != "over_budget" or not isinstance(signal, Open):
            return code in BY_ORDER
        usd = None if price is None else notional_usd(signal, price)
        return usd is not None and usd > self._limits.budget_usd

    def _open(self, signal: Open, price: Decimal, now_ms: int) -> Fill:
        px = price if signal.limit_px is None else exact(signal.limit_px)
        usd = notional_usd(signal, price)
        assert usd is not None
        size = exact(signal.size) if signal.size is not None else (usd / px).quantize(EIGHT)
        before = self.account_state.positions.get(signal.market)
        if before is not None and before.side == signal.side:
            size += before.size
        stop_px = _stop_px(signal, px)
        stop_e8 = None if stop_px is None else e8_rounded(stop_px)
        position = AccountPosition(
            signal.market,
            signal.side,
            e8_rounded(size),
            e8_rounded(px),
            signal.leverage or 1,
            stop_e8,
            now_ms,
            self.instance.name,
        )
        self.account_state.positions[signal.market] = position
        if stop_e8 is not None:
            side = "short" if signal.side == "long" else "long"
            self.account_state.orders[f"stop:{signal.market}"] = AccountOrder(
                f"stop:{signal.market}",
                signal.market,
                "stop_loss",
                side,
                "close",
                0,
                0,
                None,
                stop_e8,
                None,
                None,
                now_ms,
            )
        self._share(position)
        return self._fill(position, "open", size, px, now_ms)

    def _close(self, signal: Close, price: Decimal, now_ms: int) -> Fill:
        before = self.account_state.positions[signal.market]
        part = before.size
        if signal.fraction is not None:
            part = before.size * exact(signal.fraction)
        elif signal.size is not None:
            part = min(part, exact(signal.size))
        elif signal.usd is not None:
            part = min(part, exact(signal.usd) / price)
        position = before._replace(size_e8=before.size_e8 - e8_rounded(part))
        if position.size > 0:
            self.account_state.positions[signal.market] = position
        else:
            del self.account_state.positions[signal.market]
            self.account_state.orders.pop(f"stop:{signal.market}", None)
        self._share(position)
        return self._fill(position, "close", part, price, now_ms)

    def _share(self, position: AccountPosition) -> None:
        """In a shared market all of the position is this strategy's."""
        if not self._limits.nets:
            return
        shares = self.attribution.shares.setdefault(position.market, {})
        shares.pop(self.instance.name, None)
        if position.size > 0:
            cost = position.size_e8 * (position.entry_e8 or 0)
            share = Share(position.market, self.instance.name, position.side, position.size_e8, cost)
            shares[self.instance.name] = share

    def _fill(self, position: AccountPosition, action: str, size: Decimal, px: Decimal, now_ms: int) -> Fill:
        self.fills += 1
        side: Side = "long" if position.side == "long" else "short"
        realized = 0.0 if action == "close" else None
        return Fill(
            position.market,
            now_ms,
            side,
            action,
            "market",
            float(size),
            float(px),
            0.0,
            realized,
            float(position.size),
            f"check-{self.fills}",
        )


def _stop_px(signal: Open, px: Decimal) -> Decimal | None:
    bracket = signal.bracket
    if bracket is None or not bracket.has_stop:
        return None
    if bracket.stop_px is not None:
        return exact(bracket.stop_px)
    away = px * exact(bracket.stop_pct or 0) / 100
    return px - away if signal.side == "long" else px + away
