"""What a scenario is, and how it says that the exchange does as assumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from bot.exchanges.hyperliquid.certification.assumptions import AS_ASSUMED, OTHERWISE
from bot.exchanges.hyperliquid.certification.session import ContractSession

# Assumption -> the value that was seen.
Observed = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scripted step from an empty account. The runner cleans up after it.

    `sends` says what it sends, `turnover_usd` the most that it buys and sells. `is_long`: it takes up to an hour.
    """

    name: str
    shows: tuple[str, ...]
    sends: str
    run: Callable[[ContractSession], Awaitable[Observed]]
    seconds: int = 10
    actions: int = 6
    turnover_usd: int = 0
    is_long: bool = False


def agrees(is_right: bool) -> str:
    return AS_ASSUMED if is_right else OTHERWISE
