"""For freqtrade. Money flow with a spike of volume; a position ends after two hours."""

import numpy as np
import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame


class MoneyFlow(IStrategy):
    """Money flow with a spike of volume; a position ends after two hours."""

    timeframe = "5m"
    minimal_roi = {"0": 0.02, "120": -1}
    stoploss = -0.02
    use_exit_signal = False
    startup_candle_count = 60

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["mfi"] = ta.MFI(dataframe, timeperiod=14)
        dataframe["spike"] = np.where(dataframe["volume"] > dataframe["volume"].rolling(30).mean() * 1.3, 1, 0)
        dataframe["atr"] = ta.ATR(dataframe, timeperiod=14)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            (dataframe["mfi"] < 45) & (dataframe["spike"] == 1) & (dataframe["atr"] / dataframe["close"] > 0.001),
            "enter_long",
        ] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[dataframe["mfi"] > 80, "exit_long"] = 1
        return dataframe
