"""The webhook dispatcher: sends the outbox's deliveries, signed, on the published schedule. One request in flight per
endpoint. Real time.

Attempts of one delivery: at once, then 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h after the previous one,
each wait +-10 %, never sooner than the receiver's Retry-After. Every 2xx is success. A webhook is disabled after a 410
("gone"), after ten failed attempts of one delivery without any success in between ("failing"), with too large a backlog
("backlog"), and if its secret cannot be decrypted ("secret_lost").
"""

from __future__ import annotations

import asyncio
import contextlib
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from bot.clock import Clock
from bot.encryption import DecryptionFailed
from bot.logs import log
from bot.service.security.secret_encryption import SecretCipher
from bot.service.state_machine.machine import Machine
from bot.service.webhooks.outbox import Delivery, Endpoint, Outbox
from bot.venue.model.commands import DisableWebhook
from bot.wire import signing

if TYPE_CHECKING:
    from bot.service.webhooks.http_delivery import DeliveryOutcome

SCHEDULE_MS: Final = tuple(
    1000 * seconds for seconds in (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
# part of the wait; deliveries that failed together are not retried together
JITTER: Final = 0.1
# endpoints at once
IN_FLIGHT_MAX: Final = 32
# failures in a row, after which the whole endpoint pauses between attempts
REST_AFTER: Final = 5
REST_FIRST_MS: Final = 5_000
REST_MAX_MS: Final = 300_000
GONE: Final = 410


class Post(Protocol):
    """The function that sends one delivery."""

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome: ...

    async def aclose(self) -> None: ...


class WebhookDispatcher:
    """Runs on the event loop. `post` None: an HttpDelivery, made when there is something to send."""

    def __init__(
        self,
        machine: Machine,
        outbox: Outbox,
        cipher: SecretCipher,
        clock: Clock,
        *,
        private: bool,
        post: Post | None = None,
        chance: Random | None = None,
    ) -> None:
        self._machine = machine
        self._outbox = outbox
        self._cipher = cipher
        self._clock = clock
        self._private = private
        self._post = post
        self._chance = Random() if chance is None else chance
        self._wakeup = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    def wake(self) -> None:
        """Check for due deliveries now."""
        self._wakeup.set()

    def next_due_ms(self) -> int | None:
        """When the next attempt is due; None if the outbox is empty."""
        return min((due for endpoint in self._outbox.owing() if (due := endpoint.due_ms()) is not None), default=None)

    async def run(self) -> None:
        """Deliver until cancelled. Raises an unexpected error of an attempt."""
        try:
            while True:
                self._wakeup.clear()
                self._start_due()
                if self._broken is not None:
                    raise self._broken
                due = self.next_due_ms() if len(self._tasks) < IN_FLIGHT_MAX else None
                wait = None if due is None else max(0.001, (due - self._clock.now_ms()) / 1000)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wakeup.wait(), wait)
        finally:
            await self._break_off()

    async def _break_off(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._post is not None:
            await self._post.aclose()
            self._post = None

    def _start_due(self) -> int:
        while self._outbox.overfull:
            self._disable(self._outbox.overfull.pop(), "backlog")
        now = self._clock.now_ms()
        count = 0
        for endpoint in self._outbox.owing():
            if len(self._tasks) >= IN_FLIGHT_MAX:
                break
            due = endpoint.due_ms()
            if due is None or due > now:
                continue
            task = asyncio.create_task(self._attempt(endpoint, endpoint.take()), name=f"webhook-{endpoint.hook.id}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            count += 1
        return count

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken = self._broken or task.exception()
        self._wakeup.set()

    # ── One attempt ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, endpoint: Endpoint, delivery: Delivery) -> None:
        hook = endpoint.hook
        try:
            # Send only events that a crash cannot undo.
            await self._machine.settle()
            try:
                key = self._cipher.decrypt(hook.encrypted_secret, hook.account)
            except DecryptionFailed:
                self._disable(hook.id, "secret_lost")
                return
            post = self._post or await self._open_post()
            outcome = await post.post(hook.url, self._headers(key, delivery), delivery.body)
        except asyncio.CancelledError:
            self._outbox.gave_back(endpoint, delivery)
            raise
        # If the endpoint is no longer there, its owner has removed the webhook.
        if self._outbox.endpoints.get(hook.id) is endpoint:
            self._note(endpoint, delivery, outcome)

    async def _open_post(self) -> Post:
        """Import httpx in a thread on first use, because the import would delay orders."""
        http_delivery = await asyncio.to_thread(import_module, "bot.service.webhooks.http_delivery")
        if self._post is None:
            self._post = http_delivery.HttpDelivery(private=self._private, clock=self._clock)
        return self._post

    def _headers(self, key: bytes, delivery: Delivery) -> dict[str, str]:
        timestamp = str(self._clock.now_ms() // 1000)
        return {
            "Content-Type": "application/json",
            "User-Agent": "bracketbot-webhooks",
            signing.ID_HEADER: delivery.event,
            signing.TIMESTAMP_HEADER: timestamp,
            signing.SIGNATURE_HEADER: signing.signature(key, delivery.event, timestamp, delivery.body),
        }

    def _note(self, endpoint: Endpoint, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        now, shown = self._clock.now_ms(), self._machine.clock.now_ms()
        hook = endpoint.hook
        if outcome.is_done:
            assert outcome.status is not None
            self._outbox.succeeded(endpoint, delivery, outcome.status, now, shown_ms=shown)
            return
        delivery.attempts += 1
        delivery.first_ms = delivery.first_ms or now
        due = self._next_ms(delivery, outcome, now)
        self._outbox.failed(endpoint, delivery, outcome.status, shown_ms=shown, due_ms=due)
        self._rest(endpoint, outcome, now)
        log.info(
            "webhook.failed",
            webhook=hook.id,
            event_id=delivery.event,
            attempt=delivery.attempts,
            status=outcome.status,
            problem=outcome.problem,
            again_ms=None if due is None else due - now,
        )
        if outcome.status == GONE:
            self._disable(hook.id, "gone")
        elif due is None and (endpoint.good_ms is None or endpoint.good_ms < delivery.first_ms):
            self._disable(hook.id, "failing")

    def _next_ms(self, delivery: Delivery, outcome: DeliveryOutcome, now_ms: int) -> int | None:
        if delivery.attempts >= len(SCHEDULE_MS) or outcome.status == GONE:
            return None
        wait = SCHEDULE_MS[delivery.attempts] * (1 + self._chance.uniform(-JITTER, JITTER))
        return now_ms + max(int(wait), outcome.retry_after_ms)

    def _rest(self, endpoint: Endpoint, outcome: DeliveryOutcome, now_ms: int) -> None:
        """Pause an endpoint that keeps failing, or sent Retry-After, so that a long queue does not become many
        requests.
        """
        rest = outcome.retry_after_ms
        if endpoint.failures >= REST_AFTER:
            rest = max(rest, min(REST_MAX_MS, REST_FIRST_MS * 2 ** min(endpoint.failures - REST_AFTER, 10)))
        if rest:
            self._outbox.rest(endpoint, now_ms + rest)

    def _disable(self, webhook: str, reason: str) -> None:
        self._machine.catch_up()
        self._machine.run(DisableWebhook(webhook, reason))
        self._outbox.drop(webhook, keep_health=True)
        log.warning("webhook.disabled", webhook=webhook, reason=reason)
