"""The loader turns the `use` of a config into a Strategy class, or raises an error that says what to do. It lets no
traceback through.

It looks in three places, in this order: a file of the strategies folder ("trend" or "trend:Trend"), a dotted path on
the interpreter's path ("pkg.mod:Class"), an installed entry point (group bot.strategies). It never imports from the
current directory by accident, and never from the network. A strategy runs with the daemon's full trust; the hash of its
source is recorded.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import inspect
import json
import os
import re
import signal
import stat
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from importlib.metadata import EntryPoint
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from pydantic.errors import PydanticUserError

from bot.config.references import Referred
from bot.errors import ConfigError, StrategyError
from bot.files import is_file
from bot.logs import HIDDEN, is_secret_name, redact_text
from bot.plugins import names_of, offered
from bot.runtime.strategy_host.timers import check_timers
from bot.runtime.strategy_host.unread import check_declarations, check_signals, line_of_lost_intents
from bot.strategy import Proposal, Strategy
from bot.strategy.base import begin_bars, declared
from bot.strategy.hook_answers import WANT_NOTHING
from bot.strategy.indicators import Indicators
from bot.strategy.params import Params
from bot.words import many

GROUP = "bot.strategies"
# limit of an import; half of the start timeout of a systemd unit
IMPORT_S: Final = 30.0
# the signal repeats, for imports that catch every exception
AGAIN_S: Final = 1.0
# name -> its arguments
HOOKS: Final = {
    name: tuple(inspect.signature(hook).parameters)
    for name, hook in vars(Strategy).items()
    if name.startswith("on_") or name == "confirm"
}
USE = re.compile(r"(?P<module>[A-Za-z_][\w\-]*(?:\.[A-Za-z_]\w*)*)(?::(?P<name>[A-Za-z_]\w*))?")

# Digest of each installed module's source, taken right after its import, because the file may change later.
_RAN: Final[WeakKeyDictionary[types.ModuleType, str | None]] = WeakKeyDictionary()


class _Endless(BaseException):
    """An import took longer than IMPORT_S."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A strategy class and where it came from. `sha256` is of the source text that ran; None if it has none.

    `is_outdated`: the file has changed since, and only a restart loads the change, because an installed module is
    imported once.
    """

    use: str
    strategy: type[Strategy]
    # "file", "module" or "entry point"
    origin: str
    path: Path | None
    sha256: str | None
    warnings: tuple[str, ...] = ()
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class ListedStrategy:
    """One row of `bot strategies`: a strategy with the first line of its docstring, or the `error` from loading it."""

    use: str
    origin: str
    path: Path | None
    summary: str
    # name -> its JSON schema: type, default, bounds, description
    params: Mapping[str, Any]
    error: str | None


@dataclass(frozen=True, slots=True)
class ParamProblem:
    """One bad param: `loc` is its place under `params`, for the config to find its line."""

    loc: tuple[str | int, ...]
    message: str


def load(use: str, folder: Path) -> Loaded:
    """The class that `use` names. ConfigError if there is no such class; StrategyError if it cannot be used."""
    match = USE.fullmatch(use)
    if match is None:
        raise ConfigError(
            f'use: {use!r} is none of "file", "file:Class", "package.module:Class" and the name of an entry point'
        )
    module, name = match["module"], match["name"]
    path = folder / f"{module}.py"
    if "." not in module and _is_file(path):
        return _from_file(use, path, name)
    point = offered(GROUP, use)
    if point is not None:
        return _from_entry_point(use, point)
    if "." in module:
        return _from_module(use, module, name, folder)
    raise ConfigError(_nothing_named(use, module, folder))


def load_policy(name: str, folder: Path) -> Callable[[Proposal], object]:
    """The function that `approve: file:function` names, of the strategies folder or of an installed package."""
    module_name, _, function = name.partition(":")
    path = folder / f"{module_name}.py"
    if "." not in module_name and _is_file(path):
        module, _ = _run(path)
    elif "." in module_name:
        with _without_current_directory(), _in_time():
            try:
                module = importlib.import_module(module_name)
            except BaseException as error:
                raise _blame(error, f"approve: {name!r}", None) from error
    else:
        raise ConfigError(f"approve: {name!r}: no file {module_name}.py in {folder}")
    candidate = getattr(module, function, None)
    if not callable(candidate) or isinstance(candidate, type):
        offered = [key for key, value in vars(module).items() if isinstance(value, types.FunctionType)]
        raise ConfigError(
            f"approve: {name!r}: {module_name} has no function {function}{_did_you_mean(function, offered)}"
        )
    if inspect.iscoroutinefunction(candidate):
        raise StrategyError(f"approve: {name!r} is async; write a plain def, because it runs in a thread of its own")
    try:
        inspect.signature(candidate).bind("proposal")
    except TypeError:
        raise StrategyError(f"approve: {name!r} must take one argument, the proposal") from None
    policy: Callable[[Proposal], object] = candidate
    return policy


def build(
    loaded: Loaded,
    *,
    name: str,
    markets: Sequence[str],
    params: Mapping[str, Any],
    interval: str = "1m",
    informative: Sequence[str] = (),
) -> Strategy:
    """Make the strategy with checked params, for bars of this interval. ConfigError names each bad param and its
    bound.
    """
    problems = check_params(loaded.strategy, params)
    if problems:
        lines = [f"strategy {name!r} ({loaded.use}): {many(len(problems), 'bad param')}"]
        lines += [f"  params.{'.'.join(map(str, problem.loc))}: {problem.message}" for problem in problems]
        raise ConfigError("\n".join(lines))
    where = f"strategy {name!r} ({loaded.use})"
    try:
        with localcontext():
            # A constructor of the author's own may not know them.
            read = {"informative": informative} if informative else {}
            instance = loaded.strategy(name=name, markets=markets, params=params, **read)
    except StrategyError as error:
        raise StrategyError(without_referred(f"{where}: {error}", params)) from None
    except BaseException as error:
        if isinstance(error, TypeError) and "__init__" in vars(loaded.strategy):
            raise StrategyError(f"{where}: {error}; remove __init__ and prepare in on_start") from error
        blamed = _blame(error, where, loaded.path, "built")
        raise StrategyError(without_referred(str(blamed), params)) from error
    if not isinstance(getattr(instance, "indicators", None), Indicators):
        raise StrategyError(f"{where}: its __init__ does not call super().__init__; remove it and prepare in on_start")
    try:
        begin_bars(instance, interval)
    except StrategyError as error:
        raise StrategyError(f"{where}: {error}") from None
    return instance


def check_params(strategy: type[Strategy], params: Mapping[str, Any]) -> list[ParamProblem]:
    """Every problem of `params`. StrategyError if the author's own validator fails."""
    fields = strategy.Params.model_fields
    # pydantic would take True and False as 1 and 0.
    problems = [
        ParamProblem((name,), f"must be a number (got {value})")
        for name, value in params.items()
        if isinstance(value, bool) and name in fields and fields[name].annotation in (int, float)
    ]
    known = [problem.loc for problem in problems]
    try:
        strategy.Params.model_validate(dict(params))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems += [
            ParamProblem(problem.loc, without_referred(problem.message, params))
            for problem in (_problem(error, list(fields)) for error in errors if error["loc"][:1] not in known)
        ]
    # The text of the author's own validator may contain a secret.
    except (Exception, SystemExit) as error:
        name = type(error).__name__
        raise StrategyError(
            f"{strategy.__name__}.Params: raises {name} while it checks params; report a bad param with ValueError"
        ) from error
    return problems


