"""`bot exchange certify` against a local exchange on a port, with real signatures."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hyperliquid.exchange import Exchange

from bot.cli.app import call
from bot.clock import SECOND_MS, monotonic_ns
from bot.errors import Exit
from bot.testing.hyperliquid import LocalExchange
from tests.exchanges.agents import AGENT, KEY, MASTER, approve, key_file

ADDRESS = MASTER.address.lower()
SMALL = pytest.mark.hyperliquid(accounts={ADDRESS: "500"}, clock="real")
# Scenarios that need no second participant, and little time.
ONLY = ("reduce_larger", "cloid_open", "tick", "signed_form")


def certify(
    hyperliquid: LocalExchange, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    path = folder / "agent"
    path = path if path.exists() else key_file(folder)
    where = ("--url", hyperliquid.base_url, "--address", ADDRESS, "--agent-key-file", str(path))
    code = call(["exchange", "certify", *where, "--report", str(folder / "seen.json"), *arguments])
    out, err = capsys.readouterr()
    assert KEY not in out + err and "Traceback" not in out + err
    return code, out, err


def only(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--only", name)]


def used(hyperliquid: LocalExchange) -> int:
    return int(hyperliquid.info("userRateLimit", user=ADDRESS)["nRequestsUsed"])


@SMALL
def test_a_run_reports_what_it_has_seen_without_secrets(
    hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(hyperliquid)
    hyperliquid.switch("reduce_larger", "cap")
    hyperliquid.switch("signed_form", "as_sent")
    code, out, err = certify(hyperliquid, tmp_path, capsys, "--testnet", "--yes", *only(*ONLY))
    assert code == Exit.DONE, out + err
    report = json.loads((tmp_path / "seen.json").read_text())
    values = {row["assumption"]: row["value"] for row in report["assumptions"]}
    assert {name: values[name] for name in ONLY} == {
        "reduce_larger": "cap",
        "cloid_open": "refused",
        "tick": "as_assumed",
        "signed_form": "as_sent",
    }
    assert (report["stopped"], report["network"], float(report["costUsd"]) < 0.1) == (None, "testnet", True)
    assert report["scenarios"][0]["record"], "what was sent and answered"
    text = (tmp_path / "seen.txt").read_text()
    assert "OTHERWISE  reduce_larger = cap" in text and "--switch reduce_larger=cap" in text
    for secret in (KEY, ADDRESS, AGENT, '"signature"'):
        assert secret not in (tmp_path / "seen.json").read_text() + text
    assert not re.search(r"0x[0-9a-f]{40}", text + (tmp_path / "seen.json").read_text())
    assert hyperliquid.info("openOrders", user=ADDRESS) == []


@SMALL
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--only", "reduce_lager"), Exit.USAGE, "did you mean reduce_larger?"),
        (("--testnet", "--network", "mainnet"), Exit.USAGE, "give one of them"),
        (("--report", "seen.txt"), Exit.USAGE, "name a file such as report.json"),
        (("--market", "BTTC"), Exit.ERROR, "did you mean BTC?"),
        (("--report", "no/such/folder.json", "--yes"), Exit.CONFIG, "name a file that can be written"),
        ((), Exit.ERROR, "--yes does not ask"),
        (("--network", "mainnet", "--yes"), Exit.ERROR, "'real money' was not typed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nothing_is_sent_for_a_wrong_wish(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    hyperliquid: LocalExchange,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    approve(hyperliquid)
    before = used(hyperliquid)
    given, out, err = certify(hyperliquid, tmp_path, capsys, *arguments)
    assert (given, words in out + err) == (code, True), out + err
    assert used(hyperliquid) == before


@SMALL
def test_nothing_is_sent_for_an_account_that_is_not_ready(
    hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = certify(hyperliquid, tmp_path, capsys, "--yes")
    assert (code, "is no agent on testnet" in err, "nothing was sent" in err) == (Exit.ERROR, True, True)
    approve(hyperliquid)
    exchange = Exchange(MASTER, hyperliquid.base_url)
    exchange.order("BTC", True, 0.001, 90_000, {"limit": {"tif": "Gtc"}})
    exchange.order("BTC", True, 0.001, 110_000, {"limit": {"tif": "Ioc"}})
    code, _, err = certify(hyperliquid, tmp_path, capsys, "--yes")
    assert code == Exit.ERROR
    assert "an open order in BTC at 90000; a position of 0.001 in BTC" in err and "--clean" in err

    code, out, err = certify(hyperliquid, tmp_path, capsys, "--clean", "--yes")
    assert (code, out) == (Exit.DONE, "nothing is open\n"), err
    assert hyperliquid.info("openOrders", user=ADDRESS) == []
    assert hyperliquid.info("clearinghouseState", user=ADDRESS)["assetPositions"] == []


@pytest.mark.hyperliquid(accounts={ADDRESS: "20"}, clock="real")
def test_an_account_with_too_little_money_is_refused(
    hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(hyperliquid)
    code, _, err = certify(hyperliquid, tmp_path, capsys, "--yes")
    assert (code, "the account has 20 USD for perpetual markets, and 50 are needed" in err) == (Exit.ERROR, True)


@pytest.mark.hyperliquid(accounts={ADDRESS: "500"}, clock="manual")
def test_a_clock_that_is_off_is_refused(
    hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(hyperliquid)
    code, _, err = certify(hyperliquid, tmp_path, capsys, "--yes")
    assert (code, "set this machine's clock by NTP" in err) == (Exit.ERROR, True)


@SMALL
@pytest.mark.parametrize(("point", "kind"), [("after_execution", "html_502"), ("request_in", "status_429")])
def test_faults_of_the_exchange_never_make_a_value_wrong(
    point: str, kind: str, hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(hyperliquid)
    hyperliquid.fault(point, kind, path="/exchange", count=1)
    code, out, err = certify(hyperliquid, tmp_path, capsys, "--yes", *only("cloid_open"))
    assert code == Exit.DONE, out + err
    report: Any = json.loads((tmp_path / "seen.json").read_text())
    row = next(row for row in report["assumptions"] if row["assumption"] == "cloid_open")
    assert row["value"] in ("refused", None)
    assert (row["value"] is None) == (point == "after_execution"), "only an answer that was lost is in doubt"
    assert hyperliquid.info("openOrders", user=ADDRESS) == []


@SMALL
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_is_cleaned_up(
    ending: signal.Signals, hyperliquid: LocalExchange, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approve(hyperliquid)
    where = ["--url", hyperliquid.base_url, "--address", ADDRESS, "--agent-key-file", str(key_file(tmp_path))]
    command = [sys.executable, "-m", "bot", "exchange", "certify", *where, "--yes", *only("two_position_stops")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_ns = monotonic_ns() + 60 * SECOND_MS * 10**6
    while not hyperliquid.info("openOrders", user=ADDRESS):
        assert process.poll() is None and monotonic_ns() < until_ns
    process.send_signal(ending)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in out + err
    report = json.loads((tmp_path / "certification.json").read_text())
    if ending == signal.SIGINT:
        assert (process.returncode, report["stopped"]) == (Exit.STOPPED, "by Ctrl-C"), out + err
    else:
        assert report["stopped"] == "it has not ended yet"
        code, _, err = certify(hyperliquid, tmp_path, capsys, "--yes")
        assert (code, "run this with --clean first" in err) == (Exit.ERROR, True)
        assert certify(hyperliquid, tmp_path, capsys, "--clean", "--yes")[0] == Exit.DONE
    assert hyperliquid.info("openOrders", user=ADDRESS) == []
    assert hyperliquid.info("clearinghouseState", user=ADDRESS)["assetPositions"] == []
