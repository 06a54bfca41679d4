"""The journal's intents and their attempts: each state is on disk before the next step is taken.

Nothing here decides. A state change that INTENT_MOVES does not list is an assertion error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, Literal

from bot.encryption import Cipher, DecryptionFailed
from bot.errors import JournalDamaged
from bot.money import format_decimal
from bot.runtime.journal.database import WAY_OUT, JournalDatabase
from bot.runtime.journal.failover import seal
from bot.runtime.journal.schema import LIVE
from bot.runtime.model.intents import (
    FINAL,
    INTENT_MOVES,
    PROPOSED,
    TARGET_LEG,
    Intent,
    State,
    TradeOf,
    check_body,
    moved,
)

Outcome = Literal["done", "unknown", "no"]

_INTENT_COLUMNS = (
    "id, strategy, market, action, path, cause, ordinal, leg, epoch, body, not_after_ms, opened_ms, notional_usd,"
    " state, attempts, confirm_token, token_expires_ms, trade_id, code, message, targets"
)
_INSERT = (
    "INSERT INTO intents (id, strategy, market, action, path, cause, ordinal, leg, epoch, body, body_sha256,"
    " not_after_ms, opened_ms, notional_usd, state, moved_ms, targets, seal) VALUES"
    " (?,?,?,?,?,?,?,?,?,?,?,?,?,?,'opened',?,?,?) ON CONFLICT (id) DO NOTHING"
)
# stands for a token that another key has encrypted
UNREADABLE: Final = "unreadable-token"
_SELECT: Final = f"SELECT {_INTENT_COLUMNS}, body_sha256, seal FROM intents "  # noqa: S608 - constants only


class IntentLog:
    """Every method that changes an intent has committed when it returns, except `insert`."""

    def __init__(self, database: JournalDatabase, tokens: Cipher) -> None:
        self._database = database
        # encrypts the confirm tokens of plans, which are not stored in clear
        self._tokens = tokens

    def insert(self, i: Intent) -> bool:
        """Write a new intent in the open transaction; False if it is there already."""
        assert i.state == "opened", i.state
        values = (
            i.id,
            i.strategy,
            i.market,
            i.action,
            i.path,
            i.trigger,
            i.ordinal,
            i.leg,
            i.epoch,
            i.body,
            i.sha256,
            i.not_after_ms,
            i.opened_ms,
            format_decimal(i.notional_usd),
            i.opened_ms,
            i.targets,
            _checksum(i, None),
        )
        return self._database.execute(_INSERT, values).rowcount == 1

    def planned(self, intent: Intent, confirm_token: str, token_expires_ms: int, *, now_ms: int) -> Intent:
        """Write the token of the dry run before it is used. A token works once, and the intent is settled by it."""
        with self._database.transaction():
            after = moved(intent, "planned", token=confirm_token, token_expires_ms=token_expires_ms)
            return self._write_move(after, now_ms=now_ms, before=intent.state)

    def sending(self, intent: Intent, *, now_ms: int) -> Intent:
        """Write the attempt before it is sent. From here on the intent is in doubt until an answer settles it."""
        with self._database.transaction():
            return self._write_sending(intent, now_ms)

    def sending_all(self, intents: Sequence[Intent], *, now_ms: int) -> list[Intent]:
        """`sending` for intents that are sent together, in one transaction. Send none of them before this returns."""
        with self._database.transaction():
            return [self._write_sending(intent, now_ms) for intent in intents]

    def attempt_ended(self, intent: Intent, outcome: Outcome, *, code: str, order_submitted: object) -> None:
        """Write the outcome of an attempt that does not settle the intent.

        An attempt without an outcome counts as unknown.
        """
        with self._database.transaction():
            self._end_attempt(intent, outcome, code, order_submitted=order_submitted)

    def accept(self, intent: Intent, trade_id: str, *, now_ms: int) -> Intent:
        with self._database.transaction():
            return self._write_accepted(intent, trade_id, now_ms)

    def accept_all(self, answered: Sequence[tuple[Intent, str]], *, now_ms: int) -> list[Intent]:
        """`accept` for several intents, each with its trade id, in one transaction.

        Until it commits they are in doubt, which sends nothing twice.
        """
        with self._database.transaction():
            return [self._write_accepted(intent, trade_id, now_ms) for intent, trade_id in answered]

    def end(self, intent: Intent, state: State, code: str, message: str, *, now_ms: int) -> Intent:
        """End an intent as rejected, expired, void or quarantined."""
        with self._database.transaction():
            self._end_attempt(intent, "unknown" if state == "quarantined" else "no", code, order_submitted=None)
            return self._write_move(
                moved(intent, state, code=code, message=message), now_ms=now_ms, before=intent.state
            )

    def void(self, intents: Sequence[Intent], *, now_ms: int) -> list[Intent]:
        """Write in the open transaction that an account reset made these intents void."""
        return [
            self._write_move(
                moved(intent, "void", code="account_reset", message="the account was reset"),
                now_ms=now_ms,
                before=intent.state,
            )
            for intent in intents
        ]

    def is_ambiguous(self, intent: Intent) -> bool:
        """True if an earlier attempt may have reached the venue: its outcome is unknown or missing."""
        row = self._database.read(
            "SELECT EXISTS (SELECT 1 FROM attempts WHERE intent_id=? AND (outcome IS NULL OR outcome='unknown'))",
            (intent.id,),
        ).fetchone()
        return bool(row[0])

    def is_unsent(self, intent: Intent) -> bool:
        """True if the service never received it: it was not sent, or each attempt failed before it was sent (a
        refused connection).
        """
        return intent.state in ("opened", "planned") or (intent.state == "sending" and not self.is_ambiguous(intent))

    def live(self) -> list[Intent]:
        """Every intent that is not final, in the order of the decisions."""
        return self._intents(f"WHERE {LIVE} ORDER BY seq")

    def find(self, intent_id: str) -> Intent | None:
        intents = self._intents("WHERE id=?", (intent_id,))
        return intents[0] if intents else None

    def last_open(self, market: str, epoch: int) -> Intent | None:
        """The newest accepted entry of a market."""
        intents = self._intents(
            "WHERE market=? AND epoch=? AND action='open' AND state='accepted' ORDER BY seq DESC LIMIT 1",
            (market, epoch),
        )
        return intents[0] if intents else None

    def last_of(self, strategy: str, market: str, trigger: str, *, epoch: int) -> Intent | None:
        """The newest intent of one trigger."""
        intents = self._intents(
            "WHERE market=? AND strategy=? AND cause=? AND epoch=? ORDER BY seq DESC LIMIT 1",
            (market, strategy, trigger, epoch),
        )
        return intents[0] if intents else None

    def refused_target(self, market: str, *, epoch: int, since_ms: int) -> Intent | None:
        """The newest target order of a market that the service refused after this instant."""
        intents = self._intents(
            "WHERE market=? AND epoch=? AND leg=? AND state='rejected' AND opened_ms>=? ORDER BY seq DESC LIMIT 1",
            (market, epoch, TARGET_LEG, since_ms),
        )
        return intents[0] if intents else None

    def of_trigger(self, trigger: str, *, epoch: int) -> Intent | None:
        """The newest intent of this trigger, of whichever strategy and market."""
        intents = self._intents("WHERE cause=? AND epoch=? ORDER BY seq DESC LIMIT 1", (trigger, epoch))
        return intents[0] if intents else None

    def proposed_since(self, at_ms: int) -> int:
        """How many entries assistants have proposed since that instant. Further plans of one entry do not count."""
        sql = "SELECT count(*) FROM intents WHERE opened_ms>=? AND leg='order' AND substr(cause, 1, ?)=?"
        return int(self._database.read(sql, (at_ms, len(PROPOSED), PROPOSED)).fetchone()[0])

    def keys_of_trades(self, trade_ids: Iterable[str], *, epoch: int) -> dict[TradeOf, str]:
        """The intents of those trades that are our orders.

        After a reset the service may give the same trade id to another order.
        """
        rows = self._database.read(
            "SELECT market, trade_id, action, id FROM intents WHERE epoch=? AND trade_id IN (SELECT value FROM"
            " json_each(?))",
            (epoch, json.dumps(list(trade_ids))),
        )
        return {(market, trade_id, action): intent_id for market, trade_id, action, intent_id in rows}

    def _intents(self, where: str, values: Sequence[object] = ()) -> list[Intent]:
        return [self._readable(_intent_of(row)) for row in self._database.read(_SELECT + where, values)]

    def _readable(self, intent: Intent) -> Intent:
        """The intent with its token in clear. If another key has encrypted the token, it is spent.

        Then a plan that was not sent counts as expired, so it is made anew. An order in doubt is found by its own key,
        or proven absent after its fence, because the service knows no such token.
        """
        if intent.confirm_token is None:
            return intent
        try:
            token = self._tokens.decrypt(intent.confirm_token, intent.id).decode()
        except DecryptionFailed:
            expires_ms = 0 if intent.state == "planned" else intent.token_expires_ms
            return replace(intent, confirm_token=UNREADABLE, token_expires_ms=expires_ms)
        return replace(intent, confirm_token=token)

    def _stored_token(self, intent: Intent) -> str | None:
        """The token as the file holds it; none once the intent is final."""
        if intent.confirm_token is None or intent.state in FINAL:
            return None
        return self._tokens.encrypt(intent.confirm_token.encode(), intent.id)

    def _write_sending(self, intent: Intent, now_ms: int) -> Intent:
        n = intent.attempts + 1
        execute = self._database.execute
        execute("INSERT INTO attempts (intent_id, n, sent_ms) VALUES (?,?,?)", (intent.id, n, now_ms))
        after = moved(intent, "sending", attempts=n)
        if intent.state == "sending":
            token = self._stored_token(after)
            values = (n, token, now_ms, _checksum(after, token), intent.id)
            execute("UPDATE intents SET attempts=?, confirm_token=?, moved_ms=?, seal=? WHERE id=?", values)
            return after
        return self._write_move(after, now_ms=now_ms, before=intent.state)

    def _write_accepted(self, intent: Intent, trade_id: str, now_ms: int) -> Intent:
        self._end_attempt(intent, "done", None, order_submitted=True)
        return self._write_move(moved(intent, "accepted", trade_id=trade_id), now_ms=now_ms, before=intent.state)

    def _write_move(self, after: Intent, *, now_ms: int, before: State) -> Intent:
        to, token = after.state, self._stored_token(after)
        assert to in INTENT_MOVES[before], f"{after.id}: {before} -> {to}"
        done = self._database.execute(
            "UPDATE intents SET state=?, attempts=?, confirm_token=?, token_expires_ms=?, trade_id=?, code=?,"
            " message=?, moved_ms=?, seal=? WHERE id=? AND state=?",
            (
                to,
                after.attempts,
                token,
                after.token_expires_ms,
                after.trade_id,
                after.code,
                after.message,
                now_ms,
                _checksum(after, token),
                after.id,
                before,
            ),
        )
        assert done.rowcount == 1, f"{after.id} is not {before} in the journal"
        return after

    def _end_attempt(self, intent: Intent, outcome: Outcome, code: str | None, *, order_submitted: object) -> None:
        submitted = None if order_submitted is None else str(order_submitted).lower()
        self._database.execute(
            "UPDATE attempts SET outcome=?, code=?, order_submitted=? WHERE intent_id=? AND n=? AND outcome IS NULL",
            (outcome, code, submitted, intent.id, intent.attempts),
        )


def _intent_of(row: tuple[Any, ...]) -> Intent:
    """The row as an intent, with the token as it is stored."""
    *values, sha256, checksum = row
    values[12] = Decimal(values[12])
    (
        id_,
        strategy,
        market,
        action,
        path,
        cause,
        ordinal,
        leg,
        epoch,
        body,
        not_after_ms,
        opened_ms,
        notional,
        *rest,
    ) = values
    state, attempts, token, token_expires_ms, trade_id, code, message, targets = rest
    intent = Intent(
        id=id_,
        strategy=strategy,
        market=market,
        action=action,
        path=path,
        trigger=cause,
        ordinal=ordinal,
        leg=leg,
        epoch=epoch,
        body=body,
        not_after_ms=not_after_ms,
        opened_ms=opened_ms,
        notional_usd=notional,
        state=state,
        attempts=attempts,
        confirm_token=token,
        token_expires_ms=token_expires_ms,
        trade_id=trade_id,
        code=code,
        message=message,
        targets=targets,
    )
    if checksum is not None and checksum != _checksum(intent, token):
        raise JournalDamaged(
            f"the journal's intent {intent.id} does not match its checksum: the file is damaged. {WAY_OUT}"
        )
    return check_body(intent, sha256)


def _checksum(i: Intent, token: str | None) -> int:
    """`token` as it is stored."""
    return seal(
        i.id,
        i.strategy,
        i.market,
        i.action,
        i.path,
        i.trigger,
        i.ordinal,
        i.leg,
        i.epoch,
        i.not_after_ms,
        i.opened_ms,
        format_decimal(i.notional_usd),
        i.state,
        i.attempts,
        token,
        i.token_expires_ms,
        i.trade_id,
        *(() if i.targets is None else (i.targets,)),
    )
