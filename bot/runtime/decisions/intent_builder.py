"""From a strategy's signals to intents: the risk engine judges each signal, and an approved order becomes an intent
with its key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from bot import logs
from bot.clock import MINUTE_MS
from bot.errors import Refusal
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.decisions.entry_conditions import EntryConditions
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import FIRST_LEG, Intent, intent_key
from bot.runtime.model.limits import FRESH_INTERVALS, ApprovedOrder, RiskRequest
from bot.runtime.passes.pass_budget import PassBudget
from bot.runtime.risk.risk_engine import RiskEngine
from bot.strategy import Close, Open
from bot.wire import INTERVAL_MS

if TYPE_CHECKING:
    from bot.runtime.strategy_host.host import OwnedSignal
    from bot.runtime.strategy_host.instance import StrategyInstance

# life of an assistant's proposal, as long as its plan can be made anew (replan.py)
PROPOSAL_MS: Final = 30 * MINUTE_MS


class IntentBuilder:
    """Makes intents and keeps the refusals.

    Nothing is written or sent here, except refusals and traces to the journal.
    """

    def __init__(
        self,
        journal: Journal,
        account: DaemonAccount,
        risk: RiskEngine,
        conditions: EntryConditions,
        intents: OpenIntents,
        budget: PassBudget,
        now_ms: Callable[[], int],
    ) -> None:
        # The signals of this run, refused ones included.
        self.signals = 0
        self._journal = journal
        self._account_state = account.account_state
        self._order_owners = account.order_owners
        self._risk = risk
        self._conditions = conditions
        self._live = intents.live
        self._budget = budget
        self._now_ms = now_ms

    def build(self, signals: Sequence[OwnedSignal], *, trigger: str, at_ms: int) -> list[Intent]:
        """The intents of these signals, without those that are refused.

        `trigger` and `at_ms` say what the strategies decided on, and when.
        """
        self.signals += len(signals)
        intents: list[Intent] = []
        ordinals: dict[str, int] = {}
        closing: set[str] = set()
        now_ms = self._now_ms()
        for instance, signal in signals:
            ordinal = ordinals[instance.name] = ordinals.get(instance.name, -1) + 1
            market = signal.market or ""
            # A backtest's clock stands one millisecond before the bar, so the bar of midnight would count for the day
            # before.
            request = RiskRequest(signal, at_ms, max(now_ms, at_ms), self._price(market), frozenset(closing))
            answer = self._conditions.no_signal(signal, trigger) or self._risk.judge(instance.name, request)
            if isinstance(answer, Refusal):
                self._refuse(answer, instance, market, trigger=trigger, ordinal=ordinal, now_ms=now_ms)
                continue
            if isinstance(signal, Close) and signal.fraction is None and signal.usd is None and signal.size is None:
                closing.add(market)
            intent = self._intent(instance, answer, trigger=trigger, ordinal=ordinal, now_ms=now_ms)
            self._live.setdefault(intent.id, intent)
            intents.append(intent)
            if self._journal.keeps_traces:
                self._journal.trace(intent.id, "wish", json.dumps({"wish": str(signal)}), at_ms=now_ms)
            if logs.is_shown(logs.INFO):
                log.info(
                    "intent.decided",
                    intent=intent.id,
                    strategy=instance.name,
                    market=market,
                    action=intent.action,
                    signal=str(signal),
                )
        return intents

    def propose(
        self, instance: StrategyInstance, signal: Open, *, trigger: str, origin: Mapping[str, object]
    ) -> Intent | Refusal:
        """The intent of an entry that an assistant proposes for a strategy, after the checks of the strategy's own
        entries.

        `origin` says who proposes it and why. The entry is planned, whatever the config says, so that there is
        something to approve.
        """
        now_ms = self._now_ms()
        request = RiskRequest(signal, now_ms, now_ms, self._price(signal.market))
        answer = self._conditions.no_signal(signal, trigger) or self._risk.judge(instance.name, request)
        if isinstance(answer, Refusal):
            self._refuse(answer, instance, signal.market, trigger=trigger, ordinal=0, now_ms=now_ms)
            return answer
        planned = answer._replace(path="plan")
        intent = self._intent(instance, planned, trigger=trigger, ordinal=0, now_ms=now_ms, fresh_ms=PROPOSAL_MS)
        text = json.dumps({"wish": str(signal), "proposal": origin})
        self._journal.trace(intent.id, "wish", text, at_ms=now_ms)
        return intent

    def _price(self, market: str) -> Decimal | None:
        mark = self._account_state.marks.get(market)
        return None if mark is None else Decimal(repr(mark))

    def _refuse(
        self, refusal: Refusal, instance: StrategyInstance, market: str, *, trigger: str, ordinal: int, now_ms: int
    ) -> None:
        self._journal.refused(
            refusal, strategy=instance.name, market=market, trigger=trigger, ordinal=ordinal, at_ms=now_ms
        )
        log.warning("intent.refused", strategy=instance.name, market=market, code=refusal.code, message=refusal.message)

    def _intent(
        self,
        instance: StrategyInstance,
        approved: ApprovedOrder,
        *,
        trigger: str,
        ordinal: int,
        now_ms: int,
        fresh_ms: int | None = None,
    ) -> Intent:
        if fresh_ms is None:
            fresh_ms = FRESH_INTERVALS * INTERVAL_MS[instance.interval]
        epoch, leg = self._account_state.epoch, FIRST_LEG[approved.action]
        key = intent_key(
            address=self._journal.address,
            epoch=epoch,
            strategy=instance.name,
            market=approved.market,
            trigger=trigger,
            ordinal=ordinal,
            leg=leg,
        )
        self._order_owners.by_key[key] = instance.name
        return Intent(
            id=key,
            strategy=instance.name,
            market=approved.market,
            action=approved.action,
            path=approved.path,
            trigger=trigger,
            ordinal=ordinal,
            leg=leg,
            epoch=epoch,
            body=approved.request.body() if self._journal.keeps_bodies else b"",
            request=approved.request,
            not_after_ms=now_ms + self._budget.hold_ms(fresh_ms),
            opened_ms=now_ms,
            notional_usd=approved.notional_usd,
            targets=approved.targets,
        )
