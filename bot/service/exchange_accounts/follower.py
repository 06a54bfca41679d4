"""The task that follows an account at an exchange: sessions with the link, one after another, with growing waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bot.clock import SECOND_MS
from bot.errors import BotError
from bot.exchanges.link.client import ExchangeLink
from bot.exchanges.protocol import (
    AccountReport,
    AccountStanding,
    FillCursor,
    LinkHealth,
    LinkState,
    LiquidationReport,
    NoExchangeAnswer,
    OpenOrders,
)
from bot.logs import log
from bot.money import format_e8
from bot.service.exchange_accounts.account_options import FollowedAccount, exchange_account
from bot.service.exchange_accounts.report_commands import MarketNames, commands_of, position
from bot.service.state_machine.machine import Machine
from bot.venue.accounting import nav
from bot.venue.exchange import action_reports
from bot.venue.exchange import reports as venue_reports
from bot.venue.exchange.order_reports import VENUE
from bot.venue.model import commands as c
from bot.venue.model.state import ExchangePosition, VenueAccount
from bot.venue.orders import exchange_actions, exchange_levels

WAIT_FIRST_SECONDS: Final = 1.0
WAIT_MAX_SECONDS: Final = 60.0
# A session that lasted so long was a good one, so the waits begin anew.
GOOD_SESSION_MS: Final = 60 * SECOND_MS
# Standings come every 5 s.
HEALTH_EVERY_MS: Final = 15 * SECOND_MS
# A change of the clocks' difference that actions need.
DIFFERENCE_MIN_MS: Final = 250
# What a liquidation took is compared with standings that are so much newer.
TAKEOVER_WAIT_MS: Final = 5 * SECOND_MS
# The link looks an absent order up and reports its end; one that is absent for so long has no such report.
ABSENT_WAIT_MS: Final = 10 * SECOND_MS
# A difference counts when so many standings in a row show it: a standing may be older than the newest fill.
DIFFERENCES_MIN: Final = 3

Sleep = Callable[[float], Awaitable[None]]


class ExchangeFollower:
    """Follows one account. Until the exchange has told its cash and positions once, there is no account here."""

    def __init__(self, machine: Machine, followed: FollowedAccount, sleep: Sleep = asyncio.sleep) -> None:
        self.followed = followed
        self.sessions = 0
        # why the last session ended, while no session has told anything since
        self.trouble: str | None = None
        self.health: LinkHealth | None = None
        # True when everything that the exchange has was known once since the start
        self.has_caught_up = False
        # what the books have otherwise than the exchange
        self.differences: tuple[str, ...] = ()
        # the link that lives now, for actions, and who is told that it has come or gone
        self.link: ExchangeLink | None = None
        self.link_changed: Callable[[], None] | None = None
        self._machine = machine
        self._sleep = sleep
        self._names = MarketNames(_coins_by_symbol(machine, followed), machine.state.markets)
        self._session = _Session()

    @property
    def account(self) -> VenueAccount | None:
        return exchange_account(self._machine)

    def begin(self) -> None:
        """Nothing is known of the account until the link has told it. Without a key nothing can be sent."""
        account = self.account
        known = None if account is None else account.exchange
        if account is not None and known is not None and known.signer and self.followed.agent_key_file is None:
            self._machine.run(c.SeeAgent(account.id, None, known.clock_difference_ms, known.actions_left))
        self._set_cap()
        self._see_away("the service has started and the link has told nothing yet")

    def _set_cap(self) -> None:
        account = self.account
        if account is not None and account.exchange is not None and account.exchange.exposure_cap != self.followed.cap:
            self._machine.run(c.SetExposureCap(account.id, self.followed.cap))

    async def run(self) -> None:
        """Hold sessions until cancelled."""
        wait = WAIT_FIRST_SECONDS
        while True:
            begun_ms = self._machine.clock.now_ms()
            try:
                await self.session()
            except BotError as error:
                self.trouble = str(error)
                self._see_away(self.trouble)
                log.warning("exchange.disconnected", message=self.trouble, wait_seconds=wait)
            if self._machine.clock.now_ms() - begun_ms > GOOD_SESSION_MS:
                wait = WAIT_FIRST_SECONDS
            await self._sleep(wait)
            wait = min(WAIT_MAX_SECONDS, wait * 2)

    async def session(self) -> None:
        """One link. NoExchangeAnswer when it ends."""
        self.sessions += 1
        self._session, self.health = _Session(), None
        asked_ms = 0
        followed = self.followed
        link = ExchangeLink(followed.exchange, followed.network, agent_key_file=followed.agent_key_file)
        async with link:
            self.health = await link.health()
            try:
                async for batch in link.account(followed.address, self.cursor()):
                    # The first reports of a link come after the link has checked the agent.
                    if self.link is None:
                        self._set_link(link)
                    self.take(batch)
                    now_ms = self._machine.clock.now_ms()
                    if now_ms - asked_ms > HEALTH_EVERY_MS:
                        asked_ms = now_ms
                        self.health = await link.health()
                        self._see_agent()
            finally:
                self._set_link(None)
        raise NoExchangeAnswer("the link has ended the reports of the account")

    def _set_link(self, link: ExchangeLink | None) -> None:
        self.link = link
        if link is not None:
            self._see_agent()
        if self.link_changed is not None:
            self.link_changed()

    def _see_agent(self) -> None:
        """Store the agent that may act, the difference of the clocks, and the actions left, when one has changed."""
        account, health = self.account, self.health
        if account is None or account.exchange is None or health is None:
            return
        known, difference_ms = account.exchange, health.clock_difference_ms
        if difference_ms is None:
            # Nothing is sent before it is known: an action has the instant of its expiry by the exchange's clock.
            return
        is_moved = abs(difference_ms - known.clock_difference_ms) > DIFFERENCE_MIN_MS
        left = health.actions_left
        is_other = exchange_levels.steps_a_minute(left) != exchange_levels.steps_a_minute(known.actions_left)
        if is_moved or is_other or known.signer != health.signer:
            self._machine.catch_up()
            self._machine.run(c.SeeAgent(account.id, health.signer, difference_ms, left))

    def symbol(self, coin: str) -> str:
        """The name that the exchange has for a coin of this service."""
        return next((symbol for symbol, known in self._names.symbols.items() if known == coin), coin)

    def cursor(self) -> FillCursor | None:
        """From where a new link reads; None until there is an account."""
        account = self.account
        if account is None or account.exchange is None:
            return None
        at_ms, sizes = venue_reports.cursor(account)
        symbols = {coin: symbol for symbol, coin in self._names.symbols.items()}
        return FillCursor(
            at_ms,
            {symbols.get(coin, coin): size for coin, size in sizes.items()},
            funding_ms=venue_reports.money_cursor(account.exchange, venue_reports.FUNDING),
            transfers_ms=venue_reports.money_cursor(account.exchange, venue_reports.TRANSFER),
        )

    # ── Reports ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, batch: Sequence[AccountReport]) -> None:
        """Book a batch of reports. UnlistedMarket leaves the rest of it to the next session."""
        self._machine.catch_up()
        self._session.see(batch)
        account = self.account
        if account is None:
            batch = self._adopt(batch)
            account = self.account
        if account is None:
            return
        self.trouble = None
        for report in batch:
            for command in commands_of(report, account, self._names):
                self._machine.run(command)
        self.has_caught_up |= self._session.phase == "in_step"
        self._end_absent_orders(account)
        self._compare(account)
        self._take_over(account)

    def _adopt(self, batch: Sequence[AccountReport]) -> Sequence[AccountReport]:
        """Begin the account with standings of one instant, when the link is in step. Returns the reports to book."""
        session = self._session
        session.early += batch
        standings = session.standings
        if session.phase != "in_step" or not standings or len({standing.at_ms for standing in standings.values()}) > 1:
            return ()
        positions = self.positions_in(standings.values())
        state, followed = self._machine.state, self.followed
        command = c.AdoptExchangeAccount(
            account=f"acc_{state.account_seq + 1:08d}",
            address=followed.address,
            name=None,
            exchange=followed.exchange,
            network=followed.network,
            at_ms=next(iter(standings.values())).at_ms,
            cash=sum(standing.cash for standing in standings.values()),
            positions=positions,
        )
        self._machine.run(command)
        self._set_cap()
        self._see_agent()
        early, session.early = session.early, []
        # The last state is the present one.
        return [report for report in early if not isinstance(report, LinkState)] + [LinkState("in_step", 0)]

    def positions_in(self, standings: Iterable[AccountStanding]) -> tuple[ExchangePosition, ...]:
        """The positions that an exchange has told."""
        return tuple(position(reported, self._names) for told in standings for reported in told.positions)

    def _take_over(self, account: VenueAccount) -> None:
        """End what the exchange took in a liquidation without fills: positions, and margin that its cash lacks now."""
        session = self._session
        for report in list(session.liquidations):
            standing = session.standings.get(report.group)
            if standing is None or standing.at_ms < report.at_ms + TAKEOVER_WAIT_MS:
                continue
            if not session.differing:
                session.liquidations.remove(report)
            elif session.differing >= DIFFERENCES_MIN:
                session.liquidations.remove(report)
                left = {held.market for held in standing.positions}
                coins = tuple(self._names.coin(market) for market, _ in report.positions if market not in left)
                cash = sum(group.cash for group in session.standings.values())
                self._machine.run(c.BookTakeover(account.id, report.liquidation_id, report.at_ms, coins, cash))

    def _end_absent_orders(self, account: VenueAccount) -> None:
        """End orders that the exchange does not list and whose end no report tells: they ended while nobody listened,
        or went on under another id.
        """
        session, now_ms = self._session, self._machine.caught_ms
        is_whole = bool(session.standings) and set(session.standings) <= set(session.open_ids)
        if session.phase != "in_step" or not is_whole:
            return
        assert account.exchange is not None
        there = {name for names in session.open_ids.values() for name in names}
        # A stop or target of ours has no id of the exchange before a report has named it.
        ours = {
            order.order_id or name: order
            for name, order in account.exchange.protection_orders.items()
            if order.status == "there"
        }
        absent = [name for name in (*account.exchange.orders, *ours) if name not in there]
        session.absent_since = {name: session.absent_since.get(name, now_ms) for name in absent}
        at_ms = max(standing.at_ms for standing in session.standings.values())
        for name, since_ms in session.absent_since.items():
            if now_ms - since_ms >= ABSENT_WAIT_MS:
                order_id, client_order_id = (
                    (name, None) if name not in ours else (ours[name].order_id or "", ours[name].client_order_id)
                )
                self._machine.run(c.EndReportedOrder(account.id, order_id, at_ms, VENUE, client_order_id))

    def _compare(self, account: VenueAccount) -> None:
        """Compare cash and sizes with the newest standings. A standing may be older than the newest fill."""
        session = self._session
        # A position that was taken without fills keeps the link behind.
        is_known = session.phase == "in_step" or (session.phase == "behind" and session.liquidations)
        if not is_known or not session.is_standing_new:
            return
        differences = tuple(self._found_differences(account))
        session.differing = session.differing + 1 if differences else 0
        if not differences:
            self.differences = ()
            self._settle(account)
        elif session.differing >= DIFFERENCES_MIN and self.differences != differences:
            self.differences = differences
            log.error("exchange.differs", differences=list(differences))

    def _settle(self, account: VenueAccount) -> None:
        """The books equal the standings, so no fill is missing that was there then."""
        at_ms = min(standing.at_ms for standing in self._session.standings.values())
        assert account.exchange is not None
        if action_reports.unsettled(account.exchange, at_ms):
            self._machine.run(c.SettleActions(account.id, at_ms))

    def _found_differences(self, account: VenueAccount) -> list[str]:
        standings = self._session.standings.values()
        cash = nav.stand_of(account, self._machine.state).cash
        told = sum(standing.cash for standing in standings)
        texts = [] if cash == told else [f"cash: {format_e8(cash)} USD here, {format_e8(told)} at the exchange"]
        ours = {coin: held.side * held.size for coin, held in account.positions.items()}
        theirs = {self._names.coin(held.market): held.signed_size for told in standings for held in told.positions}
        for coin in sorted({*ours, *theirs}):
            if (size := ours.get(coin, 0)) != (there := theirs.get(coin, 0)):
                texts.append(f"{coin}: {format_e8(size)} here, {format_e8(there)} at the exchange")
        return texts

    def _see_away(self, reason: str) -> None:
        self._machine.catch_up()
        if (account := self.account) is not None:
            self._machine.run(c.SeeLink(account.id, "away", reason))

    # ── Status ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def body(self) -> dict[str, Any]:
        """The state of the link, for GET /v1/system/status."""
        account, health = self.account, self.health
        known = None if account is None else account.exchange
        agent = None if health is None else health.agent
        undecided = None if known is None else exchange_actions.undecided(known)
        return {
            "name": self.followed.exchange,
            "network": self.followed.network,
            "address": self.followed.address,
            "accountId": None if account is None else account.id,
            # Before there is an account nothing is known of it, whatever the link knows.
            "link": "away" if known is None else known.link,
            "since": None if known is None else known.link_since_ms,
            "reason": self.trouble if known is None else known.link_reason,
            "sessions": self.sessions,
            "waitingFills": 0 if known is None else len(known.waiting),
            "clockDifferenceMs": None if health is None else health.clock_difference_ms,
            "requestWeight": None if health is None else health.weight,
            "differences": list(self.differences),
            "hasAgentKey": self.followed.agent_key_file is not None,
            "agent": None if health is None else health.signer,
            "agentName": None if agent is None else agent.name,
            "agentUntil": None if agent is None else agent.valid_until_ms,
            "agentReadAt": None if health is None else health.agent_read_ms,
            "agentFault": None if health is None else health.agent_fault,
            "actionsLeft": None if health is None else health.actions_left,
            "actionsUndecided": None if undecided is None else len(undecided),
            "oldestUndecidedAt": undecided[0].made_ms if undecided else None,
        }


class _Session:
    """What one link has told."""

    def __init__(self) -> None:
        self.phase = "away"
        self.standings: dict[str, AccountStanding] = {}
        self.is_standing_new = False
        self.open_ids: dict[str, set[str]] = {}
        self.liquidations: list[LiquidationReport] = []
        # reports that came before there was an account
        self.early: list[AccountReport] = []
        # orders that the exchange does not list, and since when of our clock
        self.absent_since: dict[str, int] = {}
        self.differing = 0

    def see(self, batch: Sequence[AccountReport]) -> None:
        told = {report.group: report for report in batch if isinstance(report, AccountStanding)}
        self.is_standing_new = bool(told)
        self.standings |= told
        for report in batch:
            if isinstance(report, LinkState):
                self.phase = report.phase
            elif isinstance(report, OpenOrders):
                ids = {order.order_id for order in report.orders}
                self.open_ids[report.group] = ids | {
                    order.client_order_id for order in report.orders if order.client_order_id is not None
                }
            elif isinstance(report, LiquidationReport):
                self.liquidations.append(report)


def _coins_by_symbol(machine: Machine, followed: FollowedAccount) -> Mapping[str, str]:
    """The names that the exchange has for the coins of this service, as its prices have them."""
    live = json.loads(machine.feed.options or "{}").get("live", ())
    source = f"{followed.exchange}:{followed.network}"
    return {symbol: coin for row in live if row["source"] == source for coin, symbol in row["symbols"].items()}