def discover(folder: Path) -> list[ListedStrategy]:
    """Every strategy of the folder and of the installed entry points, by name; broken ones with their error."""
    listed: list[ListedStrategy] = []
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        try:
            module, _ = _run(path)
            names = [strategy.__name__ for strategy in _strategies_of(module)]
        except StrategyError as error:
            listed.append(ListedStrategy(path.stem, "file", path, "", {}, str(error)))
            continue
        uses = [path.stem] if len(names) < 2 else [f"{path.stem}:{name}" for name in names]
        listed += [_listing(use, folder, "file", path) for use in uses]
    listed += [_listing(name, folder, "entry point", None) for name in names_of(GROUP)]
    return listed


def _is_file(path: Path) -> bool:
    """ConfigError if the file system does not say."""
    try:
        return is_file(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _from_file(use: str, path: Path, name: str | None) -> Loaded:
    module, sha256 = _run(path)
    warnings = tuple(warning for place in (path.parent, path) for warning in _exposure(place))
    return Loaded(use, _pick(use, module, name, str(path)), "file", path, sha256, warnings)


def _from_module(use: str, module_name: str, name: str | None, folder: Path) -> Loaded:
    with _without_current_directory():
        try:
            with _in_time():
                module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
                stem, _, rest = module_name.partition(".")
                way_out = (
                    f"for a class of {stem}.py in the strategies folder write"
                    f" {stem}:{name or (rest if rest != 'py' else 'Class')}"
                    if _is_file(folder / f"{stem}.py")
                    else "install it, or put a file into the strategies folder"
                )
                raise ConfigError(
                    f"use: {use!r}: no module {error.name!r} is installed for {sys.executable}; {way_out}"
                ) from error
            raise _blame(error, use, None) from error
        except BaseException as error:
            raise _blame(error, use, None) from error
    strategy = _pick(use, module, name, module_name)
    return _imported(use, strategy, "module", module)


def _from_entry_point(use: str, point: EntryPoint) -> Loaded:
    try:
        with _in_time():
            target = point.load()
    except BaseException as error:
        raise _blame(error, f"entry point {use!r} ({point.value})", None) from error
    if isinstance(target, types.ModuleType):
        target = _pick(use, target, None, point.value)
    strategy = _usable(use, target, point.value)
    return _imported(use, strategy, "entry point", sys.modules[strategy.__module__])


def _imported(use: str, strategy: type[Strategy], origin: str, module: types.ModuleType) -> Loaded:
    if module.__file__ is None or not module.__file__.endswith(".py"):
        return Loaded(use, strategy, origin, None, None)
    path = Path(module.__file__)
    digest = _digest(path)
    first = _RAN.setdefault(module, digest)
    return Loaded(use, strategy, origin, path, first, is_outdated=digest != first)


def _digest(path: Path) -> str | None:
    """None if the file is gone or cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _run(path: Path) -> tuple[types.ModuleType, str]:
    """Compile and run a file as it is now, so that a stale .pyc never trades."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise StrategyError(f"{path}: cannot be read: {error.strerror}") from error
    module = types.ModuleType(f"bot_strategy_{path.stem.replace('-', '_')}")
    module.__file__ = str(path)
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{path}:{error.lineno or 1}:{max(1, error.offset or 1)}"
        shown = f"\n    {error.text.rstrip()}" if error.text else ""
        raise StrategyError(f"{where}: {error.msg}{shown}") from error
    except ValueError as error:
        raise StrategyError(f"{path}: is not valid Python source: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise StrategyError(f"{path}: an expression in it is too long for Python") from error
    before = sys.modules.get(module.__name__)
    # Classes of the module look up their annotations in sys.modules.
    sys.modules[module.__name__] = module
    try:
        with _in_time():
            exec(code, module.__dict__)  # noqa: S102 - loading a strategy means running its file
    except BaseException as error:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
        raise _blame(error, str(path), path) from error
    return module, hashlib.sha256(source).hexdigest()


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Limit the time of an import by a signal, which works on the main thread only. Elsewhere the caller watches it
    (`Worker`).

    The import gets its own decimal context, so that it cannot change the one that the daemon computes money with.
    """
    is_free = threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] == 0

    def interrupt(*_: object) -> None:
        raise _Endless

    if not is_free:
        with localcontext():
            yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, IMPORT_S, AGAIN_S)
    try:
        with localcontext():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _strategies_of(module: types.ModuleType) -> list[type[Strategy]]:
    """Strategies that a module defines itself, without abstract and private ones."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Strategy)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
        and not inspect.isabstract(value)
    ]


def _pick(use: str, module: types.ModuleType, name: str | None, where: str) -> type[Strategy]:
    offered = _strategies_of(module)
    if name is not None:
        if not hasattr(module, name):
            hint = _did_you_mean(name, [strategy.__name__ for strategy in offered])
            raise ConfigError(f"use: {use!r}: {where} has no class {name}{hint}")
        return _usable(use, getattr(module, name), where)
    if len(offered) == 1:
        return _usable(use, offered[0], where)
    if offered:
        choices = ", ".join(f"{use}:{strategy.__name__}" for strategy in offered)
        raise ConfigError(
            f"use: {use!r}: {where} has {many(len(offered), 'strategy', 'strategies')}; write one of {choices}"
        )
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Strategy) and value.__module__ == module.__name__:
            # Raises and names the missing method.
            return _usable(use, value, where)
    raise StrategyError(
        f"{where}: contains no strategy: define a class with bot's Strategy as its base and an on_bar method"
    )


