"""Latency of orders: how long after its cause an order reaches the venue, and what the market does meanwhile."""

from __future__ import annotations

from typing import Final

from bot.backtest.engine.simulated_exchange import SimulatedExchange
from bot.backtest.engine.stepper import Stepper

# prefix of an intent's trigger if an event caused the intent; the event's number follows
EVENT_TRIGGER: Final = "event:evt_"


class OrderLatency:
    """Called before each order request with its key. Advances the market until the order arrives, `latency_ms` after
    the bar, timer or event that caused it. Orders of several markets with causes at one instant arrive together. Events
    from an outage count from the start of the next daemon.
    """

    def __init__(self, stepper: Stepper, exchange: SimulatedExchange, *, latency_ms: int, end_ms: int) -> None:
        self._stepper = stepper
        self._exchange = exchange
        self._latency_ms = latency_ms
        self._end_ms = end_ms

    def __call__(self, key: str | None) -> None:
        arrives_ms = max(self._cause_ms(key), self._stepper.started_ms) + self._latency_ms
        # The clock never passes the end of the session.
        arrives_ms = min(arrives_ms, self._end_ms - 1)
        if arrives_ms > self._exchange.clock.now_ms():
            self._exchange.advance(arrives_ms)

    def _cause_ms(self, key: str | None) -> int:
        """The instant of the order's cause.

        Events also come while orders are on their way, so each event has its own instant.
        """
        stepper, buffer = self._stepper, self._exchange.event_buffer
        intent = None if key is None else stepper.kernel.intents.live.get(key)
        if intent is not None and intent.trigger.startswith(EVENT_TRIGGER):
            index = int(intent.trigger.removeprefix(EVENT_TRIGGER)) - buffer.first
            if 0 <= index < len(buffer.events):
                return buffer.events[index].ts
        return stepper.know_cause(lambda: buffer.events[-1].ts if buffer.events else self._exchange.clock.now_ms())
