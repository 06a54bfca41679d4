"""Which updates of Telegram are commands, and whose: one table over kinds of update, chats, persons and ages."""

from __future__ import annotations

from typing import Any, Final

import pytest
from telegram import Update

from bot.cli.operate.telegram_messages import AGE_MS_MAX, AHEAD_MS_MAX, Ignored, Sender, ignored, sender_of
from bot.config.settings import Telegram

NOW_S: Final = 1_800_000_000
PRIVATE, GROUP, OTHER_GROUP = 77, -100, -200
LISTED, STRANGER = 55, 99
SETTINGS: Final = Telegram.model_construct(chats=(PRIVATE, GROUP), users=(LISTED,), api_url="https://x")


def person(number: int, *, is_bot: bool = False) -> dict[str, Any]:
    return {"id": number, "is_bot": is_bot, "first_name": "Someone"}


def chat(number: int) -> dict[str, Any]:
    return {"id": number, "type": "private" if number > 0 else "supergroup", "title": "g"}


def message(in_chat: int, of: int | None, *, age_s: float = 1, **more: Any) -> dict[str, Any]:
    text = {"message_id": 1, "date": int(NOW_S - age_s), "chat": chat(in_chat), "text": "/resume"}
    return text | ({} if of is None else {"from": person(of)}) | more


def update(**fields: Any) -> Update:
    made = Update.de_json({"update_id": 1, **fields}, None)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (message(PRIVATE, PRIVATE), Sender(PRIVATE, PRIVATE)),
        (message(GROUP, LISTED), Sender(GROUP, LISTED)),
        (message(GROUP, STRANGER), Ignored("person")),
        # may command in the private chat, and is not listed for groups
        (message(GROUP, PRIVATE), Ignored("person")),
        (message(OTHER_GROUP, LISTED), Ignored("chat")),
        (message(STRANGER, STRANGER), Ignored("chat")),
        (message(LISTED, LISTED), Ignored("chat")),
        (message(GROUP, None), Ignored("no_person")),
        (message(GROUP, LISTED, sender_chat=chat(GROUP)), Ignored("no_person")),
        (message(GROUP, None, **{"from": person(LISTED, is_bot=True)}), Ignored("no_person")),
    ],
)
@pytest.mark.parametrize("kind", ["message", "edited_message"])
def test_only_listed_persons_in_listed_chats_are_answered(
    said: dict[str, Any], expected: Sender | Ignored, kind: str
) -> None:
    assert sender_of(update(**{kind: said}), SETTINGS) == expected


def test_a_button_is_judged_by_who_presses_it() -> None:
    def pressed(by: int) -> Update:
        return update(
            callback_query={
                "id": "1",
                "from": person(by),
                "chat_instance": "1",
                "data": "/kill",
                "message": message(GROUP, 1),
            }
        )

    assert sender_of(pressed(STRANGER), SETTINGS) == Ignored("person")
    assert sender_of(pressed(LISTED), SETTINGS) == Sender(GROUP, LISTED)
    assert ignored(pressed(LISTED), NOW_S * 1000) == Ignored("not_a_message")


USER_ORIGIN: Final = {"type": "user", "date": NOW_S, "sender_user": person(LISTED)}


@pytest.mark.parametrize(
    ("fields", "reason", "told"),
    [
        ({"message": message(GROUP, LISTED)}, None, None),
        ({"message": message(GROUP, LISTED, age_s=AGE_MS_MAX / 1000)}, None, None),
        ({"message": message(GROUP, LISTED, age_s=AGE_MS_MAX / 1000 + 1)}, "old", "is 2 min old. Nothing was done"),
        ({"message": message(GROUP, LISTED, age_s=20 * 3600)}, "old", "is 20 h old. Nothing was done; send it again"),
        ({"message": message(GROUP, LISTED, age_s=-AHEAD_MS_MAX / 1000)}, None, None),
        ({"message": message(GROUP, LISTED, age_s=-3600)}, "clock", "is 60 min behind Telegram's"),
        ({"edited_message": message(GROUP, LISTED, edit_date=NOW_S)}, "edited", "an edited message is no command"),
        ({"message": message(GROUP, LISTED, forward_origin=USER_ORIGIN)}, "forwarded", "a forwarded message is no"),
        ({"message": message(GROUP, LISTED, via_bot=person(5, is_bot=True))}, "of_a_bot", "another bot wrote"),
        ({"channel_post": message(GROUP, LISTED)}, "not_a_message", None),
        ({"edited_channel_post": message(GROUP, LISTED)}, "not_a_message", None),
        ({"business_message": message(GROUP, LISTED)}, "not_a_message", None),
    ],
)
def test_only_a_new_message_of_its_own_words_is_a_command(
    fields: dict[str, Any], reason: str | None, told: str | None
) -> None:
    no = ignored(update(**fields), NOW_S * 1000)
    assert (None if no is None else no.reason) == reason
    if told is not None:
        assert no is not None
        assert told in (no.answer or "")


def test_the_sender_is_named_by_person_and_chat() -> None:
    assert str(Sender(PRIVATE, PRIVATE)) == "the Telegram user 77"
    assert str(Sender(GROUP, LISTED)) == "the Telegram user 55 in chat -100"
