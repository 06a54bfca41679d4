"""How much later than an acknowledged action its effects are visible: info answers may be up to 1.2 s old."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from random import Random
from typing import Any, Final

from bot.local_exchange.engine.state import Exchange, User, account_id
from bot.local_exchange.wire.requests import Signed

LAG_MOST_MS: Final = 1_200


class Visibility:
    """For each address a copy of its past state, shown until its time. Only with the switch `info_lag`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._past: dict[str, tuple[int, Exchange]] = {}

    def hide(self, exchange: Exchange, signed: Signed, now_ms: int) -> None:
        """Keep the state before this action for a drawn time."""
        if exchange.switch("info_lag") == "none":
            return
        agent = exchange.agents.get(signed.signer)
        address = signed.vault or (signed.signer if agent is None else agent.master)
        user = exchange.users.get(address)
        if user is not None and self._past.get(address, (0, exchange))[0] <= now_ms:
            self._past[address] = (now_ms + self._random.randrange(LAG_MOST_MS), _past_of(exchange, user))

    def shown(self, exchange: Exchange, query: Any, now_ms: int) -> Exchange:
        """The exchange as an info request sees it."""
        if not self._past or not isinstance(query, dict) or not isinstance(query.get("user"), str):
            return exchange
        address = query["user"].lower()
        until_ms, past = self._past.get(address, (0, exchange))
        if until_ms <= now_ms:
            self._past.pop(address, None)
            return exchange
        return past


def _past_of(exchange: Exchange, user: User) -> Exchange:
    """A copy of the exchange in which this address does not change any more."""
    past = copy(exchange)
    frozen = replace(
        user,
        leverage=dict(user.leverage),
        orders={oid: copy(order) for oid, order in user.orders.items()},
        cloids=dict(user.cloids),
        fills=copy(user.fills),
        history=copy(user.history),
        fundings=copy(user.fundings),
        ledger_rows=copy(user.ledger_rows),
    )
    past.users = {**exchange.users, user.address: frozen}
    past.ended = dict(exchange.ended)
    past.raw, past.venue = dict(exchange.raw), copy(exchange.venue)
    past.venue.accounts = dict(exchange.venue.accounts)
    for dex in exchange.dexes:
        name = account_id(user.address, dex.name)
        if name in past.raw:
            past.raw[name] = replace(past.raw[name], sizes=dict(past.raw[name].sizes))
            account = copy(past.venue.accounts[name])
            account.positions = {coin: copy(position) for coin, position in account.positions.items()}
            past.venue.accounts[name] = account
    return past
