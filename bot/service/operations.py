"""Operations: every operation of the interface as one synchronous method, the same for REST, for agents and for sessions.

A method takes the caller (`Principal`), a request model of `bot.wire` and a `Context`; it answers an `Answer` (status and bytes) or raises
`Refused`. The transports above only read requests and send answers; an answer leaves after `machine.settle()`.
"""

from __future__ import annotations

from bot.service.device import DeviceDesk
from bot.service.kill import KillDesk
from bot.service.markets import MarketDesk
from bot.service.orders import OrderDesk
from bot.service.portfolio import PortfolioDesk
from bot.service.sign_in import SignInDesk
from bot.service.wallets import WalletDesk


class Operations(OrderDesk, KillDesk, MarketDesk, WalletDesk, PortfolioDesk, DeviceDesk, SignInDesk):
    """All operations over one machine."""
