"""Actions that move USD: between addresses, dexs, spot and sub-accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bot.local_exchange.engine import admission, margins
from bot.local_exchange.engine.admission import tell_ledger
from bot.local_exchange.engine.records import ExchangeRefusal
from bot.local_exchange.engine.state import Exchange, User, account_id, account_of, user_of
from bot.local_exchange.engine.venue_rules import MICRO
from bot.local_exchange.wire import rows, signatures
from bot.money import parse_e8

Json = dict[str, Any]

DEFAULT: Final[Json] = {"type": "default"}
NO_BALANCE: Final = ExchangeRefusal("Insufficient balance for withdrawal")
NO_TOKENS: Final = ExchangeRefusal("Insufficient balance for token transfer")
BAD_AMOUNT: Final = ExchangeRefusal("Invalid amount.")


def debit(exchange: Exchange, user: User, dex: str, amount: int) -> bool:
    """Take money out of a dex if it is free there."""
    if amount < 0 or margins.free_of(exchange, user, dex) < amount:
        return False
    account_of(exchange, user.address, dex).balance -= amount
    exchange.raw[account_id(user.address, dex)].add("transfer", -amount)
    return True


def _amount(text: Any) -> int | None:
    """A positive sum with at most six decimals."""
    try:
        value = parse_e8(str(text))
    except ValueError:
        return None
    return value if value > 0 and value % MICRO == 0 else None


def usd_send(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    amount, destination = _amount(action["amount"]), str(action["destination"]).lower()
    if amount is None or not signatures.ADDRESS.fullmatch(destination):
        return BAD_AMOUNT
    if not debit(exchange, user, "", amount):
        return NO_BALANCE
    admission.deposit(exchange, destination, amount, cause="transfer")
    delta = {"usdc": rows.usd(amount), "user": user.address, "destination": destination, "fee": "0.0"}
    for address in (user.address, destination):
        tell_ledger(exchange, address, {"type": "internalTransfer", **delta})
    return DEFAULT


def withdraw(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    amount = _amount(action["amount"])
    if amount is None:
        return BAD_AMOUNT
    if not debit(exchange, user, "", amount):
        return NO_BALANCE
    tell_ledger(
        exchange, user.address, {"type": "withdraw", "usdc": rows.usd(amount), "nonce": action["time"], "fee": "0.0"}
    )
    return DEFAULT


def class_transfer(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    """Between spot and perps. A sub-account is named in the amount."""
    amount = _amount(str(action["amount"]).partition(" ")[0])
    if amount is None:
        return BAD_AMOUNT
    if action["toPerp"]:
        if user.spot_usd < amount:
            return NO_TOKENS
        user.spot_usd -= amount
        admission.deposit(exchange, user.address, amount, cause="transfer")
    elif debit(exchange, user, "", amount):
        user.spot_usd += amount
    else:
        return NO_BALANCE
    delta = {"type": "accountClassTransfer", "usdc": rows.usd(amount), "toPerp": action["toPerp"]}
    tell_ledger(exchange, user.address, delta)
    return DEFAULT


def send_asset(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    """USDC between dexs, spot and addresses. The main dex is "", spot is "spot"."""
    amount, destination = _amount(action["amount"]), str(action["destination"]).lower()
    places = {dex.name for dex in exchange.dexes} | {"spot"}
    source, target = action["sourceDex"], action["destinationDex"]
    if amount is None or source not in places or target not in places or not signatures.ADDRESS.fullmatch(destination):
        return BAD_AMOUNT
    if source == "spot":
        if user.spot_usd < amount:
            return NO_TOKENS
        user.spot_usd -= amount
    elif not debit(exchange, user, source, amount):
        return NO_TOKENS
    where = "" if target == "spot" else target
    admission.deposit(exchange, destination, amount, dex=where, spot=target == "spot", cause="transfer")
    delta = {
        "type": "send",
        "user": user.address,
        "destination": destination,
        "sourceDex": source,
        "destinationDex": target,
        "token": rows.COLLATERAL,
        "amount": rows.usd(amount),
        "usdcValue": rows.usd(amount),
        "fee": "0.0",
    }
    for address in dict.fromkeys((user.address, destination)):
        tell_ledger(exchange, address, delta)
    return DEFAULT


def create_sub_account(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    number = sum(sub.master == user.address for sub in exchange.users.values()) + 1
    address = "0x" + signatures.connection_id({"sub": user.address}, number, None, None).hex()[:40]
    sub = user_of(exchange, address)
    sub.master, sub.name = user.address, action["name"]
    return {"type": "createSubAccount", "data": address}


def sub_account_transfer(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    sub = exchange.users.get(action["subAccountUser"].lower())
    if sub is None or sub.master != user.address:
        return ExchangeRefusal(f"Vault not registered: {action['subAccountUser'].lower()}")
    source, target = (user, sub) if action["isDeposit"] else (sub, user)
    if not debit(exchange, source, "", action["usd"] * MICRO):
        return NO_BALANCE
    admission.deposit(exchange, target.address, action["usd"] * MICRO, cause="transfer")
    delta = {"usdc": rows.usd(action["usd"] * MICRO), "user": source.address, "destination": target.address}
    for address in (source.address, target.address):
        tell_ledger(exchange, address, {"type": "subAccountTransfer", **delta})
    return DEFAULT
