"""Loader: the `use` of a config becomes a Strategy class, or an error that says what to do. No traceback leaves here.

Three places, in this order: a file of the strategies folder ("trend" or "trend:Trend"), a dotted path on the
interpreter's own path ("pkg.mod:Class"), an installed entry point (group bot.strategies). Never the current directory
by accident and never the network. A plug-in runs with the daemon's full trust; its source hash is kept for the record.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import inspect
import os
import re
import signal
import stat
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import localcontext
from importlib.metadata import EntryPoint, entry_points
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
from bot.runtime.strategy_host.timers import check_timers
from bot.strategy import Strategy
from bot.strategy.base import declared
from bot.strategy.indicators import Indicators
from bot.strategy.params import Params
from bot.words import many

GROUP = "bot.strategies"
IMPORT_S: Final = 30.0  # for so long an import may take; half of what a unit has for its start
AGAIN_S: Final = 1.0  # an import that catches everything is told again
HOOKS: Final = {  # with what each is called
    name: tuple(inspect.signature(hook).parameters)
    for name, hook in vars(Strategy).items()
    if name.startswith("on_") or name == "confirm"
}
WANT_NOTHING: Final = ("on_start", "on_stop", "confirm")
USE = re.compile(r"(?P<module>[A-Za-z_][\w\-]*(?:\.[A-Za-z_]\w*)*)(?::(?P<name>[A-Za-z_]\w*))?")

# The digest of each installed module's source, from when it was first asked for, so right after its import: later the file may say another thing.
_RAN: Final[WeakKeyDictionary[types.ModuleType, str | None]] = WeakKeyDictionary()


class _Endless(BaseException):
    """An import has had its time."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A strategy class and where it came from. `sha256` is of the source text that ran, None when it has none.

    `is_outdated`: its file reads otherwise by now, and this process cannot take that over: an installed module is imported once.
    """

    use: str
    strategy: type[Strategy]
    origin: str  # "file", "module" or "entry point"
    path: Path | None
    sha256: str | None
    warnings: tuple[str, ...] = ()
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """One row of `bot strategies`: either a strategy with its first line of docs, or the `error` that loading it gave."""

    use: str
    origin: str
    path: Path | None
    summary: str
    params: Mapping[str, Any]  # name -> its JSON schema: type, default, bounds, description
    error: str | None


@dataclass(frozen=True, slots=True)
class ParamProblem:
    """One bad param: `loc` is its place under `params`, for the config to find its line."""

    loc: tuple[str | int, ...]
    message: str


def load(use: str, folder: Path) -> Loaded:
    """The class that `use` names. ConfigError: `use` names nothing; StrategyError: what it names cannot be used."""
    match = USE.fullmatch(use)
    if match is None:
        raise ConfigError(
            f'use: {use!r} is neither "file", "file:Class", "package.module:Class" nor an entry point\'s name'
        )
    module, name = match["module"], match["name"]
    path = folder / f"{module}.py"
    if "." not in module and _is_file(path):
        return _from_file(use, path, name)
    point = next((one for one in entry_points(group=GROUP) if one.name == use), None)
    if point is not None:
        return _from_entry_point(use, point)
    if "." in module:
        return _from_module(use, module, name, folder)
    raise ConfigError(_nothing_named(use, module, folder))


def build(loaded: Loaded, *, name: str, markets: Sequence[str], params: Mapping[str, Any]) -> Strategy:
    """A strategy with its params judged. ConfigError names each bad param and its bound."""
    problems = check_params(loaded.strategy, params)
    if problems:
        lines = [f"strategy {name!r} ({loaded.use}): {many(len(problems), 'bad param')}"]
        lines += [f"  params.{'.'.join(map(str, one.loc))}: {one.message}" for one in problems]
        raise ConfigError("\n".join(lines))
    where = f"strategy {name!r} ({loaded.use})"
    try:
        with localcontext():
            made = loaded.strategy(name=name, markets=markets, params=params)
    except StrategyError as error:
        raise StrategyError(f"{where}: {error}") from error
    except BaseException as error:
        if isinstance(error, TypeError) and "__init__" in vars(loaded.strategy):
            raise StrategyError(f"{where}: {error}; leave __init__ alone and prepare in on_start") from error
        raise _blame(error, where, loaded.path, "built") from error
    if not isinstance(getattr(made, "indicators", None), Indicators):
        raise StrategyError(f"{where}: its __init__ calls no super().__init__; leave it alone and prepare in on_start")
    return made


def check_params(strategy: type[Strategy], params: Mapping[str, Any]) -> list[ParamProblem]:
    """Every problem of `params`, none when they are good. StrategyError where the author's own check of them fails."""
    fields = strategy.Params.model_fields
    problems = [  # They would be 1 and 0.
        ParamProblem((name,), f"must be a number (got {value})")
        for name, value in params.items()
        if isinstance(value, bool) and name in fields and fields[name].annotation in (int, float)
    ]
    told = [one.loc for one in problems]
    try:
        strategy.Params.model_validate(dict(params))
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems += [_problem(one, list(fields)) for one in found if one["loc"][:1] not in told]
    except (Exception, SystemExit) as error:  # Of a validator of the author's own. What it says may hold a secret.
        name = type(error).__name__
        raise StrategyError(
            f"{strategy.__name__}.Params: raises {name} while it checks them; what is wrong with one is a ValueError"
        ) from error
    return problems


