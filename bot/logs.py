"""Logging: readable lines on a terminal, JSON lines elsewhere, and never a secret.

Callers log events, not prose: `from bot.logs import log`, then `log.info("intent.accepted", intent=i.id, coin="BTC")`.
Only this module imports structlog, when the first line is logged: most commands log none.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from bot.files import is_moved
from bot.plain_text import one_line, visible
from bot.terminal import unguarded

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

Listener = Callable[[Mapping[str, Any]], None]
Level = Literal["debug", "info", "warning", "error"]

LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

INFO: Final = logging.INFO
WARNING: Final = logging.WARNING

HIDDEN: Final = "[hidden]"

# The level of the last `configure`, and the logger class that it made for that level.
_shown_from = logging.INFO
_wrapper: Any = None


def _structlog() -> Any:
    """structlog, imported without rich, which it would import for tracebacks in color; this log has plain ones."""
    loaded = sys.modules.get("structlog")
    return _imported_structlog() if loaded is None else loaded


def _imported_structlog() -> ModuleType:
    if "rich" in sys.modules:
        return importlib.import_module("structlog")
    # With None in sys.modules the import of rich fails at once.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


def _first_config() -> Any:
    global _config  # noqa: PLW0603 - one process has one log
    _config = _structlog().get_config
    return _config()


# structlog's `get_config`, once it is imported: a line below the level asks it alone.
_config: Callable[[], Any] = _first_config


def is_shown(number: int) -> bool:
    """True if a line of this level (INFO, WARNING) is shown.

    Ask first if a line on the path of an order needs figures.
    """
    # If other code has configured structlog since, its own filter decides.
    return number >= _shown_from or _config()["wrapper_class"] is not _wrapper


class Logger:
    """Logs events through structlog. A line below the level costs one comparison. `bound`: fields of every line."""

    def __init__(self, **bound: Any) -> None:
        self._bound = bound

    def debug(self, event: str, **fields: Any) -> None:
        if is_shown(logging.DEBUG):
            _structlog().get_logger(**self._bound).debug(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        if is_shown(INFO):
            _structlog().get_logger(**self._bound).info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        if is_shown(WARNING):
            _structlog().get_logger(**self._bound).warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        _structlog().get_logger(**self._bound).error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        _structlog().get_logger(**self._bound).exception(event, **fields)

    def critical(self, event: str, **fields: Any) -> None:
        _structlog().get_logger(**self._bound).critical(event, **fields)


log: Final = Logger()


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Drop every line below error until the end of the block: a backtest logs a hundred lines for each trade."""
    global _shown_from, _wrapper
    structlog = _structlog()
    before, level_before = structlog.get_config(), (_shown_from, _wrapper)
    _shown_from, _wrapper = logging.ERROR, structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=_wrapper)
    try:
        yield
    finally:
        structlog.configure(**before)
        _shown_from, _wrapper = level_before


# characters; a shorter secret is no secret, and its letters stand in other words
SECRET_MIN: Final = 8
# an event has a few keys; values that are nested deeper are hidden
DEPTH_MAX: Final = 8

_SECRET_NAME: Final = re.compile(
    r"key|secret|token|authorization|password|credential|otp\b|(sandbox|device)_?code|^urls$", re.IGNORECASE
)
# These names match the pattern above, but give no access: an idempotency key is scoped to its account.
_OPEN_NAME: Final = re.compile(r"idempotency_?key|.*_?ids?|key_?prefix|keys?_?max", re.IGNORECASE)
SECRET_TEXT: Final = re.compile(r"\b(bb[kscd]|cft)_[A-Za-z0-9_-]+|\b(whsec)_[A-Za-z0-9+/=_-]+|\b(Bearer) +[^\s'\",]+")


def is_secret_name(name: str) -> bool:
    """True if a value with this name must not be shown:

    `api_key`, `Authorization`, `confirmToken`; not `idempotency_key`, `key_id`.
    """
    return bool(_SECRET_NAME.search(name)) and not _OPEN_NAME.fullmatch(name)


_hidden: set[str] = set()


def hide(secret: str) -> None:
    """Make this text unreadable in every log line and error of this process, whatever form it has."""
    if len(secret) >= SECRET_MIN:
        _hidden.add(secret)


def redact_text(text: str) -> str:
    """The text with every API key, session, control, confirm and device token, webhook secret and bearer credential
    made unreadable.
    """
    text = SECRET_TEXT.sub(lambda match: f"{next(kind for kind in match.groups() if kind)}_{HIDDEN}", text)
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    return text


