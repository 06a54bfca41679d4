"""Operating: what the control socket tells of a running daemon, and what it lets its owner do. Reads the loop; acts between its passes.

What is in memory is told at once. What is in the journal is read in a thread, on a connection that cannot write; in memory too
while its file fails. What changes something waits for the end of the pass under way, so nothing of the loop is ever touched in
the middle of one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog

from bot import __version__
from bot.clock import SystemClock, boot_ns, monotonic_ns
from bot.config import Settings
from bot.descriptors import reserved
from bot.errors import ApiError, Declined, OutcomeUnknown, TryLater
from bot.money import format_decimal
from bot.runtime.alerts.health import ORDERS
from bot.runtime.control_plane.commands import Commands, CommandTimeout
from bot.runtime.control_plane.handle import DaemonHandle
from bot.runtime.control_plane.log_tail import LINES_MAX, Tail
from bot.runtime.control_plane.mailbox import Mailbox
from bot.runtime.control_plane.server import Data, Problem, Question, Routes
from bot.runtime.control_plane.status import State
from bot.runtime.journal import order_trace, queries
from bot.runtime.liveness import systemd
from bot.runtime.model.intents import FINAL, IN_DOUBT
from bot.runtime.model.positions import Drift, MirrorOrder, MirrorPosition
from bot.words import many

if TYPE_CHECKING:
    from bot.runtime.kernel import Kernel

log = structlog.get_logger()
T = TypeVar("T")


class RoutedDaemon(DaemonHandle, Protocol):
    """A daemon that also takes commands."""

    controls: Commands


class ControlRoutes:
    """The routes of one daemon. `run` is set once there is a loop; before that the daemon is STARTING."""

    def __init__(
        self, settings: Settings, *, base_url: str, stop: asyncio.Event, tail: Tail | None, config: Path | None
    ) -> None:
        self.settings = settings
        self.base_url = base_url
        self.stop = stop
        self.tail = tail
        self.config = config
        self.run: RoutedDaemon | None = None
        self.mailbox = Mailbox()
        self.starting: asyncio.Task[None] | None = None  # asks the service manager for time
        self._clock = SystemClock()
        self._started_ms = self._clock.now_ms()
        self.away = ""  # why a start waits for its service

    def base(self) -> Data:
        """Part of every answer."""
        run = self._recovered()
        return {
            "at_ms": self._clock.now_ms(),
            "pid": os.getpid(),
            "epoch": None if run is None else run.kernel.account.mirror.epoch,
            "old_s": None if run is None else _age_s(run),
        }

    def routes(self) -> Routes:
        return {
            ("GET", "/status"): self.status,
            ("GET", "/positions"): self.positions,
            ("GET", "/orders"): self.orders,
            ("GET", "/strategies"): self.strategies,
            ("GET", "/events"): self.events,
            ("GET", "/intents"): self.intents,
            ("GET", "/logs"): self.logs,
            ("GET", "/explain"): self.explain,
            ("GET", "/reconcile"): self.drifts,
            ("POST", "/reconcile"): self.reconcile,
            ("POST", "/pause"): self.pause,
            ("POST", "/resume"): self.resume,
            ("GET", "/reload"): self.reload_diff,
            ("POST", "/reload"): self.reload,
            ("POST", "/kill"): self.kill,
            ("POST", "/lift"): self.lift,
            ("POST", "/stop"): self.stop_run,
        }

    def tell_away(self, why: str) -> None:
        """The service does not answer at the start: what `bot status` says meanwhile. "" once it has."""
        self.away = why

    async def started(self) -> None:
        """The start is over, whatever came of it."""
        if self.starting is not None:
            self.starting.cancel()
            await asyncio.gather(self.starting, return_exceptions=True)
            self.starting = None

    def told(self) -> str:
        """The state in one line, for `systemctl status`."""
        state, why = self.state()
        if self.run is None or state == "STARTING":
            return f"STARTING: {why or 'asking the service for the account'}"
        mirror = self.run.kernel.account.mirror
        bare = [p.market for p in mirror.unprotected()]
        parts = [
            many(len(self.settings.strategies), "strategy", "strategies"),
            many(len(mirror.positions), "position"),
            many(len(mirror.orders), "order"),
        ]
        parts += [f"WITHOUT A STOP: {', '.join(bare)}"] if bare else []
        parts += [why] if why else []
        return f"{state}: {', '.join(parts)}"

    # -- telling

    def state(self) -> State:
        """As status.py has it; before there is a loop the daemon is starting, unless it is told to stop."""
        if self.run is not None:
            return self.run.controls.state
        return State("STOPPING", "asked to stop") if self.stop.is_set() else State("STARTING", self.away)

    async def status(self, question: Question) -> Data:
        """The whole daemon on one page."""
        question.nothing_else()
        state, why = self.state()
        run = self._recovered()
        told: Data = {
            "state": state, "why": why or None, "name": self.settings.name, "version": __version__, "base_url": self.base_url,
            "state_dir": str(self.settings.state_dir), "config": None if self.config is None else str(self.config),
            "started_ms": self._started_ms, "managed_by": "systemd" if systemd.is_managed() else None,
        }  # fmt: skip
        return told if run is None else told | self._of_run(run)

    def _of_run(self, run: RoutedDaemon) -> Data:
        kernel, mirror, clock = run.kernel, run.kernel.account.mirror, run.client.clock
        bare = [p.market for p in mirror.unprotected()]
        unsafe = self._unsafe(run)
        passed_ns = run.passed_ns
        cursor = kernel.journal.events.cursor
        return {
            "address": kernel.journal.address,
            "service": {"now_ms": clock.now_ms(), "speed": clock.speed, "skew_ms": clock.skew_ms, "environment": mirror.environment},
            "account": {"value_usd": round(mirror.equity_usd, 2), "free_usd": round(mirror.free_margin_usd, 2),
                        "balance_usd": format_decimal(mirror.balance_usd)},
            "positions": len(mirror.positions),
            "orders": len(mirror.orders),
            "unprotected": bare,
            "foreign_unprotected": [p.market for p in mirror.positions.values() if p.owner is None and not mirror.is_protected(p.market)],
            "is_safe": not unsafe,
            "unsafe": unsafe,
            "intents": intents_of(kernel),
            "cursor": None if cursor is None else {"last_event_id": cursor.last_id, "behind": kernel.state.behind},
            "last_bar_ms": kernel.state.last_bar_ms,
            "passes": run.progress.cycles,
            "last_pass_ms": None if passed_ns is None else (monotonic_ns() - passed_ns) // 1_000_000,
            "degraded": dict(kernel.health.degraded),
            "heartbeat": _heartbeat(run),
            "guardians": _guardians(run),
            "blocked_by": [{"type": one.type, "id": one.id} for one in mirror.guardians.values() if one.blocks_opens],
            "strategies": self._strategies(run),
            "other_books": self._other_books(run),
            "reload": _reload(run),
        }  # fmt: skip

    def _unsafe(self, run: RoutedDaemon) -> list[str]:
        """What keeps our open positions from being safe, or the run from ordering, a phrase each."""
        mirror = run.kernel.account.mirror
        bare = [p.market for p in mirror.unprotected()] if self.settings.safety.require_protection else []
        found = [f"without a stop: {', '.join(bare)}"] if bare else []
        is_open = any(p.owner is not None for p in mirror.positions.values())
        if is_open and run.kernel.guardians.lacks_dead_man():
            found.append("the dead-man of the config does not stand")
        if silent := run.kernel.health.markets_of(ORDERS):
            found.append(f"no outcome of orders in {', '.join(silent)}")
        return found

    async def positions(self, question: Question) -> Data:
        question.nothing_else()
        kernel = self._loop()
        return {"positions": [_position(kernel, one) for one in kernel.account.mirror.positions.values()]}

    async def orders(self, question: Question) -> Data:
        """Resting entries and armed stops and targets, as the mirror has them."""
        question.nothing_else()
        kernel = self._loop()
        found = [
            {
                "oid": o.oid, "market": o.market, "kind": o.kind, "side": o.side, "action": o.action, "size": format_decimal(o.size),
                "filled": format_decimal(o.filled), "limit_px": _amount(o.limit_px), "trigger_px": _amount(o.trigger_px),
                "trade_id": o.trade_id, "intent": o.key, "created_ms": o.created_ms,
                "strategy": _owner(kernel, o),
            }
            for o in kernel.account.mirror.orders.values()
        ]  # fmt: skip
        return {"orders": found}

    async def strategies(self, question: Question) -> Data:
        question.nothing_else()
        return {"strategies": self._strategies(self._run())}

    def _strategies(self, run: RoutedDaemon) -> list[Data]:
        instances = {instance.name: instance for instance in run.kernel.strategy_host.instances}
        paused = run.controls.paused
        resting: dict[str, list[str]] = {}
        for owner, oid in run.kernel.account.mirror.resting():
            resting.setdefault(owner, []).append(oid)
        found = []
        for one in self.settings.strategies:
            instance = instances.get(one.name)
            quarantined = None if instance is None else instance.quarantined
            why = quarantined or paused.get(one.name)
            # Without a seat, or with one while what happens is kept for it: it still lives through its past.
            is_starting = instance is None or one.name in run.kernel.strategy_host.away or not run.is_recovered
            state = "STARTING" if is_starting else "RUNNING"
            found.append({
                "name": one.name, "use": one.use, "markets": list(one.markets), "interval": one.interval,
                "budget_usd": format_decimal(one.budget_usd), "max_leverage": one.max_leverage,
                "state": "QUARANTINED" if quarantined else "PAUSED" if why else state, "why": why, "book": _book(run, one.name),
                "resting": resting.get(one.name, []),
            })  # fmt: skip
        return found

    def _other_books(self, run: RoutedDaemon) -> list[Data]:
        """What is no strategy's of the config, so that all books together are the account's: of those that have left it, FOREIGN, NETTING."""
        names = {one.name for one in self.settings.strategies}
        attribution = {name: _book(run, name) for name in run.kernel.account.attribution.names() if name not in names}
        return [{"name": name, "book": book} for name, book in attribution.items() if any(map(Decimal, book.values()))]

    async def events(self, question: Question) -> Data:
        since, kinds = question.text("since"), question.text("type")
        since_ms = question.number("since_ms", 0, at_most=2**53)
        back_ms = question.number("back_ms", 0, at_most=2**53)
        limit = question.number("limit", 100, at_most=queries.PAGE_MAX)
        question.nothing_else()
        types = tuple(one.strip() for one in (kinds or "").split(",") if one.strip())

        def read(db: sqlite3.Connection) -> Data:
            if no := queries.no_such_type(db, types):
                raise Problem(400, "invalid_input", f"type={no}")
            return {
                "events": queries.events(
                    db, since_id=since, since_ms=since_ms or None, back_ms=back_ms or None, types=types, limit=limit
                )
            }

        return await self._journal(read)

    async def intents(self, question: Question) -> Data:
        states, strategy = question.text("state"), question.text("strategy")
        limit = question.number("limit", 100, at_most=queries.PAGE_MAX)
        question.nothing_else()
        wanted: Sequence[str] = states.split(",") if states else ()
        return await self._journal(
            lambda db: {"intents": queries.intents(db, states=wanted, strategy=strategy, limit=limit)}
        )

    async def explain(self, question: Question) -> Data:
        name = question.text("id")
        question.nothing_else()
        if name is None:
            raise Problem(400, "invalid_input", "id is the id of an order, a trade or an intent")
        return await self._journal(
            lambda db: {"id": name, "steps": [step.plain() for step in order_trace.explain(db, name)]}
        )

    async def logs(self, question: Question) -> Data:
        """The newest `lines`, or the oldest after line `after`."""
        count = question.number("lines", 100, at_most=LINES_MAX)
        after = question.number("after", 0, at_most=2**53)
        is_following = "after" in question.values
        question.nothing_else()
        if self.tail is None:
            return {"lines": [], "last": 0}
        found = self.tail.after(after, count) if is_following else self.tail.newest(count)
        last = found[-1].seq if found else max(after, 0) if is_following else self.tail.seq
        return {"lines": [{"seq": one.seq, "at_ms": one.at_ms, **one.event} for one in found], "last": last}

    # -- acting

    async def pause(self, question: Question) -> Data:
        """No new entries, of one strategy or of all; exits go on. `resting` may still fill: it is the owner's to cancel."""
        strategy = self._strategy_of(question)
        run = self._run()

        async def work() -> tuple[str, ...]:
            return run.controls.pause(strategy)

        resting = await self.mailbox.ask(work, is_urgent=True)  # Orders leave while a reload or a start warms, too.
        return self._how_it_is(run) | {"resting": list(resting)}

    async def resume(self, question: Question) -> Data:
        """Entries again; a strategy that is named also leaves its quarantine."""
        strategy = self._strategy_of(question)
        run = self._run()
        looked = await self.mailbox.ask(lambda: run.controls.resume(strategy))
        return self._how_it_is(run) | {"looked_at": list(looked)}

    def _how_it_is(self, run: RoutedDaemon) -> Data:
        state, why = self.state()
        return {"state": state, "why": why or None, "strategies": self._strategies(run), "forgotten": _forgotten(run)}

    async def reload_diff(self, question: Question) -> Data:
        """What a reload would change. Changes nothing."""
        question.nothing_else()
        self._loop()
        run = self._run()
        return {"changes": [str(one) for one in await self.mailbox.ask(run.controls.diff)]}

    async def reload(self, question: Question) -> Data:
        """Read the config again and run by it, all or nothing."""
        question.nothing_else()
        self._loop()
        run = self._run()
        done = await self.mailbox.ask(run.controls.reload)
        return self._how_it_is(run) | {
            "changes": [str(one) for one in done.diff], "applied": list(done.applied), "refused": list(done.refused),
            "exit_code": int(done.code),
        }  # fmt: skip

    async def drifts(self, question: Question) -> Data:
        """What differs between the service and what we believe. Repairs nothing."""
        question.nothing_else()
        run = self._run()

        async def look() -> list[Drift]:
            run.kernel.budget.begin()
            return await run.kernel.reconciliation.compare()

        return {"drifts": [asdict(one) for one in await self._compared(look)], "applied": False}

    async def reconcile(self, question: Question) -> Data:
        """Compare and repair, as the daemon does by itself every few minutes."""
        question.nothing_else()
        run = self._run()

        async def work() -> list[Drift]:
            run.kernel.budget.begin()
            found = await run.kernel.reconciliation.reconcile()
            run.kernel.journal.flush()
            if found is None:
                raise TryLater("busy", "the events could not be read to their end")
            return found

        return {"drifts": [asdict(one) for one in await self._compared(work)], "applied": True}

    async def _compared(self, work: Callable[[], Awaitable[list[Drift]]]) -> list[Drift]:
        try:
            return await self.mailbox.ask(work)
        except (TryLater, OutcomeUnknown) as error:
            raise Problem(
                503,
                "busy",
                f"the service could not be asked ({error.code}: {error.message}); the daemon compares again by itself",
            ) from None

    async def kill(self, question: Question) -> Data:
        """The service's kill switch, with the daemon's own key: for an embedded service, which lets nobody else have one meanwhile."""
        flatten, key = question.flag("flatten"), question.text("key")
        question.nothing_else()
        if key is None:
            raise Problem(400, "invalid_input", "key is the Idempotency-Key of the call")
        run = self._run()
        log.warning("control.kill", flatten=flatten)
        try:
            result = await run.client.kill(flatten=flatten, key=key)
        except (TryLater, OutcomeUnknown) as error:
            raise Problem(503, "busy", f"the service has not answered ({error.code}: {error.message})") from None
        self.mailbox.ring()
        return {"result": result.model_dump(mode="json", by_alias=True)}

    async def lift(self, question: Question) -> Data:
        """Take back what `kill` has thrown, with the same key."""
        question.nothing_else()
        run = self._run()
        log.warning("control.lift")
        try:
            lifted = await run.client.lift_kill_switches()
        except ApiError as error:
            kind = CommandTimeout if isinstance(error, TryLater | OutcomeUnknown) else Declined
            raise kind(f"the service has not lifted it ({error.code}): {error.message}") from None
        self.mailbox.ring()
        return {"lifted": lifted}

    async def stop_run(self, question: Question) -> Data:
        question.nothing_else()
        log.info("control.stop")
        asyncio.get_running_loop().call_soon(self.stop.set)  # The answer leaves first.
        return {"state": "STOPPING", "on_exit": self.settings.safety.on_exit}

    # -- inside

    def _run(self) -> RoutedDaemon:
        if self.run is None:
            raise Problem(503, "starting", "the daemon is starting: it waits for the service's first answer; ask again")
        return self.run

    def _recovered(self) -> RoutedDaemon | None:
        """The run, once what it knows of the account is known whole."""
        return None if self.run is None or not self.run.is_recovered else self.run

    def _loop(self) -> Any:
        """Only what has been recovered is told as being so."""
        run = self._run()
        if not run.kernel.state.ready:
            raise Problem(503, "starting", "the daemon is still recovering; ask again")
        return run.kernel

    def _strategy_of(self, question: Question) -> str | None:
        name = question.text("strategy")
        question.nothing_else()
        known = [one.name for one in self.settings.strategies]
        if name is not None and name not in known:
            raise Problem(404, "not_found", f"no strategy {name}; there are {', '.join(known)}")
        return name

    async def _journal(self, read: Callable[[sqlite3.Connection], Data]) -> Data:
        """What the journal has: by the file, in a thread; while that cannot be written, by the memory that has gone on without it."""

        def from_file() -> Data:
            with queries.opened(self.settings.state_dir) as db:
                return read(db)

        try:
            if self.run is None or self.run.journal.fault is None:
                with reserved():
                    return await asyncio.to_thread(from_file)
            with queries.in_rows(self.run.journal.db.conn) as db:
                return read(db)
        except queries.NotFound as error:
            raise Problem(404, "not_found", str(error)) from None