def discover(folder: Path) -> list[Found]:
    """Every strategy of the folder and of the installed entry points, by name; broken ones with their error."""
    found: list[Found] = []
    for path in sorted(folder.glob("*.py")):
        if path.name.startswith("_"):
            continue
        try:
            module, _ = _run(path)
            names = [one.__name__ for one in _strategies_of(module)]
        except StrategyError as error:
            found.append(Found(path.stem, "file", path, "", {}, str(error)))
            continue
        uses = [path.stem] if len(names) < 2 else [f"{path.stem}:{name}" for name in names]
        found += [_found(use, folder, "file", path) for use in uses]
    found += [
        _found(point.name, folder, "entry point", None)
        for point in sorted(entry_points(group=GROUP), key=lambda one: one.name)
    ]
    return found


def _is_file(path: Path) -> bool:
    """ConfigError where that cannot be seen."""
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
                    f"a class of {stem}.py in the strategies folder is written {stem}:{name or (rest if rest != 'py' else 'Class')}"
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
    """None of a file that is gone, or cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _run(path: Path) -> tuple[types.ModuleType, str]:
    """The module of a file, compiled from the text as it is now: a stale .pyc can never be what trades."""
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
        raise StrategyError(f"{path}: is not Python text: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise StrategyError(f"{path}: an expression in it is too long for Python to read") from error
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # Its classes look their annotations up here.
    try:
        with _in_time():
            exec(code, module.__dict__)  # noqa: S102 - this is what loading a plug-in is
    except BaseException as error:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
        raise _blame(error, str(path), path) from error
    return module, hashlib.sha256(source).hexdigest()


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """End an import that does not end by itself, where a signal can: on the main thread. Elsewhere the caller watches (`Worker`).

    What an import does to the context of decimals is its own: with ours the daemon reckons money.
    """
    is_free = threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] == 0

    def enough(*_: object) -> None:
        raise _Endless

    if not is_free:
        with localcontext():
            yield
        return
    before = signal.signal(signal.SIGALRM, enough)
    signal.setitimer(signal.ITIMER_REAL, IMPORT_S, AGAIN_S)
    try:
        with localcontext():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _strategies_of(module: types.ModuleType) -> list[type[Strategy]]:
    """The strategies a module defines and offers: its own, not abstract, not private."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, Strategy)
        and one.__module__ == module.__name__
        and not one.__name__.startswith("_")
        and not inspect.isabstract(one)
    ]


def _pick(use: str, module: types.ModuleType, name: str | None, where: str) -> type[Strategy]:
    offered = _strategies_of(module)
    if name is not None:
        if not hasattr(module, name):
            hint = _did_you_mean(name, [one.__name__ for one in offered])
            raise ConfigError(f"use: {use!r}: {where} has no class {name}{hint}")
        return _usable(use, getattr(module, name), where)
    if len(offered) == 1:
        return _usable(use, offered[0], where)
    if offered:
        choices = ", ".join(f"{use}:{one.__name__}" for one in offered)
        raise ConfigError(
            f"use: {use!r}: {where} has {many(len(offered), 'strategy', 'strategies')}; write one of {choices}"
        )
    for one in vars(module).values():
        if isinstance(one, type) and issubclass(one, Strategy) and one.__module__ == module.__name__:
            return _usable(use, one, where)  # Says which method it lacks.
    raise StrategyError(
        f"{where}: no strategy in it: define a class with bot's Strategy as its base and an on_bar method"
    )


def _usable(use: str, target: object, where: str) -> type[Strategy]:
    if not (isinstance(target, type) and issubclass(target, Strategy)) or target is Strategy:
        raise StrategyError(
            f"use: {use!r}: {getattr(target, '__name__', target)!s} of {where} is not a subclass of bot's Strategy"
        )
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise StrategyError(f"{where}: {target.__name__} is abstract: give it {', '.join(missing)}")
    params: object = target.Params
    if not (isinstance(params, type) and issubclass(params, Params)):
        raise StrategyError(
            f"{where}: {target.__name__}.Params is not made of bot's Params: write class Params(Params)"
        )
    for label, period in [("warmup", target.warmup)] + [(one.name, one.period) for one in declared(target).values()]:
        if isinstance(period, str) and period not in target.Params.model_fields:
            known = list(target.Params.model_fields)
            raise StrategyError(
                f"{where}: {target.__name__}.{label} names the param {period!r}, which Params has not{_did_you_mean(period, known)}"
            )
    check_timers(target, where)
    _check_hooks(target, where)
    return target


