"""Which message of Telegram is a command, and whose. Pure. One rule for every command; whatever is no new message of a
listed person does nothing.

Telegram sends what a server was asked for, and more: edited messages, posts of channels, presses of buttons. Only
`Update.message` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bot.clock import iso

if TYPE_CHECKING:
    from telegram import Update

    from bot.config.settings import Telegram

# The age of a command. A machine that slept or was offline gets its messages hours later.
AGE_MS_MAX: Final = 120_000
# How far Telegram's clock may be ahead of this machine's. Beyond it no age can be trusted.
AHEAD_MS_MAX: Final = 120_000


class Sender(NamedTuple):
    """The person of a command, and the chat. The id of a private chat is the person's."""

    chat: int
    person: int

    def __str__(self) -> str:
        return f"the Telegram user {self.person}" + ("" if self.chat == self.person else f" in chat {self.chat}")


class Ignored(NamedTuple):
    """An update that does nothing.

    `answer` is what its sender is told; None: nobody is told, because nobody of ours has sent it.
    """

    reason: str
    answer: str | None = None


def sender_of(update: Update, settings: Telegram) -> Sender | Ignored:
    """The listed person in a listed chat who sent this update, or why it is not answered."""
    chat, person = update.effective_chat, update.effective_user
    if chat is None or chat.id not in settings.chats:
        return Ignored("chat")
    message = update.effective_message
    if person is None or person.is_bot or (message is not None and message.sender_chat is not None):
        # A channel, another bot, or an administrator who hides who it is.
        return Ignored("no_person")
    if person.id != chat.id and person.id not in settings.users:
        return Ignored("person")
    return Sender(chat.id, person.id)


def ignored(update: Update, now_ms: int) -> Ignored | None:
    """Why a listed person's update is no command now; None if it is one."""
    message = update.message
    if message is None:
        is_edited = update.edited_message is not None
        return Ignored("edited", _again("an edited message is no command")) if is_edited else Ignored("not_a_message")
    if message.forward_origin is not None:
        return Ignored("forwarded", _again("a forwarded message is no command"))
    if message.via_bot is not None:
        return Ignored("of_a_bot", _again("a message that another bot wrote is no command"))
    sent_ms = int(message.date.timestamp() * 1000)
    if now_ms - sent_ms > AGE_MS_MAX:
        return Ignored("old", _again(f"this message of {iso(sent_ms)} is {_age(now_ms - sent_ms)} old"))
    if sent_ms - now_ms > AHEAD_MS_MAX:
        clock = f"the clock of the bot's machine is {_age(sent_ms - now_ms)} behind Telegram's"
        return Ignored("clock", f"{clock}, so no message can be judged by its age. Nothing was done; correct the clock")
    return None


def _again(why: str) -> str:
    return f"{why}. Nothing was done; send it again as a new message"


def _age(ms: int) -> str:
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * size_ms:
            return f"{ms // size_ms} {unit}"
    return f"{ms // 1000} s"
