"""The end of a run: do what safety.on_exit says, and report what stays.

The dead-man switch is disarmed last, and only if nothing needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from bot.clock import iso
from bot.errors import ApiError, Exit, OutcomeUnknown, Refused, TryLater, is_access_lost
from bot.logs import log
from bot.runtime.alerts.health import ENDING
from bot.runtime.kernel.kernel import Kernel
from bot.runtime.model.intents import Intent
from bot.runtime.model.positions import AccountOrder
from bot.runtime.reconciliation import protection
from bot.runtime.reconciliation.guardians import DEAD_MAN

OnExit = Literal["leave", "cancel", "flatten"]
# each reads the events once; positions that are open after them are reported
FLATTEN_PASSES: Final = 20
# Tries of a request that may be repeated, because the end of a run has no next pass.
TRIES: Final = 3
# Real time between two tries.
AGAIN_MS: Final = 100
# Real time for the replies to earlier requests, and again for those of the end. Both fit into STOP_S.
REPLIES_MS: Final = 600


SILENT: Final = "the service did not answer"
REFUSED: Final = "the service no longer accepts the key (it has expired or was revoked)"


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What the run leaves at the service, in lines for people. `unprotected` are markets without a stop."""

    positions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    guardians: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = field(default=())
    # False: the service could not be asked at the end
    known: bool = True
    # if not known
    unknown_because: str = SILENT
    # on_exit was done completely
    complete: bool = True


@dataclass(frozen=True, slots=True)
class DaemonEnd:
    """How a run ended: the exit code, what stays at the service, and why it ended if nobody asked for it."""

    exit_code: Exit
    left: LeftBehind
    message: str = ""


async def wind_down(kernel: Kernel, on_exit: OnExit) -> LeftBehind:
    """Do what on_exit says, disarm the dead-man switch if every position has a stop, and report what stays."""
    why: list[str] = []
    complete, because = on_exit == "leave", SILENT
    kernel.state.paused = ENDING
    kernel.budget.begin()
    try:
        await kernel.execution.settle_in_flight(REPLIES_MS)
        await kernel.cancel_in_flight()
        # A cancelled pass may have written an intent's next state without taking it over.
        kernel.intents.reload(kernel.account.account_state)
        kernel.execution.give_up_entries()
        known = await kernel.events.drain()
        # Settle intents in doubt; nothing new is opened.
        await kernel.execution.settle(at_once=True)
        await kernel.execution.settle_in_flight(REPLIES_MS)
        if on_exit in ("cancel", "flatten"):
            complete = await _cancel_entries(kernel)
            why.append(f"resting entries were {'' if complete else 'not all '}canceled (safety.on_exit: {on_exit})")
        if on_exit == "flatten":
            complete = await _flatten(kernel) and complete
            why.append(f"positions were {'' if complete else 'not all '}closed (safety.on_exit: flatten)")
        elif kernel.account.account_state.positions:
            bare = [
                market
                for market in kernel.account.account_state.positions
                if not kernel.account.account_state.is_protected(market)
            ]
            stops = f", {', '.join(bare)} WITHOUT A STOP" if bare else " with their stops at the service"
            why.append(f"positions stay open{stops} (safety.on_exit: {on_exit})")
        doubtful = sorted(
            {i.market for i in kernel.intents.live.values() if i.action == "open" and i.state == "sending"}
        )
        if doubtful:
            complete = on_exit == "leave"
            why.append(f"an entry in {', '.join(doubtful)} is in doubt and may still fill; the next run settles it")
        why.append(await _disarm(kernel, doubtful if on_exit == "flatten" else ()))
        known = await kernel.events.drain() and known
    except ApiError as error:
        log.warning("exit.incomplete", code=error.code, message=error.message)
        known, complete = False, on_exit == "leave"
        because = REFUSED if is_access_lost(error) else SILENT
        why.append(f"{because} at the end ({error.code}): its positions and orders are those of the last log lines")
    return replace(_left(kernel, why, known=known), complete=complete, unknown_because=because)


def _is_ours(kernel: Kernel, owner: str | None) -> bool:
    """True if on_exit applies to it.

    Orders and positions of another hand, adopted ones aside, stay unless they are to be flattened.
    """
    return owner is not None or kernel.run.settings.foreign_positions == "flatten"


