"""From a request of `/exchange` to its answer: who signed it, may it act, and what the engine says in the exchange's
form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.clock import DAY_MS, SECOND_MS
from bot.local_exchange.engine import admission, margins, orders
from bot.local_exchange.engine.records import ExchangeRefusal, Filled, Outcome, Resting
from bot.local_exchange.engine.state import Exchange, User
from bot.local_exchange.engine.venue_rules import E8, MICRO
from bot.local_exchange.wire import actions, rows, signatures, transfers
from bot.local_exchange.wire.actions import Malformed
from bot.money import parse_e8

Json = dict[str, Any]

UNRECOVERABLE: Final = ExchangeRefusal("Unable to recover signer.")
OTHER_NETWORK: Final = ExchangeRefusal("Mainnet and testnet require different signature.")
NONCE_MISMATCH: Final = ExchangeRefusal("Nonce mismatch.")
BAD_ASSET: Final = ExchangeRefusal("Order has invalid asset.")
ENVELOPE: Final = frozenset({"action", "nonce", "signature", "vaultAddress", "expiresAfter"})
# volume that scheduleCancel needs
GATE_USD: Final = 1_000_000
SCHEDULE_AHEAD_MS: Final = 5 * SECOND_MS
SCHEDULES_A_DAY: Final = 10
# USD of one request that reserveRequestWeight buys
WEIGHT_PRICE: Final = E8 // 2_000


class Signed(NamedTuple):
    """A request whose signer is known. `hint` explains to the developer, in the log, why the signer may be wrong."""

    signer: str
    action: Json
    nonce: int
    vault: str | None
    expires_ms: int | None
    refused: ExchangeRefusal | None = None
    hint: str = ""


class WireAnswer(NamedTuple):
    """The body of the answer. `took_nonce`: the state may have changed."""

    body: Json
    took_nonce: bool
    hint: str = ""


def read(exchange: Exchange, body: Any) -> Signed:
    """Parse a request and recover its signer. Malformed if its JSON has another shape."""
    if not isinstance(body, dict):
        raise Malformed("request: expected an object")
    if unknown := [name for name in body if name not in ENVELOPE]:
        raise Malformed(f"request: unknown field `{unknown[0]}`")
    for name in ("action", "nonce", "signature"):
        if name not in body:
            raise Malformed(f"request: missing field `{name}`")
    nonce = actions.number(body["nonce"], "nonce")
    vault = None if body.get("vaultAddress") is None else actions.address(body["vaultAddress"], "vaultAddress")
    expires = None if body.get("expiresAfter") is None else actions.number(body["expiresAfter"], "expiresAfter")
    action, signature = actions.canonical(body["action"]), body["signature"]
    if not isinstance(signature, dict):
        raise Malformed("signature: expected an object")
    known = Signed("", action, nonce, vault, expires)
    try:
        if actions.is_user_signed(action):
            return _read_user_signed(exchange, known, signature)
        hashed = body["action"] if exchange.switch("signed_form") == "as_sent" else action
        return _read_l1(exchange, known, hashed, signature)
    except signatures.Unrecoverable as error:
        return known._replace(refused=UNRECOVERABLE, hint=f"no address can be recovered from the signature: {error}")


def _read_user_signed(exchange: Exchange, known: Signed, signature: Json) -> Signed:
    action = known.action
    known = known._replace(signer=signatures.signer_of_user_action(action, signature))
    if action["hyperliquidChain"] != signatures.CHAINS[exchange.network]:
        hint = f"the action names the chain {action['hyperliquidChain']}, and this exchange runs as {exchange.network}"
        return known._replace(refused=OTHER_NETWORK, hint=hint)
    if known.nonce != action.get("nonce", action.get("time")):
        return known._replace(refused=NONCE_MISMATCH, hint="the nonce beside the action must equal the signed one")
    return known


def _read_l1(exchange: Exchange, known: Signed, hashed: Any, signature: Json) -> Signed:
    covered = (hashed, known.nonce, known.vault, known.expires_ms, signature)
    signer = signatures.signer_of_l1(*covered, exchange.network)
    known = known._replace(signer=signer)
    if admission.master_of(exchange, signer) is not None:
        return known
    other = "testnet" if exchange.network == "mainnet" else "mainnet"
    if admission.master_of(exchange, signatures.signer_of_l1(*covered, other)) is not None:
        hint = (
            f"the signature is for {other}: start the exchange with --network {other}, or sign for {exchange.network}"
        )
        return known._replace(refused=OTHER_NETWORK, hint=hint)
    hint = (
        "no account and no valid agent has this address: the signature covers something else (key order, decimals, "
        "nonce, vaultAddress, expiresAfter), or the account has no deposit"
    )
    return known._replace(hint=hint)


def submit(exchange: Exchange, signed: Signed) -> WireAnswer:
    """Let a request in and perform it. The same requests at the same times give the same answers."""
    refused = signed.refused or admission.nonce_outside(exchange, signed.nonce)
    if refused is not None:
        return _refuse(refused, signed.hint)
    is_user_signed = actions.is_user_signed(signed.action)
    master = admission.master_of(exchange, signed.signer)
    if is_user_signed and (master is None or signed.signer in exchange.agents):
        hint = signed.hint or "this action must be signed by the account's own key, not by an agent"
        return _refuse(admission.not_deposited(signed.signer), hint)
    if master is None:
        return _refuse(admission.unknown_signer(signed.signer), signed.hint)
    user = exchange.users[master]
    if signed.vault is not None and not is_user_signed:
        acting = exchange.users.get(signed.vault)
        if acting is None or acting.master != master:
            return _refuse(
                ExchangeRefusal(f"Vault not registered: {signed.vault}"),
                "vaultAddress must be a sub-account of the signer",
            )
        user = acting
    kind = signed.action["type"]
    refused = admission.spend_budget(exchange, user, kind, actions.weight_of(signed.action))
    if refused is not None:
        return _refuse(refused, "the address budget is empty: trade, or wait 10 s for each action")
    refused = admission.take_nonce(exchange, signed.signer, signed.nonce)
    if refused is not None:
        return WireAnswer(_error(refused), took_nonce=True)
    exchange.block += 1
    exchange.block_is_action = True
    if signed.expires_ms is not None and exchange.now_ms > signed.expires_ms:
        user.requests += admission.EXPIRED_COST - 1
        return WireAnswer(_error(admission.EXPIRED), took_nonce=True)
    done = _HANDLERS.get(kind, _not_here)(exchange, user, signed.action)
    body = _error(done) if isinstance(done, ExchangeRefusal) else {"status": "ok", "response": done}
    return WireAnswer(body, took_nonce=True, hint=done.text if isinstance(done, ExchangeRefusal) else "")


def _refuse(refused: ExchangeRefusal, hint: str = "") -> WireAnswer:
    return WireAnswer(_error(refused), took_nonce=False, hint=hint or refused.text)


def _error(refused: ExchangeRefusal) -> Json:
    return {"status": "err", "response": refused.text}


# ── Actions ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DEFAULT: Final = transfers.DEFAULT
Handler = Callable[[Exchange, User, Mapping[str, Any]], Json | ExchangeRefusal]


def _status(outcome: Outcome) -> Json | str:
    if isinstance(outcome, str):
        return outcome
    if isinstance(outcome, ExchangeRefusal):
        return {"error": outcome.text}
    row: Json = {"oid": outcome.oid}
    if outcome.cloid is not None:
        row["cloid"] = outcome.cloid
    if isinstance(outcome, Resting):
        return {"resting": row}
    assert isinstance(outcome, Filled)
    return {"filled": {"totalSz": rows.amount(outcome.size), "avgPx": rows.amount(outcome.avg_px), **row}}


def _statuses(kind: str, outcomes: list[Any]) -> Json:
    return {"type": kind, "data": {"statuses": outcomes}}


def _order(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    try:
        requests = [actions.order_request(order, exchange.assets) for order in action["orders"]]
    except actions.UnknownAsset:
        return BAD_ASSET
    grouping = action["grouping"]
    given = action.get("builder")
    builder = None if given is None else (given["b"].lower(), given["f"])
    outcomes = orders.place(exchange, user, requests, grouping if isinstance(grouping, str) else "priority", builder)
    return _statuses("order", [_status(outcome) for outcome in outcomes])


def _cancel(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    statuses: list[Json | str] = []
    for cancel in action["cancels"]:
        coin = exchange.assets.get(cancel["a"] if "a" in cancel else cancel["asset"])
        key = cancel["o"] if "o" in cancel else cancel["cloid"]
        fast = bool(action.get("f"))
        refused = BAD_ASSET if coin is None else orders.cancel(exchange, user, coin, key, fast=fast)
        statuses.append("success" if refused is None else {"error": refused.text})
    return _statuses("cancel", statuses)


def _modify_each(exchange: Exchange, user: User, action: Mapping[str, Any], rows_: list[Any]) -> list[Outcome]:
    return [
        orders.modify(
            exchange,
            user,
            row["oid"],
            actions.order_request(row["order"], exchange.assets),
            always_place=bool(action.get("a")),
        )
        for row in rows_
    ]


def _modify(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    """The answer of a single modify has no oid."""
    try:
        outcome = _modify_each(exchange, user, action, [action])[0]
    except actions.UnknownAsset:
        return BAD_ASSET
    return outcome if isinstance(outcome, ExchangeRefusal) else DEFAULT


def _batch_modify(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    try:
        outcomes = _modify_each(exchange, user, action, action["modifies"])
    except actions.UnknownAsset:
        return BAD_ASSET
    return _statuses("order", [_status(outcome) for outcome in outcomes])


def _schedule_cancel(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    if user.volume < GATE_USD * E8:
        traded = rows.usd(user.volume)
        text = "Cannot set scheduled cancel time until enough volume traded."
        return ExchangeRefusal(f"{text} Required: ${GATE_USD}. Traded: ${traded}")
    at_ms = action.get("time")
    if at_ms is not None and at_ms < exchange.now_ms + SCHEDULE_AHEAD_MS:
        return ExchangeRefusal("Scheduled cancel time must be at least 5 seconds in the future.")
    if at_ms is not None and user.cancel_firings == (exchange.now_ms // DAY_MS, SCHEDULES_A_DAY):
        return ExchangeRefusal("Too many scheduled cancels today.")
    user.cancel_all_ms = at_ms
    return DEFAULT


def _update_leverage(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    coin = exchange.assets.get(action["asset"])
    if coin is None:
        return BAD_ASSET
    listed = exchange.coins[coin]
    return (
        margins.change_leverage(exchange, user, listed, cross=action["isCross"], leverage=action["leverage"]) or DEFAULT
    )


def _update_isolated_margin(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    coin = exchange.assets.get(action["asset"])
    if coin is None:
        return BAD_ASSET
    return margins.move_margin(exchange, user, exchange.coins[coin], action["ntli"] * MICRO) or DEFAULT


def _top_up(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    coin = exchange.assets.get(action["asset"])
    if coin is None:
        return BAD_ASSET
    return margins.top_up(exchange, user, exchange.coins[coin], parse_e8(action["leverage"])) or DEFAULT


def _noop(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    return DEFAULT


def _reserve_weight(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    cost = action["weight"] * WEIGHT_PRICE
    if not transfers.debit(exchange, user, "", cost):
        return ExchangeRefusal("Insufficient balance to reserve request weight.")
    user.reserved_requests += action["weight"]
    return DEFAULT


def _set_referrer(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    return ExchangeRefusal("Cannot self-refer.") if not action["code"] else DEFAULT


def _approve_agent(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    address = str(action["agentAddress"]).lower()
    return admission.approve_agent(exchange, user, address, str(action.get("agentName", ""))) or DEFAULT


def _approve_builder(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    try:
        percent = parse_e8(str(action["maxFeeRate"]).removesuffix("%"))
    except ValueError:
        return ExchangeRefusal("Invalid builder fee rate.")
    user.builders[str(action["builder"]).lower()] = percent * 1_000 // E8
    return DEFAULT


def _not_here(exchange: Exchange, user: User, action: Mapping[str, Any]) -> Json | ExchangeRefusal:
    return ExchangeRefusal(f"The local exchange does not perform {action['type']}.")


_HANDLERS: Final[Mapping[str, Handler]] = {
    "order": _order,
    "cancel": _cancel,
    "cancelByCloid": _cancel,
    "modify": _modify,
    "batchModify": _batch_modify,
    "scheduleCancel": _schedule_cancel,
    "updateLeverage": _update_leverage,
    "updateIsolatedMargin": _update_isolated_margin,
    "topUpIsolatedOnlyMargin": _top_up,
    "noop": _noop,
    "reserveRequestWeight": _reserve_weight,
    "setReferrer": _set_referrer,
    "approveAgent": _approve_agent,
    "approveBuilderFee": _approve_builder,
    "usdSend": transfers.usd_send,
    "withdraw3": transfers.withdraw,
    "usdClassTransfer": transfers.class_transfer,
    "sendAsset": transfers.send_asset,
    "createSubAccount": transfers.create_sub_account,
    "subAccountTransfer": transfers.sub_account_transfer,
}
