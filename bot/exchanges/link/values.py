"""Values and errors of the protocol as JSON: the name of the kind, then the fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from bot.errors import BotError, ConfigError
from bot.exchanges import actions, protocol
from bot.market_data import source
from bot.market_data.paging import PageAnswer

KINDS: Final[tuple[type[Any], ...]] = (
    actions.ActionAnswer,
    actions.ExchangeAction,
    protocol.AccountReading,
    protocol.AccountStanding,
    protocol.ExecutionReport,
    protocol.FundingReport,
    protocol.LinkHealth,
    protocol.LinkState,
    protocol.LiquidationReport,
    protocol.OpenOrders,
    protocol.OrderUpdate,
    protocol.TransferReport,
    source.Connection,
    source.Depth,
    source.FundingRate,
    source.Instrument,
    source.Mark,
    source.Missing,
    source.Page,
    source.Quote,
    source.Rate,
    PageAnswer,
)
# Errors that mean the same on both sides. Any other one is a fault of the link's code.
ERRORS: Final[tuple[type[BotError], ...]] = (
    protocol.NoExchangeAnswer,
    protocol.UnknownForm,
    source.NotOffered,
    source.NoAnswer,
    ConfigError,
)
_ADAPTERS: Final = {kind.__name__: TypeAdapter(kind) for kind in KINDS}
_ERRORS: Final = {f"{kind.__module__}.{kind.__name__}": kind for kind in ERRORS}
T = TypeVar("T")


def packed(value: Any) -> list[Any]:
    """A value for a frame."""
    name = type(value).__name__
    return [name, _ADAPTERS[name].dump_python(value, mode="json")]


def unpacked(pair: Any) -> Any:
    """The value of a frame. NoAnswer if it is none of ours."""
    try:
        name, fields = pair
        return _ADAPTERS[name].validate_python(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise protocol.NoExchangeAnswer(f"the link wrote a value in an unknown form: {error}") from None


def packed_error(error: BotError) -> list[str]:
    """An error for a frame."""
    kind = next((error_class for error_class in ERRORS if isinstance(error, error_class)), protocol.NoExchangeAnswer)
    return [f"{kind.__module__}.{kind.__name__}", str(error)]


def unpacked_error(pair: Any) -> BotError:
    """The error of a frame."""
    name, text = pair
    return _ERRORS.get(name, protocol.NoExchangeAnswer)(str(text))


def all_of(kind: type[T], values: Iterable[Any]) -> list[T]:
    """The values, each of this kind. NoAnswer if one is of another."""
    items = list(values)
    for item in items:
        if not isinstance(item, kind):
            raise protocol.NoExchangeAnswer(
                f"the link answered a {type(item).__name__}; a {kind.__name__} was asked for"
            )
    return items
