"""What an author of strategies uses. A strategy is a function from a view and a closed bar to intents.

Start with the base class (`base`). `bar`, `view` and `history` hold what a strategy reads, `intents` what it returns,
`indicators` the declared indicators (`indicator_library`: those that talipp calculates). This package imports no
client, no clock and no I/O. `bot` exports the same names.
"""

from bot.strategy.bar import Bar
from bot.strategy.base import Strategy
from bot.strategy.history import History
from bot.strategy.indicator_library import (
    adx,
    bollinger,
    donchian,
    keltner,
    macd,
    roc,
    stddev,
    stochastic,
    supertrend,
    vwap,
)
from bot.strategy.indicators import Indicator, atr, ema, highest, lowest, rsi, sma
from bot.strategy.intents import Bracket, Cancel, Close, Intent, MaxHold, Number, Open, Side, TrailingStop
from bot.strategy.params import Field, Params
from bot.strategy.proposal import Proposal
from bot.strategy.questions import Answered, AskRecord, Question, Reply
from bot.strategy.signals import BarArrays, Signals, crossed_above
from bot.strategy.view import Fill, GuardianNote, OrderView, PositionView, State, Timer, Trigger, View, ViewSource

__all__ = [
    "Answered",
    "AskRecord",
    "Bar",
    "BarArrays",
    "Bracket",
    "Cancel",
    "Close",
    "Field",
    "Fill",
    "GuardianNote",
    "History",
    "Indicator",
    "Intent",
    "MaxHold",
    "Number",
    "Open",
    "OrderView",
    "Params",
    "PositionView",
    "Proposal",
    "Question",
    "Reply",
    "Side",
    "Signals",
    "State",
    "Strategy",
    "Timer",
    "TrailingStop",
    "Trigger",
    "View",
    "ViewSource",
    "adx",
    "atr",
    "bollinger",
    "crossed_above",
    "donchian",
    "ema",
    "highest",
    "keltner",
    "lowest",
    "macd",
    "roc",
    "rsi",
    "sma",
    "stddev",
    "stochastic",
    "supertrend",
    "vwap",
]
