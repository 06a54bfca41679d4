"""Records: the decisions and fills of a journal or of a run's folder, under keys that are the same in another run of
the same time.

Ids and instants differ between runs. So a decision is named by its trigger (strategy, market, bar or event, number
within the trigger), and a fill by the decision that ordered it, or by its position. Counting starts where the
comparison begins, because the other run has nothing before.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

from bot.clock import HOUR_MS
from bot.errors import BotError
from bot.money import e16_of_decimal
from bot.runtime.journal import queries
from bot.runtime.journal.bars_seen import read_seen
from bot.runtime.journal.journal import EVENTS_KEPT, INTENTS_KEPT, REFUSALS_KEPT
from bot.runtime.journal.queries import Row
from bot.runtime.model.intents import intent_key
from bot.runtime.model.shares import AttributionChanges, EntryRow, TradeRow
from bot.runtime.strategy_host.fingerprints import NOTE, known_since, marks_in

SECOND_MS: Final = 1_000


class DecisionKey(NamedTuple):
    """Names a decision.

    `cause` is `bar:BTC:<close>` or `event:fill.entry:BTC:3` (the third such event). `ordinal` and `leg` number the
    decisions of a cause.
    """

    strategy: str
    market: str
    cause: str
    ordinal: int
    leg: str

    @property
    def bar_ms(self) -> int | None:
        kind, _, rest = self.cause.removeprefix("agent:").partition(":")
        return int(rest.rpartition(":")[2]) if kind == "bar" else None


@dataclass(frozen=True, slots=True)
class Decided:
    """One intent. `bar` is the bar that it was decided on, if the journal has it."""

    key: DecisionKey
    at_ms: int
    action: str
    body: Mapping[str, Any]
    state: str
    code: str | None
    message: str | None
    bar: Mapping[str, Any] | None

    @property
    def text(self) -> str:
        words = [f"{name} {_said(value)}" for name, value in self.body.items() if name not in ("market", "source")]
        end = "" if self.state == "accepted" else f" ({self.state}{'' if self.code is None else ': ' + self.code})"
        return f"{self.action} {', '.join(words) or 'all'}{end}"


class FillKey(NamedTuple):
    """Names a fill. With `is_own`: the n-th fill of the decision `owner`. Otherwise: the n-th fill without a decision,
    in the position that `owner` opened. A negative number means before the comparison.
    """

    market: str
    owner: DecisionKey | None
    is_own: bool
    number: int


@dataclass(frozen=True, slots=True)
class ReplayedFill:
    """One fill. Stops, targets, guardians and orders from outside have fills too."""

    key: FillKey
    ts: int
    market: str
    kind: str
    side: str
    subtype: str
    size: Decimal
    px: Decimal
    fee: Decimal
    liquidity: str
    # signed, after it
    position: Decimal
    balance: Decimal
    # True: it bought
    is_buy: bool

    @property
    def notional(self) -> Decimal:
        return self.px * self.size

    @property
    def cash(self) -> Decimal:
        """USD that it brought, fee included; negative for a buy."""
        return (-self.notional if self.is_buy else self.notional) - self.fee

    @property
    def signed(self) -> Decimal:
        """Its size; negative for a sale."""
        return self.size if self.is_buy else -self.size

    @property
    def text(self) -> str:
        return f"{self.subtype} {self.kind} {self.side} {self.size:f} @ {self.px:f}"


class RefusedSignal(NamedTuple):
    """What the risk check refused."""

    code: str
    message: str
    at_ms: int
    market: str


class Paid(NamedTuple):
    """A payment of funding: signed size, rate an hour, USD (negative: the account paid), and the event's instant."""

    size: Decimal
    rate: Decimal
    usd: Decimal
    ts: int


class EntryAnswer(NamedTuple):
    """The answer to an entry that waited for a person or a policy."""

    state: str
    decider: str | None
    waited_ms: int


class Fired(NamedTuple):
    """A guardian that fired: the `number`-th of its kind on that market. Negative: before the comparison."""

    kind: str
    market: str
    number: int