def intents_of(kernel: Kernel) -> Data:
    """How many are not final, and which of them wait for a person."""
    live = [intent for intent in kernel.execution.live.values() if intent.state not in FINAL]
    waiting = [one for one in live if one.state == "quarantined"]
    return {
        "open": len(live), "in_doubt": sum(one.state in IN_DOUBT for one in live), "quarantined": len(waiting),
        "waiting": [{"id": one.id, "strategy": one.strategy, "action": one.action, "market": one.market, "message": one.message} for one in waiting],
    }  # fmt: skip


def _forgotten(run: RoutedDaemon) -> str | None:
    """Why a restart would not know of a pause or its end, as a sentence; None when it will."""
    journal = run.journal
    if journal.state.keeps_halt_flags():
        return None
    return f"in memory only, and a restart forgets it: {journal.fault}, and its copy beside it cannot be written either"


def _book(run: RoutedDaemon, strategy: str) -> Data:
    book = run.kernel.account.attribution.of(strategy)
    names = ("fees_usd", "funding_usd", "realized_usd", "unrealized_usd", "margin_lost_usd", "net_usd", "day_usd")
    return {
        "fills": book.fills,
        **{name: format_decimal(getattr(book, name)) for name in names},
        "is_halted": book.is_halted,
    }


def _age_s(run: RoutedDaemon) -> float:
    """How old is what is told of the account: since the events could be read to their end, and a pass has ended."""
    passed_s = 0.0 if run.passed_ns is None else (monotonic_ns() - run.passed_ns) / 1e9
    return round(max(run.kernel.state.lag_s(run.kernel.budget.pacer.mono_ms()), passed_s), 1)


