"""The section `protections` of a config: rules that refuse entries for a time. They never refuse an exit.

A strategy has its own section, which counts its trades. The section at the top level counts those of all strategies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from bot.clock import DAY_MS, HOUR_MS, MINUTE_MS, WEEK_MS
from bot.config.section import Coin, Loc, Section, no, refuse
from bot.wire import bare_coin
from bot.wire.base import Flag, Integer, Number

UNITS: Final[Mapping[str, int]] = {"m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": WEEK_MS}
# begins the name of a key of this section, as `bot sweep` and `--param` write it
PREFIX: Final = "protections."
# The journal keeps closed trades twice as long: a window and the rest after it.
LENGTH_DAYS_MAX: Final = 90
LENGTH_FORMS: Final = "write bars of the strategy, such as `4 bars`, or a duration such as `30m`, `2h`, `3d` or `1w`"
_LENGTH: Final = re.compile(r"([-+]?[0-9]{1,9}) ?([A-Za-z]+)", re.ASCII)

Scope = Literal["market", "strategy", "account"]


class WrittenLength(NamedTuple):
    """A length of time as it is written: so many bars, or so many units of `unit_ms`."""

    number: int
    unit_ms: int | None

    @property
    def is_bars(self) -> bool:
        return self.unit_ms is None

    def ms(self, interval_ms: int) -> int:
        return self.number * (interval_ms if self.unit_ms is None else self.unit_ms)


def length_of(text: str) -> WrittenLength:
    """The length of a text that `_length` has checked."""
    matched = _LENGTH.fullmatch(text)
    assert matched is not None, text
    return WrittenLength(int(matched[1]), None if matched[2] in ("bar", "bars") else UNITS[matched[2]])


def _length(value: Any) -> str:
    matched = _LENGTH.fullmatch(value) if isinstance(value, str) else None
    if matched is None:
        raise no(f"must be a length of time; {LENGTH_FORMS}")
    if matched[2] not in ("bar", "bars", *UNITS):
        raise no(f"unknown unit {matched[2]}; there are bars, {', '.join(UNITS)}. The shortest duration is 1m")
    length = length_of(value)
    if length.number < 1:
        raise no(f"must be at least 1 {'bar' if length.is_bars else matched[2]}; {LENGTH_FORMS}")
    if not length.is_bars and length.ms(0) > LENGTH_DAYS_MAX * DAY_MS:
        raise no(f"must be at most {LENGTH_DAYS_MAX}d")
    return f"{length.number} bars" if length.is_bars and length.number > 1 else value


# The protections that may be written short, and the key that the short form gives.
SHORT: Final[Mapping[str, str]] = {"cooldown": "length", "max_entries": "entries", "max_open_positions": "positions"}


def put(section: MutableMapping[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a value in a section as it is written: `("cooldown",)` or `("stop_guard", "stops")`. Other keys stay."""
    name, *inner = keys
    given = section.get(name)
    if not inner and not isinstance(given, Mapping):
        section[name] = value
        return
    if not isinstance(given, MutableMapping):
        given = section[name] = {} if given is None else {SHORT.get(name, name): given}
    given[".".join(inner) or SHORT.get(name, name)] = value


LengthText = Annotated[
    str,
    BeforeValidator(_length, json_schema_input_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,9} ?(bars?|m|h|d|w)$"}),
]
Count = Annotated[int, Integer(1, 1_000)]
Usd = Annotated[Decimal, Number(gt=0, le=1_000_000_000)]


class Protection(Section):
    """A rule that refuses entries for a time."""

    markets: tuple[Coin, ...] = Field(
        default=(), max_length=20, description="Only trades and entries of these markets. None: of all."
    )


class Cooldown(Protection):
    """Entries wait for some time after an exit."""

    length: LengthText = Field(description="How long: the next so many closes of the strategy's bars, or a duration.")
    only_losses: Flag = Field(default=False, description="Only after a trade that lost, net of fees and funding.")
    scope: Scope | None = Field(
        default=None,
        description="What waits: the market of the exit (the default), all of the strategy, or all of the account.",
    )


class _Windowed(Protection):
    """A protection that looks at the trades of a window and then refuses entries for a time."""

    within: LengthText = Field(description="The window before the newest trade, in which trades count.")
    rest: LengthText = Field(description="How long entries are refused after the trade that completes the rule.")

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise no("must be a mapping with at least `within: 24h` (the window) and `rest: 12h` (how long to wait)")
        hints = {"within": "the window in which trades count, such as `within: 24h`"}
        hints["rest"] = "how long entries are refused, such as `rest: 12h`"
        refuse([((name,), f"is required: write {hint}") for name, hint in hints.items() if name not in value])
        return value


class StopGuard(_Windowed):
    """Entries wait after several stops."""

    stops: Count = Field(description="How many trades that a stop, trailing stop or liquidation has ended.")
    only_losses: Flag = Field(default=False, description="Only stops that lost, net of fees and funding.")
    scope: Scope | None = Field(
        default=None, description="Whose stops count and what waits: each market, the strategy, or the account."
    )


