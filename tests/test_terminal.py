"""Everything that a command writes passes one function: shown on the real streams, and by a walk over the source."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
import structlog

from bot import logs, terminal
from bot.cli import app
from bot.cli.app import call

EVIL = "no \x1b[2J\x1b]0;owned\x07\x9b2J \u202e\r\nFAKE LINE"
RAW = ("\x1b", "\x07", "\x9b", "\u202e", "\r", "\nFAKE")
SOURCE = Path(app.__file__).resolve().parents[1]
# What may write to a terminal by itself, and why.
OWN_WRITERS = {
    "terminal.py": "the guard itself",
    "logs.py": "the console of the log cleans each value",
    "market_data/ccxt_feeder.py": "its standard output is a protocol in JSON, and it imports nothing of bot",
}


PAST_THE_GUARD = re.compile(
    r"sys\.__std|std(out|err)\.buffer|os\.write\([12],|/dev/tty|rich\.console import .*\bConsole\b|\bunguarded\("
)


class Hostile(BaseHTTPRequestHandler):
    """A service whose every answer is an error with escape sequences."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        error = {
            "code": "forbidden",
            "message": EVIL,
            "requestId": "req_1",
            "retryable": False,
            "fix": {"action": EVIL},
        }
        body = json.dumps({"error": error}, ensure_ascii=False).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "command", [["doctor"], ["kill", "--yes"], ["run"], ["data", "pull", "BTC"]], ids=lambda words: words[0]
)
def test_no_command_prints_the_control_characters_of_a_service(
    command: list[str], hostile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "bot.yaml"
    key = tmp_path / "key"
    key.write_text("bbk_0123456789abcdef")
    key.chmod(0o600)
    (tmp_path / "strategies").mkdir()
    shutil.copy(SOURCE / "examples/strategies/trend.py", tmp_path / "strategies")
    config.write_text(
        f"name: evil\nstate_dir: {tmp_path}/state\naccount: {{base_url: '{hostile}', api_key: '${{file:{key}}}'}}\n"
        "dead_man: {heartbeat_seconds: 300, on_miss: flatten}\n"
        "strategies: [{name: t, use: 'trend:Trend', markets: [BTC], budget_usd: 100}]\n"
    )
    ends = {"kill": ["--config", str(config)], "data": ["--base-url", hostile, "--store", str(tmp_path / "data")]}
    assert call([*command, *ends.get(command[0], [str(config)])]) != 0
    out, err = capfd.readouterr()
    assert "owned" in out + err, "the message itself is shown"
    assert not [mark for mark in RAW if mark in out + err]


WRITERS = {
    "click.echo": lambda: click.echo(EVIL),
    "click.echo to standard error": lambda: click.echo(EVIL, err=True),
    "print": lambda: print(EVIL),
    "lines": lambda: sys.stdout.writelines([EVIL]),
    "a bad option": lambda: click.UsageError(EVIL).show(),
    "a strategy's traceback": lambda: sys.excepthook(ValueError, ValueError(EVIL), None),
    "a table": lambda: terminal.console().print(EVIL),
    "a line that is written over": lambda: terminal.write_over(sys.stderr, EVIL),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_every_way_to_write_is_guarded(write: object, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    for name in terminal.NAMES:
        monkeypatch.setattr(sys, name, shown)
    with terminal.guarded():
        write()  # type: ignore[operator]
    assert sys.stdout is shown, "the streams are put back"
    text = shown.getvalue().removeprefix("\r\x1b[K")
    assert "owned" in text
    assert not [mark for mark in RAW[:4] if mark in text]
    assert "\r" not in text.replace("\r\n", "")


def test_a_real_terminal_gets_colors_of_ours_and_nothing_of_others() -> None:
    main, end = pty.openpty()
    with os.fdopen(end, "w", encoding="utf-8") as stream, os.fdopen(main, "rb", buffering=0) as screen:
        try:
            logs.configure(stream=stream, pretty=True)
            structlog.get_logger().info("agent.decided", reason=EVIL, model=[EVIL], **{f"name{EVIL}": 1})
        finally:
            logs.configure()
        shown = screen.read(65_536).decode()
    assert shown.count("owned") == 3
    assert "\x1b[2J" not in shown and "\x07" not in shown and "\x9b" not in shown and "\nFAKE" not in shown
    assert "\x1b[" in shown, "the log's own colors"


def test_nothing_writes_past_the_guard() -> None:
    """Only `click.echo`, `print` and the streams `sys.stdout` and `sys.stderr` are used, and those are guarded."""
    found = [
        f"{name}: {match[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in OWN_WRITERS
        for match in PAST_THE_GUARD.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_the_command_line_is_guarded_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(app.bot, "main", lambda **_: seen.append(isinstance(sys.stdout, terminal.GuardedStream)))
    call(["status"])
    assert seen == [True]
