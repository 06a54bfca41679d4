"""`bot sandbox` that kills itself at one moment.

    python -m tests.service.exchange_accounts.killed_service KILL_AT service|link ARGUMENTS...

Moments are counted from the first action on: a command that has made or changed an action and is not on disk yet; a
call of the link that is about to be made, or has just been answered; an answer that is kept and not sent yet. 0: never.
With `link`, the link is killed and the service lives.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from bot.cli import main
from bot.exchanges.link.client import ExchangeLink
from bot.service.exchange_accounts import action_sending
from bot.service.operations.executor import OperationExecutor
from bot.service.state_machine.machine import Machine

links: list[ExchangeLink] = []


class Killer:
    """Counts the moments, and kills at one of them."""

    def __init__(self, at: int, *, is_link: bool) -> None:
        self._at, self._is_link = at, is_link
        self.count = 0

    def moment(self) -> None:
        self.count += 1
        if self.count == self._at:
            os.kill(links[-1].pid if self._is_link else os.getpid(), signal.SIGKILL)


def patch(killer: Killer) -> None:
    apply, perform = Machine._apply, action_sending.perform
    keep, entered = OperationExecutor._keep, ExchangeLink.__aenter__

    def applied(machine: Machine, command: Any, at_ms: int) -> Any:
        result = apply(machine, command, at_ms)
        if "Action" in type(command).__name__ or type(command).__name__ in ("ClosePosition", "PlaceOrder", "Kill"):
            killer.moment()
        return result

    async def performed(link: Any, *arguments: Any) -> Any:
        killer.moment()
        heard = await perform(link, *arguments)
        killer.moment()
        return heard

    def kept(*arguments: Any) -> None:
        keep(*arguments)
        killer.moment()

    async def opened(link: ExchangeLink) -> ExchangeLink:
        await entered(link)
        links.append(link)
        return link

    Machine._apply = applied
    action_sending.perform = performed
    OperationExecutor._keep = kept
    ExchangeLink.__aenter__ = opened


if __name__ == "__main__":
    at, who, *arguments = sys.argv[1:]
    patch(Killer(int(at), is_link=who == "link"))
    sys.argv = ["bot", "sandbox", *arguments]
    main()
