"""The service, its prices and clock, and the daemon's key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

from bot.cli.start.doctor_checks.findings import DoctorFinding, Facts, Level
from bot.errors import BotError, ConfigError, Exit
from bot.number_text import duration_ms
from bot.words import many

if TYPE_CHECKING:
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client
    from bot.config import Settings
    from bot.wire.market import StatusResult

ASK_S: Final = 5.0
# least difference between the clocks of the service and of its prices for a warning
APART_MS: Final = 5_000


async def check_service(facts: Facts) -> AsyncIterator[DoctorFinding]:
    settings = facts.settings
    if settings is None:
        return
    from bot.client import Client
    from bot.client.http import Timeouts
    from bot.errors import ApiError

    reached = _address_and_key(facts, settings)
    if isinstance(reached, list):
        for finding in reached:
            yield finding
        return
    base_url, api_key, findings = reached
    for finding in findings:
        yield finding
    async with Client(base_url, api_key, timeouts=Timeouts(total=ASK_S)) as client:
        try:
            async for finding in _versions(client, base_url):
                yield finding
        except ApiError as error:
            yield DoctorFinding(
                "service",
                "fail",
                f"{base_url}: {error.message} ({error.code})",
                "check that the service runs and that account.base_url is right",
                int(Exit.TIMEOUT),
            )
            return
        facts.speed = client.clock.speed
        for finding in _skew(client):
            yield finding
        if api_key is None:
            return
        try:
            async for finding in _key(client, settings):
                yield finding
            async for finding in check_idempotency(client, settings):
                yield finding
        except ApiError as error:
            yield DoctorFinding(
                "key",
                "fail",
                f"{error.message} ({error.code})",
                "create a new key and store it where the config's account.api_key points",
                int(Exit.REFUSED),
            )


def _address_and_key(
    facts: Facts, settings: Settings
) -> tuple[str, str | None, list[DoctorFinding]] | list[DoctorFinding]:
    """The service's address, and the key if this user can read it.

    For an embedded service there is no key: a new one would replace the daemon's. Without an address: only findings.
    """
    from bot.cli.common.daemon_client import is_closed
    from bot.cli.operate.credentials import key_of
    from bot.cli.run.embedded_service import Embedded

    if not settings.account.embedded:
        try:
            assert facts.place.config is not None
            return settings.account.base_url, key_of(facts.place.config), []
        except ConfigError as error:
            return settings.account.base_url, None, [DoctorFinding("key", "skip", f"not checked: {error}")]
    if is_closed(facts.place.folder):
        return [DoctorFinding("service", "skip", "embedded: this user may not see whether it runs")]
    service = Embedded(facts.place.folder)
    base_url = service.base_url
    if not facts.place.folder.is_dir() or base_url is None or not service.is_alive():
        return list(_at_rest(service))
    return base_url, None, []


def _at_rest(service: Embedded) -> Iterator[DoctorFinding]:
    """Check whether an embedded service that does not run could be started."""
    from bot.runtime.journal import queries

    try:
        service.check_name()
    except BotError as error:
        yield DoctorFinding(
            "service", "fail", str(error), "set state_dir to a folder with a shorter path", int(error.exit_code)
        )
        return
    if queries.is_damaged(service.db):
        yield DoctorFinding(
            "service",
            "fail",
            f"{service.db} is damaged",
            "restore a copy of it, or set another state_dir: the service starts a new database there",
            int(Exit.CONFIG),
        )
        return
    yield DoctorFinding("service", "ok", "embedded: it starts with the daemon")


async def _versions(client: Client, base_url: str) -> AsyncIterator[DoctorFinding]:
    from bot.wire.headers import API_VERSION, LIMITS_VERSION

    status = await client.status()
    problems = []
    if status.api_version is not None and status.api_version != API_VERSION:
        problems.append(f"its API version is {status.api_version}, this client was made for {API_VERSION}")
    if status.limits_version is not None and status.limits_version != LIMITS_VERSION:
        problems.append(f"its limits version is {status.limits_version}, this client was made for {LIMITS_VERSION}")
    if status.api_version is None:
        problems.append("it does not report its API version")
    words = f"{base_url}: {status.status}, version {status.version or 'not reported'}"
    if problems:
        yield DoctorFinding(
            "service",
            "warn",
            f"{words}; {'; '.join(problems)}",
            "read its changelog (GET /v1/changelog) and test on its sandbox first",
        )
    else:
        yield DoctorFinding(
            "service", "ok", f"{words}, API {status.api_version}, limits version {status.limits_version}"
        )
    for finding in (*_prices(status), *_exchange(status)):
        yield finding


def _prices(status: StatusResult) -> Iterator[DoctorFinding]:
    """Check the source of the service's prices, if the service names one."""
    from bot.clock import iso

    prices = status.prices
    if prices is None:
        return
    network = (
        "check the network of this machine and the status page of the exchange; the service connects again by itself"
    )
    if not prices.connected:
        yield DoctorFinding(
            "prices",
            "warn",
            f"{prices.source} is not connected: {prices.trouble or 'it has sent no price yet'}",
            network,
        )
    closed = [market for market in prices.markets if not market.open]
    for market in closed:
        since = "" if market.since is None else f" since {iso(market.since)}"
        yield DoctorFinding("prices", "warn", f"{market.coin} opens no position{since}: {market.reason}", network)
    apart_ms = abs(prices.clock_difference_ms or 0)
    if apart_ms > APART_MS:
        yield DoctorFinding(
            "prices",
            "warn",
            f"the clocks of {prices.source} and of the service are {duration_ms(apart_ms)} apart",
            "set this machine's clock (timedatectl set-ntp true)",
        )
    if prices.connected and not closed:
        ages = [
            status.server_time - market.quoted_at
            for market in prices.markets
            if market.quoted_at and status.server_time
        ]
        oldest = f", oldest price {duration_ms(max(ages))}" if ages else ""
        refused = sum(sum(market.refused.values()) for market in prices.markets)
        how = f" by {prices.transport}" if prices.transport else ""
        yield DoctorFinding(
            "prices",
            "ok",
            f"{prices.source} is connected{how}: {many(len(prices.markets), 'market')}{oldest},"
            f" {many(refused, 'quote')} refused",
        )


