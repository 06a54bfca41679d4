"""The lines that `bot demo`, and `bot run` on a terminal, print for log events: time, kind, market, text.

At most one bar line a market is printed every 0.9 s; it counts the bars in between. Every decision, order and fill is
printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from bot import terminal
from bot.cli.common.formatting import px, usd
from bot.clock import SystemClock, datetime_of, iso, monotonic_ns
from bot.plain_text import one_line
from bot.words import many

if TYPE_CHECKING:
    from bot.config import Settings

Event = Mapping[str, Any]
# logged at debug, every few seconds
FIGURES: Final = ("heartbeat.status", "account.value")
# time between two bar lines of one market
BARS_EVERY_NS: Final = 900_000_000

STYLES: Final = {
    "bar": "dim",
    "decision": "cyan",
    "plan": "cyan",
    "order": "bold",
    "fill": "bold green",
    "stop": "yellow",
    "target": "yellow",
    "guardian": "magenta",
    "heartbeat": "blue",
    "account": "bold blue",
    "warning": "red",
    "error": "bold red",
    "service": "blue",
    "prices": "blue",
}

# a stop or target that ends with its position
QUIET_REASONS: Final = ("sibling_filled", "position_closed")


@dataclass(slots=True)
class Counts:
    """How many events of each kind this run has printed."""

    bars: int = 0
    decisions: int = 0
    accepted: int = 0
    refused: int = 0
    fills: int = 0
    last_bar_ms: dict[str, int] = field(default_factory=dict)


class Narrator:
    """Called with each event. `show` takes a finished line and its style."""

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self.counts = Counts()
        self._show = show
        self._bar_ns: dict[str, int] = {}
        self._held: dict[str, Event] = {}
        self._skipped: dict[str, int] = {}
        # "BTC.stop" -> size and trigger printed last; the same is not printed again
        self._brackets: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        name = str(event.get("event"))
        printer = _PRINTERS.get(name)
        if printer is not None:
            printer(self, event)
        elif name.startswith("drift."):
            self._line(
                "warning",
                event,
                f"{name.removeprefix('drift.').replace('_', ' ')}:"
                f" {event.get('message') or event.get('subject') or ''}",
            )
        elif event.get("level") in ("warning", "error", "critical"):
            changes = ", ".join(map(str, event.get("changes") or ()))
            # The last line of a traceback names the exception.
            exception = str(event.get("exception") or "").splitlines()[-1:]
            text = str(event.get("message") or event.get("code") or changes or "".join(exception))
            self._line(
                "error" if event["level"] != "warning" else "warning",
                event,
                f"{name}: {text.splitlines()[0] if text else ''}",
            )
        elif (
            "strategy" in event
            and "." in name
            and event.get("market")
            and not name.startswith(("intent.", "strategy."))
        ):
            self._caught_up(event)
            fields = ", ".join(f"{key} {value}" for key, value in event.items() if key not in _OWN)
            self._line(
                "decision", event, f"{event['strategy']}: {name.replace('.', ' ')}{f' ({fields})' if fields else ''}"
            )

    # -- one method for each kind of line

    def bar(self, event: Event) -> None:
        market = str(event["market"])
        self.counts.bars += 1
        self.counts.last_bar_ms[market] = int(event["at_ms"])
        now = monotonic_ns()
        if now - self._bar_ns.get(market, -BARS_EVERY_NS) < BARS_EVERY_NS:
            self._skipped[market] = self._skipped.get(market, 0) + 1
            self._held[market] = event
            return
        self._bar(event, now)

    def _bar(self, event: Event, now_ns: int) -> None:
        market = str(event["market"])
        more = self._skipped.pop(market, 0)
        if self._held.pop(market, None) is event:
            more -= 1
        self._bar_ns[market] = now_ns
        at = datetime_of(int(event["at_ms"])).strftime("%d %b %H:%M")
        self._line(
            "bar", event, f"{at} UTC closed at {px(event['close'])}{f' ({more} more before it)' if more > 0 else ''}"
        )

    def _caught_up(self, event: Event) -> None:
        """Print the bar that this decision is about, if it was held back."""
        held = self._held.get(str(event.get("market")))
        if held is not None:
            self._bar(held, monotonic_ns())

    def decided(self, event: Event) -> None:
        self.counts.decisions += 1
        self._caught_up(event)
        self._line("decision", event, f"{event.get('strategy')}: {_signal_text(event)}")

    def refused(self, event: Event) -> None:
        self.counts.refused += 1
        self._caught_up(event)
        self._line("decision", event, f"{event.get('strategy')}: not sent: {event.get('message')}")

    def planned(self, event: Event) -> None:
        parts = [f"{event.get('side')} {event.get('size')} at about {px(event.get('est_px'))}"]
        parts += [
            f"{word} {px(event[key])}" for word, key in (("stop", "stop_px"), ("target", "target_px")) if event.get(key)
        ]
        parts += [_fee(event["fee_usd"])] if event.get("fee_usd") else []
        self._line("plan", event, ", ".join(parts))

    def accepted(self, event: Event) -> None:
        self.counts.accepted += 1
        self._line("order", event, f"{event.get('action')} accepted as {event.get('trade')}")

    def not_accepted(self, event: Event) -> None:
        self.counts.refused += 1
        state = str(event["event"]).removeprefix("intent.")
        self._line("order", event, f"{event.get('action')} {state}: {event.get('message') or event.get('code') or ''}")

    def held(self, event: Event) -> None:
        self._line("order", event, f"waits: {str(event.get('code')).replace('_', ' ')}")

    def fill(self, event: Event) -> None:
        self.counts.fills += 1
        is_entry = event.get("what") == "entry"
        bought = (event.get("side") == "long") == is_entry
        kind = str(event.get("kind", "")).replace("_", " ")
        how = "" if kind in ("market", "limit", "close", "") else f" by {kind}"
        text = f"{'bought' if bought else 'sold'} {event.get('size')} at {px(event.get('px'))}{how}"
        if not is_entry and event.get("realized_pnl_usd") is not None:
            text += f", {_signed(event['realized_pnl_usd'])}"
        if event.get("fee_usd") is not None:
            text += f", {_fee(event['fee_usd'])}"
        self._line("fill", event, text)

    def order(self, event: Event) -> None:
        market, kind, what = str(event.get("market")), str(event.get("kind")), event.get("what")
        word = {"stop_loss": "stop", "take_profit": "target"}.get(kind, "order")
        if word == "order":
            self._line("order", event, f"{kind} {what} at {px(event.get('limit_px'))}{_why(event)}")
        elif what in ("armed", "changed"):
            armed = f"{event.get('size')} at {event.get('trigger_px')}"
            if what == "armed" or self._brackets.get(f"{market}.{word}") != armed:
                self._brackets[f"{market}.{word}"] = armed
                self._line(
                    word, event, f"{what} at {px(event.get('trigger_px'))} for {event.get('size')}, kept by the service"
                )
        elif what == "canceled" and event.get("reason") not in QUIET_REASONS:
            self._line(word, event, f"canceled{_why(event)}")

    def trigger(self, event: Event) -> None:
        word = "stop" if event.get("what") == "stop_loss" else "target"
        self._line(word, event, f"hit: {px(event.get('trigger_px'))}, price {px(event.get('mark_px'))}")

    def guardian(self, event: Event) -> None:
        kind = str(event.get("guardian_type", "guardian")).replace("_", " ")
        deadline = event.get("next_deadline")
        until = (
            f", acts at {iso(int(deadline))[11:19]} service time unless a heartbeat arrives"
            if deadline and event.get("what") == "armed" and "dead" in kind
            else ""
        )
        action = (
            f", {str(event['action']).replace('_', ' ')}"
            if event.get("what") == "fired" and event.get("action")
            else ""
        )
        self._line("guardian", event, f"{kind} {event.get('what')}{action}{_why(event)}{until}")

    def funding(self, event: Event) -> None:
        self._line("account", event, f"funding {px(event.get('amount_usd'))} USD")

    def liquidation(self, event: Event) -> None:
        self._line("error", event, f"liquidation {event.get('what')}: {event.get('size')} at {px(event.get('px'))}")

    def heartbeat(self, event: Event) -> None:
        left = event.get("deadline_s")
        if left is None:
            error = event.get("error")
            text = f"the service has answered no heartbeat yet{f' ({error})' if error else ''}"
        else:
            text = f"dead-man acts in {left} s unless a heartbeat arrives ({many(event['beats'], 'heartbeat')} so far)"
        self._line("heartbeat", event, text)

    def value(self, event: Event) -> None:
        text = (
            f"value {_usd(event.get('usd'))}, free {_usd(event.get('free_usd'))},"
            f" {many(event['positions'], 'position')}"
        )
        self._line("account", event, text)

    def ready(self, event: Event) -> None:
        self._line("daemon", event, f"ready: {many(event['positions'], 'position')}, {many(event['orders'], 'order')}")

    def restarted(self, event: Event) -> None:
        self._line(
            "service",
            event,
            f"died and was started again (pid {event.get('pid')}); it has everything that it acknowledged",
        )

    def not_restarted(self, event: Event) -> None:
        self._line("error", event, f"the service died and does not start: {event.get('message')}; the daemon retries")

    def prices_connected(self, event: Event) -> None:
        how = f" by {event['transport']}" if event.get("transport") else ""
        self._line("prices", event, f"{event.get('source')} is connected{how}")

    def prices_disconnected(self, event: Event) -> None:
        self._line("warning", event, f"{event.get('source')} is not connected: {_first_line(event)}")

    def market_opened(self, event: Event) -> None:
        self._line("prices", event, "prices come; positions may be opened")

    def market_closed(self, event: Event) -> None:
        self._line("warning", event, f"no position may be opened: {_first_line(event)}")

    def quarantined(self, event: Event) -> None:
        self._line("error", event, f"{event.get('strategy')} is quarantined: {event.get('message')}")

    def _line(self, what: str, event: Event, text: str) -> None:
        time = local(SystemClock().now_ms()).strftime("%H:%M:%S")
        self._show(f"{time}  {what:<9}  {event.get('market') or ''!s:<5}  {text}".rstrip(), STYLES.get(what, ""))


_OWN: Final = ("timestamp", "level", "event", "strategy", "market", "at_ms")

_PRINTERS: Final[Mapping[str, Callable[[Narrator, Event], None]]] = {
    "bar.closed": Narrator.bar,
    "intent.decided": Narrator.decided,
    "intent.refused": Narrator.refused,
    "intent.planned": Narrator.planned,
    "intent.accepted": Narrator.accepted,
    "intent.rejected": Narrator.not_accepted,
    "intent.expired": Narrator.not_accepted,
    "intent.void": Narrator.not_accepted,
    "intent.quarantined": Narrator.not_accepted,
    "intent.held": Narrator.held,
    "event.fill": Narrator.fill,
    "event.order": Narrator.order,
    "event.trigger": Narrator.trigger,
    "event.guardian": Narrator.guardian,
    "event.funding": Narrator.funding,
    "event.liquidation": Narrator.liquidation,
    "heartbeat.status": Narrator.heartbeat,
    "account.value": Narrator.value,
    "daemon.ready": Narrator.ready,
    "service.restarted": Narrator.restarted,
    "service.not_restarted": Narrator.not_restarted,
    "strategy.quarantined": Narrator.quarantined,
    "prices.connected": Narrator.prices_connected,
    "prices.disconnected": Narrator.prices_disconnected,
    "prices.market_opened": Narrator.market_opened,
    "prices.market_closed": Narrator.market_closed,
}


def strategy_lines(settings: Settings) -> list[str]:
    """One line for each strategy of the config: its markets, its bars and its budget."""
    return [
        f"strategy    {strategy.name} on {', '.join(strategy.markets)}, {strategy.interval} bars, at most"
        f" {strategy.budget_usd} USD"
        for strategy in settings.strategies
    ]


def line_writer(stream: TextIO) -> Callable[[str, str], None]:
    """A function that writes a line with its style to the stream.

    On a terminal it adds color and cuts the line to the width.
    """
    if not stream.isatty():
        return lambda line, _style: click.echo(one_line(line), stream)
    from rich.text import Text

    console = terminal.console(stream)
    return lambda line, style: console.print(Text(one_line(line), style=style), overflow="ellipsis", no_wrap=True)


def local(at_ms: int) -> datetime:
    """The instant in the time zone of this machine."""
    return datetime_of(at_ms).astimezone()


def _signal_text(event: Event) -> str:
    """The event's signal, such as `Open(market='BTC', side='long', usd=200, ...)`, as `open long 200 USD`."""
    text = str(event.get("signal", ""))
    fields = {
        name: value.strip("'\"")
        for name, value in re.findall(r"(\w+)=(Decimal\('[^']*'\)|'[^']*'|[^,()]+)", text)
        if value != "None"
    }
    fields = {name: re.sub(r"^Decimal\('(.*)$", r"\1", value).rstrip(")'") for name, value in fields.items()}
    amount = f"{fields['usd']} USD" if "usd" in fields else fields.get("size", "")
    if text.startswith("Open("):
        parts = [f"{fields.get('side', '')} {amount}".strip()]
        parts += [f"{fields['leverage']}x"] if "leverage" in fields else []
        parts += (
            [f"stop {fields['stop_pct']} %"]
            if "stop_pct" in fields
            else [f"stop {fields['stop_px']}"]
            if "stop_px" in fields
            else []
        )
        for name, unit in (("target_r", " R"), ("target_pct", " %"), ("target_px", "")):
            parts += [f"target {fields[name]}{unit}"] if name in fields else []
        for name, unit in (("trail_r", " R"), ("trail_pct", " %")):
            parts += [f"trailing {fields[name]}{unit}"] if name in fields else []
        return "open " + ", ".join(parts)
    if text.startswith("Close("):
        part = f" {fields['fraction']} of it" if "fraction" in fields else f" {amount}" if amount else ""
        return f"close{part}"
    return "cancel" if text.startswith("Cancel(") else text


def _first_line(event: Event) -> str:
    return next(iter(str(event.get("message") or "").splitlines()), "")


def _why(event: Event) -> str:
    reason = event.get("reason")
    return f" ({str(reason).replace('_', ' ')})" if reason else ""


def _usd(value: Any) -> str:
    return f"{usd(value)} USD"


def _fee(value: Any) -> str:
    """A fee, or the rebate that a negative fee is."""
    text = _usd(value)
    return f"rebate {text[1:]}" if text.startswith("-") else f"fee {text}"


def _signed(value: Any) -> str:
    return f"{usd(value, signed=True)} USD"
