"""Altered days: one change of a lived day or of its test each, and the cause that the proof must name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.data.candles import Candles
from bot.cli.app import call
from tests.backtest.builders import MINUTE_MS

Change = Callable[[sqlite3.Connection], None]


@dataclass(frozen=True)
class Altered:
    """`live` changes the journal; the rest changes what is tested: params, lines of the strategy, config, candles."""

    name: str
    cause: str
    live: Change | None = None
    params: dict[str, Any] = field(default_factory=dict)
    line: tuple[str, str] | None = None
    config: str = ""
    candles: Callable[[Candles, sqlite3.Connection], Candles] | None = None


def proved(folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = call(["proof", "--config", str(folder / "mine.yaml"), "--data", str(data), "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def fills(db: sqlite3.Connection, kind: str) -> list[tuple[int, dict[str, Any]]]:
    rows = db.execute("SELECT seq, payload FROM events WHERE type='fill' ORDER BY seq").fetchall()
    read = [(seq, json.loads(payload)) for seq, payload in rows]
    return [(seq, event) for seq, event in read if event["data"]["kind"] == kind]


def write(db: sqlite3.Connection, seq: int, event: dict[str, Any]) -> None:
    db.execute("UPDATE events SET payload=?, ts=? WHERE seq=?", (json.dumps(event), event["ts"], seq))


def edit(kind: str, number: int, change: Callable[[dict[str, Any]], None]) -> Change:
    """Change the n-th fill of a kind; -1: all of them."""

    def run(db: sqlite3.Connection) -> None:
        chosen = fills(db, kind)
        for seq, event in chosen if number < 0 else chosen[number : number + 1]:
            change(event)
            write(db, seq, event)

    return run


def price(by: float) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        moved(event, by)

    return change


def moved(event: dict[str, Any], by: float) -> None:
    """Another price, with the fee that belongs to it."""
    data, px = event["data"], round(float(event["data"]["px"]) * (1 + by), 1)
    data |= {"feeUsd": f"{float(data['feeUsd']) / float(data['px']) * px:.8f}", "px": f"{px}"}


def fee(factor: float, **more: str) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        event["data"] |= {"feeUsd": f"{float(event['data']['feeUsd']) * factor:.6f}", **more}

    return change


def later(ms: int) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        event["ts"] += ms
        moved(event, 0.0001)

    return change


def funding(number: int, **values: str) -> Change:
    def run(db: sqlite3.Connection) -> None:
        rows = db.execute("SELECT seq, payload FROM events WHERE type='funding' ORDER BY seq").fetchall()
        seq, payload = rows[number]
        event = json.loads(payload)
        event["data"] |= values
        write(db, seq, event)

    return run


def drop(sql: str) -> Change:
    def run(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA foreign_keys=OFF")
        db.execute(sql)

    return run


def entry(db: sqlite3.Connection, number: int) -> tuple[Any, ...]:
    """Id, strategy, cause and instant of the n-th entry."""
    sql = "SELECT id, strategy, cause, opened_ms FROM intents WHERE action='open' ORDER BY seq LIMIT 1 OFFSET ?"
    row: tuple[Any, ...] = db.execute(sql, (number,)).fetchone()
    return row


def without_trade(db: sqlite3.Connection, number: int) -> tuple[Any, ...]:
    """Remove the fills and the orders of the n-th entry until the next entry."""
    first, after = entry(db, number), entry(db, number + 1)
    db.execute("DELETE FROM events WHERE ts >= ? AND ts < ?", (first[3], after[3]))
    sql = "SELECT id FROM intents WHERE action='close' AND opened_ms >= ? AND opened_ms < ?"
    for (name,) in db.execute(sql, (first[3], after[3])).fetchall():
        forget(db, name)
    return first


def forget(db: sqlite3.Connection, name: str) -> None:
    for table, column in (("attempts", "intent_id"), ("traces", "intent_id"), ("intents", "id")):
        db.execute(f"DELETE FROM {table} WHERE {column}=?", (name,))


def refused(code: str, message: str, number: int = 2) -> Change:
    """The risk check refused an entry, so that the day has no trade of it."""

    def run(db: sqlite3.Connection) -> None:
        name, strategy, cause, at_ms = without_trade(db, number)
        forget(db, name)
        row = (at_ms, strategy, "BTC", cause, 0, code, message)
        db.execute(
            "INSERT INTO refusals (at_ms, strategy, market, cause, ordinal, code, message) VALUES (?,?,?,?,?,?,?)", row
        )

    return run


def rejected(code: str, message: str, *, state: str = "rejected", answer: str | None = None, number: int = 2) -> Change:
    """An entry was not executed. `answer`: it had waited for a person or a policy."""

    def run(db: sqlite3.Connection) -> None:
        name, _, _, at_ms = without_trade(db, number)
        db.execute("UPDATE intents SET state=?, code=?, message=? WHERE id=?", (state, code, message, name))
        if answer is not None:
            asked(db, name, answer, at_ms, at_ms + 5_000)

    return run


def asked(db: sqlite3.Connection, name: str, state: str, asked_ms: int, decided_ms: int) -> None:
    db.execute(
        "INSERT INTO approvals (intent_id, state, px, figures, asked_ms, decided_ms, decider) VALUES (?,?,?,?,?,?,?)",
        (name, state, "1", "{}", asked_ms, decided_ms, "control"),
    )


def approved_late(db: sqlite3.Connection) -> None:
    name, _, _, at_ms = entry(db, 2)
    asked(db, name, "approved", at_ms, at_ms + 20_000)
    for seq, payload in db.execute("SELECT seq, payload FROM events WHERE idempotency_key=?", (name,)).fetchall():
        event = json.loads(payload)
        if event["type"] == "fill":
            later(20_000)(event)
            write(db, seq, event)


def renumber(db: sqlite3.Connection) -> None:
    """Number the events anew, after one was put between others."""
    for number, (seq,) in enumerate(db.execute("SELECT seq FROM events ORDER BY seq").fetchall(), start=1):
        db.execute("UPDATE events SET seq=? WHERE seq=?", (number, seq))


def fired(kind: str, *, closes: str | None) -> Change:
    """A guardian fired where a stop or a close ended the position, and `closes` is the kind of its fill."""

    def run(db: sqlite3.Connection) -> None:
        seq, event = fills(db, "stop_loss")[1]
        told = {
            "id": "evt_x",
            "type": "guardian",
            "subtype": "fired",
            "ts": event["ts"],
            "coin": "BTC",
            "data": {"guardianType": kind, "action": "flatten"},
        }
        db.execute("UPDATE events SET seq = seq + 1000000 WHERE seq >= ?", (seq,))
        db.execute(
            "INSERT INTO events (seq, id, epoch, type, subtype, ts, coin, payload)"
            " VALUES (?, 'evt_x', 0, 'guardian', 'fired', ?, 'BTC', ?)",
            (seq, event["ts"], json.dumps(told)),
        )
        if closes is not None:
            event["data"]["kind"] = closes
            moved(event, 0.001)
            write(db, seq + 1_000_000, event)
        renumber(db)

    return run


def by_hand(kind: str, number: int, *, key: str | None) -> Change:
    """Someone else closed the position where the n-th stop did. `key`: of another writer."""

    def run(db: sqlite3.Connection) -> None:
        seq, event = fills(db, kind)[number]
        event["data"]["kind"] = "close"
        moved(event, 0.001)
        event["ts"] -= 2_000
        if key is not None:
            event["idempotencyKey"] = key
        write(db, seq, event)

    return run


def opened_by_hand(db: sqlite3.Connection) -> None:
    """Someone else bought and sold ETH."""
    ts = entry(db, 3)[3]
    for number, (subtype, size) in enumerate((("entry", "1"), ("exit", "0"))):
        data = {
            "kind": "market",
            "side": "long",
            "size": "1",
            "px": "3000",
            "feeUsd": "1",
            "positionSize": size,
            "balanceUsd": "10000",
            "tradeId": f"trd_x{number}",
            "liquidity": "taker",
        }
        event = {
            "id": f"evt_x{number}",
            "type": "fill",
            "subtype": subtype,
            "ts": ts + number,
            "coin": "ETH",
            "data": data,
        }
        db.execute(
            "INSERT INTO events (id, epoch, type, subtype, ts, coin, payload) VALUES (?,0,'fill',?,?,'ETH',?)",
            (event["id"], subtype, ts + number, json.dumps(event)),
        )


def operated(db: sqlite3.Connection) -> None:
    """`bot close` ended the position two seconds before its stop did."""
    columns = [row[1] for row in db.execute("PRAGMA table_info(intents)")]
    (values,) = db.execute("SELECT * FROM intents WHERE action='close' ORDER BY seq LIMIT 1").fetchall()
    seq, event = fills(db, "stop_loss")[1]
    row = dict(zip(columns, values, strict=True)) | {
        "seq": 9_000,
        "id": "OPERATED",
        "strategy": "@runtime",
        "cause": "operator:1",
        "opened_ms": event["ts"] - 2_000,
    }
    marks = ",".join("?" for _ in row)
    db.execute(f"INSERT INTO intents ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    event["data"]["kind"] = "close"
    event["idempotencyKey"] = "OPERATED"
    event["ts"] -= 2_000
    write(db, seq, event)


def down(db: sqlite3.Connection) -> None:
    """The daemon was down for three entries, and was started again."""
    from_ms, to_ms = entry(db, 2)[3] - 1, entry(db, 5)[3] - 1
    sql = "SELECT id FROM intents WHERE opened_ms BETWEEN ? AND ?"
    for (name,) in db.execute(sql, (from_ms, to_ms)).fetchall():
        forget(db, name)
    db.execute("DELETE FROM events WHERE ts BETWEEN ? AND ?", (from_ms, to_ms))
    (text,) = db.execute("SELECT value FROM meta WHERE name='runs'").fetchone()
    marks = json.loads(text)
    db.execute("UPDATE meta SET value=? WHERE name='runs'", (json.dumps([*marks, marks[0] | {"atMs": to_ms}]),))
    unsee(db, from_ms, to_ms)


def unsee(db: sqlite3.Connection, from_ms: int, to_ms: int) -> None:
    """The daemon never got the bars that closed in this time."""
    for seq, hour_ms, seen in db.execute("SELECT seq, hour_ms, seen FROM bars_seen").fetchall():
        rows = [seen[place : place + 6] for place in range(0, len(seen), 6)]
        kept = [row for row in rows if not from_ms <= hour_ms + int.from_bytes(row[:2]) * 1_000 <= to_ms]
        db.execute("UPDATE bars_seen SET seen=? WHERE seq=?", (b"".join(kept), seq))


def quarantined(db: sqlite3.Connection) -> None:
    """The strategy raised at its third entry, and was not called until the end of the day."""
    at_ms = entry(db, 2)[3]
    db.execute("DELETE FROM events WHERE ts >= ?", (at_ms,))
    for (name,) in db.execute("SELECT id FROM intents WHERE opened_ms >= ?", (at_ms,)).fetchall():
        forget(db, name)
    payload = json.dumps({"strategy": "one", "at_ms": at_ms + 50, "message": "one raised ZeroDivisionError"})
    db.execute(
        "INSERT INTO outbox (event_id, kind, payload, created_ms) VALUES ('x', 'strategy.quarantined', ?, ?)",
        (payload, at_ms),
    )


def lost_bar(db: sqlite3.Connection) -> None:
    """The daemon never got the bar of its third entry."""
    name, _, cause, _ = without_trade(db, 2)
    forget(db, name)
    at_ms = int(cause.rpartition(":")[2])
    unsee(db, at_ms, at_ms)


def marked(**change: Any) -> Change:
    """The day ran with other code: a mark that differs, and a decision that differs."""

    def run(db: sqlite3.Connection) -> None:
        (text,) = db.execute("SELECT value FROM meta WHERE name='runs'").fetchone()
        marks = [mark | change for mark in json.loads(text)]
        db.execute("UPDATE meta SET value=? WHERE name='runs'", (json.dumps(marks),))
        decided_otherwise(db)

    return run


def decided_otherwise(db: sqlite3.Connection) -> None:
    """The third entry had another stop, for no reason that the record shows."""
    name = entry(db, 2)[0]
    (body,) = db.execute("SELECT body FROM intents WHERE id=?", (name,)).fetchone()
    changed = json.loads(body) | {"leverage": 3}
    db.execute("UPDATE intents SET body=? WHERE id=?", (json.dumps(changed).encode(), name))


def candle(column: str, by: float) -> Callable[[Candles, sqlite3.Connection], Candles]:
    """Another value of the candle of the third entry's bar."""

    def change(candles: Candles, db: sqlite3.Connection) -> Candles:
        at_ms = int(entry(db, 2)[2].rpartition(":")[2])
        values = getattr(candles, column)[:]
        row = candles.at_ms.index(at_ms - MINUTE_MS)
        values[row] += by
        low = candles.low[:]
        if column == "close":
            low[row] = min(low[row], values[row])
        return replace(candles, **{"low": low, column: values})

    return change