@dataclass(slots=True)
class RunRecord:
    """One side of the comparison.

    `done` has the last decided bar of each (market, interval). `marks` are the digests of code and config at each
    start.
    """

    name: str
    address: str | None = None
    epoch: int | None = None
    decisions: dict[DecisionKey, Decided] = field(default_factory=dict)
    # by intent id
    keys: dict[str, DecisionKey] = field(default_factory=dict)
    fills: dict[FillKey, ReplayedFill] = field(default_factory=dict)
    # Stops and targets, by the decision that opened the position: instant, kind, price.
    levels: dict[DecisionKey, list[tuple[int, str, str]]] = field(default_factory=dict)
    # instant and action
    fired: dict[Fired, tuple[int, str]] = field(default_factory=dict)
    # Event markets that were settled with an open position: instant, and the payout of a Yes.
    settled: dict[str, tuple[int, Decimal]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, int], RefusedSignal] = field(default_factory=dict)
    # by market and full hour
    fundings: dict[tuple[str, int], Paid] = field(default_factory=dict)
    # the entries that waited for an answer
    answers: dict[DecisionKey, EntryAnswer] = field(default_factory=dict)
    # when a strategy was quarantined, and why; the newest of each
    quarantined: dict[str, tuple[int, str]] = field(default_factory=dict)
    # (market, interval) -> close of each decided bar -> checksum of its values; empty if the record keeps none
    seen: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    done: dict[tuple[str, str], int] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    # the instant since which each start, reload and resume has left a mark
    marked_ms: int = 0
    # True: every decision is known. False: only those that became orders.
    is_whole: bool = True
    start_ms: int = 0
    end_ms: int = 0
    start_usd: Decimal | None = None
    # markets with a position before their first recorded fill
    begins_open: tuple[str, ...] = ()
    # True: the oldest events of the run have been deleted
    is_cut: bool = False
    _fill_index: _FillIndex | None = field(default=None, repr=False)

    def position(self, market: str, before_ms: int) -> Decimal:
        """The signed position right before an instant."""
        fill = _last_before(self._index.by_market.get(market, []), before_ms)
        return Decimal(0) if fill is None else fill.position

    def was_flat(self, market: str, opener: DecisionKey, before_ms: int) -> bool:
        """True if the position that a decision opened was closed before an instant."""
        opened = self.fills_of(opener)
        fills = self._index.by_market.get(market, [])
        first, last = bisect_left(fills, opened[0].ts, key=_ts) if opened else 0, bisect_left(fills, before_ms, key=_ts)
        return any(not fill.position for fill in fills[first:last])

    def balance(self, before_ms: int) -> Decimal | None:
        """The account's balance right before an instant; None if it is not known."""
        fill = _last_before(self._index.all, before_ms)
        return self.start_usd if fill is None else fill.balance

    def fills_of(self, key: DecisionKey) -> list[ReplayedFill]:
        """The fills of the order that a decision sent."""
        return self._index.by_decision.get(key, [])

    @property
    def _index(self) -> _FillIndex:
        """Made at the first question, when all fills are known."""
        if self._fill_index is None:
            self._fill_index = _FillIndex(list(self.fills.values()))
        return self._fill_index


class _FillIndex:
    """Fills in the order of time: all of them, by market, and by the decision that ordered them."""

    def __init__(self, fills: list[ReplayedFill]) -> None:
        self.all = fills
        self.by_market: dict[str, list[ReplayedFill]] = {}
        self.by_decision: dict[DecisionKey, list[ReplayedFill]] = {}
        for fill in fills:
            self.by_market.setdefault(fill.market, []).append(fill)
            if fill.key.is_own and fill.key.owner is not None:
                self.by_decision.setdefault(fill.key.owner, []).append(fill)


def _last_before(fills: list[ReplayedFill], before_ms: int) -> ReplayedFill | None:
    row = bisect_left(fills, before_ms, key=_ts)
    return fills[row - 1] if row else None


def _ts(fill: ReplayedFill) -> int:
    return fill.ts


def read_journal(folder: Path, *, since_ms: int = 0) -> RunRecord:
    """Read the newest epoch of a journal. Counting starts at `since_ms`. BotError if there is nothing to replay."""
    with queries.opened(folder) as db:
        record = of_journal(db, name=str(folder), since_ms=since_ms)
    if not record.decisions and not record.fills and not (record.marks and record.done):
        raise BotError(f"{folder}: its journal has no decision and no fill yet: there is nothing to replay")
    return record


