"""Marks of quiet markets: prices that change only the mark, and that the machine has not logged yet."""

from __future__ import annotations

from bot.service.market_data.price_feed import FeedPoint
from bot.venue.model.commands import SetMarks, SetQuotes
from bot.venue.model.numbers import E8
from bot.venue.model.state import State
from bot.venue.prices.quiet_band import QuietBand, band_of


class QuietMarks:
    """`marks`: the newest mark of each market whose price is inside its quiet band.

    `quotes`: bid and ask of those that came as a quote.
    """

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.quotes: dict[str, tuple[int, int]] = {}
        self._bands: dict[str, QuietBand] = {}

    def note(self, state: State, point: FeedPoint) -> bool:
        """Note a price inside the market's quiet band. False for any other price: the machine must apply it."""
        band = self._band(state, point.coin)
        if band.lo < point.px / E8 < band.hi and point.at_ms < band.until_ms and point.coin not in self.quotes:
            self.marks[point.coin] = point.px
            return True
        return False

    def note_quote(self, state: State, coin: str, at_ms: int, mark: int, bid: int, ask: int) -> bool:
        """Note a quote inside the market's quiet band: neither mark nor ask is at a falling level, neither mark nor
        bid at a rising one.
        """
        band = self._band(state, coin)
        if band.lo < min(mark, ask) / E8 and max(mark, bid) / E8 < band.hi and at_ms < band.until_ms:
            self.marks[coin], self.quotes[coin] = mark, (bid, ask)
            return True
        return False

    def _band(self, state: State, coin: str) -> QuietBand:
        band = self._bands.get(coin)
        if band is None:
            band = self._bands[coin] = band_of(state, coin)
        return band

    def take(self, coin: str, default: int) -> int:
        """Remove and return the mark of a market;

        `default` if it has none here. A quote stays: its spread must be logged.
        """
        return default if coin in self.quotes else self.marks.pop(coin, default)

    def drain(self) -> list[SetMarks | SetQuotes]:
        """Clear the held marks and quotes, and return the commands that log them."""
        commands: list[SetMarks | SetQuotes] = []
        if self.quotes:
            commands.append(
                SetQuotes(tuple((coin, self.marks.pop(coin), *self.quotes[coin]) for coin in sorted(self.quotes)))
            )
            self.quotes = {}
        if self.marks:
            commands.append(SetMarks(tuple(sorted(self.marks.items())), running=True))
            self.marks = {}
        return commands

    def forget_bands(self) -> None:
        """Compute the bands again at the next price, because a command has changed the state."""
        self._bands = {}

    def show(self, state: State) -> None:
        """Write the marks into the state for a reader."""
        for coin, px in self.marks.items():
            if coin in self.quotes:
                state.markets[coin].see_quote(px, *self.quotes[coin])
            else:
                state.markets[coin].see(px)
