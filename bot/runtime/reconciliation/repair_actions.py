"""What a repair may do: ask the service, arm guardians, send orders, read events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bot.runtime.execution.execution_engine import ExecutionEngine
from bot.runtime.execution.open_intents import OpenIntents
from bot.runtime.passes.ports import VenuePort
from bot.runtime.reconciliation.guardians import Guardians

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot


@dataclass(frozen=True, slots=True)
class RepairActions:
    """`drain` reads the events there are; False: not all of them could be read. `restart` begins them anew at a
    snapshot, or at one of now.
    """

    port: VenuePort
    guardians: Guardians
    intents: OpenIntents
    execution: ExecutionEngine
    drain: Callable[[], Awaitable[bool]]
    restart: Callable[[AccountSnapshot | None], Awaitable[None]]