def _heartbeat(run: RoutedDaemon) -> Data | None:
    if run.heartbeat is None:
        return None
    lease = run.heartbeat.lease()
    left_ns = None if lease.deadline_boot_ns is None else lease.deadline_boot_ns - boot_ns()
    return {
        "alive": lease.alive, "armed": lease.armed, "may_open": lease.may_open, "lapsed": lease.lapsed, "beats": lease.beats,
        "failures": lease.failures, "error": lease.error or None, "deadline_s": None if left_ns is None else round(left_ns / 1e9, 1),
        "next_deadline_ms": lease.next_deadline_ms,
    }  # fmt: skip


def _reload(run: RoutedDaemon) -> Data | None:
    """What came of the newest one; its asker may have gone, and a hangup has none."""
    newest = run.controls.newest
    if newest is None:
        return None
    now_ns, ended_ns, result = monotonic_ns(), newest.ended_ns, newest.result
    return {
        "began_s": (now_ns - newest.began_ns) // 1_000_000_000,
        "ended_s": None if ended_ns is None else (now_ns - ended_ns) // 1_000_000_000,
        "changes": [str(one) for one in result.diff], "applied": list(result.applied), "refused": list(result.refused),
        "exit_code": int(result.code),
    }  # fmt: skip


def _guardians(run: RoutedDaemon) -> list[Data]:
    """What the config asks for, and whether it stands."""
    kernel = run.kernel
    fallen = {one.name for one in kernel.guardians.fallen()}
    return [
        {
            "name": one.name,
            "type": one.request.type,
            "id": kernel.guardians.ids.get(one.name),
            "stands": one.name not in fallen,
        }
        for one in kernel.guardians.wanted
    ]


