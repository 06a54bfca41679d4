"""The outbox: the pending deliveries of each webhook, and the health of each endpoint. Durable beside the command log.
It sends nothing.

A delivery is written in the transaction of its event, and deleted in the transaction that records its success. A crash
may therefore repeat a delivery (same id, same body) but never loses one. All times are real time except `shown_ms`,
which owners see.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bot.clock import Clock
from bot.model.events import Event
from bot.service.bodies import event_bodies
from bot.service.bodies.strict_json import dumps
from bot.service.state_machine.command_log import CommandLog, Statement
from bot.venue.model.state import State, VenueWebhook, event_id

# pending deliveries of one endpoint; an endpoint with more is disabled
BACKLOG_MAX: Final = 10_000

_OWE: Final = (
    "INSERT INTO deliveries (seq, webhook, event, body, attempts, first_ms, due_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_DELAY: Final = "UPDATE deliveries SET attempts = ?, first_ms = ?, due_ms = ? WHERE seq = ?"
_DONE: Final = "DELETE FROM deliveries WHERE seq = ?"
_DROP: Final = "DELETE FROM deliveries WHERE webhook = ?"
_FORGET: Final = "DELETE FROM endpoints WHERE webhook = ?"
_HEALTH: Final = (
    "INSERT OR REPLACE INTO endpoints (webhook, last_ms, last_status, failures, good_ms) VALUES (?, ?, ?, ?, ?)"
)
_REST: Final = "INSERT OR REPLACE INTO rests (webhook, until_ms) VALUES (?, ?)"
_RESTED: Final = "DELETE FROM rests WHERE webhook = ?"


@dataclass(slots=True)
class Delivery:
    """One event for one endpoint. `first_ms`: the time of its first attempt, 0 before it."""

    seq: int
    event: str
    body: bytes
    attempts: int
    first_ms: int
    due_ms: int


@dataclass(slots=True)
class Endpoint:
    """An active webhook.

    `last_ms` is on the service's clock. `failures`: in a row. `busy`: a delivery is in flight. Nothing is sent before
    `rest_ms`.
    """

    hook: VenueWebhook
    wanted: frozenset[str] | None
    last_ms: int | None = None
    last_status: int | None = None
    failures: int = 0
    good_ms: int | None = None
    busy: bool = False
    rest_ms: int = 0
    queue: list[tuple[int, int, Delivery]] = field(default_factory=list, repr=False)

    def wants(self, kind: str, subtype: str) -> bool:
        return self.wanted is None or kind in self.wanted or f"{kind}.{subtype}" in self.wanted

    def due_ms(self) -> int | None:
        """When the next delivery may be tried; None if none is pending or one is in flight."""
        if self.busy or not self.queue:
            return None
        return max(self.queue[0][0], self.rest_ms)

    def take(self) -> Delivery:
        """Take the delivery to try now. The endpoint is busy until the outcome is recorded."""
        assert not self.busy
        self.busy = True
        return heapq.heappop(self.queue)[2]


class Outbox:
    """All pending deliveries. Every method is synchronous; call it on the event loop's thread."""

    def __init__(self, command_log: CommandLog, clock: Clock) -> None:
        self._log = command_log
        self._clock = clock
        self._seq = 0
        self.endpoints: dict[str, Endpoint] = {}
        self._by_account: dict[str, list[Endpoint]] = {}
        # The health of disabled webhooks. Their owner still sees it.
        self._health: dict[str, Endpoint] = {}
        # endpoints with a pending delivery, so that no loop visits all endpoints
        self._owing: dict[str, Endpoint] = {}
        # endpoints that the dispatcher must disable
        self.overfull: list[str] = []
        # encrypted secrets of the webhooks that another service serves
        self._others: frozenset[str] = frozenset()

    def load(self, state: State) -> None:
        """Load the pending deliveries and endpoint health from the file."""
        self.endpoints, self._by_account, self._health, self._owing = {}, {}, {}, {}
        for hook in state.webhooks.values():
            self.add(hook)
        for name, last_ms, last_status, failures, good_ms in self._log.select("SELECT * FROM endpoints"):
            known = self.endpoints.get(name) or self._health.get(name)
            if known is not None:
                known.last_ms, known.last_status, known.failures, known.good_ms = (
                    last_ms,
                    last_status,
                    failures,
                    good_ms,
                )
        for name, until_ms in self._log.select("SELECT webhook, until_ms FROM rests"):
            if name in self.endpoints:
                self.endpoints[name].rest_ms = until_ms
        columns = "seq, webhook, event, body, attempts, first_ms, due_ms"
        # No outside text.
        for seq, webhook, *rest in self._log.select(f"SELECT {columns} FROM deliveries ORDER BY seq"):  # noqa: S608
            self._seq = max(self._seq, seq)
            if webhook in self.endpoints:
                self._push(self.endpoints[webhook], Delivery(seq, *rest))
            else:
                self._log.put_all([(_DONE, (seq,))])

    def begin(self, state: State, *, silent: bool = False) -> None:
        """Start with a replaced state and no pending deliveries.

        `silent`: another service serves the webhooks of this state, so never send to them.
        """
        self.endpoints, self._by_account, self._health, self._owing, self.overfull = {}, {}, {}, {}, []
        if silent:
            self._others = frozenset(hook.encrypted_secret for hook in state.webhooks.values())
        for hook in state.webhooks.values():
            if hook.encrypted_secret not in self._others:
                self.add(hook)

    def add(self, hook: VenueWebhook) -> None:
        """Serve a webhook of the state."""
        endpoint = Endpoint(hook, None if hook.types is None else frozenset(hook.types))
        if hook.disabled is not None:
            self._health[hook.id] = endpoint
            return
        self.endpoints[hook.id] = endpoint
        self._by_account.setdefault(hook.account, []).append(endpoint)

    def owing(self) -> list[Endpoint]:
        """Endpoints with pending deliveries."""
        for name in [name for name, endpoint in self._owing.items() if not endpoint.queue]:
            del self._owing[name]
        return list(self._owing.values())

    def _push(self, endpoint: Endpoint, delivery: Delivery) -> None:
        heapq.heappush(endpoint.queue, (delivery.due_ms, delivery.seq, delivery))
        self._owing[endpoint.hook.id] = endpoint

    def drop(self, webhook: str, *, keep_health: bool = False) -> None:
        """Delete this endpoint's deliveries. `keep_health`: it was disabled, and its owner still sees its health."""
        endpoint = self.endpoints.pop(webhook, None)
        statements: list[Statement] = [(_DROP, (webhook,)), (_RESTED, (webhook,))]
        if endpoint is not None:
            endpoint.queue.clear()
            left = [hook for hook in self._by_account[endpoint.hook.account] if hook is not endpoint]
            if left:
                self._by_account[endpoint.hook.account] = left
            else:
                del self._by_account[endpoint.hook.account]
        if keep_health and endpoint is not None:
            self._health[webhook] = endpoint
        elif not keep_health:
            self._health.pop(webhook, None)
            statements.append((_FORGET, (webhook,)))
        self._log.put_all(statements)

    def health(self, webhook: str) -> Endpoint | None:
        return self.endpoints.get(webhook) or self._health.get(webhook)

    # ── Pending deliveries
    # ──────────────────────────────────────────────────────────────────────────────────────────────

    def owe(self, events: Iterable[Event]) -> list[Statement]:
        """Queue deliveries for new events. Returns the statements for the transaction of those events."""
        statements: list[Statement] = []
        if not self._by_account:
            return statements
        for event in events:
            endpoints = self._by_account.get(event.account)
            if endpoints is None:
                continue
            kind = event_bodies.kind_of(event)
            body: bytes | None = None
            for endpoint in endpoints:
                if not endpoint.wants(*kind):
                    continue
                if len(endpoint.queue) >= BACKLOG_MAX:
                    if endpoint.hook.id not in self.overfull:
                        self.overfull.append(endpoint.hook.id)
                    continue
                body = body or dumps(event_bodies.event(event))
                self._seq += 1
                delivery = Delivery(self._seq, event_id(event.seq), body, 0, 0, self._clock.now_ms())
                self._push(endpoint, delivery)
                values = (delivery.seq, endpoint.hook.id, delivery.event, body, 0, 0, delivery.due_ms)
                statements.append((_OWE, values))
        return statements

    # ── Outcomes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def succeeded(self, endpoint: Endpoint, delivery: Delivery, status: int, now_ms: int, *, shown_ms: int) -> None:
        statements: list[Statement] = [(_DONE, (delivery.seq,))]
        if endpoint.rest_ms:
            statements.append((_RESTED, (endpoint.hook.id,)))
        endpoint.last_ms, endpoint.last_status = shown_ms, status
        endpoint.failures, endpoint.good_ms, endpoint.rest_ms, endpoint.busy = 0, now_ms, 0, False
        self._log.put_all([*statements, self._health_row(endpoint)])

    def failed(
        self, endpoint: Endpoint, delivery: Delivery, status: int | None, *, shown_ms: int, due_ms: int | None
    ) -> None:
        """Record a failed attempt. `due_ms` None: it was the last attempt."""
        endpoint.last_ms, endpoint.last_status = shown_ms, status
        endpoint.failures += 1
        endpoint.busy = False
        statement: Statement = (_DONE, (delivery.seq,))
        if due_ms is not None:
            delivery.due_ms = due_ms
            self._push(endpoint, delivery)
            statement = (_DELAY, (delivery.attempts, delivery.first_ms, due_ms, delivery.seq))
        self._log.put_all([statement, self._health_row(endpoint)])

    def rest(self, endpoint: Endpoint, until_ms: int) -> None:
        """Send nothing to this endpoint before that time."""
        if until_ms > endpoint.rest_ms:
            endpoint.rest_ms = until_ms
            self._log.put_all([(_REST, (endpoint.hook.id, until_ms))])

    def gave_back(self, endpoint: Endpoint, delivery: Delivery) -> None:
        """Put back a delivery whose attempt was cancelled because the service stops."""
        endpoint.busy = False
        self._push(endpoint, delivery)

    @staticmethod
    def _health_row(endpoint: Endpoint) -> Statement:
        health = (endpoint.last_ms, endpoint.last_status, endpoint.failures, endpoint.good_ms)
        return _HEALTH, (endpoint.hook.id, *health)
