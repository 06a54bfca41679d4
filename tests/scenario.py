"""Venue cases as text: `command | what it does`, run in all four ways of builders.WAYS, which must agree to the byte.

    mark BTC 100                                    list a costless market; words may follow: isolated, fee 0.045%
    0.015%, max 10, ...
    long BTC 500 usd lev 5 stop 2% take 4%          | open 5 @ 100
    bar BTC 95 96 94 95                             | stop_loss 5 @ 95
    cash, fees off                                  | 9975

After `|` stands the money that moved, after `||` every event. Nothing after the command: it must not be refused. `-`:
nothing moved. `...`: whatever comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bot.errors import Refusal
from bot.model import events as ev
from bot.venue.accounting import ledger
from bot.venue.model import commands as c
from bot.venue.model.numbers import text_of
from bot.venue.model.state import GuardianSpec, OrderSpec, Rules, VenueAccount, guardian_id, oid_text, side_name
from tests.builders import T0, WAYS, VenueDriver, dead_man, drawdown, e8, hold, market, order, replayed, trail

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def run(text: str, *, cash: str = "10000", rules: Rules | None = None, ways: tuple[str, ...] = WAYS) -> VenueDriver:
    """Play a scenario in every way; all must meet its expectations and leave the same events.

    The first way's venue comes back.
    """
    venues = [Scenario(text, cash=cash, rules=rules, way=way).play() for way in ways]
    for way, venue in zip(ways[1:], venues[1:], strict=True):
        assert venue.digest() == venues[0].digest(), f"{way} and {ways[0]} differ in their events"
    again = replayed(venues[0].log)
    assert [list(a.events) for a in again.accounts.values()] == [
        list(a.events) for a in venues[0].state.accounts.values()
    ]
    return venues[0]


class Words:
    """The words of one command, taken from the left."""

    def __init__(self, text: str) -> None:
        self.left = text.replace(",", " ").split()

    def take(self) -> str:
        assert self.left, "the line ends too early"
        return self.left.pop(0)

    def have(self, *words: str) -> bool:
        if tuple(self.left[: len(words)]) != words:
            return False
        del self.left[: len(words)]
        return True

    def end(self) -> None:
        assert not self.left, f"not understood: {' '.join(self.left)}"


class Scenario:
    def __init__(self, text: str, *, cash: str, rules: Rules | None, way: str) -> None:
        self.lines = [
            line.strip() for line in text.strip().splitlines() if line.strip() and not line.strip().startswith("--")
        ]
        self.venue = VenueDriver(cash=cash, rules=rules, way=way)
        self.plans = 0

    def play(self) -> VenueDriver:
        for number, line in enumerate(self.lines, 1):
            every = "||" in line
            said, bar, wanted = (part.strip() for part in line.partition("||" if every else "|"))
            got = self._play_line(said, every=every)
            if wanted != "..." and (bar or "no " in got):
                assert got == " ".join(wanted.split()), self._report(number, line, got)
        return self.venue

    def _report(self, number: int, line: str, got: str) -> str:
        after_ms = self.venue.now_ms - T0
        return f"line {number} ({self.venue.way}, {after_ms / 1000:g} s after the start)\n  said: {line}\n   got: {got}"

    def _play_line(self, said: str, *, every: bool) -> str:
        words = Words(said)
        verb = words.take()
        if verb in QUERIES:
            return QUERIES[verb](self.venue, words)
        try:
            result = getattr(self, f"do_{verb}")(words)
        except (AssertionError, IndexError, ValueError, AttributeError) as fault:
            raise AssertionError(f"{type(fault).__name__} at `{said}`: {fault}") from fault
        words.end()
        events = result if isinstance(result, list) else result.events
        moved = [text for event in events if (text := (whole(event) if every else money(event)))]
        if not isinstance(result, list) and isinstance(result.answer, Refusal):
            moved.append(f"no {result.answer.code}")
        return ", ".join(moved) or "-"

    # ── Time and prices ─────────────────────────────────────────────────────────────────────────────────────────────

    def do_mark(self, words: Words) -> Any:
        coin, px = words.take(), words.take()
        # Two decimals of size leave four to a price.
        over: dict[str, Any] = {"sz_decimals": 2}
        while words.left:
            if words.have("isolated"):
                over["margin_mode"] = "isolated"
            elif words.have("fee"):
                over["taker_rate"], over["maker_rate"] = rate(words.take()), rate(words.take())
            elif words.have("max"):
                over["max_leverage"] = int(words.take())
            elif words.have("decimals"):
                over["sz_decimals"] = int(words.take())
            elif words.have("spread"):
                over["half_spread"] = rate(words.take()) // 2
            elif words.have("depth"):
                over["level_size"], over["level_step"] = e8(words.take()), rate(words.take())
            elif words.have("slip"):
                over["slippage_bps"] = int(words.take())
            elif words.have("funding"):
                over["funding_rate"] = e8(words.take()) * 10_000
            elif words.have("part"):
                over["participation"] = rate(words.take())
            elif words.have("touch"):
                over["limit_touch"] = True
            elif words.have("book"):
                over["book"] = words.take()
            else:
                words.end()
        return self.venue.do(c.ListMarket(market(coin, **over), e8(px)))

    def do_bar(self, words: Words) -> Any:
        candles, volume = [], "1000000"
        while words.left:
            candles.append((words.take(), tuple(words.take() for _ in range(4))))
            if words.have("volume"):
                volume = words.take()
            words.have("&")
        return self.venue.bars(*candles, volume=volume)

    def do_move(self, words: Words) -> Any:
        return self.venue.move(words.take(), words.take())

    def do_jump(self, words: Words) -> Any:
        return self.venue.jump(words.take(), words.take())

    def do_wait(self, words: Words) -> Any:
        return self.venue.wait(span_ms(words.take()))

    def do_status(self, words: Words) -> Any:
        return self.venue.do(c.SetMarket(words.take(), status=words.take()))

    def do_rate(self, words: Words) -> Any:
        return self.venue.do(c.SetMarket(words.take(), funding_rate=round(float(words.take()) * 10**12)))

    # ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def do_long(self, words: Words) -> Any:
        return self.venue.place(ordered(1, words))

    def do_short(self, words: Words) -> Any:
        return self.venue.place(ordered(-1, words))

    def do_plan(self, words: Words) -> Any:
        side = 1 if words.take() == "long" else -1
        bps = int(words.take()) if words.have("drift") else 50
        self.plans += 1
        return self.venue.do(c.StorePlan("a", ordered(side, words), f"t{self.plans}", 60_000, max_drift_bps=bps))

    def do_confirm(self, words: Words) -> Any:
        return self.venue.do(c.ConfirmPlan("a", words.take() if words.left else f"t{self.plans}"))

    def do_close(self, words: Words) -> Any:
        coin, over = words.take(), {}
        if words.left and words.left[0] != "slip":
            amount = words.take()
            if amount.endswith("%"):
                over["fraction"] = rate(amount)
            else:
                over["usd" if words.have("usd") else "size"] = e8(amount)
        if words.have("slip"):
            over["slippage_bps"] = int(words.take())
        return self.venue.close(coin, **over)

    def do_cancel(self, words: Words) -> Any:
        coin = words.take()
        if not words.left:
            return self.venue.do(c.CancelCoin("a", coin))
        kind = words.take()
        found = [o for o in self.venue.account.orders.values() if o.coin == coin and o.kind == kind]
        return self.venue.do(c.CancelOrder("a", oid_text(self.venue.account, found[0].number) if found else "1"))

    # ── Guardians, account ──────────────────────────────────────────────────────────────────────────────────────────

    def do_deadman(self, words: Words) -> Any:
        return self.venue.arm(dead_man(int(words.take()), words.take() if words.left else None))

    def do_trail(self, words: Words) -> Any:
        coin, amount = words.take(), words.take()
        return self.venue.arm(trail(amount, coin=coin, start=words.take()[:-1] if words.have("from") else None))

    def do_hold(self, words: Words) -> Any:
        coin = words.take()
        return self.venue.arm(hold(int(words.take()), coin))

    def do_drawdown(self, words: Words) -> Any:
        return self.venue.arm(drawdown(words.take(), words.take() if words.left else None))

    def do_schedule(self, words: Words) -> Any:
        """Cron fields joined by `_`, then an action or an order."""
        spec = GuardianSpec("schedule", cron=words.take().replace("_", " "))
        if words.left[0] in ("long", "short"):
            spec.order = ordered(1 if words.take() == "long" else -1, words)
        else:
            spec.action = words.take()
        return self.venue.arm(spec)

    def do_kill(self, words: Words) -> Any:
        return self.venue.do(c.Kill("a", flatten=words.have("flatten")))

    def do_away(self, words: Words) -> Any:
        """The service is down for a while."""
        away = span_ms(words.take())
        events = self.venue.do(c.ShiftDeadlines(away, 30_000)).events
        return events + self.venue.wait(away)

    def do_disarm(self, words: Words) -> Any:
        return self.venue.do(c.DisarmGuardian("a", guardian_id(self.venue.account, int(words.take()))))

    def do_beat(self, words: Words) -> Any:
        return self.venue.do(c.Heartbeat("a"))

    def do_reset(self, words: Words) -> Any:
        return self.venue.do(c.ResetAccount("a", e8(words.take()) if words.left else None))

    def do_settings(self, words: Words) -> Any:
        trade, day = words.take(), words.take()
        return self.venue.do(
            c.ChangeSettings("a", None if trade == "-" else e8(trade), None if day == "-" else e8(day))
        )


def ordered(side: int, words: Words) -> OrderSpec:
    """COIN AMOUNT [usd] and what else an order may say."""
    coin, amount = words.take(), words.take()
    over: dict[str, Any] = {"usd" if words.have("usd") else "size": amount}
    guardians: list[GuardianSpec] = []
    while words.left:
        word = words.take()
        if word == "limit":
            over["limit_px"] = words.take()
        elif word == "lev":
            over["leverage"] = int(words.take())
        elif word == "clamp":
            over["leverage_mode"] = "clamp"
        elif word == "ack":
            over["acknowledge_leverage_change"] = True
        elif word in ("stop", "take"):
            over[word] = words.take()
        elif word == "trail":
            guardians.append(trail(words.take(), start=words.take()[:-1] if words.have("from") else None))
        elif word == "deadman":
            guardians.append(dead_man(int(words.take())))
        elif word == "hold":
            guardians.append(hold(int(words.take())))
        elif word == "drawdown":
            guardians.append(drawdown(words.take()))
        elif word == "kill":
            guardians.append(GuardianSpec("kill_switch"))
        elif word == "schedule":
            guardians.append(GuardianSpec("schedule", cron=words.take().replace("_", " "), action=words.take()))
        elif word == "slip":
            over["slippage_bps"] = int(words.take())
        elif word == "partial":
            over["allow_partial"] = True
        elif word == "protect":
            over["require_protection"] = True
        elif word == "reduce":
            over["reduce_only"] = True
        else:
            raise AssertionError(f"not understood: {word}")
    return order(coin, side, guardians=tuple(guardians), **over)


def rate(text: str) -> int:
    """A fraction scaled 1e8, from "0.045%" or "5bps"."""
    return e8(text[:-1]) // 100 if text.endswith("%") else e8(text.removesuffix("bps")) // 10_000


def span_ms(text: str) -> int:
    unit = next(u for u in ("ms", "s", "m", "h", "d") if text.endswith(u))
    return int(text.removesuffix(unit)) * UNITS_MS[unit]


# ── Events as text ──────────────────────────────────────────────────────────────────────────────────────────────────


def money(event: ev.Event) -> str:
    """What an event moved, "" when no money did."""
    if isinstance(event, ev.FillEvent):
        kind = "open" if event.subtype == "entry" else event.kind
        return f"{kind} {text_of(event.size)} @ {text_of(event.px)}"
    if isinstance(event, ev.Liquidated) and event.subtype == "backstop":
        return f"backstop {text_of(event.size)} @ {text_of(event.px)}"
    return f"funding {text_of(event.amount)}" if isinstance(event, ev.FundingPaid) else ""


def whole(event: ev.Event) -> str:
    """Every event in a few words."""
    if isinstance(event, ev.OrderChanged):
        px = event.trigger_px if event.trigger_px is not None else event.limit_px
        return " ".join(
            w for w in (event.subtype, event.kind, text_of(px) if px is not None else "", event.reason or "") if w
        )
    if isinstance(event, ev.Triggered):
        return f"trigger {event.subtype}"
    if isinstance(event, ev.GuardianMoved):
        return f"{event.subtype} {event.guardian_type}" + (f" {event.reason}" if event.reason else "")
    if isinstance(event, ev.Liquidated):
        return f"liquidated {event.subtype}"
    if isinstance(event, ev.AccountChanged):
        change = f" {event.coin} {event.leverage_from}x to {event.leverage_to}x" if event.subtype == "leverage" else ""
        return f"account {event.subtype}{change}"
    return money(event)


# ── Questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _cash(venue: VenueDriver, words: Words) -> str:
    account = venue.account
    return text_of(account.balance + (account.fees if words.have("fees", "off") else 0))


def _position(venue: VenueDriver, words: Words) -> str:
    position = venue.account.positions.get(words.take())
    if position is None:
        return "flat"
    return f"{side_name(position.side)} {text_of(position.size)} @ {text_of(position.entry_px())} {position.leverage}x"


def _liquidation(venue: VenueDriver, words: Words) -> str:
    settled(venue)
    px = ledger.liquidation_px(venue.state, venue.position(words.take()))
    return "null" if px is None else text_of(px)


def _orders(venue: VenueDriver, words: Words) -> str:
    coin = words.take()
    return ", ".join(_order(venue.account, n) for n, o in venue.account.orders.items() if o.coin == coin) or "none"


def _order(account: VenueAccount, number: int) -> str:
    o = account.orders[number]
    px = o.trigger_px if o.trigger_px is not None else o.limit_px
    return f"{o.kind} {text_of(o.size - o.filled)}" + (f" @ {text_of(px)}" if px is not None else "")


def _guardians(venue: VenueDriver, _: Words) -> str:
    def text(g: Any) -> str:
        tail = (
            (" asleep" if not g.active else f" {text_of(g.stop_px)}") if g.stop_px is not None or not g.active else ""
        )
        return f"{g.spec.type} {g.status}{tail}"

    return ", ".join(text(g) for g in venue.account.guardians.values()) or "none"


def _trade(venue: VenueDriver, _: Words) -> str:
    trade = venue.account.trades[-1]
    return " ".join(w for w in (trade.kind, trade.intent, trade.status, trade.fill_status(), trade.reason or "") if w)


def settled(venue: VenueDriver) -> None:
    """Say the marks of skipped bars, so that questions see them."""
    if venue.skipped:
        venue.wait(0)


def _usd(read: Callable[[Any, VenueAccount], int]) -> Callable[[VenueDriver, Words], str]:
    def ask(venue: VenueDriver, _: Words) -> str:
        settled(venue)
        return text_of(read(venue.state, venue.account))

    return ask


QUERIES: Final[dict[str, Callable[[VenueDriver, Words], str]]] = {
    "cash": _cash,
    "cash,": _cash,
    "value": _usd(ledger.account_value),
    "free": _usd(ledger.free_margin),
    "used": _usd(ledger.margin_used),
    "reserved": lambda venue, _: text_of(venue.account.reserved),
    "margin": lambda venue, words: text_of(venue.position(words.take()).margin),
    "position": _position,
    "liquidation": _liquidation,
    "orders": _orders,
    "guardians": _guardians,
    "trade": _trade,
}
