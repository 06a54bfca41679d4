"""Events are plain tuples: each type of the interface has one class, and readers may take its first values by
position.
"""

from __future__ import annotations

from typing import get_args

import pytest

from bot.model import events
from bot.model.events import CLASSES, Event
from bot.venue.storage import codec
from bot.wire import EVENT_SUBTYPES


def test_each_event_type_of_the_interface_has_one_class() -> None:
    assert set(get_args(Event)) == set(CLASSES)
    assert len(CLASSES) == len(EVENT_SUBTYPES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_event_starts_with_account_number_and_instant_and_is_read_back_from_a_snapshot(cls: type[tuple]) -> None:
    assert cls._fields[:3] == ("account", "seq", "ts")
    event = cls(*range(len(cls._fields)))
    again = codec.loads(codec.dumps(event))
    assert (type(again), again) == (cls, event)
    # The name in stored bytes never changes, whatever the class is called.
    name = {"FillEvent": "Fill"}.get(cls.__name__, cls.__name__)
    assert codec.dumps(event) == f'["{name}",{",".join(map(str, event))}]'


@pytest.mark.parametrize("make", [events.fill, events.order_changed, events.triggered])
def test_a_fast_constructor_takes_all_values_of_its_class(make: type[tuple]) -> None:
    cls = make.args[0]
    assert type(make(range(len(cls._fields)))) is cls
