"""The actions and reads of one scenario, with a record of what was sent and answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

from bot.clock import SECOND_MS
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.actions.signing import Signer
from bot.exchanges.hyperliquid.certification.wire_orders import ContractMarket, Json
from bot.exchanges.hyperliquid.form import MAIN_DEX, dex_of
from bot.exchanges.hyperliquid.json_rows import JsonRow
from bot.exchanges.protocol import NoExchangeAnswer
from bot.money import format_e8

# An answer may be this much older than an acknowledged action.
VISIBLE_MS: Final = 2 * SECOND_MS
TRIES: Final = 3
RETRY_MS: Final = SECOND_MS
# All our ids begin with it, so that a person knows these orders on the exchange's page.
NAME_PREFIX: Final = "0xce47"
# What a market order may pay beyond the middle of the book, and where orders rest that must not fill.
SLIPPAGE: Final = Decimal("0.02")
FAR: Final = Decimal("0.5")
# The exchange takes orders from 10 USD on, also at the price of a stop, which is a fifth lower.
ORDER_USD: Final = Decimal(16)
CLEAN_ROUNDS: Final = 10
# Refusals that say nothing about what was sent.
PASSING: Final = (
    "Only post-only orders allowed",
    "Too many cumulative requests",
    "Trading is halted",
    "does not exist",
    "Must deposit",
    "Action already expired",
)


class Unsettled(Exception):
    """A scenario cannot say which value is right. The text says why."""


class ExchangeAccess(Protocol):
    """The way to an exchange: HTTP, or a local exchange in this process."""

    def now_ms(self) -> int: ...

    async def wait(self, ms: int) -> None: ...

    async def info(self, query: Mapping[str, Any]) -> Any:
        """The answer of an info request. NoExchangeAnswer and UnknownForm as the transport raises them."""
        ...

    async def exchange(self, body: Mapping[str, Any]) -> Any:
        """Post a signed action once."""
        ...


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One request and its answer. A signature is never kept."""

    at_ms: int
    sent: Json
    answer: Any


@dataclass(frozen=True, slots=True)
class ActionReply:
    """The answer to an action: `statuses` of its orders, or `refusal` of all of it."""

    statuses: tuple[Any, ...] = ()
    refusal: str | None = None


