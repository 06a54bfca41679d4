"""Answers of Telegram's Bot API, judged before the library reads them: a page of a proxy or a wrong form is a fault of
the network, not of ours.

One table, `FAULTS`, gives each fault of the library its sentence and exit code.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from telegram.error import BadRequest, Conflict, Forbidden, InvalidToken, NetworkError, TelegramError
from telegram.request import HTTPXRequest

from bot.clock import SystemClock, boot_ns
from bot.errors import BotError, ConfigError, Exit
from bot.http_limits import bounded_transport
from bot.plain_text import one_line

if TYPE_CHECKING:
    import httpx

# 100 messages of 4,096 characters, each with its sender
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
# refusals in a row, about half a minute: another receives the messages, so this process hears none
CONFLICTS_MAX: Final = 8
MACHINE_MS: Final = SystemClock().now_ms
# characters of a server's words in a sentence of ours
TEXT_MAX: Final = 200
# the Bot API's answers to a token that it does not know
NOT_TOLD: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND)
SHAPES: Final[
    Mapping[str, Callable[[Any], bool]]
    # method -> whether its result has the form that the library needs
] = {
    "getMe": lambda result: isinstance(result, dict) and isinstance(result.get("id"), int),
    "getUpdates": lambda result: (
        isinstance(result, list)
        and all(isinstance(update, dict) and isinstance(update.get("update_id"), int) for update in result)
    ),
}


class Unreachable(BotError):
    """Telegram cannot be reached."""

    exit_code = Exit.TIMEOUT


class BotRefused(BotError):
    """Telegram answers and refuses the bot."""

    exit_code = Exit.REFUSED


class WrongAnswer(NetworkError):
    """Something answers in Telegram's place, or Telegram has another form than its documentation."""


class TelegramFault(NamedTuple):
    """What an error of the library means. `{url}` is the address, `{text}` the server's words."""

    kind: type[TelegramError]
    error: type[BotError]
    sentence: str


# The first kind that matches counts.
FAULTS: Final = (
    TelegramFault(
        InvalidToken, ConfigError, "telegram.token: Telegram refuses this token; ask @BotFather for the present one"
    ),
    TelegramFault(
        Forbidden, BotRefused, "{url} refuses the bot of telegram.token (403: {text}); ask @BotFather about the bot"
    ),
    TelegramFault(
        WrongAnswer,
        Unreachable,
        "{url} answered {text}, which is no answer of Telegram's Bot API. A proxy or the sign-in page of a network may"
        " stand between, or telegram.api_url is wrong; correct that and start this again",
    ),
    TelegramFault(
        Conflict,
        BotRefused,
        "{url} gives the messages of this bot to another ({text}): end the other `bot telegram` of this token, or what"
        " sets a webhook, and start this again",
    ),
    TelegramFault(
        BadRequest, BotRefused, "{url} refuses the start ({text}); check telegram.token and telegram.api_url"
    ),
    TelegramFault(NetworkError, Unreachable, "{url} cannot be reached ({text}); start this again when it answers"),
    TelegramFault(
        TelegramError, BotRefused, "{url} refuses the start ({text}); start this again when that is in order"
    ),
)


def fault_of(error: TelegramError, url: str) -> BotError:
    """The error of ours for an error of the library.

    Its text has no token: the library's own may have one for a refused token.
    """
    fault = next(candidate for candidate in FAULTS if isinstance(error, candidate.kind))
    return fault.error(fault.sentence.format(url=url, text=plain(str(error))))


def plain(text: str) -> str:
    """A server's words in one line, without control characters, at most TEXT_MAX characters."""
    line = one_line(text)
    return line if len(line) <= TEXT_MAX else line[:TEXT_MAX] + " ..."


class TelegramClock:
    """Telegram's time, by the Date of its newest answer, so that a wrong clock of this machine makes no command old.

    The request was sent before that Date, so the time that has passed since the request counts in full: what an answer
    brought before the machine slept is old afterwards. Without a Date it is the machine's clock.
    """

    def __init__(self, boot_ns: Callable[[], int] = boot_ns, machine_ms: Callable[[], int] = MACHINE_MS) -> None:
        self._boot_ns = boot_ns
        self._machine_ms = machine_ms
        self._asked_ns = 0
        # Telegram's time less the boot clock's.
        self._ahead_ms: int | None = None

    def ask(self) -> None:
        """A request begins."""
        self._asked_ns = self._boot_ns()

    async def see(self, answer: httpx.Response) -> None:
        """Take the Date of the answer to the newest request."""
        with contextlib.suppress(ValueError):
            at = parsedate_to_datetime(answer.headers.get("date", ""))
            self._ahead_ms = int(at.timestamp() * 1000) - self._asked_ns // 10**6

    def now_ms(self) -> int:
        return self._machine_ms() if self._ahead_ms is None else self._ahead_ms + self._boot_ns() // 10**6


class CheckedRequest(HTTPXRequest):
    """The library's HTTP requests with judged answers.

    `refused` is called when Telegram will give this process no messages any more.
    """

    def __init__(
        self,
        refused: Callable[[TelegramError], None] = lambda _why: None,
        clock: TelegramClock | None = None,
        **named: Any,
    ) -> None:
        self._refused = refused
        # in a row
        self._conflicts = 0
        self._clock = TelegramClock() if clock is None else clock
        options = {"transport": bounded_transport(ANSWER_BYTES_MAX), "event_hooks": {"response": [self._clock.see]}}
        super().__init__(httpx_kwargs=options, **named)

    async def do_request(self, url: str, method: str, *args: Any, **named: Any) -> tuple[int, bytes]:
        self._clock.ask()
        code, payload = await super().do_request(url, method, *args, **named)
        code, payload = judged(url.rsplit("/", 1)[-1], code, payload)
        if code in NOT_TOLD:
            self._refused(InvalidToken())
        self._conflicts = self._conflicts + 1 if code == HTTPStatus.CONFLICT else 0
        if self._conflicts >= CONFLICTS_MAX:
            self._refused(Conflict(json.loads(payload)["description"]))
        return code, payload


def judged(operation: str, code: int, payload: bytes) -> tuple[int, bytes]:
    """The answer in the form that the library reads without a fault of its own.

    WrongAnswer if it is not the Bot API's.
    """
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        raise WrongAnswer(f"{code} with {_kind_of(payload)}") from None
    if not isinstance(body, dict) or not isinstance(body.get("ok"), bool):
        raise WrongAnswer(f"{code} with JSON of another form")
    if HTTPStatus.OK <= code <= 299:
        if not body["ok"] or "result" not in body or not SHAPES.get(operation, lambda _result: True)(body["result"]):
            raise WrongAnswer(f"{code} with JSON of another form")
        return code, payload
    parameters = body.get("parameters")
    numbers = parameters.items() if isinstance(parameters, dict) else ()
    cleaned = {
        "ok": False,
        "description": plain(str(body.get("description", ""))),
        "parameters": {name: value for name, value in numbers if type(value) is int},
    }
    return code, json.dumps(cleaned).encode()


def _kind_of(payload: bytes) -> str:
    if not payload.strip():
        return "an empty body"
    return "an HTML page" if payload.lstrip()[:1] == b"<" else "text that is no JSON"
