"""What can be asked of an exchange, and what it answers, in values that are the same for every exchange.

An action has a nonce: the exchange performs it at most once under this nonce. An action without an answer may have been
performed, so it is sent again under the same nonce, or made void by another action with this nonce. Amounts are
integers of 1e-8, instants are milliseconds of the exchange's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

ActionKind = Literal["place", "cancel", "leverage", "void"]
# entry and close are limits; stop and target wait for a trigger price.
OrderRole = Literal["entry", "close", "stop", "target"]
# now: what does not fill at once is dropped. rest: the rest stays open. post: refused if it would fill at once.
TimeInForce = Literal["now", "rest", "post"]
# single: orders of their own. entry: the first order with its stop and target. position: stop and target of a position.
OrderGroup = Literal["single", "entry", "position"]
OrderOutcome = Literal["resting", "filled", "waiting", "canceled", "refused"]
# done: performed. refused: performed, and nothing came of it. duplicate, nonce_too_low: something was done under this
# nonce, or nothing can be any more. malformed: not read. not_sent: refused by the link itself.
ActionOutcome = Literal["done", "refused", "duplicate", "nonce_too_low", "malformed", "not_sent"]


class Rank(IntEnum):
    """What goes first. A lower rank goes before a higher one."""

    STOP = 0
    EXIT = 1
    CANCEL = 2
    ENTRY = 3
    REPAIR = 4
    PRICE = 5


@dataclass(frozen=True, slots=True)
class OrderPlacement:
    """An order to place. `size` 0 of a stop or target: the whole position."""

    client_order_id: str
    market: str
    is_buy: bool
    size: int
    px: int
    trigger_px: int | None
    role: OrderRole
    time_in_force: TimeInForce
    is_reduce_only: bool


@dataclass(frozen=True, slots=True)
class OrderName:
    """An order to cancel, by our id, or by the exchange's for one that is not ours."""

    market: str
    client_order_id: str | None = None
    order_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeverageRequest:
    market: str
    leverage: int
    is_isolated: bool


@dataclass(frozen=True, slots=True)
class ExchangeAction:
    """One action.

    `signer`: the address of the agent that must sign it. `expires_ms`: after it, the exchange refuses it.
    """

    action_nonce: int
    kind: ActionKind
    signer: str
    rank: Rank
    expires_ms: int | None = None
    orders: tuple[OrderPlacement, ...] = ()
    group: OrderGroup = "single"
    cancels: tuple[OrderName, ...] = ()
    leverage: LeverageRequest | None = None


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """What became of one order or cancel. `filled_size`: of one that filled at once.

    `text`: the exchange's own words for a refusal, and `code` what they mean, as an error code of the interface.
    """

    outcome: OrderOutcome
    order_id: str | None = None
    filled_size: int = 0
    text: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """The answer to an action. `text` and `code`: as of an order, for one that is not done."""

    action_nonce: int
    outcome: ActionOutcome
    orders: tuple[OrderAnswer, ...] = ()
    text: str | None = None
    code: str | None = None
