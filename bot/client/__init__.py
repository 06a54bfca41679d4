"""A client of the interface: `Client` for /v1, `ControlClient` for the sandbox's own control surface.

`http` is one exchange over HTTP, and alone imports httpx; `connections` carries it to an address; `faults` says what an outcome
means; `retry` waits; `service_clock` follows the service's time. Nothing here decides to send an order again: that is the runtime's, with its journal in hand.
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