def _check_hooks(target: type[Strategy], where: str) -> None:
    """Each hook can be called as the runtime calls it, and nothing is named like one that nobody calls. An author sees it here, not at the first fill."""
    for owner in target.__mro__[: target.__mro__.index(Strategy)]:
        for name, given in vars(owner).items():
            label = f"{where}: {target.__name__}.{name}"
            if name.startswith("on_") and callable(given) and name not in HOOKS:
                hint = _did_you_mean(name, list(HOOKS)) or f"; the hooks are {', '.join(HOOKS)}"
                raise StrategyError(f"{label} is no hook, so nobody would call it{hint}")
            if name not in HOOKS:
                continue
            called = HOOKS[name][1:] if isinstance(given, staticmethod) else HOOKS[name]
            if isinstance(given, staticmethod | classmethod):
                given = given.__func__
            if not callable(given):
                raise StrategyError(f"{label} is {given!r:.100}, and nobody can call it with ({', '.join(called)})")
            if not isinstance(given, types.FunctionType):
                continue
            if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
                raise StrategyError(f"{label} is async; a hook is a plain def, and the runtime does what takes time")
            if name in WANT_NOTHING and inspect.isgeneratorfunction(given):
                raise StrategyError(f"{label} yields, and what it wants would be lost; want it in on_bar")
            try:
                inspect.signature(given, follow_wrapped=False).bind(*called)
            except TypeError:
                raise StrategyError(f"{label} is called with ({', '.join(called)}), and does not take that") from None


def _found(use: str, folder: Path, origin: str, path: Path | None) -> Found:
    try:
        loaded = load(use, folder)
    except (ConfigError, StrategyError) as error:
        return Found(use, origin, path, "", {}, str(error))
    summary = (inspect.getdoc(loaded.strategy) or "").partition("\n")[0] if loaded.strategy.__doc__ else ""
    return Found(use, loaded.origin, loaded.path, summary, _listed(loaded.strategy.Params), None)


def _listed(params: type[Params]) -> dict[str, Any]:
    """What `Found.params` says; of what may be left out there is a default, null where the schema has none. One without a schema is names alone."""
    try:
        schema = params.model_json_schema()
    except PydanticUserError:  # Of a type that JSON does not have.
        return {name: {} if one.is_required() else {"default": None} for name, one in params.model_fields.items()}
    found: dict[str, Any] = schema.get("properties", {})
    return {name: one if name in schema.get("required", ()) else {"default": None} | one for name, one in found.items()}


def _exposure(place: Path) -> Iterator[str]:
    """Who besides the user that runs the daemon could change what trades. Root could anyway."""
    try:
        seen = place.stat()
    except OSError:  # Moved away since it was read, as an editor does before it writes: what ran is known.
        return
    if seen.st_uid not in (0, os.geteuid()):
        yield f"{place} belongs to another user (uid {seen.st_uid}), who can change what trades; chown it"
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"{place} can be written by others, who can change what trades; chmod go-w {quote(str(place))}"


@contextlib.contextmanager
def _without_current_directory() -> Iterator[None]:
    """`python -m` puts the current directory first on the path; what lies there by accident must not be imported."""
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
    names = [*files, *(one.name for one in entry_points(group=GROUP))]
    hint = _did_you_mean(module, names) or (f"; there are {', '.join(names)}" if names else "; it is empty")
    return f"use: {use!r}: no file {module}.py in {folder} and no entry point of that name{hint}"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    by_lower = {one.lower(): one for one in known}
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


def _shown(loc: tuple[str | int, ...], value: Any) -> str:
    """What was given, unless it may be a secret: by where it came from, by its name, by its look."""
    if isinstance(value, Referred) or any(isinstance(step, str) and is_secret_name(step) for step in loc):
        return HIDDEN
    if isinstance(value, Mapping | list | tuple):
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'}"  # Its parts may be anything.
    return redact_text(repr(value))


def _blame(error: BaseException, where: str, path: Path | None, done: str = "imported") -> StrategyError:
    """What an import raised, or whatever else is `done` with a strategy, with the deepest line of its own file. A person's Ctrl-C is raised again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if path is not None:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if own:
            where = f"{path}:{own[-1].lineno}"
    if isinstance(error, _Endless):
        return StrategyError(
            f"{where}: its import has not come to an end within {IMPORT_S:g} s; a strategy file only defines things"
        )
    if isinstance(error, SystemExit):
        return StrategyError(f"{where}: calls sys.exit while it is {done}; a strategy file only defines things")
    told = traceback.TracebackException.from_exception(error, lookup_lines=False)  # Has a text where str() raises.
    said = str(told).partition("\n\nFor further information")[0]  # pydantic ends with an address of its own
    text = f"{where}: raises {type(error).__name__} while it is {done}: {said}"
    if isinstance(error, ModuleNotFoundError) and path is not None and error.name is not None:
        if (path.parent / f"{error.name.partition('.')[0]}.py").is_file():
            return StrategyError(
                f"{text}; a strategy file stands alone: put what several share into an installed package"
            )
        return StrategyError(f"{text}; install it into the environment of {sys.executable}")
    return StrategyError(text)
