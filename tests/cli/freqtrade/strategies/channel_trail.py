"""For freqtrade. Leaves the range of 30 bars; a trailing stop that begins at an offset."""

from freqtrade.strategy import IStrategy
from pandas import DataFrame


class ChannelTrail(IStrategy):
    """Leaves the range of 30 bars; a trailing stop that begins at an offset."""

    timeframe = "5m"
    minimal_roi = {}
    stoploss = -0.02
    trailing_stop = True
    trailing_stop_positive = 0.006
    trailing_stop_positive_offset = 0.012
    trailing_only_offset_is_reached = True
    startup_candle_count = 40

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["upper"] = dataframe["high"].rolling(30).max().shift(1)
        dataframe["lower"] = dataframe["low"].rolling(window=30).min().shift(1)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["enter_long"] = (dataframe["close"] > dataframe["upper"]).astype(int)
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["exit_long"] = 0
        dataframe.loc[dataframe["close"] < dataframe["lower"], "exit_long"] = 1
        return dataframe
