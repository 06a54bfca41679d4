"""The local exchange in this process as the exchange of the contract's scenarios: real signatures, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import eth_account

from bot.exchanges.hyperliquid.actions.signing import Signer
from bot.exchanges.hyperliquid.certification import trigger_scenarios
from bot.exchanges.hyperliquid.certification.contract import SCENARIOS
from bot.exchanges.hyperliquid.certification.scenario import Scenario
from bot.exchanges.hyperliquid.certification.session import ContractSession
from bot.exchanges.hyperliquid.certification.wire_orders import ContractMarket
from bot.exchanges.protocol import ActionMalformed, NoExchangeAnswer
from bot.local_exchange.switches import SWITCHES
from bot.local_exchange.wire.actions import Malformed
from tests.exchanges.sources import approve
from tests.local_exchange.exchanges import ANN, BOB, BTC, Venue, limit

KEY = "02" * 32
AGENT = eth_account.Account.from_key("0x" + KEY).address.lower()
MARKET = ContractMarket("BTC", BTC, 5)
# Assumption -> the scenario that shows it, and each value of each switch that a scenario shows.
SHOWN = {name: scenario for scenario in SCENARIOS for name in scenario.shows}
VALUES = [(switch.name, value) for switch in SWITCHES if switch.name in SHOWN for value in switch.values]


class VenueAccess:
    """The exchange, with another participant who keeps a small offer inside of the spread.

    `fault(number, is_action)` is asked at each request: "lost" loses the request, "unanswered" only its answer.
    """

    def __init__(self, venue: Venue, fault: Callable[[int, bool], str | None] = lambda number, is_action: None) -> None:
        self.venue = venue
        self.requests = 0
        self._fault = fault

    def now_ms(self) -> int:
        return self.venue.exchange.now_ms

    async def wait(self, ms: int) -> None:
        self.venue.control("advance", ms=ms)

    async def info(self, query: Mapping[str, Any]) -> Any:
        self._meet(is_action=False)
        if query["type"] == "l2Book":
            self._offer()
        return self.venue.service.info(dict(query))[0]

    async def exchange(self, body: Mapping[str, Any]) -> Any:
        fault = self._meet(is_action=True)
        try:
            signed = self.venue.service.read(dict(body))
        except Malformed as error:
            raise ActionMalformed(str(error)) from None
        answer = self.venue.service.perform(signed)
        if fault == "unanswered":
            raise NoExchangeAnswer("no answer in time")
        return answer

    def _meet(self, *, is_action: bool) -> str | None:
        self.requests += 1
        fault = self._fault(self.requests, is_action)
        if fault == "lost" or (fault and not is_action):
            raise NoExchangeAnswer("HTTP 502")
        return fault

    def _offer(self) -> None:
        bids, asks = self.venue.info("l2Book", coin="BTC")["levels"]
        if bids and asks and float(asks[0]["px"]) - (bid := int(float(bids[0]["px"]))) > 1:
            self.venue.place(BOB, limit(BTC, "A", "0.0002", str(bid + 1), "Alo"))


def session_of(
    venue: Venue, folder: Path, fault: Callable[[int, bool], str | None] = lambda number, is_action: None
) -> ContractSession:
    """A session of ANN's agent."""
    path = folder / "agent"
    if not path.exists():
        path.write_text(KEY)
        path.chmod(0o600)
    approve(venue, ANN, AGENT)
    return ContractSession(VenueAccess(venue, fault), Signer(path, is_mainnet=False), ANN, MARKET)


def contract_venue(scenario: Scenario, switches: Mapping[str, str]) -> Venue:
    """A funded account, also in a dex of its own. Prices move for the scenarios that wait for it."""
    prices = "simulated" if scenario in trigger_scenarios.SCENARIOS else "held"
    venue = Venue(usd="500", prices=prices, switches=switches)
    venue.control("deposit", address=ANN, usd="50", dex="xyz")
    return venue