class ContractSession:
    """One account and its agent. Reads wait until what was done before is visible."""

    def __init__(self, access: ExchangeAccess, signer: Signer, address: str, market: ContractMarket) -> None:
        self.access = access
        self.address = address
        self.market = market
        self.account = HyperliquidAccount(self, address)
        self.record: list[Exchanged] = []
        self._signer = signer
        self._last_nonce = 0
        self._names = 0
        self._acted_ms = -VISIBLE_MS
        # Actions without an answer, which may still be performed, and where orders may be open.
        self._doubtful: list[int] = []
        self._dexes = {MAIN_DEX}

    @contextmanager
    def trading(self, market: ContractMarket) -> Iterator[ContractMarket]:
        """Trade in another market for a while."""
        before, self.market = self.market, market
        try:
            yield market
        finally:
            self.market = before

    # ── Requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def nonce(self) -> int:
        self._last_nonce = max(self._last_nonce + 1, self.access.now_ms())
        return self._last_nonce

    def name(self) -> str:
        """A new id for an order."""
        self._names += 1
        return f"{NAME_PREFIX}{self.access.now_ms():016x}{self._names:012x}"

    async def info(self, query: Mapping[str, Any]) -> Any:
        await self.access.wait(max(0, self._acted_ms + VISIBLE_MS - self.access.now_ms()))
        return await self.read_now(query)

    async def read_now(self, query: Mapping[str, Any]) -> Any:
        """An info request that does not wait until the last action is visible."""
        answer = await self.access.info(query)
        self.record.append(Exchanged(self.access.now_ms(), dict(query), answer))
        return answer

    async def read(self, kind: str, **query: Any) -> Any:
        """An info request about the account."""
        return await self.info({"type": kind, "user": self.address, **query})

    async def act(
        self,
        action: Json,
        *,
        nonce: int | None = None,
        expires_ms: int | None = None,
        sent: Json | None = None,
        looks_for: str | None = None,
    ) -> ActionReply:
        """Send an action, and again under the same nonce while there is no answer.

        `sent`: other bytes than signed. Unsettled for a refusal with another cause than the action, unless the scenario
        looks for it.
        """
        nonce = self.nonce() if nonce is None else nonce
        body = self._signer.body(action, nonce, expires_ms)
        if sent is not None:
            body["action"] = sent
        self._doubtful.append(nonce)
        for attempt in range(TRIES):
            try:
                answer = await self.access.exchange(body)
            except NoExchangeAnswer as error:
                self.record.append(Exchanged(self.access.now_ms(), {"action": body["action"]}, str(error)))
                await self.access.wait(RETRY_MS)
                continue
            self._doubtful.remove(nonce)
            self._acted_ms = self.access.now_ms()
            self.record.append(Exchanged(self._acted_ms, {"action": body["action"], "nonce": nonce}, answer))
            reply = reply_of(answer)
            if attempt and "duplicate nonce" in (reply.refusal or ""):
                raise Unsettled("an answer was lost on the way")
            for text in (reply.refusal, *map(error_of, reply.statuses)):
                if text and any(part in text and part != looks_for for part in PASSING):
                    raise Unsettled(f"the exchange refused: {text}")
            return reply
        raise Unsettled("the exchange gave no answer to an action")

    # ── Orders ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def place(self, *orders: Json, grouping: str = "na") -> tuple[Any, ...]:
        """The statuses of an order action. Unsettled if the action was refused as a whole."""
        self._dexes.add(dex_of(self.market.name))
        reply = await self.act({"type": "order", "orders": list(orders), "grouping": grouping})
        if reply.refusal is not None:
            raise Unsettled(f"the exchange refused: {reply.refusal}")
        return reply.statuses

    async def place_resting(self, order: Json) -> int:
        """Place an order that must rest. Its number at the exchange."""
        status = (await self.place(order))[0]
        if not isinstance(status, dict) or "resting" not in status:
            raise Unsettled(f"an order that should rest was answered {status}")
        return int(status["resting"]["oid"])

    async def mid(self, market: ContractMarket | None = None) -> Decimal:
        """The middle of the book."""
        name = (market or self.market).name
        answer = await self.info({"type": "allMids", "dex": dex_of(name)})
        return JsonRow(answer, "allMids").positive(name)

    async def far_buy(self, market: ContractMarket | None = None, **given: Any) -> Json:
        """A buy that rests at half the price."""
        market = market or self.market
        px = market.px(await self.mid(market) * FAR)
        return market.limit(is_buy=True, size=market.size_of(ORDER_USD, px), px=px, name=self.name(), **given)

    async def take(self, size: Decimal, *, is_buy: bool, reduces: bool = False) -> Any:
        """The status of an order that fills at once or not."""
        market = self.market
        px = market.px(await self.mid() * (1 + SLIPPAGE if is_buy else 1 - SLIPPAGE))
        order = market.limit(is_buy=is_buy, size=size, px=px, tif="Ioc", reduces=reduces, name=self.name())
        return (await self.place(order))[0]

    async def open_long(self, usd: Decimal = ORDER_USD) -> Decimal:
        """Buy for so much. The size of the position."""
        size = self.market.size_of(usd, await self.mid())
        status = await self.take(size, is_buy=True)
        if not isinstance(status, dict) or "filled" not in status:
            raise Unsettled(f"a market order was answered {status}")
        if await self.held() != size:
            raise Unsettled("a market order did not fill as a whole")
        return size

    async def status(self, name: str | int) -> str:
        """The status of an order by our id of it or the exchange's; `unknownOid` if the exchange does not know it."""
        return status_of(await self.read("orderStatus", oid=name))

    async def open_rows(self) -> list[Json]:
        """Open orders of the market's dex, as the exchange lists them."""
        rows: list[Json] = await self.read("frontendOpenOrders", dex=dex_of(self.market.name))
        return rows

    async def held(self) -> Decimal:
        """The signed size of the position in the market."""
        standing = await self.account.standing(dex_of(self.market.name))
        sizes = {position.market: position.signed_size for position in standing.positions}
        return Decimal(format_e8(sizes.get(self.market.name, 0)))

    # ── Cleaning up ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def clean(self, dexes: Iterable[str] = ()) -> str | None:
        """Cancel all orders and close all positions, of these dexes too. What is left, if that did not succeed."""
        self._dexes.update(dexes)
        left: str | None = None
        for _ in range(CLEAN_ROUNDS):
            try:
                for nonce in list(self._doubtful):
                    # An action whose answer was lost can no longer be performed after this.
                    await self.act({"type": "noop"}, nonce=nonce)
                    self._doubtful = [other for other in self._doubtful if other != nonce]
                left = await self._clean_once()
            except (NoExchangeAnswer, Unsettled) as error:
                left = str(error)
            if left is None:
                return None
            await self.access.wait(RETRY_MS)
        return left

    async def _clean_once(self) -> str | None:
        """What was open before this attempt."""
        left = []
        for dex in sorted(self._dexes):
            orders = await self.account.open_orders(dex)
            standing = await self.account.standing(dex)
            if orders:
                assets = {market.name: market.asset for market in await contract_markets(self, dex)}
                cancels = [{"a": assets[order.market], "o": int(order.order_id)} for order in orders]
                await self.act({"type": "cancel", "cancels": cancels})
                left.append(f"{len(orders)} open orders")
            for position in standing.positions:
                await self._close(position.market, Decimal(format_e8(position.signed_size)))
                left.append(f"a position in {position.market}")
        return ", ".join(left) or None

    async def _close(self, name: str, signed_size: Decimal) -> None:
        """Close a position. One that is too small to be closed is enlarged first."""
        with self.trading(await market_named(self, name)):
            is_buy = signed_size < 0
            status = await self.take(abs(signed_size), is_buy=is_buy, reduces=True)
            if "minimum value" in (error_of(status) or ""):
                more = self.market.size_of(ORDER_USD, await self.mid())
                await self.take(more, is_buy=not is_buy)


