"""Records: what a journal, or a run's folder, says was decided and filled, under names that another run of the same time has too. Reads; judges nothing.

A decision is named by what made it (strategy, market, bar or event, place in its cause), a fill by the decision that ordered it, or else by the
position that it belongs to: ids and instants are each run's own. What is counted is counted from where the comparison begins, since the other
run has nothing before.
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

from bot.errors import BotError
from bot.runtime.journal import queries
from bot.runtime.model.intents import intent_key
from bot.runtime.strategy_host.fingerprints import NOTE, known_since, marks_in

SECOND_MS: Final = 1_000


class Key(NamedTuple):
    """A decision: `cause` is `bar:BTC:<close>` or `event:fill.entry:BTC:3` (the third such event of the comparison), `ordinal` and `leg` its place in it."""

    strategy: str
    market: str
    cause: str
    ordinal: int
    leg: str

    @property
    def bar_ms(self) -> int | None:
        kind, _, rest = self.cause.partition(":")
        return int(rest.rpartition(":")[2]) if kind == "bar" else None


@dataclass(frozen=True, slots=True)
class Decided:
    """One intent. `bar` is the one that it was decided on, when it was kept."""

    key: Key
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
    """The n-th fill of a decision, or the n-th that no decision ordered in the position which that decision opened. Below 0: before the comparison."""

    market: str
    owner: Key | None
    is_own: bool
    number: int


@dataclass(frozen=True, slots=True)
class Filled:
    """One execution. `trigger` marks those that no order of ours asked for: stops, targets, guardians, another hand."""

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
    position: Decimal  # signed, after it
    balance: Decimal

    @property
    def notional(self) -> Decimal:
        return self.px * self.size

    @property
    def text(self) -> str:
        return f"{self.subtype} {self.kind} {self.side} {self.size:f} @ {self.px:f}"


class Fired(NamedTuple):
    """A guardian that acted: the `number`-th of its kind on that market. Below 0: before the comparison."""

    kind: str
    market: str
    number: int


@dataclass(slots=True)
class Record:
    """What one side says. `done` has the last decided bar of each (market, interval), None where nobody says; `marks` are provenance's."""

    name: str
    address: str | None = None
    epoch: int | None = None
    decisions: dict[Key, Decided] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)  # of every intent's id
    fills: dict[FillKey, Filled] = field(default_factory=dict)
    # Stops and targets by the decision that opened the position: when, which, and where.
    levels: dict[Key, list[tuple[int, str, str]]] = field(default_factory=dict)
    fired: dict[Fired, tuple[int, str]] = field(default_factory=dict)  # when, and what it did
    # Event markets in which something was held then: when, and what a Yes paid.
    settled: dict[str, tuple[int, Decimal]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, int], tuple[str, str]] = field(default_factory=dict)
    done: dict[tuple[str, str], int] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    marked_ms: int = 0  # from when on there is a mark of each start, reload and resume
    is_whole: bool = True  # every decision is known, not only what became an order
    start_ms: int = 0
    end_ms: int = 0
    start_usd: Decimal | None = None
    begins_open: tuple[str, ...] = ()  # markets whose first fill found a position
    is_cut: bool = False  # its oldest events are not kept any more
    _fills_of: dict[str | None, list[Filled]] = field(default_factory=dict, repr=False)
    _own: dict[Key, list[Filled]] | None = field(default=None, repr=False)

    def held(self, market: str, before_ms: int) -> Decimal:
        """The signed position as it stood right before an instant."""
        mine = self._of_market(market)
        row = bisect_left(mine, before_ms, key=_ts)
        return mine[row - 1].position if row else Decimal(0)

    def balance(self, before_ms: int) -> Decimal | None:
        mine = self._of_market(None)
        row = bisect_left(mine, before_ms, key=_ts)
        return mine[row - 1].balance if row else self.start_usd

    def own(self, key: Key) -> list[Filled]:
        """The fills that a decision ordered."""
        if self._own is None:
            self._own = {}
            for one in self.fills.values():
                if one.key.is_own and one.key.owner is not None:
                    self._own.setdefault(one.key.owner, []).append(one)
        return self._own.get(key, [])

    def _of_market(self, market: str | None) -> list[Filled]:
        if market not in self._fills_of:
            self._fills_of[market] = [one for one in self.fills.values() if market in (None, one.market)]
        return self._fills_of[market]


