"""For freqtrade. Conditions in a list, and protections after an exit and after stops."""

from functools import reduce

import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame


class GuardedAverage(IStrategy):
    """Conditions in a list, and protections after an exit and after stops."""

    timeframe = "5m"
    minimal_roi = {"0": 0.01}
    stoploss = -0.006
    startup_candle_count = 60

    @property
    def protections(self):
        return [
            {"method": "CooldownPeriod", "stop_duration_candles": 6},
            {
                "method": "StoplossGuard",
                "lookback_period_candles": 48,
                "trade_limit": 3,
                "stop_duration_candles": 24,
                "only_per_pair": False,
            },
        ]

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["sma"] = ta.SMA(dataframe, timeperiod=50)
        dataframe["volume_mean"] = dataframe["volume"].rolling(20).mean()
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        conditions = []
        conditions.append(dataframe["close"] > dataframe["sma"])
        conditions.append(dataframe["close"].shift(1) < dataframe["close"])
        conditions.append(dataframe["volume"] > dataframe["volume_mean"])
        if conditions:
            dataframe.loc[reduce(lambda x, y: x & y, conditions), "enter_long"] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[dataframe["close"] < dataframe["sma"] * 0.997, "exit_long"] = 1
        return dataframe
