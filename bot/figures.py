"""A figure, and a column of a table, with the form in which people read its values. The terminal, the report, the
comparison, the dashboard, the wallet page and the page of a sweep use these two types. Pure.

A form of the table `FORMS` turns a raw value into text. Colour is a judgement: only a gain or a change for which more
is better has one, and only while it is known now. Sizes, prices, durations, costs and drawdowns have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from bot import number_text
from bot.number_text import MISSING, number

Better = Literal["higher", "lower", "none"]
State = Literal["known", "old", "unknown"]
Tone = Literal["up", "down", "flat"]
# Where a phone shows a cell: in the first line, below it with its own label, or nowhere.
OnPhone = Literal["first", "line", "drop"]

# Shown for a value that nobody has said. A value that does not exist is a dash.
NOT_KNOWN: Final = "not known"
HOUR_S: Final = 3_600


def _count(value: Any) -> str:
    amount = number(value)
    return MISSING if amount is None else f"{amount:,.0f}"


def _hours(value: Any) -> str:
    amount = number(value)
    return MISSING if amount is None else number_text.duration(float(amount) * HOUR_S)


def _seconds(value: Any) -> str:
    amount = number(value)
    return MISSING if amount is None else number_text.duration(float(amount))


def _param(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else _text(value)


def _text(value: Any) -> str:
    return MISSING if value is None else str(value)


# Name of a form -> the text of a raw value in a terminal. A cost is positive if it was paid, and is shown by its effect
# on the account. Percentages are numbers of percent.
FORMS: Final[Mapping[str, Callable[[Any], str]]] = {
    # stays on one line
    "text": _text,
    # folds
    "words": _text,
    "controls": _text,
    # a param of a strategy
    "param": _param,
    "count": _count,
    "usd": number_text.usd,
    "gain": number_text.signed_usd,
    "cost": number_text.cost_usd,
    # with its sign
    "change": number_text.pct,
    # a drawdown: with its sign, and for itself neither good nor bad
    "fall": number_text.pct,
    "percent": number_text.percent,
    "share": number_text.percent_share,
    "ratio": number_text.usd,
    "r": number_text.multiple,
    "px": number_text.px,
    "size": number_text.size,
    "times": number_text.times,
    "hours": _hours,
    "seconds": _seconds,
    "instant": number_text.instant,
}
LEFT: Final = frozenset({"text", "words", "controls", "instant"})
# Forms whose sign is good or bad by itself.
JUDGED: Final = frozenset({"gain", "change", "r"})
# Forms whose raw value is smaller when the account has more.
PAID: Final = frozenset({"cost"})


@dataclass(frozen=True, slots=True)
class Figure:
    """A named number. `note` is a second line below it. `better`: whether more is better, less, or neither.

    `state`: an old figure lost its colour, and one that is not known says so instead of a value.
    """

    name: str
    value: Any = None
    form: str = "text"
    better: Better = "none"
    unit: str = ""
    note: str = ""
    state: State = "known"

    def of(self, value: Any) -> Figure:
        """This figure with another value."""
        return replace(self, value=value)

    @property
    def text(self) -> str:
        """As a terminal shows it."""
        return NOT_KNOWN if self.state == "unknown" else FORMS[self.form](self.value)

    @property
    def shown(self) -> str:
        """As a page shows it."""
        return NOT_KNOWN if self.state == "unknown" else on_page(self.form, self.value)

    @property
    def tone(self) -> Tone:
        return tone_of(self.form, self.better, self.value) if self.state == "known" else "flat"

    def change(self, before: Any, after: Any) -> tuple[str, Tone]:
        """How the figure changed, with its sign, and whether that is better (`up`) or worse (`down`)."""
        first, last = number(before), number(after)
        if first is None or last is None:
            return MISSING, "flat"
        return change_text(self.form, last - first), better_or_worse(self.better, last - first)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head, and how its values are shown. Figures stand at the right and never fold.

    `is_hidden`: the head is for screen readers alone. `folds`: figures that are a list may take several lines.
    """

    head: str
    form: str = "text"
    better: Better = "none"
    unit: str = ""
    phone: OnPhone = "line"
    folds: bool = False
    is_hidden: bool = False

    @property
    def kind(self) -> str:
        """The classes of its cells in a style sheet."""
        names = ["" if self.form in LEFT else "right"]
        names.append("wrap" if self.form == "words" or self.folds else "")
        names += ["controls" if self.form == "controls" else "", self.phone if self.phone != "line" else ""]
        return " ".join(filter(None, names))

    @property
    def title(self) -> str:
        """The head of the figure with its unit."""
        return f"{self.head}, {self.unit}" if self.unit else self.head

    def text(self, value: Any) -> str:
        """A value as a terminal shows it. Texts stay as they are."""
        return value if isinstance(value, str) and self.form in LEFT else FORMS[self.form](value)

    def shown(self, value: Any) -> str:
        """A value as a page shows it."""
        return on_page(self.form, value)

    def tone(self, value: Any) -> Tone:
        return tone_of(self.form, self.better, value)


def on_page(form: str, value: Any) -> str:
    """A value in a form, as a page shows it: with a minus as wide as a plus. Texts of others keep their signs."""
    text = FORMS[form](value)
    return text if form in LEFT and value is not None else number_text.on_page(text)


def tone_of(form: str, better: Better, value: Any) -> Tone:
    """The colour of a value for itself."""
    amount = number(value) if form in JUDGED else None
    return better_or_worse(better, amount) if amount is not None else "flat"


def better_or_worse(better: Better, change: Any) -> Tone:
    """`up` if a change is for the better, `down` for the worse, `flat` if it is neither."""
    amount = number(change)
    if not amount or better == "none":
        return "flat"
    return "up" if (amount > 0) == (better == "higher") else "down"


def change_text(form: str, change: Any) -> str:
    """A difference of two values in a form, with its sign."""
    signed: Mapping[str, Callable[[Any], str]] = {
        "usd": number_text.signed_usd,
        "ratio": number_text.signed_usd,
        "percent": number_text.pct,
    }
    if form in signed:
        return signed[form](change)
    text = FORMS[form](change)
    is_growth = (number(change) or 0) > 0 and form not in JUDGED | PAID and not text.startswith("+")
    return f"+{text}" if is_growth and any(letter in "123456789" for letter in text) else text
