"""Reads the class of a freqtrade strategy: settings, exits, protections, parameters; methods by `frame_reader`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bot.cli.freqtrade.frame_reader import SIGNALS, FileFacts, FrameCode, ParamOf, Remark, is_number
from bot.cli.freqtrade.strategy_text import BUDGET_USD, USD, Converted
from bot.errors import ConfigError
from bot.strategy.indicators import PERIOD_MAX
from bot.strategy.intents import TRAIL_PCT_MAX, TRAIL_R_MAX
from bot.wire.vocabulary import INTERVAL_MS

FILE_MAX: Final = 1_000_000
# freqtrade's way to say never: a gain of ten times
NEVER: Final = 10
STOP_PCT: Final = 99
METHODS: Final = re.compile("populate_(indicators|(entry|exit|buy|sell)_trend)")
# what freqtrade calls, and nothing calls here
CALLBACKS: Final = re.compile(
    r"informative_pairs|custom_\w+|confirm_trade_\w+|check_\w+_timeout|adjust_\w+|leverage|bot_\w*start|order_filled"
    r"|feature_engineering_\w+|set_freqai_targets|version"
)
# settings that are read: what counts if one is missing, and what it must be
NUMBER: Final = (int, float)
SETTINGS: Final[Mapping[str, tuple[Any, tuple[type, ...]]]] = {
    "timeframe": (None, (str,)),
    "stoploss": (-1, NUMBER),
    "minimal_roi": ({}, (dict,)),
    "startup_candle_count": (0, (int,)),
    "max_open_trades": (-1, NUMBER),
    "can_short": (False, (bool,)),
    "use_exit_signal": (True, (bool,)),
    "trailing_stop": (False, (bool,)),
    "trailing_stop_positive": (None, (*NUMBER, type(None))),
    "trailing_stop_positive_offset": (0.0, NUMBER),
    "trailing_only_offset_is_reached": (False, (bool,)),
    "position_adjustment_enable": (False, (bool,)),
    "exit_profit_only": (False, (bool,)),
    "ignore_roi_if_entry_signal": (False, (bool,)),
    "use_custom_stoploss": (False, (bool,)),
}
# those that are not carried over when they are on
SWITCHES: Final = tuple(SETTINGS)[-4:]
SECTIONS: Final = ("buy_params", "sell_params", "protection_params")
LIBRARIES: Final = re.compile(
    r"(?P<talib>talib.*)|(?P<qtpylib>.*qtpylib.*)|(?P<numpy>numpy)|(?P<other>pandas_ta.*|technical.*)"
)
GUIDE: Final = "the guide From freqtrade names what takes its place"
_UNKNOWN: Final = object()


def converted(file: Path) -> Converted:
    """The strategy of a file. ConfigError if it is no Python, or has no class or several."""
    try:
        if file.stat().st_size > FILE_MAX:
            raise ConfigError(f"{file}: is larger than {FILE_MAX:,} bytes; give the file of one strategy")
        module = ast.parse(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file}: is no Python: {error}; give the file of one strategy") from None
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    known = {"IStrategy"}
    for node in classes:
        if known & {ast.unparse(base).rpartition(".")[2] for base in node.bases}:
            known.add(node.name)
    strategies = [node for node in classes if node.name in known]
    if len(strategies) != 1:
        there = ", ".join(f"{node.name} in line {node.lineno}" for node in strategies) or "none"
        raise ConfigError(f"{file}: needs one class that extends IStrategy, and has {there}; give a file with one")
    return _ClassReader(module, strategies[0]).read(file.name)


class _ClassReader:
    def __init__(self, module: ast.Module, node: ast.ClassDef) -> None:
        self._class = node
        self._findings: list[Remark] = []
        self._methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        values = dict(_assigned(node.body))
        self._lines = {name: value.lineno for name, value in values.items()}
        self._params = {name: param for name, value in values.items() if (param := _param_of(value)) is not None}
        constants = _plain_values(dict(_assigned(module.body)), {})
        self._settings = _plain_values(values, constants)
        for section in SECTIONS:
            given = self._settings.get(section)
            for name, value in given.items() if isinstance(given, dict) else ():
                if name in self._params:
                    self._params[name] = self._params[name].with_default(value)
        known = constants | {name: value for name, value in self._settings.items() if name not in self._params}
        self._code = FrameCode(FileFacts(_modules(module), known, self._params))

    def read(self, file: str) -> Converted:
        for name in sorted(self._methods, key=lambda name: "indicators" not in name):
            method = self._methods[name]
            if METHODS.fullmatch(name):
                self._code.read(method)
            elif CALLBACKS.fullmatch(name) or (method.decorator_list and name != "protections"):
                self._findings.append(Remark(method.lineno, f"{name} is not called: {GUIDE}", name != "version"))
        written = {column for step in self._code.steps(SIGNALS) for column in step.writes & SIGNALS.keys()}
        if not self._value("use_exit_signal"):
            written -= {"exit_long", "exit_short", "sell"}
        if not self._value("can_short"):
            written -= {"enter_short", "exit_short"}
        signals = tuple(name for name in SIGNALS if name in written)
        interval = self._value("timeframe")
        if interval not in INTERVAL_MS:
            self._note("timeframe", f"timeframe {interval} is none of this project's; the config has 1h")
            interval = "1h"
        new = Converted(file, self._class.name, interval, self._params, self._code, signals)
        new.warmup = min(max(0, self._value("startup_candle_count")), PERIOD_MAX)
        self._stop_and_targets(new)
        new.protections = self._protections()
        for name in SWITCHES:
            if self._value(name):
                self._note(name, f"{name} is left out: {GUIDE}")
        for name, param in self._params.items():
            kind = "a param with its bounds, which bot sweep searches" if new.has_param(name) else "a fixed value"
            self._note(name, f"{name} is {kind}; {param.default!r} is used", is_lost=False)
        if not {"long", "short"} & {SIGNALS[name] for name in signals}:
            self._findings.append(Remark(self._class.lineno, "no rule for an entry is left: it never trades"))
        new.findings = sorted({*self._findings, *self._code.findings})
        return new

    def _value(self, name: str) -> Any:
        """A setting. One that is computed, or is of another kind, counts as if it was missing, and is named."""
        default, kinds = SETTINGS[name]
        value = self._settings.get(name, _UNKNOWN if name in self._lines else default)
        if not isinstance(value, kinds) or (isinstance(value, int | float) and not is_number(value)):
            self._note(name, f"{name} is computed or of another kind; it counts as {default!r}")
            return default
        return value

    def _note(self, name: str, text: str, *, is_lost: bool = True) -> None:
        self._findings.append(Remark(self._lines.get(name, self._class.lineno), text, is_lost))

    def _stop_and_targets(self, new: Converted) -> None:
        stop_pct, guardians = _pct(-self._value("stoploss")), []
        if not 0 < stop_pct < 100:
            self._note("stoploss", f"a position needs a stop here: it stands at {STOP_PCT} %", is_lost=False)
            stop_pct = STOP_PCT
        new.exits["stop_pct"] = f"{stop_pct:g}"
        for after, gain in self._roi_table():
            if gain <= -1:
                guardians.append(f"MaxHold({60 * max(after, 1)})")
            elif after:
                new.steps.append((after, _pct(gain)))
            elif 0 < gain < NEVER:
                new.exits["target_pct"] = f"{_pct(gain):g}"
        if new.steps:
            self._note("minimal_roi", "targets after the first count at the close of a bar", is_lost=False)
        if self._value("trailing_stop"):
            guardians += self._trailing(stop_pct)
        if guardians:
            new.exits["guardians"] = f"({', '.join(guardians)},)"

    def _roi_table(self) -> list[tuple[int, float]]:
        """Minutes and gains, in the order of time."""
        rows = [(str(after), gain) for after, gain in self._value("minimal_roi").items()]
        if all(re.fullmatch("[0-9]{1,9}", after) and is_number(gain) for after, gain in rows):
            return sorted((int(after), gain) for after, gain in rows)
        self._note("minimal_roi", "minimal_roi is left out: it must map minutes to gains")
        return []

    def _trailing(self, stop_pct: float) -> Iterator[str]:
        positive_pct = _pct(self._value("trailing_stop_positive") or stop_pct / 100)
        start_r = round(_pct(self._value("trailing_stop_positive_offset")) / stop_pct, 4)
        waits = self._value("trailing_only_offset_is_reached")
        if start_r > TRAIL_R_MAX or (stop_pct > TRAIL_PCT_MAX and not waits):
            most = f"a trail of {TRAIL_PCT_MAX} % and an offset of {TRAIL_R_MAX} stops are the most here"
            self._note("trailing_stop", f"the trailing stop is left out: {most}")
            return
        if not waits:
            yield f"TrailingStop(trail_pct={stop_pct:g})"
        if waits or positive_pct != stop_pct:
            yield f"TrailingStop(trail_pct={positive_pct:g}, activate_at_r={max(start_r, 0.01):g})"

    def _protections(self) -> dict[str, Any]:
        rows, kept = self._settings.get("protections", []), {}
        line = self._lines.get("protections", self._class.lineno)
        if (method := self._methods.get("protections")) is not None:
            line, last = method.lineno, method.body[-1]
            defaults = {f"self.{name}.value": param.default for name, param in self._params.items()}
            rows = _plain(getattr(last, "value", None), {**self._settings, **defaults})
        for given_row in rows if isinstance(rows, list) else ["that is computed"]:
            row = given_row if isinstance(given_row, dict) else {"method": given_row}
            name, given = _protection(row)
            if name in kept or name == "":
                self._findings.append(Remark(line, f"the protection {row.get('method')} is left out: {GUIDE}"))
                continue
            kept[name] = given
            if isinstance(given, dict) and "stops" not in given:
                self._findings.append(Remark(line, f"{name} counts USD here, not parts of the stake", is_lost=False))
        if (most := self._value("max_open_trades")) > 0:
            kept["max_open_positions"] = int(most)
        return kept


def _protection(row: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and the section of a protection; "" if it has none."""

    def length(name: str) -> str:
        return f"{row[f'{name}_candles']} bars" if f"{name}_candles" in row else f"{row.get(name, 60)}m"

    windows = {"within": length("lookback_period"), "rest": length("stop_duration")}
    windows["trades" if row.get("method") != "StoplossGuard" else "stops"] = row.get("trade_limit", 1)
    amounts = [given for key, given in row.items() if not str(key).startswith(("method", "only_per", "unlock_at"))]
    if "unlock_at" in row or row.get("only_per_side") or not all(map(is_number, amounts)):
        return "", None
    match row.get("method"):
        case "CooldownPeriod":
            return "cooldown", windows["rest"]
        case "StoplossGuard":
            scope = {"scope": "market"} if row.get("only_per_pair") else {}
            return "stop_guard", {**windows, "only_losses": True, **scope}
        case "MaxDrawdown":
            return "max_drawdown", {**windows, "usd": round(row.get("max_allowed_drawdown", 0) * BUDGET_USD, 2)}
        case "LowProfitPairs":
            return "low_profit_market", {**windows, "below_usd": round(row.get("required_profit", 0) * USD, 2)}
    return "", None


