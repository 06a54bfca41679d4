"""Notify: carries notices from the journal's outbox to people, through apprise. Each target is a lane with a cursor of its own.

A lane sends in order, at least once: its cursor moves, durably, after the target has said yes. One that fails holds up
no other lane and no pass of the loop; what repeats within DEDUP_MS is counted, not sent; more than a lane may send in an
hour becomes a digest. Nothing here decides what is told: that is messages.py and the config.
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

import structlog
from pydantic import SecretStr

from bot.client.retry import Backoff
from bot.errors import ConfigError, JournalError
from bot.runtime.alerts.messages import LEVELS, Level, Message, digest, not_kept, render
from bot.runtime.journal.journal import Journal, Owed, is_number

log = structlog.get_logger()

BURST: Final = 10  # messages that may leave at once
URGENT: Final = 3  # so many more when an error waits: taken from the hours after, so that small talk delays no alarm
DEDUP_MS: Final = 600_000
SEND_S: Final = 20.0  # for one message to one target
PAGE: Final = 100
AGAIN: Final = (
    50  # notices, told again to a target whose cursor is damaged: one of them may be an alarm that never left
)
BACKOFF: Final = Backoff(first_ms=5_000, max_ms=600_000)
IDLE_MS: Final = 60_000  # between two looks when nothing rings
FLUSH_S: Final = 1.0  # at the end of a run, at least


class Target(Protocol):
    """Where messages go. `name` may be logged; it holds no part of the address."""

    @property
    def name(self) -> str: ...
    async def send(self, message: Message) -> bool:
        """Whether the target took it; any exception counts as no."""
        ...


@dataclass(frozen=True, slots=True)
class Wording:
    """What of all notices is told, and how."""

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
    seq: int = 0  # of the newest that was counted


class Lane:
    """One target: its cursor, its allowance, what it said lately, and how it fails."""

    def __init__(self, target: Target, key: str, *, journal: Journal, wording: Wording, now_ms: int) -> None:
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
        self._damaged_seq = 0  # the newest that was said to be
        self._looked_seq = self._urgent_seq = 0  # as far as errors were looked for, and the newest of them
        newest = journal.newest_notice()
        again = str(max(0, newest - AGAIN))
        journal.set_aside_if_damaged(self.note, lambda text: is_number(text, newest), instead=again)
        known = journal.note(self.note)
        # What was before it was named is not news to it; what comes is, also where this run cannot send it.
        if known is None:
            journal.write_note(self.note, known := str(newest))
        self.cursor = self._kept = int(known)  # in memory, and as the journal has it

    async def step(self, now_ms: int) -> int:
        """Send what may leave now; answers when to look again at the latest."""
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self._fill(now_ms)
        self._repeats = {key: one for key, one in self._repeats.items() if one.count or now_ms < one.until_ms}
        if not await self._tell_repeats(self._counted(now_ms), now_ms):
            return self._not_before_ms
        while rows := [self._legible(row) for row in self.journal.owed(self.cursor, PAGE)]:
            if (lost := rows[0].seq - self.cursor - 1) > 0:  # Trimmed while the target was down.
                if self._tokens < 1:
                    return now_ms + self._refill_ms()
                if not await self._send(not_kept(lost, bot=self.wording.bot), now_ms):
                    return self._not_before_ms
                self._move(rows[0].seq - 1)
            again_ms = await self._page(rows, now_ms)
            if again_ms is not None:
                return again_ms
            await asyncio.sleep(0)  # Of a long page of quiet ones nothing else was waited for.
        again_ms = min((one.until_ms for one in self._repeats.values() if one.count), default=now_ms + IDLE_MS)
        return again_ms if again_ms > now_ms else now_ms + self._refill_ms()

    async def end(self, now_ms: int) -> int:
        """A run's last step. A target that failed lately is tried once more, and all that waits for an allowance leaves as one message. What was
        only counted is told, too: the next run does not know of it."""
        self._not_before_ms = 0
        self._tokens = max(self._tokens, 1.0)
        again_ms = await self.step(now_ms)
        counted = self._counted(math.inf)
        if now_ms < self._not_before_ms or not counted:
            return again_ms
        if self._tokens < len(counted):
            await self._tell_all((), counted, now_ms)
        else:
            await self._tell_repeats(counted, now_ms)
        return again_ms

    async def _page(self, rows: Sequence[Owed], now_ms: int) -> int | None:
        """Send what of these is to be told; when to go on, or None when all of them are done with.

        What is quiet or a repeat moves the cursor in memory alone: a write for each would hold up the loop.
        """
        for place, row in enumerate(rows):
            message = self._message(row)
            if message is not None and not self._is_repeat(row, now_ms):
                if self._tokens < 1 and self._tokens < (needed := await self._needed()):
                    return now_ms + self._refill_ms(needed)
                is_last = place == len(rows) - 1 and not self.journal.owed(
                    row.seq, 1
                )  # By now: it is written to meanwhile.
                counted = self._counted(now_ms)
                if counted or (self._tokens < 2 and not is_last):  # The rest of the allowance tells of all that waits.
                    return None if await self._tell_all(rows[place:], counted, now_ms) else self._not_before_ms
                if not await self._send(message, now_ms):
                    return self._not_before_ms
                self._repeats[_likeness(row)] = _Repeat(now_ms + DEDUP_MS, row.kind, message)
                self._move(row.seq)
            self.cursor = row.seq
        self._move(self.cursor)
        return None

    async def _needed(self) -> float:
        """The allowance that what waits needs: with an error anywhere among it, it leaves on credit. Each is looked at once."""
        while rows := self.journal.owed(max(self.cursor, self._looked_seq), PAGE):
            for row in rows:
                message = self._message(self._legible(row))
                if message is not None and message.level == "error":
                    self._urgent_seq = row.seq
            self._looked_seq = rows[-1].seq
            await asyncio.sleep(0)
        return 1.0 - URGENT * (self._urgent_seq > self.cursor)

    def _message(self, row: Owed) -> Message | None:
        """Its words; None when this kind is not to be told."""
        message = render(row.kind, row.payload, bot=self.wording.bot, texts=self.wording.texts)
        is_quiet = row.kind in self.wording.mute or LEVELS.index(message.level) < LEVELS.index(self.wording.level)
        return None if is_quiet else message

    def _legible(self, row: Owed) -> Owed:
        """One that is damaged is told by its kind alone: it may be an alarm, and what is behind it is to leave as well."""
        try:
            if isinstance(json.loads(row.payload), dict):
                return row
        except (ValueError, TypeError, RecursionError):
            pass
        if row.seq > self._damaged_seq:
            log.error("notice.damaged", target=self.target.name, seq=row.seq, kind=row.kind)
            self._damaged_seq = row.seq
        return row._replace(payload="{}")

    async def _tell_all(self, rows: Sequence[Owed], counted: Sequence[tuple[str, _Repeat]], now_ms: int) -> bool:
        """These, what waits behind them and what was counted, as one message. The rows come first: of equals the first is told in full, and
        what was counted has been told before."""
        told: list[tuple[str, Message]] = []
        last_seq = self.cursor
        while rows:
            told += [(row.kind, message) for row in rows if (message := self._message(row)) is not None]
            last_seq = rows[-1].seq
            await asyncio.sleep(0)
            behind = self.journal.owed(last_seq, PAGE)
            if behind and behind[0].seq > last_seq + 1:  # Trimmed meanwhile: that is counted and said first.
                break
            rows = [self._legible(row) for row in behind]
        again = [(one.kind, one.message) for _, one in counted for _ in range(one.count)]
        took = await self._send(digest([*told, *again], bot=self.wording.bot), now_ms)
        if took:
            self._move(last_seq)
            for key, _ in counted:
                del self._repeats[key]
        return took

    def _is_repeat(self, row: Owed, now_ms: int) -> bool:
        """Whether the same was said lately; then it is counted."""
        repeat = self._repeats.get(_likeness(row))
        if repeat is None or now_ms >= repeat.until_ms:
            return False
        repeat.count += 1
        repeat.seq = row.seq
        return True

    def _counted(self, now_ms: float) -> list[tuple[str, _Repeat]]:
        """All that were counted once the first of them is due, the newest last: of what comes and goes the last word is what is so."""
        counted = sorted((item for item in self._repeats.items() if item[1].count), key=lambda item: item[1].seq)
        return counted if any(now_ms >= one.until_ms for _, one in counted) else []

    async def _tell_repeats(self, counted: Sequence[tuple[str, _Repeat]], now_ms: int) -> bool:
        """False when the target failed. What there is no allowance for waits, and keeps no error waiting."""
        for key, one in counted:
            if self._tokens < 1:
                break
            times = "once more" if one.count == 1 else f"{one.count} more times"
            again = Message(one.message.level, f"{one.message.title} ({times})", one.message.text)
            if not await self._send(again, now_ms):
                return False
            del self._repeats[key]
        return True

    async def _send(self, message: Message, now_ms: int) -> bool:
        took = False
        try:
            async with asyncio.timeout(SEND_S):
                took = await self.target.send(message)
        except Exception as error:  # noqa: BLE001 - code of others, of which a hundred plug-ins may raise anything: it was not sent
            log.warning("notify.failed", target=self.target.name, error=type(error).__name__)
        if took:
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
            self.journal.write_note(self.note, str(seq))
            self._kept = seq

    def _fill(self, now_ms: int) -> None:
        gained = (now_ms - self._filled_ms) * self.wording.per_hour / 3_600_000
        self._tokens = min(float(BURST), self._tokens + gained)
        self._filled_ms = now_ms

    def _refill_ms(self, needed: float = 1.0) -> int:
        """Until there is so much allowance again; 1 is a message's."""
        return int(max(0.0, needed - self._tokens) * 3_600_000 / self.wording.per_hour) + 1


