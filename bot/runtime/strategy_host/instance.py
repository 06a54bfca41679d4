"""StrategyInstance is one running strategy: its view of account and history, its durable state, and whether it is
quarantined.

The view only reads; this module sends and writes nothing. A hook gets a working copy of the state, and its changes
count after the journal has written them.
"""

from __future__ import annotations

import json
import marshal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, localcontext
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from bot.errors import StrategyError
from bot.logs import Logger, log
from bot.model import events
from bot.money import E8, E16
from bot.runtime.account.account_state import AccountState
from bot.runtime.account.attribution import Attribution
from bot.runtime.model.positions import AccountOrder, AccountPosition, unit_px
from bot.runtime.model.shares import EXACT, Part, Share
from bot.runtime.passes.bar_feed import BarFeed, BarSeries
from bot.runtime.strategy_host.asker import Asker
from bot.runtime.strategy_host.strategy_errors import own_lines, whole_traceback
from bot.strategy import (
    AskRecord,
    Fill,
    GuardianNote,
    History,
    Intent,
    OrderView,
    PositionView,
    Question,
    Strategy,
    Trigger,
    View,
)
from bot.strategy.base import begin_bars
from bot.strategy.hook_answers import INTENTS, agreement_of, intents_of
from bot.strategy.intents import Side
from bot.strategy.longer_bars import check_longer

if TYPE_CHECKING:
    from bot.wire import Plan

# intents in one hook call; more is a bug in the strategy
INTENTS_MAX: Final = 100
# a small mapping, not a database
STATE_BYTES_MAX: Final = 64_000
# field names that structlog uses itself
LINES_OWN: Final = frozenset({"exc_info", "exception", "level", "method_name", "stack", "strategy", "timestamp"})


# at, strategy, event, fields
LogSink: TypeAlias = Callable[[int, str, str, Mapping[str, Any]], None]
# The class of an event, and the hook that gets it.
HOOKS: Final[Mapping[type, str]] = {
    events.FillEvent: "on_fill",
    events.Triggered: "on_trigger",
    events.GuardianMoved: "on_guardian",
}


class InstanceViewSource:
    """The data behind the View of one strategy. StrategyInstance sets `now_ms` and `state` before each hook."""

    def __init__(
        self,
        account_state: AccountState,
        histories: Mapping[str, History],
        name: str,
        attribution: Attribution | None = None,
    ) -> None:
        self._account_state = account_state
        # attribution of strategies that may share a market; None: positions are not split by owner
        self._attribution = attribution
        self._name = name
        self.histories = histories
        self._log = Logger(strategy=name)
        # the interval of the own bars
        self.interval = ""
        self.now_ms = 0
        self.state: dict[str, Any] = {}
        self.is_warming_up = False
        # None: questions are not answered
        self.asker: Asker | None = None
        # for the journal
        self.asks: list[AskRecord] = []
        # receives the strategy's own log lines; None: the log
        self.log_sink: LogSink | None = None

    def connect(self, asker: Asker | None, log_sink: LogSink | None) -> None:
        """Ask questions by `asker`, and give the strategy's log lines to `log_sink`."""
        self.asker, self.log_sink = asker, log_sink

    @property
    def equity_usd(self) -> float:
        return self._account_state.equity_usd

    @property
    def free_margin_usd(self) -> float:
        # The strategy may have set a context of low precision.
        with localcontext(EXACT):
            return self._account_state.free_margin_usd

    def all_in_usd(self, market: str, leverage: int) -> float:
        with localcontext(EXACT):
            return self._account_state.all_in_usd(market, leverage)

    def position(self, market: str) -> PositionView | None:
        position = self._account_state.positions.get(market)
        if position is None or self._attribution is None:
            return None if position is None else _position_view(position, self._account_state)
        share = self._attribution.share(market, self._name)
        return None if share is None else _position_view(_shared(position, share), self._account_state)

    def orders(self, market: str) -> Sequence[OrderView]:
        return [_order_view(order) for order in self._account_state.orders.values() if order.market == market]

    def history(self, market: str, interval: str | None = None) -> History:
        history = self.histories.get(market)
        if history is None:
            raise StrategyError(f"{market} is not one of this strategy's markets ({', '.join(sorted(self.histories))})")
        if interval is None or interval == self.interval:
            return history
        check_longer(interval, self.interval)
        return history.of(interval, self.interval)

    def log(self, event: str, fields: dict[str, Any]) -> None:
        # Lines on past bars were logged when those bars were new.
        if self.is_warming_up:
            return
        if self.log_sink is None:
            self._log.info(event, **{_field(name): value for name, value in fields.items()})
        else:
            self.log_sink(self.now_ms, self._name, event, fields)

    def ask(self, question: Question) -> str | None:
        if self.is_warming_up or self.asker is None:
            return "nobody answers questions now"
        return self.asker.start(self._name, question)

    def keep_ask(self, record: AskRecord) -> None:
        if not self.is_warming_up:
            self.asks.append(record)


