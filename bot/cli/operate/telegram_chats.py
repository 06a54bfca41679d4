"""What Telegram chats may ask of a daemon, and the answers. python-telegram-bot fetches the messages and sends the answers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from telegram import Update
from telegram.error import InvalidToken, NetworkError, TelegramError
from telegram.ext import (
    Application,
    ApplicationBuilder,
    ApplicationHandlerStop,
    CommandHandler,
    ContextTypes,
    TypeHandler,
)

from bot.cli.operate.approvals import answer_line, line_of
from bot.cli.operate.status import status_lines, stop_of
from bot.clock import monotonic_ns
from bot.errors import BotError, ConfigError, Exit

if TYPE_CHECKING:
    from bot.cli.operate.daemon_client import Place
    from bot.config.settings import Telegram

log = structlog.get_logger()

CONFIRM_S: Final = 60  # after /kill
TEXT_MAX: Final = 4_000  # characters of a message; Telegram takes 4,096
START_TRIES: Final = 3
HELP: Final = """\
/status - state of the daemon, account and profit
/positions - open positions with their stops
/pause [STRATEGY] - no new entries; exits and stops go on
/resume [STRATEGY] - entries again
/approvals - entries that wait for you
/approve ID - the daemon sends the entry
/refuse ID [REASON] - the entry ends
/kill - cancel entries and block new ones
/kill flatten - also close every position"""

Args = Sequence[str]


class Unreachable(BotError):
    """Telegram cannot be reached."""

    exit_code = Exit.TIMEOUT


class Chats:
    """Answers commands. `clock_ns` is for the time limit of a confirmation."""

    def __init__(self, place: Place, clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._place = place
        self._clock_ns = clock_ns
        self._kills: dict[int, tuple[str, bool, int]] = {}  # chat: code, flatten, until when
        self.commands: Mapping[str, Callable[[int, Args], Awaitable[str]]] = {
            "start": self._help, "help": self._help, "status": self._status, "positions": self._positions,
            "pause": self._pause, "resume": self._resume, "kill": self._kill, "confirm": self._confirm,
            "approvals": self._approvals, "approve": self._approve, "refuse": self._refuse,
        }  # fmt: skip

    async def answer(self, chat: int, command: str, args: Args) -> str:
        """The answer to a command of an allowed chat. A failure is an answer too."""
        try:
            text = await self.commands[command](chat, args)
        except BotError as error:
            text = f"error: {error}"
        return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " ..."

    async def _help(self, _chat: int, _args: Args) -> str:
        return HELP

    async def _status(self, _chat: int, _args: Args) -> str:
        return "\n".join(status_lines(await self._ask("GET", "/status")))

    async def _positions(self, _chat: int, _args: Args) -> str:
        found = (await self._ask("GET", "/positions"))["positions"]
        return "\n".join(map(_position_line, found)) or "no open position"

    async def _pause(self, _chat: int, args: Args) -> str:
        return await self._switch("/pause", args)

    async def _resume(self, _chat: int, args: Args) -> str:
        return await self._switch("/resume", args)

    async def _switch(self, path: str, args: Args) -> str:
        done = await self._ask("POST", path, {"strategy": args[0]} if args else {})
        head = f"{done['state']}: {done['why']}" if done.get("why") else done["state"]
        return "\n".join([head, *(f"{one['name']}: {one['state']}" for one in done["strategies"])])

    async def _approvals(self, _chat: int, _args: Args) -> str:
        found = (await self._ask("GET", "/approvals"))["approvals"]
        return "\n".join(map(line_of, found)) or "nothing waits for approval"

    async def _approve(self, chat: int, args: Args) -> str:
        if len(args) != 1:
            return "write /approve ID; /approvals shows the ids"
        return answer_line(await self._ask("POST", "/approve", {"id": args[0], "by": f"the Telegram chat {chat}"}))

    async def _refuse(self, chat: int, args: Args) -> str:
        if not args:
            return "write /refuse ID [REASON]; /approvals shows the ids"
        reason = {"reason": " ".join(args[1:])} if args[1:] else {}
        return answer_line(
            await self._ask("POST", "/refuse", {"id": args[0], "by": f"the Telegram chat {chat}"} | reason)
        )

    async def _kill(self, chat: int, args: Args) -> str:
        if [*args] not in ([], ["flatten"]):
            return "write /kill or /kill flatten"
        code = f"{secrets.randbelow(9_000) + 1_000}"
        self._kills[chat] = code, bool(args), self._clock_ns() + CONFIRM_S * 10**9
        then = "closes every position" if args else "leaves positions open with their stops"
        return (
            f"This cancels all entries, blocks new ones and {then}. To kill, send within {CONFIRM_S} s: /confirm {code}"
        )

    async def _confirm(self, chat: int, args: Args) -> str:
        code, flatten, until_ns = self._kills.pop(chat, ("", False, 0))
        if not code or self._clock_ns() > until_ns:
            return "nothing waits for a confirmation; send /kill again"
        if [*args] != [code]:
            return "this is another code, so nothing was done; send /kill again"
        from bot.cli.operate.kill import kill_by_daemon

        # In a thread, because it waits for the daemon; the other chats are answered meanwhile.
        key = f"kill-{secrets.token_hex(12)}"
        done = await asyncio.to_thread(lambda: asyncio.run(kill_by_daemon(self._place, key, flatten=flatten)))
        log.warning("telegram.killed", chat=chat, flatten=flatten)
        left = ", ".join(one["coin"] for one in done.get("positions", ()))
        return "killed: entries are cancelled and blocked until the owner lifts the switch" + (
            f"; still open: {left}" if left else ""
        )

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self._place.ask, method, path, body)


def _position_line(position: Mapping[str, Any]) -> str:
    profit = position["unrealized_usd"]
    return f"{position['market']} {position['side']} {position['size']} at {position['entry_px']}, stop {stop_of(position)}, profit {profit} USD"


def serve(place: Place, token: str, settings: Telegram) -> None:
    """Answer the chats of the config until SIGINT or SIGTERM. ConfigError if Telegram refuses the token; Unreachable if it does not answer."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # Its lines at info have the token in the address.
    logging.getLogger("telegram").setLevel(logging.CRITICAL)
    application = application_of(Chats(place), token, settings)
    log.info("telegram.serving", chats=list(settings.chats))
    try:
        # A message from before the start may be hours old.
        application.run_polling(
            drop_pending_updates=True, bootstrap_retries=START_TRIES, allowed_updates=[Update.MESSAGE]
        )
    except InvalidToken:  # Its message has the token.
        raise ConfigError("telegram.token: Telegram refuses this token; ask @BotFather for the present one") from None
    except NetworkError as error:
        raise Unreachable(f"{settings.api_url} cannot be reached ({error}); start this again when it answers") from None


