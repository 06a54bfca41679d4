"""The answers of the control socket that describe the daemon: functions from the daemon in memory to JSON documents.

They change nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from bot import __version__
from bot.clock import boot_ns, monotonic_ns
from bot.money import format_decimal
from bot.runtime.alerts.health import ORDERS
from bot.runtime.liveness import systemd
from bot.runtime.model.intents import FINAL, IN_DOUBT
from bot.runtime.model.protection_rules import PROTECTIONS
from bot.strategy.base import declared as declared_indicators

if TYPE_CHECKING:
    from bot.config import Settings, StrategySettings
    from bot.runtime.control_plane.daemon_access import DaemonAccess, RoutedDaemon
    from bot.runtime.control_plane.server import Data
    from bot.runtime.kernel.kernel import Kernel
    from bot.runtime.model.positions import AccountOrder, AccountPosition
    from bot.runtime.strategy_host.instance import StrategyInstance

BOOK_AMOUNTS: Final = (
    "fees_usd",
    "funding_usd",
    "realized_usd",
    "unrealized_usd",
    "margin_lost_usd",
    "net_usd",
    "day_usd",
)


def status(access: DaemonAccess) -> Data:
    """The whole daemon in one document; before it has recovered, only what it was started with."""
    state, why = access.state()
    settings, daemon = access.settings, access.recovered()
    started: Data = {
        "state": state,
        "why": why or None,
        "name": settings.name,
        "version": __version__,
        "base_url": access.base_url,
        "state_dir": str(settings.state_dir),
        "config": None if access.config is None else str(access.config),
        "started_ms": access.started_ms,
        "managed_by": "systemd" if systemd.is_managed() else None,
    }
    return started if daemon is None else started | recovered_status(daemon, settings)


def recovered_status(daemon: RoutedDaemon, settings: Settings) -> Data:
    """The part of the status that needs the account."""
    kernel, account_state, clock = daemon.kernel, daemon.kernel.account.account_state, daemon.client.clock
    problems = unsafe(kernel, settings)
    cursor, passed_ns = kernel.journal.events.cursor, daemon.passed_ns
    return {
        "address": kernel.journal.address,
        "service": {
            "now_ms": clock.now_ms(),
            "speed": clock.speed,
            "environment": account_state.place.environment,
            "exchange_link": account_state.place.link,
            "exchange_reason": account_state.place.reason,
            # The daemon follows a sandbox's clock.
            "skew_ms": None if clock.is_sandbox else clock.skew_ms,
        },
        "account": {
            "value_usd": round(account_state.equity_usd, 2),
            "free_usd": round(account_state.free_margin_usd, 2),
            "balance_usd": format_decimal(account_state.balance_usd),
        },
        "positions": len(account_state.positions),
        "orders": len(account_state.orders),
        "unprotected": [p.market for p in kernel.account.seen_unprotected()],
        "foreign_unprotected": [
            p.market
            for p in account_state.positions.values()
            if p.owner is None and kernel.account.seen_protected(p) is False
        ],
        "is_safe": not problems,
        "unsafe": problems,
        "intents": intents(kernel),
        "cursor": None if cursor is None else {"last_event_id": cursor.last_id, "behind": kernel.state.behind},
        "last_bar_ms": kernel.state.last_bar_ms,
        "service_ms": kernel.now_ms(),
        "passes": daemon.progress.cycles,
        "last_pass_ms": None if passed_ns is None else (monotonic_ns() - passed_ns) // 1_000_000,
        "degraded": dict(kernel.health.degraded),
        "heartbeat": heartbeat(daemon),
        "health": health(daemon),
        "prices": daemon.prices.document(),
        "exchange": daemon.prices.exchange_document(),
        "alarms": daemon.alarms.documents(),
        "guardians": guardians(kernel),
        "blocked_by": [
            {"type": guardian.type, "id": guardian.id}
            for guardian in account_state.guardians.values()
            if guardian.blocks_opens
        ],
        "strategies": strategies(daemon, settings),
        "protections": protections(kernel),
        "other_books": other_books(kernel, settings),
        "reload": newest_reload(daemon),
    }


def unsafe(kernel: Kernel, settings: Settings) -> list[str]:
    """What keeps our open positions from being safe, or the daemon from ordering, a phrase each."""
    account_state = kernel.account.account_state
    unprotected = [p.market for p in kernel.account.seen_unprotected()] if settings.safety.require_protection else []
    problems = [f"without a stop: {', '.join(unprotected)}"] if unprotected else []
    has_position = any(p.owner is not None for p in account_state.positions.values())
    if has_position and kernel.guardians.lacks_dead_man():
        problems.append("the dead-man switch of the config is not armed")
    if silent := kernel.health.markets_of(ORDERS):
        problems.append(f"no outcome of orders in {', '.join(silent)}")
    return problems


def intents(kernel: Kernel) -> Data:
    """How many intents are not final, and which of them wait for a person."""
    live = [intent for intent in kernel.intents.live.values() if intent.state not in FINAL]
    waiting = [intent for intent in live if intent.state == "quarantined"]
    return {
        "open": len(live),
        "in_doubt": sum(intent.state in IN_DOUBT for intent in live),
        "quarantined": len(waiting),
        "waiting": [
            {
                "id": intent.id,
                "strategy": intent.strategy,
                "action": intent.action,
                "market": intent.market,
                "message": intent.message,
            }
            for intent in waiting
        ],
    }


def strategies(daemon: RoutedDaemon, settings: Settings) -> list[Data]:
    """Every configured strategy."""
    kernel = daemon.kernel
    instances = {instance.name: instance for instance in kernel.strategy_host.instances}
    paused = daemon.commands.paused
    resting: dict[str, list[str]] = {}
    for owner, oid in kernel.account.account_state.resting():
        resting.setdefault(owner, []).append(oid)
    documents = []
    for strategy in settings.strategies:
        instance = instances.get(strategy.name)
        # Without an instance, or while its events are kept for it, it is still warming up.
        is_starting = instance is None or strategy.name in kernel.strategy_host.backlogs or not daemon.is_recovered
        documents.append(
            _strategy(strategy, instance, paused=paused.get(strategy.name), is_starting=is_starting)
            | {"book": book(kernel, strategy.name), "resting": resting.get(strategy.name, [])}
        )
    return documents


def protections(kernel: Kernel) -> Data:
    """What the protections of the config refuse now, and how many entries they have refused.

    A wait without a strategy is of the account; without a market it is of all markets of its protection.
    """
    counts = kernel.journal.refusal_counts(PROTECTIONS)
    return {
        "waits": [wait._asdict() for wait in kernel.protections.active(kernel.now_ms())],
        "refused": [
            {"strategy": strategy, "protection": code, "count": count} for (strategy, code), count in counts.items()
        ],
    }


def _strategy(
    strategy: StrategySettings, instance: StrategyInstance | None, *, paused: str | None, is_starting: bool
) -> Data:
    quarantined = None if instance is None else instance.quarantined
    why = quarantined or paused
    state = "QUARANTINED" if quarantined else "PAUSED" if why else "STARTING" if is_starting else "RUNNING"
    return {
        "name": strategy.name,
        "use": strategy.use,
        "markets": list(strategy.markets),
        "interval": strategy.interval,
        "budget_usd": format_decimal(strategy.budget_usd),
        "max_leverage": strategy.max_leverage,
        "state": state,
        "why": why,
    }


def other_books(kernel: Kernel, settings: Settings) -> list[Data]:
    """Profit and loss outside the configured strategies: of removed ones, FOREIGN and NETTING.

    With these, all rows add up to the account.
    """
    configured = {strategy.name for strategy in settings.strategies}
    books = {name: book(kernel, name) for name in kernel.account.attribution.names() if name not in configured}
    return [{"name": name, "book": amounts} for name, amounts in books.items() if any(map(Decimal, amounts.values()))]


def book(kernel: Kernel, strategy: str) -> Data:
    """Profit and loss of one strategy."""
    its = kernel.account.attribution.of(strategy)
    amounts = {name: format_decimal(getattr(its, name)) for name in BOOK_AMOUNTS}
    return {"fills": its.fills, **amounts, "is_halted": its.is_halted}


def heartbeat(daemon: RoutedDaemon) -> Data | None:
    """The lease of the dead-man switch; None without a heartbeat process."""
    process = daemon.heartbeats.process
    if process is None:
        return None
    lease = process.lease()
    left_ns = None if lease.deadline_boot_ns is None else lease.deadline_boot_ns - boot_ns()
    return {
        "alive": lease.alive,
        "armed": lease.armed,
        "may_open": lease.may_open,
        "lapsed": lease.lapsed,
        "beats": lease.beats,
        "failures": lease.failures,
        "error": lease.error or None,
        "deadline_s": None if left_ns is None else round(left_ns / 1e9, 1),
        "next_deadline_ms": lease.next_deadline_ms,
        "age_s": None if left_ns is None else round((process.lengths.deadline_ns - left_ns) / 1e9, 1),
    }


def health(daemon: RoutedDaemon) -> Data:
    """Loop lag, event lag, and the requests that the service's rate limits still allow."""
    kernel = daemon.kernel
    return {
        "loop_lag_s": round(daemon.loop_lag_s, 3),
        "cursor_lag_s": round(kernel.state.lag_s(kernel.budget.pacer.mono_ms()), 1),
        "rates": [budget._asdict() for budget in daemon.client.limiter.budgets()],
        "journal_fault": daemon.journal.fault,
    }


