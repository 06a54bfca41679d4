"""Notices to a person: texts, outbox, failed deliveries, repeats and hourly limits."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from bot import logs
from bot.errors import ConfigError
from bot.runtime.alerts import messages
from bot.runtime.alerts import notifier as notify
from bot.runtime.alerts.messages import Message, notice
from bot.runtime.control_plane import reporting
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.journal.retention import HeldKeys, RowsKept, trim_rest
from bot.wire import Event
from tests.runtime.alerts.notification_receiver import postbox

HOUR_MS = 3_600_000


class Inbox:
    """A target that keeps the notices it accepted, and accepts none while `down`."""

    name = "inbox"

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.down = False
        self.raises: Exception | None = None

    async def send(self, message: Message) -> bool:
        if self.raises is not None:
            raise self.raises
        if not self.down:
            self.messages.append(message)
        return not self.down

    @property
    def titles(self) -> list[str]:
        return [one.title for one in self.messages]


@pytest.fixture
def log_as_before() -> Iterator[None]:
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def journal() -> Iterator[Journal]:
    one = open_journal(None, address="0x" + "0" * 40)
    yield one
    one.close()


def delivery_to(journal: Journal, inbox: Inbox, *, now_ms: int = 0, **wording: object) -> notify.NoticeDelivery:
    words = notify.Wording("b", **wording)  # type: ignore[arg-type]
    return notify.NoticeDelivery(inbox, "a", journal=journal, wording=words, now_ms=now_ms)


def lost(ref: str, *, market: str = "BTC", message: str = "gone") -> messages.Notice:
    return notice("protection.lost", ref, at_ms=int(ref), market=market, message=message)


def test_the_notice_of_an_event_has_its_figures_and_its_strategy() -> None:
    event = Event.model_validate(
        {
            "id": "evt_1",
            "type": "fill",
            "subtype": "exit",
            "ts": 1,
            "coin": "BTC",
            "idempotencyKey": "KEY",
            "data": {
                "tradeId": "trd_1",
                "oid": "1",
                "kind": "stop_loss",
                "side": "long",
                "intent": "close",
                "reduceOnly": True,
                "size": "0.1",
                "px": "100",
                "feeUsd": "0.01",
                "realizedPnlUsd": "-1.5",
                "liquidity": "taker",
                "remainingSize": "0",
                "positionSize": "0",
                "balanceUsd": "998.49",
            },
        }
    )
    (one,) = messages.of_event(event, lambda key: "trend" if key == "KEY" else None)
    message = messages.render(one.kind, one.payload, bot="b")
    assert (message.level, message.title[:12]) == ("info", "[b] BTC: clo")
    assert "trend: -1.5 USD by stop_loss" in message.text


def test_most_events_cause_no_notice() -> None:
    data = {"oid": "1", "kind": "stop_loss", "side": "long", "intent": "close", "size": "1", "filledSize": "0"}
    event = Event.model_validate({"id": "evt_1", "type": "order", "subtype": "armed", "ts": 1, "data": data})
    assert list(messages.of_event(event)) == []


def test_foreign_text_in_a_notice_is_one_short_line_without_secrets() -> None:
    one = notice("protection.lost", "1", at_ms=1, message="a\nb\x1b[31m " + "x" * 999 + " bbk_test_aaaaaaaa_secret")
    said = json.loads(one.payload)["message"]
    assert said.isprintable()
    assert len(said) == messages.FIELD_MAX
    assert "bbk_test" not in notice("protection.lost", "1", at_ms=1, message="bbk_test_aaaaaaaa_secret").payload


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("fill.exot", "x", "there is no notice"),
        ("fill.exit", "{pnl}", "{pnl} is no field of fill.exit"),
        ("fill.exit", "{px.__class__}", "is no field"),
        ("fill.exit", "{px!r}", "takes no format"),
        ("fill.exit", "{px:>9}", "takes no format"),
        ("fill.exit", "{px", "is no template"),
        ("fill.exit", "{market} {px} {strategy} {realized_pnl_usd}", None),
    ],
)
def test_a_template_is_checked_before_it_is_used(kind: str, text: str, problem: str | None) -> None:
    found = messages.problem_of(kind, text)
    assert found is None if problem is None else problem in (found or "")


def test_every_template_names_only_fields_of_its_own() -> None:
    for kind, template in messages.TEMPLATES.items():
        assert messages.problem_of(kind, template.text) is None, kind
        assert messages.problem_of(kind, template.title) is None, kind


async def test_each_notice_is_sent_once_in_order_also_after_a_restart(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    journal.notify([lost("1"), lost("2", market="ETH")], now_ms=0)
    journal.notify([lost("1")], now_ms=0)
    await delivery.step(0)
    await delivery_to(journal, inbox).step(0)
    assert inbox.titles == ["[b] BTC is without a stop", "[b] ETH is without a stop"]


async def test_a_thousand_muted_notices_are_skipped_in_a_few_writes(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, level="error")
    journal.notify([notice("strategy.paused", str(n), at_ms=n, message="so") for n in range(1_000)], now_ms=0)
    journal.notify([lost("1")], now_ms=0)
    before = journal.db.conn.total_changes
    await delivery.step(0)
    assert journal.db.conn.total_changes - before <= 1_001 // notify.PAGE + 2
    assert inbox.titles == ["[b] BTC is without a stop"]
    again = delivery_to(journal, inbox, level="error")
    assert again.cursor == delivery.cursor == journal.newest_notice()


async def test_a_new_target_gets_no_earlier_notices(journal: Journal) -> None:
    journal.notify([lost("1")], now_ms=0)
    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    journal.notify([lost("2", market="ETH")], now_ms=0)
    await delivery.step(0)
    assert inbox.titles == ["[b] ETH is without a stop"]


@pytest.mark.parametrize("damage", ["", "soon", "-3", "9" * 5_000, "1000000"])
async def test_a_target_with_a_damaged_cursor_gets_the_newest_notices_again(journal: Journal, damage: str) -> None:
    journal.notify([lost(str(n), message=f"no {n}") for n in range(notify.AGAIN + 5)], now_ms=0)
    journal.state.write_note("notify:a", damage)
    inbox = Inbox()
    with capture_logs() as lines:
        delivery = delivery_to(journal, inbox)
    assert delivery.cursor == 5
    assert [(line["event"], line["note"], line["log_level"]) for line in lines] == [
        ("journal.note_damaged", "notify:a", "warning")
    ]
    assert journal.state.note("damaged:notify:a") == damage
    await delivery.step(0)
    told = len(inbox.titles)
    assert told > 0
    again = delivery_to(journal, inbox)
    journal.notify([lost("99", market="ETH")], now_ms=0)
    await again.step(0)
    assert inbox.titles[told:] == ["[b] ETH is without a stop"]


async def test_a_new_target_that_fails_in_its_first_run_gets_its_notices_in_the_next(journal: Journal) -> None:
    inbox = Inbox()
    delivery_to(journal, inbox)
    journal.notify([lost("1")], now_ms=0)
    await delivery_to(journal, inbox).step(0)
    assert inbox.titles == ["[b] BTC is without a stop"]


@pytest.mark.parametrize("raises", [None, ConnectionRefusedError("no"), ValueError("a plug-in's own")])
async def test_a_target_that_is_down_loses_nothing_and_is_tried_less_often(
    journal: Journal, raises: Exception | None
) -> None:
    inbox = Inbox()
    inbox.down, inbox.raises = True, raises
    delivery = delivery_to(journal, inbox)
    journal.notify([lost("1")], now_ms=0)
    now_ms, waits = 0, []
    for _ in range(10):
        again_ms = await delivery.step(now_ms)
        waits.append(again_ms - now_ms)
        assert await delivery.step(now_ms + 1) == again_ms, "it is not tried before its time"
        now_ms = again_ms
    assert waits[0] == 5_000
    assert waits[-1] == 600_000
    assert delivery.failed_total == 10
    inbox.down, inbox.raises = False, None
    await delivery.step(now_ms)
    assert inbox.titles == ["[b] BTC is without a stop"]
    assert delivery.failures == 0


async def test_notices_trimmed_while_a_target_was_down_are_counted_in_a_message(journal: Journal) -> None:
    inbox = Inbox()
    inbox.down = True
    delivery = delivery_to(journal, inbox)
    journal.notify([lost(str(n), market=f"M{n}") for n in range(9)], now_ms=0)
    again_ms = await delivery.step(0)
    with journal.together():
        trim_rest(journal.db.execute, HeldKeys(), RowsKept(intents=9, events=9, refusals=9, notices=2), now_ms=0)
    inbox.down = False
    await delivery.step(again_ms)
    assert inbox.titles == ["[b] 7 older notices were dropped", "[b] M7 is without a stop", "[b] M8 is without a stop"]


async def test_repeats_are_counted_and_sent_once_more_at_the_end(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    journal.notify([lost(str(n)) for n in range(1, 6)], now_ms=0)
    again_ms = await delivery.step(0)
    assert inbox.titles == ["[b] BTC is without a stop"]
    assert again_ms == notify.DEDUP_MS
    await delivery.step(again_ms)
    assert inbox.titles[1:] == ["[b] BTC is without a stop (4 more times)"]


async def test_counted_repeats_are_sent_at_the_end_of_the_run(journal: Journal) -> None:
    """The next run does not know the count."""
    inbox = Inbox()
    notifier = notify.Notifier([delivery_to(journal, inbox)], mono_ms=lambda: 0)
    journal.notify([lost(str(n)) for n in range(1, 4)], now_ms=0)
    await notifier.deliveries[0].step(0)
    journal.notify([lost("4")], now_ms=0)
    await notifier.flush()
    assert inbox.titles == ["[b] BTC is without a stop", "[b] BTC is without a stop (3 more times)"]
    await notifier.flush()
    assert len(inbox.titles) == 2


async def test_counted_repeats_are_one_digest_at_the_end_if_the_hourly_limit_is_lower(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    markets = [f"M{n}" for n in range(notify.BURST)]
    # Sent, sent, counted.
    for part in (markets[:-1], markets[-1:], markets):
        journal.notify([lost(str(journal.newest_notice() + n), market=one) for n, one in enumerate(part)], now_ms=0)
        await delivery.step(0)
    assert len(inbox.titles) == notify.BURST
    await delivery.end(0)
    assert inbox.titles[notify.BURST :] == [f"[b] {notify.BURST} more notices"]
    assert f"{notify.BURST} x protection.lost" in inbox.messages[-1].text
    await delivery.end(0)
    assert len(inbox.titles) == notify.BURST + 1


async def test_a_count_that_waits_for_the_hourly_limit_delays_no_error(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, per_hour=5)
    journal.notify([lost(str(n)) for n in range(1, 4)], now_ms=0)
    await delivery.step(0)
    journal.notify([notice("fill.entry", f"f{n}", at_ms=0, market=f"M{n}") for n in range(12)], now_ms=0)
    await delivery.step(notify.DEDUP_MS - 1)
    told = len(inbox.titles)
    again_ms = await delivery.step(notify.DEDUP_MS)
    assert again_ms > notify.DEDUP_MS, "due, but the hourly limit is used up"
    assert len(inbox.titles) == told
    journal.notify([notice("fill.entry", "last", at_ms=0, market="SMALL")], now_ms=0)
    assert await delivery.step(notify.DEDUP_MS) == again_ms
    assert len(inbox.titles) == told
    journal.notify([lost("9", market="ETH")], now_ms=0)
    await delivery.step(notify.DEDUP_MS)
    assert inbox.titles[told:] == ["[b] 4 more notices"], "sent with the waiting notices; the count is sent too"
    assert "3 x protection.lost" in inbox.messages[-1].text
    assert "ETH is without a stop" in inbox.messages[-1].text
    await delivery.step(4 * notify.DEDUP_MS)
    assert len(inbox.titles) == told + 1, "once"


async def test_a_count_that_waits_for_the_hourly_limit_is_sent_when_it_allows(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, per_hour=5)
    journal.notify([lost("1"), lost("2")], now_ms=0)
    await delivery.step(0)
    journal.notify([notice("fill.entry", f"f{n}", at_ms=0, market=f"M{n}") for n in range(12)], now_ms=0)
    await delivery.step(notify.DEDUP_MS - 1)
    again_ms = await delivery.step(notify.DEDUP_MS)
    assert inbox.titles[-1] != "[b] BTC is without a stop (once more)", "there is none yet"
    await delivery.step(again_ms)
    assert inbox.titles[-1] == "[b] BTC is without a stop (once more)"


@pytest.mark.parametrize("damage", ["", "{", "[1]", "5", "null", "[" * 100_000])
async def test_a_damaged_notice_is_sent_by_its_kind_and_delays_no_other(journal: Journal, damage: str) -> None:
    journal.state.write_note("notify:a", "0")
    journal.notify([lost("1"), lost("2", market="ETH")], now_ms=0)
    journal.db.execute("UPDATE outbox SET payload=? WHERE seq=1", (damage,))
    inbox = Inbox()
    inbox.down = True
    with capture_logs() as lines:
        delivery = delivery_to(journal, inbox)
        again_ms = await delivery.step(0)
        inbox.down = False
        await delivery.step(again_ms)
    assert inbox.titles == ["[b] - is without a stop", "[b] ETH is without a stop"]
    assert delivery.cursor == journal.newest_notice()
    assert [line["seq"] for line in lines if line["event"] == "notice.damaged"] == [1]


async def test_of_alternating_repeats_the_newest_state_is_sent_last(journal: Journal) -> None:
    """Degraded, recovered, degraded, recovered, degraded: the last message must not say that the daemon has
    recovered.
    """
    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    kinds = ("daemon.degraded", "daemon.recovered") * 2 + ("daemon.degraded",)
    for minute, kind in enumerate(kinds):
        journal.notify([notice(kind, str(minute), at_ms=minute, code="journal", message=kind)], now_ms=0)
        await delivery.step(minute * 60_000)
    assert inbox.titles == ["b is degraded", "b is no longer degraded"]
    for at_ms in (notify.DEDUP_MS, notify.DEDUP_MS + 60_000, 2 * notify.DEDUP_MS + 60_000):
        await delivery.step(at_ms)
    assert inbox.titles[2:] == ["b is no longer degraded (once more)", "b is degraded (2 more times)"]


async def test_notices_above_the_hourly_limit_become_one_digest_and_none_is_lost(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, per_hour=60)
    journal.notify([lost(str(n), market=f"M{n}") for n in range(1, 41)], now_ms=0)
    again_ms = await delivery.step(0)
    assert len(inbox.messages) == notify.BURST
    assert inbox.titles[-1] == "[b] 31 more notices"
    assert "31 x protection.lost" in inbox.messages[-1].text
    journal.notify([notice("fill.entry", "98", at_ms=0, market="SMALL")], now_ms=0)
    again_ms = await delivery.step(0)
    assert 0 < again_ms <= HOUR_MS / 60 + 1, "minor notices wait until the hourly limit allows a message"
    journal.notify([lost("99", market="LAST")], now_ms=0)
    await delivery.step(0)
    assert inbox.titles[-1] == "[b] 2 more notices", "an error does not wait and takes the waiting notices along"
    assert "LAST is without a stop" in inbox.messages[-1].text
    for n in range(1, notify.URGENT):
        journal.notify([lost(f"10{n}", market=f"MORE{n}")], now_ms=0)
        await delivery.step(0)
        assert inbox.titles[-1] == f"[b] MORE{n} is without a stop"
    journal.notify([lost("199", market="OVER")], now_ms=0)
    again_ms = await delivery.step(0)
    assert 0 < again_ms <= HOUR_MS / 60 + 1, "until the credit for errors is used up; later messages pay it back"
    await delivery.step(again_ms)
    assert inbox.titles[-1] == "[b] OVER is without a stop"


def talk(first: int, count: int) -> list[messages.Notice]:
    return [notice("fill.entry", str(n), at_ms=0, market=f"M{n}") for n in range(first, first + count)]


async def test_an_error_after_many_minor_notices_does_not_wait_for_the_hourly_limit(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, per_hour=60)
    journal.notify(talk(0, notify.BURST + 1), now_ms=0)
    await delivery.step(0)
    assert len(inbox.messages) == notify.BURST
    journal.notify(talk(100, 50 * notify.PAGE), now_ms=0)
    again_ms = await delivery.step(0)
    assert len(inbox.messages) == notify.BURST
    assert again_ms > 0
    journal.notify([lost("9999", market="LAST"), *talk(10_000, 5)], now_ms=0)
    await delivery.step(0)
    assert inbox.titles[notify.BURST :] == [f"[b] {50 * notify.PAGE + 6:,} more notices"], (
        "all waiting notices are sent with it"
    )
    assert "LAST is without a stop" in inbox.messages[-1].text
    assert delivery.cursor == journal.newest_notice()
    assert delivery_to(journal, inbox).cursor == delivery.cursor, "durably"


async def test_an_error_written_during_the_search_for_errors_is_sent_with_the_waiting_notices(journal: Journal) -> None:
    async def write() -> None:
        journal.notify([lost("9999", market="LAST")], now_ms=0)

    inbox = Inbox()
    delivery = delivery_to(journal, inbox)
    # Earlier errors were sent on credit.
    delivery._tokens = -1.9
    journal.notify(talk(0, 1), now_ms=0)
    await asyncio.gather(delivery.step(0), write())
    await delivery.step(0)
    assert inbox.titles == ["[b] 2 more notices"]
    assert "LAST is without a stop" in inbox.messages[0].text


async def test_notices_trimmed_while_a_digest_is_made_are_counted_in_a_message(journal: Journal) -> None:
    async def trim() -> None:
        with journal.together():
            trim_rest(journal.db.execute, HeldKeys(), RowsKept(intents=9, events=9, refusals=9, notices=50), now_ms=0)

    inbox = Inbox()
    delivery = delivery_to(journal, inbox, per_hour=60)
    count = notify.BURST - 1 + 5 * notify.PAGE
    journal.notify(talk(0, count), now_ms=0)
    again_ms, _ = await asyncio.gather(delivery.step(0), trim())
    while delivery.cursor < journal.newest_notice():
        again_ms = await delivery.step(again_ms)
    said = inbox.titles[notify.BURST - 1 :]
    told = [int(title.split()[1]) for title in said]
    assert "dropped" in said[1]
    assert told[-1] == 50
    assert sum(told) == count - (notify.BURST - 1), "each once"


async def test_muted_kinds_and_lower_levels_are_skipped(journal: Journal) -> None:
    inbox = Inbox()
    delivery = delivery_to(journal, inbox, level="error", mute=frozenset({"intent.quarantined"}))
    journal.notify(
        [
            notice("strategy.paused", "1", at_ms=1, strategy="s", message="m"),
            notice("intent.quarantined", "2", at_ms=1, market="BTC", message="m"),
            lost("3"),
        ],
        now_ms=0,
    )
    await delivery.step(0)
    assert inbox.titles == ["[b] BTC is without a stop"]


async def test_a_hanging_target_delays_no_other(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SEND_S", 0.01)

    class Hangs(Inbox):
        async def send(self, message: Message) -> bool:
            await asyncio.Event().wait()
            return True

    good, bad = Inbox(), Hangs()
    deliveries = notify.deliveries_of(
        [("good", good), ("bad", bad)], journal=journal, wording=notify.Wording("b"), mono_ms=lambda: 0
    )
    notifier = notify.Notifier(deliveries, mono_ms=lambda: 0)
    journal.notify([lost("1")], now_ms=0)
    task = asyncio.create_task(notifier.run())
    while not (good.messages and deliveries[1].failed_total):
        await asyncio.sleep(0)
    journal.notify([lost("2", market="ETH")], now_ms=0)
    notifier.wake()
    while len(good.messages) < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Slow(Inbox):
    """A target that answers when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def send(self, message: Message) -> bool:
        self.asked.set()
        await self.may.wait()
        return await super().send(message)


