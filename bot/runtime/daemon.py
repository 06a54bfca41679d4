"""The daemon: composition root. `run` opens the state directory, reaches the service, opens the journal, and lets a
supervisor run.

`kernel` holds what a pass does, `supervisor` how a run starts and ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bot.client import Client
from bot.clock import SystemClock, boot_id
from bot.descriptors import keep_reserve
from bot.errors import Exit
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.control_plane import reporting, server
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.metrics import MetricSources
from bot.runtime.control_plane.routes import routes_of
from bot.runtime.journal import queries
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.opening import open_or_rebuild
from bot.runtime.kernel.assembly import place_strategies, source_digests
from bot.runtime.liveness import systemd
from bot.runtime.liveness.clock_watch import expire_held
from bot.runtime.liveness.instance_lock import HeldDirectory, hold_account, hold_state, noted, private_dir
from bot.runtime.liveness.run_files import kept
from bot.runtime.run_request import RunRequest
from bot.runtime.shutdown import DaemonEnd, LeftBehind
from bot.runtime.startup import until_up
from bot.runtime.strategy_host import fingerprints
from bot.runtime.strategy_host.crash_evidence import quarantine_asked
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.package_versions import versions_in
from bot.runtime.supervisor import Supervisor

if TYPE_CHECKING:
    from bot.wire import AccountSnapshot


async def run(request: RunRequest, *, held: HeldDirectory | None = None) -> DaemonEnd:
    """Run until `request.stop` is set or the run cannot go on. One run per state directory and account; the service may
    be away at the start.

    `held`: the caller holds the state directory already.
    """
    keep_reserve()
    async with AsyncExitStack() as stack:
        state_dir = await _open_state_dir(stack, request, held)
        access = await _serve_control_socket(stack, request, state_dir)
        async with reporting.telling_failure(request.settings, SystemClock().now_ms):
            specs = place_strategies(request.settings)
        client = await stack.enter_async_context(Client(request.base_url, request.api_key))
        log.info(
            "daemon.started",
            name=request.settings.name,
            base_url=request.base_url,
            state_dir=str(state_dir),
            strategies=[spec.strategy.name for spec in specs],
        )
        was_used = (state_dir / "progress").exists()
        snapshot = await _reach_service(request, client, access, was_used=was_used)
        if snapshot is None:
            return DaemonEnd(Exit.DONE, LeftBehind(known=False), "stopped before the service answered")
        account = stack.enter_context(hold_account(snapshot.address, state_dir))
        if account is not None:
            await stack.enter_async_context(kept(account))
        async with reporting.telling_failure(request.settings, client.clock.now_ms):
            journal, damage = open_or_rebuild(
                state_dir / queries.FILE,
                address=snapshot.address,
                now_ms=SystemClock().now_ms(),
                was_used=was_used,
                secret=request.api_key.get_secret_value(),
            )
        stack.callback(journal.close)
        _note_start(request, journal, specs, client, snapshot)
        # The old stamp is read before the supervisor writes this run's first stamp.
        last_sign = reporting.last_sign(journal, state_dir)
        supervisor = Supervisor(request, client, journal, specs, access)
        if damage is not None:
            supervisor.kernel.health.incident("journal.rebuilt", queries.FILE, message=damage)
        reporting.note_begin(journal, last_sign, now_ms=client.clock.now_ms())
        armed = any(g.type == "dead_man_switch" and g.status == "armed" for g in snapshot.guardians)
        await stack.enter_async_context(reporting.notifying(supervisor.notifier, request.stop))
        return await _run_to_end(stack, supervisor, beat_at_once=armed)


async def _open_state_dir(stack: AsyncExitStack, request: RunRequest, held: HeldDirectory | None) -> Path:
    """Hold the state directory for this run, and keep its lock file in place."""
    state_dir = private_dir(request.settings.state_dir)
    if held is None:
        held = stack.enter_context(hold_state(state_dir))
    assert held.folder == state_dir
    stack.enter_context(noted(held))
    await stack.enter_async_context(kept(held.lock))
    return state_dir


async def _serve_control_socket(stack: AsyncExitStack, request: RunRequest, state_dir: Path) -> DaemonAccess:
    """Answer `bot status` from the start on, and ask the service manager for time until the start is complete."""
    access = DaemonAccess(
        request.settings, base_url=request.base_url, stop=request.stop, tail=request.tail, config=request.config
    )
    await stack.enter_async_context(server.serving(state_dir, routes_of(access), access.base))
    access.set_starting(asyncio.create_task(systemd.ask_for_time(access.summary), name="start"))
    stack.push_async_callback(access.started)
    return access


async def _reach_service(
    request: RunRequest, client: Client, access: DaemonAccess, *, was_used: bool
) -> AccountSnapshot | None:
    """The account, however long the service is away;

    None if the stop came first. `was_used`: an earlier run has used the state directory.
    """
    async with reporting.telling_failure(request.settings, client.clock.now_ms):
        return await until_up(client.account, request.stop, access.set_away, is_known=was_used)


def _note_start(
    request: RunRequest, journal: Journal, specs: Sequence[StrategySpec], client: Client, snapshot: AccountSnapshot
) -> None:
    """Write into the journal what this run is, and settle what an earlier run left: strategies that hung, entries of
    unknown age.
    """
    now_ms = client.clock.now_ms()
    quarantine_asked(request.settings.state_dir, journal, specs, now_ms=now_ms)
    fingerprints.note_run(
        journal,
        fingerprints.mark_of(request.settings, source_digests(specs), versions_in(spec.source for spec in specs)),
        at_ms=now_ms,
        epoch=snapshot.epoch,
        balance_usd=snapshot.balance_usd,
        config=request.config,
    )
    journal.state.write_note(queries.RUN, json.dumps(_run_of(request)))
    if not client.clock.is_sandbox:
        expire_held(journal, wall_ms=SystemClock().now_ms(), boot_id=boot_id())


def _run_of(request: RunRequest) -> dict[str, Any]:
    """What people need to find the account again when the daemon is dead."""
    settings = request.settings
    strategies = [
        {
            "name": strategy.name,
            "markets": list(strategy.markets),
            "interval": strategy.interval,
            "budget_usd": format_decimal(strategy.budget_usd),
        }
        for strategy in settings.strategies
    ]
    config = None if request.config is None else str(request.config)
    return {"name": settings.name, "base_url": request.base_url, "config": config, "strategies": strategies}


async def _run_to_end(stack: AsyncExitStack, supervisor: Supervisor, *, beat_at_once: bool) -> DaemonEnd:
    """Run, with the port for metrics open, and write a notice of how the run ended."""
    settings, journal, clock = supervisor.request.settings, supervisor.journal, supervisor.client.clock
    sources = MetricSources(
        supervisor.passes.meter,
        supervisor.kernel,
        lambda: supervisor.heartbeats.process,
        supervisor.notifier,
        state=lambda: supervisor.access.state().word,
        is_recovered=lambda: supervisor.is_recovered,
        prices=supervisor.prices,
        alarms=supervisor.alarms,
    )
    port = None if settings.metrics is None else settings.metrics.port
    try:
        await stack.enter_async_context(reporting.exposing(port, settings.state_dir, sources))
        end = await supervisor.go(beat_at_once=beat_at_once)
    except Exception as error:
        await reporting.write_failure(settings, journal, *reporting.failure(error), now_ms=clock.now_ms())
        reporting.note_end(journal)
        raise
    if end.exit_code is Exit.DONE:
        idle = "" if supervisor.kernel.builder.signals else "; no strategy asked for an order in this run"
        if idle:
            log.info("run.idle", message=idle.removeprefix("; "))
        reporting.write_notice(supervisor.kernel, "daemon.stopped", f"{end.message or 'as asked'}{idle}")
    else:
        await reporting.write_failure(settings, journal, end.message, end.exit_code, now_ms=clock.now_ms())
    reporting.note_end(journal)
    return end
