"""Each figure that the report, the terminal, the JSON and the comparison of two runs show is the one of the files of
the run, computed again by other means. A figure that recomputation.py does not know fails.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import pytest

from bot.backtest.python_api import BacktestRun
from bot.backtest.report.benchmark import relation
from bot.cli.app import call
from tests.backtest.report.recomputation import FIGURES, MONTHS, SAID, TABLES, Files, Value, by_path, shows
from tests.page_texts import Shown, page_of

CONFIG: Final = """\
account: {{base_url: embedded}}
dead_man: off
strategies_dir: {strategies}
strategies:
  - {{name: trend, use: "trend:Trend", markets: [BTC, ETH], interval: {interval}, budget_usd: 6000, max_leverage: 3}}
  - {{name: back, use: "reversion:MeanReversion", markets: [SOL], interval: {interval}, budget_usd: 4000}}
"""
MARKETS: Final = ("BTC", "ETH", "SOL")
# A number with its unit, a duration, or a day.
VALUE: Final = r"(\d+ [A-Z]\w\w \d{4}|\d+ \w+(?: \d+ \w+)?|[+−-]?[\d,.]+\d(?: %| R|×)?|[+−-]?\d(?: %| R|×)?)"
# The sentences with figures, of the page and of the terminal. A name in braces stands in FIGURES or SAID.
SENTENCES: Final = """\
- {Net result} USD in {length}, {CAGR} a year, with a fall of {Max. drawdown} on the way. Always long at the same
  average size: {always long usd} USD.
- Profitable after costs, but below its peak since {last peak}.
- A true Sharpe ratio above 0 has a probability of {probability}, if no other params were tried.
- Drawn again from its own trades, {losing draws} of {draws} runs lose money.
- {share of the best year} of the result is from {best year}.
- closed; {open} more open at the end
- Equity from {start} to {Equity at the end} USD, log
- Equity from {start} to {Equity at the end} USD, linear
- percent of the highest equity so far; lowest {Max. drawdown}, now {drawdown now}
- open notional in multiples of the equity; mean {mean exposure}, highest {highest exposure}
- Always long: BTC {size of BTC}, ETH {size of ETH}, SOL {size of SOL} USD, the average size that the strategy held
  over the whole run, set again each day, without costs. Alpha and beta are against the mean daily return of the
  markets.
- {months won} of {months} months with a gain. Best {best month}, worst {worst month}.
- Costs are {costs of gross} of the gross result. Slippage of {Slippage, in the prices} USD is inside the prices. What
  was paid is negative.
- Slippage of {Slippage, in the prices} USD is inside the prices. What was paid is negative.
- mean {Average R}
- {far trades} trade(s) above +2 R: {result of far trades} USD. {near the stop} trade(s) near −1 R.
- {turned} losing trade(s) at +1 R or better before the loss.
- last {window} days, for a year
- Sharpe ratio of the last {window} days
- {window} days
- Below 0 on {days below 0} of the days.
- {5 % of the drawn ends} to {95 % of the drawn ends}
- {lowest end by path} to {highest end by path}
- Probabilistic Sharpe ratio {probability as a fraction}: the probability that the true Sharpe ratio is above 0, by
  the length, skewness and tails of {days with prices} daily returns (Bailey, Lopez de Prado 2012). It holds if no
  other params were tried; bot sweep allows for those.
- Trades in another order ({draws} draws, seed 1): maximum drawdown after a trade {5 % of the orders} to {95 % of the
  orders} (5 % to 95 %), median {median of the orders}, in this run {drawdown after trades}; {deeper orders} of the
  orders are deeper. The order changes no end equity.
- Trades drawn with replacement ({draws} draws, seed 1; Efron 1979): end equity {5 % of the drawn ends} to {95 % of
  the drawn ends} USD (5 % to 95 %), median {median of the drawn ends} USD; {losing draws} end below the start;
  maximum drawdown {5 % of the drawn drawdowns} to {95 % of the drawn drawdowns} (5 % to 95 %), median {median of the
  drawn drawdowns}. This is how far the result rests on which trades happened.
