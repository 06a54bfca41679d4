"""What a strategy reads: its account and its bars, as of the bar that it decides on and never later.

`ViewSource` is the interface that the daemon implements, one for each View. A live strategy runs in a thread of its
own, so a source must answer from data that does not change while a hook runs. No lock is then needed.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from bot.errors import StrategyError
from bot.strategy.bar import Bar
from bot.strategy.history import History
from bot.strategy.intents import LEVERAGE_MAX, USD_MAX, USD_MIN, Side
from bot.strategy.questions import AskRecord, Question

State: TypeAlias = MutableMapping[str, Any]


class PositionView(NamedTuple):
    """An open position of the account in one market, in floats; where strategies share the market, this one's share.

    stop_px, target_px   None when there is none
    notional_usd         at mark
    risk_usd             the loss from the entry to the stop of its newest bracket; None without a stop
    """

    market: str
    side: Side
    size: float
    entry_px: float
    mark_px: float
    stop_px: float | None
    target_px: float | None
    unrealized_usd: float
    notional_usd: float
    leverage: float
    risk_usd: float | None
    opened_at_ms: int


class OrderView(NamedTuple):
    """An open order at the service: a resting limit, or an armed stop or target (`kind` says which)."""

    oid: str
    market: str
    side: Side
    kind: str
    size: float
    limit_px: float | None
    trigger_px: float | None
    created_at_ms: int


class Fill(NamedTuple):
    """One execution. `action` is "open" or "close"; `realized_usd` is None for a pure open, fees excluded."""

    market: str
    at_ms: int
    side: Side
    action: str
    kind: str
    size: float
    px: float
    fee_usd: float
    realized_usd: float | None
    position_size: float
    oid: str


class Trigger(NamedTuple):
    """A stop or target of a bracket that was touched; its fill is a separate event."""

    market: str
    at_ms: int
    kind: str
    side: Side
    size: float
    trigger_px: float
    oid: str


class GuardianNote(NamedTuple):
    """What a guardian did: `happened` is armed, activated, fired, released or disarmed."""

    market: str | None
    at_ms: int
    happened: str
    guardian_type: str
    guardian_id: str
    reason: str | None


class Timer(NamedTuple):
    """One of the strategy's `timers` and the instant at which it was due."""

    name: str
    at_ms: int


class ViewSource(Protocol):
    """The daemon's data for one strategy. All data are as of `now_ms` and do not change while a hook runs."""

    @property
    def now_ms(self) -> int: ...
    @property
    def equity_usd(self) -> float: ...
    @property
    def free_margin_usd(self) -> float: ...
    @property
    def state(self) -> State:
        """Durable and made of JSON values; the daemon saves it with the cursor after the hook has returned."""

    def all_in_usd(self, market: str, leverage: int) -> float:
        """Notional of the largest entry that free margin and its fee allow, without the bounds of an order."""

    def position(self, market: str) -> PositionView | None: ...
    def orders(self, market: str) -> Sequence[OrderView]: ...
    def history(self, market: str, interval: str | None = None) -> History:
        """Bars that have closed by `now_ms`, of the strategy's interval or a longer one.

        StrategyError for a market not its own, or an interval that its bars do not make.
        """

    def log(self, event: str, fields: dict[str, Any]) -> None: ...
    @property
    def is_warming_up(self) -> bool: ...
    def ask(self, question: Question) -> str | None: ...
    def keep_ask(self, record: AskRecord) -> None: ...


class View:
    """The account and the bars, as a hook reads them. Reading has no side effects; only `state` and `log` write.

    Sequences are lists of floats, newest last, of at most `n` values; near the start there may be fewer. They are of
    the strategy's own interval, or of a longer one: `view.closes("BTC", 50, interval="4h")`. A longer bar is in them
    from its close on.
    """

    __slots__ = ("_source",)

    def __init__(self, source: ViewSource) -> None:
        self._source = source

    @property
    def now_ms(self) -> int:
        """This instant on the service's clock, in unix milliseconds."""
        return self._source.now_ms

    @property
    def equity_usd(self) -> float:
        """Account value: cash, margin and unrealised profit."""
        return self._source.equity_usd

    @property
    def free_margin_usd(self) -> float:
        """Equity less the margin of the open positions, at their entries.

        Margin reserved by resting entries is not subtracted.
        """
        return self._source.free_margin_usd

    def all_in_usd(self, market: str, leverage: int = 1) -> float:
        """The `usd` of a market entry that uses all free margin at this leverage; 0.0 if that is less than 10 USD, the
        minimum order.

        The entry's taker fee (in an event market the highest fee) and the margin of resting entries are left free. The
        service turns `usd` into a size at its fill price, so that spread, depth and the move since this bar change the
        size and not the margin. If another open position loses before the fill, the order can still be too large.
        Margin that a Close of the same hook frees is not counted. The config's `budget_usd` and `max_leverage` apply as
        always.

            usd = view.all_in_usd(bar.market, leverage=3)
            if usd:
                yield Open(bar.market, "long", usd=usd, leverage=3, bracket=Bracket(stop_pct=2))
        """
        given: Any = leverage
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LEVERAGE_MAX:
            raise StrategyError(f"all_in_usd: leverage is a whole number from 1 to {LEVERAGE_MAX}, not {leverage!r}")
        usd = math.floor(min(self._source.all_in_usd(market, leverage), USD_MAX) * 100) / 100
        return usd if usd >= USD_MIN else 0.0

    @property
    def state(self) -> State:
        """A small mapping of this strategy that survives restarts: str -> numbers, texts, lists and dicts of them."""
        return self._source.state

    def position(self, market: str) -> PositionView | None:
        """The open position in `market`, None when flat."""
        return self._source.position(market)

    def orders(self, market: str) -> Sequence[OrderView]:
        """Working orders of `market`, resting and armed."""
        return self._source.orders(market)

    def bars(self, market: str, n: int, interval: str | None = None) -> Sequence[Bar]:
        return self._source.history(market, interval).bars(n)

    def opens(self, market: str, n: int, interval: str | None = None) -> Sequence[float]:
        return self._source.history(market, interval).opens(n)

    def highs(self, market: str, n: int, interval: str | None = None) -> Sequence[float]:
        return self._source.history(market, interval).highs(n)

    def lows(self, market: str, n: int, interval: str | None = None) -> Sequence[float]:
        return self._source.history(market, interval).lows(n)

    def closes(self, market: str, n: int, interval: str | None = None) -> Sequence[float]:
        return self._source.history(market, interval).closes(n)

    def volumes(self, market: str, n: int, interval: str | None = None) -> Sequence[float]:
        return self._source.history(market, interval).volumes(n)

    def log(self, event: str, **fields: Any) -> None:
        """Write a line to the daemon's log, in a backtest to its log.jsonl. Name events in the past tense:
        view.log("signal.seen", market=bar.market, rsi=28.5).

        A field with a name that the log itself uses (`level`, `strategy`, `timestamp`) is written as `said_level`.
        """
        self._source.log(event, fields)

    @property
    def is_warming_up(self) -> bool:
        """True while past bars come after a start: intents, log lines and changes of `state` are dropped."""
        return self._source.is_warming_up

    def ask(self, question: Question) -> str | None:
        """Have a question answered in a thread of its own.

        `on_reply` gets the reply. Returns why it is not asked, None if it is.
        """
        return self._source.ask(question)

    def keep_ask(self, record: AskRecord) -> None:
        """Keep a question with what came of it in the journal. A later record of the same cause replaces it."""
        self._source.keep_ask(record)