async def contract_markets(session: ContractSession, dex: str = MAIN_DEX) -> list[ContractMarket]:
    """The markets of a dex that can be traded."""
    names = [MAIN_DEX, *await session.account.dex_names()]
    # Asset numbers of a dex of its own begin at 100,000, 10,000 apart.
    first = 0 if dex == MAIN_DEX else 100_000 + 10_000 * names.index(dex)
    return [
        ContractMarket(listing.market, first + number, listing.size_decimals)
        for number, listing in enumerate(await session.account.listings(dex))
        if not listing.is_delisted
    ]


async def market_named(session: ContractSession, name: str) -> ContractMarket:
    return next(market for market in await contract_markets(session, dex_of(name)) if market.name == name)


def reply_of(answer: Any) -> ActionReply:
    """An answer of `/exchange`; UnknownForm for any other form."""
    row = JsonRow(answer, "exchange")
    if not row.choice("status", {"ok": True, "err": False}):
        return ActionReply(refusal=row.text("response"))
    response = row.row("response")
    return ActionReply(tuple(response.row("data").items("statuses")) if response.has("data") else ())


def error_of(status: Any) -> str | None:
    """The text of a refused order."""
    return str(status["error"]) if isinstance(status, dict) and "error" in status else None


def status_of(answer: Any) -> str:
    row = JsonRow(answer, "orderStatus")
    if not row.choice("status", {"order": True, "unknownOid": False}):
        return "unknownOid"
    return row.row("order").text("status")
