"""Judges what an account needs before anything can trade it: network, clock, address, agent, mode, markets.

`read_checks` sends the requests; the functions that judge an answer are pure. Each result is one sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bot.clock import Clock, datetime_of
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.form import ACCOUNT_MODES, MAIN_DEX, URLS, dex_of
from bot.exchanges.protocol import AddressReport, AgentReport, MarketListing, UnknownForm
from bot.wire.exchange_facts import CLOCK_MAX_MS, CLOCK_SHOWN_MS, EXPIRY_WARN_MS
from bot.words import did_you_mean, many

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class AccountCheck:
    """The result of one check, in one sentence that says what to do about a warning or a failure."""

    check: str
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is checked. `agent`: the address of the agent's key, if a key was given."""

    network: str
    url: str
    agent: str | None
    markets: tuple[str, ...]


def judge_network(network: str, url: str) -> AccountCheck:
    """Whether the address of the server belongs to the network. The exchange's answers do not name their network."""
    other = next((name for name, known in URLS.items() if known == url.rstrip("/") and name != network), None)
    if other is not None:
        return AccountCheck("network", "fail", f"{url} is {other}, but --network says {network}; change one of them")
    if url.rstrip("/") == URLS[network]:
        return AccountCheck("network", "ok", f"{network} at {url}")
    message = f"{url} is taken for {network} as --network says; answers of the exchange do not name their network"
    return AccountCheck("network", "ok", message)


def clock_difference_ms(before_ms: int, after_ms: int, exchange_ms: int) -> int:
    """The least difference of the exchange's clock from ours, which was read before and after the request."""
    # Between these instants the difference is not known.
    return exchange_ms - after_ms if exchange_ms > after_ms else min(0, exchange_ms - before_ms)


def judge_clock(before_ms: int, after_ms: int, exchange_ms: int) -> AccountCheck:
    """The difference of the exchange's clock from ours, which was read before and after the request."""
    skew = clock_difference_ms(before_ms, after_ms, exchange_ms)
    side = "ahead of" if skew > 0 else "behind"
    text = f"the exchange's clock is {abs(skew) / 1000:,.1f} s {side} this machine's"
    if abs(skew) > CLOCK_MAX_MS:
        return AccountCheck("clock", "fail", f"{text}, and at most 30 s are safe; set this machine's clock by NTP")
    if abs(skew) > CLOCK_SHOWN_MS:
        return AccountCheck("clock", "warn", f"{text}; set this machine's clock by NTP")
    return AccountCheck("clock", "ok", f"the clocks differ by less than {CLOCK_SHOWN_MS // 1000} s")


def judge_address(address: str, report: AddressReport, network: str) -> AccountCheck:
    """Whether an address is an account of its own on this network."""
    if report.role == "account":
        return AccountCheck("address", "ok", f"{address} is an account")
    if report.role == "agent":
        why = f"is an agent's address; give the address of its account, {report.master}"
    elif report.role == "sub_account":
        why = f"is a sub-account of {report.master}, and sub-accounts are not supported; give an account's address"
    elif report.role == "vault":
        why = "is a vault, and vaults are not supported; give an account's address"
    else:
        why = f"is not known on {network}: nothing was deposited there, or it is used on the other network"
    return AccountCheck("address", "fail", f"{address} {why}")


def judge_agent(
    address: str, agent: str, report: AddressReport, named: Sequence[AgentReport], network: str, now_ms: int
) -> AccountCheck:
    """Whether a key may act for the address, and until when."""

    def result(level: Level, message: str) -> AccountCheck:
        return AccountCheck("agent", level, f"{agent} {message}")

    if agent == address:
        return result("fail", "is the account itself: its key can withdraw; approve an agent and give the agent's key")
    if report.role == "unknown":
        return result(
            "fail",
            f"is no agent on {network}: it has expired, was revoked or replaced, was never approved, or belongs to the "
            "other network; approve a new agent",
        )
    if report.role != "agent":
        return result("fail", "is an account and no agent: its key can withdraw; approve an agent and give its key")
    if report.master != address:
        return result("fail", f"is an agent of {report.master}, not of {address}; give that address or another key")
    own = next((candidate for candidate in named if candidate.address == agent), None)
    if own is None:
        return result(
            "warn", "is this account's agent without a name, whose expiry the exchange does not list; name it"
        )
    if own.valid_until_ms is None:
        return result("ok", f"is this account's agent {own.name!r}, without an end")
    until = datetime_of(own.valid_until_ms).strftime("%Y-%m-%d %H:%M UTC")
    if own.valid_until_ms <= now_ms:
        return result("fail", f"is this account's agent {own.name!r}, but expired on {until}; approve a new agent")
    if own.valid_until_ms - now_ms < EXPIRY_WARN_MS:
        return result("warn", f"is this account's agent {own.name!r} and expires on {until}; approve a new agent soon")
    return result("ok", f"is this account's agent {own.name!r} until {until}")


