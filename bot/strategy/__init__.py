"""The page an author learns: a strategy is a function from a view and a closed bar to intents.

What lives here: the base class (`base`), what it sees (`bar`, `view`, `history`), what it may want (`intents`), and
declared indicators (`indicators`). What may not: a client, a clock, I/O, `await`. Everything an author needs is
exported here and again by `bot`; the runtime is the only other reader.
"""

from bot.strategy.bar import Bar
from bot.strategy.base import Strategy
from bot.strategy.history import History
from bot.strategy.indicators import Indicator, atr, ema, highest, lowest, rsi, sma
from bot.strategy.intents import Bracket, Cancel, Close, Intent, MaxHold, Number, Open, Side, TrailingStop
from bot.strategy.params import Field, Params
from bot.strategy.view import Fill, GuardianNote, OrderView, PositionView, State, Timer, Trigger, View, ViewSource

__all__ = [
    "Bar",
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
    "Side",
    "State",
    "Strategy",
    "Timer",
    "TrailingStop",
    "Trigger",
    "View",
    "ViewSource",
    "atr",
    "ema",
    "highest",
    "lowest",
    "rsi",
    "sma",
]
