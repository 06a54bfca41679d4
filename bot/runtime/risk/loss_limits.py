"""Daily losses: a strategy that has lost its `daily_loss_usd` since 00:00 UTC opens nothing more until the next day.
Exits go on.

A limit that was reached holds for the rest of the day, whatever the price does afterwards. It also holds over a
restart, even one with a new journal (journal/halt_flags.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

from bot.clock import DAY_MS, iso, next_utc_day_ms
from bot.errors import Refusal
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.account.attribution import Attribution
from bot.runtime.account.ownership import PositionOwners
from bot.runtime.alerts.messages import notice
from bot.runtime.journal.halt_flags import HALTED
from bot.runtime.journal.journal import Journal
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.run_state import RunState
from bot.runtime.passes.bar_feed import BarSeries
from bot.runtime.passes.ports import Calm


class LossLimits:
    """Stops the entries of a strategy for the rest of the day once it has lost its `daily_loss_usd`.

    No day begins while events may exist that were not read, because some of them may be of the day before.
    """

    def __init__(
        self,
        attribution: Attribution,
        strategy_limits: Mapping[str, StrategyLimits],
        position_owners: PositionOwners,
        journal: Journal,
        state: RunState,
    ) -> None:
        self.attribution = attribution
        self.strategy_limits = strategy_limits
        self._position_owners = position_owners
        self._journal = journal
        self._state = state
        # true if any strategy has a limit
        self.is_used = False
        self.limits_changed()
        # strategy -> [epoch, day]
        self._noted: dict[str, list[int]] = json.loads(journal.state.note(HALTED) or "{}")

    def limits_changed(self) -> None:
        """Look whether any strategy has a limit.

        Without one, `watch` and `has_limits`, which every pass asks, are over at once.
        """
        self.is_used = any(limit.daily_loss_usd is not None for limit in self.strategy_limits.values())

    def watch(self, now_ms: int, market: str | None = None) -> None:
        """Halt the strategies that have reached their limit.

        `market`: only those with a position there, because its price has changed.
        """
        if not self.is_used or (market is not None and not self.has_limits(market)):
            return
        for name in list(self.strategy_limits if market is None else self.attribution.shares.get(market, ())):
            limit = self._limit(name)
            if limit is None or not self._is_of_today(now_ms):
                continue
            if (
                not self.attribution.is_halted(name)
                and not self._was_halted(name)
                and self.attribution.day_usd(name) <= -limit
            ):
                self._halt(name, limit, now_ms)

    def refusal(self, strategy: str, now_ms: int) -> Refusal | None:
        """Why the strategy may not open anything today."""
        limit = self._limit(strategy)
        if limit is None or not self._is_of_today(now_ms):
            return None
        # A limit that was just reached counts at once. `watch` writes the halt later, because a page of events may be
        # half applied now.
        if (
            not self.attribution.is_halted(strategy)
            and not self._was_halted(strategy)
            and self.attribution.day_usd(strategy) > -limit
        ):
            return None
        until = next_utc_day_ms(self.attribution.day_ms)
        return Refusal(
            "daily_loss",
            f"{strategy} has reached its daily_loss_usd {format_decimal(limit)}; nothing is opened until {iso(until)}",
            {"action": "wait"},
            {"resetsAt": until},
        )

    def narrowed(self, series: BarSeries, calm: Calm) -> Calm:
        """The price band of a session's fast path without the closes that would reach a limit, because `watch` must see
        those.

        The band also ends with the day if a strategy with a limit has a position in the market.
        """
        if not self.has_limits(series.market):
            return calm
        lo, hi, until_ms = calm
        for share in self.attribution.shares[series.market].values():
            limit = self._limit(share.strategy)
            if limit is None or self.attribution.is_halted(share.strategy) or not share.size:
                continue
            until_ms = min(until_ms, next_utc_day_ms(self.attribution.day_ms))
            mark = self.attribution.mark_at(series.market, None)
            if mark is None:
                continue
            px = float(
                mark
                - (self.attribution.day_usd(share.strategy) + limit)
                / (share.size if share.side == "long" else -share.size)
            )
            if share.side == "long":
                lo = max(lo, px)
            else:
                hi = min(hi, px)
        return Calm(lo, hi, until_ms)

    def has_limits(self, market: str) -> bool:
        """True if a strategy with a limit has a position in the market."""
        held = self.attribution.shares.get(market) if self.is_used else None
        if not held:
            return False
        for name in held:
            limits = self.strategy_limits.get(name)
            if limits is not None and limits.daily_loss_usd is not None:
                return True
        return False

    def _is_of_today(self, now_ms: int) -> bool:
        """Begin the new day in the attribution, if a new day has begun.

        False if the losses there may be of an earlier day.
        """
        # The daemon opens nothing in this state anyway.
        if self._state.is_uncertain:
            return now_ms - self.attribution.day_ms < DAY_MS
        self.attribution.roll(now_ms)
        return True

    def _limit(self, strategy: str) -> Decimal | None:
        limits = self.strategy_limits.get(strategy)
        return None if limits is None else limits.daily_loss_usd

    def _was_halted(self, name: str) -> bool:
        """True if the notes say that the strategy was halted today.

        A new journal has no losses of today, so the halt is set again.
        """
        if self._noted.get(name) != [self.attribution.epoch, self.attribution.day_ms]:
            return False
        self.attribution.halt(name)
        return True

    def _halt(self, name: str, limit: Decimal, now_ms: int) -> None:
        lost = -self.attribution.day_usd(name)
        self.attribution.halt(name)
        today = [self.attribution.epoch, self.attribution.day_ms]
        self._noted = {strategy: on for strategy, on in self._noted.items() if on == today} | {name: today}
        until = iso(next_utc_day_ms(self.attribution.day_ms))
        message = (
            f"{lost:.2f} USD lost since 00:00 UTC, daily_loss_usd is {format_decimal(limit)}; no entries until {until}"
        )
        log.error("strategy.halted", strategy=name, message=message)
        ref = f"daily_loss:{name}:{self.attribution.day_ms}"
        # One transaction: with the note alone, the notice would never be sent.
        with self._journal.together():
            self._journal.state.write_note(HALTED, json.dumps(self._noted))
            self._position_owners.write_attribution(
                notice("strategy.daily_loss", ref, at_ms=now_ms, strategy=name, message=message)
            )
