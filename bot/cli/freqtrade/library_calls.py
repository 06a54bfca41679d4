"""The functions of TA-Lib and qtpylib as declared indicators of this project, or as expressions of pandas.

An entry has the names and defaults of the arguments, and an expression for each line; "" is a single line. `{values}`
is the series that the function reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LibraryCall = tuple[Mapping[str, Any], Mapping[str, str]]
# declared indicators, and what a computed column gets in place of one
INDICATORS: Final[Mapping[str, str]] = {
    "sma": "({values}).rolling({bars}).mean()",
    "highest": "({values}).rolling({bars}).max()",
    "lowest": "({values}).rolling({bars}).min()",
    **dict.fromkeys(("ema", "rsi", "atr", "adx", "macd"), ""),
}
_TYPICAL = '((dataframe["high"] + dataframe["low"] + dataframe["close"]) / 3)'
_LOW, _HIGH = 'dataframe["low"].rolling({fastk_period}).min()', 'dataframe["high"].rolling({fastk_period}).max()'
_FASTK = f'(100 * (dataframe["close"] - {_LOW}) / ({_HIGH} - {_LOW}))'
_SPREAD = f"{_TYPICAL}.rolling({{timeperiod}}).apply(lambda rows: abs(rows - rows.mean()).mean(), raw=True)"
_FLOW = f'({_TYPICAL} * dataframe["volume"]).where({_TYPICAL}.diff(1) %s 0, 0.0).rolling({{timeperiod}}).sum()'
_MEAN, _MACD = "({values}).rolling({window}).mean()", "macd({fastperiod}, {slowperiod}, {signalperiod}"
_BBAND = "({values}).rolling({timeperiod}).mean() %s ({values}).rolling({timeperiod}).std(ddof=0)"
# functions of one period and one line: its default, and the expression
_SINGLE: Final[Mapping[str, tuple[int, str]]] = {
    "SMA": (30, "sma({timeperiod}, {values})"),
    "EMA": (30, "ema({timeperiod}, {values})"),
    "MAX": (30, "highest({timeperiod}, {values})"),
    "MIN": (30, "lowest({timeperiod}, {values})"),
    "RSI": (14, "rsi({timeperiod}, {values})"),
    "ATR": (14, "atr({timeperiod})"),
    "NATR": (14, '100 * atr({timeperiod}) / dataframe["close"]'),
    "ADX": (14, "adx({timeperiod})"),
    "PLUS_DI": (14, 'adx({timeperiod}, line="plus")'),
    "MINUS_DI": (14, 'adx({timeperiod}, line="minus")'),
    "MOM": (10, "({values}).diff({timeperiod})"),
    "ROC": (10, "100 * ({values}).pct_change({timeperiod})"),
    "STDDEV": (5, "({values}).rolling({timeperiod}).std(ddof=0)"),
    "WILLR": (14, f"{_FASTK} - 100".replace("fastk_period", "timeperiod")),
    "CCI": (14, f"({_TYPICAL} - {_TYPICAL}.rolling({{timeperiod}}).mean()) / (0.015 * {_SPREAD})"),
    "MFI": (14, f"100 * {_FLOW % '>'} / ({_FLOW % '>'} + {_FLOW % '<'})"),
}
TALIB: Final[Mapping[str, LibraryCall]] = {
    **{name: ({"timeperiod": period}, {"": text}) for name, (period, text) in _SINGLE.items()},
    "MACD": (
        {"fastperiod": 12, "slowperiod": 26, "signalperiod": 9},
        {"macd": f"{_MACD})", "macdsignal": f'{_MACD}, line="signal")', "macdhist": f'{_MACD}, line="histogram")'},
    ),
    "BBANDS": (
        {"timeperiod": 5, "nbdevup": 2, "nbdevdn": 2},
        {
            "upperband": _BBAND % "+ {nbdevup} *",
            "middleband": "sma({timeperiod}, {values})",
            "lowerband": _BBAND % "- {nbdevdn} *",
        },
    ),
    "STOCHF": (
        {"fastk_period": 5, "fastd_period": 3},
        {"fastk": _FASTK, "fastd": f"{_FASTK}.rolling({{fastd_period}}).mean()"},
    ),
    "STOCH": (
        {"fastk_period": 5, "slowk_period": 3, "slowk_matype": 0, "slowd_period": 3, "slowd_matype": 0},
        {
            "slowk": f"{_FASTK}.rolling({{slowk_period}}).mean()",
            "slowd": f"{_FASTK}.rolling({{slowk_period}}).mean().rolling({{slowd_period}}).mean()",
        },
    ),
}
QTPYLIB: Final[Mapping[str, LibraryCall]] = {
    "typical_price": ({}, {"": _TYPICAL}),
    "rolling_mean": ({"window": 200}, {"": _MEAN}),
    "bollinger_bands": (
        {"window": 20, "stds": 2},
        {
            "upper": f"{_MEAN} + {{stds}} * ({{values}}).rolling({{window}}).std()",
            "mid": _MEAN,
            "lower": f"{_MEAN} - {{stds}} * ({{values}}).rolling({{window}}).std()",
        },
    ),
}
LIBRARIES: Final = {"talib": TALIB, "qtpylib": QTPYLIB}
