"""The operator's commands against one running daemon, and against a dead one:

`bot run` as a process, the commands in this one.
"""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bot.cli.app import call
from bot.cli.common import formatting
from bot.cli.common.daemon_client import Denied, find
from bot.cli.operate import status as look
from bot.cli.run.embedded_service import Embedded
from bot.runtime.control_plane.log_tail import FILE, Tail
from bot.service.security.auth import SECRET_LETTERS
from tests.cli.operate.daemon_process import WAIT_S, Ran, made
from tests.documents import section


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    """Shared by the commands that leave it as it was."""
    with made("InAndOut") as one:
        one.start()
        one.until("ready", lambda: "READY=1" in one.heard())
        one.until("a trade", one.has_traded)
        yield one


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command: its exit code, what it printed, what it complained of."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = call(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


Ask = Callable[..., tuple[int, str, str]]


# -- telling


def test_status_shows_the_state_of_the_daemon(ran: Ran, ask: Ask) -> None:
    code, out, _ = ask("status", "--config", str(ran.config), "--json")
    told = json.loads(out)
    assert code == 0
    assert told["running"] is True
    assert told["pid"] == (ran.process and ran.process.pid)
    assert (told["epoch"], told["managed_by"], told["is_safe"]) == (0, "systemd", True)
    assert abs(told["at_ms"] - time.time_ns() // 1_000_000) < 60_000
    assert told["config"] == str(ran.config)
    assert told["heartbeat"]["armed"]
    assert told["service"]["skew_ms"] is None, "the daemon follows a sandbox's clock, so nothing can be off"
    assert [one["stands"] for one in told["guardians"]] == [True]
    assert told["strategies"][0]["book"]["fills"] >= 2
    code, out, _ = ask("status", "--state-dir", str(ran.state))
    assert code == 0
    assert out.startswith("RUNNING  mine (pid")
    assert re.search(r"^  service     http://127\.0\.0\.1:[0-9]+, play money, clock 60x$", out, re.MULTILINE)
    assert re.search(r"^  profit      today [+-][0-9.,]+ USD, total [+-][0-9.,]+ USD \(net", out, re.MULTILINE)
    assert re.search(r"strategy    mine RUNNING on BTC, 1m, net [+-][0-9,]+\.[0-9]{2} USD\n", out)


def test_status_marks_old_data_and_names_every_problem(ran: Ran, ask: Ask) -> None:
    _, out, _ = ask("status", "--config", str(ran.config), "--json")
    told = json.loads(out)
    assert (told["old_s"] < look.OLD_S, told["cursor"]["behind"]) == (True, False)
    assert "  OLD " not in "\n".join(look.status_lines(told | {"old_s": 0.3}))
    told["old_s"] = 75.4
    assert told["foreign_unprotected"] == []
    told |= {"positions": 2, "unprotected": [], "foreign_unprotected": ["SOL"]}
    told["strategies"][0] |= {"state": "QUARANTINED", "why": "raises", "resting": ["17", "18"]}
    waits = {"id": "3AGP2Z32Y43L4O2KNEYFLFSFT4E7T3ES", "strategy": "mine", "action": "open", "market": "BTC"}
    waits["message"] = "nothing can tell"
    told["intents"] |= {"quarantined": 1, "waiting": [waits]}
    told["other_books"] = [{"name": "@foreign", "book": {"net_usd": "-1234.5"}}]
    told["heartbeat"] |= {"deadline_s": -64.8}
    told["reload"] = {"began_s": 90, "ended_s": None, "applied": [], "refused": []}
    told["blocked_by"] = [{"type": "account_drawdown", "id": "grd_1"}, {"type": "kill_switch", "id": "grd_2"}]
    lines = "\n".join(look.status_lines(told))
    assert "reload      under way for 1 min 30 s" in lines
    assert "account_drawdown grd_1 is active until 00:00 UTC, or until the account's owner lifts it" in lines
    assert "kill_switch grd_2 is active until the account's owner lifts it" in lines
    assert "OLD         account, positions and orders were read from the service 1 min 15 s ago" in lines
    assert "positions   2, each of ours with its stop, NOT OURS AND WITHOUT A STOP: SOL;" in lines
    assert ": raises; fix it, then bot resume mine; resting entries can still fill: 17, 18 (bot orders)" in lines
    assert "waiting     open BTC of mine: nothing can tell\n" in lines
    assert "              run bot explain 3AGP2Z32Y43L, check the account, then bot resume" in lines
    assert "book        @foreign net -1,234.50 USD: trades of others" in lines
    assert "dead-man    MAY HAVE ACTED: its deadline passed 1 min 5 s ago without a heartbeat" in lines


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("net_usd", "-1234.56789012", "-1,234.57"),
        ("unrealized_usd", 0.0, "0.00"),
        ("entry_px", "100012.34567891", "100,012.35"),
        ("mark_px", 3768.1, "3,768.10"),
        ("stop_px", "0.0000123456789", "0.0000123457"),
        ("limit_px", "100", "100.00"),
        ("limit_px", "0", "0"),
        ("size", "0.00123456", "0.00123456"),
        ("trigger_px", "none", "-"),
    ],
)
def test_figures_are_shown_as_a_person_reads_them(name: str, value: Any, text: str) -> None:
    assert formatting.shown(name, value) == text


