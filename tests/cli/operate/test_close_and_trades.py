"""`bot close`, `bot trades` and `bot positions --watch` against a running daemon, and against a dead one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from bot.cli.app import COMMANDS, MEANT, call
from bot.cli.common.daemon_client import DaemonRefused, Denied, Place
from tests.cli.operate.daemon_process import Ran, made

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def holder() -> Iterator[Ran]:
    """A daemon with one position; its strategy opens again when the position is gone, unless it is paused."""
    with made("Holds") as daemon:
        daemon.start()
        daemon.until("ready", lambda: "READY=1" in daemon.heard())
        daemon.until("a position", lambda: position_of(daemon))
        yield daemon


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """A command: its exit code, what it printed, what it complained of."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = call(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def position_of(daemon: Ran) -> dict[str, Any] | None:
    positions = Place(daemon.state).ask("GET", "/positions")["positions"]
    return positions[0] if positions else None


def still(position: dict[str, Any] | None) -> dict[str, Any]:
    """The position without what moves with the price."""
    return {name: value for name, value in (position or {}).items() if name not in ("mark_px", "unrealized_usd")}


def test_a_fraction_is_closed_once_and_the_rest_keeps_its_stop(holder: Ran, ask: Ask) -> None:
    at = ("--config", str(holder.config))
    before = holder.until("a position with its stop", lambda: (one := position_of(holder)) and one["protected"] and one)
    code, out, _ = ask("close", "btc", "--fraction", "50%", "--json", *at)
    assert code == 0
    answer, after = json.loads(out), position_of(holder)
    assert after is not None
    assert answer["closed"] is True
    assert Decimal(answer["left"]) == Decimal(after["size"])
    assert abs(Decimal(after["size"]) * 2 - Decimal(before["size"])) <= Decimal("0.00001"), "a half, cut to the lot"
    assert (after["protected"], after["opened_ms"]) == (True, before["opened_ms"])

    # The same request again means the position as it was then.
    again = {name: before[name] for name in ("market", "side", "size", "opened_ms")} | {"fraction": "0.5"}
    with pytest.raises(DaemonRefused, match="another size now"):
        Place(holder.state).ask("POST", "/close", again)
    assert still(position_of(holder)) == still(after)


def test_what_is_asked_wrongly_closes_nothing(holder: Ran, ask: Ask) -> None:
    at = ("--config", str(holder.config))
    size = (holder.until("a position", lambda: position_of(holder)))["size"]
    for fraction, said in (("0", "not above 0"), ("1.5", "write 0.5 or 50%"), ("half", "not a number")):
        code, _, err = ask("close", "BTC", "--fraction", fraction, *at)
        assert (code, said in err) == (2, True), err
    code, _, err = ask("close", "BITCOIN", *at)
    assert (code, err.strip()) == (1, "error: there is no position in BITCOIN; did you mean BTC?")
    code, _, err = ask("close", "SOL", *at)
    assert (code, err.strip()) == (1, "error: there is no position in SOL; there are BTC")
    for body, said in (
        ({"fraction": "0.5"}, "market is the market"),
        ({"market": "BTC", "fraction": "0.5"}, "a fraction needs size"),
        ({"market": "BTC", "fraction": "-1"}, "above 0 and at most 1"),
    ):
        with pytest.raises(Denied, match=said):
            Place(holder.state).ask("POST", "/close", body)
    code, _, err = ask("close", "BTC", "--fraction", "0.00001", "--yes", *at)
    assert (code, "the minimum is 10 USD" in err) == (7, True), err
    code, _, err = ask("close", "BTC", "--fraction", "0.00002", "--yes", *at)
    assert (code, "the minimum is 10 USD" in err) == (7, True), "another close is asked for, not answered from memory"
    assert (position_of(holder) or {})["size"] == size


def test_the_whole_position_is_closed_and_listed_as_a_trade(holder: Ran, ask: Ask) -> None:
    at = ("--config", str(holder.config))
    ask("pause", *at)
    holder.until("a position", lambda: position_of(holder))
    code, out, _ = ask("close", "perp:BTC", *at)
    assert (code, out.startswith("Closed BTC long ")) == (0, True)
    code, _, err = ask("close", "BTC", *at)
    assert (code, err.strip()) == (1, "error: there is no position in BTC; there are none")

    recorded = "SELECT 1 FROM trade_extremes WHERE event_id=(SELECT id FROM events WHERE type='fill' ORDER BY seq DESC)"
    holder.until("the extremes of the trade", lambda: holder.query(recorded))
    code, out, _ = ask("trades", "--json", "--limit", "1", *at)
    told = json.loads(out)
    (newest,) = told["trades"]
    assert (newest["market"], newest["strategy"], newest["status"]) == ("BTC", "mine", "closed")
    assert Decimal(newest["low_px"]) <= Decimal(newest["entry_px"]) <= Decimal(newest["high_px"])
    assert Decimal(newest["mae_r"]) <= 0 <= Decimal(newest["mfe_r"])
    exported = json.loads(ask("export", "trades", "--json", *at)[1])["trades"]
    assert (exported[-1], len(exported)) == (newest, told["of"])
    code, out, _ = ask("trades", "--market", "btc", "--strategy", "mine", *at)
    lines = out.splitlines()
    net = sum(Decimal(trade["net_usd"]) for trade in exported)
    assert lines[-1].startswith(f"{len(exported)} trade")
    assert f"net {net:+,.2f} USD after" in lines[-1].replace("\u2212", "-")
    for flag, name, hint in (("--market", "BITCOIN", "did you mean BTC?"), ("--strategy", "min", "did you mean mine?")):
        code, _, err = ask("trades", flag, name, *at)
        assert (code, hint in err) == (2, True), err
    ask("resume", *at)


def test_positions_are_shown_anew_until_the_daemon_ends_or_ctrl_c(holder: Ran) -> None:
    command = [sys.executable, "-m", "bot", "positions", "--watch", "--json", "--state-dir", str(holder.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) as watching:
        assert watching.stdout is not None
        readings = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
    assert readings[1]["at_ms"] > readings[0]["at_ms"]


def test_without_a_daemon_the_way_out_is_named(ask: Ask) -> None:
    with made("Holds") as daemon:
        daemon.start()
        daemon.until("a position", lambda: daemon.query("SELECT 1 FROM events WHERE type='fill' LIMIT 1"))
        with subprocess.Popen(
            [sys.executable, "-m", "bot", "positions", "--watch", "--state-dir", str(daemon.state)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            watching.stdout.readline()
            assert daemon.process is not None
            daemon.process.kill()
            daemon.process.wait()
            assert watching.wait(20) == 3
        at = ("--config", str(daemon.config))
        code, _, err = ask("close", "BTC", *at)
        assert code == 3
        assert f"bot kill --flatten --config {daemon.config}" in err
        code, out, err = ask("trades", *at)
        assert (code, "not running" in err) == (0, True)
        assert " open " in out
        assert "not known" not in out, "the extremes of an open trade are not unknown: there are none yet"
        # the way out works
        assert ask("kill", "--flatten", "--yes", *at)[0] == 0


@pytest.mark.parametrize(("typed", "meant"), MEANT.items())
def test_a_word_for_a_command_names_the_command(typed: str, meant: str, ask: Ask) -> None:
    assert meant in COMMANDS or meant.startswith("--")
    assert typed not in COMMANDS
    assert f"Did you mean {meant!r}?" in ask(typed)[2]
