"""Named snapshots of the whole service, and the replacement of the log when one is restored. It stores texts and knows
no rules.

A restore is one transaction: it deletes the old log and begins a new one with the snapshot. A crash leaves one or the
other, never both.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Final

from bot.clock import SystemClock
from bot.errors import ConfigError
from bot.service.state_machine.command_log import CommandLog, Push, Snapshot, StoredReply

NAMED_SNAPSHOTS_MAX: Final = 64

Replies = dict[tuple[str, str], StoredReply]

_REPLY_COLUMNS: Final = "account, key, epoch, fingerprint, request_id, status, body, real_ms"
_GENERATION: Final = (
    "commands", "snapshots", "accounts", "pages", "pushes", "replies", "deliveries", "endpoints", "rests",
)  # fmt: skip  # tables that begin anew


@dataclass(frozen=True, slots=True)
class NamedSnapshot:
    """The whole state of a service at `at_ms`. `price_options`: where its prices come from."""

    name: str
    state: str = field(repr=False)
    seq: int
    at_ms: int
    chain: bytes
    events: int
    price_options: str
    pushes: tuple[Push, ...] = field(repr=False)

    def pack(self) -> bytes:
        body = {
            "state": self.state,
            "seq": self.seq,
            "at": self.at_ms,
            "chain": b64encode(self.chain).decode(),
            "events": self.events,
            "known": self.price_options,
            "pushes": self.pushes,
        }
        return zlib.compress(json.dumps(body).encode(), 1)

    @staticmethod
    def unpack(name: str, packed: bytes) -> NamedSnapshot:
        body = json.loads(zlib.decompress(packed))
        pushes = tuple(Push(*push) for push in body["pushes"])
        return NamedSnapshot(
            name,
            body["state"],
            body["seq"],
            body["at"],
            b64decode(body["chain"]),
            body["events"],
            body["known"],
            pushes,
        )


class NamedSnapshots:
    """The named snapshots of one log. Every method is synchronous and atomic on disk."""

    def __init__(self, command_log: CommandLog) -> None:
        self._log = command_log
        # The snapshots of a service without a file.
        self._memory: dict[str, tuple[NamedSnapshot, Replies]] = {}

    def names(self) -> set[str]:
        self._log.flush()
        return {*self._memory, *(name for (name,) in self._log.select("SELECT name FROM kept"))}

    def pushes(self) -> tuple[Push, ...]:
        """Every price that was pushed since the log began."""
        self._log.flush()
        rows = self._log.select("SELECT seq, at_ms, coin, px, volume FROM pushes ORDER BY seq")
        return tuple(self._log.pushed) if self._log.path is None else tuple(Push(*row) for row in rows)

    def keep(self, snapshot: NamedSnapshot) -> None:
        """Save a snapshot under its name. It replaces an older one of that name."""
        if self._log.path is None:
            self._memory[snapshot.name] = (snapshot, self._log.replies_in_memory())
            return
        self._log.put_all(
            [
                ("INSERT OR REPLACE INTO kept (name, body) VALUES (?, ?)", (snapshot.name, snapshot.pack())),
                ("DELETE FROM kept_replies WHERE name = ?", (snapshot.name,)),
                (
                    # No outside text.
                    (
                        f"INSERT INTO kept_replies (name, {_REPLY_COLUMNS})"  # noqa: S608
                        f" SELECT ?, {_REPLY_COLUMNS} FROM replies"
                    ),
                    (snapshot.name,),
                ),
            ]
        )

    def find(self, name: str) -> NamedSnapshot | None:
        """The snapshot of this name, or None. ConfigError if it is damaged."""
        if self._log.path is None:
            return self._memory[name][0] if name in self._memory else None
        self._log.flush()
        rows = self._log.select("SELECT body FROM kept WHERE name = ?", (name,))
        try:
            return NamedSnapshot.unpack(name, rows[0][0]) if rows else None
        except (zlib.error, ValueError):
            raise ConfigError(f"the snapshot {name!r} is damaged; save a new snapshot with this name") from None

    def replies(self, name: str) -> Replies:
        """The idempotency answers of a snapshot."""
        if self._log.path is None:
            return dict(self._memory[name][1])
        columns = "account, key, epoch, fingerprint, request_id, status, body"
        # No outside text.
        rows = self._log.select(f"SELECT {columns} FROM kept_replies WHERE name = ?", (name,))  # noqa: S608
        return {(account, key): StoredReply(*rest) for account, key, *rest in rows}

    def forget(self) -> None:
        """Delete all snapshots."""
        self._memory = {}
        self._log.put_all([("DELETE FROM kept", ()), ("DELETE FROM kept_replies", ())])

    def empty_log(self) -> None:
        """Empty the log. The caller must write the new beginning and flush before the next request."""
        self._log.put_all([(f"DELETE FROM {table}", ()) for table in _GENERATION])  # noqa: S608  no outside text
        self._log.pushed = []
        self._log.replace_replies({})

    def take_log_back(self, snapshot: NamedSnapshot, replies: Replies | None = None) -> None:
        """Empty the log and begin it with a snapshot.

        `replies`: the answers, if the snapshot comes from another service. See `empty_log`.
        """
        mine = replies is None and self._log.path is None
        memory = self._memory[snapshot.name][1] if mine else replies or {}
        self.empty_log()
        if self._log.path is None:
            self._log.replace_replies(memory)
            self._log.pushed = list(snapshot.pushes)
            return
        self._log.put_all(
            [
                (
                    # No outside text.
                    (
                        f"INSERT INTO replies ({_REPLY_COLUMNS})"  # noqa: S608
                        f" SELECT {_REPLY_COLUMNS} FROM kept_replies WHERE name = ?"
                    ),
                    (snapshot.name,),
                )
            ]
        )
        self._log.know(self._log.select("SELECT account, key FROM kept_replies WHERE name = ?", (snapshot.name,)))
        for push in snapshot.pushes:
            self._log.push(push)
        row = Snapshot(snapshot.seq, snapshot.at_ms, snapshot.state, snapshot.chain, snapshot.events)
        self._log.save_snapshot(row, SystemClock().now_ms())
