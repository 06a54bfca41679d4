"""The notifier sends notices from the journal's outbox to people, through apprise. Each target has a delivery with its
own cursor.

A delivery sends in order, at least once: its cursor moves on disk after the target has accepted a message. A failing
target delays no other target and no pass of the kernel. Repeats within DEDUP_MS are counted, not sent. What exceeds the
hourly limit becomes a digest. messages.py and the config decide what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pydantic import SecretStr

from bot.client.retry import Backoff
from bot.errors import ConfigError, JournalError
from bot.extras import install
from bot.http_limits import share_certificates
from bot.logs import log
from bot.runtime.alerts.messages import LEVELS, Level, Message, digest, dropped, render
from bot.runtime.journal.journal import Journal, Owed
from bot.runtime.journal.state_store import is_number

# messages that may be sent at once
BURST: Final = 10
# extra messages while an error waits; taken from later hours, so that routine notices delay no alarm
URGENT: Final = 3
DEDUP_MS: Final = 600_000
# time for one message to one target
SEND_S: Final = 20.0
PAGE: Final = 100
# notices that are sent again if a target's cursor is damaged: one may be an alarm that was never sent
AGAIN: Final = 50
BACKOFF: Final = Backoff(first_ms=5_000, max_ms=600_000)
# time between two checks of the outbox when nothing wakes the notifier
IDLE_MS: Final = 60_000
# least time for messages at the end of a run
FLUSH_S: Final = 1.0


class NoticeTarget(Protocol):
    """Receives messages. `name` may be logged; it contains no part of the address."""

    @property
    def name(self) -> str: ...
    async def send(self, message: Message) -> bool:
        """True if the target accepted the message; any exception counts as False."""
        ...


@dataclass(frozen=True, slots=True)
class Wording:
    """The config's choice of notices, and their texts."""

    bot: str
    level: Level = "info"
    mute: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    per_hour: int = 60


@dataclass(slots=True)
class _Repeat:
    until_ms: int
    kind: str
    message: Message
    count: int = 0
    # The number of the newest notice that was counted.
    seq: int = 0


