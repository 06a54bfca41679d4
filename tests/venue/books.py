"""Independent accounting: one account's money, positions and armed brackets, computed only from its events and the
markets' rates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bot.model.events import AccountChanged, Event, FillEvent, FundingPaid, Liquidated, OrderChanged, Settled, Triggered
from bot.venue.model import state as s
from bot.venue.model.numbers import E8, E12
from bot.venue.storage import pages


class Broken(AssertionError):
    """An invariant does not hold. The first word names it."""


def demand(holds: bool, name: str, *what: object) -> None:
    if not holds:
        raise Broken(f"{name}: " + " ".join(map(str, what)))


@dataclass(slots=True)
class Held:
    """A position according to the events."""

    side: int
    isolated: bool
    leverage: int
    size: int = 0
    notional: int = 0
    margin: int = 0
    funding: int = 0


@dataclass(slots=True)
class Books:
    """One account's money, computed only from its events and the markets' specifications."""

    specs: dict[str, s.MarketSpec]
    start: int = 0
    balance: int = 0
    seq: int = 0
    ts: int = 0
    held: dict[str, Held] = field(default_factory=dict)
    realized: int = 0
    fees: int = 0
    funding: int = 0
    lost: int = 0
    absorbed: int = 0
    trades: dict[str, list[int | None]] = field(default_factory=dict)
    # armed stop or target -> entry's trade
    children: dict[str, str] = field(default_factory=dict)
    # (coin, entry's trade) -> (kind, exit's trade) of what fired
    fired: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)
    relevered: Held | None = None

    def read(self, account: s.VenueAccount, event: Event) -> None:
        demand(event.seq == self.seq + 1, "gapless", event)
        demand(event.ts >= self.ts, "time", event)
        self.seq, self.ts = event.seq, event.ts
        kind = type(event)
        absorbed_before = self.absorbed
        if kind is FillEvent:
            self.fill(account, event)
        elif kind is OrderChanged:
            self.order(event)
        elif kind is Triggered:
            self.trigger(account, event)
        elif kind is FundingPaid:
            self.pay(event)
        elif kind is Settled:
            self.settle(event)
        elif kind is Liquidated:
            if event.subtype == "backstop":
                self.backstop(event)
        elif kind is AccountChanged:
            self.change(event)
        if kind is FillEvent or kind is Settled or (kind is Liquidated and event.subtype == "backstop"):
            demand(event.absorbed == self.absorbed - absorbed_before, "absorbed", event)

    def change(self, event: AccountChanged) -> None:
        if event.subtype in ("created", "reset"):
            assert event.balance is not None
            self.start = self.balance = event.balance
            self.realized = self.fees = self.funding = self.lost = self.absorbed = 0
            for kept in (self.held, self.trades, self.children, self.fired):
                kept.clear()
            self.relevered = None
        elif event.subtype == "leverage":
            assert event.coin is not None
            held = self.held[event.coin]
            demand(held.leverage == event.leverage_from, "leverage", event)
            held.leverage = event.leverage_to or 0
            if held.isolated:
                self.relevered = held

    def relever(self, balance: int) -> None:
        """A change of leverage moved money between the balance and an isolated margin; the next balance shows the
        amount.
        """
        if self.relevered is not None:
            self.relevered.margin += self.balance - balance
            self.balance = balance
            demand(self.relevered.margin >= 0, "isolated margin below zero after a change of leverage")
            self.relevered = None

    def fill(self, account: s.VenueAccount, event: FillEvent) -> None:
        spec = self.specs[event.coin]
        notional = event.px * event.size // E8
        full = spec.margin_mode == "full"
        charged = notional * (E8 - event.px) // E8 if full else notional
        rate = spec.maker_rate if event.liquidity == "maker" else spec.taker_rate
        # A rebate is cut too.
        fee = abs(charged * rate) // E8 // 100 * 100 * (-1 if rate < 0 else 1)
        demand(event.size > 0 and event.fee == fee, "fee", event)
        side = 1 if event.side == "long" else -1
        held = self.held.get(event.coin)
        realized = None
        if event.subtype == "entry":
            demand(not event.reduce_only, "reduce-only grows a position", event)
            if held is None:
                isolated = spec.margin_mode != "cross"
                held = self.held[event.coin] = Held(side, isolated, pages.trade_of(account, event.trade).leverage)
            demand(held.side == side, "entry against the position", event)
            held.size += event.size
            held.notional += notional
            # A filled target was as large as the position at that time; size that an entry adds later belongs to its
            # stop.
            for (coin, _), exits in self.fired.items():
                if coin == event.coin:
                    exits[:] = [(kind, made) for kind, made in exits if kind == "stop_loss"]
            if full:
                moved = notional if side > 0 else event.size - notional
                self.balance -= moved + fee
                held.margin += moved
            elif held.isolated:
                moved = -(-notional // held.leverage)
                self.relever(event.balance + moved)
                self.balance -= moved
                held.margin += moved - fee
            else:
                self.balance -= fee
        else:
            assert held is not None, event
            demand(held.side == side and event.size <= held.size, "exit larger than the position", event)
            part = held.notional if event.size == held.size else held.notional * event.size // held.size
            realized = side * (notional - part)
            # The price of the sold shares; the cost of the rest is unchanged.
            if full:
                self.balance += (notional if side > 0 else event.size - notional) - fee
                rest, size = held.notional - part, held.size - event.size
                held.margin = rest if side > 0 else size - rest
            else:
                self.leave(held, event.size, realized - fee)
            held.notional -= part
            held.size -= event.size
            self.realized += realized
            self.went(event.coin, held)
        demand(event.realized == realized, "realised", event)
        self.fees += fee
        demand(event.position_size == held.size, "position size", event)
        demand(event.balance == self.balance, "balance after a fill", event, self.balance)
        sums = self.trades.setdefault(event.trade, [0, 0, None])
        sums[0] += event.size
        sums[1] += fee
        if realized is not None:
            sums[2] = (sums[2] or 0) + realized

    def leave(self, held: Held, size: int, gain: int) -> None:
        """An isolated position can lose at most its margin."""
        if not held.isolated:
            self.balance += gain
            return
        left = held.margin + gain
        if left < 0:
            self.absorbed -= left
            left = 0
        stays = min(left, held.margin * (held.size - size) // held.size)
        self.balance += left - stays
        held.margin = stays

    def went(self, coin: str, held: Held) -> None:
        if held.size == 0:
            del self.held[coin]
            for at in [at for at in self.fired if at[0] == coin]:
                del self.fired[at]
            if self.balance < 0 and all(h.isolated for h in self.held.values()):
                self.absorbed -= self.balance
                self.balance = 0

    def pay(self, event: FundingPaid) -> None:
        held = self.held[event.coin]
        owed = abs(held.size * event.oracle * event.rate) // (E8 * E12)
        amount = -held.side * (owed if event.rate >= 0 else -owed)
        self.relever(event.balance if held.isolated else event.balance - amount)
        if held.isolated:
            amount = max(amount, -held.margin)
        demand(event.amount == amount and event.size == held.size, "funding", event, amount)
        if held.isolated:
            held.margin += amount
        else:
            self.balance += amount
        held.funding += amount
        self.funding += amount
        demand(event.balance == self.balance, "balance after funding", event, self.balance)

    def backstop(self, event: Liquidated) -> None:
        held = self.held.pop(event.coin)
        realized = held.side * (event.px * held.size // E8 - held.notional)
        lost = 0
        if held.isolated:
            left = held.margin + realized
            lost = max(0, left)
            self.absorbed += max(0, -left)
        else:
            self.balance += realized
            if all(h.isolated for h in self.held.values()):
                lost = max(0, self.balance)
                self.absorbed += max(0, -self.balance)
                self.balance = 0
        self.realized += realized
        self.lost += lost
        demand(event.realized == realized and event.margin_lost == lost and event.size == held.size, "backstop", event)
        demand(event.balance == self.balance, "balance after a backstop", event, self.balance)
        self.trades[event.trade] = [held.size, 0, realized]

    def settle(self, event: Settled) -> None:
        """A Yes share pays the outcome; a No share pays one minus the outcome."""
        held = self.held[event.coin]
        demand(event.size == held.size and event.fee == 0, "settlement", event)
        paid = event.outcome_px * held.size // E8
        payout = paid if held.side > 0 else held.size - paid
        realized = payout - held.margin
        self.balance += payout
        self.realized += realized
        held.size = 0
        self.went(event.coin, held)
        demand(event.payout == payout and event.realized == realized, "settlement", event, payout, realized)
        demand(event.balance == self.balance, "balance after a settlement", event, self.balance)
        self.trades[event.trade] = [event.size, 0, realized]

    def order(self, event: OrderChanged) -> None:
        if event.subtype == "armed":
            assert event.trade is not None
            self.children[event.oid] = event.trade
        elif event.subtype == "canceled":
            self.children.pop(event.oid, None)

    def trigger(self, account: s.VenueAccount, event: Triggered) -> None:
        demand(event.oid in self.children, "a trigger that was not armed", event)
        entry = self.children.pop(event.oid)
        for kind, exit_trade in self.fired.setdefault((event.coin, entry), []):
            earlier = pages.trade_of(account, exit_trade)
            demand(kind != "stop_loss" and earlier.filled < earlier.size, "both siblings filled", event)
        self.fired[event.coin, entry].append((event.subtype, event.trade))
