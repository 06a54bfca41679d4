"""Arm the guardians of the config: list what is armed, compare, arm what is missing, list again. No guardian is armed
twice.

A guardian's key is made from its name and a serial that the journal has before the request is sent. Each new request
has a new serial, because the service answers a known key with the guardian that it made then. The daemon draws serials
at random, so that a serial of a lost or restored journal is not used again.

Only a dead-man switch that this journal has armed counts as ours. An equal one that was armed when the run began is
left from an earlier run, and is disarmed once ours is armed. An equal one that is armed later belongs to another daemon
(foreign_review.py).

If a request got no reply and its guardian is no longer wanted, the daemon sends the request once more under its key.
Only the key tells which guardian it made, and after a reply no copy of the request can make another. The same holds for
a request that had no reply when the account was reset, because it may arrive after the reset.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from bot.errors import ApiError, Refused
from bot.logs import log
from bot.runtime.account.account_state import AccountState
from bot.runtime.journal.journal import Journal
from bot.runtime.journal.state_store import Arm
from bot.runtime.model.intents import intent_key
from bot.runtime.model.positions import SWITCH, AccountPosition
from bot.runtime.passes.ports import VenuePort
from bot.wire import Guardian, GuardianRequest

DEAD_MAN: Final = "dead_man"
# prefix of the name of a trailing stop that a repair armed for one position
COVER: Final = "cover:"
# prefix of the name of a guardian that the config no longer wants
OLD: Final = "old:"
# prefix of the name of a request that got no reply
LOST: Final = "lost:"
# serials that are tried in a row when a request is accepted and no guardian appears; the next comparison goes on
ARM_TRIES: Final = 20


def cover_name(market: str, opened_ms: int) -> str:
    """The name of the trailing stop that a repair arms for one position."""
    return f"{COVER}{market}:{opened_ms}"


@dataclass(frozen=True, slots=True)
class WantedGuardian:
    """A guardian of the config, or of a repair, and its name."""

    name: str
    request: GuardianRequest


def counted(before: int) -> int:
    """The next serial by counting, for a journal that is the first of its account."""
    return before + 1


class Guardians:
    """`new_serial` makes the serial of a new request from the serial before it, which is 0 for the first."""

    def __init__(
        self,
        *,
        port: VenuePort,
        journal: Journal,
        account_state: AccountState,
        wanted: Sequence[WantedGuardian],
        new_serial: Callable[[int], int] = counted,
    ) -> None:
        self.port = port
        self.journal = journal
        self.account_state = account_state
        self.wanted = tuple(wanted)
        self.new_serial = new_serial
        # ids of guardians that this run has armed
        self.armed_here: set[str] = set()
        # ids of the guardians that were armed when the run began
        self._stood: frozenset[str] | None = None
        # name -> id of the armed guardian
        self.ids: dict[str, str] = {}
        # name -> why the service refuses it
        self.refused: dict[str, str] = {}
        # guardians of an earlier config may still be armed; the next pass disarms them
        self.owes = False
        # real time before which a refused guardian is not asked for again
        self.rearm_at_ms = 0

    def wait_until(self, rearm_at_ms: int) -> None:
        """Ask for a refused guardian again only from this real time on."""
        self.rearm_at_ms = rearm_at_ms

    def missing(self, listed: Sequence[Guardian]) -> list[WantedGuardian]:
        """The guardians that the config wants and that are not in the list."""
        return [
            wanted for wanted in self.wanted if _standing(wanted.request, listed, self.ids.get(wanted.name)) is None
        ]

    def is_ours(self, guardian_id: str) -> bool:
        """True if this run or an earlier run of this journal armed the guardian."""
        return guardian_id in self.armed_here or any(
            arm.guardian_id == guardian_id for arm in self.journal.state.arms()
        )

    def awaits_dead_man(self) -> bool:
        """True if a request for a dead-man switch has no reply yet. Then an armed one may be ours."""
        return any(arm.guardian_id is None and SWITCH in arm.body for arm in self.journal.state.arms())

    def take_over(self, guardian_id: str) -> None:
        """Let the next pass disarm a guardian that an earlier run armed."""
        self.journal.state.write_arm(Arm(f"{OLD}{guardian_id}", 1, guardian_id, "{}"))
        self.owes = True

    def fallen(self) -> list[WantedGuardian]:
        """The guardians of the config that are not armed, by the events.

        A fired dead-man switch is not armed; a cap that blocks entries is.
        """
        return [wanted for wanted in self.wanted if not self._stands(wanted)] if self.wanted else []

    def _stands(self, wanted: WantedGuardian) -> bool:
        guardian = self.account_state.guardians.get(self.ids.get(wanted.name, ""))
        return guardian is not None and not (guardian.latched and guardian.type == SWITCH)

    def lacks_dead_man(self) -> bool:
        """True if the config wants a dead-man switch and none of ours is armed."""
        return any(wanted.request.type == SWITCH for wanted in self.fallen())

    def forget(self, held: Mapping[str, AccountPosition]) -> None:
        """Forget the trailing stops of positions that are closed."""
        covers = {cover_name(position.market, position.opened_ms) for position in held.values()}
        for name in [known for known in self.ids if known.startswith(COVER) and known not in covers]:
            del self.ids[name]
        self.armed_here &= self.account_state.guardians.keys()

    async def listed(self) -> Sequence[Guardian]:
        """The guardians at the service. The account state takes them over."""
        listed = await self.port.guardians()
        if self._stood is None:
            self._stood = frozenset(guardian.id for guardian in listed)
        self.account_state.see_guardians(listed)
        return listed

    async def arm_all(self, *, epoch: int) -> None:
        """Arm every wanted guardian. Those that the service refuses are in `refused` afterwards."""
        listed = await self.listed()
        for wanted in self.wanted:
            try:
                listed = await self._arm(wanted, listed, epoch=epoch)
            # The others are armed; entries wait, because `fallen` has this one.
            except Refused as error:
                self.refused[wanted.name] = (
                    f"the service refuses guardian {wanted.name} ({error.code}): {error.message}"
                )
                log.error("guardian.refused", name=wanted.name, code=error.code, message=error.message)
            else:
                self.refused.pop(wanted.name, None)
        await self.retire(listed)

    async def change(self, wanted: Sequence[WantedGuardian], *, epoch: int) -> None:
        """Want these guardians from now on. The new ones are armed when this returns; the old ones stay armed until
        `retire`.

        Refused, TryLater, OutcomeUnknown: one of them could not be armed. Then the guardians of before are wanted
        again. Those that were, or may have been, armed meanwhile are disarmed at once or by the next passes (`owes`).
        """
        before, ids = self.wanted, dict(self.ids)
        rows = {guardian.name: self.journal.state.arm_of(guardian.name) for guardian in wanted}
        try:
            listed = await self.listed()
            for guardian in wanted:
                listed = await self._arm(guardian, listed, epoch=epoch)
        except ApiError:
            self.wanted, self.ids, self.owes = before, ids, True
            for name, row in rows.items():
                self._go_back(name, row, epoch=epoch)
            with contextlib.suppress(ApiError):
                await self.retire()
            raise
        self.wanted, self.owes = tuple(wanted), True
        names = {guardian.name for guardian in wanted}
        self.ids = {
            name: guardian_id for name, guardian_id in self.ids.items() if name in names or name.startswith(COVER)
        }
        self.refused = {}

    def outlive(self, epoch: int) -> None:
        """The account of that epoch was reset, and its guardians are gone.

        A request that may still arrive is to be undone.
        """
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
        """Disarm the guardians that only an earlier config wanted.

        One that blocks entries stays, because only a person may lift it.
        """
        names = {wanted.name for wanted in self.wanted}
        arms = self.journal.state.arms()
        # Requests without a reply that are no longer wanted.
        for arm in arms:
            if (
                arm.body
                and arm.guardian_id is None
                and arm.name not in names
                and not arm.name.startswith((COVER, LOST))
            ):
                self._set_aside(arm, epoch=self.account_state.epoch)
                self.journal.state.write_arm(arm._replace(body=""))
        arms = self.journal.state.arms()
        lost = [arm for arm in arms if arm.name.startswith(LOST) and arm.body]
        old = [arm for arm in arms if arm.guardian_id and arm.name not in names and not arm.name.startswith(COVER)]
        self.owes = bool(lost)
        for arm in lost:
            await self._take_back(arm)
            # The list may have changed.
            listed = None
        old = [arm for arm in old if arm.guardian_id not in self.ids.values()]
        self.owes = bool(old)
        if not old:
            return
        there = {armed.id: armed for armed in (await self.listed() if listed is None else listed)}
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

    async def cover(
        self, position: AccountPosition, trail_pct: Decimal, listed: Sequence[Guardian], *, epoch: int
    ) -> None:
        """Arm the trailing stop of a position that has no stop. Raises Refused if the service does not take it."""
        request = GuardianRequest(type="trailing_stop", scope="position", market=position.market, trail_pct=trail_pct)
        await self.arm(WantedGuardian(cover_name(position.market, position.opened_ms), request), listed, epoch=epoch)

    async def arm(self, wanted: WantedGuardian, listed: Sequence[Guardian], *, epoch: int) -> Sequence[Guardian]:
        """Arm one guardian. Returns the guardians at the service afterwards."""
        listed = await self._arm(wanted, listed, epoch=epoch)
        await self.retire(listed)
        return listed

    async def _arm(self, wanted: WantedGuardian, listed: Sequence[Guardian], *, epoch: int) -> Sequence[Guardian]:
        body = wanted.request.body().decode()
        row = self.journal.state.arm_of(wanted.name)
        arm = row or Arm(wanted.name, self.new_serial(0), None, body)
        # If several equal guardians are armed, only the key tells which one a request without a reply has made.
        is_unanswered = row is not None and row.guardian_id is None and row.body == body
        is_unclear = is_unanswered and sum(stands_for(wanted.request, guardian) for guardian in listed) > 1
        # The config has changed; the old guardian goes after the new one is armed.
        if arm.body != body:
            self._set_aside(arm, epoch=epoch)
        # the last key was used up: its guardian is not armed, or it has another body
        is_spent = False
        for _ in range(ARM_TRIES):
            known = arm.guardian_id if arm.body == body else None
            standing = None if is_unclear else _standing(wanted.request, listed, known)
            if standing is not None:
                with self.journal.together():
                    self.journal.state.write_arm(arm._replace(guardian_id=standing.id, body=body))
                    self._outdo(wanted, standing, listed)
                self.ids[wanted.name] = standing.id
                return listed
            if is_spent or arm.guardian_id is not None or arm.body != body:
                arm = Arm(wanted.name, self.new_serial(arm.serial), None, body)
            self.journal.state.write_arm(arm)
            is_spent, is_unclear = True, False
            try:
                armed = await self.port.arm(wanted.request, key=self._key(wanted, arm.serial, epoch))
            except ApiError as error:
                if (error.code, (error.details or {}).get("reason")) != ("idempotency_conflict", "fingerprint"):
                    raise
                continue
            log.info("guardian.armed", name=wanted.name, guardian=armed.id, type=armed.type)
            self.armed_here.add(armed.id)
            # If it is not in the list, the next try has the next serial.
            arm = arm._replace(guardian_id=armed.id)
            listed = await self.listed()
        standing = _standing(wanted.request, listed, arm.guardian_id)
        if standing is None:
            raise Refused(
                "trade_failed",
                f"guardian {wanted.name} was accepted {ARM_TRIES} times and is not in the list of guardians",
            )
        with self.journal.together():
            self.journal.state.write_arm(arm._replace(guardian_id=standing.id))
            self._outdo(wanted, standing, listed)
        self.ids[wanted.name] = standing.id
        return listed

    def _outdo(self, wanted: WantedGuardian, ours: Guardian, listed: Sequence[Guardian]) -> None:
        """Let `retire` disarm the equal dead-man switches of earlier runs, because nobody else would."""
        if wanted.request.type != SWITCH or ours.id not in self.armed_here:
            return
        for other in listed:
            is_of_before = other.id in (self._stood or ()) and other.status == "armed"
            if is_of_before and other.id != ours.id and stands_for(wanted.request, other):
                self.take_over(other.id)

    def _set_aside(self, arm: Arm, *, epoch: int) -> None:
        """Keep, for `retire`, which guardian this row has or may have armed, before the row changes."""
        if arm.guardian_id is not None:
            self.journal.state.write_arm(Arm(f"{OLD}{arm.guardian_id}", 1, arm.guardian_id, arm.body))
        elif arm.body:
            self.journal.state.write_arm(Arm(f"{LOST}{epoch}:{arm.serial}:{arm.name}", arm.serial, None, arm.body))

    def _go_back(self, name: str, before: Arm | None, *, epoch: int) -> None:
        """Put back the row of a name, except for its serial, which is used up."""
        row = self.journal.state.arm_of(name)
        if row is None or row == before or row.body in [wanted.request.body().decode() for wanted in self.wanted]:
            return
        self._set_aside(row, epoch=epoch)
        if before is not None and before.guardian_id is not None:
            self.journal.state.write_arm(before._replace(serial=row.serial))
        else:
            self.journal.state.write_arm(Arm(name, row.serial, None, ""))

    async def _take_back(self, arm: Arm) -> None:
        """Disarm the guardian that a request without a reply may have made."""
        epoch, _, name = arm.name.removeprefix(LOST).split(":", 2)
        wanted = WantedGuardian(name, GuardianRequest.from_wire(json.loads(arm.body, parse_float=Decimal)))
        asked = False
        try:
            guardian = await self.port.arm(wanted.request, key=self._key(wanted, arm.serial, int(epoch)))
            asked = True
            self.armed_here.add(guardian.id)
            if guardian.id not in self.ids.values():
                await self.port.disarm(guardian.id)
                log.info("guardian.retired", name=name, guardian=guardian.id, type=guardian.type)
        # The guardian was never armed, is gone, or only a person may lift it.
        except Refused as error:
            log.warning("guardian.not_taken_back", name=name, code=error.code, message=error.message)
            if error.code == "forbidden" and not asked:
                # The API key may arm nothing now; the next comparison tries again.
                return
        self.journal.state.write_arm(arm._replace(body=""))

    def _key(self, wanted: WantedGuardian, serial: int, epoch: int) -> str:
        return intent_key(
            address=self.journal.address,
            epoch=epoch,
            strategy="@guardians",
            market=wanted.request.market or "",
            trigger=f"arm:{wanted.name}",
            ordinal=serial,
            leg="guardian",
        )


def _standing(request: GuardianRequest, listed: Sequence[Guardian], known: str | None = None) -> Guardian | None:
    """The armed guardian of a request. If there are several, the one with the id `known`, whose order template is not
    compared.

    A dead-man switch counts only if its id is `known`.
    """
    own = next((guardian for guardian in listed if guardian.id == known and _does_the_same(request, guardian)), None)
    if request.type == SWITCH:
        return own
    return own or next((guardian for guardian in listed if stands_for(request, guardian)), None)


def stands_for(request: GuardianRequest, guardian: Guardian) -> bool:
    """True if an armed guardian does what the request asks for.

    False for a fired dead-man switch, which must be armed again; for an inactive trailing stop, if the request has no
    activation level; and for a schedule with another order.
    """
    return _does_the_same(request, guardian) and _template_of(request) == guardian.order_template


def _template_of(request: GuardianRequest) -> object:
    """The order template as the service returns it, with its number types."""
    return json.loads(request.body()).get("orderTemplate")


def _does_the_same(request: GuardianRequest, guardian: Guardian) -> bool:
    """As `stands_for`, without the order of a schedule."""
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
