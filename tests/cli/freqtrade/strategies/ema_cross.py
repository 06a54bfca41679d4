"""For freqtrade. Two averages; no target."""

import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame
from technical import qtpylib

FAST = 9


class EmaCross(IStrategy):
    """Two averages; no target."""

    timeframe = "5m"
    minimal_roi = {"0": 100}
    stoploss = -0.02
    startup_candle_count = 200

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["fast"] = ta.EMA(dataframe, timeperiod=FAST)
        dataframe["slow"] = ta.EMA(dataframe["close"], timeperiod=21)
        dataframe["trend"] = ta.SMA(dataframe, timeperiod=100)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            qtpylib.crossed_above(dataframe["fast"], dataframe["slow"]) & (dataframe["close"] > dataframe["trend"]),
            "enter_long",
        ] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[qtpylib.crossed_below(dataframe["fast"], dataframe["slow"]), "exit_long"] = 1
        return dataframe
