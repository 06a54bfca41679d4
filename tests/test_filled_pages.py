"""The pages outside the dashboard, filled. Nothing on them is wider than the screen or its card."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bot.backtest.report.page import render_html
from bot.backtest.results.run_reader import StoredRun, read_run
from bot.cli.app import call
from bot.research.study import Study, Trial
from bot.research.sweep_page import render_sweep
from bot.service.docs import html
from bot.service.docs.html_docs import docs_page, errors_page, models_page
from bot.service.docs.openapi import description
from bot.service.docs.wallet_page import SCRIPT as WALLET_SCRIPT
from bot.service.docs.wallet_page import watch
from bot.service.host import HostOptions, build
from bot.service.http import approval_page
from bot.service.operations.wallets import WalletOperations
from bot.wire.queries import WatchQuery
from tests.backtest.builders import minutes, write
from tests.screen_fit import faults_in_both_colours, misfits

LONG = "momentum-of-the-hourly-breakout-filtered"
WORD = "n" * 200
MARKET = "event:will-the-federal-reserve-cut-rates-in-march-2027:no"
ROWS = 40
NOW_MS = 1_795_132_800_000
CONFIG = """\
account: {{base_url: embedded}}
dead_man: {{heartbeat_seconds: 3600, on_miss: flatten}}
strategies_dir: {strategies}
strategies:
  - {{name: {name}, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}}
"""
# Frames that may scroll sideways: program text, the map of a sweep, and on a phone every table that has its own frame.
FRAMES = {1440: "pre, .wide:has(.heat), #plot, .op", 390: "pre, .wide, .scroll, #plot, .op"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> StoredRun:
    """A run with long names, two markets, and amounts of millions."""
    folder = tmp_path_factory.mktemp("filled")
    (folder / "c.yaml").write_text(CONFIG.format(strategies=repository / "strategies", name=LONG))
    path = write(minutes(2_000, seed=1, market="BTC", px=100_000.0), folder / "BTC.csv")
    assert call(["backtest", str(folder / "c.yaml"), "--data", f"BTC={path}", "--out", str(folder / "out")]) == 0
    (made,) = (folder / "out").iterdir()
    stored = read_run(made)
    large = tuple(
        replace(
            one,
            number=10**6 + n,
            size=123_456.789,
            fees_usd=12_345.67,
            funding_usd=-1_234.5,
            pnl_usd=(-1) ** n * 1_234_567.89,
            market=(one.market, MARKET)[n % 2],
            exit_kind="trailing_stop",
            r_multiple=-123.45,
        )
        for n, one in enumerate(stored.trades)
    )
    assert len(large) > ROWS
    figures = stored.summary["figures"] | {"Return [%]": -123_456.78, "Max. Drawdown Duration [h]": 108_630.25}
    more = {"figures": figures, "quarantined": {LONG: f"its hook failed: {WORD}"}, "left": [f"{MARKET} {WORD}"]}
    return replace(stored, trades=large, summary=stored.summary | more)


def _study() -> Study:
    names = {f"{LONG}_{n}": n for n in range(12)}
    trials = tuple(
        Trial(
            cell,
            {name: cell * (n + 1) for name, n in names.items()},
            "complete" if cell else "failed",
            {"Return [%]": -12_345.678 * cell, "Sharpe Ratio": cell / 7, "# Trades": 123_456},
            (0.01, -0.02, 0.03),
            WORD,
            None,
        )
        for cell in range(ROWS)
    )
    objectives = [["Return [%]", "highest"], ["Sharpe Ratio", "highest"]]
    identity = {
        "space": {"objectives": objectives, "constraints": [["# Trades", 30, None]]},
        "method": "grid",
        "seed": 1,
        "code": WORD,
        "data": [{"market": MARKET, "interval": "1m", "candles": 10**9}],
    }
    made = SimpleNamespace(
        name=WORD, identity=identity, trials=lambda: trials, importance=lambda: dict.fromkeys(names, 1 / 12)
    )
    return cast(Study, made)


def _wallet() -> str:
    address = "0x" + "ab" * 20
    held = {
        "coin": MARKET,
        "side": "short",
        "leverage": 50,
        "size": "123456789.12345678",
        "notionalUsd": "1234567890.12",
        "entryPx": "0.00012345",
        "markPx": "104310.5",
        "liquidationPx": "104310.5",
        "fundingUsd": "-1234567.89",
        "unrealizedPnlUsd": "-12345678.9",
    }
    made = {
        "ts": NOW_MS,
        "symbol": MARKET,
        "intent": "reduce",
        "side": "short",
        "kind": "liquidator_backstop",
        "filledSize": "123456789.12345678",
        "avgPx": "0.00012345",
        "feeUsd": "1234567.89",
        "realizedPnlUsd": "-12345678.9",
    }
    gains = dict.fromkeys(("1d", "7d", "30d", "all"), "-1234567890.12")
    parts = ("realizedPnlUsd", "unrealizedPnlUsd", "feesUsd", "fundingUsd", "marginLostUsd", "absorbedUsd", "netPnlUsd")
    wallets = SimpleNamespace(
        wallet_body=lambda _address: {
            "address": address,
            "nickname": WORD[:64],
            "environment": "sandbox",
            "updatedAt": NOW_MS,
            "registered": True,
            "accountValueUsd": "1234567890.12",
            "positions": [held] * ROWS,
        },
        wallet_pnl_body=lambda _address: (
            dict.fromkeys(parts, "-1234567890.12") | {"ranges": gains, "trades": 10**6, "winRatePct": "33.33"}
        ),
        wallet_nav_body=lambda _address, _span: {
            "series": [{"ts": NOW_MS + n * 60_000, "navUsd": f"{10**9 + n}"} for n in range(ROWS)]
        },
        wallet_trades_body=lambda _address, _query: {"trades": [made] * ROWS, "nextBefore": NOW_MS},
    )
    return watch(cast(WalletOperations, wallets), address, WatchQuery())


def test_the_page_of_a_wallet_reads_itself_again_and_says_when_it_cannot(browser: Any) -> None:
    """Under its real policy; what a person has opened stays open."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab, answers = context.new_page(), [(200, _wallet())]
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    headers = {**html.headers_with(WALLET_SCRIPT), "Content-Type": "text/html"}
    tab.route("**/*", lambda route: route.fulfill(status=answers[-1][0], body=answers[-1][1], headers=headers))
    tab.clock.install()
    tab.goto("http://localhost/watch/0x1")
    tab.locator("summary").first.click()
    answers.append((200, _wallet().replace("1,234,567,890.12", "7.77")))
    tab.clock.fast_forward(30_000)
    tab.get_by_text("7.77").first.wait_for()
    assert tab.locator("details[open]").count() == 1
    assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert said == []
    answers.append((500, ""))
    tab.clock.fast_forward(30_000)
    tab.get_by_text("The service does not answer: the values are old.").wait_for()
    answers.append(answers[1])
    tab.clock.fast_forward(30_000)
    tab.get_by_text("The service does not answer").wait_for(state="detached")
    context.close()


