"""Event backlog: events for a strategy that is still warming up. The journal keeps them until they are delivered, also over a restart.

Each note holds at most NOTE_EVENTS, so that a page of the feed or a delivery rewrites few notes, however long the backlog is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from bot.runtime.journal.journal import Journal
from bot.runtime.model.shares import Part
from bot.wire import Event

NOTE_EVENTS: Final = 20


class Heard(NamedTuple):
    event: Event
    parts: Mapping[str, Part]


class EventBacklog:
    """Undelivered events of one strategy, oldest first. Call `write` after each change, in the transaction of its cause."""

    def __init__(self, journal: Journal, strategy: str) -> None:
        """An empty backlog. Notes of an earlier strategy of this name are removed at the first write."""
        self._journal = journal
        self._prefix = f"untold:{strategy}:"
        self._notes: dict[int, list[Heard]] = {}  # by number, which grows until the backlog is empty
        self._changed = {
            int(name.removeprefix(self._prefix)) for name in self._written_notes() if self._is_numbered(name)
        }
        self.damaged: dict[str, str] = {}  # unreadable notes and why; all other notes are delivered

    @classmethod
    def of_journal(cls, journal: Journal, strategy: str, epoch: int) -> EventBacklog:
        """The backlog that the last run left; events from before an account reset are dropped."""
        one = cls(journal, strategy)
        one.damaged = {
            name: "its name ends in no number" for name in one._written_notes() if not one._is_numbered(name)
        }
        for number in sorted(one._changed):
            name = one._note(number)
            try:
                of_epoch, events, reused = json.loads(journal.state.note(name) or "")
                heard = [_heard_of(*each) for each in events] if of_epoch == epoch else []
            except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
                one.damaged[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if heard:
                one._changed.remove(number)
                one._notes[number] = heard
                journal.events.reused_ids.update(reused)
        return one

    def __bool__(self) -> bool:
        return bool(self._notes)

    def __iter__(self) -> Iterator[Heard]:
        return (each for heard in self._notes.values() for each in heard)

    @property
    def first(self) -> Heard:
        """The oldest event."""
        return self._notes[next(iter(self._notes))][0]

    def append(self, heard: Heard) -> None:
        last = next(reversed(self._notes), 0)
        if len(self._notes.get(last, ())) >= NOTE_EVENTS:
            last += 1
        self._notes.setdefault(last, []).append(heard)
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
            name, heard = self._note(number), self._notes.get(number)
            if heard is None:
                self._journal.state.forget_note(name)
                continue
            # A restored service has given these ids twice, which the next run cannot see.
            reused = [one.event.id for one in heard if one.event.id in self._journal.events.reused_ids]
            self._journal.state.write_note(name, json.dumps([epoch, [_text_of(one) for one in heard], reused]))
        self._changed.clear()

    def _written_notes(self) -> list[str]:
        return self._journal.state.notes_under(self._prefix)

    def _is_numbered(self, name: str) -> bool:
        number = name.removeprefix(self._prefix)
        return number.isdecimal() and name == self._note(int(number))

    def _note(self, number: int) -> str:
        return f"{self._prefix}{number}"


def _text_of(heard: Heard) -> list[Any]:
    parts = {who: [None if n is None else str(n) for n in part] for who, part in heard.parts.items()}
    return [heard.event.model_dump_json(), parts]


def _heard_of(event: str, parts: Mapping[str, list[str | None]]) -> Heard:
    return Heard(
        Event.model_validate_json(event), {who: Part(*(_number(n) for n in part)) for who, part in parts.items()}
    )


def _number(text: str | None) -> Any:
    return None if text is None else Decimal(text)
