"""For freqtrade. The fast stochastic turns while Williams' %R is low."""

import freqtrade.vendor.qtpylib.indicators as qtpylib
import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame


class StochasticTurn(IStrategy):
    """The fast stochastic turns while Williams' %R is low."""

    timeframe = "5m"
    minimal_roi = {"0": 0.015}
    stoploss = -0.012
    startup_candle_count = 40

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        stoch = ta.STOCHF(dataframe, fastk_period=5, fastd_period=3)
        dataframe["fastk"] = stoch["fastk"]
        dataframe["fastd"] = stoch["fastd"]
        dataframe["willr"] = ta.WILLR(dataframe, timeperiod=28)
        dataframe["roc"] = ta.ROC(dataframe, timeperiod=6)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            qtpylib.crossed_above(dataframe["fastk"], dataframe["fastd"])
            & (dataframe["fastk"] < 40)
            & (dataframe["willr"].shift(1) < -85)
            & (dataframe["roc"] < 0.5),
            "enter_long",
        ] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[(dataframe["willr"] > -10) | (dataframe["fastk"] > 98), "exit_long"] = 1
        return dataframe