def test_status_adds_up_the_profit_of_all_strategies_and_says_what_money_it_is() -> None:
    def book(day: str, net: str) -> dict[str, str]:
        return {"day_usd": day, "net_usd": net}

    told: dict[str, Any] = {
        "service": {"environment": "production"},
        "strategies": [{"book": book("1.25", "10")}, {"book": book("-2.5", "-30.005")}],
        "other_books": [{"name": "gone", "book": book("0", "5")}, {"name": "@foreign", "book": book("100", "100")}],
    }
    assert look._profit(told).startswith("today -1.25 USD, total -15.00 USD (")
    assert look._money(told) == ", REAL MONEY (production)"
    assert look._money({"service": {"environment": None}}) == ""
    for link, line in (
        ({}, []),
        ({"exchange_link": "in_step"}, ["  exchange    in step: everything until now is known"]),
        ({"exchange_link": "away", "exchange_reason": "no answer"}, ["  exchange    AWAY: no answer"]),
    ):
        assert list(look._exchange_lines({"service": link})) == line
    for environment, text in (
        ("sandbox", ", play money"),
        ("local", ", play money of a local exchange"),
        ("testnet", ", play money of a test network"),
        ("mainnet", ", REAL MONEY (mainnet)"),
    ):
        assert look._money({"service": {"environment": environment}}) == text


@pytest.mark.parametrize(
    ("position", "stop", "unsafe"),
    [
        ({"stop_px": "95", "protected": True}, "95.00", False),
        ({"stop_px": None, "protected": True}, "trailing", False),
        ({"stop_px": None, "protected": True, "trailing_stops": [{"id": "grd_1", "active": True}]}, "trailing", False),
        (
            {"stop_px": "95", "protected": True, "trailing_stops": [{"id": "grd_1", "active": None}]},
            "95.00, trailing",
            False,
        ),
        (
            {"stop_px": "95", "protected": True, "trailing_stops": [{"id": "grd_1", "active": False}]},
            "95.00, trailing (not active yet)",
            False,
        ),
        (
            {"stop_px": None, "protected": False, "trailing_stops": [{"id": "grd_1", "active": False}]},
            "NO STOP, trailing (not active yet)",
            True,
        ),
        ({"stop_px": None, "protected": False}, "NO STOP", True),
        ({"stop_px": None, "protected": None}, "not known", False),
        ({"stop_px": "95", "protected": False}, "NO STOP for the whole position, 95.00 for a part", True),
        ({"stop_px": None, "protected": False, "needs_stop": False}, "NO STOP", False),
        ({"stop_px": None, "protected": False, "strategy": None}, "NO STOP", False),
    ],
)
def test_a_position_says_whether_it_has_its_stop_and_needs_one(
    position: dict[str, Any], stop: str, unsafe: bool
) -> None:
    position = {"strategy": "mine", "needs_stop": True} | position
    assert (look.stop_of(position), look._is_unsafe(position)) == (stop, unsafe)


