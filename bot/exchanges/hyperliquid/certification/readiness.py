"""Whether a certification may begin: what it needs, what it may cost, and what stands in its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from bot.clock import Clock
from bot.exchanges.hyperliquid.account import HyperliquidAccount
from bot.exchanges.hyperliquid.certification.assumptions import ASSUMPTIONS
from bot.exchanges.hyperliquid.certification.contract import SCENARIOS
from bot.exchanges.hyperliquid.certification.scenario import Scenario
from bot.exchanges.hyperliquid.checks import CheckRequest, read_checks
from bot.exchanges.hyperliquid.form import MAIN_DEX
from bot.money import format_e8
from bot.words import did_you_mean, many

NEEDED_USD: Final = 50
TAKER_RATE: Final = Decimal("0.00045")


@dataclass(frozen=True, slots=True)
class CertificationPlan:
    """What a run does at most."""

    scenarios: tuple[Scenario, ...]

    @property
    def actions(self) -> int:
        return sum(scenario.actions for scenario in self.scenarios)

    @property
    def minutes(self) -> int:
        return -(-sum(scenario.seconds for scenario in self.scenarios) // 60)

    @property
    def turnover_usd(self) -> int:
        return sum(scenario.turnover_usd for scenario in self.scenarios)

    @property
    def fees_usd(self) -> Decimal:
        return (self.turnover_usd * TAKER_RATE).quantize(Decimal("0.01"))


def plan_of(only: Sequence[str], *, has_long: bool) -> CertificationPlan:
    """The scenarios that show these assumptions; without a name all but the long ones. ValueError for a wrong name."""
    known = [assumption.name for assumption in ASSUMPTIONS]
    for name in only:
        if name not in known:
            raise ValueError(
                f"{name!r} is no assumption{did_you_mean(name, known) or '; there are ' + ', '.join(known)}"
            )
    if only:
        return CertificationPlan(tuple(scenario for scenario in SCENARIOS if set(scenario.shows) & set(only)))
    return CertificationPlan(tuple(scenario for scenario in SCENARIOS if has_long or not scenario.is_long))


async def account_faults(account: HyperliquidAccount, request: CheckRequest, clock: Clock) -> list[str]:
    """Why nothing may be sent for this account: a failed check, or a clock that is off."""
    checks = await read_checks(account, request, clock)
    return [
        check.message for check in checks if check.level == "fail" or (check.check, check.level) == ("clock", "warn")
    ]


async def open_things(account: HyperliquidAccount) -> list[str]:
    """Open orders and positions of the account, in every dex."""
    things = []
    for dex in (MAIN_DEX, *await account.dex_names()):
        things += [
            f"an open order in {order.market} at {format_e8(order.px)}" for order in await account.open_orders(dex)
        ]
        things += [
            f"a position of {format_e8(position.signed_size)} in {position.market}"
            for position in (await account.standing(dex)).positions
        ]
    return things


async def money_faults(account: HyperliquidAccount, plan: CertificationPlan) -> list[str]:
    """What the account lacks for this plan."""
    faults = []
    value = (await account.standing()).value
    if value < NEEDED_USD * 10**8:
        faults.append(
            f"the account has {format_e8(value)} USD for perpetual markets, and {NEEDED_USD} are needed; deposit more"
        )
    budget = await account.budget()
    if budget.most - budget.used < plan.actions:
        left = many(max(0, budget.most - budget.used), "action")
        faults.append(
            f"{left} are left of the account's budget, and {plan.actions} are needed; trade more volume first"
        )
    return faults
