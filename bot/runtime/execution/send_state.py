"""The sender's memory of each open intent. It is not on disk; a restart relies on the journal alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bot.errors import ApiError
from bot.runtime.model.intents import State

NO_DEPTH: Final = "insufficient_depth"


class Ending(NamedTuple):
    """How an intent ends."""

    state: State
    code: str
    message: str


@dataclass(slots=True)
class SendState:
    """Memory of one intent. Times are of the pacer, in real milliseconds."""

    # no try before this time
    next_try_ms: int = 0
    tries: int = 0
    # why the last request failed
    last_error: str | None = None
    # its code
    last_code: str | None = None
    # the first request after the last known outcome
    no_outcome_since_ms: int | None = None
    # when a rule of its own strategy began to block the entry
    blocked_since_ms: int | None = None
    # when the service began to refuse the search for its trades
    search_refused_since_ms: int | None = None
    # how the intent ends, unless the search finds an order that a lost journal sent
    ending: Ending | None = None
    # orders of one cancel that are canceled so far
    canceled: set[str] = field(default_factory=set)

    def failed(self, error: ApiError) -> None:
        """Keep why the last request failed."""
        self.last_error, self.last_code = str(error), error.code


class SendStates(dict[str, SendState]):
    """The memory of all open intents, by the id of the intent."""

    def of(self, intent_id: str) -> SendState:
        """The memory of an intent, made if there is none yet."""
        state = self.get(intent_id)
        if state is None:
            state = self[intent_id] = SendState()
        return state

    def expiry_of(self, intent_id: str, reason: tuple[str, str]) -> tuple[str, str]:
        """Code and message of an expiry, with the last error of the service.

        What the book did not give has its own code, because time is not the cause.
        """
        code, message = reason
        state = self.get(intent_id)
        if state is None or state.last_error is None:
            return code, message
        return state.last_code if state.last_code == NO_DEPTH else code, f"{message} ({state.last_error})"

    def keep(self, live: Collection[str]) -> None:
        """Forget every intent that is not in `live`."""
        for intent_id in [known for known in self if known not in live]:
            del self[intent_id]