def of_journal(db: sqlite3.Connection, *, name: str, since_ms: int = 0) -> RunRecord:
    record = RunRecord(name)
    meta = {row["name"]: row["value"] for row in queries.rows(db, "SELECT name, value FROM meta")}
    cursor = queries.rows(db, "SELECT epoch FROM cursor")
    record.address = meta.get("address")
    record.epoch = epoch = cursor[0]["epoch"] if cursor else 0
    marks = marks_in(meta.get(NOTE))
    record.marks, record.marked_ms = [mark for mark in marks if mark.get("epoch") == epoch], known_since(marks)
    events = [
        json.loads(row["payload"])
        for row in queries.rows(db, "SELECT payload FROM events WHERE epoch=? ORDER BY seq", (epoch,))
    ]
    names = _names(events, since_ms)
    columns = "id, strategy, market, action, cause, ordinal, leg, body, opened_ms, state, code, message"
    # Constants only.
    for row in queries.rows(db, f"SELECT {columns} FROM intents WHERE epoch=? ORDER BY seq", (epoch,)):  # noqa: S608
        key = DecisionKey(row["strategy"], row["market"], _cause(row["cause"], names), row["ordinal"], row["leg"])
        record.keys[row["id"]] = key
        bar = queries.traces(db, row["id"]).get("bar")
        record.decisions[key] = Decided(
            key,
            row["opened_ms"],
            row["action"],
            json.loads(row["body"]),
            row["state"],
            row["code"],
            row["message"],
            bar,
        )
    for row in queries.rows(db, "SELECT at_ms, market, strategy, cause, ordinal, code, message FROM refusals"):
        record.refusals[row["strategy"], _cause(row["cause"], names), row["ordinal"]] = RefusedSignal(
            row["code"], row["message"], row["at_ms"], row["market"]
        )
    _read_answers(record, db)
    _read_quarantines(record, db)
    _read_seen(record, db)
    for row in queries.rows(db, "SELECT market, interval, at_ms FROM progress"):
        record.done[row["market"], row["interval"]] = row["at_ms"]
    _fold(record, events, since_ms)
    instants = [decision.at_ms for decision in record.decisions.values()] + [event["ts"] for event in events]
    starts = [int(mark["atMs"]) for mark in record.marks]
    record.start_ms = min([*starts, *instants], default=0)
    oldest = queries.rows(db, "SELECT min(seq) AS seq FROM events")[0]["seq"]
    if oldest is not None and oldest > 1 and events:
        record.is_cut, record.start_ms = True, events[0]["ts"]
    record.end_ms = max([*instants, *record.done.values(), *starts], default=0)
    if (
        record.marks
        and "balanceUsd" in record.marks[0]
        and int(record.marks[0]["atMs"]) <= min([*instants, record.end_ms])
    ):
        record.start_usd = Decimal(record.marks[0]["balanceUsd"])
    return record


def _read_answers(record: RunRecord, db: sqlite3.Connection) -> None:
    if not queries.has_table(db, "approvals"):
        return
    for row in queries.rows(db, "SELECT intent_id, state, decider, asked_ms, decided_ms FROM approvals"):
        key = record.keys.get(row["intent_id"])
        if key is not None:
            waited_ms = 0 if row["decided_ms"] is None else row["decided_ms"] - row["asked_ms"]
            record.answers[key] = EntryAnswer(row["state"], row["decider"], waited_ms)


def _read_quarantines(record: RunRecord, db: sqlite3.Connection) -> None:
    """From the notices, because a quarantine that has ended leaves nothing else."""
    sql = "SELECT payload FROM outbox WHERE kind='strategy.quarantined' ORDER BY seq"
    for row in queries.rows(db, sql):
        payload = json.loads(row["payload"])
        record.quarantined[str(payload.get("strategy"))] = int(payload["at_ms"]), str(payload.get("message"))


def _read_seen(record: RunRecord, db: sqlite3.Connection) -> None:
    if queries.has_table(db, "bars_seen"):
        for row in queries.rows(db, "SELECT hour_ms, market, interval, seen FROM bars_seen ORDER BY hour_ms"):
            series = record.seen.setdefault((row["market"], row["interval"]), {})
            series.update(read_seen(row["hour_ms"], row["seen"]))


class FlatPoint(NamedTuple):
    """An instant without positions and orders, with the balance, what strategies knew, and the bars decided by then.

    `counted`: the closed trades and the entries by then, which protections count (`with_trades`).
    """

    at_ms: int
    balance_usd: Decimal
    states: Mapping[str, str]
    bars: tuple[tuple[str, str, int], ...]
    counted: AttributionChanges = AttributionChanges(0)

    @property
    def next_ms(self) -> int:
        """The first instant after it: what happened at its own instant came before it."""
        return self.at_ms + 1


