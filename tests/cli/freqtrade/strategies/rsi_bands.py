"""For freqtrade. The RSI crosses 30 from below, under the middle of the bands. A table of three targets."""

import freqtrade.vendor.qtpylib.indicators as qtpylib
import talib.abstract as ta
from freqtrade.strategy import IStrategy
from pandas import DataFrame


class RsiBands(IStrategy):
    """The RSI crosses 30 from below, under the middle of the bands. A table of three targets."""

    INTERFACE_VERSION = 3
    timeframe = "5m"
    minimal_roi = {"60": 0.005, "30": 0.01, "0": 0.02}
    stoploss = -0.03
    startup_candle_count: int = 60
    process_only_new_candles = True
    order_types = {"entry": "limit", "exit": "limit", "stoploss": "market", "stoploss_on_exchange": False}

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe["rsi"] = ta.RSI(dataframe)
        dataframe["tema"] = ta.TEMA(dataframe, timeperiod=9)
        dataframe["adx"] = ta.ADX(dataframe)
        bollinger = qtpylib.bollinger_bands(qtpylib.typical_price(dataframe), window=20, stds=2)
        dataframe["bb_lowerband"] = bollinger["lower"]
        dataframe["bb_middleband"] = bollinger["mid"]
        dataframe["bb_upperband"] = bollinger["upper"]
        dataframe["bb_width"] = (dataframe["bb_upperband"] - dataframe["bb_lowerband"]) / dataframe["bb_middleband"]
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            (
                (qtpylib.crossed_above(dataframe["rsi"], 30))
                & (dataframe["close"] <= dataframe["bb_middleband"])
                & (dataframe["bb_width"] > 0.002)
                & (dataframe["volume"] > 0)
            ),
            ["enter_long", "enter_tag"],
        ] = (1, "rsi_cross")
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[(qtpylib.crossed_above(dataframe["rsi"], 70)) & (dataframe["volume"] > 0), "exit_long"] = 1
        return dataframe
