"""Event backlog: events for a strategy that is still warming up. The journal keeps them until they are delivered, also
over a restart.

Each note holds at most NOTE_EVENTS events. So a page of the feed or a delivery rewrites few notes, even if the backlog
is long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from bot.money import e8_of_decimal, e16_of_decimal, format_e8, format_e16
from bot.runtime.journal.journal import Journal
from bot.runtime.model.shares import Part
from bot.wire import Event

NOTE_EVENTS: Final = 20


class BacklogEvent(NamedTuple):
    """`parts`: the part of each strategy, if the event is a fill."""

    event: Event
    parts: Mapping[str, Part]


class EventBacklog:
    """Undelivered events of one strategy, oldest first.

    Call `write` after each change, in the transaction of its cause.
    """

    def __init__(self, journal: Journal, strategy: str) -> None:
        """An empty backlog. Notes of an earlier strategy of this name are removed at the first write."""
        self._journal = journal
        self._prefix = f"untold:{strategy}:"
        # events by a number that grows until the backlog is empty
        self._notes: dict[int, list[BacklogEvent]] = {}
        self._changed = {
            int(name.removeprefix(self._prefix)) for name in self._written_notes() if self._is_numbered(name)
        }
        # unreadable notes and why; all other notes are delivered
        self.damaged: dict[str, str] = {}

    @classmethod
    def of_journal(cls, journal: Journal, strategy: str, epoch: int) -> EventBacklog:
        """The backlog that the last run left; events from before an account reset are dropped."""
        backlog = cls(journal, strategy)
        backlog.damaged = {
            name: "its name does not end in a number"
            for name in backlog._written_notes()
            if not backlog._is_numbered(name)
        }
        for number in sorted(backlog._changed):
            name = backlog._note(number)
            try:
                of_epoch, rows, reused = json.loads(journal.state.note(name) or "")
                events = [_event_of(*row) for row in rows] if of_epoch == epoch else []
            except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
                backlog.damaged[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if events:
                backlog._changed.remove(number)
                backlog._notes[number] = events
                journal.events.reused_ids.update(reused)
        return backlog

    def __bool__(self) -> bool:
        return bool(self._notes)

    def __iter__(self) -> Iterator[BacklogEvent]:
        return (event for events in self._notes.values() for event in events)

    @property
    def first(self) -> BacklogEvent:
        """The oldest event."""
        return self._notes[next(iter(self._notes))][0]

    def append(self, event: BacklogEvent) -> None:
        last = next(reversed(self._notes), 0)
        if len(self._notes.get(last, ())) >= NOTE_EVENTS:
            last += 1
        self._notes.setdefault(last, []).append(event)
        self._changed.add(last)

    def drop_first(self) -> None:
        number = next(iter(self._notes))
        del self._notes[number][0]
        if not self._notes[number]:
            del self._notes[number]
        self._changed.add(number)

    def clear(self) -> None:
        self._changed |= self._notes.keys()
        self._notes.clear()

    def write(self, epoch: int) -> None:
        for number in sorted(self._changed):
            name, events = self._note(number), self._notes.get(number)
            if events is None:
                self._journal.state.forget_note(name)
                continue
            # A restored service has used these ids twice. The next run cannot see that, so they are written down.
            reused = [each.event.id for each in events if each.event.id in self._journal.events.reused_ids]
            self._journal.state.write_note(name, json.dumps([epoch, [_text_of(event) for event in events], reused]))
        self._changed.clear()

    def _written_notes(self) -> list[str]:
        return self._journal.state.notes_under(self._prefix)

    def _is_numbered(self, name: str) -> bool:
        number = name.removeprefix(self._prefix)
        return number.isdecimal() and name == self._note(int(number))

    def _note(self, number: int) -> str:
        return f"{self._prefix}{number}"


def _text_of(event: BacklogEvent) -> list[Any]:
    parts = {
        name: [
            format_e8(part.size_e8),
            format_e16(part.fee),
            None if part.realized is None else format_e16(part.realized),
            format_e8(part.left_e8),
        ]
        for name, part in event.parts.items()
    }
    return [event.event.model_dump_json(), parts]


def _event_of(event: str, parts: Mapping[str, tuple[str, str, str | None, str]]) -> BacklogEvent:
    return BacklogEvent(Event.model_validate_json(event), {name: _part_of(*part) for name, part in parts.items()})


def _part_of(size: str, fee: str, realized: str | None, left: str) -> Part:
    return Part(
        e8_of_decimal(Decimal(size)),
        e16_of_decimal(Decimal(fee)),
        None if realized is None else e16_of_decimal(Decimal(realized)),
        e8_of_decimal(Decimal(left)),
    )
