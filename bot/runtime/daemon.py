"""The daemon: composition root. Builds journal, client, heartbeat, strategies and loop from a config, runs passes until it is told to stop.

What the loop does is in `kernel`; here is what it is made of, when it makes its next pass, and how a run begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import SecretStr

from bot.client import Client
from bot.clock import SystemClock, boot_id
from bot.config import Settings
from bot.descriptors import keep_reserve
from bot.errors import (
    ApiError,
    Exit,
)
from bot.runtime.assembly import place_strategies, source_digests
from bot.runtime.control_plane import reporting, server
from bot.runtime.control_plane.log_tail import Tail
from bot.runtime.control_plane.metrics import Sources
from bot.runtime.control_plane.routes import ControlRoutes
from bot.runtime.journal import queries
from bot.runtime.journal.opening import open_or_rebuild
from bot.runtime.liveness import systemd
from bot.runtime.liveness.clock_watch import expire_held
from bot.runtime.liveness.instance_lock import Held, hold_account, hold_state, kept, noted, private_dir
from bot.runtime.shutdown import LeftBehind
from bot.runtime.strategy_host import fingerprints
from bot.runtime.strategy_host.crash_evidence import quarantine_asked
from bot.runtime.supervisor import DaemonEnd, Supervisor, until_up

log = structlog.get_logger()
T = TypeVar("T")


async def run(
    settings: Settings,
    *,
    base_url: str,
    api_key: SecretStr,
    stop: asyncio.Event,
    on_ready: Callable[[], None] = lambda: None,
    held: Held | None = None,
    tail: Tail | None = None,
    config: Path | None = None,
    reread: Callable[[], Settings] | None = None,
    hangup: asyncio.Event | None = None,
    trouble: Callable[[], str | None] = lambda: None,
    at_rest: Callable[[], None] = lambda: None,
) -> DaemonEnd:
    """Run until `stop` is set or the run cannot go on. One run a state directory and an account; the service may be away at the start.

    `held`: the caller holds the state directory already. `tail` is the log's, `config` the file's name, for the control socket.
    `reread` reads and judges the config anew, for a reload; `hangup`, when set, asks for one. `trouble` says why the service is known to
    be away, in a sentence: the run is degraded by it as long as it does. `at_rest` is called between passes where nothing is due for a while.
    """
    keep_reserve()
    state_dir = private_dir(settings.state_dir)
    async with contextlib.AsyncExitStack() as stack:
        if held is None:
            held = stack.enter_context(hold_state(state_dir))
        assert held.folder == state_dir
        stack.enter_context(noted(held))
        await stack.enter_async_context(kept(held.lock))
        operations = ControlRoutes(settings, base_url=base_url, stop=stop, tail=tail, config=config)
        await stack.enter_async_context(server.serving(state_dir, operations.routes(), operations.base))
        operations.starting = asyncio.create_task(systemd.ask_for_time(operations.told), name="start")
        stack.push_async_callback(operations.started)
        specs = place_strategies(settings)
        client = await stack.enter_async_context(Client(base_url, api_key))
        log.info(
            "daemon.started",
            name=settings.name,
            base_url=base_url,
            state_dir=str(state_dir),
            strategies=[p.strategy.name for p in specs],
        )
        was_used = (state_dir / "progress").exists()
        try:
            snapshot = await until_up(client.account, stop, operations.tell_away, is_known=was_used)
        except ApiError as error:
            await reporting.tell_unbegun(settings, error, now_ms=client.clock.now_ms())
            raise
        if snapshot is None:
            return DaemonEnd(Exit.DONE, LeftBehind(known=False), "stopped before the service answered")
        account = stack.enter_context(hold_account(snapshot.address, state_dir))
        if account is not None:
            await stack.enter_async_context(kept(account))
        journal, damage = open_or_rebuild(
            state_dir / queries.FILE,
            address=snapshot.address,
            now_ms=SystemClock().now_ms(),
            was_used=was_used,
        )
        stack.callback(journal.close)
        quarantine_asked(state_dir, journal, specs, now_ms=client.clock.now_ms())
        fingerprints.note_run(
            journal, fingerprints.mark_of(settings, source_digests(specs)), at_ms=client.clock.now_ms(), epoch=snapshot.epoch,
            balance_usd=snapshot.balance_usd, config=config,
        )  # fmt: skip
        if not client.clock.is_sandbox:
            expire_held(journal, wall_ms=SystemClock().now_ms(), boot_id=boot_id())
        armed = any(g.type == "dead_man_switch" and g.status == "armed" for g in snapshot.guardians)
        last_sign = reporting.last_sign(journal, state_dir)
        one = Supervisor(
            settings,
            client,
            journal,
            specs,
            base_url,
            api_key,
            stop,
            on_ready,
            operations,
            reread,
            hangup,
            trouble,
            at_rest,
        )
        if damage is not None:
            one.kernel.health.incident("journal.rebuilt", queries.FILE, message=damage)
        reporting.begin(journal, last_sign, now_ms=client.clock.now_ms())
        sources = Sources(
            one.meter, one.kernel, lambda: one.heartbeat, one.notifier, state=lambda: operations.state()[0],
            is_recovered=lambda: one.is_recovered,
        )  # fmt: skip
        port = None if settings.metrics is None else settings.metrics.port
        await stack.enter_async_context(reporting.notifying(one.notifier, stop))
        try:
            await stack.enter_async_context(reporting.exposing(port, state_dir, sources))
            end = await one.go(beat_at_once=armed)
        except Exception as error:
            await reporting.tell_failed(settings, journal, *reporting.failure(error), now_ms=client.clock.now_ms())
            reporting.ended(journal)
            raise
        if end.exit_code is Exit.DONE:
            reporting.tell(one.kernel, "daemon.stopped", end.message or "as asked")
        else:
            await reporting.tell_failed(settings, journal, end.message, end.exit_code, now_ms=client.clock.now_ms())
        reporting.ended(journal)
        return end