def judge_mode(mode: str, network: str) -> AccountCheck:
    """Whether the totals of the account can be compared with what it trades."""
    called = ACCOUNT_MODES[mode]
    if mode == "disabled":
        return AccountCheck("mode", "ok", "the account is in standard mode")
    if mode == "default":
        text = "the account is in default mode, and the exchange does not document which mode that is"
        return AccountCheck("mode", "warn", f"{text}; choose standard mode on the exchange's page")
    text = f"the account is in {called} mode, in which its totals cannot be proved"
    level: Level = "fail" if network == "mainnet" else "warn"
    return AccountCheck("mode", level, f"{text}; choose standard mode on the exchange's page")


def judge_markets(wanted: Sequence[str], listed: Sequence[MarketListing]) -> AccountCheck:
    """Whether each wanted market is listed and can be traded."""
    by_name = {listing.market: listing for listing in listed}
    for name in wanted:
        if name not in by_name:
            hint = did_you_mean(name, list(by_name))
            return AccountCheck(
                "markets", "fail", f"{name} is not listed{hint or '; `meta` of the exchange names all'}"
            )
        if by_name[name].is_delisted:
            return AccountCheck("markets", "fail", f"{name} is delisted; choose another market")
    live = sum(not listing.is_delisted for listing in listed)
    names = f", {', '.join(wanted)} among them" if wanted else ""
    return AccountCheck("markets", "ok", f"{many(live, 'market')} listed{names}")


async def read_checks(account: HyperliquidAccount, request: CheckRequest, clock: Clock) -> list[AccountCheck]:
    """All checks in order. NoAnswer if the exchange gives none; an answer in an unknown form fails its check alone."""
    network = judge_network(request.network, request.url)
    if network.level == "fail":
        return [network]

    async def clock_check() -> AccountCheck:
        markets = await account.listings()
        live = next((market.market for market in markets if not market.is_delisted), None)
        if live is None:
            return AccountCheck("clock", "fail", f"{request.url} lists no market, so its clock cannot be read")
        before_ms = clock.now_ms()
        exchange_ms = await account.exchange_ms(live)
        return judge_clock(before_ms, clock.now_ms(), exchange_ms)

    async def address_check() -> AccountCheck:
        return judge_address(account.address, await account.address_report(account.address), request.network)

    async def agent_check() -> AccountCheck:
        if request.agent is None:
            return AccountCheck("agent", "warn", "no key was checked; give --agent-key-file to check one")
        report = await account.address_report(request.agent)
        named = await account.agents()
        return judge_agent(account.address, request.agent, report, named, request.network, clock.now_ms())

    async def mode_check() -> AccountCheck:
        # The exchange names a mode for any address, whether there is an account or not.
        if (await account.address_report(account.address)).role != "account":
            return AccountCheck("mode", "warn", "not known, because the address is no account; mend the address first")
        return judge_mode(await account.mode(), request.network)

    async def markets_check() -> AccountCheck:
        listed = await account.listings()
        wanted = {dex_of(name) for name in request.markets} - {MAIN_DEX}
        known = await account.dex_names() if wanted else []
        for dex in sorted(wanted.intersection(known)):
            listed += await account.listings(dex)
        return judge_markets(request.markets, listed)

    steps = {
        "clock": clock_check,
        "address": address_check,
        "agent": agent_check,
        "mode": mode_check,
        "markets": markets_check,
    }
    return [network, *[await _safely(name, step) for name, step in steps.items()]]


async def _safely(name: str, step: Callable[[], Awaitable[AccountCheck]]) -> AccountCheck:
    try:
        return await step()
    except UnknownForm as error:
        return AccountCheck(name, "fail", str(error))
