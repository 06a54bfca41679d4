"""The confirm token of a plan is never in clear on disk, and a journal whose tokens cannot be read orders nothing
twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from bot.encryption import FORM, Cipher
from bot.runtime.control_plane.order_commands import decide
from bot.runtime.journal import opening
from bot.runtime.journal.intent_log import UNREADABLE
from bot.runtime.journal.journal import TOKENS
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.intents import Intent as RuntimeIntent
from bot.runtime.model.limits import Approval
from bot.strategy import Bar, Bracket, Intent, Open, View
from tests.faulty_port import ADDRESS, Fault, FaultyPort
from tests.runtime.builders import begun, kill, later, make_kernel, minutes

HOUR_MS = 3_600_000


def once(view: View, bar: Bar) -> Iterable[Intent]:
    if view.state.get("bars") == 1:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))


def intent_of(key: str) -> RuntimeIntent:
    return RuntimeIntent(
        id=key,
        strategy="trend",
        market="BTC",
        action="open",
        path="plan",
        trigger="bar:1",
        ordinal=0,
        leg="order",
        epoch=0,
        body=b"{}",
        not_after_ms=10**15,
        opened_ms=0,
    )


async def again(venue: FaultyPort, path: Path, approval: Approval | None) -> Kernel:
    kernel = make_kernel(venue, once, path=path, approval=approval, interval_ms=HOUR_MS)
    await kernel.recover()
    await kernel.cycle()
    return kernel


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


def change_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the account had another API key."""
    monkeypatch.setattr(opening, "OF_THIS_PROCESS", Cipher(b"another", TOKENS))


@pytest.mark.parametrize("approval", [Approval(), None])
async def test_no_file_of_the_journal_has_the_token_in_clear(tmp_path: Path, approval: Approval | None) -> None:
    path, venue = tmp_path / "journal.db", FaultyPort()
    kernel = await begun(
        venue, once, path=path, approval=approval, interval_ms=HOUR_MS, faults=[Fault("confirm", "drop", 99)]
    )
    [intent] = kernel.journal.intents.live()
    assert intent.state == ("sending" if approval is None else "planned")
    assert intent.confirm_token in venue.plans
    kernel.journal.checkpoint()
    assert str(intent.confirm_token).encode() not in on_disk(path)
    assert FORM.encode() in on_disk(path)
    kernel.journal.check()


def test_the_api_key_alone_reads_the_tokens_of_a_killed_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    first = open_journal(path, address=ADDRESS, secret="one")
    assert first.open(intent_of("K1"))
    first.intents.planned(intent_of("K1"), "token-of-a-plan", 9_000, now_ms=1)
    first.db.close()
    for secret, told in (("one", ("token-of-a-plan", 9_000)), ("two", (UNREADABLE, 0)), (None, (UNREADABLE, 0))):
        journal = open_journal(path, address=ADDRESS, secret=secret)
        [found] = journal.intents.live()
        assert (found.confirm_token, found.token_expires_ms) == told, secret
        journal.db.close()


async def test_a_killed_run_under_another_api_key_plans_what_waits_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, venue = tmp_path / "journal.db", FaultyPort()
    first = await begun(venue, once, path=path, approval=Approval(), interval_ms=HOUR_MS)
    [one] = first.approvals.waiting()
    kill(first)
    change_key(monkeypatch)
    second = await again(venue, path, Approval())
    [other] = second.approvals.waiting()
    assert (other.intent.id != one.intent.id, venue.calls.count("confirm")) == (True, 0)
    assert (await decide(second, one.intent.id, approve=True, decider="me", reason=None))["state"] == "accepted"
    assert (venue.calls.count("confirm"), list(venue.positions)) == (1, ["BTC"])


@pytest.mark.parametrize(("kind", "orders"), [("lose_reply", 1), ("drop", 0)])
async def test_a_killed_run_under_another_api_key_settles_an_order_in_doubt_without_a_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, orders: int
) -> None:
    path, venue = tmp_path / "journal.db", FaultyPort()
    first = await begun(venue, once, path=path, interval_ms=HOUR_MS, faults=[Fault("confirm", kind, 99)])
    assert [one.state for one in first.journal.intents.live()] == ["sending"]
    kill(first)
    venue.faults.clear()
    change_key(monkeypatch)
    second = await again(venue, path, None)
    for _ in range(3):
        later(second, 60_000)
        await minutes(second, venue, "100")
    assert second.journal.intents.live() == []
    assert len(venue.trade_rows) == orders
    assert [row["state"] for row in second.journal.db["intents"].rows] == ["accepted" if orders else "rejected"]
