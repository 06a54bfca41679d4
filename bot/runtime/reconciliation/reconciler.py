"""Reconcile: the service's snapshot against the mirror, as named drifts, each with one repair. Everything that corrects a belief is here.

Repairs never guess: what the service says is believed, a position of ours without a stop gets one or is closed, and a
lost cursor starts the feed anew with the guardians armed first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import structlog

from bot.errors import ApiError, Refused, TryLater, is_access_lost
from bot.runtime.journal.halt_flags import FOREIGN
from bot.runtime.model.intents import FINAL, FIRST_LEG, RUNTIME, Intent, intent_key
from bot.runtime.model.positions import Drift, DriftKind, MirrorPosition
from bot.runtime.reconciliation.guardians import WantedGuardian, arm_all, cover_name
from bot.runtime.reconciliation.key_recovery import claim_orders, claim_positions
from bot.wire import CloseRequest, GuardianRequest

if TYPE_CHECKING:
    from bot.runtime.kernel import Kernel
    from bot.wire import AccountSnapshot

log = structlog.get_logger()

LOOKS_MAX: Final = 4  # tries to meet a snapshot and a cursor at the same event; a busier feed waits for the next time
TRAIL_PCT_MIN: Final = Decimal("0.1")
TRAIL_PCT_MAX: Final = Decimal(50)  # the interface's bound
REPAIR_MS: Final = 60_000  # of service time before a repair's close that was refused is tried again
COVER_MS: Final = 10_000  # of real time that a position may wait for its new stop to be taken; then it is closed


async def reconcile(loop: Kernel) -> list[Drift] | None:
    """Compare and repair; answers the drifts that were found. None: the events could not be read to their end, so nothing was compared."""
    if not await overlaps(loop):
        return await _resync(loop, "the event before the cursor is not the one that we took")
    for _ in range(LOOKS_MAX):
        if not await loop.drain():
            return None
        snapshot = await loop.port.account()
        cursor = loop.journal.events.cursor
        if cursor is None or cursor.epoch != snapshot.epoch:
            return await _resync(loop, "the account was reset", snapshot)
        if snapshot.last_event_id == cursor.last_id:
            break
    else:
        log.info("reconcile.postponed", why="events keep coming")
        return None
    claim_orders(loop, snapshot)
    drifts = loop.mirror.diff(snapshot)
    loop.mirror.of_snapshot(snapshot)
    loop.own_positions()
    await claim_positions(loop)
    loop.foreign_known &= loop.mirror.positions.keys()
    drifts += _unowned(loop) + _found_naked(loop) + _unguarded(loop, snapshot)
    unanswered: ApiError | None = None
    has_repaired = False
    for drift in drifts:
        repair = REPAIRS[drift.kind]
        if has_repaired and not loop.may_go_on():
            loop.compare_soon()  # The next comparison finds again what is left.
            break
        has_repaired = has_repaired or repair is not _believe
        log.warning(f"drift.{drift.kind}", market=drift.market, subject=drift.subject, message=drift.message)
        try:
            await repair(loop, drift)
        except ApiError as error:  # Of this one; another may be answered.
            _postpone(error, [drift.market or drift.subject])
            unanswered = unanswered or error
            if not loop.has_time():
                break
    loop.align_books()
    _tell_covered(loop)
    if unanswered is not None:  # What is left to do is compared again soon.
        raise unanswered
    return drifts


async def compare(loop: Kernel) -> list[Drift]:
    """What a reconcile would find now; nothing is believed and nothing is repaired, save the events that are taken first."""
    if not await overlaps(loop):
        return [Drift("cursor_lost", None, "", "the event before the cursor is not the one that we took")]
    for _ in range(LOOKS_MAX):
        await loop.drain()
        snapshot = await loop.port.account()
        cursor = loop.journal.events.cursor
        if cursor is None or cursor.epoch != snapshot.epoch:
            return [Drift("cursor_lost", None, "", "the account was reset")]
        if snapshot.last_event_id == cursor.last_id:
            return loop.mirror.diff(snapshot) + _unowned(loop) + _naked(loop) + _unguarded(loop, snapshot)
    raise TryLater("busy", "events keep coming faster than they can be compared; ask again")


def nothing_to_do(loop: Kernel) -> bool:
    """Whether `protect` and `stand` would find that all is as it should be: what every pass asks, and nearly always the answer."""
    if loop.health.bare or loop.arming.owes or loop.arming.fallen():
        return False
    return not _naked(loop)


async def protect(loop: Kernel) -> list[Drift]:
    """The invariant that is kept in every pass: no position of ours without a stop."""
    unsure = frozenset(filter(loop.mirror.is_unsure_of, (drift.market or "" for drift in _naked(loop))))
    drifts = await _cover_each(loop, besides=unsure)
    if unsure and loop.has_time():  # Last, so that no other position waits for what only the list of guardians tells.
        try:
            await loop.arming.listed()
        except ApiError as error:  # Not to be told what stands is no reason to close.
            _postpone(error, unsure)
        else:
            drifts += await _cover_each(loop, besides=frozenset(drift.market or "" for drift in drifts))
    return drifts


async def _cover_each(loop: Kernel, *, besides: frozenset[str]) -> list[Drift]:
    """Closes first: what asks for the list of guardians may wait for its answer, and keeps no other without a repair."""
    drifts = _found_naked(loop, besides=besides)
    for n, drift in enumerate(sorted(drifts, key=lambda one: _new_trail_pct(loop, one.market) is not None)):
        if n and not loop.may_go_on():
            break  # The next pass finds again what is left.
        log.warning("drift.naked_position", market=drift.market)
        try:
            await _cover(loop, drift)
        except ApiError as error:  # Of this one; another may be answered.
            _postpone(error, [drift.market or ""])
            if not loop.has_time():
                break
    _tell_covered(loop)
    return drifts


async def overlaps(loop: Kernel) -> bool:
    """Overlap by one: asked for what follows the event before the last, the feed must answer the last. Else there is a gap."""
    cursor, at_ms = loop.journal.events.last_taken()
    if cursor is None or cursor.prev_id is None:
        return True
    try:
        page = await loop.port.events(cursor.prev_id, limit=1)
    except Refused as error:
        if is_cursor_lost(error):
            return False
        raise
    # Of another instant: the service went back, and gives the id again.
    return bool(page.events) and page.events[0].id == cursor.last_id and at_ms in (None, page.events[0].ts)


def is_cursor_lost(error: Refused) -> bool:
    """410: a reset wiped the event that we stand on, or it lies beyond the newest."""
    return error.status == 410 or (
        error.code == "not_found" and bool(error.fix) and (error.fix or {}).get("action") == "resync"
    )


async def restart(loop: Kernel, snapshot: AccountSnapshot) -> list[Intent]:
    """The feed begins at this snapshot: intents of an earlier epoch are void, guardians stand before anything is opened."""
    before = loop.journal.events.cursor
    is_reset = before is not None and before.epoch != snapshot.epoch
    if before is not None and is_reset:
        loop.arming.outlive(before.epoch)  # Before the cursor moves: after it nothing tells of which epoch they are.
        loop.desk.forget_heard()
    with loop.journal.together():
        void = loop.journal.restart_cursor(snapshot.last_event_id, epoch=snapshot.epoch, now_ms=loop.now_ms())
        if is_reset:  # Its event is never taken: the cursor is past it.
            loop.health.incident(
                "account.reset", f"epoch:{snapshot.epoch}", epoch=snapshot.epoch, balance_usd=snapshot.balance_usd
            )
            # Where something stands already, somebody is at it again, and those events are skipped.
            if not snapshot.positions and not snapshot.orders:
                loop.health.restore(FOREIGN)
    if is_reset:
        loop.strangers.clear()
    loop.mirror.of_snapshot(snapshot)
    loop.reload_live()
    loop.own_positions(events_skipped=True)
    for intent in void:
        log.warning("intent.void", intent=intent.id, strategy=intent.strategy, market=intent.market)
    await arm_all(loop)
    return void


async def _resync(loop: Kernel, why: str, snapshot: AccountSnapshot | None = None) -> list[Drift]:
    drift = Drift("cursor_lost", None, "", why)
    log.warning("drift.cursor_lost", message=why)
    await restart(loop, snapshot if snapshot is not None else await loop.port.account())
    return [drift]


# -- drifts that the mirror cannot see by itself


def _unowned(loop: Kernel) -> list[Drift]:
    return [
        Drift("foreign_position", p.market, "", f"the {p.market} position was not opened by us")
        for p in loop.mirror.positions.values()
        if p.owner is None and p.market not in loop.foreign_known
    ]


def _naked(loop: Kernel) -> list[Drift]:
    return [
        Drift("naked_position", p.market, "", f"the {p.market} position has no stop")
        for p in loop.mirror.unprotected()
        if loop.requires_protection(p) and not loop.is_closing(p.market)
    ]


def _found_naked(loop: Kernel, *, besides: frozenset[str] = frozenset()) -> list[Drift]:
    """As `_naked`, without the markets `besides`; each one is counted and told of when it is new."""
    drifts = [drift for drift in _naked(loop) if drift.market not in besides]
    for drift in drifts:
        loop.health.bared(drift.market or "", drift.message, mono_ms=loop.pacer.mono_ms())
    return drifts


def _tell_covered(loop: Kernel) -> None:
    if loop.health.bare:
        loop.health.covered(frozenset(p.market for p in loop.mirror.unprotected() if loop.requires_protection(p)))


def _unguarded(loop: Kernel, snapshot: AccountSnapshot) -> list[Drift]:
    missing = loop.arming.missing(snapshot.guardians)
    return [
        Drift("guardian_gone", None, one.name, f"guardian {one.name} of the config does not stand") for one in missing
    ]


# -- repairs, one a kind


async def _believe(loop: Kernel, drift: Drift) -> None:
    """The snapshot has been believed already."""


async def _rearm(loop: Kernel, drift: Drift) -> None:
    await arm_all(loop)


async def _judge_order(loop: Kernel, drift: Drift) -> None:
    if loop.settings.foreign_positions == "flatten":
        try:
            await loop.port.cancel(drift.subject)
        except Refused as error:  # Filled or gone meanwhile; the next look tells.
            log.warning("repair.refused", market=drift.market, code=error.code, message=error.message)


async def _judge_position(loop: Kernel, drift: Drift) -> None:
    """adopt: the first strategy of that market answers for it; flatten: it is closed; ignore: said once, then left alone."""
    assert drift.market is not None
    policy = loop.settings.foreign_positions
    seat = loop.desk.seat_of(drift.market)
    position = loop.mirror.positions.get(drift.market)
    if position is None or position.owner is not None:
        return  # An earlier repair has learned more.
    if policy == "adopt" and seat is not None:
        loop.mirror.adopt(drift.market, seat.name)
        await protect(loop)
    elif policy == "flatten":
        if loop.mirror.events_named or not loop.in_doubt(drift.market):  # Else it may be ours: the answer tells.
            await close_all(loop, position, "foreign")
    else:
        loop.foreign_known.add(drift.market)


async def _cover(loop: Kernel, drift: Drift) -> None:
    """A trailing stop at the distance of the lost stop; refused, or the distance unknown: close it."""
    position = loop.mirror.positions.get(drift.market or "")
    if position is None or loop.mirror.is_protected(position.market):
        return
    trail_pct = _new_trail_pct(loop, position.market)
    if trail_pct is not None:
        request = GuardianRequest(type="trailing_stop", scope="position", market=position.market, trail_pct=trail_pct)
        wanted = WantedGuardian(cover_name(position.market, position.opened_ms), request)
        listed = await loop.arming.listed()  # Not to be told what stands is no reason to close.
        try:
            await loop.arming.arm(wanted, listed, epoch=loop.mirror.epoch)
        except Refused as error:
            log.warning("repair.refused", market=position.market, code=error.code, message=error.message)
        else:
            await loop.drain()
            return
    refused = await close_all(loop, position, "naked")
    if refused is not None:
        loop.health.degrade(
            f"drift:{position.market}", f"the {position.market} position has no stop and is not closed: {refused}"
        )


def _postpone(error: ApiError, markets: Iterable[str]) -> None:
    """The next pass tries again; it is raised only where the credential is refused."""
    if is_access_lost(error):
        raise error
    log.warning("repair.postponed", code=error.code, message=error.message, markets=sorted(markets))


def _new_trail_pct(loop: Kernel, market: str | None) -> Decimal | None:
    """Of the trailing stop that is to stand for the lost one; None: the position is closed."""
    position = loop.mirror.positions.get(market or "")
    now_ms = loop.pacer.mono_ms()
    if position is None or now_ms - loop.health.bare.get(position.market, now_ms) >= COVER_MS:
        return None
    return lost_distance_pct(loop, position)


def lost_distance_pct(loop: Kernel, position: MirrorPosition) -> Decimal | None:
    """How far the lost stop was from the entry, in percent; None when nobody knows.

    The newest stop that was armed, else the first one; without any, the trailing stop that the entry came with.
    """
    stop_px = position.first_stop_px
    armed = loop.journal.events.last_event(position.market, "order", "armed", epoch=loop.mirror.epoch, kind="stop_loss")
    if armed is not None and armed["ts"] >= position.opened_ms and armed["data"].get("triggerPx"):
        stop_px = Decimal(armed["data"]["triggerPx"])
    if stop_px is None or not position.entry_px:
        return _trailed_pct(loop, position)
    pct = (abs(position.entry_px - stop_px) / position.entry_px * 100).quantize(Decimal("0.0001"))
    return min(max(pct, TRAIL_PCT_MIN), TRAIL_PCT_MAX)


def _trailed_pct(loop: Kernel, position: MirrorPosition) -> Decimal | None:
    opener = loop.journal.intents.last_open(position.market, loop.mirror.epoch)
    if opener is None:
        return None
    found = next((one.trail_pct for one in opener.order().guardians if one.trail_pct is not None), None)
    return None if found is None else min(max(found, TRAIL_PCT_MIN), TRAIL_PCT_MAX)


async def close_all(loop: Kernel, position: MirrorPosition, why: str) -> str | None:
    """Close a whole position reduce-only, as an intent of our own: written first, like any order. Answers why it was refused, if it was."""
    intent = closing(loop, position, why)
    if not isinstance(intent, Intent):
        return intent
    await loop.open_and_send([intent])
    sent = loop.journal.intents.find(intent.id)
    return None if sent is None or sent.state not in ("rejected", "quarantined") else sent.message or sent.code


def closing(loop: Kernel, position: MirrorPosition, why: str) -> Intent | str | None:
    """The close of a whole position that is next. None: the one before is not settled; a text: why that was refused, and it is too soon to try again.

    There is no last try: a market may be closed for days. One that waits for a person is on its way no more, and the position is still there.
    """
    now_ms, trigger = loop.now_ms(), f"{why}:{position.opened_ms}"
    known = loop.journal.intents.last_of(RUNTIME, position.market, trigger, epoch=loop.mirror.epoch)
    if known is not None and known.state not in FINAL and known.state != "quarantined":
        return None
    # Far ahead of now: the service's clock has gone back since, and nobody waits until it is there again.
    if known is not None and known.state != "accepted" and abs(now_ms - known.opened_ms) < REPAIR_MS:
        return known.message or known.code
    ordinal = 0 if known is None else known.ordinal + 1
    key = intent_key(
        address=loop.journal.address,
        epoch=loop.mirror.epoch,
        strategy=RUNTIME,
        market=position.market,
        trigger=trigger,
        ordinal=ordinal,
        leg=FIRST_LEG["close"],
    )
    return Intent(
        id=key,
        strategy=RUNTIME,
        market=position.market,
        action="close",
        path="direct",
        trigger=trigger,
        ordinal=ordinal,
        leg=FIRST_LEG["close"],
        epoch=loop.mirror.epoch,
        body=CloseRequest(fraction=Decimal(1), source="agent").body(),
        not_after_ms=now_ms + loop.hold_ms(REPAIR_MS),
        opened_ms=now_ms,
    )


Repair = Callable[["Kernel", Drift], Awaitable[None]]


async def _nothing(loop: Kernel, drift: Drift) -> None:
    """cursor_lost never reaches the table: the feed is begun anew before anything is compared."""
    raise AssertionError(drift)


REPAIRS: Final[Mapping[DriftKind, Repair]] = {
    "missing_fill": _believe,
    "order_gone": _believe,
    "foreign_order": _judge_order,
    "foreign_position": _judge_position,
    "naked_position": _cover,
    "guardian_gone": _rearm,
    "cursor_lost": _nothing,
}