class NoticeDelivery:
    """Delivery to one target: its cursor, hourly limit, recent messages and failures."""

    def __init__(self, target: NoticeTarget, key: str, *, journal: Journal, wording: Wording, now_ms: int) -> None:
        self.target = target
        self.note = f"notify:{key}"
        self.journal = journal
        self.wording = wording
        self.failures = 0
        self.failed_total = 0
        self.sent_total = 0
        self._tokens = float(BURST)
        self._filled_ms = now_ms
        self._not_before_ms = 0
        self._repeats: dict[str, _Repeat] = {}
        # the newest damaged notice that was logged
        self._damaged_seq = 0
        # searched for errors up to here; the newest error found
        self._searched_seq = self._urgent_seq = 0
        newest = journal.newest_notice()
        again = str(max(0, newest - AGAIN))
        journal.state.set_aside_if_damaged(self.note, lambda text: is_number(text, newest), instead=again)
        known = journal.state.note(self.note)
        # A new target gets notices from now on, also those that this run cannot send.
        if known is None:
            journal.state.write_note(self.note, known := str(newest))
        # the cursor in memory, and as the journal has it
        self.cursor = self._kept = int(known)

    async def step(self, now_ms: int) -> int:
        """Send what may be sent now; returns when to call again at the latest."""
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self._fill(now_ms)
        self._repeats = {
            key: repeat for key, repeat in self._repeats.items() if repeat.count or now_ms < repeat.until_ms
        }
        if not await self._send_repeats(self._counted(now_ms), now_ms):
            return self._not_before_ms
        while rows := [self._readable(row) for row in self.journal.owed(self.cursor, PAGE)]:
            # Trimmed while the target was down.
            if (lost := rows[0].seq - self.cursor - 1) > 0:
                if self._tokens < 1:
                    return now_ms + self._refill_ms()
                if not await self._send(dropped(lost, bot=self.wording.bot), now_ms):
                    return self._not_before_ms
                self._move(rows[0].seq - 1)
            again_ms = await self._page(rows, now_ms)
            if again_ms is not None:
                return again_ms
            # A long page of muted notices awaits nothing else.
            await asyncio.sleep(0)
        again_ms = min((repeat.until_ms for repeat in self._repeats.values() if repeat.count), default=now_ms + IDLE_MS)
        return again_ms if again_ms > now_ms else now_ms + self._refill_ms()

    async def end(self, now_ms: int) -> int:
        """Send the rest at the end of a run: try a failing target once more, and send what exceeds the limit as one
        digest.

        Counted repeats are sent too, because the next run does not know of them.
        """
        self._not_before_ms = 0
        self._tokens = max(self._tokens, 1.0)
        again_ms = await self.step(now_ms)
        counted = self._counted(math.inf)
        if now_ms < self._not_before_ms or not counted:
            return again_ms
        if self._tokens < len(counted):
            await self._send_digest((), counted, now_ms)
        else:
            await self._send_repeats(counted, now_ms)
        return again_ms

    async def _page(self, rows: Sequence[Owed], now_ms: int) -> int | None:
        """Send these notices; returns when to go on, or None if all of them are done.

        Muted notices and repeats move the cursor in memory only: a write for each would delay the kernel.
        """
        for place, row in enumerate(rows):
            message = self._message(row)
            if message is not None and not self._is_repeat(row, now_ms):
                if self._tokens < 1 and self._tokens < (needed := await self._needed()):
                    return now_ms + self._refill_ms(needed)
                # Asked now, because the outbox grows meanwhile.
                is_last = place == len(rows) - 1 and not self.journal.owed(row.seq, 1)
                counted = self._counted(now_ms)
                if counted or (
                    self._tokens < 2 and not is_last
                    # The last message of the limit is a digest of all that waits.
                ):
                    return None if await self._send_digest(rows[place:], counted, now_ms) else self._not_before_ms
                if not await self._send(message, now_ms):
                    return self._not_before_ms
                self._repeats[_likeness(row)] = _Repeat(now_ms + DEDUP_MS, row.kind, message)
                self._move(row.seq)
            self.cursor = row.seq
        self._move(self.cursor)
        return None

    async def _needed(self) -> float:
        """The allowance that the waiting notices need: less if an error is among them. Each notice is checked once."""
        while rows := self.journal.owed(max(self.cursor, self._searched_seq), PAGE):
            for row in rows:
                message = self._message(self._readable(row))
                if message is not None and message.level == "error":
                    self._urgent_seq = row.seq
            self._searched_seq = rows[-1].seq
            await asyncio.sleep(0)
        return 1.0 - URGENT * (self._urgent_seq > self.cursor)

    def _message(self, row: Owed) -> Message | None:
        """The message of a notice; None if its kind is muted or below the level."""
        message = render(row.kind, row.payload, bot=self.wording.bot, texts=self.wording.texts)
        is_quiet = row.kind in self.wording.mute or LEVELS.index(message.level) < LEVELS.index(self.wording.level)
        return None if is_quiet else message

    def _readable(self, row: Owed) -> Owed:
        """Reduce a damaged notice to its kind: it may be an alarm, and it must not block later notices."""
        try:
            if isinstance(json.loads(row.payload), dict):
                return row
        except (ValueError, TypeError, RecursionError):
            pass
        if row.seq > self._damaged_seq:
            log.error("notice.damaged", target=self.target.name, seq=row.seq, kind=row.kind)
            self._damaged_seq = row.seq
        return row._replace(payload="{}")

    async def _send_digest(self, rows: Sequence[Owed], counted: Sequence[tuple[str, _Repeat]], now_ms: int) -> bool:
        """Send these rows, all later ones and counted repeats as one digest.

        Rows come first: of equal levels the first is shown in full, and repeats were sent before.
        """
        waiting: list[tuple[str, Message]] = []
        last_seq = self.cursor
        while rows:
            waiting += [(row.kind, message) for row in rows if (message := self._message(row)) is not None]
            last_seq = rows[-1].seq
            await asyncio.sleep(0)
            behind = self.journal.owed(last_seq, PAGE)
            # Trimmed meanwhile: `step` reports that first.
            if behind and behind[0].seq > last_seq + 1:
                break
            rows = [self._readable(row) for row in behind]
        again = [(repeat.kind, repeat.message) for _, repeat in counted for _ in range(repeat.count)]
        accepted = await self._send(digest([*waiting, *again], bot=self.wording.bot), now_ms)
        if accepted:
            self._move(last_seq)
            for key, _ in counted:
                del self._repeats[key]
        return accepted

    def _is_repeat(self, row: Owed, now_ms: int) -> bool:
        """True if the same notice was sent lately; it is counted then."""
        repeat = self._repeats.get(_likeness(row))
        if repeat is None or now_ms >= repeat.until_ms:
            return False
        repeat.count += 1
        repeat.seq = row.seq
        return True

    def _counted(self, now_ms: float) -> list[tuple[str, _Repeat]]:
        """All counted repeats once the first is due, newest last, so that the last message shows the present state."""
        counted = sorted((item for item in self._repeats.items() if item[1].count), key=lambda item: item[1].seq)
        return counted if any(now_ms >= repeat.until_ms for _, repeat in counted) else []

    async def _send_repeats(self, counted: Sequence[tuple[str, _Repeat]], now_ms: int) -> bool:
        """Send counted repeats as far as the limit allows; False if the target failed."""
        for key, repeat in counted:
            if self._tokens < 1:
                break
            times = "once more" if repeat.count == 1 else f"{repeat.count} more times"
            again = Message(repeat.message.level, f"{repeat.message.title} ({times})", repeat.message.text)
            if not await self._send(again, now_ms):
                return False
            del self._repeats[key]
        return True

    async def _send(self, message: Message, now_ms: int) -> bool:
        accepted = False
        try:
            async with asyncio.timeout(SEND_S):
                accepted = await self.target.send(message)
        except Exception as error:  # noqa: BLE001 - a plug-in of apprise may raise anything; the message was not sent
            log.warning("notify.failed", target=self.target.name, error=type(error).__name__)
        if accepted:
            self._tokens -= 1
            self.failures = 0
            self.sent_total += 1
            return True
        self.failures += 1
        self.failed_total += 1
        wait_ms = BACKOFF.wait_ms(self.failures, 0.5)
        self._not_before_ms = now_ms + wait_ms
        log.warning("notify.postponed", target=self.target.name, failures=self.failures, next_in_s=wait_ms // 1000)
        return False

    def _move(self, seq: int) -> None:
        self.cursor = seq
        if seq != self._kept:
            self.journal.state.write_note(self.note, str(seq))
            self._kept = seq

    def _fill(self, now_ms: int) -> None:
        gained = (now_ms - self._filled_ms) * self.wording.per_hour / 3_600_000
        self._tokens = min(float(BURST), self._tokens + gained)
        self._filled_ms = now_ms

    def _refill_ms(self, needed: float = 1.0) -> int:
        """Time until the allowance reaches `needed`; one message costs 1."""
        return int(max(0.0, needed - self._tokens) * 3_600_000 / self.wording.per_hour) + 1


def _likeness(row: Owed) -> str:
    """A value that is equal for notices that differ in their time only."""
    fields = json.loads(row.payload)
    fields.pop("at_ms", None)
    return f"{row.kind} {json.dumps(fields, sort_keys=True)}"


class Notifier:
    """All deliveries, as one task of the daemon. Call `wake` after a notice was written."""

    def __init__(self, deliveries: Sequence[NoticeDelivery], *, mono_ms: Callable[[], int]) -> None:
        self.deliveries = list(deliveries)
        self._mono_ms = mono_ms
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        """Let `run` finish what it is sending and return after a last step of every delivery."""
        self._ending.set()
        self.wake()

    async def run(self) -> None:
        """Until `end`, or cancelled."""
        await asyncio.gather(*(self._run(delivery) for delivery in self.deliveries))

    async def flush(self) -> None:
        """Run one last step of every delivery, within FLUSH_S.

        Unsent notices wait for the next run; counts of repeats are lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(*(self._step(delivery.end) for delivery in self.deliveries))

    async def _run(self, delivery: NoticeDelivery) -> None:
        while not self._ending.is_set():
            again_ms = await self._step(delivery.step)
            if self._ending.is_set():
                break
            wait_s = max(0.0, (again_ms - self._mono_ms()) / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
                    self._wake.clear()
        await self._step(delivery.end)

    async def _step(self, step: Callable[[int], Awaitable[int]]) -> int:
        try:
            return await step(self._mono_ms())
        # The kernel reports the fault; here it only means a later retry.
        except JournalError as error:
            log.warning("notify.journal", message=str(error))
            return self._mono_ms() + IDLE_MS


class AppriseTarget:
    """One URL of apprise. The URL contains secrets, so the target is named by its service only."""

    def __init__(self, url: SecretStr, index: int) -> None:
        try:
            import apprise
        except ImportError as error:
            raise ConfigError(
                f"notify.urls: needs the package apprise: {install('notify')}, or remove the section"
            ) from error
        import logging

        # These libraries would log parts of the address.
        for name in ("apprise", "urllib3"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        share_certificates()
        # A redirect would carry a notice and its token to an address that nobody has judged.
        self._apprise = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
        if not self._apprise.add(url.get_secret_value()):
            raise ConfigError(
                f"notify.urls[{index}]: is no URL that apprise knows; `apprise --help` lists the services"
            )
        self._types = {
            "info": apprise.NotifyType.INFO,
            "warning": apprise.NotifyType.WARNING,
            "error": apprise.NotifyType.FAILURE,
        }
        self.name = f"{self._apprise[0].service_name}#{index}"
        self._sending: threading.Thread | None = None

    async def send(self, message: Message) -> bool:
        """Send in a thread of its own, which neither the event loop nor the end of the process waits for.

        While one hangs, no other is started.
        """
        if self._sending is not None and self._sending.is_alive():
            return False
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[bool] = loop.create_future()

        def settle(answer: bool) -> None:
            if not accepted.done():
                accepted.set_result(answer)

        def work() -> None:
            answer = False
            try:
                answer = bool(
                    self._apprise.notify(body=message.text, title=message.title, notify_type=self._types[message.level])
                )
            except Exception as error:  # noqa: BLE001 - its text may contain the address
                log.warning("notify.failed", target=self.name, error=type(error).__name__)
            finally:
                # The event loop has closed; nobody waits for the answer.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(settle, answer)

        self._sending = threading.Thread(target=work, name=f"notify-{self.name}", daemon=True)
        self._sending.start()
        return await accepted


def deliveries_of(
    targets: Sequence[tuple[str, NoticeTarget]], *, journal: Journal, wording: Wording, mono_ms: Callable[[], int]
) -> list[NoticeDelivery]:
    """A delivery for each (key, target). The key names its cursor in the journal."""
    return [NoticeDelivery(target, key, journal=journal, wording=wording, now_ms=mono_ms()) for key, target in targets]


def key_of(url: SecretStr) -> str:
    """A name for a URL's cursor that does not reveal the URL to a reader of the journal."""
    return hashlib.scrypt(url.get_secret_value().encode(), salt=b"bracketbot notify", n=2**12, r=8, p=1, dklen=12).hex()
