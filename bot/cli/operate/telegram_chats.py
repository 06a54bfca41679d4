"""What Telegram chats may ask of a daemon, and the answers. python-telegram-bot fetches the messages and sends the
answers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from telegram import Update
from telegram.error import TelegramError
from telegram.ext import (
    Application,
    ApplicationBuilder,
    ApplicationHandlerStop,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    TypeHandler,
    filters,
)

from bot.cli.operate.approvals import answer_line, line_of
from bot.cli.operate.status import status_lines, stop_of
from bot.cli.operate.telegram_answers import CheckedRequest, TelegramClock, fault_of, plain
from bot.cli.operate.telegram_commands import COMMANDS, HELP
from bot.cli.operate.telegram_messages import Ignored, Sender, ignored, sender_of
from bot.clock import boot_ns
from bot.errors import BotError
from bot.logs import log

if TYPE_CHECKING:
    from bot.cli.common.daemon_client import Place
    from bot.config.settings import Telegram

# after /kill
CONFIRM_S: Final = 60
# characters of a message; Telegram takes 4,096
TEXT_MAX: Final = 4_000
START_TRIES: Final = 3
EMERGENCY: Final = ("kill", "confirm")
# why Telegram gives no messages any more, although this process runs
REFUSED: Final = "refused"
UNKNOWN: Final = "no command of mine begins this message, so nothing was done; /help lists them"

Args = Sequence[str]


class Chats:
    """Answers commands of listed persons. `clock_ns` is for the time limit of a confirmation."""

    def __init__(self, place: Place, clock_ns: Callable[[], int] = boot_ns) -> None:
        self._place = place
        self._clock_ns = clock_ns
        # code, flatten, until when
        self._kills: dict[Sender, tuple[str, bool, int]] = {}
        self.commands: Mapping[str, Callable[[Sender, Args], Awaitable[str]]] = {
            name: getattr(self, f"_{name}") for name in COMMANDS
        }

    async def answer(self, sender: Sender, command: str, args: Args) -> str:
        """The answer to a command. A failure is an answer too."""
        try:
            text = await self.commands[command](sender, args)
        except BotError as error:
            text = f"error: {error}"
        return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " ..."

    async def _start(self, sender: Sender, args: Args) -> str:
        return await self._help(sender, args)

    async def _help(self, _sender: Sender, _args: Args) -> str:
        return HELP

    async def _status(self, _sender: Sender, _args: Args) -> str:
        return "\n".join(status_lines(await self._ask("GET", "/status")))

    async def _positions(self, _sender: Sender, _args: Args) -> str:
        positions = (await self._ask("GET", "/positions"))["positions"]
        return "\n".join(map(_position_line, positions)) or "no open position"

    async def _pause(self, sender: Sender, args: Args) -> str:
        return await self._switch("/pause", sender, args)

    async def _resume(self, sender: Sender, args: Args) -> str:
        return await self._switch("/resume", sender, args)

    async def _switch(self, path: str, sender: Sender, args: Args) -> str:
        done = await self._ask("POST", path, {"by": str(sender)} | ({"strategy": args[0]} if args else {}))
        head = f"{done['state']}: {done['why']}" if done.get("why") else done["state"]
        return "\n".join([head, *(f"{strategy['name']}: {strategy['state']}" for strategy in done["strategies"])])

    async def _approvals(self, _sender: Sender, _args: Args) -> str:
        approvals = (await self._ask("GET", "/approvals"))["approvals"]
        return "\n".join(map(line_of, approvals)) or "nothing waits for approval"

    async def _approve(self, sender: Sender, args: Args) -> str:
        if len(args) != 1:
            return "write /approve ID; /approvals shows the ids"
        return answer_line(await self._ask("POST", "/approve", {"id": args[0], "by": str(sender)}))

    async def _refuse(self, sender: Sender, args: Args) -> str:
        if not args:
            return "write /refuse ID [REASON]; /approvals shows the ids"
        reason = {"reason": " ".join(args[1:])} if args[1:] else {}
        return answer_line(await self._ask("POST", "/refuse", {"id": args[0], "by": str(sender)} | reason))

    async def _kill(self, sender: Sender, args: Args) -> str:
        if [*args] not in ([], ["flatten"]):
            return "write /kill or /kill flatten"
        from bot.cli.operate.kill import check_way

        # Says at once why a kill would reach nothing.
        await asyncio.to_thread(check_way, self._place)
        code = f"{secrets.randbelow(9_000) + 1_000}"
        self._kills[sender] = code, bool(args), self._clock_ns() + CONFIRM_S * 10**9
        then = "closes every position" if args else "leaves positions open with their stops"
        return (
            f"This cancels all entries, blocks new ones and {then}. To kill, send within {CONFIRM_S} s: /confirm {code}"
        )

    async def _confirm(self, sender: Sender, args: Args) -> str:
        code, flatten, until_ns = self._kills.pop(sender, ("", False, 0))
        if not code or self._clock_ns() > until_ns:
            return "nothing waits for a confirmation of yours; send /kill again"
        if [*args] != [code]:
            return "this is another code, so nothing was done; send /kill again"
        from bot.cli.operate.kill import kill_account

        log.warning("telegram.kill", chat=sender.chat, person=sender.person, flatten=flatten)
        # In a thread, because it waits for the daemon or the service; the other chats are answered meanwhile.
        done = await asyncio.to_thread(lambda: asyncio.run(kill_account(self._place, flatten=flatten, by=str(sender))))
        log.warning("telegram.killed", chat=sender.chat, person=sender.person, flatten=flatten)
        left = ", ".join(position["coin"] for position in done.get("positions", ()))
        return "killed: entries are cancelled and blocked until the owner lifts the switch" + (
            f"; still open: {left}" if left else ""
        )

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self._place.ask, method, path, body)


def _position_line(position: Mapping[str, Any]) -> str:
    profit = position["unrealized_usd"]
    return (
        f"{position['market']} {position['side']} {position['size']} at {position['entry_px']}, stop"
        f" {stop_of(position)}, profit {profit} USD"
    )


def serve(place: Place, token: str, settings: Telegram) -> None:
    """Answer the chats of the config until SIGINT or SIGTERM.

    Ends with an error of `telegram_answers.FAULTS` if Telegram cannot be used.
    """
    # The library's lines at level info have the token in the address.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("telegram").setLevel(logging.CRITICAL)
    application = application_of(Chats(place), token, settings)
    log.info("telegram.serving", chats=list(settings.chats), users=list(settings.users))
    try:
        # A message from before the start may be hours old.
        application.run_polling(
            drop_pending_updates=True, bootstrap_retries=START_TRIES, allowed_updates=[Update.MESSAGE]
        )
    except TelegramError as error:
        # The library's text of a refused token has the token.
        raise fault_of(error, settings.api_url) from None
    if (why := application.bot_data.get(REFUSED)) is not None:
        raise fault_of(why, settings.api_url)


def application_of(chats: Chats, token: str, settings: Telegram) -> Application[Any, Any, Any, Any, Any, Any]:
    """The commands of `chats` as handlers of python-telegram-bot, behind the lists of allowed chats and persons."""

    turns: dict[Sender, asyncio.Lock] = {}
    clock = TelegramClock()

    def refused(why: TelegramError) -> None:
        built.bot_data[REFUSED] = why
        # The library would go on without a word, and without a message.
        built.stop_running()

    async def keep_out(update: Update, _context: ContextTypes.DEFAULT_TYPE) -> None:
        sender = sender_of(update, settings)
        if isinstance(sender, Ignored):
            chat, person = update.effective_chat, update.effective_user
            log.warning(
                "telegram.refused",
                reason=sender.reason,
                chat=None if chat is None else chat.id,
                person=None if person is None else person.id,
            )
            raise ApplicationHandlerStop

    async def reply(update: Update, context: ContextTypes.DEFAULT_TYPE) -> None:
        message, sender = update.effective_message, sender_of(update, settings)
        if message is None or isinstance(sender, Ignored) or not message.text:
            return
        command = message.text.split()[0].removeprefix("/").partition("@")[0].lower()
        no = ignored(update, clock.now_ms())
        log.info("telegram.command", chat=sender.chat, person=sender.person, command=command, ignored=no and no.reason)
        args = context.args or []
        # Commands of one person go one after another. A kill waits for none of them, because one may wait for a daemon
        # that hangs.
        async with nullcontext() if command in EMERGENCY else turns.setdefault(sender, asyncio.Lock()):
            answer = await chats.answer(sender, command, args) if no is None else no.answer
        if answer is not None:
            await message.reply_text(answer)

    async def unknown(update: Update, _context: ContextTypes.DEFAULT_TYPE) -> None:
        """Whatever a listed person writes in private and is no command: silence would look like a command that was
        taken.
        """
        no, message = ignored(update, clock.now_ms()), update.effective_message
        answer = UNKNOWN if no is None else no.answer
        if message is not None and answer is not None:
            await message.reply_text(answer)

    async def failed(_update: object, context: ContextTypes.DEFAULT_TYPE) -> None:
        log.error("telegram.failed", error=_plain(context.error, token))

    built = (
        ApplicationBuilder()
        .token(token)
        .base_url(f"{settings.api_url}/bot")
        .request(CheckedRequest())
        .get_updates_request(CheckedRequest(refused, clock, connection_pool_size=1))
        .build()
    )
    built.add_handler(TypeHandler(Update, keep_out), group=-1)
    built.add_handler(CommandHandler([*chats.commands], reply, block=False))
    built.add_handler(MessageHandler(filters.ChatType.PRIVATE, unknown, block=False))
    built.add_error_handler(failed)
    return built


def _plain(error: Exception | None, token: str) -> str:
    """The text of an error without the token."""
    kind = type(error).__name__
    text = str(error) if isinstance(error, TelegramError) else kind
    return plain(text.replace(token, "***"))
