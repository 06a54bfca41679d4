"""What the text of a strategy shows that nobody would read: signals that are thrown away, and declarations without use.

It is read once, when the class is loaded, so that an author learns it before the strategy runs. Text that cannot be
found is not judged.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from bot.errors import StrategyError
from bot.strategy import Strategy
from bot.strategy.base import _follow_signals
from bot.strategy.hook_answers import INTENTS
from bot.strategy.indicators import Indicator

# What the daemon sets on each strategy: a value of the class would be replaced by it.
SET: Final = ("name", "markets", "params", "indicators", "warmup_bars", "longer_bars", "informative")
READ: Final = tuple(name for name in vars(Strategy) if not name.startswith("_"))
# methods whose trees are kept: a check loads each strategy several times
TREES_MAX: Final = 512
# the ratio from which a name is a slip of another one
ALIKE: Final = 0.8

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def check_declarations(target: type[Strategy], where: str) -> None:
    """StrategyError for a declaration that nobody would read."""
    label = f"{where}: {target.__name__}"
    if target.timers and target.on_timer is Strategy.on_timer:
        raise StrategyError(f"{label}.timers is read by nobody: define on_timer(self, view, timer), or remove it")
    has_signals = target.signals is not Strategy.signals
    if has_signals and target.on_bar is not _follow_signals and not _is_used(target, "follow_signals"):
        raise StrategyError(
            f"{label} has both signals and on_bar, so signals is never called: remove one of them, or let on_bar return"
            " self.follow_signals(view, bar)"
        )
    if not has_signals and target.lookback != Strategy.lookback:
        raise StrategyError(f"{label}.lookback is read by nobody without signals: write warmup, or remove it")
    for name, value in _own_names(target):
        if name in SET:
            raise StrategyError(
                f"{label}.{name} is read by nobody, because the daemon sets it from the config: remove it"
            )
        meant = difflib.get_close_matches(name, READ, n=1, cutoff=ALIKE)
        if name not in READ and meant and not isinstance(value, Indicator) and not _is_used(target, name):
            raise StrategyError(f"{label}.{name} is read by nobody; did you mean {meant[0]!r}?")


def check_signals(target: type[Strategy], where: str) -> None:
    """StrategyError for a statement that makes signals and throws them away, in any method of the strategy."""
    for owner in _owners(target):
        for name, given in vars(owner).items():
            method = given.__func__ if isinstance(given, staticmethod | classmethod) else given
            if not isinstance(method, types.FunctionType):
                continue
            method = inspect.unwrap(method)
            lost = _Lost(target, owner, method).first_loss() if isinstance(method, types.FunctionType) else None
            if lost is not None:
                raise StrategyError(f"{where}: {target.__name__}.{name} {lost}")


def line_of_lost_intents(method: types.FunctionType, *, lists: bool = True) -> int | None:
    """The line at which a function returns an intent or, if `lists`, a list; None if its text shows no such return."""
    tree = _tree(method)
    if tree is None:
        return None
    for node in _inside(tree):
        if not isinstance(node, ast.Return) or not _makes_intents(node.value):
            continue
        if lists or isinstance(node.value, ast.Call):
            return _line(method, node)
    return None


class _Lost:
    """Looks through one method for a statement whose value is signals: a statement's value is thrown away."""

    def __init__(self, target: type[Strategy], owner: type, method: types.FunctionType) -> None:
        self._target = target
        self._owner = owner
        self._method = method
        self._tree = _tree(method)
        # functions in the method -> whether they have a yield
        self._helpers: dict[str, bool] = {}
        self._self = next(iter(method.__code__.co_varnames[: method.__code__.co_argcount]), "")

    def first_loss(self) -> str | None:
        """What is thrown away, and the fix; None if nothing is."""
        if self._tree is None:
            return None
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef) and node is not self._tree:
                self._helpers[node.name] = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _inside(node))
        statements = (node for node in ast.walk(self._tree) if isinstance(node, ast.Expr))
        return next((text for node in statements if (text := self._of(node.value)) is not None), None)

    def _of(self, value: ast.expr) -> str | None:
        line = _line(self._method, value)
        if isinstance(value, ast.YieldFrom) and isinstance(value.value, ast.Call):
            called = self._function(value.value.func)
            lost = None if called is None or not inspect.isgeneratorfunction(called) else line_of_lost_intents(called)
            if called is None or lost is None:
                return None
            return f"loses at line {line} the intents that {called.__name__} returns at line {lost}: write yield there"
        if not isinstance(value, ast.Call):
            return None
        if self._value(value.func) in INTENTS:
            return f"makes an intent at line {line} and throws it away: write yield in front of it"
        called, name = self._function(value.func), value.func.id if isinstance(value.func, ast.Name) else ""
        if called is not None and not inspect.isgeneratorfunction(called) and line_of_lost_intents(called, lists=False):
            return f"throws away at line {line} the intent that {called.__name__} returns: write yield in front"
        if self._helpers.get(name) or (called is not None and inspect.isgeneratorfunction(called)):
            name = name or str(getattr(called, "__name__", ""))
            return f"calls {name} at line {line}, which has a yield, so nothing of it runs: write yield from in front"
        return None

    def _function(self, called: ast.expr) -> types.FunctionType | None:
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == self._self:
            candidate = inspect.getattr_static(self._target, called.attr, None)
        elif isinstance(called, ast.Attribute) and ast.unparse(called.value) == "super()":
            after = self._target.__mro__[self._target.__mro__.index(self._owner) + 1 :]
            candidate = next((vars(cls)[called.attr] for cls in after if called.attr in vars(cls)), None)
        else:
            candidate = self._value(called)
        return candidate if isinstance(candidate, types.FunctionType) else None

    def _value(self, called: ast.expr) -> Any:
        """The value of a global name, or of a name of a module."""
        names = self._method.__globals__
        if isinstance(called, ast.Name) and called.id not in self._helpers:
            return names.get(called.id)
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            module = names.get(called.value.id)
            return getattr(module, called.attr, None) if isinstance(module, types.ModuleType) else None
        return None


