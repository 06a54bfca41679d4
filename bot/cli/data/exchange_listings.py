"""Markets of an exchange as entries of a listing file: from ccxt, or from a saved answer of its load_markets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from bot.cli.data.listing_text import quoted
from bot.errors import ConfigError
from bot.market_data import ccxt_feeder
from bot.market_data.source import Instrument, NotOffered
from bot.market_data.symbols import DOLLARS, mapped
from bot.service.market_data.instruments import SHIPPED
from bot.wire.vocabulary import bare_coin
from bot.words import many, meant_markets

# ccxt's constants of what `precision` counts
MODES: Final = SimpleNamespace(DECIMAL_PLACES=2, SIGNIFICANT_DIGITS=3, TICK_SIZE=4)
BYTES_MAX: Final = 200_000_000
STEP_MIN: Final = Decimal("0.00000001")
# the interface's highest leverage
LEVERAGE_MAX: Final = 50
# for a contract whose exchange does not say its leverage
LEVERAGE_UNKNOWN: Final = 10


def saved_instruments(path: Path, precision: str | None) -> list[Instrument]:
    """The markets of a JSON file of ccxt's load_markets (or fetch_markets)."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= BYTES_MAX else None
        held = None if raw is None else json.loads(raw, parse_float=str)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON: {error}; save json.dumps(exchange.load_markets())") from None
    if held is None:
        raise ConfigError(f"{path}: is larger than {BYTES_MAX:,} bytes; save fewer markets")
    rows = list(held.values()) if isinstance(held, dict) else held
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "symbol" in row for row in rows):
        raise ConfigError(f"{path}: holds no markets of ccxt; save json.dumps(exchange.load_markets())")
    mode = {"ticks": MODES.TICK_SIZE, "decimals": MODES.DECIMAL_PLACES}.get(precision or _precision_of(path, rows))
    exchange = SimpleNamespace(precisionMode=mode)
    read = []
    for number, row in enumerate(rows):
        try:
            if row["spot"] or row["contract"]:
                read.append(Instrument(**ccxt_feeder.instrument(MODES, exchange, row)))
        except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation) as error:
            raise ConfigError(
                f"{path}: market {number + 1} ({row.get('symbol')}): {type(error).__name__}: {error} is not as ccxt"
                " gives it; save json.dumps(exchange.load_markets())"
            ) from None
    return read


def _precision_of(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether the file counts ticks or decimals. Fractions are ticks; whole numbers alone may be both."""
    values = [
        Decimal(str(value))
        for row in rows
        for value in (row.get("precision") or {}).values()
        if isinstance(value, str | int) and _is_number(value)
    ]
    if any(value != int(value) for value in values):
        return "ticks"
    raise ConfigError(
        f"{path}: its precision may count decimals or be the distance of two prices; say which with --precision"
        " decimals or --precision ticks"
    )


def _is_number(value: object) -> bool:
    try:
        return Decimal(str(value)).is_finite()
    except InvalidOperation:
        return False


def chosen_markets(
    source: str, instruments: Sequence[Instrument], symbols: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The entries of a listing file, and a sentence about those that are left out.

    ConfigError for a market that is asked for and cannot be listed.
    """
    entries: dict[str, dict[str, Any]] = {}
    if symbols:
        for text in symbols:
            coin, instrument = _named(text, instruments, source)
            if coin in SHIPPED:
                raise ConfigError(
                    f"{coin} is a shipped market; list it under another name: {coin}.X={instrument.symbol}"
                )
            if (why := _lack(instrument)) is not None:
                raise ConfigError(f"{source}: {instrument.symbol} {why}; write it into the file by hand")
            entries[coin] = _entry(instrument)
        return entries, []
    lacking: dict[str, list[str]] = {}
    shipped = []
    for base in dict.fromkeys(each.base for each in instruments if each.quote in DOLLARS):
        try:
            best = mapped(base, instruments, source).instrument
        except NotOffered:
            continue
        coin = bare_coin(base)
        if best is None or not best.active:
            continue
        if coin in SHIPPED:
            shipped.append(coin)
        elif (why := _lack(best)) is not None:
            lacking.setdefault(why, []).append(best.symbol)
        else:
            entries[coin] = _entry(best)
    lines = [
        f"{many(len(names), 'market')} left out, which {why}: {', '.join(names)}" for why, names in lacking.items()
    ]
    if shipped:
        lines.append(f"{many(len(shipped), 'market')} left out, which the service lists already: {', '.join(shipped)}")
    return entries, lines


def _named(text: str, instruments: Sequence[Instrument], source: str) -> tuple[str, Instrument]:
    """The name in this program and the market of NAME=SYMBOL, SYMBOL or NAME."""
    name, given, symbol = text.partition("=")
    by_symbol = {instrument.symbol: instrument for instrument in instruments}
    if not given and text in by_symbol:
        return bare_coin(by_symbol[text].base), by_symbol[text]
    if given and symbol not in by_symbol:
        near = meant_markets(symbol, list(by_symbol), 3)
        raise ConfigError(f"{source} has no market {symbol!r}{f'; did you mean {near[0]}?' if near else ''}")
    instrument = mapped(bare_coin(name) + given + symbol, instruments, source).instrument
    assert instrument is not None
    return bare_coin(name), instrument


def _lack(instrument: Instrument) -> str | None:
    """Why an instrument cannot be listed; None if it can."""
    for what, text in (("tick", instrument.tick), ("size step", instrument.size_step)):
        if text is None or Decimal(text) <= 0:
            return f"has no {what} in the answer"
        if Decimal(text) % STEP_MIN:
            return f"has a {what} that is no multiple of {STEP_MIN:f}"
    if instrument.kind != "spot" and not instrument.linear:
        return "is paid in its own coin"
    return None


def _entry(instrument: Instrument) -> dict[str, Any]:
    assert instrument.tick is not None
    assert instrument.size_step is not None
    is_spot = instrument.kind == "spot"
    most = Decimal(instrument.max_leverage or (1 if is_spot else LEVERAGE_UNKNOWN))
    entry: dict[str, Any] = {
        "name": quoted(f"{instrument.base} ({instrument.symbol})"),
        "tick": f"{Decimal(instrument.tick):f}",
        "lot": f"{Decimal(instrument.size_step):f}",
        "leverage": str(max(1, min(LEVERAGE_MAX, int(most)))),
    }
    if instrument.min_notional is not None and Decimal(instrument.min_notional) > 0:
        entry["minimum"] = f"{Decimal(instrument.min_notional).quantize(STEP_MIN, ROUND_CEILING).normalize():f}"
    fees = {name: value for name in ("taker", "maker") if (value := getattr(instrument, name)) is not None}
    if fees:
        entry["fees"] = {name: f"{Decimal(value):f}" for name, value in fees.items()}
    if instrument.quote not in DOLLARS:
        entry |= {"currency": instrument.quote, "rate": f"{instrument.quote}USD"}
    if is_spot:
        entry["funding"] = "false"
    return entry
