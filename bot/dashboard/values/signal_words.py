"""A strategy's decision in words, made from the Python text of its signal that the journal holds.

The text is parsed and never executed. A text that is no signal is shown as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bot.dashboard.values import formatting

_ABSENT: Final = re.compile(r"(?:, )?\b\w+=(?:None|\(\))")


class _Value(NamedTuple):
    """A value of the text: `Bracket(stop_pct=5)`."""

    name: str
    given: Mapping[str, Any]


def short_signal(text: str) -> str:
    """A signal without the members that it leaves open: `Open(market='BTC', side='long', usd=200.0)`."""
    return _ABSENT.sub("", text).replace("(, ", "(")


def signal_words(text: str) -> str:
    """A signal in words: `Open long BTC, 200.00 USD: stop 5 %, target 1.5 R`."""
    try:
        value = _value(ast.parse(text, mode="eval").body)
        return _WORDS[value.name](value.given) if isinstance(value, _Value) else short_signal(text)
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return short_signal(text)


def _value(node: ast.expr) -> Any:
    """The value of a literal, or of a call with named literals. ValueError or TypeError for any other node."""
    if isinstance(node, ast.Tuple | ast.List):
        return [_value(each) for each in node.elts]
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if not isinstance(node.func, ast.Name):
        raise TypeError("no signal")
    if node.func.id == "Decimal" and len(node.args) == 1:
        return formatting.number(ast.literal_eval(node.args[0]))
    given = {member.arg or "": _value(member.value) for member in node.keywords}
    return _Value(node.func.id, {name: value for name, value in given.items() if value is not None})


def _plain(value: Any) -> str:
    """A number without needless zeros: `5`, `1.5`."""
    return formatting.size(value)


def _amount(given: Mapping[str, Any]) -> str:
    if "usd" in given:
        return f"{formatting.usd(given['usd'])} USD"
    return f"size {_plain(given['size'])}" if "size" in given else ""


def _open(given: Mapping[str, Any]) -> str:
    parts = [f"Open {given['side']} {given['market']}", _amount(given)]
    if "limit_px" in given:
        parts.append(f"limit {formatting.px(given['limit_px'])}")
    if "leverage" in given:
        parts.append(f"leverage {_plain(given['leverage'])}×")
    bracket: Any = given.get("bracket")
    protection = [] if bracket is None else _bracket(bracket.given)
    protection += [_GUARDIANS[guardian.name](guardian.given) for guardian in given.get("guardians", ())]
    text = ", ".join(filter(None, parts))
    return f"{text}: {', '.join(protection)}" if protection else text


def _bracket(given: Mapping[str, Any]) -> list[str]:
    texts = [text for name, text in _levels(given)]
    texts += [f"{_plain(100 * fraction)} % at {_level(level)}" for fraction, level in given.get("targets", ())]
    return [*texts, f"stop to the entry at {given['break_even_at']}"] if "break_even_at" in given else texts


def _levels(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    forms: Mapping[str, Callable[[Any], str]] = {
        "stop_pct": lambda value: f"stop {_plain(value)} %",
        "stop_px": lambda value: f"stop {formatting.px(value)}",
        "target_pct": lambda value: f"target {_plain(value)} %",
        "target_px": lambda value: f"target {formatting.px(value)}",
        "target_r": lambda value: f"target {_plain(value)} R",
    }
    return [(name, form(given[name])) for name, form in forms.items() if name in given]


def _level(level: Any) -> str:
    return level if isinstance(level, str) else formatting.px(level)


def _trailing(given: Mapping[str, Any]) -> str:
    far = f"{_plain(given['trail_pct'])} %" if "trail_pct" in given else f"{_plain(given['trail_r'])} R"
    begins = f" from {_plain(given['activate_at_r'])} R on" if "activate_at_r" in given else ""
    return f"trailing stop {far}{begins}"


def _close(given: Mapping[str, Any]) -> str:
    if "fraction" in given:
        return f"Close {_plain(100 * given['fraction'])} % of {given['market']}"
    amount = _amount(given).removeprefix("size ")
    return f"Close {amount} of {given['market']}" if amount else f"Close {given['market']}"


def _cancel(given: Mapping[str, Any]) -> str:
    return f"Cancel order {given['oid']}" if "oid" in given else f"Cancel the entries in {given['market']}"


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {"Open": _open, "Close": _close, "Cancel": _cancel}
_GUARDIANS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "TrailingStop": _trailing,
    "MaxHold": lambda given: f"at most {formatting.duration(given['seconds'])}",
}
