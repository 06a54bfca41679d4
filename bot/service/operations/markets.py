"""Operations that need no credential: markets, candles, the order book, first steps, the status of the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bot.money import format_e8
from bot.service.bodies import account_bodies
from bot.service.bodies.responses import ServiceAnswer
from bot.service.operations.accounts import AccountOperations
from bot.service.operations.executor import Context
from bot.venue.model.state import VenueMarket
from bot.venue.prices.book import book
from bot.wire.headers import API_VERSION, DESCRIPTION_VERSION, LIMITS_VERSION
from bot.wire.queries import CandlesQuery, MarketsQuery

# how long a settled event market stays in the lists
LISTED_AFTER_MS: Final = 86_400_000


class MarketOperations(AccountOperations):
    """The public reads. `live_body`: the state of live prices, in a service that has them."""

    live_body: Callable[[], dict[str, Any]] | None = None
    # the state of the exchange link, in a service that follows an account at an exchange
    exchange_body: Callable[[], dict[str, Any]] | None = None

    def markets(self, query: MarketsQuery) -> ServiceAnswer:
        """GET /v1/markets."""
        now = self.refresh()
        state, feed = self.machine.state, self.machine.feed
        wanted = query.query.strip().lower()
        bodies = [
            account_bodies.market(state, market, feed.store(coin), now)
            for coin, market in state.markets.items()
            if not _is_over(market, now, wanted)
            and query.asset_class in ("all", market.spec.asset_class)
            and (not wanted or wanted in coin.lower() or wanted in market.spec.name.lower())
        ]
        if query.view == "all":
            bodies.sort(key=lambda body: str(body["coin"]))
        elif query.view == "trending":
            bodies.sort(key=lambda body: -float(body["volume24hUsd"]))
        else:
            bodies = [body for body in bodies if body["status"] == "open"]
            bodies.sort(key=lambda body: -self._opportunity(body, now))
        return ServiceAnswer.ok({"markets": bodies[: query.limit]})

    def _opportunity(self, body: dict[str, Any], now: int) -> float:
        """The price range of the last 24 hours divided by the spread."""
        day = self.machine.feed.store(body["coin"]).day(now)
        if day is None:
            return 0.0
        _, high, low, _ = day
        mid = self.machine.state.markets[body["coin"]].mid
        return (high - low) / mid * 10_000 / max(float(body["spreadBps"] or 0), 0.01)

    def candles(self, market: str, query: CandlesQuery) -> ServiceAnswer:
        """GET /v1/markets/{coin}/candles."""
        now = self.refresh()
        coin = self.coin(market)
        page = self.machine.feed.store(coin).page(query.interval, query.limit, now)
        return ServiceAnswer.ok(
            {
                "coin": coin,
                "interval": query.interval,
                "candles": [
                    {
                        "ts": candle.ts,
                        "open": format_e8(candle.open),
                        "high": format_e8(candle.high),
                        "low": format_e8(candle.low),
                        "close": format_e8(candle.close),
                        "volume": format_e8(candle.volume),
                        "closed": closed,
                    }
                    for candle, closed in page
                ],
            }
        )

    def book(self, market: str) -> ServiceAnswer:
        """GET /v1/markets/{coin}/book."""
        now = self.refresh()
        coin = self.coin(market)
        listed = self.machine.state.markets[coin]
        bids, asks = book(listed)
        bid, ask = (bids[0][0] if bids else None), (asks[0][0] if asks else None)
        return ServiceAnswer.ok(
            {
                "coin": coin,
                "bids": [{"px": format_e8(px), "sz": format_e8(size)} for px, size in bids],
                "asks": [{"px": format_e8(px), "sz": format_e8(size)} for px, size in asks],
                "spreadBps": account_bodies.spread_bps(bid, ask, listed.mid),
                "midPx": None if listed.status == "settled" else format_e8(listed.mid),
                "ts": now,
            }
        )

    def start(self) -> ServiceAnswer:
        """GET /v1/start."""
        order = {
            "market": "perp:BTC",
            "side": "long",
            "usdAmount": 100,
            "requireProtection": True,
            "bracket": {"stopLoss": {"pct": 2}, "takeProfit": {"r": 2}},
            "dryRun": True,
        }
        dead_man = {"type": "dead_man_switch", "heartbeatSeconds": 300, "onMiss": "flatten"}
        steps = [
            (
                "Open an account",
                "POST",
                "/v1/sandbox/accounts",
                "none",
                {"name": "my bot"},
                "The API key is shown once.",
            ),
            ("Look around", "GET", "/v1/markets", "none", None, "Coins, prices, sizes and leverage."),
            ("Arm a dead-man switch", "POST", "/v1/guardians", "bearer", dead_man, "Acts when heartbeats stop."),
            ("Beat", "POST", "/v1/heartbeat", "bearer", None, "Before nextDeadline, again and again."),
            ("Plan an order", "POST", "/v1/orders", "bearer", order, "A dry run answers a plan and a confirmToken."),
            (
                "Confirm it",
                "POST",
                "/v1/orders/confirm",
                "bearer",
                {"confirmToken": "<confirmToken>"},
                "The token works once.",
            ),
            ("Follow", "GET", "/v1/events", "bearer", None, "From the lastEventId of GET /v1/account on."),
        ]
        return ServiceAnswer.ok(
            {
                "name": "Bracketbot sandbox",
                "environment": "sandbox",
                "steps": [
                    {"n": n, "title": title, "method": method, "path": path, "auth": auth, "body": body, "note": note}
                    for n, (title, method, path, auth, body, note) in enumerate(steps, start=1)
                ],
                "apis": self.apis(),
                "creditPolicy": {"grantedUsd": "10000", "expiresAt": None, "policy": "sandbox"},
                "scopes": ["read", "trade", "trade:close_only", "outcomes"],
                "docs": self.docs,
            }
        )

    def status(self, context: Context) -> ServiceAnswer:
        """GET /v1/system/status."""
        now = self.refresh()
        clock = self.machine.clock
        speed = int(clock.speed) if clock.speed == int(clock.speed) else clock.speed
        closed = [
            coin
            for coin, listed in self.machine.state.markets.items()
            if listed.spec.expires_ms is None and self.machine.feed.has_ended(coin)
        ]
        prices = None if self.live_body is None else self.live_body()
        if prices is not None:
            closed += [market["coin"] for market in prices["markets"] if not market["open"]]
        return ServiceAnswer.ok(
            {
                "status": "degraded" if closed else "ok",
                "environment": "sandbox",
                "version": DESCRIPTION_VERSION,
                "apiVersion": API_VERSION,
                "limitsVersion": LIMITS_VERSION,
                "serverTime": now,
                "clock": {"mode": clock.mode, "speed": speed},
                "limits": {"platform": self.platform(), "rate": self.rate_limits.records(None, context.ip)},
                **({} if prices is None else {"prices": prices}),
                **({} if self.exchange_body is None else {"exchange": self.exchange_body()}),
            }
        )


def _is_over(market: VenueMarket, now: int, wanted: str) -> bool:
    """True if the market was settled too long ago for the lists. A search for its full name still finds it."""
    expires_ms = market.spec.expires_ms
    return expires_ms is not None and now - expires_ms > LISTED_AFTER_MS and wanted != market.spec.coin.lower()
