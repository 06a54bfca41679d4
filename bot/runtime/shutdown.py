"""The end of a run: what on_exit asks for, and an honest word on what stays. The dead-man is disarmed last, and only when nothing needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

import structlog

from bot.clock import iso
from bot.errors import ApiError, Exit, OutcomeUnknown, Refused, TryLater, is_access_lost
from bot.runtime.alerts.health import ENDING
from bot.runtime.kernel import Kernel
from bot.runtime.model.intents import Intent
from bot.runtime.model.positions import MirrorOrder
from bot.runtime.reconciliation import protection
from bot.runtime.reconciliation.guardians import DEAD_MAN

log = structlog.get_logger()

OnExit = Literal["leave", "cancel", "flatten"]
FLATTEN_PASSES: Final = 20  # each is one look at the events; what is open after them is said
# Of what may be repeated, when the service does not answer just now: the end of a run has no next pass.
TRIES: Final = 3
AGAIN_MS: Final = 100  # of real time between them
# Of real time that the end waits for replies: for those of the run, and for those of what it asks itself. The two fit what it has in all.
REPLIES_MS: Final = 600


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What the run leaves at the service, in lines for a person. `unprotected` are markets without a stop."""

    positions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    guardians: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = field(default=())
    known: bool = True  # False: the service could not be asked at the end
    complete: bool = True  # what on_exit asks for was done


@dataclass(frozen=True, slots=True)
class DaemonEnd:
    """How a run ended: the exit code, what stays at the service, and why it ended if nobody asked for it."""

    exit_code: Exit
    left: LeftBehind
    message: str = ""


async def wind_down(kernel: Kernel, on_exit: OnExit) -> LeftBehind:
    """Do what on_exit says, disarm the dead-man if every position has a stop, and tell what stays."""
    why: list[str] = []
    complete = on_exit == "leave"
    kernel.state.paused = ENDING
    kernel.budget.begin()
    try:
        await kernel.execution.settle_in_flight(REPLIES_MS)
        await kernel.cancel_in_flight()
        kernel.execution.reload_live()  # A pass that was cut may have moved an intent further than it could say.
        kernel.execution.give_up_entries()
        known = await kernel.events.drain()
        await kernel.execution.settle(at_once=True)  # What is in doubt may still be told apart; nothing new is opened.
        await kernel.execution.settle_in_flight(REPLIES_MS)
        if on_exit in ("cancel", "flatten"):
            complete = await _cancel_entries(kernel)
            why.append(f"resting entries were {'' if complete else 'not all '}canceled (safety.on_exit: {on_exit})")
        if on_exit == "flatten":
            complete = await _flatten(kernel) and complete
            why.append(f"positions were {'' if complete else 'not all '}closed (safety.on_exit: flatten)")
        elif kernel.account.mirror.positions:
            bare = [
                market for market in kernel.account.mirror.positions if not kernel.account.mirror.is_protected(market)
            ]
            stops = f", {', '.join(bare)} WITHOUT A STOP" if bare else " with their stops at the service"
            why.append(f"positions stay open{stops} (safety.on_exit: {on_exit})")
        doubtful = sorted(
            {i.market for i in kernel.execution.live.values() if i.action == "open" and i.state == "sending"}
        )
        if doubtful:
            complete = on_exit == "leave"
            why.append(f"an entry in {', '.join(doubtful)} is in doubt and may still fill; the next run settles it")
        why.append(await _disarm(kernel, doubtful if on_exit == "flatten" else ()))
        known = await kernel.events.drain() and known
    except ApiError as error:
        log.warning("exit.incomplete", code=error.code, message=error.message)
        known, complete = False, on_exit == "leave"
        why.append(
            f"the service did not answer at the end ({error.code}): what stands there is what the last lines said"
        )
    return replace(_left(kernel, why, known=known), complete=complete)


def _is_ours(kernel: Kernel, owner: str | None) -> bool:
    """Whether on_exit reaches it: what another hand did is left alone unless the config says otherwise."""
    return owner is not None or kernel.context.foreign_positions != "ignore"


async def _cancel_entries(kernel: Kernel) -> bool:
    """False when one of them is still there."""
    resting = [
        o
        for o in kernel.account.mirror.orders.values()
        if o.could_open and _is_ours(kernel, o.key and kernel.account.order_owners.owner_of(o.key))
    ]
    rest = iter(resting)  # Whoever is free takes the next one: the end of a run has no time for one after another.
    canceling = (_cancel_each(kernel, rest) for _ in range(min(kernel.execution.abreast, len(resting))))
    for end in await asyncio.gather(*canceling, return_exceptions=True):
        if isinstance(end, BaseException):
            raise end
    await kernel.events.drain()
    return not any(order.oid in kernel.account.mirror.orders for order in resting)