class LowProfitMarket(_Windowed):
    """A market waits after it has lost over a window."""

    below_usd: Annotated[Decimal, Number(ge=-1_000_000_000, le=1_000_000_000)] = Field(
        default=Decimal(0), description="It waits if its closed trades in the window sum up to less than this."
    )
    trades: Count = Field(default=1, description="Not before so many trades have closed in the window.")


class MaxDrawdown(_Windowed):
    """Entries wait after closed trades have fallen from their highest sum."""

    usd: Usd = Field(description="The fall of the sum of closed trades from its highest value in the window.")
    trades: Count = Field(default=1, description="Not before so many trades have closed in the window.")


class MaxEntries(Protection):
    """Most entries of a UTC day."""

    entries: Count = Field(description="Entry orders that were filled today or may still be filled.")
    scope: Scope | None = Field(
        default=None, description="Whose entries count: each market, the strategy, or the account."
    )


class MaxOpenPositions(Protection):
    """Most markets with a position, or with an entry that may still fill."""

    positions: Count = Field(description="Markets with a position, or with an entry that may still be filled.")


def _long(name: str) -> Callable[[Any], Any]:
    """Writes the short form of a protection in full."""
    return lambda value: value if value is None or isinstance(value, Mapping) else {SHORT[name]: value}


CooldownForm = Annotated[
    Cooldown | None, BeforeValidator(_long("cooldown"), json_schema_input_type=LengthText | Cooldown | None)
]
MaxEntriesForm = Annotated[
    MaxEntries | None, BeforeValidator(_long("max_entries"), json_schema_input_type=Count | MaxEntries | None)
]
MaxOpenPositionsForm = Annotated[
    MaxOpenPositions | None,
    BeforeValidator(_long("max_open_positions"), json_schema_input_type=Count | MaxOpenPositions | None),
]


class ProtectionSettings(Section):
    """Rules that refuse entries for a time. Exits, stops and reduce-only orders are never refused."""

    cooldown: CooldownForm = Field(default=None, description="Time without entries after an exit.")
    stop_guard: StopGuard | None = Field(default=None, description="Time without entries after several stops.")
    max_entries: MaxEntriesForm = Field(default=None, description="Most entries of a UTC day.")
    max_open_positions: MaxOpenPositionsForm = Field(default=None, description="Most positions at one time.")
    low_profit_market: LowProfitMarket | None = Field(
        default=None, description="Time without entries in a market that has lost over a window."
    )
    max_drawdown: MaxDrawdown | None = Field(
        default=None, description="Time without entries after closed trades have lost this much over a window."
    )

    def given(self) -> Iterable[tuple[str, Protection]]:
        """The protections that are set, by their keys."""
        for name in type(self).model_fields:
            protection = getattr(self, name)
            if protection is not None:
                yield name, protection

    def changed(self, values: Mapping[str, Any]) -> Self:
        """This section with other values, by keys such as `cooldown` or `stop_guard.stops`.

        ValidationError for a value that it does not accept.
        """
        plain = self.model_dump(exclude_none=True)
        for keys, value in values.items():
            put(plain, keys.split("."), value)
        return type(self).model_validate(plain)

    def problems(self, markets: Iterable[str], interval_ms: int | None) -> list[tuple[Loc, str]]:
        """What is wrong at this place. `markets` are those that are traded here; `interval_ms` is None at the top
        level.
        """
        problems: list[tuple[Loc, str]] = []
        traded = {bare_coin(market): market for market in markets}
        misplaced, there = ("strategy", "a strategy") if interval_ms is None else ("account", "the top level")
        for name, protection in self.given():
            if getattr(protection, "scope", None) == misplaced:
                text = f"{misplaced} is no scope here; write this protection in the `protections` of {there}"
                problems.append((("protections", name, "scope"), text))
            for place, coin in enumerate(protection.markets):
                if bare_coin(coin) not in traded:
                    text = f"{coin} is not traded here; remove it, or choose from {', '.join(traded.values())}"
                    problems.append((("protections", name, "markets", place), text))
            for key in ("length", "within", "rest"):
                text_of_length = getattr(protection, key, None)
                if text_of_length is None or not (length := length_of(text_of_length)).is_bars:
                    continue
                if interval_ms is None:
                    text = "bars are those of a strategy; at the top level write a duration such as `4h`"
                    problems.append((("protections", name, key), text))
                elif length.ms(interval_ms) > LENGTH_DAYS_MAX * DAY_MS:
                    most = LENGTH_DAYS_MAX * DAY_MS // interval_ms
                    problems.append((("protections", name, key), f"must be at most {most} bars, which are 90d"))
        return problems


# Not validated: building the schema of this section alone would cost every command 30 ms.
NO_PROTECTIONS: Final = ProtectionSettings.model_construct()
KINDS: Final[Mapping[str, type[Protection]]] = {
    "cooldown": Cooldown,
    "stop_guard": StopGuard,
    "max_entries": MaxEntries,
    "max_open_positions": MaxOpenPositions,
    "low_profit_market": LowProfitMarket,
    "max_drawdown": MaxDrawdown,
}