def _ts(one: Filled) -> int:
    return one.ts


def read_journal(folder: Path, *, since_ms: int = 0) -> Record:
    """The newest epoch in a state directory's journal; what is counted counts from `since_ms` on. BotError when there is nothing to replay."""
    with queries.opened(folder) as db:
        made = of_journal(db, name=str(folder), since_ms=since_ms)
    if not made.decisions and not made.fills and not (made.marks and made.done):
        raise BotError(f"{folder}: its journal has no decision and no fill yet: there is nothing to replay")
    return made


def of_journal(db: sqlite3.Connection, *, name: str, since_ms: int = 0) -> Record:
    made = Record(name)
    meta = {one["name"]: one["value"] for one in queries.rows(db, "SELECT name, value FROM meta")}
    cursor = queries.rows(db, "SELECT epoch FROM cursor")
    made.address = meta.get("address")
    made.epoch = epoch = cursor[0]["epoch"] if cursor else 0
    marks = marks_in(meta.get(NOTE))
    made.marks, made.marked_ms = [one for one in marks if one.get("epoch") == epoch], known_since(marks)
    events = [
        json.loads(one["payload"])
        for one in queries.rows(db, "SELECT payload FROM events WHERE epoch=? ORDER BY seq", (epoch,))
    ]
    names = _names(events, since_ms)
    columns = "id, strategy, market, action, cause, ordinal, leg, body, opened_ms, state, code, message"
    for row in queries.rows(db, f"SELECT {columns} FROM intents WHERE epoch=? ORDER BY seq", (epoch,)):  # noqa: S608 - constants only
        key = Key(row["strategy"], row["market"], _cause(row["cause"], names), row["ordinal"], row["leg"])
        made.keys[row["id"]] = key
        bar = queries.traces(db, row["id"]).get("bar")
        made.decisions[key] = Decided(
            key, row["opened_ms"], row["action"], json.loads(row["body"]), row["state"], row["code"], row["message"], bar
        )  # fmt: skip
    for row in queries.rows(db, "SELECT strategy, cause, ordinal, code, message FROM refusals"):
        made.refusals[row["strategy"], _cause(row["cause"], names), row["ordinal"]] = row["code"], row["message"]
    for row in queries.rows(db, "SELECT market, interval, at_ms FROM progress"):
        made.done[row["market"], row["interval"]] = row["at_ms"]
    _fold(made, events, since_ms)
    instants = [one.at_ms for one in made.decisions.values()] + [event["ts"] for event in events]
    starts = [int(one["atMs"]) for one in made.marks]
    made.start_ms = min([*starts, *instants], default=0)
    oldest = queries.rows(db, "SELECT min(seq) AS seq FROM events")[0]["seq"]
    if oldest is not None and oldest > 1 and events:
        made.is_cut, made.start_ms = True, events[0]["ts"]
    made.end_ms = max([*instants, *made.done.values(), *starts], default=0)
    if made.marks and "balanceUsd" in made.marks[0] and int(made.marks[0]["atMs"]) <= min([*instants, made.end_ms]):
        made.start_usd = Decimal(made.marks[0]["balanceUsd"])
    return made


def of_events(path: Path, *, again: Record, start_usd: Decimal) -> Record:
    """A run's events.jsonl. It has no intents: its orders' ids are told from the decisions of `again`, another run of the same account."""
    made = Record(str(path), is_whole=False, start_usd=start_usd)
    try:
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise BotError(f"{path}: cannot be read: {error}") from None
    keys = _ids(again, _names(events, again.start_ms))
    for event in events:
        used = event.get("idempotencyKey")
        if used is None or used in made.keys:
            continue
        key = keys.get(used) or Key("", str(event.get("coin")), f"order:{used}", 0, "order")
        made.keys[used] = key
        made.decisions[key] = Decided(key, event["ts"], "order", {}, "accepted", None, None, None)
    _fold(made, events, again.start_ms)
    made.start_ms = min((event["ts"] for event in events), default=0)
    made.end_ms = max((event["ts"] for event in events), default=0)
    return made


