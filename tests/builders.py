"""What tests of the venue start from: costless markets, an account, and a venue that sends commands and remembers them.

No expectation lives here. A venue runs the same commands in one of four ways that must not differ: see `WAYS`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from unittest.mock import patch

from bot.errors import Refusal
from bot.model.events import Event
from bot.money import parse_e8
from bot.venue.apply import Applied, apply
from bot.venue.model import commands as c
from bot.venue.model.state import (
    GuardianSpec,
    LegSpec,
    MarketSpec,
    OrderSpec,
    Rules,
    State,
    VenueAccount,
    VenuePosition,
)
from bot.venue.prices import index
from bot.venue.prices.quiet_band import band_of
from bot.venue.storage import codec
from bot.venue.triggers import matching

# 2025-05-01 00:00 UTC: a full hour, so that funding is an hour away.
T0: Final = 1_746_057_600_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

# passed: bars go in whole. fed: each point of each bar is looked at, calm or not. skipped: a calm bar is only its mark,
# said before the next command. stored: after every command the state is written down and read again.
WAYS: Final = ("passed", "fed", "skipped", "stored")

e8 = parse_e8


def market(coin: str = "BTC", **over: Any) -> MarketSpec:
    """A market without fees, spread and funding, with a book that never ends."""
    plain: dict[str, Any] = {
        "coin": coin,
        "taker_rate": 0,
        "maker_rate": 0,
        "funding_rate": 0,
        "participation": 100_000_000,
        "slippage_bps": 1000,
    }
    return MarketSpec(**{**plain, **over})


def leg(text: str) -> LegSpec:
    """A stop or target as people write it: "2%", "1.5r" or a price."""
    if text.endswith("%"):
        return LegSpec(pct=e8(text[:-1]))
    if text.endswith("r"):
        return LegSpec(r=e8(text[:-1]))
    return LegSpec(px=e8(text))


def trail(text: str, *, coin: str | None = None, start: str | None = None) -> GuardianSpec:
    """A trailing stop: "2%" or "1r", and the R at which it starts."""
    amount = leg(text)
    return GuardianSpec(
        "trailing_stop", coin=coin, trail_pct=amount.pct, trail_r=amount.r, activate_at_r=e8(start) if start else None
    )


def dead_man(seconds: int = 60, on_miss: str | None = None) -> GuardianSpec:
    return GuardianSpec("dead_man_switch", heartbeat_seconds=seconds, on_miss=on_miss)


def drawdown(pct: str, action: str | None = None) -> GuardianSpec:
    return GuardianSpec("account_drawdown", max_loss_pct=e8(pct.removesuffix("%")), action=action)


def hold(seconds: int, coin: str | None = None) -> GuardianSpec:
    return GuardianSpec("max_hold", coin=coin, seconds=seconds)


def order(
    coin: str = "BTC", side: int = 1, *, stop: str | None = None, take: str | None = None, **over: Any
) -> OrderSpec:
    """An order; amounts given as text are scaled."""
    scaled = {
        name: e8(value) if isinstance(value, str) and name in ("usd", "size", "limit_px") else value
        for name, value in over.items()
    }
    if "limit_px" in scaled:
        scaled["type"] = "limit"
    return OrderSpec(coin, side, stop=leg(stop) if stop else None, target=leg(take) if take else None, **scaled)


class VenueDriver:
    """One account at one venue, a clock that a test moves, and every command that was applied."""

    def __init__(
        self, *specs: tuple[MarketSpec, str], cash: str = "10000", rules: Rules | None = None, way: str = "passed"
    ) -> None:
        assert way in WAYS, way
        self.state = State()
        self.now_ms = T0
        self.way = way
        self.log: list[tuple[c.Command, int]] = []
        self.skipped: dict[str, int] = {}
        if rules is not None:
            self.do(c.SetRules(rules))
        for spec, px in specs:
            self.do(c.ListMarket(spec, e8(px)))
        self.do(c.OpenAccount("a", "0x" + "0" * 40, None, e8(cash)))

    # ── What the account is now ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def account(self) -> VenueAccount:
        return self.state.accounts["a"]

    def position(self, coin: str = "BTC") -> VenuePosition:
        return self.account.positions[coin]

    def mark(self, coin: str = "BTC") -> int:
        return self.skipped.get(coin, self.state.markets[coin].mark)

    def digest(self) -> str:
        """Digest of everything that happened to every account."""
        return codec.digest([list(a.events) for a in self.state.accounts.values()])

    # ── What it does ────────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, command: c.Command) -> Applied:
        """Apply a command now, after what is due now; the events of both come back."""
        events = self._settle()
        due = index.next_deadline_ms(self.state)
        if due is not None and due <= self.now_ms and not isinstance(command, c.Pulse | c.PassBar | c.PricePoint):
            events += self._apply(c.Pulse()).events
        applied = self._apply(command)
        return Applied(applied.answer, events + applied.events)

    def place(self, spec: OrderSpec, **over: Any) -> Applied:
        return self.do(c.PlaceOrder("a", spec, **over))

    def arm(self, spec: GuardianSpec) -> Applied:
        return self.do(c.ArmGuardian("a", spec))

    def close(self, coin: str = "BTC", **over: Any) -> Applied:
        return self.do(c.ClosePosition("a", coin, **over))

    def bar(self, coin: str, *prices: str, volume: str = "1000000", **over: Any) -> list[Event]:
        """Pass one minute's candle of one market; time stands at its end."""
        return self.bars((coin, prices), volume=volume, **over)

    def bars(
        self, *candles: tuple[str, tuple[str, ...]], volume: str = "1000000", interval_ms: int = MINUTE_MS
    ) -> list[Event]:
        """Pass one candle of several markets over the same minute, in this order. A minute is skipped when all of them
        are calm: the first market's bar takes the clock to the minute's end.
        """
        passes = [
            c.PassBar(coin, self.now_ms, *(e8(px) for px in prices), e8(volume), interval_ms)
            for coin, prices in candles
        ]
        if self.way == "skipped" and all(self._is_calm(command) for command in passes):
            self.skipped.update({command.coin: command.close for command in passes})
            self.now_ms += interval_ms
            return []
        events = self._settle()
        self.now_ms += interval_ms
        for command in passes:
            events += self._apply(command).events
        return events

    def wait(self, ms: int) -> list[Event]:
        """Let time pass, to the millisecond, without a price."""
        # The marks of skipped bars are those before the wait.
        events = self._settle()
        self.now_ms += ms
        return events + self.do(c.Pulse()).events

    def move(self, coin: str, px: str) -> list[Event]:
        """One point of a path: the price walks there."""
        return self.do(c.PricePoint(coin, e8(px), step=2)).events

    def jump(self, coin: str, px: str) -> list[Event]:
        """One point that nothing leads to, as a bar's open."""
        return self.do(c.PricePoint(coin, e8(px), step=0)).events

    # ── Inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_calm(self, bar: c.PassBar) -> bool:
        band = band_of(self.state, bar.coin)
        return band.lo < bar.low / 1e8 and bar.high / 1e8 < band.hi and bar.at_ms + bar.interval_ms < band.until_ms

    def _settle(self) -> list[Event]:
        if not self.skipped:
            return []
        marks = tuple(self.skipped.items())
        self.skipped = {}
        return self._apply(c.SetMarks(marks)).events

    def _apply(self, command: c.Command) -> Applied:
        self.log.append((codec.loads(codec.dumps(command)), self.now_ms))
        with _never_calm() if self.way == "fed" else nullcontext():
            applied = apply(self.state, command, self.now_ms)
        if self.way == "stored":
            self.state = codec.loads(codec.dumps(self.state))
            index.rebuild(self.state)
        return applied


def _never_calm() -> AbstractContextManager[Any]:
    return patch.object(matching, "is_calm", lambda *_: False)


def code_of(applied: Applied) -> str:
    """The code of a refusal, "" for an answer."""
    return applied.answer.code if isinstance(applied.answer, Refusal) else ""


def replayed(log: list[tuple[c.Command, int]]) -> State:
    """The state that the same commands give."""
    state = State()
    for command, now_ms in log:
        apply(state, codec.loads(codec.dumps(command)), now_ms)
    return state
