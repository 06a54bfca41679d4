"""Keep stops under positions and guardians on the account, in every pass.

A position of ours without a stop gets a trailing stop at the distance of the lost one. The daemon closes the position
if the service refuses that stop, or if the distance is unknown; a position that it has adopted it gives back instead
(adoption.py). It arms missing guardians of the config before it opens anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from bot.errors import ApiError, Refused, is_access_lost
from bot.logs import log
from bot.runtime.account.account import DaemonAccount
from bot.runtime.model.intents import FINAL, FIRST_LEG, RUNTIME, Intent, intent_key
from bot.runtime.model.positions import AccountPosition, Drift
from bot.runtime.reconciliation import adoption
from bot.runtime.reconciliation.daemon_run import DaemonRun
from bot.runtime.reconciliation.guardians import Guardians
from bot.runtime.reconciliation.repair_actions import RepairActions
from bot.wire import CloseRequest

TRAIL_PCT_MIN: Final = Decimal("0.1")
# the interface's bound
TRAIL_PCT_MAX: Final = Decimal(50)
# Service time before a repair's refused close is tried again.
REPAIR_MS: Final = 60_000
# Real time that a position may wait for its new stop to be accepted. Then it is closed.
COVER_MS: Final = 10_000
# Real time before a guardian that the service refuses is asked for again.
REARM_MS: Final = 30_000


def nothing_to_do(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> bool:
    """True if `protect` and `stand` have nothing to repair. Every pass asks this, so it must be cheap."""
    if run.health.bare or actions.guardians.owes or actions.guardians.fallen():
        return False
    return not account.account_state.unprotected() or not naked(run, account, actions)


async def protect(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> list[Drift]:
    """Give every position of ours a stop, or close it. Runs in every pass."""
    unsure = frozenset(
        filter(account.account_state.is_unsure_of, (drift.market or "" for drift in naked(run, account, actions)))
    )
    drifts = await _cover_each(run, account, actions, besides=unsure)
    # Last, so that no other position waits for the list of guardians.
    if unsure and run.budget.has_time():
        try:
            await actions.guardians.listed()
        # A list that cannot be read is no reason to close.
        except ApiError as error:
            postpone(error, unsure)
        else:
            drifts += await _cover_each(
                run, account, actions, besides=frozenset(drift.market or "" for drift in drifts)
            )
    return drifts


async def _cover_each(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, *, besides: frozenset[str]
) -> list[Drift]:
    """Repair each position without a stop.

    Closes come first, because a new stop may have to wait for the list of guardians.
    """
    drifts = found_naked(run, account, actions, besides=besides)
    for n, drift in enumerate(
        sorted(drifts, key=lambda unprotected: _new_trail_pct(run, account, unprotected.market) is not None)
    ):
        if n and not run.budget.may_go_on():
            # The next pass finds the rest.
            break
        log.warning("drift.naked_position", market=drift.market)
        try:
            await cover(run, account, actions, drift)
        # Of this one; another may be answered.
        except ApiError as error:
            postpone(error, [drift.market or ""])
            if not run.budget.has_time():
                break
    note_covered(run, account)
    return drifts


def naked(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> list[Drift]:
    """The positions that need a stop, have none and are not being closed."""
    return [
        Drift("naked_position", p.market, "", f"the {p.market} position has no stop")
        for p in account.account_state.unprotected()
        if run.requires_protection(p) and not actions.intents.is_closing(p.market)
    ]


def found_naked(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, *, besides: frozenset[str] = frozenset()
) -> list[Drift]:
    """Like `naked`, without the markets `besides`. Reports each position once."""
    drifts = [drift for drift in naked(run, account, actions) if drift.market not in besides]
    for drift in drifts:
        run.health.bared(drift.market or "", drift.message, mono_ms=run.budget.pacer.mono_ms())
    return drifts


def note_covered(run: DaemonRun, account: DaemonAccount) -> None:
    """Report the positions that have a stop again."""
    if run.health.bare:
        run.health.covered(
            frozenset(p.market for p in account.account_state.unprotected() if run.requires_protection(p))
        )


async def stand(run: DaemonRun, account: DaemonAccount, actions: RepairActions) -> list[Drift]:
    """Arm the guardians of the config that do not stand. Runs in every pass; until they stand, nothing is opened.

    A dead-man switch of an earlier config is disarmed as soon as possible, because nothing sends its heartbeats any
    more.
    """
    if actions.guardians.owes:
        await actions.guardians.retire()
    drifts = [
        Drift("guardian_gone", None, guardian.name, f"guardian {guardian.name} of the config is not armed")
        for guardian in actions.guardians.fallen()
    ]
    if not drifts or _is_refused_for_now(run, actions.guardians):
        return drifts
    for drift in drifts:
        log.warning("drift.guardian_gone", subject=drift.subject)
    await arm_all(run, account, actions.guardians)
    await actions.drain()
    return drifts


async def arm_all(run: DaemonRun, account: DaemonAccount, guardians: Guardians) -> None:
    """Arm all guardians of the config.

    One that the service refuses is reported, stops entries, and is asked for again later.
    """
    if _is_refused_for_now(run, guardians):
        return
    guardians.wait_until(run.budget.pacer.mono_ms() + REARM_MS)
    await guardians.arm_all(epoch=account.account_state.epoch)
    run.health.keep("guardian:", guardians.refused)


def _is_refused_for_now(run: DaemonRun, guardians: Guardians) -> bool:
    """True if the service has just refused every guardian that is not armed."""
    fallen = {guardian.name for guardian in guardians.fallen()}
    return bool(fallen) and fallen <= guardians.refused.keys() and run.budget.pacer.mono_ms() < guardians.rearm_at_ms


async def cover(run: DaemonRun, account: DaemonAccount, actions: RepairActions, drift: Drift) -> None:
    """Arm a trailing stop at the distance of the lost stop.

    If the service refuses the stop or the distance is unknown, close a position of ours, and give an adopted one back.
    An adopted one is given back too if the stop would lie beyond the liquidation price.
    """
    position = account.account_state.positions.get(drift.market or "")
    if position is None or account.account_state.is_protected(position.market):
        return
    trail_pct = _new_trail_pct(run, account, position.market)
    dead = None
    if trail_pct is not None and position.is_adopted:
        dead = await adoption.why_dead(actions, position, trail_pct)
    why = dead or "the distance of its lost stop is not known"
    if trail_pct is not None and dead is None:
        # A list that cannot be read is no reason to close.
        listed = await actions.guardians.listed()
        try:
            await actions.guardians.cover(position, trail_pct, listed, epoch=account.account_state.epoch)
        except Refused as error:
            log.warning("repair.refused", market=position.market, code=error.code, message=error.message)
            why = f"the service refuses one at {trail_pct} % ({error.code}: {error.message})"
        else:
            await actions.drain()
            return
    if position.is_adopted:
        adoption.decline(run, account, position.market, why)
        return
    refused = await close_all(run, account, actions, position, "naked")
    if refused is not None:
        run.health.degrade(
            f"drift:{position.market}", f"the {position.market} position has no stop and is not closed: {refused}"
        )


def postpone(error: ApiError, markets: Iterable[str]) -> None:
    """Leave the repair to the next pass. Raises the error if the service refuses the key."""
    if is_access_lost(error):
        raise error
    log.warning("repair.postponed", code=error.code, message=error.message, markets=sorted(markets))


def _new_trail_pct(run: DaemonRun, account: DaemonAccount, market: str | None) -> Decimal | None:
    """The distance of the trailing stop that replaces the lost stop. None: close the position."""
    position = account.account_state.positions.get(market or "")
    now_ms = run.budget.pacer.mono_ms()
    if position is None or now_ms - run.health.bare.get(position.market, now_ms) >= COVER_MS:
        return None
    return lost_distance_pct(run, account, position)


def lost_distance_pct(run: DaemonRun, account: DaemonAccount, position: AccountPosition) -> Decimal | None:
    """How far the lost stop was from the entry, in percent. None if unknown.

    Taken from the newest stop that was armed, else from the first one, else from the trailing stop of the entry.
    """
    stop_px = position.first_stop_px
    if position.is_adopted and run.settings.adopted_stop_pct is not None and stop_px is None:
        return run.settings.adopted_stop_pct
    armed = account.journal.events.last_event(
        position.market, "order", "armed", epoch=account.account_state.epoch, kind="stop_loss"
    )
    if armed is not None and armed["ts"] >= position.opened_ms and armed["data"].get("triggerPx"):
        stop_px = Decimal(armed["data"]["triggerPx"])
    if stop_px is None or not position.entry_px:
        return _trailed_pct(account, position)
    pct = (abs(position.entry_px - stop_px) / position.entry_px * 100).quantize(Decimal("0.0001"))
    return min(max(pct, TRAIL_PCT_MIN), TRAIL_PCT_MAX)


def _trailed_pct(account: DaemonAccount, position: AccountPosition) -> Decimal | None:
    opener = account.journal.intents.last_open(position.market, account.account_state.epoch)
    if opener is None:
        return None
    trail_pct = next(
        (guardian.trail_pct for guardian in opener.order().guardians if guardian.trail_pct is not None), None
    )
    return None if trail_pct is None else min(max(trail_pct, TRAIL_PCT_MIN), TRAIL_PCT_MAX)


async def close_all(
    run: DaemonRun, account: DaemonAccount, actions: RepairActions, position: AccountPosition, why: str
) -> str | None:
    """Close a whole position, reduce-only.

    The intent is written first, like any order. Returns why the service refused it, if it did.
    """
    intent = closing(run, account, position, why)
    if not isinstance(intent, Intent):
        return intent
    await actions.execution.open_and_send([intent])
    sent = account.journal.intents.find(intent.id)
    return None if sent is None or sent.state not in ("rejected", "quarantined") else sent.message or sent.code


def closing(
    run: DaemonRun, account: DaemonAccount, position: AccountPosition, why: str, fraction: Decimal = Decimal(1)
) -> Intent | str | None:
    """The next close of a position for the cause `why`.

    None: the close before it is not settled. A text: why the same close before it was refused, when it is too soon to
    try again. Tries never end, because a market may be closed for days. A close that waits for a person does not count
    as on its way.
    """
    body = CloseRequest(fraction=fraction, source="agent").body()
    now_ms, trigger = run.now_ms(), f"{why}:{position.opened_ms}"
    known = account.journal.intents.last_of(RUNTIME, position.market, trigger, epoch=account.account_state.epoch)
    if known is not None and known.state not in FINAL and known.state != "quarantined":
        return None
    # If the intent is far ahead of now, the service's clock has gone back since. Then there is no wait.
    is_refused = known is not None and known.state != "accepted" and known.body == body
    if known is not None and is_refused and abs(now_ms - known.opened_ms) < REPAIR_MS:
        return known.message or known.code
    ordinal = 0 if known is None else known.ordinal + 1
    key = intent_key(
        address=account.journal.address,
        epoch=account.account_state.epoch,
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
        epoch=account.account_state.epoch,
        body=body,
        not_after_ms=now_ms + run.budget.hold_ms(REPAIR_MS),
        opened_ms=now_ms,
    )
