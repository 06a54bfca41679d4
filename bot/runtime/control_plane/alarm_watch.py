"""Which alarms stand: looks at the parts of a run, at most once a second, and sets or ends the alarms of the table
in bot/runtime/alerts/alarms.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bot.clock import DAY_MS, MINUTE_MS, SECOND_MS, SystemClock, iso
from bot.money import format_decimal
from bot.runtime.alerts.alarms import ALARMS
from bot.runtime.alerts.health import PRICES
from bot.runtime.control_plane.proof_schedule import unknown_in
from bot.wire import bare_coin

if TYPE_CHECKING:
    from bot.config import Settings
    from bot.runtime.control_plane.price_watch import PriceWatch
    from bot.runtime.kernel.kernel import Kernel

# file of the state directory: when `bot backup` has last written a whole backup
LAST_BACKUP: Final = "last_backup.json"
BACKUP_AGE_MS_MAX: Final = 7 * DAY_MS
JUMP_SHOWN_MS: Final = 15 * MINUTE_MS
# time before the end of a wait; for a shorter wait its last fifth
EXPIRING_MS: Final = 5 * MINUTE_MS
EXPIRING_PART: Final = 5
LOOK_MS: Final = SECOND_MS
# time between two looks at files, ports and the journal
LOOK_SLOW_MS: Final = 10 * SECOND_MS
CONNECT_S: Final = 0.2

# subject -> message
Messages = dict[str, str]


@dataclass(slots=True)
class StandingAlarm:
    """An alarm of one subject: since when in real time, its newest message, and whether people were told."""

    since_ms: int
    message: str
    is_told: bool = False


class AlarmWatch:
    """`look` is called at the end of each pass, so it mostly reads memory; files, ports and the journal every
    LOOK_SLOW_MS.
    """

    def __init__(
        self,
        kernel: Kernel,
        prices: PriceWatch,
        settings: Callable[[], Settings],
        proof_failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._kernel = kernel
        self._prices = prices
        self._settings = settings
        self._standing: dict[tuple[str, str], StandingAlarm] = {}
        self._looked_ms: int | None = None
        self._slow_ms: int | None = None
        self._finders: Mapping[str, Callable[[], Messages]] = {
            "prices_lost": self._prices_lost,
            "price_jump": self._price_jumps,
            "exchange_account": self._exchange,
            "approval_expiring": self._approvals,
            "agent_silent": lambda: self._agents("agent_silent"),
            "agent_spent": lambda: self._agents("agent_spent"),
        }
        # Finders that read files, ports and the journal.
        self._slow_finders: Mapping[str, Callable[[], Messages]] = {
            "target_refused": self._targets,
            "backup_old": self._backup,
            "dashboard_down": self._dashboard,
            "proof_unknown": self._proof,
            "proof_failed": lambda: {} if (failure := proof_failure()) is None else {"": failure},
        }
        assert {*self._finders, *self._slow_finders} == set(ALARMS)

    def standing(self) -> Iterator[tuple[str, str, str]]:
        """Name, subject and message of each alarm that people were told."""
        for (name, subject), alarm in self._standing.items():
            if alarm.is_told:
                yield name, subject, alarm.message

    def documents(self) -> list[dict[str, Any]]:
        """The alarms for `bot status`."""
        return [{"alarm": name, "subject": subject, "message": message} for name, subject, message in self.standing()]

    def look(self) -> None:
        now_ms = self._kernel.budget.pacer.mono_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        finders = dict(self._finders)
        if self._slow_ms is None or now_ms - self._slow_ms >= LOOK_SLOW_MS:
            self._slow_ms = now_ms
            finders |= self._slow_finders
        for name, find in finders.items():
            self._keep(name, find(), now_ms)

    def _keep(self, name: str, messages: Messages, now_ms: int) -> None:
        """Make the alarms of this name exactly these."""
        for known, subject in [key for key in self._standing if key[0] == name]:
            if subject not in messages:
                del self._standing[known, subject]
                if ALARMS[name].degrades:
                    self._kernel.health.restore(PRICES + subject)
        for subject, message in messages.items():
            alarm = self._standing.setdefault((name, subject), StandingAlarm(now_ms, message))
            if ALARMS[name].is_event and message != alarm.message:
                alarm.is_told = False
            alarm.message = message
            if not alarm.is_told and now_ms - alarm.since_ms >= ALARMS[name].grace_ms:
                alarm.is_told = True
                self._tell(name, subject, message)

    def _tell(self, name: str, subject: str, message: str) -> None:
        alarm, health = ALARMS[name], self._kernel.health
        if alarm.degrades:
            health.degrade(PRICES + subject, message, kind=alarm.notice, market=subject)
            return
        names = {"strategy": subject} if name.startswith("agent_") else {"market": subject or None}
        health.incident(alarm.notice, f"{name}:{subject}", message=message, **names)

    # -- the finders

    def _markets(self) -> Mapping[str, str]:
        """Coin -> market of our strategies and positions."""
        names = [market for instance in self._kernel.strategy_host.instances for market in instance.markets]
        return {bare_coin(market): market for market in (*names, *self._kernel.account.account_state.positions)}

    def _prices_lost(self) -> Messages:
        now, ours = self._prices.newest, self._markets()
        closed = () if now is None else [market for market in now.markets if not market.open and market.coin in ours]
        return {
            ours[market.coin]: (
                f"{market.reason or 'no live price'}; its stops cannot fire and nothing is opened there until"
                " prices come"
            )
            for market in closed
        }

    def _price_jumps(self) -> Messages:
        now, ours, now_ms = self._prices.newest, self._markets(), self._kernel.now_ms()
        jumps = [
            (market.coin, market.jump) for market in (() if now is None else now.markets) if market.jump is not None
        ]
        return {
            ours[coin]: (
                f"from {format_decimal(jump.from_px)} to {format_decimal(jump.to_px)} at {iso(jump.at)}; a second"
                " witness, or time, has confirmed it, and it was used"
            )
            for coin, jump in jumps
            if coin in ours and now_ms - jump.at < JUMP_SHOWN_MS
        }

    def _exchange(self) -> Messages:
        """What is wrong with the account at an exchange; what is not known yet is no alarm."""
        return {fact.name: fact.line for fact in self._prices.exchange_facts() if fact.level in ("warn", "fail")}

    def _agents(self, name: str) -> Messages:
        alarms = {
            instance.name: getattr(instance.strategy, "alarms", {}).get(name)
            for instance in self._kernel.strategy_host.instances
        }
        return {strategy: message for strategy, message in alarms.items() if message is not None}

    def _approvals(self) -> Messages:
        now_ms, expiring = self._kernel.now_ms(), {}
        for proposal in self._kernel.approvals.waiting():
            end_ms = proposal.intent.not_after_ms
            if end_ms - now_ms <= min(EXPIRING_MS, (end_ms - proposal.row.asked_ms) // EXPIRING_PART):
                name = proposal.intent.id[:12]
                text = (
                    f"{proposal.intent.strategy} waits for an answer until {iso(end_ms)}: bot approvals approve {name}"
                )
                expiring[f"{proposal.intent.market} {name}"] = text
        return expiring

    def _targets(self) -> Messages:
        kernel, by_market = self._kernel, {}
        for position in kernel.account.account_state.positions.values():
            if position.owner is None or kernel.journal.fault is not None:
                continue
            refused = kernel.journal.intents.refused_target(
                position.market, epoch=kernel.account.account_state.epoch, since_ms=position.opened_ms
            )
            if refused is not None:
                why = refused.message or refused.code
                by_market[position.market] = (
                    f"the service has refused a target of {refused.strategy} ({why}); the stop stands"
                )
        return by_market

    def _backup(self) -> Messages:
        path = self._settings().state_dir / LAST_BACKUP
        at_ms = backup_ms(path)
        if at_ms is None or SystemClock().now_ms() - at_ms <= BACKUP_AGE_MS_MAX:
            return {}
        return {"": f"the last one is of {iso(at_ms)}; bot backup FOLDER makes one"}

    def _proof(self) -> Messages:
        unknown = unknown_in(self._settings().state_dir)
        return {} if unknown is None else {"": unknown}

    def _dashboard(self) -> Messages:
        section = self._settings().dashboard
        if section is None or not section.port or _answers(section.port):
            return {}
        return {"": f"127.0.0.1:{section.port} does not answer; the daemon trades on"}


def backup_ms(path: Path) -> int | None:
    """When the last backup was written, in the machine's time. None: there was none, or its record cannot be read."""
    try:
        at_ms = json.loads(path.read_bytes())["at_ms"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return at_ms if isinstance(at_ms, int) else None


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
