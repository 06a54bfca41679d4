"""The state of the daemon in one word, and why.

The control socket, `bot status`, metrics, systemd and the log all use this rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from bot.runtime.alerts.health import ENDING

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel

Word = Literal["STARTING", "RUNNING", "PAUSED", "DEGRADED", "STOPPING"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)


class DaemonState(NamedTuple):
    """`why` is empty for RUNNING."""

    word: Word
    why: str


def state_of(kernel: Kernel, *, is_stopping: bool = False, away: str = "") -> DaemonState:
    """The first state that applies: STOPPING, STARTING, DEGRADED, PAUSED, RUNNING.

    STARTING: the account is not recovered, strategies warm up, or the start waits for the service. DEGRADED: entries
    are blocked, here or at the service, or a strategy is in quarantine. PAUSED: a person has paused every strategy.
    `is_stopping`: the daemon was asked to stop. `away`: why the start waits for the service, or "".
    """
    if is_stopping or kernel.state.paused == ENDING:
        return DaemonState("STOPPING", "asked to stop")
    if not kernel.state.ready:
        return DaemonState("STARTING", "; ".join(kernel.health.degraded.values()) or away or "recovering")
    if kernel.state.warming is not None:
        return DaemonState(
            "STARTING", f"the strategies warm up, and the account is managed meanwhile: {kernel.state.warming}"
        )
    if away:
        return DaemonState("STARTING", away)
    reasons = list(kernel.health.degraded.values())
    no = kernel.conditions.entries_stopped(kernel.now_ms())
    if no is not None and not reasons:
        reasons.append(no.message)
    blocking = [guardian for guardian in kernel.account.account_state.guardians.values() if guardian.blocks_opens]
    reasons += [f"the service refuses entries: {guardian.type} {guardian.id} stands" for guardian in blocking]
    reasons += [
        f"{instance.name} is in quarantine: {instance.quarantined}"
        for instance in kernel.strategy_host.instances
        if instance.quarantined
    ]
    if reasons:
        return DaemonState("DEGRADED", "; ".join(reasons))
    if kernel.conditions.pauses.all_paused:
        return DaemonState("PAUSED", "no strategy opens positions; bot resume lets them continue")
    return DaemonState("RUNNING", "")
