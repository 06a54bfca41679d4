"""Clients of the service: `Client` for /v1, `ControlClient` for the sandbox control.

`http` sends one HTTP request, over `connections` (TCP) or httpx. `faults` decides what an outcome means for an order.
`retry` waits and repeats. `service_clock` follows the service's time. No module here repeats an order by itself: the
daemon does, because it has the journal.
"""

from bot.client.client import Client
from bot.client.control import ControlClient
from bot.client.faults import Verdict, classify, verdict_of
from bot.client.http import Timeouts
from bot.client.retry import Backoff, persist
from bot.client.service_clock import ServiceClock

__all__ = [
    "Client",
    "ControlClient",
    "Timeouts",
    "Verdict",
    "classify",
    "verdict_of",
    "Backoff",
    "persist",
    "ServiceClock",
]
