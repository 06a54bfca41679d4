"""The alarms: each names a promise that does not hold now. One table gives each alarm its state, notice, metric, alert
rule and panel. Pure.

A daemon that is dead has no alarms; Prometheus notices it (`BracketbotDown`), and its next start tells why
(`daemon.failed`).
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

METRIC: Final = "alarm"
PANEL: Final = "Alarms"


class Alarm(NamedTuple):
    """One alarm. `text` may name `{message}`; `wait` is how long Prometheus waits; `grace_ms` is how long the daemon
    waits, in real time.

    `degrades`: entries stop in the market that is its subject, and the state is DEGRADED. `is_event`: it has happened,
    and each new message is told again.
    """

    name: str
    promise: str
    level: Literal["warning", "error"]
    title: str
    severity: Literal["warning", "critical"]
    summary: str
    action: str
    wait: str = "0s"
    grace_ms: int = 0
    degrades: bool = False
    is_event: bool = False

    @property
    def notice(self) -> str:
        """The kind of the alarm's notice."""
        return f"alarm.{self.name}"

    @property
    def rule(self) -> dict[str, Any]:
        """The alarm's rule for Prometheus, as configs/monitoring/alerts.yml has it."""
        return {
            "alert": "Bracketbot" + "".join(map(str.capitalize, self.name.split("_"))),
            "expr": f'bracketbot_{METRIC}{{{METRIC}="{self.name}"}} > 0',
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {"summary": f"{{{{ $labels.instance }}}}: {self.summary}", "action": self.action},
        }


_ALARMS: Final = (
    Alarm(
        "prices_lost",
        "a stop fires at the price of its moment",
        "error",
        "{market}: no live prices",
        "critical",
        "no live prices of {{ $labels.subject }}: its stops cannot fire until they are back",
        "bot status shows the source and why; close by hand at the exchange if that is urgent",
        grace_ms=30_000,
        degrades=True,
    ),
    Alarm(
        "price_jump",
        "a price that fires something is true",
        "warning",
        "{market}: the price has jumped",
        "warning",
        "the price of {{ $labels.subject }} has jumped by more than 5 % within the last 15 minutes, and was used",
        "bot events and bot explain show what fired; compare with the exchange",
        is_event=True,
    ),
    Alarm(
        "exchange_account",
        "the account at an exchange is known, its agent may act, and the books equal the exchange's",
        "error",
        "The exchange account of {bot}",
        "critical",
        "the {{ $labels.subject }} of the exchange account needs a person",
        "bot status names the fact and what to do",
        grace_ms=30_000,
    ),
    Alarm(
        "agent_silent",
        "an agent is asked and answers",
        "warning",
        "{strategy} gets no answers",
        "warning",
        "{{ $labels.subject }} gets no usable answers of its model",
        "bot explain shows its newest questions",
    ),
    Alarm(
        "agent_spent",
        "an agent may ask",
        "warning",
        "{strategy} has used up its day",
        "warning",
        "{{ $labels.subject }} has used up its questions, tokens or USD of today",
        "bot explain; it asks again after 00:00 UTC, or with higher limits after bot reload",
    ),
    Alarm(
        "approval_expiring",
        "an entry that waits for a person is answered",
        "warning",
        "{market}: an entry will expire unanswered",
        "warning",
        "the entry {{ $labels.subject }} waits for approval and is about to expire",
        "bot approvals",
    ),
    Alarm(
        "backup_old",
        "there is a backup of this week",
        "warning",
        "The last backup of {bot} is old",
        "warning",
        "the last backup is more than 7 days old",
        "bot backup FOLDER; see why its timer does not run",
        wait="1h",
    ),
    Alarm(
        "dashboard_down",
        "the dashboard of the config can be opened",
        "warning",
        "The dashboard of {bot} does not answer",
        "warning",
        "the dashboard does not answer",
        "bot logs; bot dashboard --config CONFIG starts one",
        grace_ms=60_000,
    ),
    Alarm(
        "proof_unknown",
        "what a live day did otherwise than the test has a known cause",
        "warning",
        "A difference of {bot} to the test has no known cause",
        "warning",
        "the proof of the newest day has differences of unknown cause",
        "bot proof show; bot proof --day DAY names each difference",
        is_event=True,
    ),
    Alarm(
        "proof_failed",
        "each day is proved",
        "warning",
        "A day of {bot} could not be proved",
        "warning",
        "the newest day could not be proved",
        "bot proof --day DAY says why",
        is_event=True,
    ),
    Alarm(
        "target_refused",
        "each target of a position rests at the service",
        "error",
        "{market}: a target was refused",
        "warning",
        "a target of the {{ $labels.subject }} position was refused; its stop stands",
        "bot explain shows why; set the target by hand, or close a part",
    ),
)
ALARMS: Final = {alarm.name: alarm for alarm in _ALARMS}