def _pct(part: float) -> float:
    return round(100 * part, 10)


def _assigned(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names that the top of a module or a class sets."""
    for item in body:
        match item:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _plain_values(values: Mapping[str, ast.expr], known: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, node in values.items():
        value = _plain(node, {**known, **plain})
        if value is not _UNKNOWN:
            plain[name] = value
    return plain


def _plain(node: ast.expr | None, known: Mapping[str, Any]) -> Any:
    """The value of an expression of constants; `_UNKNOWN` if it is none."""
    text = ast.unparse(node) if node is not None else ""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)"
    text = re.sub(rf"(?<![\w.'\"])({names})(?![\w'\"])", lambda name: repr(known[name[1]]), text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return _UNKNOWN


def _param_of(node: ast.expr) -> ParamOf | None:
    """`IntParameter(10, 40, default=30, space="buy")`."""
    kind = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or not kind.endswith("Parameter"):
        return None
    plain = [_plain(argument, {}) for argument in node.args]
    named = {argument.arg: _plain(argument.value, {}) for argument in node.keywords}
    low, high = (*plain, named.get("low"), named.get("high"), None, None)[:2]
    choices = low if isinstance(low, list | tuple) else named.get("categories")
    first = (
        choices[0] if isinstance(choices, list | tuple) and choices else low if kind != "BooleanParameter" else False
    )
    default = named.get("default", first)
    if kind not in ("IntParameter", "DecimalParameter", "RealParameter"):
        low = high = None
    return ParamOf(node.lineno, None, low, high).with_default(None if default is _UNKNOWN else default)


def _modules(module: ast.Module) -> dict[str, str]:
    """What each imported name is: talib, qtpylib, numpy or other."""
    modules = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = f"{getattr(node, 'module', None) or ''}."
            for alias in node.names:
                if known := LIBRARIES.fullmatch(f"{home}{alias.name}".strip(".")):
                    modules[alias.asname or alias.name] = str(known.lastgroup)
    return modules