@dataclass
class Stopping:
    """A daemon that is asked to end, and ends so."""

    folder: Path
    exit_code: int
    message: str | None
    flag: str = "--config bot.yaml"

    def ask(self, _method: str, path: str, _body: Any = None) -> dict[str, Any]:
        if path == "/stop":
            tail = Tail(self.folder / FILE)
            tail({"event": "daemon.stopped", "exit_code": self.exit_code, "message": self.message})
            tail.close()
        return {"pid": 7, "on_exit": "flatten", "at_ms": self.at_ms}

    def is_running(self) -> bool:
        return False

    at_ms: int = 0


@pytest.mark.parametrize(
    ("exit_code", "message", "at_ms", "ends"),
    [
        (0, None, 0, (0, "")),
        (0, "the service did not answer at the end", 0, (0, "the service did not answer at the end\n")),
        (
            5,
            "safety.on_exit: flatten could not be finished",
            0,
            (5, "error: safety.on_exit: flatten could not be finished\n"),
        ),
        (5, "of an earlier run", 2**53, (0, "")),
    ],
)
def test_stop_ends_with_the_exit_code_of_the_run(
    exit_code: int,
    message: str | None,
    at_ms: int,
    ends: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Ask,
) -> None:
    place = Stopping(tmp_path, exit_code, message, at_ms=at_ms)
    monkeypatch.setattr("bot.cli.common.daemon_client.find", lambda *_: place)
    code, out, err = ask("stop")
    assert (code, err) == ends
    assert out.startswith("stopped (pid 7, safety.on_exit: flatten)")


@pytest.mark.parametrize(
    ("shares", "shown"),
    [({"one": "1", "two": "0.5"}, "one 1 + two 0.5"), ({"one": "1"}, "one"), ({}, "one"), (None, "one")],
)
def test_a_shared_position_names_who_has_which_share(shares: dict[str, str] | None, shown: str) -> None:
    assert look._holders({"strategy": "one", "shares": shares}) == shown


def test_positions_have_their_stops_and_orders_their_strategy(ran: Ran, ask: Ask) -> None:
    def held() -> list[Any]:
        code, out, _ = ask("positions", "--config", str(ran.config), "--json")
        assert code == 0
        found: list[Any] = json.loads(out)["positions"]
        return found

    (position,) = ran.until("a position", held)
    assert (position["market"], position["strategy"], position["protected"]) == ("BTC", "mine", True)
    assert Decimal(position["stop_px"]) < Decimal(position["entry_px"])
    for command in ("positions", "orders"):
        assert ask(command, "--config", str(ran.config))[0] == 0

    def resting() -> list[Any]:
        code, out, _ = ask("orders", "--config", str(ran.config), "--json")
        assert code == 0
        found: list[Any] = json.loads(out)["orders"]
        return found

    orders = ran.until("an order", resting)
    assert {(one["kind"], one["strategy"]) for one in orders} == {("stop_loss", "mine")}, (
        "also of a stop, which the service made"
    )


def test_events_are_filtered_by_time_type_and_limit(ran: Ran, ask: Ask) -> None:
    at = ("--config", str(ran.config))
    code, out, err = ask("events", *at, "--type", "fill", "--limit", "2", "--json")
    fills = json.loads(out)["events"]
    assert (code, err, [one["type"] for one in fills]) == (0, "", ["fill", "fill"])
    _, out, _ = ask("events", *at, "--since", fills[0]["id"], "--limit", "1", "--json")
    (following,) = json.loads(out)["events"]
    assert following["id"] > fills[0]["id"]
    _, out, _ = ask("events", *at, "--since", "1d", "--type", "fill.entry", "--json")
    found = json.loads(out)["events"]
    assert {one["subtype"] for one in found} == {"entry"}
    assert "entry: kind market, side long" in ask("events", *at, "--type", "fill.entry")[1]
    code, _, err = ask("events", *at, "--since", "yesterday")
    assert (code, "write an event's id, or 30m, 2h, 1d" in err) == (2, True)
    code, _, err = ask("events", *at, "--type", "fill,fils")
    assert (code, "'fils' is not a type of event. Did you mean fill?" in err) == (2, True)
    assert "fill (entry, exit); order (open, armed, changed, canceled); trigger (stop_loss" in err
    with pytest.raises(Denied, match="type='fils' is not a type of event. Did you mean fill?"):
        find(ran.config, None).ask("GET", "/events", query={"type": "fill,fils"})
    assert ask("events", *at, "--type", "settlement.settled")[:2] == (0, "no event\n")
    code, _, err = ask("events", *at, "--since", "evt_none")
    assert (code, "no event evt_none" in err) == (2, True)


