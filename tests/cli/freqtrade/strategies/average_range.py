"""For freqtrade. A column for each value of a parameter, as hyperopt needs it."""

import talib.abstract as ta
from freqtrade.strategy import DecimalParameter, IntParameter, IStrategy
from pandas import DataFrame


class AverageRange(IStrategy):
    """A column for each value of a parameter, as hyperopt needs it."""

    timeframe = "5m"
    minimal_roi = {"0": 0.02}
    stoploss = -0.02
    startup_candle_count = 100

    buy_ema = IntParameter(10, 60, default=34, space="buy")
    sell_ema = IntParameter(10, 60, default=21, space="sell")
    buy_offset = DecimalParameter(0.9, 1.0, default=0.997, decimals=3, space="buy")

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        for val in self.buy_ema.range:
            dataframe[f"ema_buy_{val}"] = ta.EMA(dataframe, timeperiod=val)
        for val in self.sell_ema.range:
            dataframe[f"ema_sell_{val}"] = ta.EMA(dataframe, timeperiod=val)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            dataframe["close"] < dataframe[f"ema_buy_{self.buy_ema.value}"] * self.buy_offset.value, "enter_long"
        ] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[dataframe["close"] > dataframe[f"ema_sell_{self.sell_ema.value}"] * 1.003, "exit_long"] = 1
        return dataframe