class StrategyInstance:
    """One configured strategy. Its hooks are called one at a time, through `call`."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        interval: str,
        account_state: AccountState,
        feed: BarFeed,
        state: dict[str, Any] | None = None,
        version: str = "",
        attribution: Attribution | None = None,
    ) -> None:
        self.strategy = strategy
        self.name = strategy.name
        self.interval = interval
        self.markets = frozenset(strategy.markets)
        # Read now, because a hook may assign other values to these names.
        self.indicators = strategy.indicators
        self.timers = strategy.timers
        # Only hooks that the strategy overrides are called.
        self.event_types = frozenset(
            kind for kind, hook in HOOKS.items() if getattr(type(strategy), hook) is not getattr(Strategy, hook)
        )
        self.checks_plans = getattr(strategy.confirm, "__func__", None) is not Strategy.confirm
        self.decided_series = frozenset(BarSeries(market, interval) for market in strategy.markets)
        self.read_series = frozenset(BarSeries(market, interval) for market in strategy.informative)
        self.series = sorted(self.decided_series | self.read_series)
        self.version = version
        self.nets = attribution is not None
        begin_bars(strategy, interval)
        self.source = InstanceViewSource(account_state, {}, strategy.name, attribution)
        self.source.interval = interval
        self.use_feed(feed)
        self.view = View(self.source)
        self.quarantined: str | None = None
        # the strategy's own decimal context, so that it cannot change ours
        self.context = Context()
        self._remember(_json(state or {}, self.name), None)
        self.source.state = json.loads(self._state_text)

    def use_feed(self, feed: BarFeed) -> None:
        """Read the histories from this feed."""
        self.source.histories = {s.market: feed.histories[s] for s in self.series}
        for interval in self.strategy.longer_bars:
            for market, history in self.source.histories.items():
                history.keep(interval, self.interval).supply(self.indicators.makers(market, interval))

    def call(self, hook: Callable[[], Iterable[Intent] | None], *, now_ms: int) -> list[Intent]:
        """Call a hook and return all its signals.

        StrategyError if the hook raises, even after some signals; these are dropped.
        """
        self.source.now_ms = now_ms
        try:
            answer = list(islice(intents_of(hook(), _name_of(hook)), INTENTS_MAX + 1))
            for signal in answer:
                if type(signal) not in INTENTS:
                    raise StrategyError(f"{self.name}: yielded {signal!r:.200}; a hook yields Open, Close or Cancel")
        except BaseException as error:
            # A strategy may raise anything. The new error names the strategy, and the caller quarantines it.
            raise self.named_error(error) from error
        if len(answer) > INTENTS_MAX:
            raise StrategyError(f"{self.name}: more than {INTENTS_MAX} intents at once")
        return answer

    def call_without_signals(self, hook: Callable[[], None], *, now_ms: int) -> None:
        """`call` for a hook that must not yield signals, because the daemon does not execute them.

        StrategyError if it does.
        """
        signals = self.call(hook, now_ms=now_ms)
        if signals:
            raise StrategyError(
                f"{self.name}: signals of on_start and on_stop are lost, so yield {signals[0]!r:.200} in on_bar"
            )

    def changed_state(self) -> str | None:
        """The state's JSON if a hook has changed it, else None. StrategyError if it is not JSON."""
        state = self.source.state
        if not state and not self.has_state:
            return None
        packed = _packed(state)
        # A refused state is not remembered, so it is refused again.
        if packed is not None and packed == self._packed:
            return None
        text = _json(state, self.name)
        is_changed = text != self._state_text
        if is_changed:
            _check_keys(state, self.name)
        self._remember(text, packed)
        return text if is_changed else None

    def _remember(self, text: str, packed: bytes | None) -> None:
        self._state_text = text
        # the same state, for a fast comparison
        self._packed: bytes | None = packed
        # True: an empty working copy is a change
        self.has_state: bool = text != "{}"

    def warm_up(self, hook: Callable[[], Iterable[Intent] | None], *, now_ms: int) -> None:
        """Call a hook on a past bar and drop its signals and state changes."""
        self.source.is_warming_up = True
        try:
            self.call(hook, now_ms=now_ms)
        finally:
            self.source.is_warming_up = False
        self.restore_state()

    def confirms(self, plan: Plan) -> bool:
        """True if the strategy confirms an entry, given its plan."""
        try:
            return agreement_of(self.strategy.confirm(plan), "confirm")
        # Every exception of the strategy is caught, as in `call`.
        except BaseException as error:
            raise self.named_error(error) from error

    def named_error(self, error: BaseException) -> StrategyError:
        """A StrategyError that names the strategy and the lines of its own file. KeyboardInterrupt is raised again."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        # Works also if str(error) raises.
        report = traceback.TracebackException.from_exception(error, lookup_lines=False)
        if isinstance(error, StrategyError) and str(report).startswith(f"{self.name}: "):
            return StrategyError(str(report))
        file = getattr(sys.modules.get(type(self.strategy).__module__), "__file__", None)
        own = own_lines(error, file)
        place = f" ({own})" if own else ""
        if (details := whole_traceback(error)) is not None:
            log.error("strategy.traceback", strategy=self.name, exception=details)
        if not own and isinstance(error, TypeError) and str(report).endswith("object is not iterable"):
            place = "; a hook yields its signals, or returns a list of them"
        return StrategyError(f"{self.name}: {type(error).__name__}: {report}{place}")

    def restore_state(self) -> None:
        """Undo a hook's changes of the state. In place, because a strategy may hold a reference to `view.state`."""
        state = self.source.state
        if state or self.has_state:
            state.clear()
            state |= json.loads(self._state_text)

    def quarantine(self, why: str) -> None:
        """Call no hook of this strategy any more in this run; its positions keep their stops."""
        self.quarantined = why
        # A copy, because an abandoned thread may still write to the old one.
        self.source.state = json.loads(self._state_text)


