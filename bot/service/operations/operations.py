"""Every operation of the interface as one synchronous method, for REST, agents and backtests.

A method takes the caller (`Principal`), a request model of `bot.wire` and a `Context`; it returns a `ServiceAnswer`
(status and bytes) or raises `OperationRefused`. The transports only read requests and send answers. They send an answer
after `machine.settle()`.
"""

from __future__ import annotations

from bot.service.operations.device import DeviceOperations
from bot.service.operations.kill import KillOperations
from bot.service.operations.markets import MarketOperations
from bot.service.operations.orders import OrderOperations
from bot.service.operations.portfolio import PortfolioOperations
from bot.service.operations.sign_in import SignInOperations
from bot.service.operations.wallets import WalletOperations


class Operations(
    OrderOperations,
    KillOperations,
    MarketOperations,
    WalletOperations,
    PortfolioOperations,
    DeviceOperations,
    SignInOperations,
):
    """All operations over one machine."""
