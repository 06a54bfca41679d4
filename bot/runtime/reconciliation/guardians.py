"""Arming the guardians that the config asks for: list, compare, arm what is missing, list again. Never twice, never by hope.

A guardian's key is made from its name and a serial that is durable before the request leaves. Each new request has a new serial,
because the service answers an old key with the old guardian. The daemon draws serials at random, so that none meets one of a journal
that was lost, or of the time after a backup.

The dead-man is only ever one that this journal has armed. One that does the same and stood when the run began is an earlier life's:
it goes once ours stands. One that another hand arms later is another daemon's (writers.py).

A request that is no longer wanted and whose answer never came is asked for once more under its key: only the key tells
which guardian it made, and once it has been answered no copy that is still on its way can make another. So is one that was
without an answer when the account was reset: what arrives after the reset stands on the account of after it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import structlog

from bot.errors import ApiError, Refused
from bot.runtime.account.account_state import Mirror
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.state_store import Arm
from bot.runtime.model.intents import intent_key
from bot.runtime.model.positions import MirrorPosition
from bot.runtime.ports import VenuePort
from bot.wire import Guardian, GuardianRequest

log = structlog.get_logger()

DEAD_MAN: Final = "dead_man"
COVER: Final = "cover:"  # of one position, armed by a repair: it goes with the position, not with the config
OLD: Final = "old:"  # of a guardian that stands for what is asked for no more
SWITCH: Final = "dead_man_switch"
LOST: Final = "lost:"  # of a request for one whose answer never came
ARM_TRIES: Final = (
    20  # "200 but nothing armed" is answered with the next serial, this often; the next comparison goes on from there
)


def cover_name(market: str, opened_ms: int) -> str:
    """Of the trailing stop that a repair armed for one position."""
    return f"{COVER}{market}:{opened_ms}"


@dataclass(frozen=True, slots=True)
class WantedGuardian:
    """A guardian under a name of ours."""

    name: str
    request: GuardianRequest


def counted(before: int) -> int:
    """The serial after that one: for a journal that nobody else has gone before."""
    return before + 1


class Guardians:
    """`new_serial` makes the serial of a new request from the one before; 0: there was none."""

    def __init__(
        self, *, port: VenuePort, journal: Journal, mirror: Mirror, wanted: Sequence[WantedGuardian], new_serial: Callable[[int], int] = counted
    ) -> None:  # fmt: skip
        self.port = port
        self.journal = journal
        self.mirror = mirror
        self.wanted = tuple(wanted)
        self.new_serial = new_serial
        self.made: set[str] = set()  # ids of guardians that this run has armed
        self._stood: frozenset[str] | None = None  # ids of those that stood when it began
        self.ids: dict[str, str] = {}  # name -> id of the guardian that stands for it
        self.refused: dict[str, str] = {}  # name -> why the service does not take it
        self.owes = False  # what an earlier config asked for may stand still; it goes in the next pass
        self.rearm_at_ms = 0  # real time before which a refused guardian is not asked for again

    def missing(self, listed: Sequence[Guardian]) -> list[WantedGuardian]:
        """What the config asks for and the list does not have."""
        return [one for one in self.wanted if _standing(one.request, listed, self.ids.get(one.name)) is None]

    def is_ours(self, guardian_id: str) -> bool:
        """Whether this journal knows that guardian: this run armed it, or one before."""
        return guardian_id in self.made or any(arm.guardian_id == guardian_id for arm in self.journal.state.arms())

    def awaits_dead_man(self) -> bool:
        """Whether a request for a dead-man has no answer yet: what stands may be its work."""
        return any(arm.guardian_id is None and SWITCH in arm.body for arm in self.journal.state.arms())

    def take_over(self, guardian_id: str) -> None:
        """An earlier life of ours armed it: the next pass disarms it."""
        self.journal.state.write_arm(Arm(f"{OLD}{guardian_id}", 1, guardian_id, "{}"))
        self.owes = True

    def fallen(self) -> list[WantedGuardian]:
        """What the config asks for and does not stand, as far as the events say. A fired dead-man does not; a cap that blocks does."""
        return [one for one in self.wanted if not self._stands(one)] if self.wanted else []

    def _stands(self, one: WantedGuardian) -> bool:
        guardian = self.mirror.guardians.get(self.ids.get(one.name, ""))
        return guardian is not None and not (guardian.latched and guardian.type == SWITCH)

    def lacks_dead_man(self) -> bool:
        """Whether the config asks for a dead-man and none of ours stands."""
        return any(one.request.type == SWITCH for one in self.fallen())

    def forget(self, held: Mapping[str, MirrorPosition]) -> None:
        """The covers of positions that are no more."""
        covers = {cover_name(one.market, one.opened_ms) for one in held.values()}
        for name in [one for one in self.ids if one.startswith(COVER) and one not in covers]:
            del self.ids[name]
        self.made &= self.mirror.guardians.keys()

    async def listed(self) -> Sequence[Guardian]:
        """What stands at the service; the mirror learns it on the way."""
        listed = await self.port.guardians()
        if self._stood is None:
            self._stood = frozenset(one.id for one in listed)
        self.mirror.see_guardians(listed)
        return listed

    async def arm_all(self, *, epoch: int) -> None:
        """Every wanted guardian stands when this returns, but those in `refused`, which the service does not take."""
        listed = await self.listed()
        for one in self.wanted:
            try:
                listed = await self._arm(one, listed, epoch=epoch)
            except Refused as error:  # The others stand all the same; entries wait, for `fallen` has it.
                self.refused[one.name] = (
                    f"the service does not take guardian {one.name} ({error.code}): {error.message}"
                )
                log.error("guardian.refused", name=one.name, code=error.code, message=error.message)
            else:
                self.refused.pop(one.name, None)
        await self.retire(listed)

    async def change(self, wanted: Sequence[WantedGuardian], *, epoch: int) -> None:
        """Ask for these from now on: what is new stands when this returns, and what was before stands too until `retire`.

        Refused, TryLater, OutcomeUnknown: one of them could not be armed. Then what was asked for before is asked for
        again, and what came, or may have come, to stand is taken back: at once, or by the next passes (`owes`).
        """
        before, ids = self.wanted, dict(self.ids)
        rows = {one.name: self.journal.state.arm_of(one.name) for one in wanted}
        try:
            listed = await self.listed()
            for one in wanted:
                listed = await self._arm(one, listed, epoch=epoch)
        except ApiError:
            self.wanted, self.ids, self.owes = before, ids, True
            for name, row in rows.items():
                self._go_back(name, row, epoch=epoch)
            with contextlib.suppress(ApiError):
                await self.retire()
            raise
        self.wanted, self.owes = tuple(wanted), True
        names = {one.name for one in wanted}
        self.ids = {
            name: guardian_id for name, guardian_id in self.ids.items() if name in names or name.startswith(COVER)
        }
        self.refused = {}  # All of them stand.

    def outlive(self, epoch: int) -> None:
        """The account of that epoch was reset. Its guardians are gone; a request that is on its way may yet come: it is taken back."""
        with self.journal.together():
            for arm in self.journal.state.arms():
                if arm.name.startswith((OLD, LOST)):
                    continue
                is_unanswered = arm.body and arm.guardian_id is None
                if is_unanswered:
                    self._set_aside(arm, epoch=epoch)
                    self.owes = True
                self.journal.state.write_arm(arm._replace(serial=0, body="" if is_unanswered else arm.body))

    async def retire(self, listed: Sequence[Guardian] | None = None) -> None:
        """Disarm what an earlier config asked for and this one does not, now that its own stand. One that blocks is left: only a person lifts it."""
        names = {one.name for one in self.wanted}
        arms = self.journal.state.arms()
        for arm in arms:  # Asked for without an answer, and then asked for no more.
            if (
                arm.body
                and arm.guardian_id is None
                and arm.name not in names
                and not arm.name.startswith((COVER, LOST))
            ):
                self._set_aside(arm, epoch=self.mirror.epoch)
                self.journal.state.write_arm(arm._replace(body=""))
        arms = self.journal.state.arms()
        lost = [arm for arm in arms if arm.name.startswith(LOST) and arm.body]
        old = [arm for arm in arms if arm.guardian_id and arm.name not in names and not arm.name.startswith(COVER)]
        self.owes = bool(lost)
        for arm in lost:
            await self._take_back(arm)
            listed = None  # What stands may be another list now.
        old = [arm for arm in old if arm.guardian_id not in self.ids.values()]
        self.owes = bool(old)
        if not old:
            return
        there = {one.id: one for one in (await self.listed() if listed is None else listed)}
        for arm in old:
            guardian = there.get(arm.guardian_id or "")
            if guardian is not None and guardian.status != "armed":
                continue
            if guardian is not None:
                try:
                    await self.port.disarm(guardian.id)
                except Refused as error:
                    log.warning(
                        "guardian.kept",
                        guardian=guardian.id,
                        type=guardian.type,
                        code=error.code,
                        message=error.message,
                    )
                    continue
                log.info("guardian.retired", name=arm.name, guardian=guardian.id, type=guardian.type)
            self.journal.state.write_arm(arm._replace(guardian_id=None, body=""))
        self.owes = False

    async def arm(self, one: WantedGuardian, listed: Sequence[Guardian], *, epoch: int) -> Sequence[Guardian]:
        """Let one guardian stand; answers the list as it is then."""
        listed = await self._arm(one, listed, epoch=epoch)
        await self.retire(listed)
        return listed

    async def _arm(self, one: WantedGuardian, listed: Sequence[Guardian], *, epoch: int) -> Sequence[Guardian]:
        body = one.request.body().decode()
        row = self.journal.state.arm_of(one.name)
        arm = row or Arm(one.name, self.new_serial(0), None, body)
        # Of several that stand only the key tells which one a request without an answer has made; the other is to be taken back.
        is_unanswered = row is not None and row.guardian_id is None and row.body == body
        is_unclear = is_unanswered and sum(stands_for(one.request, guardian) for guardian in listed) > 1
        if arm.body != body:  # The config has changed: the one of before goes after the new one stands.
            self._set_aside(arm, epoch=epoch)
        is_spent = False  # the last key: it was answered with a guardian that does not stand, or has another body
        for _ in range(ARM_TRIES):
            known = arm.guardian_id if arm.body == body else None
            standing = None if is_unclear else _standing(one.request, listed, known)
            if standing is not None:
                with self.journal.together():
                    self.journal.state.write_arm(arm._replace(guardian_id=standing.id, body=body))
                    self._outdo(one, standing, listed)
                self.ids[one.name] = standing.id
                return listed
            if is_spent or arm.guardian_id is not None or arm.body != body:
                arm = Arm(one.name, self.new_serial(arm.serial), None, body)
            self.journal.state.write_arm(arm)
            is_spent, is_unclear = True, False
            try:
                armed = await self.port.arm(one.request, key=self._key(one, arm.serial, epoch))
            except ApiError as error:
                if (error.code, (error.details or {}).get("reason")) != ("idempotency_conflict", "fingerprint"):
                    raise
                continue
            log.info("guardian.armed", name=one.name, guardian=armed.id, type=armed.type)
            self.made.add(armed.id)
            arm = arm._replace(guardian_id=armed.id)  # Not listed after all: the next try has the next serial.
            listed = await self.listed()
        standing = _standing(one.request, listed, arm.guardian_id)
        if standing is None:
            raise Refused("trade_failed", f"guardian {one.name} was taken {ARM_TRIES} times and never stood")
        with self.journal.together():
            self.journal.state.write_arm(arm._replace(guardian_id=standing.id))
            self._outdo(one, standing, listed)
        self.ids[one.name] = standing.id
        return listed

    def _outdo(self, one: WantedGuardian, ours: Guardian, listed: Sequence[Guardian]) -> None:
        """Note for `retire` the dead-men of an earlier life that do the same as ours: nobody would disarm them at the end."""
        if one.request.type != SWITCH or ours.id not in self.made:
            return
        for other in listed:
            is_of_before = other.id in (self._stood or ()) and other.status == "armed"
            if is_of_before and other.id != ours.id and stands_for(one.request, other):
                self.take_over(other.id)

    def _set_aside(self, arm: Arm, *, epoch: int) -> None:
        """Let `retire` know of what stands, or may stand, for this row, before the row says something else."""
        if arm.guardian_id is not None:
            self.journal.state.write_arm(Arm(f"{OLD}{arm.guardian_id}", 1, arm.guardian_id, arm.body))
        elif arm.body:
            self.journal.state.write_arm(Arm(f"{LOST}{epoch}:{arm.serial}:{arm.name}", arm.serial, None, arm.body))

    def _go_back(self, name: str, before: Arm | None, *, epoch: int) -> None:
        """The row of a name as it was, but for the serials that are used up."""
        row = self.journal.state.arm_of(name)
        if row is None or row == before or row.body in [one.request.body().decode() for one in self.wanted]:
            return
        self._set_aside(row, epoch=epoch)
        if before is not None and before.guardian_id is not None:
            self.journal.state.write_arm(before._replace(serial=row.serial))
        else:
            self.journal.state.write_arm(Arm(name, row.serial, None, ""))

    async def _take_back(self, arm: Arm) -> None:
        """Disarm what a request without an answer has made."""
        epoch, _, name = arm.name.removeprefix(LOST).split(":", 2)
        one = WantedGuardian(name, GuardianRequest.from_wire(json.loads(arm.body, parse_float=Decimal)))
        asked = False
        try:
            guardian = await self.port.arm(one.request, key=self._key(one, arm.serial, int(epoch)))
            asked = True
            self.made.add(guardian.id)
            if guardian.id not in self.ids.values():
                await self.port.disarm(guardian.id)
                log.info("guardian.retired", name=name, guardian=guardian.id, type=guardian.type)
        except Refused as error:  # It never stood, has gone (with a reset, too), or only a person may lift it.
            log.warning("guardian.not_taken_back", name=name, code=error.code, message=error.message)
            if error.code == "forbidden" and not asked:
                return  # Of the key, which may arm nothing now, and not of the guardian: the next comparison asks again.
        self.journal.state.write_arm(arm._replace(body=""))

    def _key(self, one: WantedGuardian, serial: int, epoch: int) -> str:
        return intent_key(
            address=self.journal.address,
            epoch=epoch,
            strategy="@guardians",
            market=one.request.market or "",
            trigger=f"arm:{one.name}",
            ordinal=serial,
            leg="guardian",
        )


def _standing(request: GuardianRequest, listed: Sequence[Guardian], known: str | None = None) -> Guardian | None:
    """A guardian that stands for the request: the one that is `known` to have been made by it, where there are two. Of that one the template
    is what was asked for, however the service writes it. No other dead-man stands for ours."""
    own = next((one for one in listed if one.id == known and _does_the_same(request, one)), None)
    if request.type == SWITCH:
        return own
    return own or next((one for one in listed if stands_for(request, one)), None)


def stands_for(request: GuardianRequest, guardian: Guardian) -> bool:
    """Whether an armed guardian is what the request asks for. A fired dead-man is not: it must be armed anew. Nor is a trailing stop that sleeps
    what was to trail at once, nor a schedule that places another order at the same instants."""
    return _does_the_same(request, guardian) and _template_of(request) == guardian.order_template


def _template_of(request: GuardianRequest) -> object:
    """As it comes back: a number is a number, whatever a config has made of it."""
    return json.loads(request.body()).get("orderTemplate")


def _does_the_same(request: GuardianRequest, guardian: Guardian) -> bool:
    """As `stands_for`, whatever a schedule orders."""
    if guardian.type != request.type or (guardian.status == "latched" and guardian.type == SWITCH):
        return False
    if not guardian.active and request.activate_at_r is None:
        return False
    pairs = (
        (request.market, guardian.coin),
        (request.heartbeat_seconds, guardian.heartbeat_seconds),
        (request.on_miss, guardian.on_miss),
        (request.seconds, guardian.seconds),
        (request.trail_pct, guardian.trail_pct),
        (request.trail_r, guardian.trail_r),
        (request.activate_at_r, guardian.activate_at_r),
        (request.max_loss_pct_from_day_start, guardian.max_loss_pct_from_day_start),
        (request.action, guardian.action),
        (request.cron, guardian.cron),
    )
    return all(asked is None or _same(asked, has) for asked, has in pairs)


def _same(asked: object, has: object) -> bool:
    if isinstance(asked, Decimal) and isinstance(has, int | float):
        return float(asked) == float(has)
    return asked == has
