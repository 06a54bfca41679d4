"""`bot approvals` against a running daemon, and from a Telegram chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from bot.cli.app import call
from bot.cli.common.daemon_client import find
from bot.cli.operate.telegram_chats import Chats
from tests.cli.operate.daemon_process import Ran, made

WAITING = (
    "SELECT i.id FROM approvals a JOIN intents i ON i.id = a.intent_id WHERE a.state='pending' AND i.state='planned'"
    " ORDER BY a.seq DESC LIMIT 1"
)
# as the service makes them
TOKEN = re.compile(rb"cft_[A-Za-z0-9_-]{32}")
TRADES = "SELECT 1 FROM events WHERE type='fill'"


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    with made("Holds", ", approve: always") as one:
        one.config.write_text(one.config.read_text().replace("interval: 1m", "interval: 15m").replace("60x", "120x"))
        one.start()
        yield one


async def test_a_person_refuses_from_telegram_and_approves_from_the_command_line(
    ran: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--config", str(ran.config)]
    ran.until("an entry waits", lambda: ran.query(WAITING))
    chats = Chats(find(ran.config, None))
    capsys.readouterr()

    def waiting() -> str:
        def one() -> str | None:
            assert call(["approvals", *where, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)["approvals"]
            return found[0]["id"] if found else None

        return str(ran.until("an entry waits", one))

    assert "no id of a proposal" in await chats.answer(1, "approve", ["AB"])
    assert "mine: BTC long" in await chats.answer(1, "approvals", []) or waiting()
    text = await chats.answer(1, "refuse", [waiting(), "not", "now"])
    assert "is refused: the entry in BTC of mine is not sent" in text
    assert ran.query(TRADES) == []
    assert call(["approvals", "approve", waiting(), *where, "--json"]) == 2
    assert call(["approvals", "approve", waiting()[:12], *where, "--yes"]) == 0
    assert "is approved: the entry in BTC of mine" in capsys.readouterr().out
    ran.until("the order fills", lambda: ran.query(TRADES))
    assert call(["approvals", "refuse", "ZZZZZZZZ", "--yes", *where]) == 1
    assert "there is no proposal ZZZZZZZZ" in capsys.readouterr().err
    files = [ran.folder / "err", *ran.state.glob("journal.db*")]
    assert all(TOKEN.search(file.read_bytes()) is None for file in files), "a token is never stored or logged in clear"