def flat_points(db: sqlite3.Connection, *, epoch: int) -> list[FlatPoint]:
    """The flat points of an epoch, oldest first."""
    if not queries.has_table(db, "flat_points"):
        return []
    sql = "SELECT at_ms, balance_usd, states, bars FROM flat_points WHERE epoch=? ORDER BY at_ms"
    return [
        FlatPoint(
            row["at_ms"],
            Decimal(row["balance_usd"]),
            json.loads(row["states"]),
            tuple((market, interval, at_ms) for market, interval, at_ms in json.loads(row["bars"])),
        )
        for row in queries.rows(db, sql, (epoch,))
    ]


def with_trades(db: sqlite3.Connection, point: FlatPoint, *, epoch: int) -> FlatPoint:
    """The flat point with the closed trades and the entries that the journal has of the time until then."""
    if not queries.has_table(db, "trades"):
        return point
    trades = queries.rows(
        db,
        "SELECT strategy, market, side, opened_ms, closed_ms, net_usd, is_stop FROM trades WHERE epoch=? AND"
        " closed_ms<=? ORDER BY seq",
        (epoch, point.at_ms),
    )
    entries = queries.rows(
        db,
        "SELECT key, strategy, market, at_ms FROM entries WHERE epoch=? AND at_ms<=? ORDER BY seq",
        (epoch, point.at_ms),
    )
    counted = AttributionChanges(0, trades=tuple(map(_trade_row, trades)), entries=tuple(map(_entry_row, entries)))
    return point._replace(counted=counted)


def _trade_row(row: Row) -> TradeRow:
    net = e16_of_decimal(Decimal(row["net_usd"]))
    return TradeRow(
        row["strategy"], row["market"], row["side"], row["opened_ms"], row["closed_ms"], net, bool(row["is_stop"])
    )


def _entry_row(row: Row) -> EntryRow:
    return EntryRow(row["key"], row["strategy"], row["market"], row["at_ms"])


def whole_since(db: sqlite3.Connection) -> int:
    """The instant since which the journal has every event, intent and refusal; 0 if nothing was removed.

    Rows are numbered without gaps, and the journal removes rows only beyond the newest so many. A row that is missing
    among those that it keeps was not removed by age, so it is a difference and no limit of the proof.
    """
    since_ms = 0
    for table, instant, kept in (
        ("events", "ts", EVENTS_KEPT),
        ("intents", "opened_ms", INTENTS_KEPT),
        ("refusals", "at_ms", REFUSALS_KEPT),
    ):
        # Constants only.
        ((old, there),) = db.execute(
            f"WITH bound AS (SELECT max(0, coalesce(max(seq), 0) - ?) AS old FROM {table})"  # noqa: S608
            f" SELECT old, (SELECT count(*) FROM {table} WHERE seq <= old) FROM bound",
            (kept,),
        ).fetchall()
        if there == old:
            continue
        since = queries.rows(
            db,
            f"SELECT {instant} AS at_ms FROM {table} WHERE seq > ? ORDER BY seq LIMIT 1",  # noqa: S608
            (old,),
        )
        since_ms = max(since_ms, since[0]["at_ms"] if since else 0)
    return since_ms


def of_events(path: Path, *, again: RunRecord, start_usd: Decimal) -> RunRecord:
    """Read a run's events.jsonl.

    It has no intents, so its order ids are looked up in `again`, another run of the same account.
    """
    record = RunRecord(str(path), is_whole=False, start_usd=start_usd)
    try:
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise BotError(f"{path}: cannot be read: {error}") from None
    keys = _ids(again, _names(events, again.start_ms))
    for event in events:
        used = event.get("idempotencyKey")
        if used is None or used in record.keys:
            continue
        key = keys.get(used) or DecisionKey("", str(event.get("coin")), f"order:{used}", 0, "order")
        record.keys[used] = key
        record.decisions[key] = Decided(key, event["ts"], "order", {}, "accepted", None, None, None)
    _fold(record, events, again.start_ms)
    record.start_ms = min((event["ts"] for event in events), default=0)
    record.end_ms = max((event["ts"] for event in events), default=0)
    return record