def declared(instance: StrategyInstance) -> Data:
    """The params of a strategy, and the indicators that it declares."""
    strategy = instance.strategy
    return {
        "params": strategy.params.model_dump(mode="json"),
        "indicators": [
            indicator.described(strategy.params)._asdict() for indicator in declared_indicators(type(strategy)).values()
        ],
    }


def guardians(kernel: Kernel) -> list[Data]:
    """The guardians of the config, and whether the service has each armed."""
    fallen = {guardian.name for guardian in kernel.guardians.fallen()}
    return [
        {
            "name": guardian.name,
            "type": guardian.request.type,
            "id": kernel.guardians.ids.get(guardian.name),
            "stands": guardian.name not in fallen,
        }
        for guardian in kernel.guardians.wanted
    ]


def armed_guardians(kernel: Kernel) -> list[Data]:
    """Every guardian of the account at the service, as the daemon knows it."""
    return [
        {
            "id": guardian.id,
            "type": guardian.type,
            "market": guardian.market,
            "latched": guardian.latched,
            "blocks_opens": guardian.blocks_opens,
            "active": guardian.active,
        }
        for guardian in kernel.account.account_state.guardians.values()
    ]


def newest_reload(daemon: RoutedDaemon) -> Data | None:
    """The newest reload and its result: a SIGHUP gets no answer, and the caller of a reload may not have waited for
    one.
    """
    newest = daemon.commands.newest
    if newest is None:
        return None
    now_ns, ended_ns, result = monotonic_ns(), newest.ended_ns, newest.result
    return {
        "began_s": (now_ns - newest.began_ns) // 1_000_000_000,
        "ended_s": None if ended_ns is None else (now_ns - ended_ns) // 1_000_000_000,
        "changes": [str(change) for change in result.diff],
        "applied": list(result.applied),
        "refused": list(result.refused),
        "exit_code": int(result.code),
    }


