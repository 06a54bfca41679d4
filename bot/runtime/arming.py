"""Arming the guardians that the config asks for: list, compare, arm what is missing, list again. Never twice, never by hope.

A guardian's key is made from its name and a serial that is durable before the request leaves. The serial grows when an
armed one has gone, because the service answers an old key with the old guardian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import structlog

from bot.errors import Refused
from bot.runtime.intents import intent_key
from bot.runtime.journal import Arm, Journal
from bot.runtime.mirror import Mirror
from bot.runtime.ports import VenuePort
from bot.wire import Guardian, GuardianRequest

log = structlog.get_logger()

DEAD_MAN: Final = "dead_man"
ARM_TRIES: Final = 3  # "200 but nothing armed" is answered with the next serial, this often


@dataclass(frozen=True, slots=True)
class Wanted:
    """A guardian under a name of ours."""

    name: str
    request: GuardianRequest


class Arming:
    def __init__(self, *, port: VenuePort, journal: Journal, mirror: Mirror, wanted: Sequence[Wanted]) -> None:
        self.port = port
        self.journal = journal
        self.mirror = mirror
        self.wanted = tuple(wanted)
        self.ids: dict[str, str] = {}  # name -> id of the guardian that stands for it

    def missing(self, listed: Sequence[Guardian]) -> list[Wanted]:
        """What the config asks for and the list does not have."""
        return [one for one in self.wanted if _standing(one.request, listed) is None]

    def fallen(self) -> list[Wanted]:
        """What the config asks for and does not stand, as far as the events say. A fired dead-man does not; a cap that blocks does."""
        return [one for one in self.wanted if not self._stands(one)]

    def _stands(self, one: Wanted) -> bool:
        guardian = self.mirror.guardians.get(self.ids.get(one.name, ""))
        return guardian is not None and not (guardian.latched and guardian.type == "dead_man_switch")

    async def listed(self) -> Sequence[Guardian]:
        """What stands at the service; the mirror learns it on the way."""
        listed = await self.port.guardians()
        self.mirror.see_guardians(listed)
        return listed

    async def arm_all(self, *, epoch: int) -> None:
        """Every wanted guardian stands when this returns. Refused: the service does not take one of them."""
        listed = await self.listed()
        for one in self.wanted:
            listed = await self.arm(one, listed, epoch=epoch)

    async def arm(self, one: Wanted, listed: Sequence[Guardian], *, epoch: int) -> Sequence[Guardian]:
        """Let one guardian stand; answers the list as it is then."""
        body = one.request.body().decode()
        arm = self.journal.arm_of(one.name) or Arm(one.name, 1, None, body)
        old_id = arm.guardian_id if arm.body != body else None
        for _ in range(ARM_TRIES):
            standing = _standing(one.request, listed)
            if standing is not None:
                self.journal.write_arm(arm._replace(guardian_id=standing.id, body=body))
                self.ids[one.name] = standing.id
                await self._disarm_old(old_id, standing.id, listed)
                return listed
            if arm.guardian_id is not None or arm.body != body:
                arm = Arm(one.name, arm.serial + 1, None, body)
            self.journal.write_arm(arm)
            armed = await self.port.arm(one.request, key=self._key(one, arm.serial, epoch))
            log.info("guardian.armed", name=one.name, guardian=armed.id, type=armed.type)
            arm = arm._replace(guardian_id=armed.id)  # Not listed after all: the next try has the next serial.
            listed = await self.listed()
        standing = _standing(one.request, listed)
        if standing is None:
            raise Refused("trade_failed", f"guardian {one.name} was taken {ARM_TRIES} times and never stood")
        self.journal.write_arm(arm._replace(guardian_id=standing.id))
        self.ids[one.name] = standing.id
        return listed

    async def _disarm_old(self, old_id: str | None, new_id: str, listed: Sequence[Guardian]) -> None:
        """The config has changed: the one of before goes after the new one stands."""
        if old_id is not None and old_id != new_id and any(g.id == old_id for g in listed):
            await self.port.disarm(old_id)

    def _key(self, one: Wanted, serial: int, epoch: int) -> str:
        return intent_key(
            address=self.journal.address,
            epoch=epoch,
            strategy="@guardians",
            market=one.request.market or "",
            trigger=f"arm:{one.name}",
            ordinal=serial,
            leg="guardian",
        )


def _standing(request: GuardianRequest, listed: Sequence[Guardian]) -> Guardian | None:
    return next((one for one in listed if stands_for(request, one)), None)


def stands_for(request: GuardianRequest, guardian: Guardian) -> bool:
    """Whether an armed guardian is what the request asks for. A fired dead-man is not: it must be armed anew."""
    if guardian.type != request.type or (guardian.status == "latched" and guardian.type == "dead_man_switch"):
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