def redact(value: Any, depth: int = 0) -> Any:
    """A copy of the value without secrets, which are found by the names of keys and by the form of texts."""
    if isinstance(value, str):
        return redact_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        return HIDDEN
    if depth >= DEPTH_MAX:
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(name): _redact_named(str(name), inner, depth) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    return redact_text(str(value))


def _redact_named(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return redact(value, depth + 1)
    return HIDDEN


def _without_secrets(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    for name, value in event_dict.items():
        # structlog's own notes to the last processor
        if not name.startswith("_"):
            event_dict[name] = redact(value) if name in ("event", "exception") else _redact_named(name, value, 0)
    return event_dict


def _plain(value: Any) -> Any:
    """The value with each text of it on one line, for a line that people read."""
    if isinstance(value, Mapping):
        return {_plain(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return one_line(value) if isinstance(value, str) else value


def _in_plain_text(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Take everything out of an event that could move the cursor or begin a line. A traceback keeps its lines."""
    for name, value in list(event_dict.items()):
        if not name.startswith("_"):
            event_dict[one_line(name)] = (
                visible(value) if name in ("exception", "stack") else _plain(event_dict.pop(name))
            )
    return event_dict


def _listener_processor(listen: Listener) -> Processor:
    def process(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        listen(event_dict)
        return event_dict

    return process


def _dumps(event_dict: EventDict, **_options: Any) -> str:
    first = {name: event_dict[name] for name in ("timestamp", "level", "event") if name in event_dict}
    return json.dumps({**first, **event_dict}, ensure_ascii=False, separators=(",", ":"), default=str)


class _LossyStream(io.TextIOBase):
    """A stream that drops a line if its reader is gone or its disk is full, so that a log line never ends the daemon.

    `file`: where the process's standard output and error go. If that file is renamed or removed, a new one takes its
    place.
    """

    def __init__(self, out: TextIO, file: Path | None = None) -> None:
        self._out = out
        self._file = file

    def write(self, text: str, /) -> int:
        # The stream's owner has ended; a server in another thread may still log.
        if self._out.closed:
            return len(text)
        with contextlib.suppress(OSError):
            if self._file is not None and is_moved(self._out.fileno(), self._file):
                self._open_again(self._file)
            self._out.write(text)
        return len(text)

    def _open_again(self, file: Path) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            for standard in (sys.stdout.fileno(), self._out.fileno()):
                os.dup2(descriptor, standard)
        finally:
            os.close(descriptor)

    def flush(self) -> None:
        # The stream's owner has closed it; the destructor of this object still calls `flush`.
        if self._out.closed:
            return
        with contextlib.suppress(OSError):
            self._out.flush()


class _Handler(logging.StreamHandler[_LossyStream]):
    """The root handler that this module has installed, and may remove."""


def configure(
    pretty: bool | None = None,
    level: str = "info",
    stream: TextIO | None = None,
    listen: Listener | None = None,
    file: Path | None = None,
) -> None:
    """Send all logging, structlog's and the standard library's, to `stream` (standard error by default).

    `pretty` None chooses by the stream: lines for people on a terminal, JSON otherwise. `listen` also gets every event,
    without its secrets, for a command that prints its own lines. `file`: what `stream` writes into, made anew if it is
    moved. May be called again; the last call wins.
    """
    structlog = _structlog()
    out = sys.stderr if stream is None else stream
    # The renderer writes colors of its own, so it cleans the texts, not the stream.
    lossy = _LossyStream(unguarded(out) if pretty else out, file)
    if pretty is None:
        pretty = out.isatty()
    global _shown_from, _wrapper  # noqa: PLW0603 - one process has one log
    number = _shown_from = LEVELS[level]
    _wrapper = structlog.make_filtering_bound_logger(number)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
    ]
    renderer: Processor
    if pretty:
        colors = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        renderer = structlog.dev.ConsoleRenderer(
            colors=colors, pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer(serializer=_dumps)
    # The traceback becomes text before the redactor runs: an exception's message may hold a credential too.
    last: list[Processor] = [structlog.processors.format_exc_info, _without_secrets]
    if listen is not None:
        last.append(_listener_processor(listen))
    if pretty:
        last.append(_in_plain_text)
    last.append(renderer)
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=_wrapper,
        # structlog calls only `write` and `flush`.
        logger_factory=structlog.WriteLoggerFactory(file=lossy),
        # so that a later call also applies to existing loggers
        cache_logger_on_first_use=False,
    )
    handler = _Handler(lossy)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    # Libraries log only warnings and errors, because their progress lines may hold secrets, such as the address for
    # notices.
    logging.root.handlers[:] = [kept for kept in logging.root.handlers if not isinstance(kept, _Handler)] + [handler]
    logging.root.setLevel(max(number, logging.WARNING))
