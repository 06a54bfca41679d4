"""What the methods of a freqtrade strategy do with their data frame, as statements of `signals`.

The statements stay, on a frame of pandas over the bars. Indicators become declared ones, parameters become params. A
statement without a counterpart takes with it those that read what it sets. Nothing of the file is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from bot.cli.freqtrade.library_calls import INDICATORS, LIBRARIES
from bot.strategy.indicators import PERIOD_MAX, SOURCES

# the columns of signals, those of old versions too
SIGNALS: Final[Mapping[str, str]] = {
    "enter_long": "long",
    "enter_short": "short",
    "exit_long": "close_long",
    "exit_short": "close_short",
    "buy": "long",
    "sell": "close_long",
}
# what may be called on a series, what ends a window, and what numpy does with each number alone
METHODS: Final = re.compile(
    "shift|diff|pct_change|rolling|abs|fillna|(is|not)(na|null)|between|[gl][te]|eq|ne|astype|clip|where|mask|append"
)
OF_WINDOW: Final = re.compile("mean|sum|max|min|std|median|apply")
NUMPY: Final = re.compile("where|abs|maximum|minimum|log|sqrt|exp|sign|isnan|logical_(and|or)|nan")
# methods whose first argument counts bars
COUNTING: Final = ("shift", "diff", "pct_change", "rolling")
NUMBER_MAX: Final = 1_000_000_000
LOGS: Final = re.compile(r"(print|log(ger|ging)?\.\w+)\(")
CLOSE: Final = "dataframe['close']"


class CannotCarry(Exception):
    """A part of the file that has no counterpart."""


class Remark(NamedTuple):
    """What the reader of the new strategy must know. `is_lost`: something was left out; else it is only different."""

    line: int
    text: str
    is_lost: bool = True


class ParamOf(NamedTuple):
    """A hyperopt parameter. One that is no number between bounds stands in the new file as its default."""

    line: int
    default: Any
    low: float | None = None
    high: float | None = None

    def with_default(self, default: Any) -> ParamOf:
        """With another default, within bounds that are numbers around it; else without bounds."""
        bounds = (default, self.low, self.high)
        if not all(map(is_number, bounds)):
            return self._replace(default=default, low=None, high=None)
        return self._replace(default=default, low=min(bounds), high=max(bounds))


class FileFacts(NamedTuple):
    """What the file says outside of the methods: libraries by their names, constants, and hyperopt parameters."""

    modules: Mapping[str, str]
    constants: Mapping[str, Any]
    params: Mapping[str, ParamOf]


class Step(NamedTuple):
    """A statement of `signals`: the names and columns that it reads and sets, and the bars that one row reads."""

    node: ast.stmt
    reads: frozenset[str]
    writes: frozenset[str]
    lookback: int


class FrameCode(ast.NodeTransformer):
    """Reads the methods one after another. `indicators`: declarations by name."""

    def __init__(self, known: FileFacts) -> None:
        self.findings: list[Remark] = []
        self.indicators: dict[str, str] = {}
        self._known = known
        self._steps: list[Step] = []
        self._lost: dict[str, tuple[int, str]] = {}
        # What a name stands for: the frame, and the value of a loop.
        self._names: dict[str, ast.expr] = {}

    def read(self, method: ast.FunctionDef) -> None:
        self._names = {argument.arg: ast.Name("dataframe") for argument in method.args.args[1:2]}
        self._run(method.body)

    def steps(self, signals: Iterable[str]) -> list[Step]:
        """The statements that these columns need, in their order."""
        needed, kept = set(signals), []
        for step in reversed(self._steps):
            if step.writes & needed:
                needed |= step.reads
                kept.append(step)
        return kept[::-1]

    def _run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            try:
                self._statement(statement)
            except CannotCarry as error:
                self._lose(_written(statement), statement.lineno, str(error))

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return() | ast.Pass() | ast.Expr(value=ast.Constant()):
                return
            case ast.If(test=test, body=body, orelse=orelse) if (taken := _truth(self._copy(test))) is not None:
                self._run(body if taken else orelse)
            case ast.For(target=ast.Name(id=name), iter=given, body=body):
                for value in getattr(self._copy(given), "elts", None) or self._no(given):
                    self._names[name] = value
                    self._run(body)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if isinstance(
                lines := self._copy(value), ast.Dict
            ):
                self._names[name] = lines
            case ast.Assign() | ast.AugAssign() | ast.Expr() | ast.If():
                if not LOGS.match(ast.unparse(node)):
                    self._add(self._copy(node), node.lineno)
            case _:
                self._no(node)

    def _add(self, node: ast.stmt, line: int) -> None:
        writes, reads = _written(node), frozenset(_named(node))
        if not writes:
            self._no(node)
        if changed := writes & set(SOURCES):
            raise CannotCarry(f"it replaces the column {' and '.join(sorted(changed))} of the candles")
        # A plain assignment does not read the column that it sets.
        used = (reads - writes) | _named(node.value) if isinstance(node, ast.Assign) else reads
        if lost := sorted(used & self._lost.keys()):
            self._lose(writes, *self._lost[lost[0]])
            return
        for name in writes:
            self._lost.pop(name, None)
        before = [step.lookback for step in self._steps if step.writes & reads]
        lookback = _bars(node) + max(before, default=1)
        if lookback > PERIOD_MAX:
            raise CannotCarry(f"it reads {lookback} bars; {PERIOD_MAX:,} are the most")
        self._steps.append(Step(node, reads, writes, lookback))

    def _lose(self, writes: frozenset[str], line: int, why: str) -> None:
        signals = sorted(writes & SIGNALS.keys())
        self._lost |= dict.fromkeys(writes - SIGNALS.keys(), (line, why))
        if signals or not writes:
            rule = f"a rule for {' and '.join(signals)} is left out: " if signals else ""
            self.findings.append(Remark(line, rule + why))

    def _copy(self, node: Any) -> Any:
        """The rewritten copy. CannotCarry for a part without a counterpart."""
        return self.visit(
            ast.parse(ast.unparse(node)).body[0] if isinstance(node, ast.stmt) else _tree(ast.unparse(node))
        )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self._known.constants:
            return _tree(repr(self._known.constants[node.id]))
        return self._names.get(node.id, node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        """As it is: it gets two conditions, or the rows of a window."""
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        return ast.Constant("".join(str(self._default(self.visit(part))) for part in parts))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        params, constants = self._known.params, self._known.constants
        match node:
            case ast.Attribute(value=ast.Name(id="pd" | "bars")):
                return node
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr="value") if (
                name in params
            ):
                return _tree(_value_of(name, params[name]))
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr="range") if (
                name in params
            ):
                return _tree(f"[{_value_of(name, params[name])}]")
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return (
                    node if name == "params" else _tree(repr(constants[name])) if name in constants else self._no(node)
                )
            case ast.Attribute(value=ast.Name(id=name), attr=called) if name in self._known.modules:
                is_known = self._known.modules[name] == "numpy" and NUMPY.fullmatch(called)
                return ast.Attribute(ast.Name("np"), called) if is_known else self._no(node)
        node.value = self.visit(node.value)
        if ast.unparse(node.value) == "dataframe" and node.attr != "loc":
            return ast.Subscript(node.value, ast.Constant(node.attr), node.ctx)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        base, key = self.visit(node.value), self.visit(node.slice)
        if isinstance(base, ast.Dict) and isinstance(key, ast.Constant):
            lines = {getattr(name, "value", None): value for name, value in zip(base.keys, base.values, strict=True)}
            return lines.get(key.value) or self._no(node)
        is_date = isinstance(key, ast.Constant) and key.value == "date"
        is_known = isinstance(base, ast.Name) or ast.unparse(base) == "dataframe.loc"
        return self._no(node) if is_date or not is_known else ast.Subscript(base, key, node.ctx)

    def visit_Call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=called) if self._known.modules.get(name) in LIBRARIES:
                return self._copy(_tree(self._of_library(node, self._known.modules[name], called)))
            case ast.Name(id=name) if name in INDICATORS:
                return self._indicator(node, name)
            case ast.Attribute(value=base, attr="copy"):
                return self._copy(base)
            case ast.Attribute(value=ast.Name(id=name)) if name == "pd" or name in self._known.modules:
                pass
            case ast.Attribute(value=base, attr=called):
                is_window = isinstance(base, ast.Call) and ast.unparse(base.func).endswith(".rolling")
                if not (OF_WINDOW if is_window else METHODS).fullmatch(called):
                    self._no(node, "reads the whole column" if OF_WINDOW.fullmatch(called) else "has no counterpart")
                if called in COUNTING:
                    counted = [word.value for word in node.keywords if word.arg in ("periods", "window")]
                    node.args = [self._count(bars) for bars in (*node.args[:1], *counted)]
                    node.keywords = [word for word in node.keywords if word.arg == "min_periods"]
            case ast.Name(id="reduce") | ast.Name(id="abs"):
                pass
            case _:
                self._no(node)
        self.generic_visit(node)
        return node

    def _of_library(self, node: ast.Call, library: str, called: str) -> str:
        """The expression of a call, or that of a dict with its lines."""
        given = [ast.unparse(self.visit(argument)) for argument in node.args]
        named = {str(word.arg): ast.unparse(self.visit(word.value)) for word in node.keywords}
        if called in ("crossed_above", "crossed_below") and len(given) == 2:
            first, other = given
            before = other if _param(_tree(other)) or _is_literal(other) else f"({other}).shift(1)"
            signs = (">", "<=") if called == "crossed_above" else ("<", ">=")
            return f"(({first}) {signs[0]} ({other})) & (({first}).shift(1) {signs[1]} {before})"
        if called not in LIBRARIES[library]:
            self._no(node)
        arguments, lines = LIBRARIES[library][called]
        values = CLOSE
        if any("{values}" in text for text in lines.values()) and given:
            values = {"dataframe": CLOSE}.get(given[0], given[0])
            given.pop(0)
        while given and given[0] in ("dataframe", *(f"dataframe[{source!r}]" for source in SOURCES)):
            given.pop(0)
        if "price" in named:
            values = f"dataframe[{named.pop('price')}]"
        texts = {name: repr(default) for name, default in arguments.items()} | dict(zip(arguments, given, strict=False))
        if unknown := sorted(named.keys() - arguments.keys() - {"min_periods"}):
            self._no(node, f"has an argument {unknown[0]} without a counterpart")
        filled = {name: text.format(values=values, **texts | named) for name, text in lines.items()}
        return filled.get("") or "{" + ", ".join(f"{name!r}: {text}" for name, text in filled.items()) + "}"

    def _indicator(self, node: ast.Call, name: str) -> Any:
        """Declares an indicator, and reads it from the bars. One of a computed column becomes a window."""
        last = ast.unparse(node.args[-1])
        source = next((source for source in SOURCES if last == f"dataframe[{source!r}]"), None)
        periods = node.args if name in ("atr", "adx", "macd") else node.args[:1]
        if len(periods) < len(node.args) and source is None:
            if not INDICATORS[name]:
                self._no(node, "reads a computed column; an indicator reads one of the candles")
            bars = self._count(periods[0])
            return self._copy(_tree(INDICATORS[name].format(values=last, bars=ast.unparse(bars))))
        node.args = [ast.Constant(param) if (param := _param(bars)) else self._count(bars) for bars in periods]
        if source not in (None, "close"):
            node.args.append(ast.Constant(source))
        text = ast.unparse(node).replace("'", '"')
        declared = re.sub(r"\W+", "_", text.replace("line=", "")).strip("_")
        self.indicators[declared] = text
        return _tree(f"pd.Series(bars.{declared})")

    def _count(self, node: ast.expr) -> ast.expr:
        """A number of bars. A param counts by its default, because `lookback` stands beside it."""
        value = self._default(self.visit(node))
        if not is_number(value) or not 0 <= value <= PERIOD_MAX or value != int(value):
            reads = "is no whole number of bars up to 1,000, or reads bars that have not closed yet"
            self._no(node, reads)
        return ast.Constant(int(value))

    def _default(self, node: ast.AST) -> Any:
        """The value of a constant, or of a param."""
        if name := _param(node):
            return self._known.params[name].default
        return ast.literal_eval(ast.unparse(node)) if _is_literal(ast.unparse(node)) else self._no(node)

    def _no(self, node: ast.AST, why: str = "has no counterpart") -> NoReturn:
        raise CannotCarry(f"`{ast.unparse(node).splitlines()[0]:.80}` {why}")


def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError):
        return False
    return True


def is_number(value: Any) -> bool:
    """True for a number that can be a price, a part or a count of bars."""
    return isinstance(value, int | float) and abs(value) <= NUMBER_MAX


def _value_of(name: str, param: ParamOf) -> str:
    return f"self.params.{name}" if param.low is not None else repr(param.default)


def _param(node: ast.AST) -> str | None:
    """The name of a param in `self.params.name`."""
    text = ast.unparse(node)
    return text.removeprefix("self.params.") if re.fullmatch(r"self\.params\.\w+", text) else None


def _truth(test: ast.expr) -> bool | None:
    """The result of a test of constants; None if it depends on more."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand) if (truth := _truth(operand)) is not None:
            return not truth
        case ast.Compare(left=ast.Constant(value=left), ops=[ast.Eq()], comparators=[ast.Constant(value=right)]):
            return bool(left == right)
    return bool(ast.literal_eval(test)) if _is_literal(ast.unparse(test)) else None


def _bars(node: ast.AST) -> int:
    """How many bars before its own one an expression reads."""
    inner = max((_bars(child) for child in ast.iter_child_nodes(node)), default=0)
    match node:
        case ast.Call(func=ast.Attribute(attr=called), args=given) if called in COUNTING:
            return inner + (int(ast.unparse(given[0])) if given else 1) - (called == "rolling")
    return inner


def _named(node: ast.AST) -> set[str]:
    """Names, and texts, which may be names of columns."""
    texts = {getattr(part, "id", None) or getattr(part, "value", None) for part in ast.walk(node)}
    return {text for text in texts if isinstance(text, str)} - {"dataframe", "self", "np", "pd", "bars"}


def _written(node: ast.AST) -> frozenset[str]:
    """The names and columns that a statement sets."""
    names: set[str] = set()
    for part in ast.walk(node):
        for target in getattr(part, "targets", [part.target] if isinstance(part, ast.AugAssign) else []):
            key = getattr(target, "slice", target)
            names |= _named(key.elts[-1] if isinstance(key, ast.Tuple) and key.elts else key)
        match part:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")):
                names.add(name)
    return frozenset(names)
