"""Types of option values: durations, clocks, candle files, rates, outages. Each error says what to write instead."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from bot.backtest.engine.options import Outage, Settlement

# the service's limit
SPEED_MAX: Final = 3600
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Group(click.Group):
    """A group that lists its commands with their full first paragraph; click cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, inspect.cleandoc(command.help or "").partition("\n\n")[0])
                    for name, command in sorted(self.commands.items())
                ]
            )


class Duration(click.ParamType[float]):
    """`60s`, `5m`, `1.5h`, `300ms`, `90` (seconds). Zero only if `may_be_zero`."""

    name = "duration"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        parsed = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) *(ms|[smhd]?)", value.strip(), re.ASCII)
        if parsed is None or (float(parsed[1]) <= 0 and not self._may_be_zero):
            self.fail(f"{value!r} is not a duration; write 60s, 5m or 1.5h", param, ctx)
        if parsed[2] == "ms" and float(parsed[1]) % 1:
            self.fail(f"{value!r}: write whole milliseconds", param, ctx)
        return float(parsed[1]) * _UNITS[parsed[2]]


def reserved(*, for_json: bool) -> AbstractContextManager[object]:
    """With `for_json`, redirect what strategies print to standard error, so that standard output holds one JSON
    object.
    """
    return redirect_stdout(sys.stderr) if for_json else nullcontext()


class ClockParam(click.ParamType[str]):
    """`real`, `manual` or a speed such as `60x`. Returns the text, in lower case."""

    name = "clock"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = value.strip().lower()
        if text in ("real", "manual"):
            return text
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?x", text, re.ASCII) or not 1 <= float(text[:-1]) <= SPEED_MAX:
            self.fail(f"{value!r} is not a clock; write real, manual, or 1x to {SPEED_MAX}x", param, ctx)
        return text


class ExchangeAccountParam(click.ParamType[tuple[str, str, str]]):
    """`EXCHANGE:NETWORK:ADDRESS`. Returns the three, the address in lower case."""

    name = "account"

    def convert(
        self, value: str | tuple[str, str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, str]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([a-z0-9_]+):(testnet|mainnet|[1-9][0-9]{0,4}):(0x[0-9a-fA-F]{40})", value, re.ASCII)
        if match is None:
            self.fail(
                f"{value!r} is no account at an exchange; write EXCHANGE:testnet:0x and 40 hexadecimal digits (or"
                " mainnet, or the port of a local exchange)",
                param,
                ctx,
            )
        return match[1], match[2], match[3].lower()


class CandlesFile(NamedTuple):
    """A file of candles, and its market if one was given."""

    coin: str | None
    path: Path


class CandleFile(click.ParamType[CandlesFile]):
    """`FILE` or `COIN=FILE`."""

    name = "file"

    def convert(
        self, value: str | CandlesFile, param: click.Parameter | None, ctx: click.Context | None
    ) -> CandlesFile:
        if isinstance(value, CandlesFile):
            return value
        from bot.wire.vocabulary import bare_coin

        named = re.fullmatch(
            r"((?:perp:)?[a-z0-9]{1,20}|event:[a-z0-9][a-z0-9._-]{0,63})=(.+)", value, re.ASCII | re.IGNORECASE
        )
        return CandlesFile(bare_coin(named[1]), Path(named[2])) if named is not None else CandlesFile(None, Path(value))


class ParamValue(click.ParamType[tuple[tuple[str, str], str]]):
    """`STRATEGY.PARAM=VALUE` -> ((strategy, param), value)."""

    name = "strategy.param=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, str], str]:
        if isinstance(value, tuple):
            return value
        parsed = re.fullmatch(
            r"([a-z0-9-]{1,40})\.((?:protections\.(?:[a-z_]+\.)?)?[A-Za-z_][A-Za-z0-9_]*)=(.+)",
            value,
            re.ASCII | re.DOTALL,
        )
        if parsed is None:
            self.fail(f"{value!r} is not STRATEGY.PARAM=VALUE; write for example trend.fast_bars=8", param, ctx)
        return (parsed[1], parsed[2]), parsed[3]


def speed_of(clock: str) -> float:
    """How many times faster the service's clock runs than real time; 0 for the manual clock."""
    if clock == "manual":
        return 0.0
    return 1.0 if clock == "real" else float(clock[:-1])


def recordings(given: tuple[CandlesFile, ...], *, otherwise: str | None) -> tuple[tuple[str, Path], ...]:
    """Each file with its market: the given one, else from the file's name, else `otherwise`.

    ConfigError if none of these names a market.
    """
    from bot.errors import ConfigError
    from bot.service.market_data.file_names import NamesNoMarket, coin_of
    from bot.service.market_data.instruments import CATALOGUE

    files: list[tuple[str, Path]] = []
    for coin, path in given:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.name.endswith((".csv", ".csv.gz")))
            if not inside:
                raise ConfigError(f"{path}: no .csv or .csv.gz file in this folder")
            files += recordings(tuple(CandlesFile(None, file) for file in inside), otherwise=None)
            continue
        if coin is None:
            try:
                coin = coin_of(path, tuple(CATALOGUE))
            except NamesNoMarket:
                if otherwise is None:
                    raise
                coin = otherwise
        files.append((coin, path))
    return tuple(files)


