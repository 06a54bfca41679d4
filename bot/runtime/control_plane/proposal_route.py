"""POST /propose: an assistant proposes an entry for a strategy. The daemon checks and plans the entry, and a person
must approve it.

The route places nothing. It enters one intent in the journal between two passes; the order sender plans it and
`Approvals` holds it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bot.clock import MINUTE_MS
from bot.errors import Refusal, StrategyError
from bot.logs import log
from bot.money import format_decimal
from bot.runtime.control_plane.daemon_access import DaemonAccess
from bot.runtime.control_plane.server import ControlRequest, Data, RequestProblem
from bot.runtime.execution.approvals import document, plain_text
from bot.runtime.model.intents import PROPOSED
from bot.strategy import Bracket, Open
from bot.strategy.intents import LEVERAGE_MAX

if TYPE_CHECKING:
    from bot.runtime.kernel.kernel import Kernel

# begins with a letter, because digits alone would be read as an instant
KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
HOUR_MS: Final = 60 * MINUTE_MS
# proposals in an hour of the service's clock; a person who is asked more often approves without reading
HOUR_MAX: Final = 30
LOOK_S: Final = 0.05
# a proposal may wait 10 s; a healthy service plans in less than a second
LOOKS: Final = 200
BRACKET: Final = ("stop_pct", "stop_px", "target_pct", "target_px")


class ProposedEntry(NamedTuple):
    """What an assistant proposes. `plain` is the same as JSON, to compare a repeated call with the first one."""

    strategy: str
    signal: Open
    trigger: str
    by: str
    why: str
    plain: Mapping[str, str]


class ProposalRoute:
    def __init__(self, access: DaemonAccess) -> None:
        self._access = access

    async def propose(self, question: ControlRequest) -> Data:
        """Enter a proposal, and answer when it waits for a person or is refused.

        The same key enters one proposal once.
        """
        asked = _read(question)
        kernel = self._access.require_kernel()
        refusal = await self._access.mailbox.ask(lambda: _enter(kernel, asked))
        if refusal is not None:
            return _refused(refusal.code, refusal.message)
        for _ in range(LOOKS):
            answer = _answer(kernel, asked)
            if answer is not None:
                return answer
            await asyncio.sleep(LOOK_S)
        return {
            "state": "planning",
            "message": "the service has not planned it yet; bot approvals shows it once it waits",
        }


def _read(question: ControlRequest) -> ProposedEntry:
    strategy, market, side = question.text("strategy"), question.text("market"), question.text("side")
    numbers = {name: question.decimal(name) for name in ("usd", *BRACKET, "limit_px")}
    leverage = question.number("leverage", 0, at_most=LEVERAGE_MAX) or None
    key, by, why = question.text("key"), question.text("by"), question.text("reason")
    question.nothing_else()
    for name, value, what in (
        ("strategy", strategy, "the name of a strategy of the config"),
        ("market", market, "a market of the strategy"),
        ("side", side, "long or short"),
        ("usd", numbers["usd"], "the notional in USD"),
        ("key", key, "a new key for each proposal"),
        ("reason", why, "why this entry, for the person who must approve it"),
    ):
        if value is None:
            raise RequestProblem(400, "invalid_input", f"{name} is required: {what}")
    assert strategy is not None and market is not None and key is not None and why is not None
    if KEY.fullmatch(key) is None:
        raise RequestProblem(400, "invalid_input", "key is a letter, then at most 63 letters, digits, _ or -")
    levels: dict[str, Any] = {name: numbers[name] for name in BRACKET if numbers[name] is not None}
    parts: dict[str, Any] = {"side": side, "usd": numbers["usd"], "limit_px": numbers["limit_px"]}
    try:
        bracket = Bracket(**levels) if levels else None
        signal = Open(market, leverage=leverage, bracket=bracket, **parts)
    except StrategyError as error:
        raise RequestProblem(400, "invalid_input", str(error)) from None
    words = {"strategy": strategy, "market": market, "side": str(side), "leverage": str(leverage)}
    plain = words | {name: format_decimal(value) for name, value in numbers.items() if value is not None}
    return ProposedEntry(strategy, signal, f"{PROPOSED}{key}", plain_text(by or "an assistant"), plain_text(why), plain)


async def _enter(kernel: Kernel, asked: ProposedEntry) -> Refusal | None:
    """Write the proposal and begin to plan it, between two passes.

    Nothing is entered for a key that the journal has.
    """
    instances = {running.name: running for running in kernel.strategy_host.instances}
    instance = instances.get(asked.strategy)
    if instance is None:
        raise RequestProblem(
            404, "not_found", f"no strategy {plain_text(asked.strategy)}; there are {', '.join(instances)}"
        )
    intents, now_ms = kernel.journal.intents, kernel.now_ms()
    known = intents.of_trigger(asked.trigger, epoch=kernel.account.account_state.epoch)
    if known is not None:
        if kernel.journal.approvals.origin_of(known).get("asked") == asked.plain:
            return None
        return Refusal(
            "key_reused", "this key belongs to a proposal with other values; send a new key for a new proposal"
        )
    if (no := kernel.strategy_host.no_entry(asked.strategy)) is not None:
        return no
    if intents.proposed_since(now_ms - HOUR_MS) >= HOUR_MAX:
        return Refusal("too_many_proposals", f"{HOUR_MAX} proposals were made within an hour, which is the most")
    origin = {"by": asked.by, "why": asked.why, "asked": asked.plain}
    intent = kernel.builder.propose(instance, asked.signal, trigger=asked.trigger, origin=origin)
    if isinstance(intent, Refusal):
        kernel.journal.flush()
        return intent
    log.warning("proposal.entered", intent=intent.id, strategy=intent.strategy, market=intent.market, by=asked.by)
    kernel.budget.begin()
    await kernel.execution.open_and_send([intent])
    await kernel.events.drain()
    kernel.journal.flush()
    return None


def _answer(kernel: Kernel, asked: ProposedEntry) -> Data | None:
    """What has become of the proposal; None while it is being planned."""
    for proposal in kernel.approvals.waiting():
        if proposal.intent.trigger == asked.trigger:
            return {"state": "waiting", **document(proposal, kernel.now_ms())}
    intent = kernel.journal.intents.of_trigger(asked.trigger, epoch=kernel.account.account_state.epoch)
    if intent is None or intent.state in ("opened", "planned"):
        return None
    if intent.state in ("rejected", "expired", "void"):
        return _refused(intent.code or intent.state, intent.message or intent.state) | {"id": intent.id}
    # approved before
    return {"state": intent.state, "id": intent.id, "strategy": intent.strategy, "market": intent.market}


def _refused(code: str, message: str) -> Data:
    return {"state": "refused", "code": code, "message": message}