def _ids(again: Record, names: Mapping[str, str]) -> dict[str, Key]:
    """The id that each decision of `again` has where the events are named so: it is a function of the event's own id."""
    ids = {name: event_id for event_id, name in names.items()}
    found = {}
    for used, key in again.keys.items():
        if key.cause in ids:
            used = intent_key(
                address=again.address or "", epoch=again.epoch or 0, strategy=key.strategy, market=key.market,
                trigger=f"event:{ids[key.cause]}", ordinal=key.ordinal, leg=key.leg,
            )  # fmt: skip
        elif key.cause.startswith("event:"):
            continue
        found[used] = key
    return found


def _fold(made: Record, events: Iterable[Mapping[str, Any]], since_ms: int) -> None:
    owners: dict[str, Key | None] = {}  # of the position that is open in a market
    counted: Counter[tuple[Any, ...]] = Counter()
    begun: list[str] = []
    seen: set[str] = set()
    for event in events:
        kind, data, market = event["type"], event["data"], event.get("coin") or ""
        if kind == "guardian" and event["subtype"] == "fired":
            number = _number(counted, event, since_ms, data["guardianType"], market)
            made.fired[Fired(data["guardianType"], market, number)] = event["ts"], str(data.get("action") or "")
        if kind == "settlement":
            at_ms = event["ts"]  # A session settles in the millisecond before.
            made.settled[market] = at_ms + (at_ms % SECOND_MS == SECOND_MS - 1), Decimal(data["outcomePx"])
        opened_by = owners.get(market)
        if kind == "order" and event["subtype"] == "armed" and opened_by is not None:
            made.levels.setdefault(opened_by, []).append((event["ts"], data["kind"], str(data.get("triggerPx"))))
        if made.start_usd is None and "balanceUsd" in data:
            made.start_usd = _before(kind, data)
        if kind != "fill":
            continue
        size, after = Decimal(data["size"]), Decimal(data["positionSize"])
        own = made.keys.get(event.get("idempotencyKey") or "")
        if event["subtype"] == "entry" and abs(after) == size:
            owners[market] = own
        elif market not in seen and not (event["subtype"] == "entry" and abs(after) == size):
            begun.append(market)
        seen.add(market)
        owner = own or owners.get(market)
        is_own = own is not None
        key = FillKey(market, owner, is_own, _number(counted, event, since_ms, market, owner, is_own))
        made.fills[key] = Filled(
            key, event["ts"], market, data["kind"], data["side"], event["subtype"], size, Decimal(data["px"]), Decimal(data["feeUsd"]),
            str(data.get("liquidity")), after if data["side"] == "long" else -after, Decimal(data["balanceUsd"]),
        )  # fmt: skip
    made.begins_open = tuple(begun)


def _before(kind: str, data: Mapping[str, Any]) -> Decimal | None:
    """The balance before the first event that has one."""
    after = Decimal(data["balanceUsd"])
    if kind == "fill":
        return after + Decimal(data["feeUsd"]) - Decimal(data.get("realizedPnlUsd") or 0)
    return after - Decimal(data["amountUsd"]) if kind == "funding" else None


def _names(events: Iterable[Mapping[str, Any]], since_ms: int) -> dict[str, str]:
    """Event id -> a name that it has in every run: its kind, its market, and the how-manieth it is."""
    counted: Counter[tuple[Any, ...]] = Counter()
    found: dict[str, str] = {}
    for event in events:
        kind, market = f"{event['type']}.{event['subtype']}", str(event.get("coin") or "")
        found[event["id"]] = f"event:{kind}:{market}:{_number(counted, event, since_ms, kind, market)}"
    return found


def _number(counted: Counter[tuple[Any, ...]], event: Mapping[str, Any], since_ms: int, *what: Any) -> int:
    """The how-manieth of its like: 1, 2, 3 from `since_ms` on; -1, -2, -3 before, which are none of the other run's."""
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
