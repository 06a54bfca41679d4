"""The lowest and the highest price of each closed trade, in the journal from now on.

The prices come from candles after the exit, so a trade first has no extremes. A trade whose candles nobody has keeps
none: they are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from bot.money import E8, decimal_of_e8, format_decimal
from bot.runtime.journal.round_trip_log import RoundTripLog
from bot.runtime.journal.round_trips import Trip
from bot.runtime.journal.state_store import is_number

if TYPE_CHECKING:
    from bot.runtime.journal.journal import Journal

# the note of the last event that was looked at for the end of a trade
NOTE: Final = "extremes_seq"
# trades that are looked at together
TRADES_MAX: Final = 50
# As many as trades can have events in the journal.
ROWS_KEPT: Final = 50_000
SEQ_MAX: Final = 2**62


class ClosedTrip(NamedTuple):
    """A trade with the place of its closing event. `trip` None: the journal does not have the whole trade."""

    seq: int
    event_id: str
    trip: Trip | None


# A trade -> the prices that are known to lie between its entry and its exit, and the length of their bars in ms
PricesOf = Callable[[Trip], tuple[list[float], int]]


class TradeExtremes:
    """The table of one journal. Every method that writes has committed when it returns."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.trips = RoundTripLog(journal.database, journal.state, lambda: journal.events.changes)
        # the newest event that was looked at; the note is written only with a trade
        self._seen = 0

    def begin(self) -> None:
        """Begin with the next event, unless an earlier run has begun."""
        state = self._journal.state
        text = state.note(NOTE)
        if text is None or not is_number(text, SEQ_MAX):
            newest = self._journal.database.read("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
            state.write_note(NOTE, text := str(newest))
        self._seen = int(text)

    def unrecorded(self) -> list[ClosedTrip]:
        """The oldest trades that closed since, of those that `trips` has folded, at most TRADES_MAX."""
        closed = self.trips.closed_after(self._seen, TRADES_MAX)
        return [ClosedTrip(seq, event_id, trip if trip.complete else None) for seq, event_id, trip in closed]

    def write(self, closed: ClosedTrip, low: float, high: float, step_ms: int) -> None:
        """Record the extremes of a trade, and that it is done."""
        prices = [format_decimal(decimal_of_e8(round(px * E8))) for px in (low, high)]
        with self._journal.together():
            self._journal.database.execute(
                "INSERT OR REPLACE INTO trade_extremes (event_id, low_px, high_px, step_ms) VALUES (?,?,?,?)",
                (closed.event_id, *prices, step_ms),
            )
            self._journal.database.execute(
                "DELETE FROM trade_extremes WHERE seq <= (SELECT max(seq) FROM trade_extremes) - ?", (ROWS_KEPT,)
            )
            self.done(closed)

    def done(self, closed: ClosedTrip) -> None:
        """Go on after this trade, whose extremes are recorded or will never be known."""
        self._seen = closed.seq
        self._journal.state.write_note(NOTE, str(closed.seq))


def own_prices(trip: Trip) -> list[float]:
    """The average prices of a trade's entries and exits."""
    averages = (trip.row(lambda _keys: [])[name] for name in ("entry_px", "exit_px"))
    return [float(Decimal(px)) for px in averages if px is not None]