async def _cancel_each(kernel: Kernel, orders: Iterator[MirrorOrder]) -> None:
    for order in orders:
        try:
            await _tried(kernel, partial(kernel.port.cancel, order.oid))
        except ApiError as error:  # Filled or canceled meanwhile, most likely; the events tell. What is left to do is done all the same.
            if is_access_lost(error):
                raise
            log.warning("exit.refused", oid=order.oid, code=error.code, message=error.message)


async def _flatten(kernel: Kernel) -> bool:
    """False when something is still open."""
    deaf = 0  # looks in a row that came to nothing
    for _ in range(FLATTEN_PASSES):
        open_now = [p for p in kernel.account.mirror.positions.values() if _is_ours(kernel, p.owner)]
        if not open_now:
            return True
        kernel.budget.begin()
        if not deaf:  # Else what was closed may be closed by now, and was not told.
            closes = [protection.closing(kernel.context, position, "exit") for position in open_now]
            # All of them leave before anything is learned of the first: its fill is told to a strategy, which may take its time.
            await kernel.execution.open_and_send([one for one in closes if isinstance(one, Intent)])
        await kernel.execution.settle()
        await kernel.execution.settle_in_flight(REPLIES_MS)
        deaf = 0 if await kernel.events.drain() else deaf + 1
        if deaf == TRIES:
            break
        if deaf:
            await kernel.budget.pacer.sleep(AGAIN_MS)
    return not any(_is_ours(kernel, p.owner) for p in kernel.account.mirror.positions.values())


async def _disarm(kernel: Kernel, doubtful: Sequence[str]) -> str:
    """`doubtful`: markets in which something may yet be opened that this end was to close."""
    guardian_id = kernel.guardians.ids.get(DEAD_MAN)
    if guardian_id is None:
        return "no dead-man switch was armed by this run"
    if guardian_id not in kernel.account.mirror.guardians:
        return "the dead-man switch had gone already"
    if kernel.state.behind:
        return "the dead-man switch stays: what stands at the service could not be read to its end"
    bare = [p.market for p in kernel.account.mirror.unprotected()]
    if bare or doubtful:
        deadline_ms = next((g.next_deadline for g in await kernel.port.guardians() if g.id == guardian_id), None)
        when = "" if deadline_ms is None else f" and fires at {iso(deadline_ms)}"
        needs = [f"{', '.join(bare)} has no stop at the service"] if bare else []
        needs += [f"what is in doubt in {', '.join(doubtful)} is to be closed too"] if doubtful else []
        return f"the dead-man switch stays{when}: {'; '.join(needs)}"
    try:
        await _tried(kernel, partial(kernel.port.disarm, guardian_id))
    except Refused as error:
        if error.code != "not_found":  # Then it has gone: the answer of a try before was lost.
            return f"the dead-man switch could not be disarmed ({error.code}): {error.message}"
    return "the dead-man switch was disarmed: nothing is left that needs the daemon alive"


async def _tried(kernel: Kernel, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask for what is idempotent, up to TRIES times."""
    for n in range(1, TRIES + 1):
        try:
            await ask()
        except (TryLater, OutcomeUnknown) as error:
            log.warning("exit.again", code=error.code, message=error.message, tries=n)
            if n == TRIES:
                raise
            await kernel.budget.pacer.sleep(AGAIN_MS)
        else:
            return


def _left(kernel: Kernel, why: list[str], *, known: bool) -> LeftBehind:
    mirror = kernel.account.mirror
    positions = tuple(
        f"{p.market} {p.side} {p.size:f} @ {p.entry_px or '?'}"
        + ("" if mirror.is_protected(p.market) else " WITHOUT A STOP")
        for p in mirror.positions.values()
    )
    orders = tuple(
        f"{o.market} {o.kind} {o.side} {o.size:f} @ {o.trigger_px if o.trigger_px is not None else o.limit_px} (oid {o.oid})"
        for o in mirror.orders.values()
    )
    guardians = tuple(f"{g.type} {g.id}" + (f" on {g.market}" if g.market else "") for g in mirror.guardians.values())
    return LeftBehind(positions, orders, guardians, tuple(why), tuple(p.market for p in mirror.unprotected()), known)
