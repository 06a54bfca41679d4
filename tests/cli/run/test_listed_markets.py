"""Markets of a listing file under their own names: in a backtest, in a sandbox over HTTP and in a live daemon."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from bot.cli.app import call
from bot.client import Client
from bot.service.market_data.instruments import use_listings
from bot.wire.order_requests import CloseRequest, OrderRequest
from tests.calendars import python_with_calendars
from tests.e2e.processes import until

MARKETS = {"SHIB": "0.00000001", "XAUUSD": "0.01", "EURUSD": "0.00001", "SIE.DE": "0.02", "ES": "0.25"}
LISTINGS = """\
markets:
  SHIB: {tick: 0.00000001, lot: 1, leverage: 10, price: 0.00001234}
  XAUUSD: {tick: 0.01, lot: 0.01, kind: stocks, leverage: 20, price: 4100,
    calendar: weekly Sun 18:00-Fri 17:00 America/New_York break 17:00-18:00}
  EURUSD: {tick: 0.00001, lot: 1000, leverage: 30, price: 1.0845,
    calendar: weekly Sun 17:00-Fri 17:00 America/New_York}
  SIE.DE: {tick: 0.02, lot: 1, kind: stocks, price: 250, calendar: XETR}
  ES: {tick: 0.25, lot: 50, kind: stocks, price: 6800, calendar: CMES, leverage: 50, margin: isolated, funding: false}
"""
STRATEGY = """\
from bot import Bracket, Close, Open, Strategy


class Turn(Strategy):
    def on_bar(self, view, bar):
        if view.position(bar.market):
            yield Close(bar.market)
        elif not view.orders(bar.market):
            # One contract of ES is worth about 340,000.
            usd, leverage = (350_000, 50) if bar.market == "ES" else (1_500, 5)
            yield Open(bar.market, "long", usd=usd, leverage=leverage, bracket=Bracket(stop_pct=0.4, target_r=2))
"""
CONFIG = """\
account: {base_url: embedded}
dead_man: off
state_dir: state
embedded: {clock: 60x, markets: [SHIB, XAUUSD, EURUSD, SIE.DE, ES]}
strategies:
  - {name: turn, use: "turn:Turn", markets: [SHIB, XAUUSD, EURUSD, SIE.DE, ES], interval: 5m, budget_usd: 1000000,
     max_leverage: 50}
"""


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A listing file with stored sessions."""
    folder = tmp_path_factory.mktemp("listings")
    (folder / "markets.yaml").write_text(LISTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOT_MARKETS_PYTHON", python_with_calendars())
        patch.chdir(folder)
        assert call(["markets", "sessions"]) == 0
    use_listings({})
    return (folder / "markets.yaml").read_text()


@pytest.fixture
def project(place: Path, listings: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with that listing file, and without the library that knows the sessions."""
    monkeypatch.setenv("BOT_MARKETS_PYTHON", "/nowhere")
    monkeypatch.chdir(place)
    (place / "markets.yaml").write_text(listings)
    (place / "strategies").mkdir()
    (place / "strategies" / "turn.py").write_text(STRATEGY)
    (place / "bot.yaml").write_text(CONFIG)
    yield place
    use_listings({})


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bot", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["baseUrl"])


def test_they_are_backtested_under_their_own_names(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for market in MARKETS:
        arguments = ["--days", "2", "--interval", "5m", "--from", "2026-09-09", "--store", "candles"]
        assert call(["data", "gen", market, *arguments]) == 0
    assert call(["check", "bot.yaml"]) == 0
    assert call(["backtest", "bot.yaml", "--data", "candles", "--out", "runs"]) == 0
    (run,) = (project / "runs").iterdir()
    manifest = json.loads((run / "manifest.json").read_text())
    listed = manifest["options"]["listings"]
    assert set(listed) == set(MARKETS)
    assert listed["SHIB"]["spec"]["tick"] == 1 and listed["ES"]["spec"]["size_step"] == 50 * 10**8
    trades = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert {row["coin"] for row in trades if row.get("coin")} == set(MARKETS)
    capsys.readouterr()
    # Elsewhere, without the listing file: the manifest has the listings.
    (project / "markets.yaml").rename(project / "away.yaml")
    use_listings({})
    assert call(["replay", str(run), "--data", "candles"]) == 0
    assert "equal: every decision and every fill is the same" in capsys.readouterr().out


async def test_they_trade_in_a_sandbox_over_http_and_after_a_restart_without_the_file(project: Path) -> None:
    names = ",".join([*MARKETS, "BTC", "markets.yaml"])
    start = ("sandbox", "--port", "0", "--json", "--db", "s.db", "--clock", "60x")
    with running(*start, "--markets", names) as process:
        url = address(process)
        async with Client(url) as client:
            account = await client.create_sandbox_account(name="me", starting_balance_usd=100_000)
        async with Client(url, account.api_key) as client:
            assert {market.coin for market in (await client.markets()).markets} == {*MARKETS, "BTC"}
            for market, tick in MARKETS.items():
                usd, leverage = (Decimal(350_000), 50) if market == "ES" else (Decimal(5_000), 5)
                request = OrderRequest(market=market, side="long", usd_amount=usd, leverage=leverage)
                await client.place(request, key=f"open-{market}")
                book = await client.book(market)
                assert all(Decimal(level.px) % Decimal(tick) == 0 for level in (*book.bids, *book.asks))
            assert {position.coin for position in (await client.account()).positions} == set(MARKETS)
            before = [event.id for event in (await client.events()).events]
    with running(*start) as process:
        async with Client(address(process), account.api_key) as client:
            assert {position.coin for position in (await client.account()).positions} == set(MARKETS)
            assert [event.id for event in (await client.events()).events][: len(before)] == before
            for market in MARKETS:
                await client.close(market, CloseRequest(), key=f"close-{market}")
            assert not (await client.account()).positions


def test_they_trade_in_a_live_daemon(project: Path) -> None:
    def entered() -> set[str]:
        with closing(sqlite3.connect(project / "state" / "journal.db")) as journal:
            if not journal.execute("SELECT 1 FROM sqlite_master WHERE name = 'intents'").fetchone():
                return set()
            return {row[0] for row in journal.execute("SELECT market FROM intents WHERE state = 'accepted'")}

    journal_file = project / "state" / "journal.db"
    with running("run", "bot.yaml"):
        until("every market has an order", lambda: journal_file.exists() and entered() == set(MARKETS))