def position(kernel: Kernel, held: AccountPosition) -> Data:
    """An open position with its stop, target and shares of strategies."""
    account_state = kernel.account.account_state
    stop, target = account_state.stop_of(held.market), account_state.target_of(held.market)
    return {
        "market": held.market,
        "side": held.side,
        "size": format_decimal(held.size),
        "entry_px": _amount(held.entry_px),
        "mark_px": account_state.marks.get(held.market),
        "unrealized_usd": round(account_state.unrealized_usd(held), 2),
        "notional_usd": format_decimal(held.notional_usd),
        "leverage": held.leverage,
        "strategy": held.owner,
        "shares": {
            name: format_decimal(share.size)
            for name, share in kernel.account.attribution.shares.get(held.market, {}).items()
        },
        "stop_px": None if stop is None else _amount(stop.trigger_px),
        "target_px": None if target is None else _amount(target.trigger_px),
        "first_stop_px": _amount(held.first_stop_px),
        "trailing_stops": [
            {"id": g.id, "active": g.active}
            for g in account_state.guardians.values()
            if (g.type, g.market) == ("trailing_stop", held.market)
        ],
        "protected": kernel.account.seen_protected(held),
        "needs_stop": kernel.run.requires_protection(held),
        "opened_ms": held.opened_ms,
    }


def order(kernel: Kernel, resting: AccountOrder) -> Data:
    """A resting entry, or an armed stop or target."""
    return {
        "oid": resting.oid,
        "market": resting.market,
        "kind": resting.kind,
        "side": resting.side,
        "action": resting.action,
        "size": format_decimal(resting.size),
        "filled": format_decimal(resting.filled),
        "limit_px": _amount(resting.limit_px),
        "trigger_px": _amount(resting.trigger_px),
        "trade_id": resting.trade_id,
        "intent": resting.key,
        "created_ms": resting.created_ms,
        "strategy": _owner(kernel, resting),
    }


def _owner(kernel: Kernel, resting: AccountOrder) -> str | None:
    """The strategy that sent the order. A stop or target that the service made belongs to the owner of the position."""
    if resting.key is not None:
        return kernel.account.order_owners.owner_of(resting.key)
    its_position = kernel.account.account_state.positions.get(resting.market)
    return None if its_position is None else its_position.owner


def _amount(value: Decimal | None) -> str | None:
    return None if value is None else format_decimal(value)
