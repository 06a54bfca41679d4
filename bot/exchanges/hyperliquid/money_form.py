"""Funding and ledger rows of an account, from the wire form to neutral values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from bot.exchanges.hyperliquid.form import MAIN_DEX, dex_of
from bot.exchanges.hyperliquid.json_rows import JsonRow, rows_of, unknown
from bot.exchanges.protocol import FundingReport, LiquidationReport, TransferKind, TransferReport

RATE_SCALE: Final = 10**12
SPOT: Final = "spot"
LedgerReport = TransferReport | LiquidationReport

# Rows of a plain amount in `usdc` for the main dex: the kind, and the sign.
PLAIN: Final[Mapping[str, tuple[TransferKind, int]]] = {
    "deposit": ("deposit", 1),
    "vaultCreate": ("vault", -1),
    "vaultDeposit": ("vault", -1),
    "vaultDistribution": ("vault", 1),
    "vaultLeaderCommission": ("vault", 1),
}
# Rows between a payer `user` and a receiver `destination`; the payer pays the fee too.
BETWEEN_TWO: Final = ("internalTransfer", "subAccountTransfer")
# Rows that concern only spot balances, staking or gas.
ELSEWHERE: Final = ("spotTransfer", "spotGenesis", "deployGasAuction", "cStakingTransfer")
# Where the money arrives is not documented, so only the next standing tells.
UNKNOWN_AMOUNT: Final[Mapping[str, TransferKind]] = {"rewardsClaim": "reward"}


def fundings(answer: Any, where: str = "userFunding") -> list[FundingReport]:
    """Payments of `userFunding`, whose fields stand in `delta`, or of the channel, which has them flat."""
    return [_funding(row) for row in rows_of(answer, where)]


def _funding(row: JsonRow) -> FundingReport:
    told = row.row("delta") if row.has("delta") else row
    rate = told.decimal("fundingRate") * RATE_SCALE
    if rate != rate.to_integral_value():
        raise unknown(f"{told.where}.fundingRate", "a decimal with at most 12 decimals", told.text("fundingRate"))
    return FundingReport(
        market=told.text("coin"),
        at_ms=row.instant("time"),
        amount=told.amount("usdc"),
        rate=int(rate),
        signed_size=told.amount("szi"),
    )


def ledger(answer: Any, user: str, where: str = "userNonFundingLedgerUpdates") -> list[LedgerReport]:
    """What the rows of the ledger did to the cash of this user in each dex. One row may concern two dexs, or none."""
    return [report for row in rows_of(answer, where) for report in _ledger(row, user)]


def _ledger(row: JsonRow, user: str) -> Iterator[LedgerReport]:
    delta, at_ms = row.row("delta"), row.instant("time")
    kind, name = delta.text("type"), _name_of(row)
    if kind in ELSEWHERE:
        return
    if kind == "liquidation":
        yield _liquidation(delta, name, at_ms)
    elif kind in PLAIN:
        neutral, sign = PLAIN[kind]
        yield TransferReport(name, at_ms, neutral, sign * delta.size("usdc"))
    elif kind == "withdraw":
        yield TransferReport(name, at_ms, "withdrawal", -delta.size("usdc") - _fee(delta))
    elif kind == "vaultWithdraw":
        yield TransferReport(name, at_ms, "vault", delta.size("netWithdrawnUsd"))
    elif kind == "accountClassTransfer":
        amount = delta.size("usdc")
        yield TransferReport(name, at_ms, "transfer", amount if delta.flag("toPerp") else -amount)
    elif kind in BETWEEN_TWO:
        moved: dict[str, int] = {}
        _pay(moved, delta, user, MAIN_DEX, -delta.size("usdc") - _fee(delta), who="user")
        _pay(moved, delta, user, MAIN_DEX, delta.size("usdc"), who="destination")
        yield from _moves(moved, delta, name, at_ms)
    elif kind == "send":
        yield from _moves(_sent(delta, user), delta, name, at_ms)
    else:
        yield TransferReport(name, at_ms, UNKNOWN_AMOUNT.get(kind, "unknown"), None)


def _name_of(row: JsonRow) -> str:
    """A name that all copies of a row share. A transaction has one row of each type and amount for a user."""
    delta = row.row("delta")
    amount = next((delta.amount(field) for field in ("usdc", "amount") if delta.has(field)), 0)
    parts = (row.instant("time"), row.text("hash"), delta.text("type"), amount)
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _fee(delta: JsonRow) -> int:
    """A fee in USDC that is taken besides the amount."""
    is_in_usdc = not delta.has("feeToken") or delta.text("feeToken") in ("", "USDC")
    return delta.size("fee") if delta.has("fee") and is_in_usdc else 0


def _pay(moved: dict[str, int], delta: JsonRow, user: str, dex: str, amount: int, *, who: str) -> None:
    if delta.text(who).lower() == user:
        moved[dex] = moved.get(dex, 0) + amount


def _sent(delta: JsonRow, user: str) -> dict[str, int]:
    """The changes of a `send` by dex. The spot balance is none of them."""
    source, target, amount = delta.text("sourceDex"), delta.text("destinationDex"), delta.size("amount")
    moved: dict[str, int] = {}
    if source != SPOT:
        _pay(moved, delta, user, source, -amount - _fee(delta), who="user")
    if target != SPOT:
        _pay(moved, delta, user, target, amount, who="destination")
    return moved


def _moves(moved: Mapping[str, int], delta: JsonRow, name: str, at_ms: int) -> Iterator[TransferReport]:
    is_own = delta.text("user").lower() == delta.text("destination").lower()
    for dex, amount in moved.items():
        if amount:
            yield TransferReport(f"{name}/{dex}", at_ms, "transfer" if is_own else "send", amount, dex)


def _liquidation(delta: JsonRow, name: str, at_ms: int) -> LiquidationReport:
    positions = tuple((row.text("coin"), row.amount("szi")) for row in delta.rows("liquidatedPositions"))
    dexes = {dex_of(market) for market, _ in positions}
    if len(dexes) > 1:
        raise unknown(f"{delta.where}.liquidatedPositions", "positions of one dex", sorted(dexes))
    is_isolated = delta.choice("leverageType", {"Isolated": True, "Cross": False})
    return LiquidationReport(name, at_ms, next(iter(dexes), MAIN_DEX), is_isolated, positions)
