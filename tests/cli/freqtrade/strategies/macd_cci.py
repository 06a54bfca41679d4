"""For freqtrade. MACD and its signal line; the CCI bounds are hyperopt parameters."""

from functools import reduce

import talib.abstract as ta
from freqtrade.strategy import BooleanParameter, IntParameter, IStrategy
from pandas import DataFrame


class MacdCci(IStrategy):
    """MACD and its signal line; the CCI bounds are hyperopt parameters."""

    INTERFACE_VERSION = 3
    timeframe = "5m"
    minimal_roi = {"0": 0.03}
    stoploss = -0.02
    startup_candle_count = 120

    buy_cci = IntParameter(low=-700, high=0, default=-50, space="buy", optimize=True)
    sell_cci = IntParameter(low=0, high=700, default=100, space="sell", optimize=True)
    buy_volume = BooleanParameter(default=True, space="buy")
    buy_params = {"buy_cci": -40}

    def populate_indicators(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        macd = ta.MACD(dataframe)
        dataframe["macd"] = macd["macd"]
        dataframe["macdsignal"] = macd["macdsignal"]
        dataframe["cci"] = ta.CCI(dataframe)
        return dataframe

    def populate_entry_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        conditions = [dataframe["macd"] > dataframe["macdsignal"], dataframe["cci"] <= self.buy_cci.value]
        if self.buy_volume.value:
            conditions.append(dataframe["volume"] > 0)
        dataframe.loc[reduce(lambda x, y: x & y, conditions), "enter_long"] = 1
        return dataframe

    def populate_exit_trend(self, dataframe: DataFrame, metadata: dict) -> DataFrame:
        dataframe.loc[
            (dataframe["macd"] < dataframe["macdsignal"]) & (dataframe["cci"] >= self.sell_cci.value), "exit_long"
        ] = 1
        return dataframe
