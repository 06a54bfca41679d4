"""The table of the forms in which programs and vendors write candles. A form that is not here is read by the usual
names of its columns, or by their order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_STAMP: Final = r"[0-9]{13}|[0-9]{16}"
_SECONDS: Final = r"[0-9]{10}"
_NUMBER: Final = r"[0-9.]+"
_COUNT: Final = r"[0-9]+"


class Form(NamedTuple):
    """How one program writes candles."""

    name: str
    # names of columns that together only this form has, in small letters
    header: frozenset[str] = frozenset()
    # a pattern for each cell of a row, in a file without a header
    row: tuple[str, ...] = ()
    # the file's name, if the columns are those of others too
    file: str = ""
    # as --columns has them
    columns: Mapping[str, str] = {}
    # the column with each row's market
    market: str | None = None
    # Prices are whole numbers of 1e-9, if they have no point.
    may_be_fixed: bool = False
    # The clock of times with an hour, which the file does not say: what --tz must say.
    clock: str | None = None


BY_NAME: Final = Form("columns by name")
BY_ORDER: Final = Form("columns by order")
YFINANCE: Final = Form("yfinance, several lines of names")
FORMS: Final = (
    Form(
        "Databento OHLCV",
        frozenset(["ts_event", "rtype", "publisher_id", "instrument_id"]),
        columns={"ts": "ts_event"},
        market="symbol",
        may_be_fixed=True,
    ),
    Form("Databento OHLCV", frozenset(["ts_event", "open", "close"]), columns={"ts": "ts_event"}, market="symbol"),
    Form(
        "Stooq",
        frozenset(["ticker", "per", "date", "time", "openint"]),
        columns={"ts": "date+time"},
        market="ticker",
        clock="Europe/Warsaw",
    ),
    Form("MetaTrader 5", frozenset(["date", "open", "tickvol", "spread"])),
    Form("MetaTrader 5", frozenset(["time", "open", "tick_volume", "spread", "real_volume"])),
    Form(
        "MetaTrader 4",
        row=(r"[0-9]{4}\.[0-9]{2}\.[0-9]{2}", r"[0-9]{2}:[0-9]{2}", *[_NUMBER] * 4, _COUNT),
        columns={"ts": "1+2", "open": "3", "high": "4", "low": "5", "close": "6", "volume": "7"},
    ),
    Form(
        "Investing.com",
        frozenset(["date", "price", "open", "high", "low", "vol.", "change %"]),
        columns={"close": "Price", "volume": "Vol."},
    ),
    Form("Interactive Brokers", frozenset(["date", "open", "close", "average", "barcount"])),
    Form("Binance Vision", frozenset(["open_time", "close_time", "quote_volume", "ignore"])),
    Form("Binance Vision", row=(_STAMP, *[_NUMBER] * 5, _STAMP, _NUMBER, _COUNT, *[_NUMBER] * 3)),
    Form("Kraken OHLCVT", row=(_SECONDS, *[_NUMBER] * 5, _COUNT)),
    Form("jesse", frozenset(["timestamp", "open", "close", "exchange", "symbol", "timeframe"]), market="symbol"),
    Form("TradingView", frozenset(["time", "open", "close"]), file=r"[A-Z0-9_]+_[^ ,]+, .+\.csv"),
    Form("freqtrade", frozenset(["date", "open", "close", "volume"]), file=r"[A-Z0-9]+(?:_[A-Z0-9]+)+-[0-9]+[mhdwM].*"),
    Form("freqtrade", row=(_STAMP, *[_NUMBER] * 5), file=r"[A-Z0-9]+(?:_[A-Z0-9]+)+-[0-9]+[mhdwM].*\.json.*"),
    Form("ccxt", row=(_STAMP, *[_NUMBER] * 5), file=r".*\.json.*"),
)


def form_of(file: str, header: Sequence[str] | None, cells: Sequence[str]) -> Form:
    """The form of a file by its name and its header, or the cells of its first row if it has none."""
    for form in FORMS:
        if form.file and not re.fullmatch(form.file, file):
            continue
        if header is not None and form.header and form.header <= {name.lower() for name in header}:
            return form
        if (
            header is None
            and len(form.row) == len(cells)
            and all(map(re.fullmatch, form.row, (cell.strip() for cell in cells)))
        ):
            return form
    return BY_ORDER if header is None else BY_NAME
