"""Values of options: durations, clocks, candle files. Each says what is wrong and what to write."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Final, NamedTuple

import click

SPEED_MAX: Final = 3600  # the service's bound on an accelerated clock
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Group(click.Group):
    """A group that lists its commands with the whole of what they do; click's own cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, inspect.cleandoc(one.help or "").partition("\n\n")[0])
                    for name, one in sorted(self.commands.items())
                ]
            )


class Duration(click.ParamType[float]):
    """`60s`, `5m`, `1.5h`, `300ms`, `90` (seconds); nothing at all only where it `may_be_zero`."""

    name = "duration"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) *(ms|[smhd]?)", value.strip(), re.ASCII)
        if found is None or (float(found[1]) <= 0 and not self._may_be_zero):
            self.fail(f"{value!r} is no duration; write 60s, 5m or 1.5h", param, ctx)
        if found[2] == "ms" and float(found[1]) % 1:
            self.fail(f"{value!r}: a millisecond is the least there is; write whole ones", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


def reserved(*, for_json: bool) -> AbstractContextManager[object]:
    """Standard output is for one JSON object: what a strategy prints meanwhile goes to standard error."""
    return redirect_stdout(sys.stderr) if for_json else nullcontext()


class Clock(click.ParamType[str]):
    """`real`, `manual` or how many times faster: `60x`. The text as the service takes it."""

    name = "clock"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = value.strip().lower()
        if text in ("real", "manual"):
            return text
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?x", text, re.ASCII) or not 1 <= float(text[:-1]) <= SPEED_MAX:
            self.fail(f"{value!r} is no clock; write real, manual, or 1x to {SPEED_MAX}x", param, ctx)
        return text


class Candles(NamedTuple):
    """A file of candles, and the market that it was given for, if it was."""

    coin: str | None
    path: Path


class CandleFile(click.ParamType[Candles]):
    """`FILE` or `COIN=FILE`."""

    name = "file"

    def convert(self, value: str | Candles, param: click.Parameter | None, ctx: click.Context | None) -> Candles:
        if isinstance(value, Candles):
            return value
        from bot.wire.order_requests import bare_coin

        named = re.fullmatch(
            r"((?:perp:)?[a-z0-9]{1,20}|event:[a-z0-9][a-z0-9._-]{0,63})=(.+)", value, re.ASCII | re.IGNORECASE
        )
        return Candles(bare_coin(named[1]), Path(named[2])) if named is not None else Candles(None, Path(value))


def speed_of(clock: str) -> float:
    """Seconds of the service in a real one; 0 for the manual clock."""
    if clock == "manual":
        return 0.0
    return 1.0 if clock == "real" else float(clock[:-1])


def recordings(given: tuple[Candles, ...], *, otherwise: str | None) -> tuple[tuple[str, Path], ...]:
    """Each file with its market: as given, else by the file's name, else `otherwise`. ConfigError when none of them says."""
    from bot.errors import ConfigError
    from bot.service.catalogue import CATALOGUE
    from bot.service.recorded import coin_of

    found: list[tuple[str, Path]] = []
    for coin, path in given:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.name.endswith((".csv", ".csv.gz")))
            if not inside:
                raise ConfigError(f"{path}: no .csv or .csv.gz file in this folder")
            found += recordings(tuple(Candles(None, one) for one in inside), otherwise=None)
            continue
        if coin is None:
            try:
                coin = coin_of(path, tuple(CATALOGUE))
            except ConfigError:
                if otherwise is None:
                    raise
                coin = otherwise
        found.append((coin, path))
    return tuple(found)