- The newest {newest trades} of {trades} trades; trades.csv in the run's folder has all of them.
- {first day} to {last day}
- 1h candles, {bars} bars
- 1d candles, {bars} bars
- {start} USD at the start
- {guardians} guardians
"""
# Words without a figure, and the sections that repeat what was given to the run or what another run's file says.
WORDS: Final = (
    r"5 % to 95 %; mark: the median\. Dashed: the start\.",
    r"folder .*",
    r"the newest 160 candles",
    r"[A-Z]+: the newest 160 candles, with \d+ trades?",
    r", Apache License 2\.0",
    r"recomputed-\w+",
)
GIVEN: Final = ("What was run", "Path policies compared", "Not filled", "Refused by the service")
# Title of a group -> its lead figure, and the one beside it.
LEADS: Final = {
    "Result": ("Return", "Net result"),
    "Risk": ("Max. drawdown", "Longest drawdown"),
    "Trades": ("Closed trades", "Profit factor"),
}
LEGENDS: Final = {
    "Strategy": "Equity at the end",
    "Always long, same average size": "always long end",
    "whole run": "Sharpe ratio",
}
# Figures that the page has in sentences or tables only, or leaves to terminal and JSON.
ELSEWHERE: Final = {"Buy and hold", "VaR 99 %", "Shortfall 99 %", "Closed trades, before costs", "Fees"} | {
    "Funding",
    "Open at the end",
    "Slippage, in the prices",
}
# The first head of a table of a terminal -> the table of the page; and the words before its sentences.
ON_TERMINAL: Final = {"drawdown": "Deepest drawdowns", "by": "Where the result comes from"}
HEADS: Final = (
    "Profitable after costs.",
    "Lost money after costs.",
    "Lost money: costs took more than the trades earned.",
)
# Lines of a terminal that list records or say what was given.
RECORDS: Final = (
    r"(exits|not filled|refused|band|open at the end|guardian|down|the last|and \d+ more|causal|QUARANTINED)\b"
)


def value_of(run: Files, name: str) -> Value:
    if name.startswith("size of "):
        return run.sizes[name.removeprefix("size of ")]
    return FIGURES[name].of(run) if name in FIGURES else SAID[name](run)


def is_figure(run: Files, name: str, text: str) -> bool:
    return shows(text, FIGURES[name].of(run), FIGURES[name].slack)


def pattern_of(sentence: str) -> tuple[re.Pattern[str], list[str]]:
    literals = re.split(r"\{[^}]+\}", sentence)
    text = VALUE.join(re.escape(literal).replace(r"\(s\)", "s?") for literal in literals)
    return re.compile(text), re.findall(r"\{([^}]+)\}", sentence)


PATTERNS: Final = [pattern_of(" ".join(part.split())) for part in re.split(r"^- ", SENTENCES, flags=re.MULTILINE)[1:]]


def faults_of(run: Files, text: str) -> list[str]:
    """What is wrong with a sentence: a value that is not that of the files, or no known sentence."""
    if any(re.fullmatch(words, text) for words in WORDS):
        return []
    known = []
    for pattern, names in PATTERNS:
        if read := pattern.fullmatch(text):
            slack = 1e-3 if "R" in text else 2e-6
            wrong = [
                f"{name} is {value_of(run, name)}, shown: {text}"
                for name, part in zip(names, read.groups(), strict=True)
                if not shows(part, value_of(run, name), slack)
            ]
            known.append(wrong)
    return min(known, key=len, default=[f"recomputation.py lacks it: {text}"])


def faults_of_text(run: Files, shown: Shown) -> Iterator[str]:
    """What is wrong with a text of the report."""
    section, place, name, text = shown
    if not re.search(r"\d", text) or section in GIVEN or "html. head. title." in place:
        return
    last = place.rpartition(" ")[2]
    if last == "dt." or (re.search(r"svg\.[xy]a", place) and last != "text.tagt"):
        return
    if last.startswith("dd.") and "pairs" in place:
        if name not in FIGURES or not is_figure(run, name, text):
            yield f"{name}: {text}, computed {value_of(run, name) if name in FIGURES else 'nowhere'}"
    elif section in LEADS and "p.lead" in place:
        lead, second = LEADS[section]
        figure = lead if last == "b." else second
        if not is_figure(run, figure, text.strip("▲▼ ").removeprefix("profit factor ").removesuffix(" USD")):
            yield f"{figure}: {text}"
    elif text.startswith(("by path: ", "of ")) and section in LEADS:
        yield from faults_beside(run, name if last == "small." else LEADS[section][0], text)
    elif last == "b." and "ul.keys" in place:
        if not shows(text, value_of(run, LEGENDS[name])):
            yield f"{name}: {text}"
    elif last in ("text.tagt", "text.bv", "title.") or (last == "li." and text.endswith("unrealised")):
        yield from faults_of_mark(run, last, section, text)
    else:
        yield from faults_of(run, text)


def faults_beside(run: Files, name: str, text: str) -> Iterator[str]:
    """The range over the path policies, and the mark of a short run."""
    for part in text.split(" · "):
        if (read := re.fullmatch(r"by path: (.+) to (.+)", part)) is not None:
            json_name = FIGURES[name].json
            for shown, pick in zip(read.groups(), (min, max), strict=True):
                if not shows(shown, by_path(run, json_name, pick)):
                    yield f"{name} by path: {text}"
        elif not re.fullmatch(r"of .+, not of a year", part) or not shows(part[3:-15], value_of(run, "length")):
            yield f"{name}: {text}"


def faults_of_mark(run: Files, place: str, section: str, text: str) -> Iterator[str]:
    """A value beside an axis or a bar, the title of a mark, and a position that is open at the end."""
    tags = {
        "Equity": [value_of(run, name) for name in ("Equity at the end", "always long end", "drawdown now")],
        "Sharpe ratio over time": [value_of(run, "rolling Sharpe now")],
        "Price and trades": [part["close"][-1] for part in run.markets.values()],
        "Years": list(run.years.values()),
    }
    title = re.fullmatch(r"(?:(\S+) to (\S+) R: |#(\S+) .*: |\d{4}: )(\S+)(?: USD)?", text)
    if place != "title.":
        held = [row for row in run.rows if not row["exit_ms"] and text.startswith(f"{row['market']} {row['side']} ")]
        numbers = re.fullmatch(r"\w+ \w+ (\S+) @ (\S+), (\S+) USD unrealised", text)
        if numbers is not None and len(held) == 1:
            row, close = held[0], run.markets[held[0]["market"]]["close"][-1]
            move = (close - float(row["entry_px"])) * (1 if row["side"] == "long" else -1)
            values: list[float] = [float(row["size"]), float(row["entry_px"]), move * float(row["size"])]
            if not all(map(shows, numbers.groups(), values)):
                yield f"open: {text}, computed {values}"
        elif not any(shows(text, value) for value in tags[section]):
            yield f"{section}: {text}, computed {tags[section]}"
    elif title is None:
        if not re.fullmatch(r"\d{4}, market", text):
            yield f"{section}: {text}"
    elif title[1]:
        low, high = (float(part.replace("−", "-").replace(",", "")) for part in title.group(1, 2))
        if sum(low - 1e-9 <= multiple < high - 1e-9 for multiple in run.multiples) != int(title[4].replace(",", "")):
            yield f"{section}: {text}"
    elif title[3]:
        if not shows(title[4], float(run.rows[int(title[3].replace(",", "")) - 1]["pnl_usd"])):
            yield f"{section}: {text}"
    elif not any(shows(title[4], value) for value in run.years.values()):
        yield f"{section}: {text}"


def faults_of_rows(title: str, run: Files, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    expected = TABLES[title](run)
    if len(rows) != len(expected):
        yield f"{title}: {len(rows)} rows, computed {len(expected)}"
    for cells, values in zip(rows, expected, strict=False):
        for text, value in zip(cells, values, strict=True):
            if not shows(text, value, 2e-4):
                yield f"{title}: {text!r} in {cells}, computed {value}"


def faults_of_lines(run: Files, lines: Sequence[str]) -> Iterator[str]:
    """What is wrong with the lines of a terminal. A table has the rows of the page."""
    title, rows = "", dict.fromkeys(ON_TERMINAL.values(), 0)
    for line in lines:
        figure = re.fullmatch(r"  (.{34}) +(\S+(?: \S+)*?)(?:   (.+))?", line)
        cells = re.split(r"  +", line.strip())
        name = figure[1].strip().removesuffix(" [USD]") if figure is not None else ""
        if figure is not None and name in FIGURES:
            if not is_figure(run, name, figure[2]):
                yield f"{name}: {figure[2]}, computed {value_of(run, name)}"
            yield from faults_beside(run, name, figure[3].replace("   ", " · ")) if figure[3] else ()
        elif cells[0] in ON_TERMINAL:
            title = ON_TERMINAL[cells[0]]
        elif year := re.fullmatch(r"  (\d{4}) \[%\]  (.*)", line):
            yield from faults_of_months(run, int(year[1]), year[2])
        elif not re.search(r"\d", line) or re.match(rf"\s*{RECORDS}", line):
            title = ""
        elif title:
            expected = [value for value in TABLES[title](run)[rows[title]] if value != ""]
            rows[title] += 1
            if len(cells) != len(expected) or not all(shows(*pair, 2e-4) for pair in zip(cells, expected, strict=True)):
                yield f"{title}: {cells}, computed {expected}"
        else:
            yield from faults_of(run, re.sub(rf"^({'|'.join(HEADS)}) ", "", line.strip()))
    for name, count in rows.items():
        if title and count < min(3, len(TABLES[name](run))):
            yield f"{name}: {count} rows"


def faults_of_months(run: Files, year: int, text: str) -> Iterator[str]:
    for part in text.split("  "):
        name, shown = part.split()
        value = run.years[year] if name == "Year" else run.months[year, MONTHS.index(name) + 1]
        if not shows(shown, value):
            yield f"{year} {name}: {shown}, computed {value}"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recomputed")


def ran(place: Path, repository: Path, name: str, interval: str, *args: str) -> tuple[Files, list[str]]:
    """The files of a backtest, and what it said."""
    config = place / f"recomputed-{name}.yaml"
    config.write_text(CONFIG.format(strategies=repository / "strategies", interval=interval))
    with redirect_stdout(io.StringIO()) as out:
        assert call(["backtest", str(config), "--out", str(place / name), *args]) == 0
    (folder,) = (place / name).iterdir()
    return Files(folder), out.getvalue().splitlines()


@pytest.fixture(scope="module")
def generated(places: Path, repository: Path) -> tuple[Files, list[str]]:
    """Hourly candles by chance, over 60 days that touch two years: losses, positions open at the end, an outage."""
    for market in MARKETS:
        span = ["--interval", "1h", "--from", "2024-12-01", "--days", "60", "--store", str(places / "data")]
        assert call(["data", "gen", market, *span]) == 0
    outage = ("--outage", "2024-12-20T10:00+5h")
    return ran(places, repository, "generated", "1h", "--data", str(places / "data"), "--monte-carlo", "200", *outage)


@pytest.fixture(scope="module")
def recorded(places: Path, repository: Path, shared: Path) -> tuple[Files, list[str]]:
    """Daily candles of an exchange from 2023 to 2025, under each path policy."""
    data = [f"--data={market}={shared}/data/crypto/hl_{market}_1d.csv.gz" for market in MARKETS]
    more = ("--from", "2023-01-03", "--accept-jumps", "--accept-zero-volume", "--band", "--monte-carlo", "200")
    return ran(places, repository, "recorded", "1d", *data, *more)


@pytest.fixture(params=["generated", "recorded"])
def run_and_lines(request: pytest.FixtureRequest) -> tuple[Files, list[str]]:
    found: tuple[Files, list[str]] = request.getfixturevalue(request.param)
    return found


def test_the_page_shows_only_figures_of_the_files(run_and_lines: tuple[Files, list[str]], tmp_path: Path) -> None:
    run, _ = run_and_lines
    assert [row for row in run.rows if not row["exit_ms"]], "a position is open at the end"
    assert min(run.nets) < 0 < max(run.nets)
    with redirect_stdout(io.StringIO()):
        assert call(["report", str(run.folder), "--out", str(tmp_path / "page.html")]) == 0
    page = page_of(tmp_path / "page.html")
    faults = [fault for shown in page.texts for fault in faults_of_text(run, shown)]
    for title, (_, *rows) in page.tables.items():
        if title not in GIVEN:
            faults += faults_of_rows(title, run, rows)
    assert not faults, "\n".join(faults)
    assert set(page.tables) >= set(TABLES) - {"Outages"}
    shown = {text.name for text in page.texts if text.place.endswith("dt.") and text.section not in GIVEN}
    assert shown & set(FIGURES) == set(FIGURES) - set(sum(LEADS.values(), ())) - ELSEWHERE
    assert (tmp_path / "page.html").stat().st_size < 3_000_000


def test_every_terminal_shows_only_figures_of_the_files(
    run_and_lines: tuple[Files, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, said = run_and_lines
    assert call(["report", str(run.folder)]) == 0
    reported = capsys.readouterr().out.splitlines()
    printed = str(BacktestRun(run.folder, run.summary["figures"])).splitlines()
    before = next(n for n, line in enumerate(said) if line.endswith("assumptions:"))
    faults = [fault for lines in (reported[2:-1], printed[2:], said[1:before]) for fault in faults_of_lines(run, lines)]
    assert not faults, "\n".join(faults)
    assert all(any(line.startswith(f"  {name}") for line in reported) for name in FIGURES)


def test_the_json_has_each_figure_under_its_name_there(
    run_and_lines: tuple[Files, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = run_and_lines
    assert call(["report", str(run.folder), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    values = {**whole["figures"], **whole["derived"], **whole["risk"], **whole["costs"]}
    assert not float(values.pop("backstopUsd"))
    assert set(values) == {formula.json for formula in FIGURES.values()}
    for name, formula in FIGURES.items():
        value = formula.of(run)
        stored, sign = values[formula.json], -1 if formula.is_paid else 1
        if value is None or stored is None:
            assert value == stored, name
        else:
            assert float(stored) == pytest.approx(sign * float(value), rel=1e-4, abs=1e-5), name
    mine = [[row["name"], row["trades"], row["result_usd"]] for row in whole["sources"]]
    assert mine == [[row[1], row[2], pytest.approx(row[6])] for row in TABLES["Where the result comes from"](run)]


def test_a_comparison_shows_the_figures_of_both_and_their_difference(
    generated: tuple[Files, list[str]],
    recorded: tuple[Files, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = generated[0], recorded[0]
    assert call(["compare", str(first.folder), str(second.folder), "--out", str(tmp_path / "page.html")]) == 0
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    rows = page_of(tmp_path / "page.html").tables["Figures"][1:]
    listed = next(n for n, line in enumerate(lines) if line[0] == "A" and line[1] == "B")
    on_terminal = [[*cells, ""][:5] for cells in lines[listed + 1 : listed + 1 + len(rows)]]
    for cells in (*rows, *on_terminal):
        name = cells[0].removesuffix(" [USD]")
        formula = FIGURES[name]
        values = [formula.of(run) for run in (first, second)]
        assert all(shows(text, value, formula.slack) for text, value in zip(cells[1:3], values, strict=True)), cells
        known = [float(value) for value in values if value is not None]
        change = known[1] - known[0] if len(known) == 2 else None
        assert shows(cells[3].removeprefix("+") if "d" in cells[3] else cells[3], change, 2 * formula.slack), cells
        word = "" if not change or not formula.better else "better" if change * formula.better > 0 else "worse"
        assert cells[4] == word, cells
    names = {row[0].removesuffix(" [USD]") for row in rows}
    assert names == {
        name
        for name, formula in FIGURES.items()
        if formula.json in {**first.summary["figures"], **first.summary["costs"]}
    }


def test_the_table_of_names_elsewhere_has_each_figure_once(repository: Path) -> None:
    text = (repository / "docs" / "backtesting.md").read_text()
    rows = text.split("| Here | QuantStats | backtesting.py |")[1].split("\n\n")[0].splitlines()[2:]
    assert sorted(row.split(" | ")[0].removeprefix("| ") for row in rows) == sorted(FIGURES)


def test_alpha_and_beta_are_to_any_series() -> None:
    other = [0.01, -0.02, 0.03, 0.0, 0.015]
    mine = [0.001 + 0.5 * value for value in other]
    assert relation(mine, other) == pytest.approx((365 * 0.001, 0.5, 1.0))
    assert relation([-value for value in other], other) == pytest.approx((0.0, -1.0, -1.0))
    assert relation([0.01], other) is None
    assert relation(mine, [0.0] * 5) is None, "a series that does not vary has no beta"