def _owner(kernel: Any, one: MirrorOrder) -> str | None:
    """Whose order it is: who sent it; of a stop or target, which the service made, who has the position."""
    if one.key is not None:
        owner: str | None = kernel.account.order_owners.owner_of(one.key)
        return owner
    position = kernel.account.mirror.positions.get(one.market)
    return None if position is None else position.owner


def _position(kernel: Any, one: MirrorPosition) -> Data:
    stop, target = kernel.account.mirror.stop_of(one.market), kernel.account.mirror.target_of(one.market)
    return {
        "market": one.market, "side": one.side, "size": format_decimal(one.size), "entry_px": _amount(one.entry_px),
        "mark_px": kernel.account.mirror.marks.get(one.market), "unrealized_usd": round(kernel.account.mirror.unrealized_usd(one), 2),
        "notional_usd": format_decimal(one.notional_usd), "leverage": one.leverage, "strategy": one.owner,
        "shares": {name: format_decimal(share.size) for name, share in kernel.account.attribution.shares.get(one.market, {}).items()},
        "stop_px": None if stop is None else _amount(stop.trigger_px), "target_px": None if target is None else _amount(target.trigger_px),
        "trailing_stops": [{"id": g.id, "active": g.active} for g in kernel.account.mirror.guardians.values() if (g.type, g.market) == ("trailing_stop", one.market)],
        "protected": kernel.account.mirror.is_protected(one.market), "needs_stop": kernel.context.requires_protection(one), "opened_ms": one.opened_ms,
    }  # fmt: skip


def _amount(value: Any) -> str | None:
    return None if value is None else format_decimal(value)
