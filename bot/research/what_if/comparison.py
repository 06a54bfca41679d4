"""What a setting changed against the history as it was: trades, USD, exits, requests that were not placed, and luck.

Both sides are played by the same rules on the same prices, so a difference comes from the setting alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any, Final, NamedTuple

from bot.backtest.report.risk_statistics import DAYS_MIN, NORMAL, moments_of
from bot.errors import BotError, ConfigError
from bot.money import format_e8
from bot.number_text import signed_usd
from bot.plain_text import csv_cell
from bot.research.overfitting import SURE, deflated_sharpe
from bot.research.runners import Runner
from bot.research.sweep import Progress
from bot.research.trials import Task
from bot.research.what_if.account_replay import Played, PlayedTrade
from bot.research.what_if.history import AccountHistory
from bot.research.what_if.recorded_requests import GivenRequest
from bot.research.what_if.setting import present_of
from bot.venue.model.numbers import E8
from bot.words import many

# with fewer changed trades a range of luck says nothing
CHANGED_MIN: Final = 5
# trades and requests of one setting in the JSON; the counts have all
LISTED_MAX: Final = 1_000
# the setting of the history itself
PRESENT: Final = "present"


class ChangedTrade(NamedTuple):
    """A trade on both sides; None on the side that does not have it."""

    present: PlayedTrade | None
    other: PlayedTrade | None

    @property
    def trade(self) -> PlayedTrade:
        trade = self.present or self.other
        assert trade is not None
        return trade

    @property
    def usd(self) -> int:
        """What the setting changed, scaled 1e8."""
        return (self.other.pnl if self.other else 0) - (self.present.pnl if self.present else 0)

    @property
    def moved(self) -> int:
        """-1 if the setting ended the trade earlier, 1 if later, 0 if at one instant or on one side only."""
        if self.present is None or self.other is None:
            return 0
        was, now = (trade.exit_ms or math.inf for trade in (self.present, self.other))
        return (now > was) - (now < was)

    def plain(self) -> dict[str, Any]:
        market, strategy, side, entry_ms, *_ = self.trade
        trade = {"market": market, "strategy": strategy, "side": side, "entryMs": entry_ms, "usd": format_e8(self.usd)}
        return trade | {PRESENT: _exit_of(self.present), "setting": _exit_of(self.other)}


def _exit_of(trade: PlayedTrade | None) -> dict[str, Any] | None:
    """How a trade ended; one that is open has the last price and no instant."""
    if trade is None:
        return None
    px, pnl = format_e8(trade.exit_px), format_e8(trade.pnl)
    return {"exitMs": trade.exit_ms or None, "exitKind": trade.exit_kind or "open", "exitPx": px, "pnlUsd": pnl}


@dataclass(frozen=True, slots=True)
class Effect:
    """A setting against the present one. `not_placed`: requests that only the setting did not place or fill.

    `returns`: the differences of the daily returns.
    """

    setting: Mapping[str, str]
    trades: Sequence[ChangedTrade]
    not_placed: Sequence[tuple[GivenRequest, str]]
    net: int
    returns: Sequence[float]

    @classmethod
    def of(cls, setting: Mapping[str, str], present: Played, other: Played) -> Effect:
        """Compare two plays of one history. A trade is the same if its market, strategy, side and entry are."""
        left = {trade[:4]: trade for trade in other.trades}
        pairs = [ChangedTrade(trade, left.pop(trade[:4], None)) for trade in present.trades]
        pairs += [ChangedTrade(None, trade) for trade in left.values()]
        known = {(request.action, request.key) for request, _ in present.not_placed}
        return cls(
            setting,
            tuple(pair for pair in pairs if pair.present != pair.other),
            tuple(lost for lost in other.not_placed if (lost[0].action, lost[0].key) not in known),
            other.value - present.value,
            [now - was for now, was in zip(other.returns, present.returns, strict=False)],
        )

    @property
    def luck_range(self) -> tuple[float, float] | None:
        """The interval of 95 % of the net USD, with the changed trades as a sample. None for fewer than five."""
        usd = [trade.usd / E8 for trade in self.trades]
        if len(usd) < CHANGED_MIN:
            return None
        spread = NORMAL.inv_cdf(0.975) * stdev(usd) * math.sqrt(len(usd))
        return sum(usd) - spread, sum(usd) + spread

    def row(self) -> dict[str, Any]:
        """The figures, for a table and for a file."""
        moved = [trade.moved for trade in self.trades]
        return {
            "net_usd": format_e8(self.net),
            "saved_usd": format_e8(sum(max(0, trade.usd) for trade in self.trades)),
            "cost_usd": format_e8(sum(max(0, -trade.usd) for trade in self.trades)),
            "changed": len(moved),
            "earlier": moved.count(-1),
            "later": moved.count(1),
            "not_placed": len(self.not_placed),
        }

    def plain(self) -> dict[str, Any]:
        lost = [
            {"atMs": request.at_ms, "action": request.action, "market": request.market, "code": code}
            for request, code in self.not_placed[:LISTED_MAX]
        ]
        trades = [trade.plain() for trade in self.trades[:LISTED_MAX]]
        lists = {"luckRangeUsd": self.luck_range, "trades": trades, "notPlaced": lost}
        return {"setting": dict(self.setting)} | self.row() | lists


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The effects of all settings, the best first."""

    history: AccountHistory
    present: Played
    effects: Sequence[Effect]

    @property
    def best(self) -> Effect:
        return self.effects[0]

    @property
    def present_setting(self) -> dict[str, str]:
        return present_of(self.history, self.best.setting)

    def notes(self) -> Iterator[str]:
        """What a reader must know of these figures, as sentences."""
        history, present, luck = self.history, self.present, self.best.luck_range
        recorded = "not known" if history.balance_usd is None else f"{history.balance_usd} USD"
        yield (
            f"Replay of the history itself: {many(present.fills, 'fill')}, balance {format_e8(present.cash)} USD;"
            f" recorded: {many(history.fills, 'fill')}, balance {recorded}."
        )
        yield from history.notes
        yield "Later orders stay as they were given: no strategy decides again after an earlier exit."
        changed = f"The best setting changes {many(len(self.best.trades), 'trade')} of {len(present.trades):,}"
        if luck is None:
            yield f"{changed}: too few for a range of luck, which needs {CHANGED_MIN}."
        else:
            low, high = map(signed_usd, luck)
            yield f"{changed}: the net of 95 in 100 such samples lies between {low} and {high} USD."
        if len(self.effects) > 1:
            yield self._deflated()

    def _deflated(self) -> str:
        """How likely the best setting is better than the luckiest of as many, by its daily differences."""
        warning = f"The best of {len(self.effects):,} settings is the luckiest of them."
        moments = [moments_of(effect.returns) for effect in self.effects]
        sharpes = [moment.sharpe for moment in moments if moment is not None]
        if moments[0] is None or len(sharpes) < 2:
            return f"{warning} Too few days say by how much: {DAYS_MIN} with differences are needed."
        value = deflated_sharpe(moments[0], len(sharpes), stdev(sharpes) ** 2)
        verdict = "an improvement is likely" if value >= SURE else f"no improvement is shown (less than {SURE})"
        return f"{warning} The probability that it is better than that luck is {value:.2f}: {verdict}."

    def plain(self) -> dict[str, Any]:
        history, present = self.history, self.present
        replayed = {"trades": len(present.trades), "fills": present.fills, "balanceUsd": format_e8(present.cash)}
        recorded = {"recordedFills": history.fills, "recordedBalanceUsd": history.balance_usd}
        return {
            "history": history.name,
            "sinceMs": history.since_ms,
            PRESENT: {"setting": self.present_setting} | replayed | recorded,
            "settings": [effect.plain() for effect in self.effects],
            "notes": list(self.notes()),
        }

    def table(self) -> str:
        """Every setting as CSV."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow([*self.best.setting, *self.best.row()])
        for effect in self.effects:
            rows.writerow([*map(csv_cell, effect.setting.values()), *effect.row().values()])
        return text.getvalue()


def what_if(
    history: AccountHistory, cells: Sequence[Mapping[str, str]], runner: Runner, show: Callable[[Progress], object]
) -> WhatIf:
    """Play the history under each setting, and once as it was. ConfigError for a setting that cannot be used, BotError
    if one cannot be played.
    """
    settings: list[Mapping[str, str]] = [{}, *cells]
    played: dict[int, Played] = {}
    for outcome in runner.outcomes(Task(number, setting) for number, setting in enumerate(settings)):
        if outcome.state != "complete":
            raise (ConfigError if outcome.state == "refused" else BotError)(outcome.message)
        played[outcome.number] = outcome.figures["played"]
        show(Progress(len(played), len(settings), None, None))
    present = played.pop(0)
    effects = [Effect.of(settings[number], present, other) for number, other in sorted(played.items())]
    return WhatIf(history, present, sorted(effects, key=lambda effect: -effect.net))
