"""Marks of quiet markets: prices that change only the mark, and that the machine has not logged yet."""

from __future__ import annotations

from bot.service.market_data.price_feed import Point
from bot.venue.commands import SetMarks
from bot.venue.numbers import E8
from bot.venue.quiet_band import QuietBand, band_of
from bot.venue.state import State


class QuietMarks:
    """`marks`: the newest mark of each market whose price is inside its quiet band."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self._bands: dict[str, QuietBand] = {}

    def note(self, state: State, point: Point) -> bool:
        """Note a price inside the market's quiet band. False for any other price: the machine must apply it."""
        band = self._bands.get(point.coin)
        if band is None:
            band = self._bands[point.coin] = band_of(state, point.coin)
        if band.lo < point.px / E8 < band.hi and point.at_ms < band.until_ms:
            self.marks[point.coin] = point.px
            return True
        return False

    def take(self, coin: str, default: int) -> int:
        """Remove and return the mark of a market; `default` if it has none here."""
        return self.marks.pop(coin, default)

    def drain(self) -> SetMarks | None:
        """Remove all marks, as the command that logs them. None if there are none."""
        if not self.marks:
            return None
        marks, self.marks = SetMarks(tuple(sorted(self.marks.items())), running=True), {}
        return marks

    def forget_bands(self) -> None:
        """Compute the bands again at the next price, because a command has changed the state."""
        self._bands = {}

    def show(self, state: State) -> None:
        """Write the marks into the state for a reader."""
        for coin, px in self.marks.items():
            state.markets[coin].see(px)