def application_of(chats: Chats, token: str, settings: Telegram) -> Application[Any, Any, Any, Any, Any, Any]:
    """The commands of `chats` as handlers of python-telegram-bot, behind the list of allowed chats."""
    built = ApplicationBuilder().token(token).base_url(f"{settings.api_url}/bot").build()

    async def refuse(update: Update, _context: ContextTypes.DEFAULT_TYPE) -> None:
        chat = update.effective_chat
        if chat is None or chat.id not in settings.chats:
            log.warning("telegram.refused", chat=None if chat is None else chat.id)
            raise ApplicationHandlerStop

    async def reply(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message, chat = update.effective_message, update.effective_chat
        if message is None or chat is None or not message.text:
            return
        command = message.text.split()[0].removeprefix("/").partition("@")[0].lower()
        log.info("telegram.command", chat=chat.id, command=command)
        await message.reply_text(await chats.answer(chat.id, command, context.args or []))

    async def failed(_update: object, context: ContextTypes.DEFAULT_TYPE) -> None:
        log.error("telegram.failed", error=_plain(context.error, token))

    built.add_handler(TypeHandler(Update, refuse), group=-1)
    built.add_handler(CommandHandler([*chats.commands], reply))
    built.add_error_handler(failed)
    return built


def _plain(error: Exception | None, token: str) -> str:
    """The text of an error without the token."""
    kind = type(error).__name__
    text = str(error) if isinstance(error, TelegramError) else kind
    return text.replace(token, "***")
