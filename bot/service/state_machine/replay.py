"""Rebuilds the state from a snapshot and the command log. Checks that the same commands give the same events."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bot.errors import ConfigError
from bot.model.events import Event
from bot.service.state_machine.command_log import Recovered
from bot.service.state_machine.machine import chain_of
from bot.service.state_machine.rules_version import META, WAY_OUT, versions_text
from bot.service.state_machine.snapshots import assembled, tracked
from bot.venue.apply import apply
from bot.venue.model.commands import ChangeListing, ListMarket, PayFunding, PricePoint, RunOverdue, SetMarket, SetMarks
from bot.venue.model.record import changed_actions
from bot.venue.model.state import State, VenueAction
from bot.venue.prices import index
from bot.venue.storage import codec


class ReplayError(ConfigError):
    """Replay of the log gives other events than when the log was written. No later start succeeds."""


@dataclass(slots=True)
class PricePosition:
    """The position of the prices: all points at or before `at_ms`.

    With `upto`, of that instant only the markets up to `upto`.
    """

    at_ms: int
    upto: str | None = None


EMPTY_CHAIN: Final = hashlib.sha256(b"bracketbot event log 2").digest()


@dataclass(slots=True)
class Replayed:
    """A state rebuilt from a file."""

    state: State
    seq: int
    chain: bytes
    events: int
    place: PricePosition | None


def replay(recovered: Recovered, path: str) -> Replayed:
    """Rebuild the state from the snapshot and the rows. ReplayError if the events differ from the logged ones."""
    snapshot = recovered.snapshot
    try:
        if snapshot is None:
            replayed = Replayed(State(), 0, EMPTY_CHAIN, 0, None)
            if recovered.rows:
                tracked(replayed.state)
        else:
            state = assembled(snapshot.state, recovered.accounts, recovered.pages)
            index.rebuild(state)
            replayed = Replayed(state, snapshot.seq, snapshot.chain, snapshot.events, PricePosition(snapshot.at_ms))
        for row in recovered.rows:
            assert row.seq == replayed.seq + 1, f"{path}: row {row.seq} follows {replayed.seq}"
            command = codec.loads(row.command)
            events = apply(replayed.state, command, row.at_ms).events
            actions = changed_actions(replayed.state)
            if events or actions:
                replayed.chain = _chain_as_written(replayed.chain, events, actions, row.chain)
                replayed.events += len(events)
            replayed.seq = row.seq
            if replayed.chain != row.chain:
                raise ReplayError(_differs(path, row.seq, recovered))
            if isinstance(command, PricePoint):
                replayed.place = PricePosition(row.at_ms, command.coin)
            elif isinstance(command, ListMarket | PayFunding) or (
                isinstance(command, SetMarket) and command.external is not None
            ):
                # The prices of that instant come after the command.
                replayed.place = PricePosition(row.at_ms - 1)
            # Further prices of the same instant may follow these.
            elif not isinstance(command, SetMarks | RunOverdue | ChangeListing):
                replayed.place = PricePosition(row.at_ms)
    except (LookupError, TypeError, ValueError, AssertionError) as error:
        raise ReplayError(_differs(path, None, recovered)) from error
    return replayed


def _chain_as_written(before: bytes, events: Sequence[Event], actions: Sequence[VenueAction], written: bytes) -> bytes:
    """The chain after these events: as this version hashes them, or as the version did that wrote the log."""
    chain = chain_of(before, events, actions=actions)
    older = (chain_of(before, events, encode, actions=actions) for encode in codec.ENCODERS_BEFORE)
    return chain if chain == written else next((candidate for candidate in older if candidate == written), chain)


def _differs(path: str, seq: int | None, recovered: Recovered) -> str:
    where = "" if seq is None else f" at row {seq}"
    versions = versions_text(recovered.meta.get(META))
    return f"{path}: replaying the log{where} does not give the events that were written. {versions}. {WAY_OUT}"
