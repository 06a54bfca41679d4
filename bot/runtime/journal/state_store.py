"""The journal's durable state: strategies' states, finished bars, attribution, guardians, and named notes.

`Journal.state` is one of these. Every method that writes has committed when it returns, except `bar_done` and
`put_attribution`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.clock import utc_day_start_ms
from bot.logs import log
from bot.money import e16_of_decimal, format_decimal, format_e8, format_e16
from bot.runtime.journal import halt_flags
from bot.runtime.journal.database import JournalDatabase
from bot.runtime.journal.failover import seal
from bot.runtime.journal.halt_flags import HaltFlagsFile
from bot.runtime.journal.pending_writes import PendingWrites
from bot.runtime.model.shares import EntryRow, TradeRow

if TYPE_CHECKING:
    from bot.runtime.model.shares import AttributionChanges

# The digits of a number in a note: Python refuses to read thousands.
NUMBER_DIGITS_MAX: Final = 20
# prefix of the name under which a damaged note is kept for people
DAMAGED: Final = "damaged:"


class Arm(NamedTuple):
    """A guardian that the config asks for. `serial` is part of its key and grows when an armed guardian is gone."""

    name: str
    serial: int
    guardian_id: str | None
    body: str


class StateStore:
    def __init__(self, database: JournalDatabase, pending: PendingWrites) -> None:
        self._database = database
        self._pending = pending
        # the second copy of the halt flags
        self.halt_flags_file: HaltFlagsFile | None = None

    # -- finished bars and strategies' states

    def bar_done(self, market: str, interval: str, at_ms: int) -> None:
        """Note a bar that led to no order.

        The next transaction or `flush` writes it: deciding the bar again gives the same keys.
        """
        self._pending.add({}, [(market, interval, at_ms)])

    def done_until(self, market: str, interval: str) -> int | None:
        """Close instant of the newest bar that was decided."""
        waiting = self._pending.bars.get((market, interval))
        if waiting is not None:
            return waiting
        row = self._database.read(
            "SELECT at_ms FROM progress WHERE market=? AND interval=?", (market, interval)
        ).fetchone()
        return None if row is None else int(row[0])

    def of_strategy(self, strategy: str) -> dict[str, Any]:
        """The state that the strategy has saved; empty if it has saved none."""
        text = self._pending.states.get(strategy)
        if text is None:
            row = self._database.read("SELECT state FROM strategy_state WHERE strategy=?", (strategy,)).fetchone()
            text = "{}" if row is None else row[0]
        state: dict[str, Any] = json.loads(text)
        return state

    def put_flat_point(self, at_ms: int, *, epoch: int, balance_usd: Decimal) -> None:
        """Keep that the account had neither position nor order at this instant, with what strategies knew then.

        Of each UTC day the newest one is kept. Pending rows must be written before (`Journal.flush`).
        """
        with self._database.transaction():
            self._database.execute(
                "INSERT OR REPLACE INTO flat_points (day_ms, at_ms, epoch, balance_usd, states, bars) VALUES (?,?,?,?,"
                " (SELECT json_group_object(strategy, state) FROM strategy_state),"
                " (SELECT json_group_array(json_array(market, interval, at_ms)) FROM progress))",
                (utc_day_start_ms(at_ms), at_ms, epoch, format_decimal(balance_usd)),
            )

    # -- attribution: profit, loss and shares by strategy

    def put_attribution(self, changes: AttributionChanges) -> None:
        """Write changes of the attribution in the open transaction."""
        execute = self._database.execute
        if changes.wiped:
            execute("DELETE FROM books")
            execute("DELETE FROM shares")
            execute("DELETE FROM trades")
            execute("DELETE FROM entries")
        for row in changes.rows:
            amounts = (row.fees, row.funding, row.realized, row.margin_lost, row.base)
            fees, funding, realized, lost, base = map(format_e16, amounts)
            execute(
                "INSERT OR REPLACE INTO books (strategy, epoch, fills, fees_usd, funding_usd, realized_usd,"
                " margin_lost_usd, day_ms, base_usd, halted_day_ms) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (
                    row.strategy,
                    changes.epoch,
                    row.fills,
                    fees,
                    funding,
                    realized,
                    lost,
                    row.day_ms,
                    base,
                    row.halted_day_ms,
                ),
            )
        for market in changes.markets:
            execute("DELETE FROM shares WHERE market=?", (market,))
        for share in changes.shares:
            execute(
                "INSERT INTO shares (epoch, market, strategy, side, size, cost_usd) VALUES (?,?,?,?,?,?)",
                (
                    changes.epoch,
                    share.market,
                    share.strategy,
                    share.side,
                    format_e8(share.size_e8),
                    format_e16(share.cost),
                ),
            )

        self._put_trades(changes)

    def _put_trades(self, changes: AttributionChanges) -> None:
        """Write the changed trades and the new entries of the trade log."""
        execute = self._database.execute
        for trade in changes.trades:
            execute(
                "DELETE FROM trades WHERE strategy=? AND market=? AND closed_ms IS NULL", (trade.strategy, trade.market)
            )
            if trade.net is not None:
                execute(
                    "INSERT INTO trades (epoch, strategy, market, side, opened_ms, closed_ms, net_usd, is_stop)"
                    " VALUES (?,?,?,?,?,?,?,?)",
                    (changes.epoch, *trade[:5], format_e16(trade.net), int(trade.is_stop)),
                )
        for entry in changes.entries:
            execute(
                "INSERT OR IGNORE INTO entries (epoch, key, strategy, market, at_ms) VALUES (?,?,?,?,?)",
                (changes.epoch, *entry),
            )

    def trade_rows(self, epoch: int) -> list[TradeRow]:
        """The trades that the journal keeps, those that closed first at the beginning."""
        rows = self._database.read(
            "SELECT strategy, market, side, opened_ms, closed_ms, net_usd, is_stop FROM trades WHERE epoch=?"
            " ORDER BY seq",
            (epoch,),
        )
        return [
            TradeRow(strategy, market, side, opened_ms, closed_ms, e16_of_decimal(Decimal(net)), bool(is_stop))
            for strategy, market, side, opened_ms, closed_ms, net, is_stop in rows
        ]

    def entry_rows(self, epoch: int) -> list[EntryRow]:
        """The entries that the journal keeps, oldest first."""
        rows = self._database.read(
            "SELECT key, strategy, market, at_ms FROM entries WHERE epoch=? ORDER BY seq", (epoch,)
        )
        return [EntryRow(*row) for row in rows]

    def attribution_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """Rows for `shares.TotalsRow`."""
        return list(
            self._database.read(
                "SELECT strategy, fills, fees_usd, funding_usd, realized_usd, margin_lost_usd, day_ms, base_usd,"
                " halted_day_ms FROM books WHERE epoch=? ORDER BY strategy",
                (epoch,),
            )
        )

    def share_rows(self, epoch: int) -> list[tuple[Any, ...]]:
        """Rows for `shares.Share`, oldest first."""
        return list(
            self._database.read(
                "SELECT market, strategy, side, size, cost_usd FROM shares WHERE epoch=? ORDER BY seq", (epoch,)
            )
        )

    # -- guardians that the config asks for

    def arm_of(self, name: str) -> Arm | None:
        row = self._database.read("SELECT name, serial, guardian_id, body FROM arms WHERE name=?", (name,)).fetchone()
        return None if row is None else Arm(*row)

    def arms(self) -> list[Arm]:
        """Every guardian that this bot ever armed, by name."""
        rows = self._database.read("SELECT name, serial, guardian_id, body FROM arms ORDER BY name")
        return [Arm(*row) for row in rows]

    def write_arm(self, arm: Arm) -> None:
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO arms (name, serial, guardian_id, body, seal) VALUES (?,?,?,?,?) ON CONFLICT (name) DO"
                " UPDATE SET serial=excluded.serial, guardian_id=excluded.guardian_id, body=excluded.body,"
                " seal=excluded.seal",
                (*arm, seal(*arm)),
            )

    # -- notes: a text under a name

    def note(self, name: str) -> str | None:
        row = self._database.read("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def write_note(self, name: str, value: str) -> None:
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value",
                (name, value),
            )
            if halt_flags.is_halt_flag(name):
                self._database.after_commit(self.copy_halt_flags)

    def notes_under(self, prefix: str) -> list[str]:
        """Names of the notes that begin with `prefix`."""
        rows = self._database.read("SELECT name FROM meta WHERE substr(name, 1, ?)=?", (len(prefix), prefix))
        return [name for (name,) in rows]

    def forget_note(self, name: str) -> None:
        with self._database.transaction():
            self._database.execute("DELETE FROM meta WHERE name=?", (name,))

    def set_aside(self, name: str, *, instead: str | None = None) -> str:
        """Move a damaged note to another name, for people; returns that name. `instead` is the note's new text."""
        aside, text = DAMAGED + name, self.note(name) or ""
        with self._database.together():
            self.write_note(aside, text)
            self.forget_note(name)
            if instead is not None:
                self.write_note(name, instead)
        return aside

    def set_aside_if_damaged(self, name: str, is_sound: Callable[[str], bool], *, instead: str | None = None) -> bool:
        """Set a note aside and log it if it is not sound; True if that was done."""
        text = self.note(name)
        if text is None or is_sound(text):
            return False
        kept_as = self.set_aside(name, instead=instead)
        log.warning("journal.note_damaged", note=name, kept_as=kept_as, instead=instead)
        return True

    # -- halt flags: notes with a second copy beside the journal

    def halt_flags(self) -> dict[str, str]:
        """What a person or a fault has stopped (halt_flags.py), by note."""
        rows = self._database.read("SELECT name, value FROM meta")
        return {name: value for name, value in rows if halt_flags.is_halt_flag(name)}

    def keeps_halt_flags(self) -> bool:
        """True if the halt flags outlive the process: in the file or, while it cannot be written, in the copy beside
        it.
        """
        if self._database.fault is None:
            return True
        copy = self.halt_flags_file
        return copy is not None and copy.read() == {n: v for n, v in self.halt_flags().items() if v}

    def copy_halt_flags_to(self, file: HaltFlagsFile) -> None:
        """Keep a copy of the halt flags in this file from now on."""
        self.halt_flags_file = file

    def copy_halt_flags(self) -> None:
        if self.halt_flags_file is not None:
            self.halt_flags_file.write(self.halt_flags())


def is_number(text: str, most: int) -> bool:
    """True if a note is a whole number from 0 to `most`."""
    return text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX and int(text) <= most