@contextlib.asynccontextmanager
async def run_with(journal: Journal, inbox: Inbox) -> AsyncIterator[notify.NoticeDelivery]:
    """A run with notices that is stopped at the end of the block, where the newest notice is written."""
    delivery, stop = delivery_to(journal, inbox), asyncio.Event()
    notifier = notify.Notifier([delivery], mono_ms=lambda: 0)
    async with reporting.notifying(notifier, stop):
        yield delivery
        stop.set()
        journal.notify([notice("daemon.stopped", "stopped:9", at_ms=9, message="as asked")], now_ms=0)


async def test_a_notice_being_sent_at_the_stop_arrives_once_and_the_stop_notice_after_it(journal: Journal) -> None:
    inbox = Slow()
    async with run_with(journal, inbox):
        journal.notify([lost("1"), lost("2", market="ETH")], now_ms=0)
        await inbox.asked.wait()
        asyncio.get_running_loop().call_later(0.01, inbox.may.set)
    assert inbox.titles == ["[b] BTC is without a stop", "[b] ETH is without a stop", "b has stopped"]
    await delivery_to(journal, inbox).step(0)
    assert len(inbox.titles) == 3, "the next run sends none of them again"


async def test_a_target_that_failed_lately_is_tried_once_more_at_the_stop(journal: Journal) -> None:
    inbox = Inbox()
    inbox.down = True
    async with run_with(journal, inbox) as delivery:
        journal.notify([lost("1")], now_ms=0)
        while not delivery.failed_total:
            await asyncio.sleep(0)
        inbox.down = False
    assert inbox.titles == ["[b] BTC is without a stop", "b has stopped"]


