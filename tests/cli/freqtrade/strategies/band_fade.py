"""For freqtrade. Buys below the lower band of TA-Lib while the RSI is low; one target."""

import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame


class BandFade(IStrategy):
    """Buys below the lower band of TA-Lib while the RSI is low; one target."""

    timeframe = "5m"
    minimal_roi = {"0": 0.012}
    stoploss = -0.015
    startup_candle_count = 40

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        bands = ta.BBANDS(dataframe, timeperiod=20, nbdevup=2.0, nbdevdn=2.0)
        dataframe["lower"] = bands["lowerband"]
        dataframe["rsi"] = ta.RSI(dataframe, timeperiod=14)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[(dataframe.close < dataframe.lower) & (dataframe.rsi < 35), "enter_long"] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[dataframe["rsi"] > 65, "exit_long"] = 1
        return dataframe
