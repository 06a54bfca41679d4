"""Decides whether an entry must wait before it is sent. Exits never wait: they only reduce a position."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from bot.errors import Refusal
from bot.logs import log
from bot.runtime.execution.order_search import OrderSearch
from bot.runtime.execution.send_state import SendStates
from bot.runtime.journal.journal import Journal
from bot.runtime.model.intents import Intent
from bot.runtime.passes.ports import Pacer, VenuePort
from bot.wire import Plan

# Real time after which an unsent entry ends when only its own strategy must not send it. As long as a plan lives. Until
# then it keeps entries of other strategies out of its market.
BLOCKED_MS: Final = 60_000


class EntryChecks(Protocol):
    """The checks of an entry right before it is sent, because the account may have changed since the entry was
    written.
    """

    def refusal(self, intent: Intent) -> Refusal | None:
        """Why this entry must not be sent now, whatever the reason."""

    def own_refusal(self, intent: Intent) -> Refusal | None:
        """Why only this strategy must not send this entry now, while other strategies in its market may."""

    def may_confirm(self, intent: Intent, plan: Plan) -> Awaitable[bool]:
        """True if the strategy still wants the entry, given its plan."""


class EntryWait:
    """Asks the checks, the rate limit and the journal whether an entry may be sent, and measures how long its own
    strategy blocks it.
    """

    def __init__(
        self,
        checks: EntryChecks,
        port: VenuePort,
        journal: Journal,
        search: OrderSearch,
        states: SendStates,
        pacer: Pacer,
    ) -> None:
        self._checks = checks
        self._port = port
        self._journal = journal
        self._search = search
        self._states = states
        self._mono_ms = pacer.mono_ms

    def must_wait(self, intent: Intent) -> bool:
        """True if the intent is an entry that must not be sent now. The fence of the entry ends the wait."""
        if intent.action != "open":
            return False
        no = self._checks.refusal(intent)
        # The rest of the rate limit is for exits.
        if no is None and (wait_ms := self._port.entry_wait_ms()) > 0:
            self._states.of(intent.id).next_try_ms = self._mono_ms() + wait_ms
            no = Refusal("rate_limited", f"the rate limit allows no entry for {wait_ms} ms")
        self._measure_block(intent, is_blocked=no is not None and self._checks.own_refusal(intent) is not None)
        if no is not None:
            log.info("intent.held", intent=intent.id, strategy=intent.strategy, market=intent.market, code=no.code)
        return no is not None

    def blocked_too_long(self, intent: Intent) -> Refusal | None:
        """Why an unsent entry must end: only its own strategy has blocked it, for BLOCKED_MS. None if it may go on."""
        state = self._states.get(intent.id)
        if state is None or state.blocked_since_ms is None or self._mono_ms() - state.blocked_since_ms < BLOCKED_MS:
            return None
        return self._checks.own_refusal(intent) if intent.state == "opened" or self.is_postponed(intent) else None

    def is_postponed(self, intent: Intent) -> bool:
        """True if the entry has a plan or was refused for now, and no request of it can have reached the service.

        Then check it again.
        """
        if intent.action != "open" or intent.state == "opened":
            return False
        return self._journal.intents.is_unsent(intent) and (
            intent.state == "planned" or not self._search.may_arrive_late(intent)
        )

    def lacks_journal(self, intent: Intent) -> bool:
        """True if the intent is an entry and the journal cannot be written to disk now.

        An exit goes on: its key stays the same.
        """
        return intent.action == "open" and self._journal.fault is not None

    def _measure_block(self, intent: Intent, *, is_blocked: bool) -> None:
        if is_blocked:
            state = self._states.of(intent.id)
            if state.blocked_since_ms is None:
                state.blocked_since_ms = self._mono_ms()
        elif (known := self._states.get(intent.id)) is not None:
            known.blocked_since_ms = None