def _usable(use: str, target: object, where: str) -> type[Strategy]:
    if not (isinstance(target, type) and issubclass(target, Strategy)) or target is Strategy:
        raise StrategyError(
            f"use: {use!r}: {getattr(target, '__name__', target)!s} of {where} is not a subclass of bot's Strategy"
        )
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise StrategyError(f"{where}: {target.__name__} is abstract: define {', '.join(missing)}")
    params: object = target.Params
    if not (isinstance(params, type) and issubclass(params, Params)):
        raise StrategyError(
            f"{where}: {target.__name__}.Params does not derive from bot's Params: write class Params(Params)"
        )
    named = [(indicator.name, number) for indicator in declared(target).values() for number in indicator.numbers]
    if isinstance(target.intervals, Mapping):
        named += [("intervals", bars) for bars in target.intervals.values()]
    for label, period in (("warmup", target.warmup), *named):
        if isinstance(period, str) and period not in target.Params.model_fields:
            known = list(target.Params.model_fields)
            raise StrategyError(
                f"{where}: {target.__name__}.{label} names the param {period!r}, which Params does not"
                f" have{_did_you_mean(period, known)}"
            )
    check_timers(target, where)
    _check_hooks(target, where)
    check_declarations(target, where)
    check_signals(target, where)
    return target


