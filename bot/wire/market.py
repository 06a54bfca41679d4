"""Answers that need no credential: markets, candles, order book, start, status, changelog, countries, agent.json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from bot.wire.base import AbsentNone, Amount, Num, Resource
from bot.wire.limits import Apis, Credit, Platform, RateResource
from bot.wire.resources import Market


class MarketsResult(Resource):
    markets: tuple[Market, ...] = ()


class Candle(Resource):
    """One candle. `ts` is its open time. `closed` is False while the bar is running."""

    ts: int
    open: Amount
    high: Amount
    low: Amount
    close: Amount
    volume: Amount
    closed: bool = True


class CandlesResult(Resource):
    """Candles, oldest first. The last one is the running bar."""

    coin: str
    interval: str
    candles: tuple[Candle, ...] = ()


class Level(Resource):
    px: Amount
    sz: Amount


class BookResult(Resource):
    """At most 20 levels on each side, best price first."""

    coin: str
    bids: tuple[Level, ...] = ()
    asks: tuple[Level, ...] = ()
    spread_bps: Num | None = None
    mid_px: Amount | None = None
    ts: int | None = None


class StartStep(Resource):
    n: int
    title: str
    method: str
    path: str
    auth: str
    body: dict[str, Any] | None = None
    note: str


class StartResult(Resource):
    name: str
    environment: str
    steps: tuple[StartStep, ...] = ()
    apis: Apis
    credit_policy: Credit
    scopes: tuple[str, ...] = ()
    docs: str | None = None


class ChangelogEntry(Resource):
    version: str
    date: str
    limits_version: int
    changes: tuple[str, ...] = ()


class ChangelogResult(Resource):
    current_version: str
    limits_version: int
    entries: tuple[ChangelogEntry, ...] = ()


class Country(Resource):
    code: str
    name: str
    calling_code: str


class CountriesResult(Resource):
    countries: tuple[Country, ...] = ()


class StatusClock(Resource):
    mode: str
    speed: Num


class StatusLimits(Resource):
    platform: Platform
    rate: tuple[RateResource, ...] = ()


class PriceJump(Resource):
    """A move of more than 5 % from one price to the next that a second witness, or time, has confirmed.

    `at`: when it became a price.
    """

    from_px: Amount
    to_px: Amount
    at: int


class LivePriceMarket(Resource):
    """A market with live prices. `since`: since when it accepts no new position. `marked_at`, `depth_at`, `funding_at`:
    when the source last gave them. `refused`: quotes and marks that were not used, by reason. `jump`: the newest jump
    of its price or mark that was used.
    """

    coin: str
    symbol: str
    open: bool
    reason: str | None = None
    since: int | None = None
    quoted_at: int | None = None
    marked_at: int | None = None
    depth_at: int | None = None
    funding_at: int | None = None
    refused: dict[str, int] = Field(default_factory=dict)
    jump: PriceJump | None = None
    # absent if there is only one
    source: str | None = AbsentNone


class PriceSourceStatus(Resource):
    """One of several sources of live prices."""

    source: str
    connected: bool
    trouble: str | None = None
    sessions: int = 0
    transport: str | None = None
    clock_difference_ms: int | None = None
    missing: dict[str, str] = Field(default_factory=dict)


class LivePriceStatus(Resource):
    """The source of live prices. `trouble`: why its last connection ended. `transport`: how the quotes come, websocket
    or polling. `clock_difference_ms`: the source's clock less the service's. `missing`: marks, depth or funding that
    the source fails to give, and why.
    """

    source: str
    connected: bool
    trouble: str | None = None
    sessions: int = 0
    transport: str | None = None
    clock_difference_ms: int | None = None
    missing: dict[str, str] = Field(default_factory=dict)
    markets: tuple[LivePriceMarket, ...] = ()
    # Each of several sources, else absent. Then the fields above are those of all: connected if all are, the first
    # trouble, the sum of sessions.
    sources: tuple[PriceSourceStatus, ...] = Field(default=(), exclude_if=lambda value: not value)


class ExchangeLinkStatus(Resource):
    """The account at an exchange that the service follows. `link`: away, behind or in_step, `since` when and for which
    `reason`. What is null is not known.

    `waiting_fills`: fills that the service cannot book yet because one before them is missing. `differences`: what the
    books of the service have otherwise than the exchange. `clock_difference_ms`: the exchange's clock less ours.
    `request_weight`: what the requests of the last minute count in the exchange's limit. `agent_read_at`: when the
    exchange was last asked about the agent; then `agent_until` null means that it lists no end. `agent_fault`: why
    nothing can be sent. `actions_left`: of the exchange's budget. `actions_undecided`: sent, and not known yet what
    became of them. `audit_differences`: what the last comparison of the books has named, at `audited_at`;
    `audit_trouble`: why no later one has ended. `blocked_markets`: entries are refused there because of it.
    """

    name: str
    network: str
    address: str
    account_id: str | None = None
    link: str
    since: int | None = None
    reason: str | None = None
    sessions: int = 0
    waiting_fills: int = 0
    clock_difference_ms: int | None = None
    request_weight: int | None = None
    differences: tuple[str, ...] = ()
    has_agent_key: bool = False
    agent: str | None = None
    agent_name: str | None = None
    agent_until: int | None = None
    agent_read_at: int | None = None
    agent_fault: str | None = None
    actions_left: int | None = None
    actions_undecided: int | None = None
    oldest_undecided_at: int | None = None
    audited_at: int | None = None
    audit_differences: tuple[str, ...] | None = None
    audit_trouble: str | None = None
    blocked_markets: tuple[str, ...] = ()


class StatusResult(Resource):
    """Answer of GET /v1/system/status."""

    status: str
    environment: str | None = None
    version: str | None = None
    api_version: str | None = None
    limits_version: int | None = None
    server_time: int | None = None
    clock: StatusClock | None = None
    limits: StatusLimits | None = None
    # absent without live prices
    prices: LivePriceStatus | None = Field(default=None, exclude_if=lambda value: value is None)
    # absent if the service follows no account at an exchange
    exchange: ExchangeLinkStatus | None = Field(default=None, exclude_if=lambda value: value is None)


class AgentDocument(Resource):
    """The document /agent.json."""

    name: str
    description: str
    version: str
    api_version: str
    environment: str
    base_url: str
    mcp: str
    openapi: str
    docs: str
    auth: tuple[str, ...] = Field(default=())
    scopes: tuple[str, ...] = Field(default=())
