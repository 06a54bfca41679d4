"""The page in Chromium: it asks no host for anything, draws its charts, sorts and filters its trades, and has a dark
mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bot.backtest.report.page import render_html
from bot.backtest.results.run_reader import StoredRun, read_run
from bot.cli.app import call
from tests.backtest.builders import minutes, write
from tests.html_tables import tables_of

CONFIG = """\
account: {{base_url: embedded}}
dead_man: {{heartbeat_seconds: 3600, on_miss: flatten}}
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC], interval: 1m, budget_usd: 2000, max_leverage: 2}}
  - {{name: back, use: "reversion:MeanReversion", markets: [ETH], interval: 1m, budget_usd: 2000, max_leverage: 2}}
"""
# How many colours a canvas of each pane shows, its background included.
COLOURS = """() => [...document.querySelectorAll("#plot tr")].map((row) => Math.max(0, \
...[...row.querySelectorAll("canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
})))"""
CELLS = """(column) =>
    [...document.querySelectorAll("#trade-table tbody tr")].map((row) => row.cells[column].textContent)"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> StoredRun:
    """Two strategies in two markets over two days, with the daemon down for five hours."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "c.yaml").write_text(CONFIG.format(strategies=repository / "strategies"))
    data = []
    for market, px in (("BTC", 100_000.0), ("ETH", 2_500.0)):
        path = write(minutes(2_880, seed=1, market=market, px=px), folder / f"{market}.csv")
        data += ["--data", f"{market}={path}"]
    arguments = [
        "backtest",
        str(folder / "c.yaml"),
        *data,
        "--outage",
        "2025-06-01T20:00+5h",
        "--out",
        str(folder / "out"),
    ]
    assert call(arguments) == 0
    (made,) = (folder / "out").iterdir()
    return read_run(made)


@pytest.fixture
def tab(run: StoredRun, tmp_path: Path, browser: Any) -> Iterator[Any]:
    """A page with the report. Afterwards: it asked nobody for anything, and its console is empty."""
    path = tmp_path / "page.html"
    path.write_text(render_html(run))
    asked: list[str] = []
    said: list[str] = []
    page = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light").new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.locator("#chart-bar output", has_text="in view").wait_for()
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def in_view(tab: Any) -> tuple[int, int]:
    """Trades in view, and those of them with markers, as the page says it."""
    words = tab.locator("#chart-bar output").text_content().replace(",", "").split()
    return int(words[0]), int(words[4] if "markers:" in words else words[0])


def test_every_pane_is_drawn_and_markers_appear_as_the_view_gets_smaller(tab: Any, run: StoredRun) -> None:
    mine = [one for one in run.trades if one.market == "BTC"]
    seen, marked = in_view(tab)
    assert seen == len(mine) > marked > 10
    # Equity, drawdown, candles, the average true range, exposure; separators and the time axis are rows too.
    assert sum(colours > 2 for colours in tab.evaluate(COLOURS)) >= 5
    tab.get_by_role("button", name="1 d", exact=True).click()
    tab.locator("#chart-bar output", has_not_text=f"{seen} trades").wait_for()
    fewer, now_marked = in_view(tab)
    assert fewer < seen
    assert now_marked / fewer > marked / seen
    number = mine[3].number
    tab.select_option("#filter-market", "BTC")
    # once more for the newest first, once more for the oldest
    for _ in range(2):
        tab.click("#trade-table th[data-key=number] button")
    tab.click("#trade-table th[data-key=number] button")
    tab.get_by_role("button", name=f"{number}", exact=True).click()
    tab.locator("#chart-bar output", has_not_text="markers").wait_for()
    shown, with_markers = in_view(tab)
    assert shown == with_markers < fewer


def test_the_table_of_trades_sorts_and_filters(tab: Any, run: StoredRun) -> None:
    results = sorted(round(one.pnl_usd, 4) for one in run.trades)
    tab.click("#trade-table th[data-key=result] button")
    assert tab.get_attribute("#trade-table th[data-key=result]", "aria-sort") == "ascending"
    shown = [float(text.replace(",", "").replace("−", "-")) for text in tab.evaluate(CELLS, 11)]
    assert shown == pytest.approx(results[:100], abs=0.0051)
    tab.click("#trade-table th[data-key=result] button")
    shown = [float(text.replace(",", "").replace("−", "-")) for text in tab.evaluate(CELLS, 11)]
    assert shown == pytest.approx(results[::-1][:100], abs=0.0051)
    tab.select_option("#filter-side", "short")
    tab.select_option("#filter-market", "ETH")
    tab.select_option("#filter-result", "won")
    left = [
        one for one in run.trades if one.side == "short" and one.market == "ETH" and one.exit_ms and one.pnl_usd > 0
    ]
    assert len(left) > 5
    total = sum(one.pnl_usd for one in left)
    assert tab.text_content("#trade-sum").startswith(
        f"{len(left)} of {len(run.trades)} trades, result {total:+,.2f} USD, 100.0 % won"
    )
    assert set(tab.evaluate(CELLS, 1)) == {"ETH"}
    assert set(tab.evaluate(CELLS, 2)) == {"short"}


def test_the_other_market_and_the_dark_mode_can_be_chosen(tab: Any, run: StoredRun) -> None:
    tab.select_option("#market", "ETH")
    assert in_view(tab)[0] == sum(one.market == "ETH" for one in run.trades)
    back = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(back) == "rgb(244, 246, 249)"
    tab.click("label[for=t-dark]")
    assert tab.evaluate(back) == "rgb(11, 15, 21)"
    tab.reload()
    assert tab.evaluate(back) == "rgb(11, 15, 21)", "the choice is kept"
    assert sum(colours > 2 for colours in tab.evaluate(COLOURS)) >= 5


def test_on_a_phone_nothing_but_tables_is_wider_than_the_screen(tab: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.reload()
    tab.wait_for_selector("#plot canvas")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("Math.round(document.querySelector('#plot table').getBoundingClientRect().width)") <= 370


def test_two_runs_are_drawn_over_each_other(run: StoredRun, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "both.html").write_text(render_html(run, run))
    said: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "both.html").as_uri())
    page.wait_for_selector("#readout span:nth-child(5)")
    assert said == []
    assert sum(colours > 2 for colours in page.evaluate(COLOURS)) >= 2


ROWS = """() => [...document.querySelectorAll("#trade-table tbody tr")].slice(0, 100).map((row) =>
    [...row.cells].map((cell) => [cell.textContent, cell.className, cell.dataset.label]))"""


def test_the_script_shows_each_trade_as_the_page_does_without_it(
    tab: Any, run: StoredRun, tmp_path: Path, browser: Any
) -> None:
    """Heads, forms and colours of the table come from one list of columns."""
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    (tmp_path / "plain.html").write_text(render_html(run))
    plain.goto((tmp_path / "plain.html").as_uri())
    assert plain.locator("#plot svg.plot").count() == 1, "the newest candles are drawn"
    assert plain.locator(".log .plot").is_visible()
    assert not plain.locator(".linear .plot").is_visible()
    plain.click("label[for=scale-linear]")
    assert plain.locator(".linear .plot").is_visible(), "the scale is chosen without a script"
    mine = plain.content()
    context.close()
    shown = tab.evaluate(ROWS)
    rows = next(rows for rows in tables_of(mine) if rows[0][0] == "#" and "MFE" in rows[0])
    assert [[cell for cell, _, _ in row] for row in shown] == rows[1:101]
    heads = [
        "#",
        "Market",
        "Side",
        "Strategy",
        "Opened",
        "Size",
        "Entry",
        "Exit",
        "Exit by",
        "Held",
        "Costs",
        "Result, USD",
        "R",
        "MAE",
        "MFE",
    ]
    assert [label for _, _, label in shown[0]] == rows[0] == heads
    kinds = re.findall(r'<td data-label="([^"]+)" class="([^"]*)">', mine.split('id="trade-table"')[1])
    assert {(label, kind) for row in shown for _, kind, label in row if kind} <= set(kinds)


def test_the_report_prints_on_a4_with_its_columns(run: StoredRun, tmp_path: Path, browser: Any) -> None:
    page = browser.new_page()
    (tmp_path / "print.html").write_text(render_html(run))
    page.goto((tmp_path / "print.html").as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert not page.locator(".switch").first.is_visible()
    lefts = page.evaluate("[...document.querySelectorAll('.group')].map((one) => one.getBoundingClientRect().left)")
    assert len(set(lefts)) == 3, "the three groups stand beside each other"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
