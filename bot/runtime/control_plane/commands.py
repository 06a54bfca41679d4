"""The commands of an operator to a running daemon: pause, resume, show what a reload would change, and reload.

They are called between two passes of the kernel. A reload is all or nothing: everything that can be refused (the file,
the code, the service's bars, a guardian) is tried before anything changes. The long part after that, the warm-up of
strategies, yields to passes. Nothing here knows the socket or the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from bot.clock import monotonic_ns
from bot.config import Settings, StrategySettings
from bot.config.diff import Change, diff
from bot.errors import AccessLost, ApiError, BotError, ConfigError, Declined, Exit, Refused, StrategyError
from bot.logs import log
from bot.runtime.alerts.messages import notice
from bot.runtime.control_plane.hot_reload import Warm, hot_reload, warm_up
from bot.runtime.control_plane.status import DaemonState, state_of
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.kernel.assembly import kernel_settings, place, place_strategies, source_digests, wanted_guardians
from bot.runtime.liveness.heartbeat_supervision import beat_timing_of
from bot.runtime.risk.pauses import keep_quarantine
from bot.runtime.strategy_host import fingerprints
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.package_versions import versions_in
from bot.runtime.strategy_host.worker import LIMIT_S, Worker

if TYPE_CHECKING:
    from bot.runtime.control_plane.handle import DaemonHandle
    from bot.runtime.kernel.kernel import Kernel

T = TypeVar("T")

# for the bars of all strategies to be built; no pass runs meanwhile, and without passes the heartbeats stop
WARM_S: Final = 5.0

# Sections of the config that a running daemon takes over; all others need a restart.
LIVE: Final = frozenset(
    {"strategies", "guardians", "dead_man", "safety", "protections", "orders", "reconcile_seconds", "strategies_dir"}
)


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """`diff`: the changes of the config. `applied`: what was done; `refused`: why nothing was done, in sentences.
    `code`: the exit code.

    If the config was applied and `code` is that of a config error, a rebuilt strategy is in quarantine.
    """

    diff: tuple[Change, ...] = ()
    applied: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    code: Exit = Exit.DONE


@dataclass(frozen=True, slots=True)
class Reload:
    """The newest reload. `ended_ns` is None while it is under way."""

    began_ns: int
    ended_ns: int | None = None
    result: ReloadResult = field(default_factory=ReloadResult)


class CommandTimeout(BotError):
    """The service has not answered within the time that a running daemon can wait."""

    exit_code = Exit.TIMEOUT


@dataclass(slots=True)
class _Plan:
    """A config that was read and checked, and what it means for each strategy."""

    settings: Settings
    specs: list[StrategySpec]
    diff: tuple[Change, ...]
    # strategies to be built: added, or with other code or params
    fresh: list[str] = field(default_factory=list)
    # strategies to be stopped: removed, or replaced by a fresh instance
    gone: list[str] = field(default_factory=list)


class Commands:
    """`reread` reads and checks the config file again; None: this run was not started from a file."""

    def __init__(self, run: DaemonHandle, reread: Callable[[], Settings] | None) -> None:
        self._run = run
        self._reread = reread
        self.newest: Reload | None = None

    # -- answers

    @property
    def state(self) -> DaemonState:
        run = self._run
        return state_of(run.kernel, is_stopping=run.stop.is_set(), away=run.away)

    @property
    def paused(self) -> dict[str, str]:
        """Why strategies open nothing, by name: a person paused them, or they reached their daily loss."""
        kernel = self._run.kernel
        refusals = {
            strategy.name: kernel.conditions.strategy_stopped(strategy.name, kernel.now_ms())
            for strategy in self._run.settings.strategies
        }
        return {name: no.message for name, no in refusals.items() if no is not None}

    # -- changes

    def pause(self, strategy: str | None = None, *, by: str | None = None) -> tuple[str, ...]:
        """Stop new entries of one strategy or of all; exits and protection go on. Returns the resting entries, which
        may still fill.

        `by` is the person, where the way of the command knows it.
        """
        kernel = self._run.kernel
        self._known(strategy)
        if kernel.conditions.pauses.pause(strategy):
            log.warning("strategies.paused", strategy=strategy, by=by)
            now_ms = kernel.now_ms()
            message = f"no new entries{f', by {by}' if by else ''}; exits and protection go on"
            written = notice(
                "strategy.paused",
                f"pause:{now_ms}",
                at_ms=now_ms,
                strategy=strategy or "every strategy",
                message=message,
            )
            kernel.journal.notify([written], now_ms=now_ms)
        return kernel.account.account_state.resting_of(strategy)

    async def resume(self, strategy: str | None = None, *, by: str | None = None) -> tuple[str, ...]:
        """Allow entries again. A named strategy also leaves its quarantine: it is built again from its file, or
        BotError says why not.

        Without a name it also ends the degraded states that wait for a person, and returns them as sentences.
        """
        kernel = self._run.kernel
        self._known(strategy)
        if strategy is not None and kernel.conditions.pauses.all_paused:
            raise BotError(
                f"every strategy is paused, so {strategy} would stay paused: bot resume without a name resumes all"
            )
        if kernel.conditions.pauses.resume(strategy):
            log.warning("strategies.resumed", strategy=strategy, by=by)
        reviewed: list[str] = []
        # The person has reviewed the foreign activity, and the orders that wait because of it.
        if strategy is None:
            reviewed += [kernel.health.degraded[FOREIGN]] if FOREIGN in kernel.health.degraded else []
            reviewed += [
                f"{intent.action} {intent.market} of {intent.strategy} ({intent.id[:12]}), which no longer waits"
                for intent in kernel.intents.live.values()
                if intent.state == "quarantined"
            ]
            kernel.health.restore(FOREIGN)
            kernel.execution.release()
        instance = next((instance for instance in kernel.strategy_host.instances if instance.name == strategy), None)
        if instance is not None and instance.quarantined is not None:
            await self._build_again(instance.name)
        return tuple(reviewed)

    async def diff(self) -> tuple[Change, ...]:
        """What a reload would change. ConfigError if the file cannot be used."""
        return (await self._planned()).diff

    async def reload(self) -> ReloadResult:
        """Read the config again and apply it. A refused config changes nothing."""
        began_ns = monotonic_ns()
        self.newest = Reload(began_ns)
        result = ReloadResult(refused=("it failed; bot logs says why",), code=Exit.ERROR)
        try:
            result = await self._reload()
        finally:
            self.newest = Reload(began_ns, monotonic_ns(), result)
        return result

    # -- steps

    async def _reload(self) -> ReloadResult:
        try:
            plan = await self._planned()
        except (ConfigError, StrategyError) as error:
            return self._refused((), str(error), Exit.CONFIG)
        if not plan.diff:
            return ReloadResult()
        fixed = [change for change in plan.diff if _section(change.path) not in LIVE]
        if fixed:
            names = ", ".join(change.path for change in fixed)
            why = f"{names} cannot change while the daemon runs: stop it and start it again"
            return self._refused(plan.diff, why, Exit.CONFIG)
        await self._run.yield_to_pass()
        kernel = self._run.kernel
        try:
            warm = await self._warmed([spec for spec in plan.specs if spec.strategy.name in plan.fresh])
            # ConfigError if no heartbeat could keep it from firing.
            beat_timing_of(plan.settings, self._run.client.clock.speed)
            await kernel.guardians.change(wanted_guardians(plan.settings), epoch=kernel.account.account_state.epoch)
            kernel.health.keep("guardian:", kernel.guardians.refused)
        except (ConfigError, CommandTimeout) as error:
            return self._refused(plan.diff, str(error), error.exit_code)
        except AccessLost:
            raise
        except ApiError as error:
            did, code = "could not be asked", Exit.TIMEOUT
            if isinstance(error, Refused):
                did, code = "does not take it", Exit.REFUSED
            return self._refused(plan.diff, f"the service {did} ({error.code}): {error.message}", code)
        applied = await self._apply(plan, warm)
        log.warning("config.reloaded", changes=[str(change) for change in plan.diff])
        failed = any(instance.quarantined for instance in kernel.strategy_host.instances if instance.name in plan.fresh)
        return ReloadResult(plan.diff, applied, code=Exit.CONFIG if failed else Exit.DONE)

    async def _planned(self) -> _Plan:
        reread = self._reread
        if reread is None:
            raise ConfigError("this run was not started from a config file, so there is nothing to read again")
        if not self._run.kernel.state.ready:
            raise ConfigError("the daemon has not recovered yet; reload when it has")

        def read() -> tuple[Settings, list[StrategySpec]]:
            settings = reread()
            return settings, place_strategies(settings, anew=True)

        # A thread, so that an import that never ends delays a pass by its limit at most.
        worker = Worker("@reload")
        try:
            settings, specs = await _read(worker, read, "the config or a strategy of it cannot be read")
        except StrategyError as error:
            if not worker.given_up:
                raise
            raise ConfigError(
                f"the config and its strategies were not read within {LIMIT_S:g} s: the import of a strategy file does"
                " not end, or takes too long for a running daemon. Nothing was changed; bot check CONFIG names the"
                " line. The import may go on in its thread until the next start"
            ) from error
        finally:
            worker.close()
        old = {strategy.name: strategy for strategy in self._run.settings.strategies}
        versions = {instance.name: instance.version for instance in self._run.kernel.strategy_host.instances}
        plan = _Plan(settings, specs, diff(self._run.settings, settings))
        for spec in specs:
            name = spec.strategy.name
            if versions.get(name) != spec.version:
                plan.fresh.append(name)
                if name in versions and not any(change.path.startswith(f"strategies.{name}.") for change in plan.diff):
                    plan.diff += (
                        Change(
                            f"strategies.{name}.use", f"{old[name].use} (as it was)", f"{old[name].use} (changed code)"
                        ),
                    )
        plan.gone = [name for name in versions if name in plan.fresh or name not in {p.strategy.name for p in specs}]
        return plan

    async def _warmed(self, specs: list[StrategySpec]) -> dict[str, Warm]:
        """The warm-up bars of each strategy. Asking for them changes nothing, so it may be cancelled."""
        warm = {}
        try:
            async with asyncio.timeout(WARM_S):
                for spec in specs:
                    its_warm_up = warm[spec.strategy.name] = await warm_up(self._run.kernel, spec)
                    for message in its_warm_up.feed.gone.values():
                        raise ConfigError(f"strategy {spec.strategy.name}: {message}")
        except TimeoutError:
            names = ", ".join(spec.strategy.name for spec in specs)
            raise CommandTimeout(
                f"the service did not return the bars of {names} within {WARM_S:g} s, and no pass runs while the daemon"
                " waits: try again, or restart the daemon"
            ) from None
        return warm

    async def _apply(self, plan: _Plan, warm: dict[str, Warm]) -> tuple[str, ...]:
        """Apply the plan. From here on nothing is refused; what fails now fails as in any pass."""
        run, kernel, new = self._run, self._run.kernel, plan.settings
        applied = []
        rearmed = run.settings.guardians != new.guardians or run.settings.dead_man != new.dead_man
        beats = run.settings.dead_man != new.dead_man
        run.take_settings(new)
        # First, because the old switch needs heartbeats with its own timing until it is gone.
        if rearmed:
            applied.append("guardians: " + (", ".join(guardian.name for guardian in kernel.guardians.wanted) or "none"))
            try:
                await kernel.guardians.retire()
            except ApiError as error:
                applied.append(f"the old guardians are still armed ({error.code}); the next pass disarms them")
        if beats:
            run.heartbeats.replace()
        kernel.take_settings(kernel_settings(new))
        packages = versions_in(spec.source for spec in plan.specs)
        mark = fingerprints.mark_of(new, source_digests(plan.specs), packages)
        fingerprints.note_run(kernel.journal, mark, at_ms=kernel.now_ms(), epoch=kernel.account.account_state.epoch)
        await self._hot_reload(plan.specs, warm, plan.gone)
        instances = {instance.name: instance for instance in kernel.strategy_host.instances}
        for name in plan.fresh:
            why = instances[name].quarantined
            done = "built again" if name in plan.gone else "started"
            applied.append(f"{name}: {done}" if why is None else f"{name}: in quarantine, {why}")
        for name in plan.gone:
            left = _left_by(kernel, name, instances[name].markets if name in instances else frozenset())
            if name not in instances:
                applied.append(f"{name}: stopped{left}")
            elif left:
                applied.append(f"{name}: asked about fewer markets{left}")
        return tuple(applied or ("settings: in force",))

    async def _hot_reload(self, specs: list[StrategySpec], warm: dict[str, Warm], gone: list[str]) -> None:
        run = self._run
        await hot_reload(
            run.kernel, specs, fresh=warm, gone=gone, renew=run.workers.renew, yield_to_pass=run.yield_to_pass
        )
        run.workers.keep_only(spec.strategy.name for spec in specs)

    async def _build_again(self, name: str) -> None:
        """Build a quarantined strategy from its file as it is now, with the config that runs."""
        run = self._run
        settings = next(strategy for strategy in run.settings.strategies if strategy.name == name)
        worker = Worker("@reload")
        try:
            mine = await _read(worker, lambda: place(run.settings, settings, anew=True), "its code cannot be read")
        except (ConfigError, StrategyError) as error:
            why = f"its file was not read within {LIMIT_S:g} s" if worker.given_up else error
            raise ConfigError(f"{name} stays in quarantine: {why}") from error
        finally:
            worker.close()
        try:
            warm = await self._warmed([mine])
        except AccessLost:
            raise
        except ApiError as error:
            kind = Declined if isinstance(error, Refused) else CommandTimeout
            raise kind(
                f"{name} stays in quarantine: the service could not be asked for its bars ({error.code})"
            ) from error
        keep_quarantine(run.kernel.journal, name, None)
        fingerprints.note_source(
            run.kernel.journal,
            settings,
            mine.sha256,
            at_ms=run.kernel.now_ms(),
            epoch=run.kernel.account.account_state.epoch,
        )
        kept = [mine if strategy.name == name else _as_it_runs(run, strategy) for strategy in run.settings.strategies]
        await self._hot_reload(kept, warm, [name])
        instance = next(instance for instance in run.kernel.strategy_host.instances if instance.name == name)
        if instance.quarantined is not None:
            raise ConfigError(f"{name} failed again and is back in quarantine: {instance.quarantined}")

    def _known(self, strategy: str | None) -> None:
        names = [configured.name for configured in self._run.settings.strategies]
        if strategy is not None and strategy not in names:
            raise BotError(f"no strategy {strategy}; there are {', '.join(names)}")

    def _refused(self, changes: tuple[Change, ...], why: str, code: Exit) -> ReloadResult:
        log.error("config.refused", message=why)
        return ReloadResult(changes, (), (f"{why}. Nothing was changed.",), code)


async def _read(worker: Worker, read: Callable[[], T], refusal: str) -> T:
    """Read files and packages in a thread.

    It changes nothing, so every exception is a refusal; an assertion is a fault of ours.
    """
    try:
        return await worker.call(read)
    except (BotError, AssertionError):
        raise
    except Exception as error:
        # The text of others may contain a secret.
        cause = error if isinstance(error, OSError) else type(error).__name__
        raise ConfigError(f"{refusal}: {cause}") from error


def _left_by(kernel: Kernel, strategy: str, markets: frozenset[str]) -> str:
    """Positions and orders of the strategy outside of these markets, where it is no longer called, as part of a
    sentence.
    """
    held = [
        p.market
        for p in kernel.account.account_state.positions.values()
        if p.owner == strategy and p.market not in markets
    ]
    bare = [market for market in held if not kernel.account.account_state.is_protected(market)]
    stop = f"WITHOUT A STOP: {', '.join(bare)}" if bare else "with its stop"
    left = f"; its {', '.join(held)} stays {stop}" if held else ""
    resting = [
        oid
        for oid in kernel.account.account_state.resting_of(strategy)
        if kernel.account.account_state.orders[oid].market not in markets
    ]
    return left + (f"; entries that rest may still fill: {', '.join(resting)} (bot orders)" if resting else "")


def _as_it_runs(run: DaemonHandle, strategy: StrategySettings) -> StrategySpec:
    instance = next(instance for instance in run.kernel.strategy_host.instances if instance.name == strategy.name)
    return StrategySpec(
        instance.strategy, instance.interval, run.kernel.risk.strategy_limits[strategy.name], instance.version
    )


def _section(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]
