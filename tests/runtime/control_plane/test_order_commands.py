"""An operator closes a position or cancels an entry through the daemon: written first, sent once, and no stop is
lost.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.errors import BotError, Declined
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.control_plane.order_commands import cancel_entry, close_position
from bot.runtime.journal import queries
from bot.runtime.journal.order_trace import explain
from bot.strategy import Bracket, Open
from tests.faulty_port import Fault, FaultyPort, refused, unknown
from tests.runtime.builders import begun, make_kernel, opened, stop_of


class Died(BaseException):
    """The process ends here."""


async def test_a_position_is_closed_once_and_the_chain_names_the_operator() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    assert await close_position(kernel, "BTC")
    assert venue.positions == {}
    assert [one.kind for one in venue.working.values() if one.kind == "stop_loss"] == []
    with pytest.raises(BotError, match="there is no position in BTC"):
        await close_position(kernel, "BTC")
    (close,) = [row for row in kernel.journal.db["intents"].rows if row["action"] == "close"]
    assert close["state"] == "accepted"
    with queries.in_rows(kernel.journal.db.conn) as db:
        assert "an operator closed the position" in explain(db, close["id"])[0].text


async def test_a_close_without_an_answer_is_not_sent_twice(tmp_path: Path) -> None:
    venue = FaultyPort()
    kernel = await opened(venue, path=tmp_path / "j.db")
    venue.faults.append(Fault("close", "lose_reply"))
    await close_position(kernel, "BTC")
    await kernel.cycle()
    assert venue.positions == {}
    assert len([row for row in kernel.journal.db["intents"].rows if row["action"] == "close"]) == 1
    assert len([one for one in venue.trade_rows if one.intent == "close"]) == 1


async def test_a_fraction_is_refused_while_another_close_is_in_doubt(tmp_path: Path) -> None:
    """The service may have done the first close, so that the size of which a half is asked for is not known."""
    venue = FaultyPort()
    kernel = await opened(venue, path=tmp_path / "j.db")
    venue.faults.append(Fault("close", unknown(), count=40))
    assert not (await close_position(kernel, "BTC")).is_done
    with pytest.raises(BotError, match="on its way or in doubt"):
        await close_position(kernel, "BTC", fraction=Decimal("0.5"))


async def test_a_close_is_in_the_journal_before_it_is_sent(tmp_path: Path) -> None:
    """The daemon dies while the request is under way: the next start finds the intent and settles it, and nothing is
    closed twice.
    """
    venue = FaultyPort()
    kernel = await opened(venue, path=tmp_path / "j.db")
    close = venue.close

    async def dies(*given: Any, **named: Any) -> None:
        await close(*given, **named)
        raise Died

    # it answers a daemon that is dead
    venue.close = dies
    with pytest.raises(Died):
        await close_position(kernel, "BTC")
    kernel.journal.close()
    venue.close = close
    again = make_kernel(venue, path=tmp_path / "j.db")
    await again.recover()
    await again.cycle()
    assert venue.positions == {}
    (written,) = [row for row in again.journal.db["intents"].rows if row["action"] == "close"]
    assert written["state"] == "accepted"


async def test_a_refused_close_leaves_the_position_its_stop() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    venue.faults.append(Fault("close", refused("market_closed", "closed until Monday")))
    with pytest.raises(Declined, match="closed until Monday"):
        await close_position(kernel, "BTC")
    assert venue.positions["BTC"].size > 0
    assert kernel.account.account_state.is_protected("BTC")


def rests(_view: object, _bar: object) -> list[Open]:
    return [Open("BTC", "long", usd=100, limit_px=Decimal(90), bracket=Bracket(stop_pct=2))]


async def test_a_resting_entry_is_canceled() -> None:
    venue = FaultyPort()
    kernel = await begun(venue, rests)
    (oid,) = kernel.account.account_state.resting_of(None)
    venue.faults.append(Fault("cancel", unknown()))
    with pytest.raises(CommandTimeout):
        await cancel_entry(kernel, oid)
    await cancel_entry(kernel, oid)
    assert oid not in venue.working
    assert kernel.account.account_state.resting_of(None) == ()
    with pytest.raises(BotError, match="no entry"):
        await cancel_entry(kernel, oid)


async def test_a_stop_cannot_be_canceled() -> None:
    venue = FaultyPort()
    kernel = await opened(venue)
    with pytest.raises(BotError, match="stops and targets cannot be canceled"):
        await cancel_entry(kernel, stop_of(venue))
    assert kernel.account.account_state.is_protected("BTC")
