"""Random orders of events around the protection of a position, driven through the real state, against a small exchange.

The exchange performs actions late, loses and repeats answers, fills entries in parts, fires stops in parts, and reports
fills in their order but everything else in any order. Somebody trades by hand beside us.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bot.model.events import GuardianMoved
from bot.venue.exchange.action_lifecycle import PATIENCE_MS
from bot.venue.model import commands as c
from bot.venue.model.numbers import E8
from bot.venue.model.record import changed_actions
from bot.venue.model.state import (
    GuardianSpec,
    LegSpec,
    OrderSpec,
    ReportedExecution,
    ReportedOrder,
    VenueAction,
    guardian_id,
)
from bot.venue.orders import exchange_actions, exchange_levels, protection_orders
from bot.venue.orders.exchange_actions import ActionsSent
from bot.venue.protection import protection
from tests.venue.exchange_worlds import NAME, Follower, adopt

AGENT = "0x" + "b2" * 20
LOT = E8 // 100
# more than any session needs
ACTIONS_MAX = 150
STOP_PX, TARGET_PX, PX = 95_000 * E8, 110_000 * E8, 100_000 * E8
TRAIL = GuardianSpec("trailing_stop", trail_pct=2 * E8)


@dataclass
class There:
    """An order at the exchange. `left`: of an entry; `size` 0: of the whole position."""

    name: str
    kind: str
    size: int
    order_id: str
    px: int = 0
    left: int = 0
    is_live: bool = True
    children: tuple[str, ...] = ()


@dataclass
class SmallExchange:
    """Positions, orders and performed nonces, with the reports that are on their way."""

    random: Random
    position: int = 0
    # its price, which the venue sees before or after it
    px: int = PX
    orders: dict[str, There] = field(default_factory=dict)
    answers: dict[int, c.SeeAction] = field(default_factory=dict)
    fills: list[ReportedExecution] = field(default_factory=list)
    ends: list[c.EndReportedOrder] = field(default_factory=list)
    entries: Counter[str] = field(default_factory=Counter)
    count: int = 0
    # switches of the exchange
    places_children_of_part: bool = False
    replaces: bool = False
    keeps_alone: bool = False

    def number(self) -> int:
        self.count += 1
        return self.count

    def stops(self) -> list[There]:
        return [order for order in self.orders.values() if order.kind == "stop_loss" and order.is_live]

    def nearest_stop(self) -> int:
        return max((order.px for order in self.stops()), default=0)

    def fill(self, at_ms: int, name: str | None, order_id: str, buy: int, size: int) -> None:
        number = self.number()
        self.fills.append(
            ReportedExecution("BTC", at_ms, number, order_id, name, buy, size, PX, 0, self.position, maker=False)
        )
        self.position += buy * size
        if not self.position:
            for order in list(self.orders.values()):
                if order.is_live and order.kind in exchange_levels.KINDS and not (self.keeps_alone and not order.size):
                    self.end(order, "reduce_only", at_ms)

    def end(self, order: There, reason: str | None, at_ms: int) -> None:
        del self.orders[order.name]
        self.ends.append(c.EndReportedOrder(NAME, order.order_id, at_ms, reason, order.name))
        for child in (self.orders[name] for name in order.children if name in self.orders):
            if not child.is_live and (order.left == 0 or (self.places_children_of_part and reason is None)):
                child.is_live = True
            elif not child.is_live:
                self.end(child, "user", at_ms)

    # ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def perform(self, follower: Follower, action: VenueAction, at_ms: int) -> None:
        """Perform an action once, and keep its answer."""
        if action.nonce in self.answers or at_ms > action.expires_ms:
            return
        answer = c.SeeAction(NAME, action.nonce, "placed", False, at_ms)
        kind: Any = getattr(self, f"_{action.kind}")
        self.answers[action.nonce] = kind(follower, action, answer, at_ms)

    def _leverage(self, follower: Follower, action: VenueAction, answer: c.SeeAction, at_ms: int) -> c.SeeAction:
        return answer

    def _cancel(self, follower: Follower, action: VenueAction, answer: c.SeeAction, at_ms: int) -> c.SeeAction:
        names = action.protections or tuple(o.name for o in self.orders.values() if o.order_id in action.cancels)
        there = [self.orders[name] for name in names if name in self.orders]
        if not there:
            return _refused(answer, "not_found")
        for order in there:
            self.end(order, "user", at_ms)
        if action.protections:
            answer.protections = tuple((name, "ended") for name in names)
        else:
            answer.canceled = action.cancels
        return answer

    def _protect(self, follower: Follower, action: VenueAction, answer: c.SeeAction, at_ms: int) -> c.SeeAction:
        (name,) = action.protections
        if (not self.position and not self.keeps_alone) or self.random.random() < 0.1:
            return _refused(answer, "trade_failed")
        kind, px = follower_orders(follower)[name].kind, follower_orders(follower)[name].px
        if (self.px <= px) if kind == "stop_loss" else (self.px >= px):
            return _refused(answer, protection_orders.PASSED)
        if self.replaces:
            for order in [o for o in self.orders.values() if o.kind == kind and not o.size]:
                self.end(order, "user", at_ms)
        self.orders[name] = There(name, kind, 0, str(self.number()), px)
        answer.protections = ((name, "there"),)
        return answer

    def _place(self, follower: Follower, action: VenueAction, answer: c.SeeAction, at_ms: int) -> c.SeeAction:
        order, name = follower.account.orders[action.oid or 0], action.client_order_id or ""
        self.entries[order.trade or ""] += not order.reduce_only
        order_id, size = str(self.number()), action.size
        if order.reduce_only:
            size = min(size, abs(self.position)) if self.position * order.buy < 0 else 0
        filled = self.random.choice((0, size // 2 // LOT * LOT, size, size))
        if order.kind != "limit" and not filled:
            return _refused(answer, "insufficient_depth")
        answer.filled, answer.order_id = filled, order_id
        children = []
        for child in action.protections:
            told = follower_orders(follower)[child]
            self.orders[child] = There(child, told.kind, action.size, str(self.number()), told.px, is_live=False)
            children.append((child, "there"))
        answer.protections = tuple(children)
        there = There(name, "limit", action.size, order_id, left=action.size, children=action.protections)
        self.orders[name] = there
        self._fill_entry(there, order.buy, filled, at_ms)
        if order.kind != "limit" and there.left:
            self.end(there, None, at_ms)
        return answer

    def _fill_entry(self, there: There, buy: int, size: int, at_ms: int) -> None:
        """Fill it in one or two reports."""
        parts = (size // 2 // LOT * LOT, size - size // 2 // LOT * LOT)
        there.left -= size
        if not there.left:
            self.end(there, None, at_ms)
        for part in parts if self.random.random() < 0.5 else (size,):
            if part:
                self.fill(at_ms, there.name, there.order_id, buy, part)

    # ── What happens by itself ──────────────────────────────────────────────────────────────────────────────────────

    def fill_resting(self, at_ms: int) -> None:
        for there in [order for order in self.orders.values() if order.kind == "limit"]:
            self._fill_entry(there, 1, self.random.choice((there.left, there.left // 2 // LOT * LOT)), at_ms)
            return

    def fire(self, at_ms: int) -> None:
        """A stop or target fires, whole or in part."""
        live = [o for o in self.orders.values() if o.is_live and o.kind in exchange_levels.KINDS]
        if not live or self.position <= 0:
            return
        self._fire(self.random.choice(live), at_ms)

    def move(self, px: int, at_ms: int) -> None:
        """A new price, which fires what it passes."""
        self.px = px
        for order in [o for o in self.stops() if o.px >= px]:
            if self.position > 0 and order.name in self.orders:
                self._fire(order, at_ms)

    def _fire(self, order: There, at_ms: int) -> None:
        size = min(order.size or self.position, self.position)
        part = self.random.choice((size, size, max(LOT, size // 2 // LOT * LOT)))
        self.end(order, None, at_ms)
        self.fill(at_ms, order.name, order.order_id, -1, part)

    def trade_by_hand(self, at_ms: int) -> None:
        if self.position > 0:
            size = self.random.choice((self.position, LOT))
            self.fill(at_ms, None, str(self.number()), self.random.choice((-1, -1, 1)), min(size, self.position))


def _refused(answer: c.SeeAction, code: str) -> c.SeeAction:
    answer.status, answer.is_final, answer.code = "refused", True, code
    return answer


def follower_orders(follower: Follower) -> Any:
    return exchange_actions.known(follower.account).protection_orders


class World:
    """One random session."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed}:protection")
        choice = self.random.choice
        self.exchange = SmallExchange(
            self.random,
            places_children_of_part=choice((False, True)),
            replaces=choice((False, True)),
            keeps_alone=choice((False, True)),
        )
        self.follower = Follower()
        self.follower.take(adopt(50_000 * E8), c.SeeLink(NAME, "in_step"), c.SeeAgent(NAME, AGENT, 0))
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.requests = 0
        # how often each guardian has fired
        self.fires: Counter[str] = Counter()
        # The wanted level when each action was asked for; 0 before a position. None: none was wanted then or since.
        self.wanted_px: dict[int, int | None] = {}

    # ── Steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, steps: int = 60) -> World:
        weights = {"wait": 6, "enter": 2, "perform": 8, "answer": 6, "fill": 6, "end": 4, "list": 2}
        weights |= {"resting": 2, "fire": 1, "hand": 1, "close": 1, "cancel": 1, "reach": 1}
        weights |= {"arm": 2, "disarm": 1, "move": 3}
        for _ in range(steps):
            getattr(self, f"_{self.random.choices(list(weights), list(weights.values()))[0]}")()
            self._check()
        self._quiet()
        return self

    def take(self, command: c.Command) -> Any:
        before = self._step_px()
        (applied,) = self.follower.take(command)
        level = exchange_levels.wanted(self.follower.account, "BTC", "stop_loss")
        is_held = "BTC" in self.follower.account.positions
        for action in self._undecided():
            px = self.wanted_px.setdefault(action.nonce, 0 if level is None else level.exact_px)
            self.wanted_px[action.nonce] = None if is_held and level is None else px
        self._check_trails(applied.events, before)
        changed_actions(self.follower.state)
        asked = exchange_actions.known(self.follower.account).actions
        assert len(asked) < ACTIONS_MAX, "it asks without an end"
        return applied.answer

    def _wait(self) -> None:
        self.follower.now_ms += self.random.choice((50, 300, 1_000, 3_000, 8_000))
        self.take(c.Pulse())

    def _enter(self) -> None:
        self.requests += 1
        is_limit = self.random.random() < 0.4
        spec = OrderSpec(
            "BTC",
            1,
            size=self.random.choice((4, 10)) * LOT,
            leverage=self.random.choice((5, 10)),
            acknowledge_leverage_change=True,
            type="limit" if is_limit else "market",
            limit_px=99_000 * E8 if is_limit else None,
            stop=LegSpec(px=self.random.choice((STOP_PX, 96_000 * E8))) if self.random.random() < 0.7 else None,
            target=LegSpec(px=TARGET_PX) if self.random.random() < 0.7 else None,
            guardians=self.random.choice(((), (TRAIL,))),
            require_protection=True,
        )
        answer = self.take(c.PlaceOrder(NAME, spec, idempotency_key=f"k{self.requests}"))
        self.seen["sent" if isinstance(answer, ActionsSent) else "refused"] += 1

    def _undecided(self) -> list[VenueAction]:
        return exchange_actions.undecided(exchange_actions.known(self.follower.account))

    def _perform(self) -> None:
        if open_now := [action for action in self._undecided() if action.nonce not in self.exchange.answers]:
            self._do(self.random.choice(open_now))

    def _do(self, action: VenueAction) -> None:
        held, wanted_px = self.follower.account.positions.get("BTC"), self.wanted_px[action.nonce]
        # What the last position has left goes, and what was canceled while no stop was wanted.
        is_left = held is not None and action.made_ms < held.opened_ms
        known = exchange_actions.known(self.follower.account).protection_orders
        judged = action.protections if action.kind == "cancel" and wanted_px is not None else ()
        cancels = [name for name in judged if not is_left or (name in known and known[name].size)]
        was_bare, nearest = self._is_bare(), self.exchange.nearest_stop()
        self.exchange.perform(self.follower, action, self.follower.now_ms)
        if cancels and self._is_bare() and not was_bare:
            self.faults["a cancel of ours took the last stop"] += 1
        level = exchange_levels.wanted(self.follower.account, "BTC", "stop_loss")
        if not cancels or wanted_px is None or level is None or not self.exchange.position or self.exchange.fills:
            return
        if not self._is_leaving() and self.exchange.nearest_stop() < min(nearest, level.px, wanted_px):
            self.faults["a cancel of ours loosened the stop"] += 1

    def _is_leaving(self) -> bool:
        """True while a level that was reached, at the exchange or here, closes the position."""
        return protection_orders.phase(self.follower.account, "BTC", "stop_loss") == "firing"

    def _is_bare(self) -> bool:
        """True if a position whose fills are booked has no stop at the exchange, and one is wanted."""
        level = exchange_levels.wanted(self.follower.account, "BTC", "stop_loss")
        is_wanted = level is not None and not self.exchange.fills and not self._is_leaving()
        return is_wanted and self.exchange.position > 0 and not self.exchange.stops()

    def _answer(self) -> None:
        waiting = [action for action in self._undecided() if action.nonce in self.exchange.answers]
        if not waiting:
            return
        action = self.random.choice(waiting)
        answer = self.exchange.answers[action.nonce]
        if self.random.random() < 0.2 and answer.status == "placed":
            # The answer was lost, and a lookup shows the order.
            answer = c.SeeAction(NAME, action.nonce, "placed", False, answer.at_ms)
        self.take(answer)
        if self.random.random() < 0.1:
            self.take(answer)

    def _fill(self) -> None:
        if self.exchange.fills:
            self.take(c.BookExecution(NAME, self.exchange.fills.pop(0)))

    def _end(self) -> None:
        if self.exchange.ends:
            ended = self.random.choice(self.exchange.ends)
            self.exchange.ends.remove(ended)
            self.take(ended)

    def _list(self) -> None:
        for order in list(self.exchange.orders.values()):
            if order.is_live:
                kind = order.kind
                px = 99_000 * E8 if kind == "limit" else order.px
                trigger = None if kind == "limit" else px
                buy, reduces = (1, False) if kind == "limit" else (-1, True)
                size = order.left or order.size
                told = ReportedOrder(order.order_id, order.name, "BTC", buy, kind, size, px, trigger, reduces, 1)
                self.take(c.SeeReportedOrder(NAME, told))

    def _resting(self) -> None:
        self.exchange.fill_resting(self.follower.now_ms)

    def _fire(self) -> None:
        self.exchange.fire(self.follower.now_ms)

    def _hand(self) -> None:
        self.exchange.trade_by_hand(self.follower.now_ms)

    def _close(self) -> None:
        fraction = self.random.choice((E8, E8 // 2))
        self.requests += 1
        self.take(c.ClosePosition(NAME, "BTC", fraction=fraction, idempotency_key=f"k{self.requests}"))

    def _cancel(self) -> None:
        if self.random.random() < 0.3:
            self.take(c.CancelCoin(NAME, "BTC"))

    def _arm(self) -> None:
        self.take(c.ArmGuardian(NAME, replace(TRAIL, coin="BTC", trail_pct=self.random.choice((1, 2, 4)) * E8)))

    def _disarm(self) -> None:
        armed = list(self.follower.account.guardians.values())
        if armed:
            self.take(c.DisarmGuardian(NAME, guardian_id(self.follower.account, self.random.choice(armed).number)))

    def _move(self) -> None:
        """A few prices, which the exchange or the venue sees first."""
        for _ in range(self.random.choice((1, 3))):
            change = self.random.choice((-300, -50, 20, 100, 400, 900))
            px = min(max(self.exchange.px + change * E8, 97_000 * E8), 108_000 * E8)
            is_first = self.random.random() < 0.5
            if is_first:
                self.exchange.move(px, self.follower.now_ms)
            self.take(c.PricePoint("BTC", px, step=0))
            if not is_first:
                self.exchange.move(px, self.follower.now_ms)

    def _reach(self) -> None:
        px = self.random.choice((94_900 * E8, 99_000 * E8, 110_100 * E8, PX))
        self.take(c.SetQuotes((("BTC", PX, PX, PX),)))
        self.take(c.PricePoint("BTC", px, step=0))
        self.take(c.PricePoint("BTC", PX, step=0))

    # ── Promises ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step_px(self) -> tuple[int | None, int]:
        """Where the stop stands for the trailing stops, and how many there are."""
        watched = exchange_actions.known(self.follower.account).protections.get("BTC")
        return None if watched is None else watched.step_px, len(exchange_levels.trails(self.follower.account, "BTC"))

    def _check_trails(self, events: list[Any], before: tuple[int | None, int]) -> None:
        fired = [event for event in events if isinstance(event, GuardianMoved) and event.subtype == "fired"]
        self.fires.update(event.guardian for event in fired)
        self.seen["trailing stops fired"] += len(fired)
        if any(count > 1 for count in self.fires.values()):
            self.faults["a guardian has fired twice"] += 1
        (old_px, old_count), (px, count) = before, self._step_px()
        if old_px is None or px is None or count < old_count:
            return
        self.seen["steps"] += px > old_px
        if px < old_px:
            asked = [o for o in exchange_levels.placed(self.follower.account, "BTC", "stop_loss") if o.px == old_px]
            if any(order.status == "there" for order in asked):
                self.faults["a step has loosened the stop"] += 1

    def _check(self) -> None:
        for coin in exchange_actions.known(self.follower.account).protections:
            for kind in exchange_levels.KINDS:
                self.seen[str(protection_orders.phase(self.follower.account, coin, kind))] += 1
        if any(count > 1 for count in self.exchange.entries.values()):
            self.faults["an entry was performed twice"] += 1

    def _quiet(self) -> None:
        """Everything arrives, and what is due is done, until nothing changes any more."""
        for _ in range(60):
            for action in self._undecided():
                if action.nonce not in self.exchange.answers:
                    if self.follower.now_ms > action.expires_ms + PATIENCE_MS:
                        self.take(c.SeeAction(NAME, action.nonce, "void", True, self.follower.now_ms))
                    else:
                        self._do(action)
                if action.nonce in self.exchange.answers and not action.over_ms:
                    self.take(self.exchange.answers[action.nonce])
            while self.exchange.fills:
                self._fill()
            while self.exchange.ends:
                self._end()
            self._list()
            self.take(c.SettleActions(NAME, self.follower.now_ms))
            self.follower.now_ms += 1_500
            self.take(c.Pulse())
        self._end_check()

    def _end_check(self) -> None:
        account, exchange = self.follower.account, self.exchange
        held = account.positions.get("BTC")
        if (0 if held is None else held.side * held.size) != exchange.position:
            self.faults["the books differ"] += 1
        for kind in exchange_levels.KINDS:
            level = exchange_levels.wanted(account, "BTC", kind)
            live = [order for order in exchange.orders.values() if order.kind == kind and order.is_live]
            is_leaving = bool(protection.working_exits(account, self.follower.state.markets["BTC"]))
            wanted = 1 if held is not None and level is not None else 0
            if len(live) < wanted or (len(live) > wanted and not is_leaving):
                self.faults[f"{len(live)} of {kind} stand, {wanted} is wanted"] += 1
            if wanted and level is not None and not is_leaving and any(order.px != level.px for order in live):
                self.faults[f"{kind} stands elsewhere"] += 1
        is_fired = held is not None and exchange_actions.known(account).protections["BTC"].fired is not None
        if is_fired and not is_leaving:
            self.faults["a trailing stop has fired and its position is open"] += 1
        if self._undecided():
            self.faults["an action is never over"] += 1


def apply_all(seeds: range) -> tuple[Counter[str], Counter[str]]:
    faults: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed).run()
        faults += world.faults
        seen += world.seen
    return faults, seen