def _check_hooks(target: type[Strategy], where: str) -> None:
    """Check that each hook takes the daemon's arguments, and that no other method is named like a hook.

    So an author learns it at once, not at the first fill.
    """
    for owner in target.__mro__[: target.__mro__.index(Strategy)]:
        for name, given in vars(owner).items():
            label = f"{where}: {target.__name__}.{name}"
            if name.startswith("on_") and callable(given) and name not in HOOKS:
                hint = _did_you_mean(name, list(HOOKS)) or f"; the hooks are {', '.join(HOOKS)}"
                raise StrategyError(f"{label} is no hook, so it would never be called{hint}")
            if name not in HOOKS:
                continue
            called = HOOKS[name][1:] if isinstance(given, staticmethod) else HOOKS[name]
            if isinstance(given, staticmethod | classmethod):
                given = given.__func__
            if not callable(given):
                raise StrategyError(f"{label} is {given!r:.100}, which cannot be called with ({', '.join(called)})")
            if not isinstance(given, types.FunctionType):
                continue
            if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
                raise StrategyError(f"{label} is async; write a plain def, because the daemon does the I/O")
            if name in WANT_NOTHING and inspect.isgeneratorfunction(given):
                raise StrategyError(f"{label} yields, and its signals would be lost; yield them in on_bar")
            if inspect.isgeneratorfunction(given) and (line := line_of_lost_intents(given)) is not None:
                raise StrategyError(
                    f"{label} returns intents at line {line}, which are lost, because it also has a yield: write yield"
                    " in place of return (of a list: yield from)"
                )
            try:
                inspect.signature(given, follow_wrapped=False).bind(*called)
            except TypeError:
                raise StrategyError(
                    f"{label} is called with ({', '.join(called)}), but does not take these arguments"
                ) from None


def _listing(use: str, folder: Path, origin: str, path: Path | None) -> ListedStrategy:
    try:
        loaded = load(use, folder)
    except (ConfigError, StrategyError) as error:
        return ListedStrategy(use, origin, path, "", {}, str(error))
    summary = (inspect.getdoc(loaded.strategy) or "").partition("\n")[0] if loaded.strategy.__doc__ else ""
    return ListedStrategy(use, loaded.origin, loaded.path, summary, _listed(loaded.strategy.Params), None)


def _listed(params: type[Params]) -> dict[str, Any]:
    """The schema for `ListedStrategy.params`.

    Optional params have a default, null if the schema has none. Without a schema: the names only.
    """
    try:
        schema = params.model_json_schema()
    # A param has a type that JSON lacks.
    except PydanticUserError:
        return {name: {} if field.is_required() else {"default": None} for name, field in params.model_fields.items()}
    properties: dict[str, Any] = schema.get("properties", {})
    return {
        name: definition if name in schema.get("required", ()) else {"default": None} | definition
        for name, definition in properties.items()
    }


