"""Caps of a session: the limits of its API key and the account's own limits, under the interface's names. The service's
own code checks them.

Without caps a session trades with the account's first key, which has none, as a fresh sandbox does. With caps it gets a
second key that has them. Scopes and `expiresAt` cannot be set: a session's key may always trade and does not expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError

from bot.errors import ConfigError
from bot.money import format_decimal

KEY_CAPS: Final = ("maxExposureUsd", "maxDailyNotionalUsd", "maxLeverage", "allowedCoins", "maxOpenPositions")
OWN_CAPS: Final = ("maxTradeUsd", "dailyTradeCapUsd")
_WHOLE: Final = frozenset({"maxLeverage", "maxOpenPositions"})

Cap = Decimal | int | tuple[str, ...]


def cap_of(text: str) -> tuple[str, Cap]:
    """`maxDailyNotionalUsd=5000` or `allowedCoins=BTC,ETH`; lower case and dashes are accepted.

    ConfigError says what is wrong.
    """
    name, sign, value = (part.strip() for part in text.partition("="))
    names = {cap.lower(): cap for cap in (*KEY_CAPS, *OWN_CAPS)}
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in names or not sign:
        near = get_close_matches(plain, names, n=1)
        hint = (
            f"did you mean {names[near[0]]}?"
            if near
            else f"write one of {', '.join(names.values())}, like maxTradeUsd=500"
        )
        raise ConfigError(f"--cap {text!r} is not a cap; {hint}")
    return names[plain], _value(names[plain], value)


def _value(name: str, text: str) -> Cap:
    if name == "allowedCoins":
        from bot.backtest.data.candles import market_name

        return tuple(market_name(part) for part in text.split(",") if part.strip())
    try:
        number = Decimal(text.replace("_", ""))
        if not number.is_finite() or (name in _WHOLE and number != int(number)):
            raise InvalidOperation
    except InvalidOperation:
        raise ConfigError(f"--cap {name}={text}: must be a {'whole ' if name in _WHOLE else ''}number") from None
    return int(number) if name in _WHOLE else number


def check_caps(caps: Mapping[str, Cap]) -> None:
    """ConfigError for a value that the service would refuse."""
    from bot.service.bodies.responses import OperationRefused

    try:
        cap_requests(caps)
    except OperationRefused as no:
        raise ConfigError(f"--cap: {no.refusal.message}") from None


def caps_as_json(caps: Mapping[str, Cap]) -> dict[str, Any]:
    """The caps as JSON values for the manifest. Amounts are text."""
    return {
        name: format_decimal(cap) if isinstance(cap, Decimal) else cap if isinstance(cap, int) else list(cap)
        for name, cap in caps.items()
    }


def caps_from_json(plain: Mapping[str, Any]) -> dict[str, Cap]:
    return {
        name: tuple(cap) if isinstance(cap, list) else Decimal(cap) if isinstance(cap, str) else int(cap)
        for name, cap in plain.items()
    }


def assumption_lines(caps: Mapping[str, Cap]) -> list[str]:
    """The caps as assumptions of a report."""
    plain = caps_as_json(caps)
    lines = []
    for whose, names in (("the session's key", KEY_CAPS), ("the account's own limits", OWN_CAPS)):
        mine = ", ".join(
            f"{name} {' '.join(cap) if isinstance(cap := plain[name], list) else cap}"
            for name in names
            if name in plain
        )
        if mine:
            lines.append(f"{whose}: {mine}; the service refuses an order that opens more")
    return lines


def cap_requests(caps: Mapping[str, Cap]) -> tuple[Any, Any]:
    """The bodies of POST /v1/keys and PATCH /v1/settings that set the caps; None where there is nothing to set."""
    from bot.service.bodies.responses import OperationRefused, of_validation
    from bot.wire.requests import KeyRequest, SettingsRequest

    body: dict[str, Any] = {name: list(cap) if isinstance(cap, tuple) else cap for name, cap in caps.items()}
    mine: dict[str, Any] = {name: body[name] for name in KEY_CAPS if name in body}
    own: dict[str, Any] = {name: body[name] for name in OWN_CAPS if name in body}
    try:
        asked: dict[str, Any] = {"name": "session", "scopes": ["read", "trade", "outcomes"], **mine}
        key = KeyRequest.from_wire(asked) if mine else None
        return key, SettingsRequest.from_wire(own) if own else None
    except ValidationError as error:
        raise OperationRefused(of_validation(error)) from None