_SIDED: Final = re.compile(r"(?:((?:event:|perp:)?[A-Za-z0-9][A-Za-z0-9._-]*)=)?(.+)", re.DOTALL)


_OUTAGE: Final = re.compile(r"(.+?)\+([0-9.]+ *[smhd]?)")


_CLASSES: Final = ("crypto", "stocks", "bonds", "prediction")


class Instant(click.ParamType[int]):
    """`2025-05-01`, `2025-05-01T10:30`, with `Z` or an offset; UTC when none is given. Or unix milliseconds."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from datetime import UTC, datetime

        from bot.clock import ms_of

        if isinstance(value, int):
            return value
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) in (12, 13):
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value!r} is not a time; write 2025-05-01, 2025-05-01T10:30 or unix milliseconds", param, ctx)
        return ms_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


class Amount(click.ParamType[Decimal]):
    """A plain decimal number."""

    name = "usd"

    def convert(self, value: str | Decimal, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        return value if isinstance(value, Decimal) else _number(value, lambda text: self.fail(text, param, ctx))


class Fraction(click.ParamType[Decimal]):
    """`0.5` or `50%`: above 0, at most 1."""

    name = "fraction"

    def convert(self, value: str | Decimal, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        if isinstance(value, Decimal):
            return value
        given = value.strip()
        number = _number(given.removesuffix("%"), lambda text: self.fail(text, param, ctx))
        fraction = number / 100 if given.endswith("%") else number
        if not 0 < fraction <= 1:
            self.fail(f"{value!r} is not above 0 and at most 1; write 0.5 or 50%", param, ctx)
        return fraction


def _number(text: str, fail: Callable[[str], Any]) -> Decimal:
    try:
        number = Decimal(text.strip().replace("_", ""))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number < 0:
        fail(f"{text!r} is not a number of at least 0")
    return number


class Sided(click.ParamType[tuple[str, Decimal]]):
    """`VALUE`, `CLASS=VALUE` or `MARKET=VALUE`; the value with `%` or `bps` where it is a rate, unless it is 0.

    Only a `signed` rate may be negative.
    """

    def __init__(self, name: str, unit: str, *, signed: bool = False) -> None:
        self.name = name
        self._unit = unit
        self._signed = signed

    def convert(
        self, value: str | tuple[str, Decimal], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Decimal]:
        if isinstance(value, tuple):
            return value
        matched = _SIDED.fullmatch(value.strip())
        if matched is None:
            self.fail(f"{value!r} is not a value; write VALUE, CLASS=VALUE or MARKET=VALUE", param, ctx)
        whose, text = matched[1] or "", matched[2].strip()
        if whose and whose.lower() not in _CLASSES:
            from bot.backtest.data.candles import market_name

            whose = market_name(whose)
        else:
            whose = whose.lower()
        scale = Decimal(1)
        if self._signed and text.startswith("-"):
            scale, text = Decimal(-1), text[1:]
        if self._unit in ("rate", "bps"):
            parsed = re.fullmatch(r"([0-9.]+) *(%|bps)?", text)
            if parsed is None:
                self.fail(f"{text!r} is not a rate; write 0.05% or 5bps", param, ctx)
            text = parsed[1]
            if parsed[2] is None and text.strip("0."):
                self.fail(f"{text!r} has no unit; write {text}% or {text}bps", param, ctx)
            scale *= Decimal("0.01" if parsed[2] == "%" else "0.0001") * (1 if self._unit == "rate" else 10_000)
        return whose, _number(text, lambda message: self.fail(message, param, ctx)) * scale


class Out(click.ParamType["Outage"]):
    """`2025-05-03T10:00+2h`."""

    name = "time+duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Outage:
        from bot.backtest.engine.options import Outage

        if isinstance(value, Outage):
            return value
        parsed = _OUTAGE.fullmatch(value.strip())
        if parsed is None:
            self.fail(f"{value!r} is not an outage; write 2025-05-03T10:00+2h", param, ctx)
        return Outage(Instant().convert(parsed[1], param, ctx), round(Duration().convert(parsed[2], param, ctx) * 1000))


class SettledParam(click.ParamType[tuple[str, "Settlement"]]):
    """`event:RATE-CUT`, `event:RATE-CUT=yes`, `event:RATE-CUT=2025-03-20T18:00=no`."""

    name = "market=time=outcome"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Settlement]:
        from bot.backtest.data.candles import market_name
        from bot.backtest.engine.options import Settlement

        if isinstance(value, tuple):
            return value
        name, *rest = (part.strip() for part in value.split("="))
        outcome = at_ms = None
        if rest and re.fullmatch(r"(?i)yes|no|[01](\.[0-9]+)?", rest[-1]):
            word = rest.pop().lower()
            outcome = Decimal({"yes": 1, "no": 0}.get(word, word))
        if rest:
            at_ms = Instant().convert(rest.pop(), param, ctx)
        if rest:
            self.fail(f"{value!r} is not a settlement; write event:RATE-CUT=2025-03-20T18:00=yes", param, ctx)
        return market_name(name), Settlement(at_ms, outcome)


class Capped(click.ParamType[tuple[str, Any]]):
    """`maxDailyNotionalUsd=5000`."""

    name = "cap"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        from bot.backtest.engine.caps import cap_of

        return value if isinstance(value, tuple) else cap_of(value)
