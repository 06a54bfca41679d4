"""The state of a run in one word, and why. One rule for the control socket, `bot status`, metrics, systemd and the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from bot.runtime.alerts.health import ENDING

if TYPE_CHECKING:
    from bot.runtime.kernel import Kernel

Word = Literal["STARTING", "RUNNING", "PAUSED", "DEGRADED", "STOPPING"]
WORDS: Final[tuple[Word, ...]] = get_args(Word)


class State(NamedTuple):
    """`why` is empty when it is RUNNING."""

    word: Word
    why: str


def state_of(kernel: Kernel, *, is_stopping: bool = False, away: str = "") -> State:
    """The first that holds: STOPPING, STARTING (not recovered, the strategies still live through their past, or the rest of the start waits
    for the service), DEGRADED (something keeps entries out, here or at the service, or a strategy is in quarantine), PAUSED (a person has
    paused every strategy), RUNNING. `is_stopping`: the run has been told to stop. `away`: why a start waits for its service, if it does."""
    if is_stopping or kernel.state.paused == ENDING:
        return State("STOPPING", "asked to stop")
    if not kernel.state.ready:
        return State("STARTING", "; ".join(kernel.health.degraded.values()) or away or "recovering")
    if kernel.state.warming is not None:
        return State(
            "STARTING",
            f"the account is looked after, and the strategies live through their past: {kernel.state.warming}",
        )
    if away:
        return State("STARTING", away)
    reasons = list(kernel.health.degraded.values())
    no = kernel.conditions.entries_stopped(kernel.now_ms())
    if no is not None and not reasons:
        reasons.append(no.message)
    blocking = [one for one in kernel.account.mirror.guardians.values() if one.blocks_opens]
    reasons += [f"the service refuses entries: {one.type} {one.id} stands" for one in blocking]
    reasons += [
        f"{instance.name} is in quarantine: {instance.quarantined}"
        for instance in kernel.strategy_host.instances
        if instance.quarantined
    ]
    if reasons:
        return State("DEGRADED", "; ".join(reasons))
    if kernel.conditions.pauses.all_paused:
        return State("PAUSED", "no strategy opens anything; bot resume lets them go on")
    return State("RUNNING", "")
