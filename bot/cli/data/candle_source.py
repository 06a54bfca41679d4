"""Candles from a running service, for `bot data pull`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import click

from bot.words import meant_market

if TYPE_CHECKING:
    from bot.backtest.data.candles import Candles
    from bot.client import Client
    from bot.errors import BotError

# market names listed in the error about an unknown one
MARKETS_SHOWN: Final = 30


async def _newest_or_why(client: Client, name: str, interval: str) -> Candles | BotError:
    from bot.errors import ApiError, BotError

    try:
        return await newest(client, name, interval)
    # The service failed, not only this market.
    except ApiError:
        raise
    except BotError as error:
        return error


async def newest(client: Client, name: str, interval: str) -> Candles:
    """The closed candles that a service has of one market.

    BotError if it has none or they are not sorted; UsageError for an unknown market.
    """
    from array import array

    from bot.backtest.data.candles import Candles
    from bot.errors import BotError, Refused
    from bot.wire import CANDLES_MAX

    try:
        answer = await client.candles(name, interval, CANDLES_MAX)
    except Refused as error:
        known = (
            [market.coin for market in (await client.markets(view="all")).markets] if error.code == "not_found" else []
        )
        if not known or name in known:
            raise
        near = meant_market(name, known)
        hint = f" Did you mean {near}?" if near is not None else ""
        shown = ", ".join(known[:MARKETS_SHOWN]) + (" ..." if len(known) > MARKETS_SHOWN else "")
        raise click.UsageError(f"{name}: the service has no such market.{hint} There are {shown}") from None
    closed = [candle for candle in answer.candles if candle.closed]
    if not closed:
        raise BotError(f"{name} {interval}: the service has no closed candle yet")
    at_ms = array("q", (candle.ts for candle in closed))
    if any(a >= b for a, b in pairwise(at_ms)):
        raise BotError(f"{name} {interval}: the service's candles are not sorted by time; nothing was stored")
    opens, highs, lows, closes, volumes = (
        array("d", (float(getattr(candle, column)) for candle in closed))
        for column in ("open", "high", "low", "close", "volume")
    )
    return Candles(name, interval, at_ms, opens, highs, lows, closes, volumes)


@asynccontextmanager
async def client_of(config_file: Path | None, base_url: str | None, *, otherwise: str) -> AsyncIterator[Client]:
    """A client of the service that the options name. BotError with the hint `otherwise` if none answers.

    Candles need no API key. A hosted service gets the key of the config if the key can be read.
    """
    from bot.cli.common.daemon_client import folder_of, is_closed
    from bot.cli.operate.credentials import key_of
    from bot.cli.run.embedded_service import Embedded
    from bot.client import Client
    from bot.client.faults import FailureKind
    from bot.config import ConfigError, read
    from bot.config.references import Noted
    from bot.errors import ApiError, BotError
    from bot.runtime.journal.queries import Closed

    address, key = base_url or "http://127.0.0.1:8700", None
    if config_file is not None:
        settings = read(config_file, lookup=Noted(config_file.absolute().parent, os.environ)).settings
        address = settings.account.base_url
        if settings.account.embedded:
            folder = folder_of(config_file)
            if is_closed(folder):
                raise Closed(folder)
            service = Embedded(folder)
            running_url = service.base_url if folder.is_dir() and service.is_alive() else None
            if running_url is None:
                started = f"`bot run {quote(str(config_file))}` starts it; {otherwise}"
                raise BotError(f"the embedded service of {config_file} is not running: {started}")
            address = running_url
        else:
            with suppress(ConfigError):
                key = key_of(config_file)
    async with Client(address, key) as client:
        try:
            yield client
        except ApiError as error:
            if error.code not in set(FailureKind):
                raise
            raise BotError(f"no service answers at {address} ({error.message}): {otherwise}") from None
