"""Operations: every operation of the interface as one synchronous method, the same for REST, for agents and for sessions.

A method takes the caller (`Principal`), a request model of `bot.wire` and a `Context`; it answers an `Answer` (status and bytes) or raises
`Refused`. The transports above only read requests and send answers; an answer leaves after `machine.settle()`.
"""

from __future__ import annotations

from bot.service.markets import MarketDesk
from bot.service.orders import OrderDesk


class Operations(OrderDesk, MarketDesk):
    """All operations over one machine."""
