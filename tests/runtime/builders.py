"""A kernel of its own: a FaultyPort, a journal file, a scripted strategy. Builders only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from bot.errors import ApiError
from bot.model.events import Event as ModelEvent
from bot.money import E8, parse_e8
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_journal
from bot.runtime.kernel.kernel import Hooks, Kernel
from bot.runtime.model.intents import Intent as JournalIntent
from bot.runtime.model.limits import StrategyLimits
from bot.runtime.model.positions import AccountOrder, AccountPosition
from bot.runtime.model.shares import Share
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import DEAD_MAN, WantedGuardian, counted
from bot.runtime.strategy_host.host import StrategySpec
from bot.strategy import Bar, Bracket, Close, Intent, Open, Strategy, View
from bot.wire import CancelResult, Event, GuardianRequest
from bot.wire.events import model_event
from tests.fakes import FakePacer, Tap, Tapped
from tests.faulty_port import ADDRESS, Fault, FaultyPort

Script = Callable[[View, Bar], Iterable[Intent]]

DEAD_MAN_60 = WantedGuardian(DEAD_MAN, GuardianRequest(type="dead_man_switch", heartbeat_seconds=60, on_miss="flatten"))


class Scripted(Strategy):
    """Wants what its script says; counts its bars and fills in the durable state."""

    def __init__(self, script: Script, *, name: str = "trend", markets: Sequence[str] = ("BTC",)) -> None:
        super().__init__(name=name, markets=markets)
        self.script = script
        self.seen: list[int] = []

    def on_bar(self, view: View, bar: Bar) -> Iterable[Intent]:
        self.seen.append(bar.at_ms)
        view.state["bars"] = view.state.get("bars", 0) + 1
        return self.script(view, bar)

    def on_fill(self, view: View, fill: Any) -> Iterable[Intent]:
        view.state["fills"] = view.state.get("fills", 0) + 1
        return ()


def limits(name: str = "trend", markets: Sequence[str] = ("BTC",), **more: Any) -> StrategyLimits:
    given = {"interval_ms": 60_000, "budget_usd": Decimal(1_000), "max_leverage": 3, **more}
    return StrategyLimits(name, frozenset(markets), **given)


def held_position(
    market: str = "BTC", *, side: str = "long", size: str = "5", entry_px: str = "100", owner: str | None = "trend"
) -> AccountPosition:
    """A position as the account state holds it."""
    return AccountPosition(market, side, parse_e8(size), parse_e8(entry_px), owner=owner)


def resting_order(
    oid: str = "1",
    kind: str = "limit",
    action: str = "open",
    *,
    market: str = "BTC",
    side: str = "long",
    size: str = "2",
    limit_px: str | None = "90",
    **more: Any,
) -> AccountOrder:
    """An order of ours as the account state holds it, with nothing filled."""
    px = None if limit_px is None else parse_e8(limit_px)
    return AccountOrder(oid, market, kind, side, action, parse_e8(size), 0, px, None, None, "KEY", **more)


def share_of(market: str, strategy: str, *, side: str = "long", size: str, cost_usd: str) -> Share:
    """A strategy's part of a position."""
    return Share(market, strategy, side, parse_e8(size), parse_e8(cost_usd) * E8)


def folded_form(event: Event) -> ModelEvent:
    """An event of the wire as the daemon folds it."""
    happened = model_event(event)
    assert happened is not None, event
    return happened


def make_kernel(
    venue: FaultyPort,
    script: Script = lambda _view, _bar: (),
    *,
    path: Path | None = None,
    tap: Tap | None = None,
    markets: Sequence[str] = ("BTC",),
    settings: KernelSettings | None = None,
    strategies: Sequence[Strategy] | None = None,
    pacer: FakePacer | None = None,
    new_serial: Callable[[int], int] = counted,
    **more: Any,
) -> Kernel:
    """A loop over the venue and the journal at `path` (None: in memory), not recovered yet."""
    journal: Any = open_journal(path, address=ADDRESS)
    port: Any = venue
    if tap is not None:
        journal, port = Tapped(journal, tap, only=WRITES), Tapped(venue, tap)
    strategies = strategies if strategies is not None else [Scripted(script, markets=markets)]
    specs = [StrategySpec(one, "1m", limits(one.name, one.markets, **more)) for one in strategies]
    settings = settings if settings is not None else KernelSettings(guardians=(DEAD_MAN_60,))
    return Kernel(
        port=port,
        journal=journal,
        specs=specs,
        pacer=pacer or FakePacer(),
        settings=settings,
        hooks=Hooks(new_serial=new_serial),
    )


def always(view: View, bar: Bar) -> Iterable[Intent]:
    """Long 200 USD as soon as it is flat, closed at 101."""
    if view.position(bar.market) is None and bar.close != 101:
        yield Open(bar.market, "long", usd=200, bracket=Bracket(stop_pct=5))
    elif bar.close == 101:
        yield Close(bar.market)


async def begun(venue: FaultyPort, script: Script = always, *, faults: Iterable[Fault] = (), **more: Any) -> Kernel:
    """A loop over the venue, at a BTC of 100, that has decided on its first bar; `faults` begin with that pass."""
    venue.minute(BTC="100")
    kernel = make_kernel(venue, script, **more)
    await kernel.recover()
    venue.faults += faults
    await kernel.cycle()
    return kernel