def _name_of(hook: Callable[[], Any]) -> str:
    """The name of a hook that is bound to its arguments."""
    return str(getattr(getattr(hook, "func", hook), "__name__", "a hook"))


def _packed(state: dict[str, Any]) -> bytes | None:
    """Bytes that are equal if all values and types are equal; eight times faster than JSON.

    None for a value of an unknown type.
    """
    try:
        return marshal.dumps(state, 2)
    except ValueError:
        return None


def _json(state: Mapping[str, Any], name: str) -> str:
    try:
        text = json.dumps(dict(state), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise StrategyError(
            f"{name}: view.state must hold only numbers, strings, lists and dicts of them: {error}"
        ) from error
    if len(text) > STATE_BYTES_MAX:
        raise StrategyError(f"{name}: view.state has {len(text)} bytes; the limit is {STATE_BYTES_MAX}")
    return text


def _check_keys(state: Mapping[str, Any], name: str) -> None:
    """StrategyError for a key that is not a string:

    JSON would turn it into one, and lookups would fail after a restart.
    """
    waiting: list[Any] = [state]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise StrategyError(
                        f"{name}: the keys of view.state must be strings, and {key!r:.200} is not: use str()"
                    )
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value


def _field(name: str) -> str:
    """The name of a strategy's field in the log.

    Names of structlog and names with a leading _ get a prefix; the latter are not searched for secrets.
    """
    return f"said_{name}" if name in LINES_OWN or name.startswith("_") else name


# -- values of the account state in a strategy's terms


def _shared(position: AccountPosition, share: Share) -> AccountPosition:
    """The position as seen by a strategy with a share: its own size and entry, and the common stop and target."""
    return position._replace(size_e8=share.size_e8, entry_e8=share.entry_e8)


def _float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


def _position_view(p: AccountPosition, account_state: AccountState) -> PositionView:
    entry, size = (p.entry_e8 or 0) / E8, p.size_e8 / E8
    mark = account_state.marks.get(p.market, entry)
    stop, target = account_state.stop_of(p.market), account_state.target_of(p.market)
    risk = None if p.first_stop_e8 is None else abs(entry - p.first_stop_e8 / E8) * size
    return PositionView(
        market=p.market,
        side=cast(Side, p.side),
        size=size,
        entry_px=entry,
        mark_px=mark,
        stop_px=None if stop is None or stop.trigger_e8 is None else stop.trigger_e8 / E8,
        target_px=None if target is None or target.trigger_e8 is None else target.trigger_e8 / E8,
        unrealized_usd=account_state.unrealized_usd(p),
        notional_usd=unit_px(p.market, p.side, mark) * size,
        leverage=p.leverage,
        risk_usd=risk,
        opened_at_ms=p.opened_ms,
    )


def _order_view(o: AccountOrder) -> OrderView:
    return OrderView(
        oid=o.oid,
        market=o.market,
        side=cast(Side, o.side),
        kind=o.kind,
        size=float(o.size),
        limit_px=_float(o.limit_px),
        trigger_px=_float(o.trigger_px),
        created_at_ms=o.created_ms,
    )


def hook_of(
    instance: StrategyInstance, event: events.Event, parts: Mapping[str, Part] = MappingProxyType({})
) -> Callable[[], Iterable[Intent]] | None:
    """The hook for an event, with its argument; None if the strategy does not get it."""
    if type(event) not in instance.event_types:
        return None
    strategy, view, coin = instance.strategy, instance.view, event.coin
    if coin not in instance.markets:
        if coin is None and isinstance(event, events.GuardianMoved):
            return partial(strategy.on_guardian, view, _guardian_note(event))
        return None
    if isinstance(event, events.FillEvent):
        fill = _fill(instance, event, parts)
        return None if fill is None else partial(strategy.on_fill, view, fill)
    if isinstance(event, events.Triggered):
        side = cast(Side, event.side)
        touched = Trigger(event.coin, event.ts, event.subtype, side, event.size / E8, event.trigger_px / E8, event.oid)
        return partial(strategy.on_trigger, view, touched)
    assert isinstance(event, events.GuardianMoved)
    return partial(strategy.on_guardian, view, _guardian_note(event))


def _guardian_note(event: events.GuardianMoved) -> GuardianNote:
    return GuardianNote(event.coin, event.ts, event.subtype, event.guardian_type, event.guardian, event.reason)


def _fill(instance: StrategyInstance, event: events.FillEvent, parts: Mapping[str, Part]) -> Fill | None:
    """A fill as the strategy reads it. In a market that it shares it gets its own part, or nothing."""
    if not instance.nets:
        size, fee_usd, left = event.size / E8, event.fee / E8, event.position_size / E8
        realized_usd = None if event.realized is None else event.realized / E8
    elif (part := parts.get(instance.name)) is not None:
        size, fee_usd, left = part.size_e8 / E8, part.fee / E16, part.left_e8 / E8
        realized_usd = None if part.realized is None else part.realized / E16
    else:
        return None
    return Fill(
        market=event.coin,
        at_ms=event.ts,
        side=cast(Side, event.side),
        action=event.intent,
        kind=event.kind,
        size=size,
        px=event.px / E8,
        fee_usd=fee_usd,
        realized_usd=realized_usd,
        position_size=left,
        oid=event.oid,
    )