async def test_notices_that_wait_for_the_hourly_limit_are_sent_as_one_message_at_the_stop(journal: Journal) -> None:
    inbox = Inbox()
    async with run_with(journal, inbox) as delivery:
        delivery._tokens = 0.0
        journal.notify([notice("fill.entry", f"evt_{n}", at_ms=n, market="BTC") for n in range(3)], now_ms=0)
        await delivery.step(0)
        assert inbox.titles == []
    assert inbox.titles == ["[b] 4 more notices"]
    assert "b has stopped" in inbox.messages[0].text


async def test_notices_that_a_target_did_not_accept_are_sent_by_the_next_run(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "END_S", 0.01)
    monkeypatch.setattr(notify, "FLUSH_S", 0.01)
    inbox = Slow()
    async with run_with(journal, inbox):
        journal.notify([lost("1")], now_ms=0)
        await inbox.asked.wait()
    assert inbox.titles == []
    inbox.may.set()
    await delivery_to(journal, inbox).step(0)
    assert inbox.titles == ["[b] BTC is without a stop", "b has stopped"]


async def test_apprise_delivers_to_a_real_receiver(journal: Journal) -> None:
    pytest.importorskip("apprise")
    with postbox() as box:
        target = notify.AppriseTarget(SecretStr(box.url), 0)
        delivery = notify.NoticeDelivery(target, "a", journal=journal, wording=notify.Wording("b"), now_ms=0)
        journal.notify([lost("1")], now_ms=0)
        await delivery.step(0)
    assert [(one["title"], one["type"]) for one in box.bodies] == [("[b] BTC is without a stop", "failure")]
    assert target.name == "JSON#0"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_notice_follows_no_redirect(status: int) -> None:
    pytest.importorskip("apprise")
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the name that the server looks for

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            target = notify.AppriseTarget(SecretStr(f"json://127.0.0.1:{server.server_port}/hook"), 0)
            assert await target.send(Message("info", "title", "text")) is False
        finally:
            server.shutdown()
    assert asked == ["/hook"]