def _exchange(status: StatusResult) -> Iterator[DoctorFinding]:
    """What is known of the account at an exchange, if the service follows one."""
    from bot.wire.exchange_facts import facts

    if status.exchange is None:
        return
    for fact in facts(status.exchange, status.server_time or 0):
        level: Level = "skip" if fact.level == "unknown" else fact.level
        yield DoctorFinding("exchange", level, f"{fact.name}: {fact.text}", fact.fix)


def _skew(client: Client) -> Iterator[DoctorFinding]:
    from bot.runtime.liveness.clock_watch import SKEW_STOP_MS, SKEW_WARN_MS

    skew = client.clock.skew_ms
    if skew is None:
        yield DoctorFinding(
            "clock",
            "warn",
            "the service sends no Date header, so the clock difference cannot be measured",
            "keep this machine's clock correct (NTP)",
        )
        return
    text = f"this machine's clock and the service's are {duration_ms(abs(skew))} apart"
    if abs(skew) > SKEW_STOP_MS:
        yield DoctorFinding(
            "clock",
            "fail",
            text,
            "set this machine's clock (timedatectl set-ntp true): bars and deadlines follow the service's clock",
        )
    elif abs(skew) > SKEW_WARN_MS:
        yield DoctorFinding("clock", "warn", text, "set this machine's clock (timedatectl set-ntp true)")
    else:
        yield DoctorFinding("clock", "ok", text)


async def _key(client: Client, settings: Settings) -> AsyncIterator[DoctorFinding]:
    limits = await client.limits()
    key = limits.key
    if key is None:
        yield DoctorFinding(
            "key",
            "warn",
            "this is the token of a person's sign-in, not an API key",
            "create an API key for the daemon: a sign-in expires",
        )
        return
    for check in (_scopes, _caps):
        for level, message, fix in check(key, settings):
            yield DoctorFinding("key", level, message, fix, int(Exit.REFUSED) if level == "fail" else 0)


def _scopes(key: Any, settings: Settings) -> Iterator[tuple[Level, str, str | None]]:
    from bot.checks.readiness_lines import missing_scopes

    missing = missing_scopes(key.scopes, settings)
    if missing:
        yield (
            "fail",
            f"{key.id} lacks {', '.join(missing)} (it has {', '.join(key.scopes) or 'nothing'})",
            "create a key with these scopes",
        )
    else:
        yield "ok", f"{key.id} has the scopes {', '.join(key.scopes)}", None
    if key.expires_at is not None:
        from bot.clock import iso

        yield (
            "warn",
            f"it expires at {iso(key.expires_at)}; the daemon warns from 14 days before it on",
            "replace it before that: without it the daemon can neither open positions nor send heartbeats",
        )


def _caps(key: Any, settings: Settings) -> Iterator[tuple[Level, str, str | None]]:
    allowed = key.allowed_coins
    for strategy in settings.strategies:
        barred = [coin for coin in strategy.markets if allowed is not None and coin not in allowed]
        if barred:
            yield (
                "fail",
                f"{strategy.name} trades {', '.join(barred)}, which the key does not allow",
                "allow these coins on the key, or remove them from the config",
            )
        if key.max_leverage is not None and strategy.max_leverage > key.max_leverage:
            yield (
                "warn",
                f"{strategy.name} may use {strategy.max_leverage}x, the key {key.max_leverage}x",
                "lower max_leverage in the config",
            )
    budget = sum(strategy.budget_usd for strategy in settings.strategies)
    if key.max_exposure_usd is not None and budget > key.max_exposure_usd:
        yield (
            "warn",
            f"the strategies' budgets are {budget} USD, the key's exposure at most {key.max_exposure_usd}",
            "lower the budgets, or raise the cap",
        )


async def check_idempotency(client: Client, settings: Settings) -> AsyncIterator[DoctorFinding]:
    """Check whether past trades show the idempotency key of their order. Sends no order to find out."""
    page = await client.trades(limit=50)
    ours = [trade for trade in page.trades if trade.source is not None]
    if any(trade.idempotency_key for trade in ours):
        yield DoctorFinding("idempotency", "ok", "trades show their keys, which settle orders in doubt")
    elif not ours:
        yield DoctorFinding(
            "idempotency",
            "ok",
            "no trade yet; until one shows its key, the single-use token of a plan settles orders in doubt",
        )
    elif settings.orders.path == "direct":
        yield DoctorFinding(
            "idempotency",
            "warn",
            "trades show no keys, and orders.path is direct",
            "set orders.path to plan: the single-use token of a plan then settles orders in doubt",
        )
    else:
        yield DoctorFinding(
            "idempotency",
            "ok",
            "trades show no keys; a plan's single-use token settles orders in doubt. Only the journal knows which"
            " trades are the daemon's: do not delete it",
        )