async def first_bar(script: Script = lambda _view, _bar: ()) -> tuple[FaultyPort, Kernel]:
    venue = FaultyPort()
    return venue, await begun(venue, script)


WRITES = (
    "decided",
    "open",
    "planned",
    "sending",
    "sending_all",
    "attempt_ended",
    "accept",
    "accept_all",
    "end",
    "take",
    "restart_cursor",
    "bar_done",
    "flush",
    "write_arm",
    "refused",
    "trim",
)


async def minutes(kernel: Kernel, venue: FaultyPort, *closes: str, coin: str = "BTC") -> None:
    """One bar and one pass for each close."""
    for close in closes:
        venue.minute(**{coin: close})
        await kernel.cycle()
        await replied(kernel)


async def replied(kernel: Kernel) -> None:
    """The passes that the replies in flight ask for, until there is none in flight."""
    while kernel.intents.in_flight:
        await kernel.intents.in_flight.wait()
        await kernel.cycle()


def later(kernel: Kernel, ms: int) -> None:
    assert isinstance(kernel.budget.pacer, FakePacer)
    kernel.budget.pacer.now_ms += ms


def kill(kernel: Kernel) -> None:
    """The process is gone: nothing is flushed, the file is left as it is."""
    journal: Journal = getattr(kernel.journal, "_inner", kernel.journal)
    journal.db.close()


def intent(n: int = 0, **more: Any) -> JournalIntent:
    given: dict[str, Any] = {
        "id": f"KEY{n}",
        "strategy": "trend",
        "market": "BTC",
        "action": "open",
        "path": "plan",
        "trigger": f"bar:BTC:{n}",
        "ordinal": 0,
        "leg": "order",
        "epoch": 0,
        "body": b'{"market":"BTC"}',
        "not_after_ms": 100,
        "opened_ms": 1,
        **more,
    }
    return JournalIntent(**given)


def event(n: int, type_: str = "funding", subtype: str = "payment", **data: Any) -> Event:
    data = data or {"side": "long", "size": "1", "oraclePx": "1", "rate": "0", "amountUsd": "0", "balanceUsd": "1"}
    return Event(id=f"evt_{n:010d}", type=type_, subtype=subtype, ts=n, coin="BTC", data=data)


def in_state(journal: Journal, state: str, n: int = 0) -> JournalIntent:
    one = intent(n)
    assert journal.open(one)
    if state == "planned":
        return journal.intents.planned(one, "token-1", 50, now_ms=2)
    if state == "sending":
        return journal.intents.sending(one, now_ms=2)
    if state == "quarantined":
        return journal.intents.end(journal.intents.sending(one, now_ms=2), "quarantined", "x", "y", now_ms=3)
    if state == "accepted":
        return journal.intents.accept(one, "trd_1", now_ms=3)
    return one if state == "opened" else journal.intents.end(one, state, "x", "y", now_ms=3)


AWAY = ApiError.of("service_unavailable", "away", retryable=True, order_submitted=False)


def refusals(kernel: Kernel) -> list[str]:
    kernel.journal.flush()
    return [row["code"] for row in kernel.journal.db["refusals"].rows]


STOP = Bracket(stop_pct=2, target_r=2)


def once(view: View, bar: Bar) -> Iterable[Intent]:
    if not view.state.get("done") and view.position(bar.market) is None:
        view.state["done"] = True
        yield Open(bar.market, "long", usd=500, bracket=STOP)


class SlowCancels(FaultyPort):
    """Takes half a second of real time for each cancel, and accepts `free_requests` of them."""

    def __init__(self, coins: Sequence[str] = ("BTC", "ETH")) -> None:
        super().__init__(coins)
        self.pacer = FakePacer()
        self.asked: list[str] = []
        self.free_requests = 1_000

    async def cancel(self, oid: str) -> CancelResult:
        if not self.free_requests:
            raise ApiError.of("rate_limited", "no request left", order_submitted=False, retryable=True)
        self.free_requests -= 1
        self.pacer.now_ms += 500
        self.asked.append(oid)
        return await super().cancel(oid)


async def opened(venue: FaultyPort, **more: Any) -> Kernel:
    """A loop that holds one protected BTC position."""
    venue.minute(BTC="100")
    kernel = make_kernel(venue, once, **more)
    await kernel.recover()
    await kernel.cycle()
    assert kernel.account.account_state.is_protected("BTC")
    return kernel


def stop_of(venue: FaultyPort) -> str:
    return next(o.oid for o in venue.working.values() if o.kind == "stop_loss")


def trailing(venue: FaultyPort) -> list[tuple[str | None, float | None]]:
    return [(g.coin, g.trail_pct) for g in venue.guards.values() if g.type == "trailing_stop"]


def grown(venue: FaultyPort, coin: str, size: str, px: int) -> Callable[[], None]:
    """A person buys so much more, when the price has come to `px`."""

    def grows() -> None:
        venue.move(coin, px)
        venue.by_hand(coin, "long", size, source=None)

    return grows
