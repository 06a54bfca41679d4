"""The routes that only read: status, positions, orders, strategies, guardians, events, intents, logs, explain.

What is in memory is answered at once. The journal is read in a thread, on a connection that cannot write. While the
journal's file fails, its rows in memory are read instead.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from bot.descriptors import reserved
from bot.runtime.control_plane import status_documents
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.log_tail import LINES_MAX
from bot.runtime.control_plane.server import INSTANT_MAX, ControlRequest, Data, RequestProblem
from bot.runtime.execution.approvals import document
from bot.runtime.journal import order_trace, queries


class ReadRoutes:
    def __init__(self, access: DaemonAccess) -> None:
        self._access = access

    async def status(self, question: ControlRequest) -> Data:
        question.nothing_else()
        return status_documents.status(self._access)

    async def positions(self, question: ControlRequest) -> Data:
        question.nothing_else()
        kernel = self._access.require_kernel()
        return {
            "positions": [
                status_documents.position(kernel, position)
                for position in kernel.account.account_state.positions.values()
            ]
        }

    async def orders(self, question: ControlRequest) -> Data:
        """Resting entries and armed stops and targets."""
        question.nothing_else()
        kernel = self._access.require_kernel()
        return {
            "orders": [status_documents.order(kernel, order) for order in kernel.account.account_state.orders.values()]
        }

    async def approvals(self, question: ControlRequest) -> Data:
        """The entries that wait for a person. A token is never shown."""
        question.nothing_else()
        kernel = self._access.require_kernel()
        return {"approvals": [document(proposal, kernel.now_ms()) for proposal in kernel.approvals.waiting()]}

    async def strategies(self, question: ControlRequest) -> Data:
        """Each strategy as in the status, with its params and the indicators that it declares."""
        question.nothing_else()
        daemon = self._access.require_daemon()
        instances = {running.name: running for running in daemon.kernel.strategy_host.instances}
        documents = status_documents.strategies(daemon, self._access.settings)
        for row in documents:
            if (instance := instances.get(row["name"])) is not None:
                row |= status_documents.declared(instance)
        return {"strategies": documents}

    async def guardians(self, question: ControlRequest) -> Data:
        """The guardians of the config, and every guardian that the account has at the service."""
        question.nothing_else()
        kernel = self._access.require_kernel()
        return {"config": status_documents.guardians(kernel), "guardians": status_documents.armed_guardians(kernel)}

    async def events(self, question: ControlRequest) -> Data:
        since, kinds = question.text("since"), question.text("type")
        since_ms = question.number("since_ms", 0, at_most=INSTANT_MAX)
        back_ms = question.number("back_ms", 0, at_most=INSTANT_MAX)
        limit = question.number("limit", 100, at_most=queries.PAGE_MAX)
        question.nothing_else()
        types = tuple(kind.strip() for kind in (kinds or "").split(",") if kind.strip())

        def read(db: sqlite3.Connection) -> Data:
            if no := queries.no_such_type(db, types):
                raise RequestProblem(400, "invalid_input", f"type={no}")
            return {
                "events": queries.events(
                    db, since_id=since, since_ms=since_ms or None, back_ms=back_ms or None, types=types, limit=limit
                )
            }

        return await self._of_journal(read)

    async def intents(self, question: ControlRequest) -> Data:
        states, strategy = question.text("state"), question.text("strategy")
        limit = question.number("limit", 100, at_most=queries.PAGE_MAX)
        question.nothing_else()
        wanted: Sequence[str] = states.split(",") if states else ()
        return await self._of_journal(
            lambda db: {"intents": queries.intents(db, states=wanted, strategy=strategy, limit=limit)}
        )

    async def explain(self, question: ControlRequest) -> Data:
        """What happened to one order, trade or intent, step by step."""
        name = question.text("id")
        question.nothing_else()
        if name is None:
            raise RequestProblem(400, "invalid_input", "id is the id of an order, a trade or an intent")
        return await self._of_journal(
            lambda db: {"id": name, "steps": [step.plain() for step in order_trace.explain(db, name)]}
        )

    async def logs(self, question: ControlRequest) -> Data:
        """The newest `lines`, or the oldest after line `after`."""
        count = question.number("lines", 100, at_most=LINES_MAX)
        after = question.number("after", 0, at_most=INSTANT_MAX)
        is_following = "after" in question.values
        question.nothing_else()
        tail = self._access.tail
        if tail is None:
            return {"lines": [], "last": 0}
        lines = tail.after(after, count) if is_following else tail.newest(count)
        last = lines[-1].seq if lines else max(after, 0) if is_following else tail.seq
        return {"lines": [{"seq": line.seq, "at_ms": line.at_ms, **line.event} for line in lines], "last": last}

    async def _of_journal(self, read: Callable[[sqlite3.Connection], Data]) -> Data:
        """Read the journal's file in a thread. While the file cannot be written, read the journal in memory."""
        access = self._access

        def from_file() -> Data:
            with queries.opened(access.settings.state_dir) as db:
                return read(db)

        try:
            if access.daemon is None or access.daemon.journal.fault is None:
                with reserved():
                    return await asyncio.to_thread(from_file)
            with queries.in_rows(access.daemon.journal.db.conn) as db:
                return read(db)
        except queries.NotFound as error:
            raise RequestProblem(404, "not_found", str(error)) from None