def _likeness(row: Owed) -> str:
    """Equal for notices that say the same, whenever."""
    fields = json.loads(row.payload)
    fields.pop("at_ms", None)
    return f"{row.kind} {json.dumps(fields, sort_keys=True)}"


class Notifier:
    """All lanes, as one task of the daemon. `ring` after something was written."""

    def __init__(self, lanes: Sequence[Lane], *, mono_ms: Callable[[], int]) -> None:
        self.lanes = list(lanes)
        self._mono_ms = mono_ms
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()

    def ring(self) -> None:
        self._wake.set()

    def end(self) -> None:
        """Nothing more is written: `run` lets what is under way arrive, and returns after a last step of every lane."""
        self._ending.set()
        self.ring()

    async def run(self) -> None:
        """Until `end`, or cancelled."""
        await asyncio.gather(*(self._run(lane) for lane in self.lanes))

    async def flush(self) -> None:
        """One last look of every lane, within FLUSH_S; what does not leave stays written for the next run, but for counts of what repeats."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(*(self._step(lane.end) for lane in self.lanes))

    async def _run(self, lane: Lane) -> None:
        while not self._ending.is_set():
            again_ms = await self._step(lane.step)
            if self._ending.is_set():
                break
            wait_s = max(0.0, (again_ms - self._mono_ms()) / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
                    self._wake.clear()
        await self._step(lane.end)

    async def _step(self, step: Callable[[int], Awaitable[int]]) -> int:
        try:
            return await step(self._mono_ms())
        except JournalError as error:  # The loop says what is to be said of it; here it only means: later.
            log.warning("notify.journal", message=str(error))
            return self._mono_ms() + IDLE_MS


class AppriseTarget:
    """One URL of apprise. The URL holds secrets, so that it is named by its service only."""

    def __init__(self, url: SecretStr, index: int) -> None:
        try:
            import apprise
        except ImportError as error:
            raise ConfigError(
                "notify.urls: needs the package apprise: install bracketbot[notify], or take the section out"
            ) from error
        import logging

        for name in ("apprise", "urllib3"):  # They would log parts of the address.
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._apprise = apprise.Apprise()
        if not self._apprise.add(url.get_secret_value()):
            raise ConfigError(
                f"notify.urls[{index}]: is no URL that apprise knows; see `apprise --help` or its list of services"
            )
        self._types = {
            "info": apprise.NotifyType.INFO,
            "warning": apprise.NotifyType.WARNING,
            "error": apprise.NotifyType.FAILURE,
        }
        self.name = f"{self._apprise[0].service_name}#{index}"
        self._sending: threading.Thread | None = None

    async def send(self, message: Message) -> bool:
        """In a thread of its own, which neither the loop nor the end of the process waits for. While the last one hangs still, no other joins it."""
        if self._sending is not None and self._sending.is_alive():
            return False
        loop = asyncio.get_running_loop()
        took: asyncio.Future[bool] = loop.create_future()

        def settle(answer: bool) -> None:
            if not took.done():
                took.set_result(answer)

        def work() -> None:
            answer = False
            try:
                answer = bool(
                    self._apprise.notify(body=message.text, title=message.title, notify_type=self._types[message.level])
                )
            except Exception as error:  # noqa: BLE001 - what it says may hold the address
                log.warning("notify.failed", target=self.name, error=type(error).__name__)
            finally:
                with contextlib.suppress(RuntimeError):  # The loop has closed: nobody waits for it any more.
                    loop.call_soon_threadsafe(settle, answer)

        self._sending = threading.Thread(target=work, name=f"notify-{self.name}", daemon=True)
        self._sending.start()
        return await took


def lanes_of(
    targets: Sequence[tuple[str, Target]], *, journal: Journal, wording: Wording, mono_ms: Callable[[], int]
) -> list[Lane]:
    """A lane for each (key, target). The key names the lane's cursor in the journal."""
    return [Lane(target, key, journal=journal, wording=wording, now_ms=mono_ms()) for key, target in targets]


def key_of(url: SecretStr) -> str:
    """A name for a URL's cursor, from which the URL cannot be had back by reading the journal."""
    return hashlib.scrypt(url.get_secret_value().encode(), salt=b"bracketbot notify", n=2**12, r=8, p=1, dklen=12).hex()
