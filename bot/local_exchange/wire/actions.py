"""Actions as the wire has them: a table of their keys in signing order, and the canonical form over which the signature
is checked.

Unknown keys of an action are malformed; unknown keys of one order are ignored, as at the exchange.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.local_exchange.engine.records import ExchangeOrderRequest, ExchangeTrigger
from bot.local_exchange.wire.signatures import ADDRESS, USER_SIGNED
from bot.money import format_e8, parse_e8

U64: Final = 2**64
# zero padding up to here is accepted
DECIMALS_SENT: Final = 9
TIFS: Final = ("Gtc", "Ioc", "Alo", "FrontendMarket")
CLOID: Final = re.compile(r"0x[0-9a-fA-F]{32}")

Parse = Callable[[Any, str], Any]


class Malformed(ValueError):
    """The JSON has another shape than the exchange expects: HTTP 422, and nothing was executed."""


class UnknownAsset(ValueError):
    """An asset number that no market has."""


class ActionKey(NamedTuple):
    name: str
    parse: Parse
    optional: bool = False


def _malformed(path: str, wanted: str, value: Any) -> Malformed:
    return Malformed(f"{path}: expected {wanted}, found {str(value)[:60]!r} ({type(value).__name__})")


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _malformed(path, "a boolean", value)
    return value


def number(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < U64:
        raise _malformed(path, "an unsigned integer", value)
    return value


def _integer(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise _malformed(path, "an integer", value)
    return value


def text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _malformed(path, "text", value)
    return value


def address(value: Any, path: str) -> str:
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise _malformed(path, "an address of 40 hexadecimal digits", value)
    return value.lower()


def _as_signed(value: Any, path: str) -> str:
    """An address inside of an L1 action is hashed as its text."""
    address(value, path)
    return str(value)


def decimal(value: Any, path: str) -> str:
    """A decimal as text in its canonical form: no trailing zeros, no exponent."""
    if not isinstance(value, str) or len(value.partition(".")[2]) > DECIMALS_SENT:
        raise _malformed(path, "a decimal as text with at most 8 decimals", value)
    try:
        return format_e8(parse_e8(value))
    except ValueError:
        raise _malformed(path, "a decimal as text with at most 8 decimals", value) from None


def _one_of(*values: str) -> Parse:
    def parse(value: Any, path: str) -> str:
        if value not in values or not isinstance(value, str):
            raise _malformed(path, f"one of {', '.join(values)}", value)
        return value

    return parse


def _cloid(value: Any, path: str) -> str:
    if not isinstance(value, str) or not CLOID.fullmatch(value):
        raise _malformed(path, "a cloid of 0x and 32 hexadecimal digits", value)
    return value.lower()


def _order_key(value: Any, path: str) -> int | str:
    return _cloid(value, path) if isinstance(value, str) else number(value, path)


def _list_of(parse: Parse) -> Parse:
    def parse_list(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _malformed(path, "a list", value)
        return [parse(item, f"{path}[{index}]") for index, item in enumerate(value)]

    return parse_list


def _object(*keys: ActionKey, strict: bool = False) -> Parse:
    """An object with these keys, which the result has in this order.

    A false flag or null at an optional key counts as absent.
    """

    def parse(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _malformed(path, "an object", value)
        if strict and (unknown := [name for name in value if name not in {key.name for key in keys}]):
            raise Malformed(f"{path}: unknown field `{unknown[0]}`")
        parsed: dict[str, Any] = {}
        for key in keys:
            given = value.get(key.name)
            if key.name not in value and not key.optional:
                raise Malformed(f"{path}: missing field `{key.name}`")
            if not (key.optional and (given is None or given is False)):
                parsed[key.name] = key.parse(given, f"{path}.{key.name}")
        return parsed

    return parse


_LIMIT = _object(ActionKey("tif", _one_of(*TIFS)))
_TRIGGER = _object(
    ActionKey("isMarket", _boolean), ActionKey("triggerPx", decimal), ActionKey("tpsl", _one_of("tp", "sl"))
)


def _kind(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict) and list(value) == ["limit"]:
        return {"limit": _LIMIT(value["limit"], f"{path}.limit")}
    if isinstance(value, dict) and list(value) == ["trigger"]:
        return {"trigger": _TRIGGER(value["trigger"], f"{path}.trigger")}
    raise _malformed(path, "an object with either limit or trigger", value)


def _grouping(value: Any, path: str) -> Any:
    if isinstance(value, dict) and list(value) == ["p"]:
        return {"p": number(value["p"], f"{path}.p")}
    return _one_of("na", "normalTpsl", "positionTpsl")(value, path)


_ORDER = _object(
    ActionKey("a", number),
    ActionKey("b", _boolean),
    ActionKey("p", decimal),
    ActionKey("s", decimal),
    ActionKey("r", _boolean),
    ActionKey("t", _kind),
    ActionKey("c", _cloid, optional=True),
)
_BUILDER = _object(ActionKey("b", _as_signed), ActionKey("f", number))
_CANCEL = _object(ActionKey("a", number), ActionKey("o", number))
_CANCEL_BY_CLOID = _object(ActionKey("asset", number), ActionKey("cloid", _cloid))
_MODIFY = (ActionKey("oid", _order_key), ActionKey("order", _ORDER))
_FAST = ActionKey("f", _boolean, optional=True)
_ALWAYS_PLACE = ActionKey("a", _boolean, optional=True)

L1: Final[Mapping[str, tuple[ActionKey, ...]]] = {
    "order": (
        ActionKey("orders", _list_of(_ORDER)),
        ActionKey("grouping", _grouping),
        ActionKey("builder", _BUILDER, optional=True),
    ),
    "cancel": (ActionKey("cancels", _list_of(_CANCEL)), _FAST),
    "cancelByCloid": (ActionKey("cancels", _list_of(_CANCEL_BY_CLOID)), _FAST),
    "modify": (*_MODIFY, _ALWAYS_PLACE),
    "batchModify": (ActionKey("modifies", _list_of(_object(*_MODIFY))), _ALWAYS_PLACE),
    "scheduleCancel": (ActionKey("time", number, optional=True),),
    "updateLeverage": (ActionKey("asset", number), ActionKey("isCross", _boolean), ActionKey("leverage", number)),
    "updateIsolatedMargin": (ActionKey("asset", number), ActionKey("isBuy", _boolean), ActionKey("ntli", _integer)),
    "topUpIsolatedOnlyMargin": (ActionKey("asset", number), ActionKey("leverage", decimal)),
    "noop": (),
    "reserveRequestWeight": (ActionKey("weight", number), ActionKey("destination", _as_signed, optional=True)),
    "setReferrer": (ActionKey("code", text),),
    "createSubAccount": (ActionKey("name", text),),
    "subAccountTransfer": (
        ActionKey("subAccountUser", _as_signed),
        ActionKey("isDeposit", _boolean),
        ActionKey("usd", number),
    ),
}
# Known to the exchange and not to this one: their signature is checked over what was sent, and they are refused.
NOT_HERE: Final = frozenset(
    {
        "twapOrder",
        "twapCancel",
        "subAccountSpotTransfer",
        "vaultTransfer",
        "agentEnableDexAbstraction",
        "agentSetAbstraction",
        "agentSendAsset",
        "userOutcome",
        "evmUserModify",
        "gossipPriorityBid",
        "perpDeploy",
        "spotDeploy",
        "claimRewards",
        "hip3LiquidatorTransfer",
        "registerReferrer",
        "spotSend",
        "tokenDelegate",
        "userDexAbstraction",
        "userSetAbstraction",
        "convertToMultiSigUser",
        "multiSig",
    }
)

_PARSERS: Final = {kind: _object(ActionKey("type", text), *keys, strict=True) for kind, keys in L1.items()}
_TYPES: Final[Mapping[str, Parse]] = {"string": text, "uint64": number, "bool": _boolean, "address": address}


def _user_signed(action: dict[str, Any]) -> dict[str, Any]:
    """A user-signed action with its fields checked. An agent without a name has no agentName."""
    for name in ("hyperliquidChain", "signatureChainId"):
        text(action.get(name), f"action.{name}")
    for name, kind in USER_SIGNED[action["type"]][1]:
        if name in action or name != "agentName":
            _TYPES[kind](action.get(name), f"action.{name}")
    return dict(action)


def canonical(action: Any) -> dict[str, Any]:
    """The action in the exchange's own form: keys in signing order, decimals without trailing zeros, cloids in lower
    case.

    Malformed otherwise.
    """
    if not isinstance(action, dict) or not isinstance(action.get("type"), str):
        raise Malformed("action: missing field `type`")
    kind = action["type"]
    if kind in _PARSERS:
        parsed: dict[str, Any] = _PARSERS[kind](action, "action")
        return parsed
    if kind in USER_SIGNED:
        return _user_signed(action)
    if kind in NOT_HERE:
        return dict(action)
    raise Malformed(f"action: unknown variant `{kind}`, expected one of {', '.join(sorted((*L1, *USER_SIGNED)))}")


def is_user_signed(action: Mapping[str, Any]) -> bool:
    return action["type"] in USER_SIGNED


def order_request(order: Mapping[str, Any], assets: Mapping[int, str]) -> ExchangeOrderRequest:
    """One order of a canonical action, with its amounts as numbers. UnknownAsset if no market has this number."""
    coin = assets.get(order["a"])
    if coin is None:
        raise UnknownAsset(str(order["a"]))
    kind = order["t"]
    given = kind.get("trigger")
    trigger = None
    if given is not None:
        trigger = ExchangeTrigger(parse_e8(given["triggerPx"]), given["isMarket"], given["tpsl"] == "tp")
    return ExchangeOrderRequest(
        coin=coin,
        asset=order["a"],
        buy=order["b"],
        px=parse_e8(order["p"]),
        sz=parse_e8(order["s"]),
        reduce_only=order["r"],
        tif=kind["limit"]["tif"] if "limit" in kind else None,
        trigger=trigger,
        cloid=order.get("c"),
    )


def block_rank(action: Mapping[str, Any]) -> int:
    """Place of an action in its block: 0 without Gtc and Ioc orders, 1 cancels, 2 with such orders.

    A modify counts by its new order.
    """
    if action["type"] in ("cancel", "cancelByCloid"):
        return 1
    orders = [*action.get("orders", ()), *(modify["order"] for modify in action.get("modifies", ()))]
    if "order" in action:
        orders.append(action["order"])
    takes = any(order["t"].get("limit", {}).get("tif", "Alo") != "Alo" for order in orders)
    return 2 if takes else 0


def weight_of(action: Mapping[str, Any]) -> int:
    """How many actions a batch counts as."""
    for name in ("orders", "cancels", "modifies"):
        if name in action:
            return max(1, len(action[name]))
    return 1
