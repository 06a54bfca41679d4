"""Invariants after every command: money, orders, levels, margin, protection."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bot import cron
from bot.errors import Refusal
from bot.model.events import Event, FillEvent, GuardianMoved, Liquidated, OrderChanged
from bot.venue.accounting import drawdown_floors, ledger
from bot.venue.model import commands as c
from bot.venue.model import state as s
from bot.venue.model.numbers import E8
from bot.venue.prices import book, index
from bot.venue.storage import pages
from bot.venue.triggers import liquidation
from tests.venue import visitors
from tests.venue.books import Books, demand


class Shelf:
    """Level lists made again from the state."""

    def __init__(self, market: s.VenueMarket) -> None:
        self.spec = market.spec
        self.tick = market.tick
        self.falling: list[Any] = []
        self.rising: list[Any] = []
        self.watches = 0


@dataclass(slots=True)
class Watch:
    """Checks a state after every command."""

    state: s.State
    specs: dict[str, s.MarketSpec] = field(default_factory=dict)
    books: dict[str, Books] = field(default_factory=dict)
    # (account, coin) that must have a stop
    demanded: dict[tuple[str, str], str] = field(default_factory=dict)
    # trades of orders with requireProtection
    careful: set[str] = field(default_factory=set)
    # Size that others have added since: a working exit closes only the size at its start.
    added: Counter[tuple[str, str]] = field(default_factory=Counter)
    # (account, coin) where a guardian refused openings before this command
    blocked: set[tuple[str, str]] = field(default_factory=set)
    # guardian -> its key
    armed_by: dict[str, str | None] = field(default_factory=dict)
    # what a guardian's event armed
    armed: dict[str, s.GuardianSpec] = field(default_factory=dict)
    # guardian -> instants at which it fired
    fired: dict[str, list[int]] = field(default_factory=dict)
    count: int = 0

    def judge(self, command: c.Command, answer: Any, events: list[Event], *, was_calm: bool) -> None:
        self.count += 1
        state = self.state
        kind = type(command)
        if kind is c.ListMarket or (kind is c.ChangeListing and not isinstance(answer, Refusal)):
            self.specs[command.spec.coin] = command.spec
        if isinstance(answer, Refusal):
            demand(not events, "a refusal makes no event", answer)
        if was_calm:
            demand(not events, "calm", *events)
        opened: set[tuple[str, str]] = set()
        for event in events:
            demand(len(event) == len(event._fields), "an event with another number of values than fields", event)
            account = state.accounts[event.account]
            books = self.books.get(event.account)
            if books is None:
                books = self.books[event.account] = Books(self.specs)
            books.read(account, event)
            if type(event) is GuardianMoved:
                self.guardian(account, event)
            elif type(event) is FillEvent and event.subtype == "entry":
                opened.add((event.account, event.coin))
            elif type(event) is Liquidated:
                isolated = self.specs[event.coin].margin_mode == "isolated"
                rests = [n for n in account.resting if not isolated or account.orders[n].coin == event.coin]
                # One time step may liquidate and later run a schedule whose order rests.
                later = {e.oid for e in events if type(e) is OrderChanged and e.subtype == "open" and e.seq > event.seq}
                rests = [n for n in rests if s.oid_text(account, n) not in later]
                demand(not rests, "an entry rests through a liquidation", event)
        self.protection(command, kind, answer, events)
        self.blocks(command, kind, answer)
        visitors.judge(state, command, answer)
        deep = bool(events) or self.count % 4 == 0
        holders: dict[str, list[str]] = {coin: [] for coin in state.markets}
        for account in state.accounts.values():
            self.account(account, holders)
            self.orders(account)
            self.guardians(account)
        for coin, market in state.markets.items():
            demand(sorted(market.holders) == sorted(holders[coin]), "holders", coin)
            full = market.spec.margin_mode == "full"
            due = bool(market.holders) and not full
            demand(bool(market.next_funding_ms) == due, "funding is due where somebody holds", coin)
            demand(
                not full or E8 // 1000 <= market.mark <= E8 - E8 // 1000, "an event's price lies within 0 and 1", coin
            )
            demand(market.status != "settled" or not market.holders, "nobody holds what is settled", coin)
        for event in events:
            if type(event) is FillEvent:
                self.trade(event.account, event.trade)
        if deep:
            self.levels()
        if kind is c.PricePoint or kind is c.PassBar:
            self.margin(state.markets[command.coin], opened)

    def account(self, account: s.VenueAccount, holders: dict[str, list[str]]) -> None:
        """Money: the identity, also computed from the events alone."""
        books = self.books[account.id]
        books.relever(account.balance)
        margins = value = 0
        cross = False
        demand(account.positions.keys() == books.held.keys(), "positions", account.id)
        for coin, position in account.positions.items():
            held = books.held[coin]
            holders[coin].append(account.id)
            demand(
                position.side == held.side
                and position.size == held.size
                and position.entry_notional == held.notional
                and position.margin == held.margin
                and position.funding == held.funding
                and position.leverage == held.leverage
                and held.size > 0
                and held.margin >= 0
                and position.isolated == held.isolated,
                "position",
                position,
                held,
            )
            margins += position.margin
            if self.specs[coin].margin_mode == "full":
                paid = position.entry_notional if position.side > 0 else position.size - position.entry_notional
                demand(position.margin == paid >= 0, "an event is paid in full", position)
                demand(
                    position.funding == 0 and position.liquidation_level is None, "an event has no funding", position
                )
            value += held.margin + held.side * (self.state.markets[coin].mark * held.size // E8 - held.notional)
            cross = cross or not position.isolated
        demand(
            account.balance + margins
            == account.start_balance
            + account.realized
            - account.fees
            + account.funding
            - account.margin_lost
            + account.absorbed,
            "balance identity",
            account.id,
        )
        demand(
            (
                account.balance,
                account.realized,
                account.fees,
                account.funding,
                account.margin_lost,
                account.absorbed,
                account.start_balance,
            )
            == (books.balance, books.realized, books.fees, books.funding, books.lost, books.absorbed, books.start),
            "books",
            account.id,
            books,
        )
        demand(ledger.account_value(self.state, account) == books.balance + value, "account value", account.id)
        demand(cross or account.balance >= 0, "account below zero", account.id, account.balance)
        demand(account.absorbed >= 0 and account.margin_lost >= 0, "signs", account.id)
        demand(account.event_seq == books.seq, "gapless", account.id)

    def orders(self, account: s.VenueAccount) -> None:
        """Every open order is in its index, and every index entry has its order."""
        reserved = 0
        working = set()
        state = self.state
        children = 0
        for number, order in account.orders.items():
            status = order.status
            position = account.positions.get(order.coin)
            reserved += order.reserved
            if status == "armed":
                assert position is not None, order
                mine = position.stop_oid if order.kind == "stop_loss" else position.target_oid
                demand(mine == number and order.side == position.side, "orphan", order)
                demand(order.size == position.size, "armed size is the position's", order, position)
                demand(s.oid_text(account, number) in self.books[account.id].children, "armed without an event", order)
                children += 1
                continue
            assert order.trade is not None, order
            working.add(order.trade)
            if status == "open":
                demand(number in account.resting and 0 <= order.filled < order.size, "resting", order)
                if order.kind != "limit":
                    demand((account.id, number) in state.markets[order.coin].pending, "pending", order)
            else:
                assert position is not None, order
                demand(status == "working" and (account.id, number) in state.markets[order.coin].working, "work", order)
                demand(order.side == position.side, "orphan", order)
                demand(order.filled < order.size, "working without a rest", order)
                if order.kind == "stop_loss":
                    demand(position.stop_oid == number, "working stop", order)
                demand(
                    order.size - order.filled <= position.size, "protective size above the position", order, position
                )
        demand(reserved == account.reserved >= 0, "reserved", reserved, account.reserved)
        demand(account.resting.keys() <= account.orders.keys(), "resting orders exist", account.id)
        demand(children == len(self.books[account.id].children), "an armed child is gone without an event", account.id)
        demand(working == {t.id for t in account.trades if t.status == "open"}, "open trades are open orders", working)
        for position in account.positions.values():
            for oid in (position.stop_oid, position.target_oid):
                demand(oid is None or oid in account.orders, "a position's child exists", position)
        for guardian in account.guardians.values():
            if guardian.side:
                position = account.positions.get(guardian.spec.coin or "")
                demand(position is not None and position.side == guardian.side, "orphan guardian", guardian)

    def guardian(self, account: s.VenueAccount, event: GuardianMoved) -> None:
        """Each fires at its own instant and no more often than it may."""
        standing = account.guardians.get(int(event.guardian[-9:]))
        if event.subtype == "armed" and standing is not None:
            self.armed[event.guardian] = standing.spec
        if standing is not None and standing.spec.bounded:
            self.armed_by[event.guardian] = standing.key
        if event.subtype != "fired":
            return
        if event.guardian in self.armed_by and event.action in ("flatten", "cancel_orders"):
            key = self.armed_by[event.guardian]
            coins = [pages.trade_of(account, made).coin for made in event.trades]
            demand(all(self.may_trade(key, coin) for coin in coins), "closed what its key may not trade", event)
        before = self.fired.setdefault(event.guardian, [])
        kind = event.guardian_type
        if kind in ("dead_man_switch", "max_hold", "trailing_stop"):
            demand(not before, "fired twice", event)
        elif kind == "account_drawdown":
            demand(all(at // s.DAY_MS != event.ts // s.DAY_MS for at in before), "two drawdowns a day", event)
            demand(event.blocks_opens, "a drawdown that does not block", event)
        elif kind == "schedule" and (spec := self.armed.get(event.guardian)) is not None:
            minute = event.ts // 60_000 * 60_000
            demand(minute not in [at // 60_000 * 60_000 for at in before], "two runs in a minute", event)
            demand(cron.next_run(cron.parse(spec.cron or ""), minute) == minute, "a run outside its cron", event)
        elif kind == "kill_switch":
            demand(event.blocks_opens, "a kill that does not block", event)
        demand((event.reason == "skipped") == (event.code is not None), "a skipped run has a code", event)
        before.append(event.ts)

    def guardians(self, account: s.VenueAccount) -> None:
        """The armed guardians: a max_hold has a position, no passed floor is still armed, a latched drawdown has its
        end.
        """
        state = self.state
        value = ledger.account_value(state, account)
        # A due drawdown acts before the next price and checks the floors below its own.
        is_due = any(one.deadline_ms is not None for one in drawdown_floors.armed(account))
        for guardian in account.guardians.values():
            kind = guardian.spec.type
            position = account.positions.get(guardian.spec.coin or "")
            if kind == "max_hold":
                assert position is not None, guardian
                wanted = position.opened_ms + (guardian.spec.seconds or 0) * 1000
                demand(guardian.deadline_ms == wanted, "the end of a max_hold", guardian, wanted)
            elif kind == "account_drawdown":
                demand(state.next_day_ms != 0, "nobody looks at the day", guardian)
                demand(
                    (guardian.status == "latched") == guardian.blocks_opens, "a drawdown blocks while latched", guardian
                )
                if guardian.status == "armed" and account.day_value > 0 and not drawdown_floors.is_rolling(state):
                    demand(
                        is_due or value > drawdown_floors.floor_of(account, guardian),
                        "below the floor",
                        guardian,
                        value,
                    )
            demand(guardian.status == "armed" or guardian.blocks_opens, "latched without a block", guardian)

    def blocks(self, command: c.Command, kind: type, answer: Any) -> None:
        """While a guardian blocks, no order opens. Then stores which accounts are blocked."""
        state = self.state
        if kind in (c.PlaceOrder, c.ConfirmPlan) and not isinstance(answer, Refusal):
            opens = answer.trade.intent == "open"
            demand(
                not (opens and (command.account, answer.trade.coin) in self.blocked), "opened through a block", command
            )
        self.blocked = {
            (account.id, coin)
            for account in state.accounts.values()
            for one in account.guardians.values()
            if one.blocks_opens
            for coin in state.markets
            if one.spec.type in ("account_drawdown", "kill_switch")
            or not one.spec.bounded
            or self.may_trade(one.key, coin)
        }

    def may_trade(self, key_id: str | None, coin: str) -> bool:
        """Whether this key may close in the market."""
        if key_id is None:
            return True
        key = self.state.keys[key_id]
        wanted = {"outcomes"} if self.state.markets[coin].spec.book == "events" else {"trade", "trade:close_only"}
        return bool(wanted & set(key.scopes)) and (key.allowed_coins is None or coin in key.allowed_coins)

    def trade(self, account_id: str, trade_id: str) -> None:
        account = self.state.accounts[account_id]
        trade = pages.trade_of(account, trade_id)
        sums = self.books[account_id].trades[trade_id]
        demand([trade.filled, trade.fee, trade.realized] == sums, "a trade is the sum of its fills", trade, sums)
        demand(trade.filled <= trade.size, "filled beyond its size", trade)

    def levels(self) -> None:
        state = self.state
        shelves = {coin: Shelf(market) for coin, market in state.markets.items()}
        for account in state.accounts.values():
            for order in account.orders.values():
                waits = (account.id, order.number) in state.markets[order.coin].pending
                if order.status == "armed" or (order.status == "open" and order.kind == "limit" and not waits):
                    index.watch_order(shelves[order.coin], order)  # type: ignore[arg-type]
            for guardian in account.guardians.values():
                if guardian.side:
                    index.watch_trail(shelves[guardian.spec.coin or ""], guardian)  # type: ignore[arg-type]
                elif guardian.deadline_ms is not None:
                    demand(
                        any(
                            d[2] == guardian.number and d[4] == account.id and d[0] <= (guardian.deadline_ms or 0)
                            for d in state.deadlines
                        ),
                        "a deadline is watched",
                        guardian,
                    )
            for position in account.positions.values():
                level, position.liquidation_level = position.liquidation_level, None
                index.move_watch(shelves[position.coin], position, level)  # type: ignore[arg-type]
                position.liquidation_level = level
                level, position.floor_level = position.floor_level, None
                index.move_floor(shelves[position.coin], position, level)  # type: ignore[arg-type]
                position.floor_level = level
        for coin, market in state.markets.items():
            demand(market.falling == shelves[coin].falling, "falling", market.falling, shelves[coin].falling)
            demand(market.rising == shelves[coin].rising, "rising", market.rising, shelves[coin].rising)
            bid, ask = book.level_px(market, market.mid, -1, 0), book.level_px(market, market.mid, 1, 0)
            demand(bid <= market.mid <= ask, "book crossed", coin, bid, ask)

    def margin(self, market: s.VenueMarket, opened: set[tuple[str, str]]) -> None:
        """After a price no account in this market is below maintenance, except while a liquidation rests or by
        entries at this price.
        """
        for account_id in market.holders:
            account = self.state.accounts[account_id]
            position = account.positions[market.spec.coin]
            kin = [position] if position.isolated else [p for p in account.positions.values() if not p.isolated]
            if any((account_id, p.coin) in opened or p.liquidation_cooldown_ms > self.state.now_ms for p in kin):
                continue
            equity, need = liquidation.standing(self.state, account, position)
            # Levels are truncated to 1e-8 of a price: one such unit of each position may be missing.
            unit = sum(2 + p.size // E8 for p in kin)
            demand(equity + unit >= need, "below maintenance", account_id, market.spec.coin, equity, need)

    def protection(self, command: c.Command, kind: type, answer: Any, events: list[Event]) -> None:
        """An order with requireProtection never leaves a position without a stop, an active trailing stop, or a
        working exit.
        """
        state = self.state
        if kind in (c.PlaceOrder, c.ConfirmPlan) and not isinstance(answer, Refusal):
            order = command.order if kind is c.PlaceOrder else state.plans[command.token].order
            if order.require_protection:
                self.careful.add(answer.trade.id)
            # Its bracket replaces the old one.
            elif order.stop is None and order.target is not None:
                self.demanded.pop((command.account, order.coin), None)
        for event in events:
            if type(event) is FillEvent and event.subtype == "entry":
                self.added[event.account, event.coin] += event.size
                if event.trade in self.careful:
                    self.demanded[event.account, event.coin] = event.trade
                    self.added[event.account, event.coin] = 0
            elif (type(event) is FillEvent and event.position_size == 0) or (
                type(event) is OrderChanged and event.reason in ("user", "replaced")
            ):
                self.demanded.pop((event.account, event.coin), None)
        if kind is c.DisarmGuardian:
            for at in [at for at in self.demanded if at[0] == command.account]:
                del self.demanded[at]
        for account_id, coin in list(self.demanded):
            account = state.accounts[account_id]
            position = account.positions.get(coin)
            if position is None:
                del self.demanded[account_id, coin]
                continue
            protected = (
                position.stop_oid is not None
                or any(g.side and g.active and g.spec.coin == coin for g in account.guardians.values())
                or any(o.coin == coin and o.status == "working" and o.kind == "close" for o in account.orders.values())
            )
            if not protected and position.size <= self.added[account_id, coin]:
                del self.demanded[account_id, coin]
                continue
            demand(protected, "requireProtection", position)

    def end(self) -> None:
        for account in self.state.accounts.values():
            for trade in account.trades:
                if trade.filled:
                    self.trade(account.id, trade.id)
        for market in self.state.markets.values():
            bids, asks = book.book(market)
            demand(not bids or not asks or bids[0][0] <= asks[0][0], "book crossed", market.spec.coin)
