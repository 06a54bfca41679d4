"""The end of a run: what on_exit asks for, and an honest word on what stays. The dead-man is disarmed last, and only when nothing needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import structlog

from bot.clock import iso
from bot.errors import ApiError
from bot.runtime import reconcile as repairs
from bot.runtime.arming import DEAD_MAN
from bot.runtime.loop import Loop

log = structlog.get_logger()

OnExit = Literal["leave", "cancel", "flatten"]
FLATTEN_PASSES: Final = 20  # each is one look at the events; what is open after them is said


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What the run leaves at the service, in lines for a person. `unprotected` are markets without a stop."""

    positions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    guardians: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = field(default=())
    known: bool = True  # False: the service could not be asked at the end


async def wind_down(loop: Loop, on_exit: OnExit) -> LeftBehind:
    """Do what on_exit says, disarm the dead-man if every position has a stop, and tell what stays."""
    why: list[str] = []
    try:
        await loop.drain()
        if on_exit in ("cancel", "flatten"):
            for order in [o for o in loop.mirror.orders.values() if o.kind == "limit"]:
                await loop.port.cancel(order.oid)
            why.append("resting entries were canceled (safety.on_exit)")
        if on_exit == "flatten":
            await _flatten(loop)
            why.append("positions were closed (safety.on_exit: flatten)")
        elif loop.mirror.positions:
            why.append(f"positions stay open with their stops at the service (safety.on_exit: {on_exit})")
        why.append(await _disarm(loop))
        await loop.drain()
    except ApiError as error:
        log.warning("exit.incomplete", code=error.code, message=error.message)
        why.append(
            f"the service did not answer at the end ({error.code}): what stands there is what the last lines said"
        )
        return _left(loop, why, known=False)
    return _left(loop, why, known=True)


async def _flatten(loop: Loop) -> None:
    for _ in range(FLATTEN_PASSES):
        open_now = list(loop.mirror.positions.values())
        if not open_now:
            return
        for position in open_now:
            await repairs.close_all(loop, position, "exit")
        await loop.settle()
        await loop.drain()


async def _disarm(loop: Loop) -> str:
    guardian_id = loop.arming.ids.get(DEAD_MAN)
    if guardian_id is None:
        return "no dead-man switch was armed by this run"
    bare = [p.market for p in loop.mirror.unprotected()]
    if bare:
        deadline_ms = next((g.next_deadline for g in await loop.port.guardians() if g.id == guardian_id), None)
        when = "" if deadline_ms is None else f" and fires at {iso(deadline_ms)}"
        return f"the dead-man switch stays{when}: {', '.join(bare)} has no stop at the service"
    await loop.port.disarm(guardian_id)
    return "the dead-man switch was disarmed: nothing is left that needs the daemon alive"


def _left(loop: Loop, why: list[str], *, known: bool) -> LeftBehind:
    mirror = loop.mirror
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
