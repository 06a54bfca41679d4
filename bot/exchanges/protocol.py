"""What an exchange says about an account, in values that are the same for every exchange.

Amounts are integers of 1e-8, instants are milliseconds of the exchange's clock. `size` is positive; a position's
`signed_size` is negative for a short one. None means that the exchange did not say it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from bot.clock import HOUR_MS
from bot.errors import BotError, Exit
from bot.exchanges.actions import ActionAnswer, ExchangeAction
from bot.market_data.source import LiveSource

Role = Literal["account", "agent", "sub_account", "vault", "unknown"]
OrderKind = Literal["limit", "market", "stop", "target"]
# away: no connection. behind: connected, and something may be missing. in_step: everything until now is known.
LinkPhase = Literal["away", "behind", "in_step"]
# liquidation and backstop: the account itself was liquidated, through the book or by the exchange's own account. adl:
# the exchange closed it against a position of the other side that had nothing left.
FillKind = Literal["fill", "liquidation", "backstop", "adl"]
# transfer: between pockets of one owner. send: to or from somebody else. unknown: in no known form.
TransferKind = Literal["deposit", "withdrawal", "transfer", "send", "reward", "vault", "unknown"]
OrderState = Literal["open", "triggered", "filled", "canceled", "refused"]
# `filled` says that the order has ended with fills, not that its whole size was filled.
ORDER_ENDS: Final[frozenset[OrderState]] = frozenset(("filled", "canceled", "refused"))


class UnknownForm(BotError):
    """An answer of the exchange is not in a known form. Nothing of the answer is used; the text names the field."""


class NoExchangeAnswer(BotError):
    """The exchange gave no usable answer, for a reason that may pass: no connection, a fault, a used-up limit."""

    exit_code = Exit.TIMEOUT


class ActionMalformed(BotError):
    """The exchange could not read an action, so it has not performed it."""


class BudgetUsedUp(NoExchangeAnswer):
    """The exchange refuses a request because the limit of requests is used up."""


@dataclass(frozen=True, slots=True)
class MarketListing:
    """A market as the exchange lists it."""

    market: str
    size_decimals: int
    max_leverage: int
    is_isolated_only: bool
    is_delisted: bool


@dataclass(frozen=True, slots=True)
class PositionReport:
    """An open position. `margin`: of its own if isolated, otherwise what it uses of the account's."""

    market: str
    signed_size: int
    entry_px: int
    leverage: int
    is_isolated: bool
    margin: int
    unrealized: int
    liquidation_px: int | None