def no_candle(candles: Candles, db: sqlite3.Connection) -> Candles:
    """The service has lost the candle of a bar between two entries."""
    at_ms = int(entry(db, 2)[2].rpartition(":")[2])
    row = candles.at_ms.index(at_ms - MINUTE_MS)
    columns = ("at_ms", "open", "high", "low", "close", "volume")
    return replace(
        candles, **{name: getattr(candles, name)[:row] + getattr(candles, name)[row + 1 :] for name in columns}
    )


def last_fill_gone(where: str) -> Change:
    kind = "json_extract(payload, '$.data.kind')"
    chosen = f"SELECT max(seq) FROM events WHERE type='fill' AND {where.replace('kind', kind)}"
    return drop(f"DELETE FROM events WHERE seq = ({chosen})")


GUARDED = "{type: account_drawdown, max_loss_pct_from_day_start: 0.01, action: flatten}"

ALTERED = (
    Altered("an entry was filled higher", "slippage", edit("market", 0, price(0.0004))),
    Altered("an entry was filled lower", "slippage", edit("market", 2, price(-0.0004))),
    Altered("every entry was filled higher", "slippage", edit("market", -1, price(0.0002))),
    Altered("an entry was filled far outside its bar", "slippage", edit("market", 1, price(0.02))),
    Altered("a close was filled lower", "slippage", edit("close", 0, price(-0.0004))),
    Altered("a stop was filled lower", "slippage", edit("stop_loss", 1, price(-0.0005))),
    Altered("a target was filled at another price", "price", edit("take_profit", 0, price(0.0005))),
    Altered("a target was not reached", "price", last_fill_gone("kind='take_profit'")),
    Altered("a stop was not reached", "price", last_fill_gone("kind='stop_loss'")),
    Altered("a fill is missing", "price", last_fill_gone("subtype='entry'")),
    Altered("a fill had twice the fee", "fee", edit("market", 1, fee(2))),
    Altered("a fill was a maker's", "fee", edit("market", 1, fee(0.3, liquidity="maker"))),
    Altered("every stop had another fee", "fee", edit("stop_loss", -1, fee(1.2))),
    Altered("every close was free", "fee", edit("close", -1, fee(0))),
    Altered("the funding had another rate", "funding", funding(0, rate="0.0001", amountUsd="-0.02")),
    Altered("the funding was received", "funding", funding(1, amountUsd="0.01")),
    Altered("no funding was paid", "funding", drop("DELETE FROM events WHERE type='funding'")),
    Altered("an entry was filled 20 s late", "timing", edit("market", 1, later(20_000))),
    Altered("an entry was filled in the next bar", "timing", edit("market", 2, later(61_000))),
    Altered("every entry was filled late", "timing", edit("market", -1, later(1_500))),
    Altered("a close was filled late", "timing", edit("close", 0, later(30_000))),
    Altered("a line of the strategy", "code", line=("1.0008", "1.0012")),
    Altered("another line of the strategy", "code", line=("target_pct=0.3", "target_pct=0.4")),
    Altered("a line that closes later", "code", line=("0.9992", "0.9985")),
    Altered("another version of bot", "code", marked(version="0.0.9")),
    Altered("another source of bot", "code", marked(bot="0123456789abcdef")),
    Altered("another version of a package", "code", marked(packages={"numpy": "1.0"})),
    Altered("the strategy was quarantined", "code", quarantined),
    Altered("the param bars", "config", params={"bars": 4}),
    Altered("the param size", "config", params={"size": 0.001}),
    Altered("the param stop_pct", "config", params={"stop_pct": 0.1}),
    Altered("a smaller budget", "config", config="budget_usd: 1000->budget_usd: 150"),
    Altered("a limit of the daily loss", "config", config="budget_usd: 1000->budget_usd: 1000, daily_loss_usd: 1"),
    Altered("a guardian of the account", "config", config=f"dead_man: off->dead_man: off\nguardians:\n  - {GUARDED}"),
    Altered("another close of a candle", "data revised", candles=candle("close", -120.0)),
    Altered("another high of a candle", "data revised", candles=candle("high", 1.0)),
    Altered("another volume of a candle", "data revised", candles=candle("volume", 1.0)),
    Altered("a candle is gone", "data revised", candles=no_candle),
    Altered("the daemon never got a bar", "data revised", lost_bar),
    Altered("another client traded", "foreign activity", opened_by_hand),
    Altered("another client closed a position", "foreign activity", by_hand("stop_loss", 1, key="A" * 32)),
    Altered("a person closed a position at the service", "foreign activity", by_hand("take_profit", 0, key=None)),
    Altered("the daemon waited for another writer", "foreign activity", refused("foreign_writer", "closes only")),
    Altered("bot pause", "operator", refused("paused", "one is paused; bot resume one lets it go on")),
    Altered("bot close", "operator", operated),
    Altered("the kill switch", "operator", fired("kill_switch", closes="kill")),
    Altered("a drawdown guardian fired", "guardian", fired("account_drawdown", closes="guardian")),
    Altered(
        "a guardian blocked an entry", "guardian", rejected("limit_exceeded", "openings are blocked by guardian grd_1")
    ),
    Altered("the dead-man switch fired", "outage", fired("dead_man_switch", closes="guardian")),
    Altered("the daemon was down", "outage", down),
    Altered("the events could not be read", "outage", refused("behind", "the events could not be read to their end")),
    Altered("the rate limit allowed no entry", "outage", refused("rate_limited", "the rate limit allows no entry")),
    Altered("the bar was too old", "outage", rejected("stale_bar", "it was not sent in time", state="expired")),
    Altered("the service was away", "outage", refused("degraded", "closes only (service): it does not answer")),
    Altered("a person refused an entry", "approval", rejected("not_approved", "refused by control", answer="refused")),
    Altered("a policy refused an entry", "approval", rejected("not_approved", "refused by the policy check")),
    Altered(
        "an entry waited too long",
        "approval",
        rejected("stale_bar", "not sent in time", state="expired", answer="pending"),
    ),
    Altered("an entry was approved after 20 s", "approval", approved_late),
    Altered("other instructions of an agent", "agent", params={"instructions": "bold"}),
)
