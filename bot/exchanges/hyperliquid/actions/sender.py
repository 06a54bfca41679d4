"""Sends actions of one agent: checks signer and budget, signs, and reads the answer. Repeats nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from bot.clock import MINUTE_MS, SECOND_MS, Clock
from bot.exchanges.actions import ActionAnswer, ExchangeAction, Rank
from bot.exchanges.hyperliquid import form
from bot.exchanges.hyperliquid.actions.budget import ActionBudget
from bot.exchanges.hyperliquid.actions.form import FAILED, WrongSigner, action_answer, wire_action
from bot.exchanges.hyperliquid.actions.signing import Signer
from bot.exchanges.hyperliquid.checks import judge_agent
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.exchanges.hyperliquid.requests import Requests
from bot.exchanges.protocol import ActionMalformed, AgentReport, BudgetUsedUp, NoExchangeAnswer, UnknownForm

# Asset numbers of a dex of its own begin here, and are so far apart.
DEX_ASSETS: Final = 100_000
DEX_STEP: Final = 10_000
EXPIRED: Final = "already expired"
# code of what the link keeps back for a reason that passes
LATER: Final = "service_unavailable"
# An entry is worth less with every second, so it is refused rather than kept for later. Stops and exits wait.
ENTRY_WAIT_MS: Final = 2 * SECOND_MS


# The answer to "whose agent is it, and until when" is read so often; it weighs 100 of the 1,200 of a minute.
CHECK_EVERY_MS: Final = 10 * MINUTE_MS


class ExchangePost(Protocol):
    """Anything that posts a signed action once."""

    async def exchange(self, body: Mapping[str, Any]) -> Any: ...


class ActionSender:
    """The actions of one agent for one account."""

    def __init__(self, post: ExchangePost, requests: Requests, clock: Clock, signer: Signer) -> None:
        self.signer = signer
        self._post = post
        self._requests = requests
        self._clock = clock
        self._budget = ActionBudget()
        self._assets: dict[str, int] = {}
        self._master: str | None = None
        # why nothing may be signed: a misread signature, or an agent of another account
        self._fault: str | None = None
        self._agent_fault: str | None = None
        self._preparing = asyncio.Lock()
        # how the exchange lists the agent, and when it was asked
        self.agent: AgentReport | None = None
        self.read_ms: int | None = None
        # when it was last tried to ask
        self._asked_ms = 0

    @property
    def fault(self) -> str | None:
        """Why nothing is signed; None: nothing is known to be wrong."""
        return self._fault or self._agent_fault

    @property
    def left(self) -> int | None:
        """Actions that are left of the account's budget; None: not known."""
        return self._budget.left

    async def check(self, address: str, network: str) -> None:
        """Send nothing from now on if the agent may not act for this address. NoExchangeAnswer if it is not known."""
        agent, user = self.signer.address, address.lower()
        self._asked_ms = self._clock.now_ms()
        report = form.address_report(await self._requests.info({"type": "userRole", "user": agent}, Rank.REPAIR))
        listed = form.agents(await self._requests.info({"type": "extraAgents", "user": user}, Rank.REPAIR))
        told = await self._requests.info({"type": "userRateLimit", "user": user}, Rank.REPAIR)
        now_ms = self._clock.now_ms()
        self._budget.correct(form.request_budget(told), now_ms)
        verdict = judge_agent(user, agent, report, listed, network, now_ms)
        self._agent_fault = verdict.message if verdict.level == "fail" else None
        self._master, self.read_ms = report.master, now_ms
        self.agent = next((known for known in listed if known.address == agent), None)

    async def check_again(self, address: str, network: str) -> None:
        """Ask anew if the last answer is old: an agent may be renewed, revoked or replaced meanwhile."""
        if self._clock.now_ms() - self._asked_ms < CHECK_EVERY_MS:
            return
        with suppress(NoExchangeAnswer, UnknownForm):
            await self.check(address, network)

    async def act(self, action: ExchangeAction) -> ActionAnswer:
        """Send an action once. NoAnswer if it is in doubt whether the exchange has performed it."""
        if (fault := self.fault) is not None:
            return _not_sent(action, fault, FAILED)
        try:
            refusal = await self._refusal(action)
        except NoExchangeAnswer as error:
            # A read that the action needs has failed; the action itself was not sent.
            refusal = str(error)
        if refusal is not None:
            return _not_sent(action, refusal)
        try:
            wire = wire_action(action, self._assets)
        except ValueError as error:
            return _not_sent(action, str(error), FAILED)
        wait_max_ms = ENTRY_WAIT_MS if action.rank >= Rank.ENTRY else None
        weight = 1 + len(action.orders or action.cancels) // 40
        if not await self._requests.turn(action.rank, weight, wait_max_ms):
            text = (
                f"the action would wait longer than {ENTRY_WAIT_MS // SECOND_MS} s for the exchange's limit of"
                " requests, so it was not sent; try again"
            )
            return _not_sent(action, text)
        if action.expires_ms is not None and self._clock.now_ms() >= action.expires_ms:
            text = "the action has expired before it could be sent"
            return _not_sent(action, text)
        body = self.signer.body(wire, action.action_nonce, action.expires_ms)
        self._budget.count(action)
        try:
            answer = action_answer(action, await self._post.exchange(body))
        except ActionMalformed as error:
            return ActionAnswer(action.action_nonce, "malformed", text=str(error), code=FAILED)
        except BudgetUsedUp:
            self._requests.refused()
            raise
        except WrongSigner as error:
            self._fault = str(error)
            raise
        if answer.text is not None and EXPIRED in answer.text:
            self._budget.count(action, is_expired=True)
        return answer

    async def _refusal(self, action: ExchangeAction) -> str | None:
        if action.signer != self.signer.address:
            return f"the action is for the agent {action.signer}, and the key is of {self.signer.address}"
        if action.kind != "void":
            await self._prepare(action.rank)
        if action.rank > Rank.CANCEL:
            await self._correct_budget()
        return self._budget.refusal(action)

    async def _prepare(self, rank: Rank) -> None:
        """Read the numbers of all markets once."""
        async with self._preparing:
            if self._assets:
                return
            names = [MAIN_DEX, *form.dex_names(await self._requests.info({"type": "perpDexs"}, rank))]
            assets: dict[str, int] = {}
            for number, dex in enumerate(names):
                first = number and DEX_ASSETS + number * DEX_STEP
                listed = form.listings(await self._requests.info({"type": "meta", "dex": dex}, rank))
                assets |= {listing.market: first + index for index, listing in enumerate(listed)}
            self._assets = assets

    async def _correct_budget(self) -> None:
        if not self._budget.is_read_due(self._clock.now_ms()):
            return
        if self._master is None:
            role = await self._requests.info({"type": "userRole", "user": self.signer.address}, Rank.ENTRY)
            self._master = form.address_report(role).master or self.signer.address
        told = await self._requests.info({"type": "userRateLimit", "user": self._master}, Rank.ENTRY)
        self._budget.correct(form.request_budget(told), self._clock.now_ms())


def _not_sent(action: ExchangeAction, text: str, code: str = LATER) -> ActionAnswer:
    """The link keeps this copy back."""
    return ActionAnswer(action.action_nonce, "not_sent", text=text, code=code)


def sender_of(path: str, post: ExchangePost, requests: Requests, clock: Clock, *, is_mainnet: bool) -> ActionSender:
    """The sender for the key in this file. ConfigError says what is wrong with the file."""
    return ActionSender(post, requests, clock, Signer(Path(path), is_mainnet=is_mainnet))
