"""Caps of a session: what its key may not exceed, and what its account forbids itself. The interface's own names; the service's own code judges them.

A session without caps trades with the account's first key, which has none, as a fresh sandbox does. With caps it gets a second one that has them.
Scopes and `expiresAt` are not among them: a session's key may trade, and lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from bot.errors import ConfigError
from bot.money import format_decimal

if TYPE_CHECKING:
    from bot.session.stage import Stage

KEY_CAPS: Final = ("maxExposureUsd", "maxDailyNotionalUsd", "maxLeverage", "allowedCoins", "maxOpenPositions")
OWN_CAPS: Final = ("maxTradeUsd", "dailyTradeCapUsd")
SCOPED_KEY: Final = "key_00000002"  # the first is the account's own
_WHOLE: Final = frozenset({"maxLeverage", "maxOpenPositions"})

Cap = Decimal | int | tuple[str, ...]


def cap_of(text: str) -> tuple[str, Cap]:
    """`maxDailyNotionalUsd=5000` or `allowedCoins=BTC,ETH`; small letters and dashes will do. ConfigError says what is wrong."""
    name, sign, value = (part.strip() for part in text.partition("="))
    names = {one.lower(): one for one in (*KEY_CAPS, *OWN_CAPS)}
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in names or not sign:
        near = get_close_matches(plain, names, n=1)
        hint = (
            f"did you mean {names[near[0]]}?"
            if near
            else f"write one of {', '.join(names.values())}, like maxTradeUsd=500"
        )
        raise ConfigError(f"--cap {text!r} is no cap; {hint}")
    return names[plain], _value(names[plain], value)


def _value(name: str, text: str) -> Cap:
    if name == "allowedCoins":
        from bot.session.candles import market_name

        return tuple(market_name(one) for one in text.split(",") if one.strip())
    try:
        number = Decimal(text.replace("_", ""))
        if not number.is_finite() or (name in _WHOLE and number != int(number)):
            raise InvalidOperation
    except InvalidOperation:
        raise ConfigError(f"--cap {name}={text}: must be a {'whole ' if name in _WHOLE else ''}number") from None
    return int(number) if name in _WHOLE else number


def checked(caps: Mapping[str, Cap]) -> None:
    """ConfigError for a value that the service would refuse."""
    from bot.service.answers import Refused

    try:
        _requests(caps)
    except Refused as no:
        raise ConfigError(f"--cap: {no.refusal.message}") from None


def plain_of(caps: Mapping[str, Cap]) -> dict[str, Any]:
    """For a manifest: as JSON takes it. Amounts are text."""
    return {
        name: format_decimal(one) if isinstance(one, Decimal) else one if isinstance(one, int) else list(one)
        for name, one in caps.items()
    }


def of_plain(plain: Mapping[str, Any]) -> dict[str, Cap]:
    return {
        name: tuple(one) if isinstance(one, list) else Decimal(one) if isinstance(one, str) else int(one)
        for name, one in plain.items()
    }


def told(caps: Mapping[str, Cap]) -> list[str]:
    """As assumptions of a report."""
    plain = plain_of(caps)
    said = []
    for whose, names in (("the session's key", KEY_CAPS), ("the account's own limits", OWN_CAPS)):
        mine = ", ".join(
            f"{name} {' '.join(one) if isinstance(one := plain[name], list) else one}"
            for name in names
            if name in plain
        )
        if mine:
            said.append(f"{whose}: {mine}; the service refuses an opening that exceeds them")
    return said


def impose(stage: Stage, caps: Mapping[str, Cap], *, account: str, owner: str) -> str:
    """Make the account's limits and the session's key, by the commands that a request would give. Answers the id of the key to trade with."""
    from bot.service.auth import Minted
    from bot.service.keys import cap, key_of
    from bot.venue.commands import ChangeSettings, CreateKey

    key_request, own_request = _requests(caps)
    if own_request is not None:
        trade, daily = (
            cap(own_request.max_trade_usd, "maxTradeUsd"),
            cap(own_request.daily_trade_cap_usd, "dailyTradeCapUsd"),
        )
        stage.run(ChangeSettings(account, trade, daily))
    if key_request is None:
        return owner
    # No secret is made: nobody signs in to a session.
    key = key_of(key_request, Minted("", SCOPED_KEY, "", ""), account, stage.state.now_ms, "key")
    stage.run(CreateKey(key))
    return key.id


def _requests(caps: Mapping[str, Cap]) -> tuple[Any, Any]:
    """The bodies of POST /v1/keys and PATCH /v1/settings that ask for them; None where nothing is asked."""
    from bot.service.answers import Refused, of_validation
    from bot.wire.requests import KeyRequest, SettingsRequest

    body: dict[str, Any] = {name: list(one) if isinstance(one, tuple) else one for name, one in caps.items()}
    mine: dict[str, Any] = {name: body[name] for name in KEY_CAPS if name in body}
    own: dict[str, Any] = {name: body[name] for name in OWN_CAPS if name in body}
    try:
        asked: dict[str, Any] = {"name": "session", "scopes": ["read", "trade", "outcomes"], **mine}
        key = KeyRequest.from_wire(asked) if mine else None
        return key, SettingsRequest.from_wire(own) if own else None
    except ValidationError as error:
        raise Refused(of_validation(error)) from None
