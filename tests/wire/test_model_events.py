"""The edge of the daemon: an event of the wire becomes the tuple that the venue made, and an amount finer than 1e-8
is refused with its field.
"""

from __future__ import annotations

import json
from decimal import Decimal, localcontext

import pytest
from pydantic import ValidationError

from bot.model.events import FundingPaid
from bot.service.bodies import event_bodies
from bot.wire import EVENT_SUBTYPES, Event
from bot.wire.events import DATA_OF, AccountCreatedData, EventsPage, model_event
from tests.backtest.builders import minutes, ran, settings


def test_each_event_of_a_backtest_is_read_back_as_the_venue_made_it() -> None:
    """In any decimal context: an author's context is not the one that parses."""
    drawdown = {"type": "account_drawdown", "max_loss_pct_from_day_start": 1, "action": "flatten"}
    one = ran([minutes(1_500, seed=2)], made=settings(guardians=[drawdown]))
    kinds = set()
    with localcontext() as context:
        context.prec = 3
        for happened in one.test.exchange.event_buffer.events:
            event = Event.model_validate_json(json.dumps(event_bodies.event(happened)))
            expected = happened._replace(account="", seq=-1)
            if isinstance(expected, FundingPaid):
                expected = expected._replace(rate=0)
            assert model_event(event) == expected
            kinds.add((event.type, event.subtype))
    assert len(kinds) > 9


@pytest.mark.parametrize(
    ("type_", "subtype"), [("weather", "rain"), ("fill", "correction"), ("order", "noted"), ("account", "moved")]
)
def test_an_event_of_an_unknown_type_or_subtype_is_not_folded(type_: str, subtype: str) -> None:
    assert subtype not in EVENT_SUBTYPES.get(type_, ())
    assert model_event(Event.model_construct(id="evt_1", type=type_, subtype=subtype, ts=1, data={"mm": 3})) is None


AMOUNTS = [
    (name, one.alias)
    for name, model in DATA_OF.items()
    for field, one in model.model_fields.items()
    if "Decimal" in str(one.annotation)
]


@pytest.mark.parametrize(("name", "alias"), AMOUNTS, ids=lambda one: str(one))
def test_an_amount_finer_than_1e_8_is_refused_with_its_field(name: str, alias: str) -> None:
    model = DATA_OF[name]
    for text in ("0.000000001", "-123456.123456789", "1e-9", 0.000000001, "", "ten", "NaN"):
        with pytest.raises(ValidationError) as raised:
            model.model_validate({alias: text})
        errors = {error["loc"]: error["msg"] for error in raised.value.errors() if error["type"] != "missing"}
        assert errors == {(alias,): "must be an amount with at most 8 decimals, as text"}


@pytest.mark.parametrize("text", ["1.250000000000", "-0.00000001", "9" * 40])
def test_zeros_after_the_eighth_decimal_are_no_finer_amount(text: str) -> None:
    assert AccountCreatedData.model_validate({"balanceUsd": text}).balance_usd == Decimal(text)


def test_the_refusal_of_a_page_names_event_and_field() -> None:
    row = {"id": "evt_1", "type": "fill", "subtype": "entry", "ts": 1, "coin": "BTC", "data": {"size": "0.000000001"}}
    with pytest.raises(ValidationError) as raised:
        EventsPage.model_validate({"events": [row]})
    assert ("events", 0, "data", "size") in {error["loc"] for error in raised.value.errors()}
