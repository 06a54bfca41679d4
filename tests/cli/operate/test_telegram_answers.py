"""What may stand in the place of an answer of the Bot API, at the start and while `bot telegram` runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from telegram.error import NetworkError, TelegramError

from bot.cli.operate.telegram_answers import (
    CONFLICTS_MAX,
    TEXT_MAX,
    CheckedRequest,
    TelegramClock,
    WrongAnswer,
    fault_of,
    judged,
)
from tests.cli.operate.builders import serving

TOKEN: Final = "123456:AAtest-token-that-no-output-may-show"
WAIT_S: Final = 90
PORTAL: Final = b"<html>sign in to the network</html>"


def no(code: int, text: str, **more: Any) -> tuple[int, bytes]:
    return code, json.dumps({"ok": False, "error_code": code, "description": text, **more}).encode()


# Path of the address -> its answer to every request; the exit code; what the last line of the error says.
STARTS: Final[dict[str, tuple[tuple[int, bytes], int, str]]] = {
    "portal": ((200, PORTAL), 5, "answered 200 with an HTML page, which is no answer of Telegram's Bot API"),
    "empty": ((200, b""), 5, "answered 200 with an empty body"),
    "words": ((200, b"hello"), 5, "answered 200 with text that is no JSON"),
    "list": ((200, b"[]"), 5, "answered 200 with JSON of another form"),
    "null": ((200, b"null"), 5, "answered 200 with JSON of another form"),
    "other": ((200, b'{"status": "up"}'), 5, "answered 200 with JSON of another form"),
    "bare": ((200, b'{"ok": true}'), 5, "answered 200 with JSON of another form"),
    "no-bot": ((200, b'{"ok": true, "result": {"name": 1}}'), 5, "answered 200 with JSON of another form"),
    "deep": ((200, b"[" * 100_000), 5, "answered 200 with text that is no JSON"),
    "proxy": ((502, PORTAL), 5, "answered 502 with an HTML page"),
    "moved": ((302, b""), 5, "answered 302 with an empty body"),
    "not-found": ((404, PORTAL), 5, "answered 404 with an HTML page"),
    "forbidden": (
        no(403, "Forbidden: bot was blocked"),
        7,
        "refuses the bot of telegram.token (403: Forbidden: bot was",
    ),
    "forbidden-portal": ((403, PORTAL), 5, "answered 403 with an HTML page"),
    "conflict": (
        no(409, "Conflict: a webhook is active"),
        7,
        "to another (Conflict: a webhook is active): end the other",
    ),
    "unknown-token": (no(401, "Unauthorized"), 4, "Telegram refuses this token"),
    "bad": (no(400, "Bad Request: no\x1b[2J\nsuch thing"), 7, "refuses the start (No [2j such thing)"),
    "odd": (no(400, "Bad", parameters=[1]), 7, "refuses the start (Bad)"),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    async def answer(request: Request) -> Response:
        code, body = STARTS[request.path_params["case"]][0]
        return Response(body, code, media_type="text/html" if body[:1] == b"<" else "application/json")

    app = Starlette(routes=[Route("/{case}/{rest:path}", answer, methods=["GET", "POST"])])
    with serving(app) as url:
        yield url


@pytest.mark.parametrize("case", STARTS)
async def test_each_wrong_answer_is_a_clear_sentence_and_an_exit_code(case: str, address: str) -> None:
    url = f"{address}/{case}"
    request = CheckedRequest()
    await request.initialize()
    try:
        with pytest.raises(TelegramError) as caught:
            await request.post(f"{url}/bot{TOKEN}/getMe")
    finally:
        await request.shutdown()
    error = fault_of(caught.value, url)
    _, code, said = STARTS[case]
    assert said in str(error)
    assert (int(error.exit_code), str(error).isprintable(), TOKEN in str(error)) == (code, True, False)


async def test_a_bot_whose_messages_go_to_another_ends_and_a_single_conflict_does_not(address: str) -> None:
    ended: list[str] = []
    request = CheckedRequest(lambda why: ended.append(str(why)))
    await request.initialize()
    for n in range(2 * CONFLICTS_MAX):
        case = "bad" if n == CONFLICTS_MAX - 1 else "conflict"
        with pytest.raises(TelegramError):
            await request.post(f"{address}/{case}/bot{TOKEN}/getUpdates")
        assert ended == (["Conflict: a webhook is active"] if n == 2 * CONFLICTS_MAX - 1 else [])
    await request.shutdown()


@pytest.mark.parametrize("skew_ms", [0, -3_600_000, 3_600_000])
async def test_the_age_of_a_message_is_told_by_the_clock_of_telegram_and_not_by_that_of_the_machine(
    skew_ms: int,
) -> None:
    boot_ms, telegram_ms = 5_000, 1_800_000_000_000

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"ok": true, "result": []}'
        date = formatdate(telegram_ms / 1000, usegmt=True)
        writer.write(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    clock = TelegramClock(lambda: boot_ms * 10**6, lambda: telegram_ms + skew_ms)
    assert clock.now_ms() == telegram_ms + skew_ms, "the machine's clock, until Telegram has answered"
    request = CheckedRequest(clock=clock)
    await request.initialize()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await request.post(f"http://127.0.0.1:{port}/bot{TOKEN}/getUpdates")
    await request.shutdown()
    assert clock.now_ms() == telegram_ms
    boot_ms += 20 * 3_600_000
    assert clock.now_ms() == telegram_ms + 20 * 3_600_000, "the machine has slept since"


async def test_an_answer_without_a_date_leaves_the_clock_as_it_is() -> None:
    clock = TelegramClock(lambda: 0, lambda: 7)
    for headers in ({}, {"date": "today"}, {"date": "Thu, 99 Foo 2026 00:00:00 GMT"}):
        await clock.see(httpx.Response(200, headers=headers))
        assert clock.now_ms() == 7


@pytest.mark.parametrize("case", ["portal", "forbidden"])
def test_the_command_ends_with_the_sentence_and_not_with_a_bug(case: str, address: str, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(
        f"account: {{base_url: embedded}}\nstate_dir: {tmp_path}\nstrategies_dir: {Path('strategies').absolute()}\n"
        'strategies: [{name: a, use: "trend:Trend", markets: [BTC], budget_usd: 100}]\n'
        f'telegram: {{token: "${{env:TG_TOKEN}}", chats: [1], api_url: "{address}/{case}"}}\n'
    )
    command = [sys.executable, "-m", "bot", "telegram", str(config)]
    environ = os.environ | {"TG_TOKEN": TOKEN}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=WAIT_S)
    _, code, said = STARTS[case]
    assert done.returncode == code
    assert said in done.stderr.strip().splitlines()[-1]
    assert "a bug in" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        ("getUpdates", None),
        ("getUpdates", {}),
        ("getUpdates", "x"),
        ("getUpdates", [1]),
        ("getUpdates", [{}]),
        ("getUpdates", [{"update_id": "1"}]),
        ("getMe", True),
        ("getMe", []),
        ("getMe", {"id": "1"}),
    ],
)
def test_a_result_of_another_form_is_a_fault_of_the_network(operation: str, result: Any) -> None:
    with pytest.raises(WrongAnswer):
        judged(operation, 200, json.dumps({"ok": True, "result": result}).encode())
    assert issubclass(WrongAnswer, NetworkError), "so the library waits and asks again"


def test_words_of_a_refusal_are_cleaned_and_cut() -> None:
    code, body = judged("sendMessage", 403, no(403, "\x1b]0;x\x07" + "y" * 9_000)[1])
    described = json.loads(body)["description"]
    assert (code, described.isprintable(), len(described)) == (403, True, TEXT_MAX + len(" ..."))
    code, body = judged("sendMessage", 429, no(429, "later", parameters={"retry_after": 3, "x": "y"})[1])
    assert json.loads(body)["parameters"] == {"retry_after": 3}