def _owners(target: type[Strategy]) -> tuple[type, ...]:
    return target.__mro__[: target.__mro__.index(Strategy)]


def _own_names(target: type[Strategy]) -> Iterator[tuple[str, Any]]:
    for owner in _owners(target):
        yield from ((name, value) for name, value in vars(owner).items() if not name.startswith("_"))


def _is_used(target: type[Strategy], name: str) -> bool:
    """True if some text of the strategy's modules has the name as an attribute or in quotes, or cannot be read."""
    for owner in _owners(target):
        module = inspect.getmodule(owner)
        try:
            text = inspect.getsource(owner if module is None else module)
        except (OSError, TypeError):
            return True
        if re.search(rf"\.{name}\b|['\"]{name}['\"]", text):
            return True
    return False


def _tree(method: types.FunctionType) -> ast.stmt | None:
    """The text of a function as a tree; None if it is not there, or is not a function of its own."""
    return _tree_of(inspect.unwrap(method).__code__)


@lru_cache(maxsize=TREES_MAX)
def _tree_of(code: types.CodeType) -> ast.stmt | None:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, ValueError):
        return None
    return tree


def _inside(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _line(method: types.FunctionType, node: Any) -> int:
    return int(method.__code__.co_firstlineno + node.lineno - 1)


def _makes_intents(value: ast.expr | None) -> bool:
    """True for an intent that is made here, and for a list, a tuple or the like."""
    if isinstance(value, ast.Call):
        called = value.func
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        return name in {cls.__name__ for cls in INTENTS}
    if isinstance(value, ast.List | ast.Tuple):
        return bool(value.elts)
    return isinstance(value, ast.ListComp | ast.GeneratorExp)