async def test_no_library_writes_the_address_into_the_log(log_as_before: None) -> None:
    pytest.importorskip("apprise")
    out = io.StringIO()
    logs.configure(pretty=False, level="debug", stream=out)
    with postbox() as box:
        target = notify.AppriseTarget(SecretStr(f"{box.url}/hunter2"), 0)
        assert await target.send(Message("info", "title", "text")) is True
        logging.getLogger("urllib3.connectionpool").warning("Retrying after connection broken: %s", "/hunter2")
    assert len(box.bodies) == 1
    assert "hunter2" not in out.getvalue()


def test_an_address_that_apprise_does_not_know_is_a_config_error_without_the_address() -> None:
    pytest.importorskip("apprise")
    with pytest.raises(ConfigError, match=r"notify.urls\[3\]") as caught:
        notify.AppriseTarget(SecretStr("nosuch://hunter2"), 3)
    assert "hunter2" not in str(caught.value)


async def test_the_log_of_a_failing_target_contains_no_address(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = notify.AppriseTarget(SecretStr("json://127.0.0.1:9/hunter2"), 0)

    def fails(**_message: object) -> bool:
        raise ValueError("json://127.0.0.1:9/hunter2")

    monkeypatch.setattr(target._apprise, "notify", fails)
    assert await target.send(Message("info", "title", "text")) is False
    said = "".join(capfd.readouterr())
    assert "notify.failed" in said
    assert "hunter2" not in said


async def test_a_hanging_target_delays_neither_the_event_loop_nor_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    target = notify.AppriseTarget(SecretStr("json://127.0.0.1:9/hook"), 0)
    hangs, ended = threading.Event(), threading.Event()

    def hang(**_message: object) -> bool:
        hangs.set()
        return ended.wait(30)

    monkeypatch.setattr(target._apprise, "notify", hang)
    sending = asyncio.create_task(target.send(Message("info", "title", "text")))
    await asyncio.to_thread(hangs.wait, 10)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    left = [one for one in threading.enumerate() if one.name.startswith("notify-")]
    assert [one.daemon for one in left] == [True]
    assert await target.send(Message("info", "title", "again")) is False
    assert [one for one in threading.enumerate() if one.name.startswith("notify-")] == left, "no other delivery hangs"
    ended.set()
    left[0].join(10)