def _approvals() -> dict[str, str]:
    scopes = [name for name, _ in approval_page.SCOPES]
    return {
        "code": approval_page.enter_code("t", "ABCD-EFGH", WORD),
        "sign-in": approval_page.sign_in("t", WORD),
        "otp": approval_page.enter_otp("t", "+44" + "7" * 77, "123456", WORD),
        "decide": approval_page.decide(
            "t",
            [("Account", WORD), ("Code", "ABCD-EFGH"), ("Asked from", WORD), ("Program", WORD), ("Markets", WORD)],
            name=WORD,
            offered=scopes,
            chosen=scopes,
            problem=WORD,
        ),
        "done": approval_page.done(WORD[:64], WORD),
    }


def _documents() -> dict[str, str]:
    service = build(HostOptions(clock="manual", hold_prices=True, markets=("BTC",)), control_token="bbc_test")
    made = description(list(service.app.rules), "http://127.0.0.1:8700")
    return {"docs": docs_page(made), "errors": errors_page(made), "models": models_page(made)}


def pages(run: StoredRun) -> dict[str, Callable[[], dict[str, str]]]:
    """By name: what makes the filled pages."""
    other = replace(
        run,
        summary=json.loads(json.dumps(run.summary)),
        manifest=run.manifest | {"config": {"name": WORD, "text": WORD}},
    )
    return {
        "report": lambda: {"one": render_html(run), "two": render_html(run, other)},
        "sweep": lambda: {"page": render_sweep(_study(), (WORD,))},
        "wallet": lambda: {"page": _wallet()},
        "documents": _documents,
        "approval": _approvals,
    }


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("kind", ["report", "sweep", "wallet", "documents", "approval"])
def test_a_filled_page_fits_its_screen(kind: str, run: StoredRun, tab: Any, tmp_path: Path) -> None:
    pictures = os.environ.get("PICTURES")
    wrong = []
    for name, text in pages(run)[kind]().items():
        path = tmp_path / f"{kind}-{name}.html"
        path.write_text(text)
        tab.goto(path.as_uri())
        wrong += misfits(tab, path.stem, frames=FRAMES, picture=pictures and f"{pictures}/{path.stem}")
        wrong += faults_in_both_colours(tab, path.stem)
    assert not wrong, "\n".join(wrong)
