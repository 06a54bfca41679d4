"""The protocol of one socket: subscriptions and their acknowledgements, pings, and when the socket counts as dead.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bot.clock import HOUR_MS, MINUTE_MS, SECOND_MS
from bot.exchanges.hyperliquid.json_rows import JsonRow, unknown

GREETING: Final = "Websocket connection established."
PING: Final = '{"method":"ping"}'
PING_EVERY_MS: Final = 8 * SECOND_MS
# Neither a message nor a pong came for so long.
SILENCE_MAX_MS: Final = 20 * SECOND_MS
ACKNOWLEDGE_MAX_MS: Final = 10 * SECOND_MS
# A socket is replaced after 20 to 24 hours.
AGE_MS: Final = 20 * HOUR_MS
AGE_SPREAD_MS: Final = 4 * HOUR_MS
# The exchange allows 2,000 messages a minute from an IP address; at most so many are sent at once.
SENT_AT_ONCE: Final = 500

# Errors that name a subscription, and whether they refuse it.
ERRORS: Final = (("Already subscribed: ", False), ("Invalid subscription ", True))

Subscription = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message of a channel."""

    channel: str
    data: Any


class SocketProtocol:
    """One socket, from its opening at `opened_ms`. `age_ms`: when another one must take its place.

    `needs_all` False: the socket is good without the subscriptions that the exchange calls invalid, such as those of a
    market that was delisted.
    """

    def __init__(
        self, wanted: Sequence[Subscription], opened_ms: int, age_ms: int = AGE_MS, *, needs_all: bool = True
    ) -> None:
        assert len(wanted) <= SENT_AT_ONCE
        self._waiting = list(wanted)
        self._opened_ms = opened_ms
        self._heard_ms = opened_ms
        self._sent_ms = opened_ms
        self._age_ms = age_ms
        self._needs_all = needs_all
        self._acknowledged = 0
        self.refused: str | None = None

    @property
    def is_acknowledged(self) -> bool:
        """True if the exchange has acknowledged every subscription."""
        return not self._waiting

    def first_texts(self) -> list[str]:
        """What is sent after the opening."""
        return [
            json.dumps({"method": "subscribe", "subscription": dict(subscription)}) for subscription in self._waiting
        ]

    def take(self, text: str, now_ms: int) -> ChannelMessage | None:
        """Take one message. Returns it if it belongs to a channel. UnknownForm if it is in no known form."""
        self._heard_ms = now_ms
        if text == GREETING:
            return None
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise unknown("a message of the socket", "JSON", text) from None
        row = JsonRow(values, "a message of the socket")
        channel = row.text("channel")
        if channel == "pong":
            return None
        if channel == "subscriptionResponse":
            self._acknowledge(row.row("data").object("subscription"))
            return None
        if channel == "error":
            self._take_error(row.text("data"))
            return None
        return ChannelMessage(channel, values.get("data"))

    def _acknowledge(self, told: Mapping[str, Any]) -> None:
        """The echo has all fields of the subscription, and others with their defaults."""
        self._acknowledged += self._settle(told)

    def _settle(self, told: Mapping[str, Any]) -> int:
        """Wait no longer for this subscription. Returns how many of those that are waited for it is: 0 or 1."""
        left = [
            subscription
            for subscription in self._waiting
            if not all(told.get(name) == subscription[name] for name in subscription)
        ]
        settled, self._waiting = len(self._waiting) - len(left), left
        return settled

    def _take_error(self, text: str) -> None:
        for prefix, is_refusal in ERRORS:
            echo = text.removeprefix(prefix)
            try:
                told = json.loads(echo) if echo != text else None
            except (ValueError, RecursionError):
                told = None
            if isinstance(told, dict) and not is_refusal:
                return self._acknowledge(told)
            is_optional = isinstance(told, dict) and not self._needs_all and self._settle(told) > 0
            if is_optional and (self._waiting or self._acknowledged):
                return None
        self.refused = f"the exchange refuses a message of the socket: {text[:200]}"
        return None

    def due_text(self, now_ms: int) -> str | None:
        """A ping, if it is due."""
        if now_ms - self._sent_ms < PING_EVERY_MS:
            return None
        self._sent_ms = now_ms
        return PING

    def trouble(self, now_ms: int) -> str | None:
        """Why the socket must be given up; None if it is good."""
        if self.refused is not None:
            return self.refused
        if now_ms - self._heard_ms > SILENCE_MAX_MS:
            return f"the exchange has sent nothing for {SILENCE_MAX_MS // SECOND_MS} s"
        if self._waiting and now_ms - self._opened_ms > ACKNOWLEDGE_MAX_MS:
            left = ", ".join(sorted({subscription["type"] for subscription in self._waiting}))
            return f"the exchange has not acknowledged {left} within {ACKNOWLEDGE_MAX_MS // SECOND_MS} s"
        return None

    def is_old(self, now_ms: int) -> bool:
        return now_ms - self._opened_ms > self._age_ms


def pause_ms(failures: int) -> int:
    """How long to wait after so many failures one after the other: 0.25 s, doubled up to a minute."""
    return min(MINUTE_MS, (SECOND_MS // 4) << min(failures, 10))
