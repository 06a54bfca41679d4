"""The routes that change the daemon, or ask the service: pause, resume, reload, reconcile, close, cancel, kill, stop.

A change waits for the end of the pass under way, so that no route touches the kernel in the middle of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from decimal import Decimal

from bot.errors import ApiError, Declined, OutcomeUnknown, TryLater
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.control_plane import order_commands, status_documents
from bot.runtime.control_plane.commands import CommandTimeout
from bot.runtime.control_plane.daemon_access import DaemonAccess, RoutedDaemon
from bot.runtime.control_plane.server import INSTANT_MAX, ControlRequest, Data, RequestProblem
from bot.runtime.model.positions import Drift


class CommandRoutes:
    def __init__(self, access: DaemonAccess) -> None:
        self._access = access

    async def pause(self, question: ControlRequest) -> Data:
        """Stop new entries of one strategy or of all; exits go on.

        The answer's `resting` entries may still fill: cancel them if you want.
        """
        by = question.text("by")
        strategy = self._strategy_of(question)
        daemon = self._access.require_daemon()

        async def work() -> tuple[str, ...]:
            return daemon.commands.pause(strategy, by=by)

        # Urgent, because a reload or a start sends orders while strategies warm up.
        resting = await self._access.mailbox.ask(work, is_urgent=True)
        return self._state_of(daemon) | {"resting": list(resting)}

    async def resume(self, question: ControlRequest) -> Data:
        """Allow entries again. A strategy that is named also leaves its quarantine."""
        by = question.text("by")
        strategy = self._strategy_of(question)
        daemon = self._access.require_daemon()
        reviewed = await self._access.mailbox.ask(lambda: daemon.commands.resume(strategy, by=by))
        return self._state_of(daemon) | {"looked_at": list(reviewed)}

    async def reload_diff(self, question: ControlRequest) -> Data:
        """What a reload would change. Changes nothing."""
        question.nothing_else()
        self._access.require_kernel()
        commands = self._access.require_daemon().commands
        return {"changes": [str(change) for change in await self._access.mailbox.ask(commands.diff)]}

    async def reload(self, question: ControlRequest) -> Data:
        """Read the config again and apply it, all or nothing."""
        question.nothing_else()
        self._access.require_kernel()
        daemon = self._access.require_daemon()
        result = await self._access.mailbox.ask(daemon.commands.reload)
        return self._state_of(daemon) | {
            "changes": [str(change) for change in result.diff],
            "applied": list(result.applied),
            "refused": list(result.refused),
            "exit_code": int(result.code),
        }

    async def drifts(self, question: ControlRequest) -> Data:
        """What differs between the service and the daemon's account state. Repairs nothing."""
        question.nothing_else()
        kernel = self._access.require_daemon().kernel

        async def work() -> list[Drift]:
            kernel.budget.begin()
            return await kernel.reconciliation.compare()

        return {"drifts": [asdict(drift) for drift in await self._compared(work)], "applied": False}

    async def reconcile(self, question: ControlRequest) -> Data:
        """Compare and repair, as the daemon does by itself every few minutes."""
        question.nothing_else()
        kernel = self._access.require_daemon().kernel

        async def work() -> list[Drift]:
            kernel.budget.begin()
            drifts = await kernel.reconciliation.reconcile()
            kernel.journal.flush()
            if drifts is None:
                raise TryLater("busy", "the events could not be read to their end")
            return drifts

        return {"drifts": [asdict(drift) for drift in await self._compared(work)], "applied": True}

    async def _compared(self, work: Callable[[], Awaitable[list[Drift]]]) -> list[Drift]:
        try:
            return await self._access.mailbox.ask(work)
        except (TryLater, OutcomeUnknown) as error:
            raise RequestProblem(
                503,
                "busy",
                f"the service could not be asked ({error.code}: {error.message}); the daemon compares again by itself",
            ) from None

    async def close(self, question: ControlRequest) -> Data:
        """Close the position of a market, or a `fraction` of it.

        `side`, `opened_ms` and `size` say which position is meant; another one is not closed.
        """
        market, side = question.text("market"), question.text("side")
        opened_ms = question.number("opened_ms", 0, at_most=INSTANT_MAX)
        fraction, size = question.decimal("fraction"), question.decimal("size")
        question.nothing_else()
        if market is None:
            raise RequestProblem(400, "invalid_input", "market is the market of the position")
        if fraction is not None and not 0 < fraction <= 1:
            raise RequestProblem(400, "invalid_input", "fraction is above 0 and at most 1")
        if fraction is not None and fraction != 1 and size is None:
            raise RequestProblem(400, "invalid_input", "a fraction needs size: the size of the position that is meant")
        kernel = self._access.require_kernel()
        result = await self._access.mailbox.ask(
            lambda: order_commands.close_position(
                kernel, market, side=side, opened_ms=opened_ms or None, fraction=fraction or Decimal(1), size=size
            )
        )
        return {"market": market, "closed": result.is_done, "left": format_decimal(result.left)}

    async def cancel(self, question: ControlRequest) -> Data:
        """Cancel a resting entry."""
        oid = question.text("oid")
        question.nothing_else()
        if oid is None:
            raise RequestProblem(400, "invalid_input", "oid is the number of the order")
        kernel = self._access.require_kernel()
        await self._access.mailbox.ask(lambda: order_commands.cancel_entry(kernel, oid))
        return {"oid": oid}

    async def approve(self, question: ControlRequest) -> Data:
        """Agree to an entry that waits, and send it."""
        return await self._decide(question, approve=True)

    async def refuse(self, question: ControlRequest) -> Data:
        """Refuse an entry that waits, which ends the entry."""
        return await self._decide(question, approve=False)

    async def _decide(self, question: ControlRequest, *, approve: bool) -> Data:
        name, decider, reason = question.text("id"), question.text("by"), question.text("reason")
        question.nothing_else()
        if name is None:
            raise RequestProblem(400, "invalid_input", "id is the id of a proposal, as bot approvals shows it")
        kernel = self._access.require_kernel()
        return await self._access.mailbox.ask(
            lambda: order_commands.decide(
                kernel, name, approve=approve, decider=decider or "the operator", reason=reason
            )
        )

    async def kill(self, question: ControlRequest) -> Data:
        """Throw the service's kill switch with the daemon's own key, because an embedded service gives out no other
        key.
        """
        flatten, key, by = question.flag("flatten"), question.text("key"), question.text("by")
        question.nothing_else()
        if key is None:
            raise RequestProblem(400, "invalid_input", "key is the Idempotency-Key of the call")
        client = self._access.require_daemon().client
        log.warning("control.kill", flatten=flatten, by=by)
        try:
            result = await client.kill(flatten=flatten, key=key)
        except (TryLater, OutcomeUnknown) as error:
            raise RequestProblem(503, "busy", f"the service has not answered ({error.code}: {error.message})") from None
        self._access.mailbox.wake()
        return {"result": result.model_dump(mode="json", by_alias=True)}

    async def lift(self, question: ControlRequest) -> Data:
        """Lift the service's kill switches."""
        question.nothing_else()
        client = self._access.require_daemon().client
        log.warning("control.lift")
        try:
            lifted = await client.lift_kill_switches()
        except ApiError as error:
            kind = CommandTimeout if isinstance(error, TryLater | OutcomeUnknown) else Declined
            raise kind(f"the service has not lifted it ({error.code}): {error.message}") from None
        self._access.mailbox.wake()
        return {"lifted": lifted}

    async def stop(self, question: ControlRequest) -> Data:
        question.nothing_else()
        log.info("control.stop")
        # The stop begins after the answer has been sent.
        asyncio.get_running_loop().call_soon(self._access.stop.set)
        return {"state": "STOPPING", "on_exit": self._access.settings.safety.on_exit}

    def _state_of(self, daemon: RoutedDaemon) -> Data:
        """What every answer of a change shows: the state, the strategies, and whether a restart would forget the
        change.
        """
        state, why = self._access.state()
        strategies = status_documents.strategies(daemon, self._access.settings)
        return {"state": state, "why": why or None, "strategies": strategies, "forgotten": _forgotten(daemon)}

    def _strategy_of(self, question: ControlRequest) -> str | None:
        name = question.text("strategy")
        question.nothing_else()
        known = [strategy.name for strategy in self._access.settings.strategies]
        if name is not None and name not in known:
            raise RequestProblem(404, "not_found", f"no strategy {name}; there are {', '.join(known)}")
        return name


def _forgotten(daemon: RoutedDaemon) -> str | None:
    """Why a restart would forget a pause or its end, as a sentence; None if the journal keeps it."""
    journal = daemon.journal
    if journal.state.keeps_halt_flags():
        return None
    return f"in memory only, and a restart forgets it: {journal.fault}, and its copy beside it cannot be written either"