def test_logs_show_the_newest_lines(ran: Ran, ask: Ask) -> None:
    code, out, _ = ask("logs", "--config", str(ran.config), "-n", "7", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, len(lines)) == (0, 7)
    assert [line["seq"] for line in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + 7))
    assert "bar.closed" in ask("logs", "--config", str(ran.config), "-n", "500")[1]
    follower = subprocess.Popen(
        [sys.executable, "-m", "bot", "logs", "-f", "-n", "0", "--json", "--config", str(ran.config)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["seq"] > lines[0]["seq"], "what is logged after it began"
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=WAIT_S)
        assert follower.returncode == 0
    finally:
        follower.kill()
        follower.wait()


def test_an_order_is_explained_from_its_bar_to_its_exit(ran: Ran, ask: Ask) -> None:
    sql = (
        "SELECT i.id, i.trade_id FROM intents i JOIN events e ON e.idempotency_key=i.id WHERE e.subtype='exit' AND"
        " i.action='close' LIMIT 1"
    )
    _, closing = ran.query(sql)[0]
    opened, trade = ran.query(
        "SELECT id, trade_id FROM intents WHERE action='open' AND state='accepted' ORDER BY seq LIMIT 1"
    )[0]
    at = ("--config", str(ran.config))
    code, out, _ = ask("explain", trade, *at, "--json")
    steps = json.loads(out)["steps"]
    assert code == 0
    whats = [step["what"] for step in steps]
    assert whats[:7] == ["bar", "decision", "refused", "intent", "plan", "request", "answer"]
    assert whats[7] == "fill"
    assert (steps[-1]["what"], steps[-1]["text"].split(":")[0]) == ("fill", "exit"), (
        "what became of it is told to its end"
    )
    assert "budget" in steps[2]["text"]
    assert steps[3]["data"]["id"] == opened
    times = [step["at_ms"] for step in steps if step["what"] in ("bar", "request", "fill")]
    assert times == sorted(times)
    assert ask("explain", opened[:10].lower(), *at)[1] == ask("explain", trade, *at)[1], (
        "the first letters of an intent do"
    )
    stop = json.loads(
        ran.query("SELECT payload FROM events WHERE subtype='armed' AND type='order' ORDER BY seq LIMIT 1")[0][0]
    )["data"]["oid"]
    assert ask("explain", stop, *at)[1] == ask("explain", trade, *at)[1], "a stop is explained by its position's entry"
    assert "Close" in ask("explain", closing, *at)[1]
    assert not re.search(r"[0-9]\.0\b", steps[0]["text"]), "a price ends in no zero that says nothing"
    code, _, err = ask("explain", "trd_none", *at)
    assert (code, "has nothing with the id trd_none" in err) == (2, True)
    assert "confirm" not in out.lower().replace("confirmed", ""), "a plan's token is a secret"


def test_doctor_finds_nothing_wrong(ran: Ran, ask: Ask) -> None:
    code, out, _ = ask("doctor", str(ran.config), "--json")
    told = json.loads(out)
    assert (code, told["ok"]) == (0, True), out
    by_name = {one["check"]: one for one in told["findings"]}
    assert by_name["daemon"]["message"].startswith("RUNNING")
    assert by_name["service"]["level"] == by_name["journal"]["level"] == by_name["clock"]["level"] == "ok"
    assert all(one["fix"] for one in told["findings"] if one["level"] in ("warn", "fail"))


# -- asking


def test_a_pause_stops_entries_until_it_is_resumed(ran: Ran, ask: Ask) -> None:
    at = ("--config", str(ran.config))
    code, out, _ = ask("pause", *at)
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "PAUSED")
    assert json.loads(ask("status", *at, "--json")[1])["state"] == "PAUSED"
    assert ask("resume", *at)[1].startswith("RUNNING")
    code, out, _ = ask("pause", "mine", *at, "--json")
    assert json.loads(out)["strategies"][0]["state"] == "PAUSED"
    assert ask("resume", "mine", *at)[0] == 0
    code, _, err = ask("pause", "yours", *at)
    assert (code, "no strategy yours; there are mine" in err) == (2, True)


