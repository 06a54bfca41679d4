"""The sections of the report about the run itself: its head, its warnings, guardians, outages, refused orders, and what
was run, in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bot.backtest.report.summary import (
    FAILURES,
    FIRST,
    action_text,
    band_lines,
    failure_text,
    nothing_traded,
    proof_text,
)
from bot.backtest.report.tables import bullets, chip, details, escaped, pairs, section, table
from bot.backtest.report.verdicts import day_text
from bot.backtest.results.run_reader import StoredRun
from bot.figures import Column, Figure
from bot.number_text import duration_ms, instant, usd
from bot.words import many

# guardians in their table
ROWS_MAX: Final = 500
ROWS_OPEN: Final = 20
GUARDIANS: Final = (
    *(Column(name, "words") for name in ("When, UTC", "Guardian", "Market", "Action", "Reason", "Trade")),
    Column("Result of its fills, after fees", "gain", "higher", "USD"),
)
OUTAGES: Final = (
    Column("Down from, UTC"),
    Column("For", "seconds"),
    Column("Held before", "words"),
    Column("Held after", "words"),
    Column("Events meanwhile", "count"),
    Column("Value meanwhile", "gain", "higher", "USD"),
)
ORDERS: Final = (Column("Code", "words"), Column("Times", "count"), Column("First order", "words"))
# What each path policy does inside a bar.
PATHS: Final = {
    "sl_first": "the extreme nearer to the open first; the stop before the target",
    "ohlc": "open, high, low, close",
    "olhc": "open, low, high, close",
}


def head(runs: Sequence[StoredRun], names: Sequence[str], kicker: str) -> str:
    """The title of the page: name, range, markets and start balance of each run."""
    parts = [f'<p class="kicker">{escaped(kicker)}</p>']
    for run, name in zip(runs, names, strict=True):
        course, data = run.summary["course"], run.manifest["data"]
        markets = list(dict.fromkeys(str(series["market"]) for series in data))
        intervals = list(dict.fromkeys(str(series["interval"]) for series in data))
        facts = [
            f"{day_text(course['fromMs'])} to {day_text(course['toMs'])}",
            ", ".join(markets),
            f"{', '.join(intervals)} candles, {many(course['bars'], 'bar')}",
            f"{usd(run.summary['startUsd'])} USD at the start",
            "all times UTC",
            f"folder {run.name}",
        ]
        spans = "".join(f"<span>{escaped(fact)}</span>" for fact in facts)
        parts.append(f'<h1>{escaped(name)}</h1><p class="facts">{spans}</p>')
    return "".join(parts)


def chips(run: StoredRun) -> str:
    """What to know before the figures: causality, accepted faults of the data, and the path inside a bar."""
    items = []
    if (proof := run.summary.get("proof")) is not None:
        is_good = proof["isWhole"] and proof["differs"] is None
        items.append(("good" if is_good else "warn", proof_text(proof)))
    if accepted := run.manifest.get("accepted"):
        items.append(("warn", f"Data taken with faults: {', '.join(accepted)}"))
    path = run.manifest["options"]["path"]
    items.append(("", f"Path inside a bar: {PATHS.get(path, path)}"))
    return "".join(chip(text, kind) for kind, text in items)


def warnings(run: StoredRun) -> str:
    lines = [f"{name} was quarantined: {why}" for name, why in run.summary.get("quarantined", {}).items()]
    if (why_not := nothing_traded(run.summary)) is not None:
        lines.append(why_not)
    return "".join(f'<p class="warn">{escaped(line)}</p>' for line in lines)


def guardians(run: StoredRun) -> str:
    fired = run.summary.get("guardians", ())
    rows = [
        (
            instant(guardian["ts"]),
            guardian["type"],
            guardian["market"] or "account",
            action_text(guardian),
            guardian["reason"] or "",
            ", ".join(map(str, guardian.get("trades", ()))),
            guardian.get("resultUsd"),
        )
        for guardian in fired[-ROWS_MAX:]
    ]
    more = f"<p>The last {ROWS_MAX} of {len(fired):,}; the run's folder has all of them.</p>"
    body = table(GUARDIANS, rows, label="Guardians") + (more if len(fired) > ROWS_MAX else "")
    # Many rows make a phone scroll far and a print long.
    is_short = len(fired) <= ROWS_OPEN
    return section("Guardians", body if is_short else details(many(len(fired), "guardian"), body))


def outages(run: StoredRun) -> str:
    rows = [
        (
            instant(outage["atMs"]),
            outage["forMs"] / 1000,
            ", ".join(sorted(outage["openBefore"])) or "flat",
            ", ".join(sorted(outage["openAfter"])) or "flat",
            outage["events"],
            outage["equityAfterUsd"] - outage["equityBeforeUsd"],
        )
        for outage in run.summary.get("outages", ())
    ]
    return section("Outages", table(OUTAGES, rows))


def failures(run: StoredRun) -> Iterator[str]:
    """The orders that were refused or not filled, by the kind of failure."""
    for by, title in FAILURES.items():
        first = run.summary.get(FIRST[by], {})
        rows = [
            (code, count, failure_text(first[code]) if code in first else "")
            for code, count in run.summary.get(by, {}).items()
        ]
        yield section(title, table(ORDERS, rows))


def band(run: StoredRun) -> str:
    paths = run.summary.get("band")
    lines = [] if paths is None else [line.removeprefix("band: ") for line in band_lines(paths)]
    return section("Path policies compared", details(many(len(lines), "line"), bullets(lines)), span="c6")


def what_was_run(run: StoredRun, title: str = "What was run") -> str:
    """Options in words, strategies with every param, the config as it was written, and the assumptions."""
    manifest = run.manifest
    strategies = "".join(map(_strategy, manifest["strategies"]))
    assumptions = manifest.get("assumptions", ())
    body = (
        details("Options in words", pairs(options_in_words(run), kind="pairs words"), is_open=True)
        + details("Strategies and their params", strategies, is_open=True)
        + details("Config file", f"<pre tabindex=0>{escaped(manifest['config']['text'])}</pre>")
        + details(f"Assumptions ({len(assumptions)})", bullets(assumptions))
    )
    version = f"Bracketbot {manifest['code']['version']}, seed {manifest['options']['seed']}"
    return section(title, body, note=version)


def options_in_words(run: StoredRun) -> list[Figure]:
    """The options of a run as a person says them."""
    options, course = run.manifest["options"], run.summary["course"]
    from_ms, to_ms = options["from_ms"], options["to_ms"]
    latency = options["latency_ms"]
    said: list[tuple[str, str]] = [
        ("From", instant(from_ms) if from_ms is not None else f"the start of the data, {instant(course['fromMs'])}"),
        ("To", instant(to_ms) if to_ms is not None else f"the end of the data, {instant(course['toMs'])}"),
        ("Balance", f"{usd(options['balance_usd'])} USD"),
        ("Path inside a bar", PATHS.get(options["path"], options["path"])),
        ("Delay of orders", duration_ms(latency) if latency >= 1000 else f"{latency} ms" if latency else "none"),
        ("Rules of the venue", _rules_text(options["rules"])),
        (
            "Outages",
            ", ".join(
                f"{duration_ms(outage['for_ms'])} from {instant(outage['at_ms'])}" for outage in options["outages"]
            )
            or "none",
        ),
        (
            "Funding",
            ", ".join(f"{name} {'recorded' if rate else 'baseline'}" for name, rate in run.manifest["funding"].items())
            or "baseline",
        ),
        ("Data", _data_text(run.manifest["data"])),
    ]
    if settled := options.get("settlements"):
        said.append(("Settlements", ", ".join(f"{name} at {end['outcome']}" for name, end in settled.items())))
    if caps := options.get("caps"):
        said.append(("Caps", json.dumps(caps) if not isinstance(caps, str) else caps))
    if "calibration" in options:
        said.append(("Calibration", str(options["calibration"])))
    if "approve" in options:
        said.append(("Approvals", str(options["approve"])))
    return [Figure(name, text, "words") for name, text in said]


def _rules_text(rules: Mapping[str, Mapping[str, str]]) -> str:
    parts = [
        f"{'all markets' if name == '*' else name}: {', '.join(f'{key} {value}' for key, value in rule.items())}"
        for name, rule in rules.items()
        if rule
    ]
    return "; ".join(parts) or "those of the service"


def _data_text(data: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{series['market']} {series['interval']}: {many(series['candles'], 'candle')}" for series in data)


def _strategy(strategy: Mapping[str, Any]) -> str:
    where = f"{', '.join(strategy['markets'])}, {strategy['interval']} bars, " if "markets" in strategy else ""
    note = escaped(where + strategy.get("use", ""))
    named = f'<h3 class="sub">{escaped(strategy["name"])} <span class="note">{note}</span></h3>'
    return named + pairs(Figure(name, value, "param") for name, value in strategy.get("params", {}).items())
