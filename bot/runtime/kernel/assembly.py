"""Assembly: from a config to the parts of a run: strategies with their limits, guardians, and the kernel's settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from bot.config import Settings, StrategySettings
from bot.errors import ConfigError
from bot.logs import log
from bot.runtime.reconciliation.daemon_run import KernelSettings
from bot.runtime.reconciliation.guardians import DEAD_MAN, WantedGuardian
from bot.runtime.strategy_host.host import StrategySpec
from bot.runtime.strategy_host.loader import Loaded, build, load
from bot.runtime.strategy_host.strategy_limits import limits_of, protection_rules
from bot.wire import GuardianRequest


def place_strategies(settings: Settings, *, anew: bool = False) -> list[StrategySpec]:
    """Load and build every configured strategy. ConfigError or StrategyError names the one that cannot be used.

    `anew`: for a reload. Changed code that only a new process can load is an error then.
    """
    return [place(settings, strategy, anew=anew) for strategy in settings.strategies]


def place(settings: Settings, section: StrategySettings, *, anew: bool = False) -> StrategySpec:
    loaded = load(section.use, settings.strategies_dir)
    if anew and loaded.is_outdated:
        raise ConfigError(
            f"the code of strategy {section.name} ({loaded.path}) has changed. The code of an installed package cannot"
            " be reloaded: stop the daemon and start it again"
        )
    for warning in loaded.warnings:
        log.warning("strategy.exposed", strategy=section.name, message=warning)
    strategy = build(
        loaded,
        name=section.name,
        markets=section.markets,
        params=section.params,
        interval=section.interval,
        informative=section.informative,
    )
    log.info("strategy.loaded", strategy=section.name, use=section.use, sha256=(loaded.sha256 or "")[:12] or None)
    return StrategySpec(
        strategy,
        section.interval,
        limits_of(settings, section),
        version_of(section, loaded),
        loaded.sha256,
        loaded.path,
    )


def source_digests(specs: Iterable[StrategySpec]) -> dict[str, str | None]:
    """Strategy -> digest of the source that runs."""
    return {spec.strategy.name: spec.sha256 for spec in specs}


def version_of(section: StrategySettings, loaded: Loaded) -> str:
    """A digest of code, params and markets: two instances with the same version are the same.

    Only a digest, because params may hold secrets.
    """
    parts = [section.use, loaded.sha256, list(section.markets), section.interval, section.netting, dict(section.params)]
    parts += [list(section.informative)] if section.informative else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def kernel_settings(settings: Settings) -> KernelSettings:
    """The part of the config that the kernel needs."""
    return KernelSettings(
        guardians=wanted_guardians(settings),
        foreign_positions=settings.safety.foreign_positions,
        adopted_stop_pct=settings.safety.adopted_stop_pct,
        reconcile_ms=settings.reconcile_seconds * 1000,
        require_protection=settings.safety.require_protection,
        protections=protection_rules(settings.protections),
    )


def wanted_guardians(settings: Settings) -> tuple[WantedGuardian, ...]:
    """The dead-man first, then the config's own."""
    wanted = []
    if settings.dead_man is not None:
        request = GuardianRequest(
            type="dead_man_switch",
            scope="account",
            heartbeat_seconds=settings.dead_man.heartbeat_seconds,
            on_miss=settings.dead_man.on_miss,
        )
        wanted.append(WantedGuardian(DEAD_MAN, request))
    wanted += [
        WantedGuardian(f"config-{index}-{guardian.type}", guardian.request())
        for index, guardian in enumerate(settings.guardians)
    ]
    return tuple(wanted)