def test_a_reload_prints_the_changes_and_applies_them_after_a_yes(
    ran: Ran, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--config", str(ran.config))
    good = ran.config.read_text()
    assert ask("reload", *at)[1] == "nothing has changed\n"
    try:
        ran.config.write_text(good.replace("budget_usd: 500", "budget_usd: 600"))
        code, out, _ = ask("reload", *at, "--json")
        assert (code, len(json.loads(out)["changes"]), json.loads(out)["applied"]) == (0, 1, [])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        code, out, err = ask("reload", *at)
        assert (code, "500 -> 600" in out, "bot reload --yes does not ask" in err) == (1, True, True)
        assert "500 -> 600" in ask("reload", *at, "--yes")[1]
        assert json.loads(ask("status", *at, "--json")[1])["strategies"][0]["budget_usd"] == "600"
        ran.config.write_text(good.replace("budget_usd: 500", "budget: 500"))
        code, _, err = ask("reload", *at, "--yes")
        assert (code, "unknown key; did you mean budget_usd?" in err) == (4, True)
        assert " ago: settings: in force" in ask("status", *at)[1], "it was refused before it began"
        ran.config.write_text(good.replace("mine:InAndOut", "mine:Raises"))
        code, out, err = ask("reload", *at, "--yes")
        assert (code, "mine: in quarantine, mine: RuntimeError: a mistake" in out) == (4, True)
        assert "the config was applied, but a strategy is in quarantine" in err
        assert " ago: mine: in quarantine, mine: RuntimeError: a mistake" in ask("status", *at)[1]
        code, _, err = ask("resume", "mine", *at)
        assert (code, "mine failed again and is back in quarantine" in err) == (4, True)
    finally:
        ran.config.write_text(good)
    assert ask("reload", *at, "--yes")[0] == 0


def test_the_attribution_in_status_adds_up_to_the_account_also_after_a_strategy_is_removed(ran: Ran, ask: Ask) -> None:
    at = ("--config", str(ran.config))
    good = ran.config.read_text()
    ran.until("a trade", ran.has_traded)
    ask("pause", *at)
    # What is open would stay with the one of the other name.
    try:
        ran.until("flat", lambda: not json.loads(ask("positions", *at, "--json")[1])["positions"])
        ran.config.write_text(good.replace("name: mine", "name: yours"))
        assert ask("reload", *at, "--yes")[0] == 0
        told = json.loads(ask("status", *at, "--json")[1])
        assert [one["name"] for one in told["strategies"]] == ["yours"]
        assert "mine" in [one["name"] for one in told["other_books"]]
        net = sum(Decimal(one["book"]["net_usd"]) for one in (*told["strategies"], *told["other_books"]))
        assert net != 0
        assert abs(net - (Decimal(str(told["account"]["value_usd"])) - 10_000)) < Decimal("0.01")
        assert re.search(
            r"  book        mine net [+-][0-9,]+\.[0-9]{2} USD: no longer in the config\n", ask("status", *at)[1]
        )
    finally:
        ran.config.write_text(good)
        assert ask("reload", *at, "--yes")[0] == 0
        ask("resume", *at)


def test_a_reconcile_of_a_correct_record_finds_no_difference(ran: Ran, ask: Ask) -> None:
    for words in ((), ("--apply",)):
        code, out, _ = ask("reconcile", "--config", str(ran.config), "--json", *words)
        assert code == 0
        assert json.loads(out)["drifts"] == []
        assert json.loads(out)["applied"] is bool(words)


def test_a_daemon_that_systemd_runs_is_not_stopped_without_force(ran: Ran, ask: Ask) -> None:
    code, _, err = ask("stop", "--config", str(ran.config))
    assert (code, "systemctl stop bot-mine.service" in err) == (2, True)


def test_a_second_daemon_names_the_running_one_and_how_to_stop_it(ran: Ran) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "bot", "run", str(ran.config)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert second.returncode == 1
    assert ran.process is not None
    assert (
        f"another daemon runs on {ran.state} (pid {ran.process.pid}): stop it (bot stop --state-dir {ran.state})"
        in second.stderr
    )


def test_the_process_is_private_and_reports_its_true_state_to_systemd(ran: Ran) -> None:
    assert ran.process is not None
    limits = Path(f"/proc/{ran.process.pid}/limits").read_text()
    assert [line.split()[4] for line in limits.splitlines() if line.startswith("Max core file size")] == ["0"]
    status = Path(f"/proc/{ran.process.pid}/status").read_text()
    assert "Umask:\t0077" in status
    for path in (ran.state, *ran.state.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    table = section("files-and-exit-codes", "Files")
    there = {re.sub(r"-(wal|shm)$", "", path.name) for path in ran.state.iterdir()}
    assert there <= set(re.findall(r"`([\w.-]+)`", table)), "the docs name each file"
    ready = ran.heard().index("READY=1")
    told = ran.until("the watchdog is fed", lambda: "WATCHDOG=1" in ran.heard()[ready:] and ran.heard())
    starting = next(n for n, one in enumerate(told) if one.startswith("STATUS=STARTING"))
    assert "WATCHDOG=1" not in told[:starting], "only completed passes feed it; the first may come before READY"
    assert any(one.startswith("EXTEND_TIMEOUT_USEC=") for one in told[:ready])
    assert any(one.startswith("STATUS=STARTING") for one in told[:ready])
    assert any(one.startswith("STATUS=RUNNING") for one in told[ready:])


def test_no_file_answer_or_argument_contains_a_key(ran: Ran, ask: Ask) -> None:
    assert ran.process is not None
    told = {str(file.relative_to(ran.folder)): file.read_bytes() for file in ran.folder.rglob("*") if file.is_file()}
    assert {"err", "state/journal.db", "state/sandbox.db", "state/sandbox.log", "state/daemon.log"} <= told.keys()
    for command in ("status", "positions", "orders", "events", "logs"):
        told[command] = ask(command, "--config", str(ran.config), "--json")[1].encode()
    children = Path(f"/proc/{ran.process.pid}/task/{ran.process.pid}/children").read_text().split()
    pids = [ran.process.pid, Embedded(ran.state).pid, *children]
    assert len(pids) >= 3, "daemon, service and heartbeat"
    told |= {f"arguments of {pid}": Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    form = re.compile(rf"bbk_[a-z]+_[A-Za-z0-9]+_[A-Za-z0-9]{{{SECRET_LETTERS}}}".encode())
    assert form.search(f"bbk_test_00000001_{'A' * SECRET_LETTERS}_x".encode())
    assert [place for place, text in told.items() if form.search(text)] == []


# -- the end of a daemon, and after it


def test_a_dead_daemon_is_never_shown_as_running_and_its_positions_can_be_closed(ask: Ask) -> None:
    with made("Holds") as one:
        at = ("--config", str(one.config))
        code, _, err = ask("status", *at)
        assert (code, err) == (3, ""), "it has not run yet"
        one.start()
        one.until("a position", lambda: one.query("SELECT 1 FROM events WHERE type='fill' LIMIT 1"))
        assert one.process is not None
        one.process.kill()
        one.process.wait()

        code, out, _ = ask("status", *at, "--json")
        told = json.loads(out)
        assert (code, told["running"], told["state"]) == (3, False, "NOT_RUNNING")
        assert told["last"]["age_ms"] >= 0
        assert [p["market"] for p in told["last"]["positions"]] == ["BTC"]
        code, out, _ = ask("status", *at)
        assert code == 3
        assert out.startswith("NOT RUNNING")
        assert "OLD: its journal was last written" in out
        for command in ("positions", "orders", "pause", "resume", "reload", "stop", "reconcile"):
            code, out, err = ask(command, *at)
            assert (code, out) == (3, ""), command
            assert "is not running" in err
        code, out, err = ask("logs", *at, "-n", "3")
        assert (code, len(out.splitlines()), "not running" in err) == (3, 3, True)
        code, out, err = ask("events", *at, "--limit", "1")
        assert (code, len(out.splitlines()), "not running" in err) == (0, 1, True)
        code, out, err = ask("export", "trades", *at)
        assert (code, len(out.splitlines()), "not running" in err) == (0, 2, True)
        assert ask("doctor", str(one.config))[0] == 0

        code, out, _ = ask("kill", "--flatten", *at, "--json")
        killed = json.loads(out)
        assert code == 0
        assert (killed["guardian"]["type"], killed["flatten"], killed["positions"]) == ("kill_switch", True, [])
        assert [trade["symbol"] for trade in killed["trades"]] == ["BTC"]

        one.start()
        one.until(
            "it knows",
            lambda: one.query("SELECT 1 FROM events WHERE type='guardian' AND payload LIKE '%kill_switch%' LIMIT 1"),
        )
        one.until("ready again", lambda: one.heard().count("READY=1") == 2)
        assert json.loads(ask("positions", *at, "--json")[1])["positions"] == []
        assert f"entries     REFUSED by the service: kill_switch {killed['guardian']['id']}" in ask("status", *at)[1]
        config = one.config.read_text()
        one.config.write_text("strategies: [")
        assert ask("kill", "--state-dir", str(one.state))[0] == 0, "a config that is broken meanwhile stops no kill"
        one.config.write_text(config)
        assert ask("kill", *at)[0] == 0, "with the daemon alive it is the daemon that has the key"
        code, out, _ = ask("kill", "--lift", *at, "--json")
        assert (code, len(json.loads(out)["lifted"])) == (0, 1), "thrown thrice, and one that stands"
        one.until("it may open again", lambda: "entries     REFUSED" not in ask("status", *at)[1])
        assert ask("kill", "--lift", *at)[1] == "No kill switch is active.\n"
        code, out, _ = ask("stop", *at, "--force")
        assert (code, out.startswith("stopped (pid")) == (0, True)
        assert one.process.wait(WAIT_S) == 0
        assert "STOPPING=1" in one.heard()
        assert not (one.state / "control.sock").exists()

        _, out, _ = ask("export", "trades", *at, "--json")
        assert out == ask("export", "trades", *at, "--format", "json")[1]
        assert ask("export", "trades", *at, "--json", "--format", "csv")[0] == 2
        trip, *_ = json.loads(out)["trades"]
        told = (trip["market"], trip["strategy"], trip["status"], trip["exit_reason"])
        assert told == ("BTC", "mine", "closed", "kill_switch")


def test_the_exported_trades_add_up_to_the_account(ran: Ran, ask: Ask, tmp_path: Path) -> None:
    at = ("--config", str(ran.config))
    ask("pause", *at)
    try:
        ran.until("flat", lambda: not json.loads(ask("positions", *at, "--json")[1])["positions"])
        _, out, _ = ask("export", "trades", *at, "--format", "json")
        file = tmp_path / "trades.csv"
        assert ask("export", "trades", *at, "--out", str(file))[1].endswith(f" written to {file}\n")
        (balance,) = ran.query(
            "SELECT json_extract(payload, '$.data.balanceUsd') FROM events WHERE type IN ('fill', 'funding') ORDER BY"
            " seq DESC LIMIT 1"
        )[0]
    finally:
        ask("resume", *at)
    trips = json.loads(out)["trades"]
    assert trips
    assert sum(Decimal(one["net_usd"]) for one in trips) == Decimal(balance) - 10_000
    for one in trips:
        assert (one["strategy"], one["status"], one["complete"], one["open_size"]) == ("mine", "closed", True, "0")
        assert one["exit_reason"] in ("close", "market", "stop_loss")
        assert Decimal(one["exit_usd"]) - Decimal(one["entry_usd"]) == pytest.approx(
            Decimal(one["realized_usd"]), abs=Decimal("0.000001")
        )
    assert [(row["net_usd"], row["complete"]) for row in csv.DictReader(io.StringIO(file.read_text()))] == [
        (one["net_usd"], "true") for one in trips
    ]
