"""`bot telegram` as a process between a server that speaks the Bot API and a real daemon: who is answered, what is
done, and that the token stays secret.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from bot.cli.app import call
from bot.cli.common.daemon_client import NotRunning, Place
from bot.cli.operate.telegram_chats import CONFIRM_S, Chats
from bot.cli.operate.telegram_messages import Sender
from bot.testing.sandbox import Sandbox
from tests.cli.operate.builders import serving
from tests.cli.operate.daemon_process import WAIT_S, Ran, made

TOKEN = "123456:AAtest-token-that-no-output-may-show"
OWNER, FOREIGN = 77, 88
GROUP = -100
ME = Sender(OWNER, OWNER)


class BotApi:
    """A server in the documented form of Telegram's Bot API, with one bot."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[dict[str, Any]] = queue.Queue()
        self.sent: queue.Queue[tuple[int, str]] = queue.Queue()
        self.polled = threading.Event()
        self.url = ""
        # answers to the next questions for messages
        self.wrong: list[Response] = []
        # False: the token is refused from now on
        self.is_known = True
        self._ids = itertools.count(1)
        self.app = Starlette(routes=[Route("/bot{token}/{method}", self._answer, methods=["GET", "POST"])])

    def say(
        self, chat: int, text: str, *, person: int | None = None, age_s: float = 0, kind: str = "message", **more: Any
    ) -> None:
        number = next(self._ids)
        entities = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}]
        message = {
            "message_id": number,
            "date": int(time.time() - age_s),
            "chat": {"id": chat, "type": "private" if chat > 0 else "group", "title": "g"},
            "from": {"id": person or chat, "is_bot": False, "first_name": "Someone"},
            "text": text,
            "entities": entities,
        }
        self.waiting.put({"update_id": number, kind: message | more})

    def heard(self) -> tuple[int, str]:
        return self.sent.get(timeout=WAIT_S)

    async def _answer(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN or not self.is_known:
            return JSONResponse({"ok": False, "error_code": 401, "description": "Unauthorized"}, 401)
        form = dict(await request.form()) | dict(request.query_params)
        method = request.path_params["method"]
        result: Any = True
        if method == "getMe":
            result = {"id": 1, "is_bot": True, "first_name": "b", "username": "mine_bot"}
        elif method == "getUpdates" and self.wrong and float(form.get("timeout", 0)):
            return self.wrong.pop()
        elif method == "getUpdates":
            result = await run_in_threadpool(self._updates, float(form.get("timeout", 0)))
            if result and await request.is_disconnected():
                # It was for a process that has been killed; the next one gets it.
                self.waiting.put(result.pop())
        elif method == "sendMessage":
            self.sent.put((int(form["chat_id"]), form["text"]))
            result = {"message_id": 1, "date": 1, "chat": {"id": int(form["chat_id"]), "type": "private"}}
        return JSONResponse({"ok": True, "result": result})

    def _updates(self, wait_s: float) -> list[dict[str, Any]]:
        self.polled.set()
        with contextlib.suppress(queue.Empty):
            return [self.waiting.get(timeout=min(wait_s, 1.0) or 0.01)]
        return []


@pytest.fixture(scope="module")
def api() -> Iterator[BotApi]:
    server = BotApi()
    with serving(server.app) as server.url:
        yield server


@pytest.fixture(scope="module")
def daemon() -> Iterator[Ran]:
    with made("Holds") as one:
        one.start()
        one.until("a position", lambda: one.query("SELECT 1 FROM events WHERE type='fill' LIMIT 1"))
        yield one


@pytest.fixture
def process(api: BotApi, daemon: Ran, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`bot telegram` with the token in a file of its own; its log goes to a file."""
    secret = daemon.folder / "token"
    secret.touch(0o600)
    secret.write_text(TOKEN)
    config = tmp_path / "chats.yaml"
    section = (
        f'telegram: {{token: "${{file:{secret}}}", chats: [{OWNER}, {GROUP}], users: [{OWNER}], api_url:'
        f' "{api.url}"}}\n'
    )
    config.write_text(
        daemon.config.read_text().replace("state_dir: state", f"state_dir: {daemon.state}")
        + section
        + f"strategies_dir: {daemon.folder / 'strategies'}\n"
    )
    api.polled.clear()
    api.is_known, api.wrong = True, []
    with (tmp_path / "log").open("w") as log:
        one = subprocess.Popen(
            [sys.executable, "-m", "bot", "telegram", str(config)], stdout=log, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert api.polled.wait(WAIT_S)
            yield one
        finally:
            one.kill()
            one.wait()


def answers_proposals(api: BotApi, daemon: Ran) -> None:
    """Refuse one proposal and approve another.

    A price that drifts meanwhile gives the question a new id, as it should.
    """
    fills = len(daemon.query("SELECT 1 FROM events WHERE type='fill'"))
    daemon.propose("first")
    api.say(FOREIGN, f"/approve {waiting(api)}")
    api.say(OWNER, f"/refuse {waiting(api)} not now")
    assert "is refused: the entry in BTC of mine is not sent" in api.heard()[1]
    api.say(OWNER, "/approvals")
    assert api.heard()[1] == "nothing waits for approval"
    assert len(daemon.query("SELECT 1 FROM events WHERE type='fill'")) == fills
    daemon.propose("second")
    api.say(OWNER, f"/approve {waiting(api)}")
    assert "is approved: the entry in BTC of mine is" in api.heard()[1]
    daemon.until("the entry fills", lambda: len(daemon.query("SELECT 1 FROM events WHERE type='fill'")) > fills)
    [(decider,)] = daemon.query("SELECT decider FROM approvals WHERE state='approved'")
    assert decider == f"the Telegram user {OWNER}"


def does_nothing(api: BotApi, daemon: Ran) -> None:
    """Each message that is no command of a listed person. The strategy runs before, and so it does afterwards."""
    api.say(GROUP, "/pause mine", person=FOREIGN)
    api.say(OWNER, "/pause mine", age_s=20 * 3600 + 60)
    assert "20 h old. Nothing was done" in api.heard()[1], "and the stranger in the group was not answered"
    api.say(OWNER, "/pause mine", kind="edited_message", edit_date=int(time.time()))
    assert "an edited message is no command" in api.heard()[1]
    origin = {"type": "hidden_user", "date": 1, "sender_user_name": "x"}
    api.say(OWNER, "/pause mine", forward_origin=origin)
    assert "a forwarded message is no command" in api.heard()[1]
    for text, entities in (("/puase mine", {}), ("pause mine", {"entities": []})):
        api.say(OWNER, text, **entities)
        assert "no command of mine begins this message, so nothing was done" in api.heard()[1]
    assert Place(daemon.state).ask("GET", "/strategies")["strategies"][0]["state"] == "RUNNING"
    api.say(GROUP, "good morning", person=OWNER)
    api.say(GROUP, "/status@mine_bot", person=OWNER)
    assert api.heard()[0] == GROUP


def log_of(folder: Path) -> str:
    return (folder / "log").read_text()


def waiting(api: BotApi) -> str:
    api.say(OWNER, "/approvals")
    text = api.heard()[1]
    assert "proposed by a model: it rises" in text
    return text.partition(" ")[0]


def test_an_allowed_chat_sees_pauses_approves_and_kills_and_nobody_else_is_answered(
    api: BotApi, daemon: Ran, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    api.say(FOREIGN, "/status")
    api.say(OWNER, "/status")
    chat, text = api.heard()
    assert chat == OWNER, "the message before it, from another chat, was not answered"
    assert "play money" in text
    assert "positions   1, each with its stop" in text

    api.say(OWNER, "/positions")
    assert api.heard()[1].startswith("BTC long ")
    api.say(OWNER, "/pause mine")
    assert "mine: PAUSED" in api.heard()[1]
    api.say(OWNER, "/pause nobody")
    assert api.heard()[1].startswith("error: ")
    api.say(OWNER, "/resume mine")
    assert "mine: RUNNING" in api.heard()[1]

    does_nothing(api, daemon)
    answers_proposals(api, daemon)

    api.say(OWNER, "/kill flatten")
    asked = api.heard()[1]
    code = asked.rsplit(" ", 1)[1]
    api.say(FOREIGN, f"/confirm {code}")
    api.say(OWNER, "/confirm 1")
    assert "nothing was done" in api.heard()[1]
    api.say(OWNER, f"/confirm {code}")
    assert "nothing waits" in api.heard()[1], "a wrong code uses the question up"
    assert daemon.query("SELECT 1 FROM events WHERE type='fill' AND subtype='exit'") == []

    api.say(OWNER, "/kill flatten")
    api.say(OWNER, f"/confirm {api.heard()[1].rsplit(' ', 1)[1]}")
    assert api.heard()[1].startswith("killed: ")
    daemon.until(
        "the position is closed", lambda: daemon.query("SELECT 1 FROM events WHERE type='fill' AND subtype='exit'")
    )

    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    log = log_of(tmp_path)
    assert str(FOREIGN) in log
    assert TOKEN not in log
    assert TOKEN.partition(":")[2] not in log
    told = [json.loads(line) for line in log.splitlines() if '"telegram.killed"' in line]
    assert [(one["chat"], one["person"]) for one in told] == [(OWNER, OWNER)]
    its_log = (daemon.state / "daemon.log").read_text()
    assert f"the Telegram user {OWNER}" in its_log, "the daemon knows who has paused and killed it"


def test_a_kill_is_not_queued_behind_a_command_that_waits_for_a_daemon_that_hangs(
    api: BotApi, daemon: Ran, process: subprocess.Popen[str]
) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        api.say(OWNER, "/status")
        api.say(OWNER, "/kill")
        assert "/confirm" in api.heard()[1], "the status comes later"
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert api.heard()[0] == OWNER, "and so does the answer to the status"


def test_wrong_answers_while_it_runs_leave_it_listening_and_a_token_that_is_taken_away_ends_it(
    api: BotApi, daemon: Ran, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    api.wrong = [
        HTMLResponse("<html>sign in</html>"),
        JSONResponse({"ok": True, "result": [{"update_id": "x"}]}),
        JSONResponse(["x"], 404),
    ]
    daemon.until("it has met each wrong answer", lambda: not api.wrong)
    api.say(OWNER, "/help")
    assert "/kill also works while the daemon does not run" in api.heard()[1]
    assert log_of(tmp_path).count("which is no") == 0
    assert log_of(tmp_path).count("telegram.failed") == 3
    api.is_known = False
    assert process.wait(WAIT_S) == 4
    assert "Telegram refuses this token" in log_of(tmp_path)
    assert TOKEN not in log_of(tmp_path)


def test_a_refused_token_and_a_missing_section_are_config_errors_that_do_not_show_the_token(
    api: BotApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WRONG_TOKEN", "123456:wrong")
    config = tmp_path / "mine.yaml"
    common = (
        f"account: {{base_url: embedded}}\nstate_dir: {tmp_path}\nstrategies_dir:"
        f' {Path("strategies").absolute()}\nstrategies: [{{name: a, use: "trend:Trend", markets: [BTC], budget_usd:'
        " 100}]\n"
    )
    config.write_text(common)
    assert call(["telegram", str(config)]) == 4
    assert "telegram: is required" in capsys.readouterr().err
    config.write_text(f'{common}telegram: {{token: "${{env:WRONG_TOKEN}}", chats: [1], api_url: "{api.url}"}}\n')
    done = subprocess.run(
        [sys.executable, "-m", "bot", "telegram", str(config)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 4
    assert "Telegram refuses this token" in done.stderr
    assert "123456:wrong" not in done.stdout + done.stderr


class Dead(Place):
    def ask(self, *_: Any, **__: Any) -> Any:
        raise NotRunning("no daemon runs on state")


def config_of(folder: Path, base_url: str, key: str | None = None) -> Path:
    """A config whose daemon does not run."""
    if key is not None:
        (folder / "key").touch(0o600)
        (folder / "key").write_text(key)
    file = folder / "live.yaml"
    file.write_text(
        f'account: {{base_url: "{base_url}", api_key: "${{file:key}}"}}\nstate_dir: state\nstrategies_dir: {folder}\n'
        'strategies: [{name: mine, use: "nothing_that_loads:Mine", markets: [BTC], budget_usd: 100}]\n'
    )
    return file


def chats(tmp_path: Path, clock: Callable[[], int] = time.monotonic_ns) -> Chats:
    return Chats(Dead(tmp_path, config_of(tmp_path, "http://127.0.0.1:9", "a key")), clock)


async def test_a_daemon_that_does_not_run_is_an_answer(tmp_path: Path) -> None:
    assert await chats(tmp_path).answer(ME, "status", []) == "error: no daemon runs on state"


async def test_a_confirmation_that_comes_too_late_does_nothing(tmp_path: Path) -> None:
    now = [0]
    one = chats(tmp_path, lambda: now[0])
    code = (await one.answer(ME, "kill", [])).rsplit(" ", 1)[1]
    now[0] = CONFIRM_S * 10**9 + 1
    assert "nothing waits" in await one.answer(ME, "confirm", [code])


@pytest.mark.parametrize("other", [Sender(FOREIGN, FOREIGN), Sender(GROUP, OWNER), Sender(OWNER, FOREIGN)])
async def test_a_kill_is_confirmed_by_the_same_person_in_the_same_chat(other: Sender, tmp_path: Path) -> None:
    one = chats(tmp_path)
    code = (await one.answer(ME, "kill", [])).rsplit(" ", 1)[1]
    assert "nothing waits" in await one.answer(other, "confirm", [code])


@pytest.mark.sandbox(markets=["BTC"])
@pytest.mark.parametrize("flatten", [True, False])
async def test_a_kill_reaches_the_service_while_the_daemon_is_dead(
    flatten: bool, sandbox: Sandbox, tmp_path: Path
) -> None:
    order = {"market": "BTC", "side": "long", "usdAmount": 100, "bracket": {"stopLoss": {"pct": 5}}}
    assert sandbox.client().post("/v1/orders", json=order).status_code == 200
    one = Chats(Dead(tmp_path / "state", config_of(tmp_path, sandbox.base_url, sandbox.api_key)))
    code = (await one.answer(ME, "kill", ["flatten"] if flatten else [])).rsplit(" ", 1)[1]
    said = await one.answer(ME, "confirm", [code])
    assert said.startswith("killed: ")
    assert ("still open: BTC" in said) is not flatten
    assert (sandbox.client().get("/v1/account").json()["positions"] == []) is flatten
    assert [one["type"] for one in sandbox.client().get("/v1/guardians").json()["guardians"]] == ["kill_switch"]


@pytest.mark.parametrize(
    ("base_url", "key", "said"),
    [
        ("http://127.0.0.1:9", None, "cannot be read"),
        ("embedded", None, "neither the daemon nor its embedded service runs"),
    ],
)
async def test_a_kill_that_can_reach_nothing_says_so_at_once_and_gives_no_code(
    base_url: str, key: str | None, said: str, tmp_path: Path
) -> None:
    one = Chats(Dead(tmp_path / "state", config_of(tmp_path, base_url, key)))
    answer = await one.answer(ME, "kill", ["flatten"])
    assert answer.startswith("error: ")
    assert said in answer
    assert "/confirm" not in answer