async def _cancel_entries(kernel: Kernel) -> bool:
    """Cancel resting entries; False if one of them still exists."""
    resting = [
        o
        for o in kernel.account.account_state.orders.values()
        if o.could_open and _is_ours(kernel, o.key and kernel.account.order_owners.owner_of(o.key))
    ]
    # Parallel requests share the time, because the end of a run has no time for one after another.
    rest = iter(resting)
    canceling = (_cancel_each(kernel, rest) for _ in range(min(kernel.intents.in_flight.abreast, len(resting))))
    for end in await asyncio.gather(*canceling, return_exceptions=True):
        if isinstance(end, BaseException):
            raise end
    await kernel.events.drain()
    return not any(order.oid in kernel.account.account_state.orders for order in resting)


async def _cancel_each(kernel: Kernel, orders: Iterator[AccountOrder]) -> None:
    for order in orders:
        try:
            await _tried(kernel, partial(kernel.port.cancel, order.oid))
        # Most likely the order was filled or canceled meanwhile; the events will show it.
        except ApiError as error:
            if is_access_lost(error):
                raise
            log.warning("exit.refused", oid=order.oid, code=error.code, message=error.message)


async def _flatten(kernel: Kernel) -> bool:
    """Close positions; False if one of them is still open."""
    # failed reads of the events in a row
    unread = 0
    for _ in range(FLATTEN_PASSES):
        open_now = [p for p in kernel.account.account_state.positions.values() if _is_ours(kernel, p.owner)]
        if not open_now:
            return True
        kernel.budget.begin()
        # Otherwise positions may be closed already, and the events could not be read.
        if not unread:
            closes = [protection.closing(kernel.run, kernel.account, position, "exit") for position in open_now]
            # Send all closes before the first fill is read: its delivery to a strategy may take long.
            await kernel.execution.open_and_send([close for close in closes if isinstance(close, Intent)])
        await kernel.execution.settle()
        await kernel.execution.settle_in_flight(REPLIES_MS)
        unread = 0 if await kernel.events.drain() else unread + 1
        if unread == TRIES:
            break
        if unread:
            await kernel.budget.pacer.sleep(AGAIN_MS)
    return not any(_is_ours(kernel, p.owner) for p in kernel.account.account_state.positions.values())


async def _disarm(kernel: Kernel, doubtful: Sequence[str]) -> str:
    """Disarm the dead-man switch, or say why it stays.

    `doubtful`: markets where an entry in doubt may still fill that the end should close.
    """
    guardian_id = kernel.guardians.ids.get(DEAD_MAN)
    if guardian_id is None:
        return "no dead-man switch was armed by this run"
    if guardian_id not in kernel.account.account_state.guardians:
        return "the dead-man switch was gone already"
    if kernel.state.behind:
        return "the dead-man switch stays: the events of the service could not be read to their end"
    bare = [p.market for p in kernel.account.account_state.unprotected()]
    if bare or doubtful:
        deadline_ms = next((g.next_deadline for g in await kernel.port.guardians() if g.id == guardian_id), None)
        when = "" if deadline_ms is None else f" and fires at {iso(deadline_ms)}"
        needs = [f"{', '.join(bare)} has no stop at the service"] if bare else []
        needs += [f"an entry in doubt in {', '.join(doubtful)} would have to be closed"] if doubtful else []
        return f"the dead-man switch stays{when}: {'; '.join(needs)}"
    try:
        await _tried(kernel, partial(kernel.port.disarm, guardian_id))
    except Refused as error:
        # not_found: an earlier try disarmed it, and its answer was lost.
        if error.code != "not_found":
            return f"the dead-man switch could not be disarmed ({error.code}): {error.message}"
    return "the dead-man switch was disarmed: nothing needs the daemon any more"


async def _tried(kernel: Kernel, ask: Callable[[], Awaitable[object]]) -> None:
    """Send an idempotent request, up to TRIES times."""
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
    account_state = kernel.account.account_state
    positions = tuple(
        f"{p.market} {p.side} {p.size:f} @ {p.entry_px or '?'}"
        + ("" if account_state.is_protected(p.market) else " WITHOUT A STOP")
        for p in account_state.positions.values()
    )
    orders = tuple(
        f"{o.market} {o.kind} {o.side} {o.size:f} @ {o.trigger_px if o.trigger_px is not None else o.limit_px} (oid"
        f" {o.oid})"
        for o in account_state.orders.values()
    )
    guardians = tuple(
        f"{g.type} {g.id}" + (f" on {g.market}" if g.market else "") for g in account_state.guardians.values()
    )
    return LeftBehind(
        positions, orders, guardians, tuple(why), tuple(p.market for p in account_state.unprotected()), known
    )