@dataclass(frozen=True, slots=True)
class AccountStanding:
    """Money and positions of an account at one instant. `cash`: the money at cost, without unrealized profit.

    `group`: the margin group that it is of; empty for the main one.
    """

    at_ms: int
    cash: int
    value: int
    margin_used: int
    withdrawable: int
    positions: tuple[PositionReport, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class OrderReport:
    """An open order. `size` 0 of a stop or target means the whole position.

    `is_waiting`: the exchange places it only when its entry has filled, so it protects nothing yet.
    """

    order_id: str
    client_order_id: str | None
    market: str
    is_buy: bool
    kind: OrderKind
    size: int
    px: int
    trigger_px: int | None
    is_reduce_only: bool
    is_for_position: bool
    is_waiting: bool
    placed_ms: int


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """A fill. `position_before`: the signed size of the position before it; a negative `fee` is a rebate."""

    market: str
    at_ms: int
    trade_id: int
    order_id: str
    client_order_id: str | None
    is_buy: bool
    size: int
    px: int
    fee: int
    fee_token: str
    position_before: int
    is_taker: bool
    kind: FillKind = "fill"

    @property
    def is_liquidation(self) -> bool:
        return self.kind in ("liquidation", "backstop")

    @property
    def position_after(self) -> int:
        return self.position_before + (self.size if self.is_buy else -self.size)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """A key that all copies of one fill share, and no two fills of an account."""
        return self.market, self.at_ms, self.trade_id, self.position_before


@dataclass(frozen=True, slots=True)
class FundingReport:
    """A payment of funding. `amount` is negative when the account paid; `rate` is a fraction scaled 1e12."""

    market: str
    at_ms: int
    amount: int
    rate: int
    signed_size: int

    @property
    def key(self) -> tuple[str, int]:
        """A key that all copies of one payment share: a market pays once an hour, and copies may differ by some ms."""
        return self.market, (self.at_ms + HOUR_MS // 2) // HOUR_MS


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A change of the cash of one margin group without a trade; negative when it left. Between two groups: two reports.

    `amount` None: the exchange did not say it in a known form, so only the next standing shows it.
    """

    transfer_id: str
    at_ms: int
    kind: TransferKind
    amount: int | None
    group: str = ""

    @property
    def key(self) -> str:
        return self.transfer_id


@dataclass(frozen=True, slots=True)
class LiquidationReport:
    """A liquidation of the account, with the signed sizes by market that it took. Fills may be reported besides.

    What it cost beyond the fills shows in the first standing of the group that is not older.
    """

    liquidation_id: str
    at_ms: int
    group: str
    is_isolated: bool
    positions: tuple[tuple[str, int], ...]

    @property
    def key(self) -> str:
        return self.liquidation_id


@dataclass(frozen=True, slots=True)
class OrderUpdate:
    """A change of an order. `reason`: why it was canceled, or the error code of a refusal; None otherwise.

    A triggered order may go on under another id: then no end of this one is reported.
    """

    order_id: str
    client_order_id: str | None
    market: str
    at_ms: int
    state: OrderState
    reason: str | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.order_id, self.state, self.at_ms


@dataclass(frozen=True, slots=True)
class AddressReport:
    """What an address is to the exchange. `master`: the account that an agent or a sub-account belongs to."""

    role: Role
    master: str | None = None


@dataclass(frozen=True, slots=True)
class AgentReport:
    """A key that may act for an account. `valid_until_ms` None: the exchange names no end."""

    address: str
    name: str
    valid_until_ms: int | None


@dataclass(frozen=True, slots=True)
class RequestBudget:
    """Actions that the account has used, and the most that it may use."""

    used: int
    most: int


@dataclass(frozen=True, slots=True)
class OpenOrders:
    """All open orders of one margin group of the account, as of now. `group` is empty for the main one."""

    group: str
    orders: tuple[OrderReport, ...]


@dataclass(frozen=True, slots=True)
class AccountReading:
    """Everything that an exchange says of an account, read one after the other. The rows are those after an instant.

    `at_ms`: the exchange's instant before the first row was read; `standings` are newer. `is_cut`: the exchange does
    not keep all fills of this time any more.
    """

    at_ms: int
    standings: tuple[AccountStanding, ...]
    orders: tuple[OrderReport, ...]
    fills: tuple[ExecutionReport, ...]
    funding: tuple[FundingReport, ...]
    transfers: tuple[TransferReport, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class LinkState:
    """What the link knows of the account since `since_ms` of this machine's clock, and why it knows no more."""

    phase: LinkPhase
    since_ms: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LinkHealth:
    """Figures of a link. `clock_difference_ms`: the exchange's clock less ours, as of the newest message; None: not
    known.

    `weight`: what its requests of the last minute weigh, of `weight_most`. `messages`: those of the exchange that it
    has read. `connections`: those that are open now; `opened`: all that it has opened. `signer`: the address of the
    agent's key; None: no key was given. `actions_left`: of the account's budget; None: not known.

    `agent`: how the exchange lists the agent, as of `agent_read_ms`; None: it does not list it. `agent_fault`: why
    nothing can be sent.
    """

    connections: int
    opened: int
    messages: int
    reads: int
    weight: int
    weight_most: int
    clock_difference_ms: int | None
    heard_ms: int | None
    signer: str | None = None
    actions_left: int | None = None
    agent: AgentReport | None = None
    agent_read_ms: int | None = None
    agent_fault: str | None = None


AccountReport = (
    ExecutionReport
    | FundingReport
    | TransferReport
    | LiquidationReport
    | OrderUpdate
    | OpenOrders
    | AccountStanding
    | LinkState
)


@dataclass(frozen=True, slots=True)
class FillCursor:
    """Where the reports of an account go on: fills after `at_ms`, from these signed positions by market.

    Funding and transfers go on after `funding_ms` and `transfers_ms`; None: after `at_ms` too.
    """

    at_ms: int
    positions: Mapping[str, int]
    funding_ms: int | None = None
    transfers_ms: int | None = None


class ExchangePlugin(LiveSource, Protocol):
    """What a plug-in of the entry point group `bot.exchanges` offers. It runs inside the link process."""

    def account(self, address: str, cursor: FillCursor | None) -> AsyncIterator[Sequence[AccountReport]]:
        """Stream the reports of an account, each once, without an end. Without a cursor, the reports begin now.

        Fills of a market come in the order in which they happened, except those that a later read brings: a lost pair
        that leaves the position as it was breaks no chain.
        """
        ...

    async def act(self, action: ExchangeAction) -> ActionAnswer:
        """Send an action once. NoAnswer if it may have been performed. Without a key: `not_sent`."""
        ...

    async def look(self, address: str, name: str) -> OrderUpdate | None:
        """The newest change of an order of this account, by our id of it or the exchange's.

        None: the exchange does not know it. For about a second after it was placed, that proves nothing.
        """
        ...

    async def read(self, address: str, after_ms: int) -> AccountReading:
        """Read the account anew, with the rows after this instant of the exchange's clock."""
        ...

    def health(self) -> LinkHealth: ...