def _ids(again: RunRecord, names: Mapping[str, str]) -> dict[str, DecisionKey]:
    """The key of each decision of `again`, by order id.

    The id of a decision on an event is derived from the event's id in `names`.
    """
    ids = {name: event_id for event_id, name in names.items()}
    by_id = {}
    for used, key in again.keys.items():
        if key.cause in ids:
            used = intent_key(
                address=again.address or "",
                epoch=again.epoch or 0,
                strategy=key.strategy,
                market=key.market,
                trigger=f"event:{ids[key.cause]}",
                ordinal=key.ordinal,
                leg=key.leg,
            )
        elif key.cause.startswith("event:"):
            continue
        by_id[used] = key
    return by_id


def _fold(record: RunRecord, events: Iterable[Mapping[str, Any]], since_ms: int) -> None:
    # market -> the decision that opened the position
    owners: dict[str, DecisionKey | None] = {}
    counted: Counter[tuple[Any, ...]] = Counter()
    begun: list[str] = []
    seen: set[str] = set()
    for event in events:
        kind, data, market = event["type"], event["data"], event.get("coin") or ""
        if kind == "guardian" and event["subtype"] == "fired":
            number = _number(counted, event, since_ms, data["guardianType"], market)
            record.fired[Fired(data["guardianType"], market, number)] = event["ts"], str(data.get("action") or "")
        if kind == "settlement":
            # A backtest settles one millisecond earlier.
            at_ms = event["ts"]
            record.settled[market] = at_ms + (at_ms % SECOND_MS == SECOND_MS - 1), Decimal(data["outcomePx"])
        if kind == "funding":
            size = Decimal(data["size"])
            record.fundings[market, event["ts"] // HOUR_MS] = Paid(
                size if data["side"] == "long" else -size,
                Decimal(data["rate"]),
                Decimal(data["amountUsd"]),
                event["ts"],
            )
        opened_by = owners.get(market)
        if kind == "order" and event["subtype"] == "armed" and opened_by is not None:
            record.levels.setdefault(opened_by, []).append((event["ts"], data["kind"], str(data.get("triggerPx"))))
        if record.start_usd is None and "balanceUsd" in data:
            record.start_usd = _before(kind, data)
        if kind != "fill":
            continue
        size, after = Decimal(data["size"]), Decimal(data["positionSize"])
        own = record.keys.get(event.get("idempotencyKey") or "")
        if event["subtype"] == "entry" and abs(after) == size:
            owners[market] = own
        elif market not in seen and not (event["subtype"] == "entry" and abs(after) == size):
            begun.append(market)
        seen.add(market)
        owner = own or owners.get(market)
        is_own = own is not None
        key = FillKey(market, owner, is_own, _number(counted, event, since_ms, market, owner, is_own))
        record.fills[key] = ReplayedFill(
            key,
            event["ts"],
            market,
            data["kind"],
            data["side"],
            event["subtype"],
            size,
            Decimal(data["px"]),
            Decimal(data["feeUsd"]),
            str(data.get("liquidity")),
            after if data["side"] == "long" else -after,
            Decimal(data["balanceUsd"]),
            (data["side"] == "long") == (event["subtype"] == "entry"),
        )
    record.begins_open = tuple(begun)


def _before(kind: str, data: Mapping[str, Any]) -> Decimal | None:
    """The balance before the first event that has one."""
    after = Decimal(data["balanceUsd"])
    if kind == "fill":
        return after + Decimal(data["feeUsd"]) - Decimal(data.get("realizedPnlUsd") or 0)
    return after - Decimal(data["amountUsd"]) if kind == "funding" else None


def _names(events: Iterable[Mapping[str, Any]], since_ms: int) -> dict[str, str]:
    """By event id: a name that is the same in every run, made of kind, market and number."""
    counted: Counter[tuple[Any, ...]] = Counter()
    names: dict[str, str] = {}
    for event in events:
        kind, market = f"{event['type']}.{event['subtype']}", str(event.get("coin") or "")
        names[event["id"]] = f"event:{kind}:{market}:{_number(counted, event, since_ms, kind, market)}"
    return names


def _number(counted: Counter[tuple[Any, ...]], event: Mapping[str, Any], since_ms: int, *what: Any) -> int:
    """The number of an event among those of its kind: 1, 2, 3 from `since_ms` on; -1, -2, -3 before, because the
    other run does not have these.
    """
    step = 1 if event["ts"] >= since_ms else -1
    counted[step, *what] += step
    return counted[step, *what]


def _cause(cause: str, names: Mapping[str, str]) -> str:
    kind, _, rest = cause.partition(":")
    return names.get(rest, cause) if kind == "event" else cause


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_said(inner)}" for name, inner in value.items()) + "}"
    return str(value)