def _exposure(place: Path) -> Iterator[str]:
    """Warn if another user (except root) could change the file that trades."""
    try:
        seen = place.stat()
    # The file was moved since it was read, as some editors do before they write.
    except OSError:
        return
    if seen.st_uid not in (0, os.geteuid()):
        yield f"{place} belongs to another user (uid {seen.st_uid}), who can change what trades; chown it"
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{place} can be written by others, who can change what trades; chmod go-w {quote(str(place))}"


@contextlib.contextmanager
def _without_current_directory() -> Iterator[None]:
    """Hide the current directory, which `python -m` puts first on the path, so that no file there is imported by
    accident.
    """
    first = sys.path[:1]
    implicit = not sys.flags.safe_path and first and first[0] in ("", str(Path.cwd()))
    if not implicit or first[0] in sys.path[1:]:
        yield
        return
    del sys.path[0]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:0] = first


def _nothing_named(use: str, module: str, folder: Path) -> str:
    if not folder.is_dir():
        return f"use: {use!r}: the strategies folder {folder} does not exist; create it, or name another in the config"
    files = sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("_"))
    names = [*files, *names_of(GROUP)]
    hint = _did_you_mean(module, names) or (f"; there are {', '.join(names)}" if names else "; it is empty")
    return f"use: {use!r}: no file {module}.py in {folder} and no entry point of that name{hint}"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def _problem(error: Any, known: Sequence[str]) -> ParamProblem:
    loc, message = tuple(error["loc"]), str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        hint = _did_you_mean(str(loc[-1]), known) or (
            f"; its params are {', '.join(known)}" if known else "; it has no params"
        )
        return ParamProblem(loc, f"unknown param{hint}")
    if error["type"] == "missing":
        return ParamProblem(loc, "is required and not given")
    return ParamProblem(loc, f"{message} (got {_shown(loc, error['input'])})")


def without_referred(text: str, params: object) -> str:
    """The text without the values of params that came from a reference: a validator may have put them into its
    words.
    """
    for value in sorted(set(_referred(params)), key=len, reverse=True):
        for spelling in {value, repr(value)[1:-1], json.dumps(value)[1:-1]}:
            text = text.replace(spelling, HIDDEN)
    return text


def _referred(value: object) -> Iterator[str]:
    if isinstance(value, Referred) and value:
        yield str(value)
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_referred, value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from chain.from_iterable(map(_referred, value))


def _shown(loc: tuple[str | int, ...], value: Any) -> str:
    """The given value, unless its source, name or form says that it may be a secret."""
    if isinstance(value, Referred) or any(isinstance(step, str) and is_secret_name(step) for step in loc):
        return HIDDEN
    if isinstance(value, Mapping | list | tuple):
        # Parts of the value may be secrets.
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'}"
    return redact_text(repr(value))


def _blame(error: BaseException, where: str, path: Path | None, done: str = "imported") -> StrategyError:
    """A StrategyError for what a strategy raised while it was imported or built, with the deepest line of its own file.

    Re-raises KeyboardInterrupt.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if path is not None:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if own:
            where = f"{path}:{own[-1].lineno}"
    if isinstance(error, _Endless):
        return StrategyError(
            f"{where}: its import did not end within {IMPORT_S:g} s; a strategy file must only define things"
        )
    if isinstance(error, SystemExit):
        return StrategyError(f"{where}: calls sys.exit while it is {done}; a strategy file must only define things")
    # Works also if str(error) raises.
    report = traceback.TracebackException.from_exception(error, lookup_lines=False)
    # pydantic appends a URL
    message = str(report).partition("\n\nFor further information")[0]
    text = f"{where}: raises {type(error).__name__} while it is {done}: {message}"
    if isinstance(error, ModuleNotFoundError) and path is not None and error.name is not None:
        if (path.parent / f"{error.name.partition('.')[0]}.py").is_file():
            return StrategyError(
                f"{text}; a strategy file cannot import its neighbours: put shared code into an installed package"
            )
        return StrategyError(f"{text}; install it into the environment of {sys.executable}")
    return StrategyError(text)
