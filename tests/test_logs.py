"""Log lines: one event each, JSON off a terminal, and never a secret."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import structlog

from bot import logs

SECRETS = (
    "bbk_test_12345678_AAAA_crc",
    "bbs_session",
    "bbc_control",
    "whsec_c2VjcmV0Lw==",
    "Bearer abc.def",
    "bbd_a-device_code",
    "cft_a-confirm_token",
    "hunter2",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_each_event_is_one_json_line() -> None:
    out = io.StringIO()
    logs.configure(stream=out)
    structlog.get_logger().info(
        "intent.accepted", intent="i1", coin="BTC", usd=Decimal("50.10"), text="two\nlines, \u20bf"
    )
    (line,) = lines(out)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line["event"] == "intent.accepted"
    assert (line["level"], line["usd"], line["text"]) == ("info", "50.10", "two\nlines, \u20bf")


class Gone(io.StringIO):
    """A pipe whose reader has gone, or a file on a full disk."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("pretty", [True, False])
def test_a_line_that_nobody_takes_ends_nothing(pretty: bool, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[object] = []
    logs.configure(pretty=pretty, stream=Gone(), listen=lambda event: told.append(event["event"]))
    structlog.get_logger().info("bar.closed")
    logging.getLogger("library").error("trouble")
    assert told == ["bar.closed", "trouble"]
    assert capsys.readouterr() == ("", "")


def test_a_stream_that_its_owner_has_closed_is_not_flushed() -> None:
    out = io.StringIO()
    logs.configure(stream=out)
    out.close()
    for handler in logging.root.handlers:
        handler.flush()


def test_on_a_terminal_an_event_is_a_readable_line() -> None:
    out = Terminal()
    logs.configure(stream=out)
    structlog.get_logger().info("bar.closed", coin="BTC")
    assert "bar.closed" in out.getvalue()
    assert "BTC" in out.getvalue()
    assert not out.getvalue().startswith("{")


@pytest.mark.parametrize(
    ("name", "value", "is_coloured"), [("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_a_terminal_gets_colours_unless_it_or_its_user_wants_none(
    name: str, value: str, is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    out = Terminal()
    logs.configure(stream=out)
    structlog.get_logger().info("bar.closed", coin="BTC")
    assert ("\x1b[" in out.getvalue()) == is_coloured


@pytest.mark.parametrize("pretty", [True, False])
def test_no_secret_gets_into_a_line(pretty: bool) -> None:
    out = io.StringIO()
    logs.configure(pretty, stream=out)
    log = structlog.get_logger()
    log.info(
        f"odd {SECRETS[0]}",
        note=f"{SECRETS[1]}, {SECRETS[2]}",
        api_key="hunter2",
        Authorization="hunter2",
        nested={"webhookSecret": ["hunter2"]},
    )
    log.warning(
        "x.seen",
        headers=[("authorization", SECRETS[4])],
        body=(SECRETS[3],),
        confirmToken="hunter2",
        deviceCode="hunter2",
        text=f"{SECRETS[5]}, {SECRETS[6]}",
        raw=b"hunter2",
        otp="hunter2",
    )
    try:
        raise ValueError(f"refused {SECRETS[0]}")
    except ValueError:
        log.exception("x.failed", why=ValueError(SECRETS[1]))
    logging.getLogger("library").error("sent %s", SECRETS[4])
    for secret in SECRETS:
        assert secret not in out.getvalue()
    assert "ValueError" in out.getvalue()
    assert "library" in out.getvalue() or "sent" in out.getvalue()


def test_names_that_carry_no_authority_are_shown() -> None:
    out = io.StringIO()
    logs.configure(stream=out)
    structlog.get_logger().info(
        "x.seen", idempotency_key="K", idempotencyKey="K", key_id="key_1", token_ids=["a"], key=None, token=True
    )
    (line,) = lines(out)
    assert (line["idempotency_key"], line["idempotencyKey"], line["key_id"], line["token_ids"]) == (
        "K",
        "K",
        "key_1",
        ["a"],
    )
    assert (line["key"], line["token"]) == (None, True)


def test_what_nests_without_end_is_cut() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    assert logs.HIDDEN in json.dumps(logs.redact(loop))


def test_redacting_changes_a_copy_only() -> None:
    given = {"api_key": "hunter2", "list": [{"secret": "hunter2"}], "n": 1}
    assert logs.redact(given) == {"api_key": logs.HIDDEN, "list": [{"secret": logs.HIDDEN}], "n": 1}
    assert given["api_key"] == "hunter2"


def test_the_level_holds_for_both_kinds_of_loggers() -> None:
    out = io.StringIO()
    logs.configure(level="warning", stream=out)
    structlog.get_logger().info("x.quiet")
    logging.getLogger("library").info("quiet")
    structlog.get_logger().warning("x.loud")
    assert [line["event"] for line in lines(out)] == ["x.loud"]


def test_debug_is_of_our_own_events_not_of_what_libraries_say_of_their_progress() -> None:
    out = io.StringIO()
    logs.configure(level="debug", stream=out)
    structlog.get_logger().debug("x.seen")
    logging.getLogger("library").debug("connects to mqtt://me:hunter2@localhost")
    assert [line["event"] for line in lines(out)] == ["x.seen"]


def test_the_last_configuration_rules_also_for_loggers_made_before() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    log = structlog.get_logger()
    log.info("x.one")
    logs.configure(stream=second)
    log.info("x.two")
    logging.getLogger("library").error("three")
    assert [line["event"] for line in lines(first)] == ["x.one"]
    assert [line["event"] for line in lines(second)] == ["x.two", "three"]


def test_an_unknown_level_is_a_mistake_of_ours() -> None:
    with pytest.raises(KeyError):
        logs.configure(level="loud")


def test_a_process_whose_output_file_is_moved_writes_into_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "sandbox.log"
    script = (
        "import sys, structlog; from pathlib import Path; from bot import logs; file = Path(sys.argv[1]);"
        "logs.configure(file=file); structlog.get_logger().info('first');"
        "file.rename(file.with_name('sandbox.log.1')); structlog.get_logger().info('second');"
        "file.unlink(); structlog.get_logger().info('third'); print('a line of standard output')"
    )
    with file.open("ab") as out:
        subprocess.run([sys.executable, "-c", script, str(file)], stdout=out, stderr=out, check=True)
    assert "first" in (tmp_path / "sandbox.log.1").read_text()
    text = file.read_text()
    assert "third" in text and "a line of standard output" in text and "second" not in text
